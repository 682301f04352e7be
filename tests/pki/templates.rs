//! The request file against openssl itself: for templates of every shape, `openssl req` and the scripts' `openssl x509`
//! read the rendered file, and put exactly the certificate's names into what they make.

use std::collections::BTreeSet;

use ipguard::decide::request::render;
use ipguard::facts::san::{San, SanSet};
use ipguard::observe::{certificate, template};
use x509_parser::prelude::FromDer;

use crate::tree::{Tree, has_openssl};

/// MicroK8s' own, with this for its section of names.
fn microk8s(names: &str) -> String {
    format!(
        "[ req ]\ndefault_bits = 2048\nprompt = no\ndefault_md = sha256\nreq_extensions = req_ext\ndistinguished_name = dn\n\n\
         [ dn ]\nC = GB\nST = Canonical\nL = Canonical\nO = Canonical\nOU = Canonical\nCN = 127.0.0.1\n\n\
         [ req_ext ]\nsubjectAltName = @alt_names\n\n[ alt_names ]\nDNS.1 = kubernetes\nDNS.2 = kubernetes.default\n\
         IP.1 = 127.0.0.1\nIP.2 = 10.152.183.1\n{names}\n\n\
         [ v3_ext ]\nauthorityKeyIdentifier=keyid,issuer:always\nbasicConstraints=CA:FALSE\n\
         keyUsage=keyEncipherment,dataEncipherment,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n\
         subjectAltName=@alt_names\n"
    )
}

fn shapes() -> Vec<(&'static str, String)> {
    let usual = microk8s("#MOREIPS");
    let edit = |from: &str, to: &str| {
        assert!(usual.contains(from), "{from}");
        usual.replace(from, to)
    };
    vec![
        ("as shipped", usual.clone()),
        ("without the marker", microk8s("")),
        ("a user's IP.3", microk8s("IP.3 = 203.0.113.3\n#MOREIPS")),
        ("a user's IP.30 and IP.3", microk8s("IP.30 = 203.0.113.30\nIP.3=203.0.113.3\n#MOREIPS")),
        ("the marker first", edit("[ alt_names ]\n", "[ alt_names ]\n#MOREIPS\n")),
        ("numbers that clash", microk8s("IP.2 = 203.0.113.2\nDNS.1 = api.example.org\n#MOREIPS")),
        ("numbers that clash, without the marker", microk8s("IP.2 = 203.0.113.2\nDNS.1 = api.example.org")),
        ("three of a number", microk8s("IP.2 = 203.0.113.2\nIP.2 = 203.0.113.3\n#MOREIPS")),
        ("a name twice", microk8s("IP.7 = 127.0.0.1\nIP.7 = 203.0.113.7\n#MOREIPS")),
        ("indented", microk8s("   IP.3 = 203.0.113.3\n\t#MOREIPS")),
        ("numbers with zeros", microk8s("IP.03 = 203.0.113.3\nIP.3 = 203.0.113.4\n#MOREIPS")),
        ("no numbers", microk8s("IP = 203.0.113.3\nDNS = api.example.org\n#MOREIPS")),
        ("words for numbers", microk8s("IP.vip = 203.0.113.3\nDNS.api = api.example.org\n#MOREIPS")),
        ("the marker behind an entry", microk8s("IP.3 = 203.0.113.3 #MOREIPS")),
        ("a remark behind the marker", microk8s("#MOREIPS (the node's own)")),
        ("the marker talked about", edit("[ req ]\n", "# see #MOREIPS below\n[ req ]\n")),
        ("the marker talked about, and gone", microk8s("# the line #MOREIPS was taken out")),
        ("the marker twice", microk8s("#MOREIPS\nIP.3 = 203.0.113.3\n#MOREIPS")),
        ("the marker in front of everything", format!("#MOREIPS\n{}", microk8s(""))),
        ("the marker at the very end", format!("{}#MOREIPS", microk8s(""))),
        ("no newline at the end", format!("{}\n[ last ]\nx = y", usual.trim_end())),
        (
            "names at the very end",
            edit("[ v3_ext ]", "[ v3_x ]").replace("[ alt_names ]", "[ nobody ]")
                + "[v3_ext]\nsubjectAltName=@alt_names\n[alt_names]\nDNS.1=a.example\n#MOREIPS",
        ),
        ("CRLF", usual.replace('\n', "\r\n")),
        ("a byte order mark", format!("\u{feff}{usual}")),
        ("comments behind entries", microk8s("IP.3 = 203.0.113.3 # the VIP\n#IP.4 = 203.0.113.4\n#MOREIPS")),
        ("quotes", microk8s("DNS.3 = \"api.example.org\"\nIP.3 = '203.0.113.3'\n#MOREIPS")),
        ("a comment that goes on", microk8s("# see \\\nIP.3 = 203.0.113.3\n#MOREIPS")),
        ("a remark behind an entry that goes on", microk8s("DNS.3 = a.example # see \\\nIP.3 = 203.0.113.3\n#MOREIPS")),
        ("the marker goes on", microk8s("#MOREIPS \\\nIP.3 = 203.0.113.3")),
        ("the marker behind an entry goes on", microk8s("DNS.3 = a.example #MOREIPS \\\nIP.3 = 203.0.113.3")),
        ("the marker behind a line that goes on", microk8s("DNS.3 = api.example.org\\\n#MOREIPS\nIP.3 = 203.0.113.3")),
        ("the last name goes on", "#MOREIPS\n".to_owned() + &microk8s("DNS.3 = api.example.org\\\n")),
        (
            "the last name goes on where the file ends",
            "#MOREIPS\n".to_owned() + &microk8s("") + "[ alt_names ]\nDNS.3 = api.example.org\\",
        ),
        ("a continued line", microk8s("DNS.3 = api.\\\nexample.org\n#MOREIPS")),
        (
            "variables",
            format!("domain = example.org\n{}", microk8s("DNS.3 = api.$domain\nDNS.4 = ${default::domain}\n#MOREIPS")),
        ),
        (
            "a section by its full name",
            microk8s("#MOREIPS") + "alt_names::IP.9 = 203.0.113.9\nalt_names::IP.3 = 203.0.113.3\n",
        ),
        ("a section in two parts", usual.clone() + "[ alt_names ]\nIP.3 = 203.0.113.3\n"),
        ("another name for the section", usual.replace("alt_names", "our_names")),
        ("a critical extension", edit("subjectAltName=@alt_names", "subjectAltName=critical,@alt_names")),
        (
            "two sections of names",
            edit(
                "[ req_ext ]\nsubjectAltName = @alt_names",
                "[ other ]\nDNS.1 = other.example.org\n[ req_ext ]\nsubjectAltName = @alt_names",
            ),
        ),
        ("IPv6", microk8s("IP.3 = 2001:DB8::3\nIP.4 = fd00:0:0::4\n#MOREIPS")),
        ("a wildcard", microk8s("DNS.3 = *.example.org\n#MOREIPS")),
        ("no spaces", usual.replace(" = ", "=").replace("[ ", "[").replace(" ]", "]")),
        ("a pragma", format!(".pragma = abspath:true\n{usual}")),
    ]
}

fn sans_of(der: &[u8], wanted: &str) -> SanSet {
    if wanted == "certificate" {
        return certificate::leaf(der).expect("openssl made it").sans;
    }
    let (_, request) = x509_parser::certification_request::X509CertificationRequest::from_der(der).expect("a request");
    let extensions = request.requested_extensions().into_iter().flatten();
    let mut names = SanSet::new();
    for extension in extensions {
        let x509_parser::extensions::ParsedExtension::SubjectAlternativeName(san) = extension else { continue };
        for name in &san.general_names {
            names.insert(match name {
                x509_parser::extensions::GeneralName::DNSName(name) => name.parse().expect("a name"),
                x509_parser::extensions::GeneralName::IPAddress(bytes) => {
                    let four = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
                    San::ip(four.unwrap_or_else(|_| <[u8; 16]>::try_from(*bytes).expect("16 bytes").into()))
                }
                other => panic!("{other:?}"),
            });
        }
    }
    names
}

#[test]
fn openssl_reads_every_rendered_request_and_finds_the_names_of_the_certificate() {
    if !has_openssl() {
        return;
    }
    let tree = Tree::new();
    let run = |arguments: &str| {
        let (success, said) = tree.openssl(arguments);
        assert!(success, "openssl {arguments}: {said}");
    };
    run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=10.152.183.1 -days 30");
    run("genrsa -out server.key 2048");
    let more: SanSet =
        ["192.0.2.10", "2001:db8::10", "k8s.example.com"].map(|name| name.parse().expect("a name")).into();
    let mut numbers_seen = BTreeSet::new();
    for (shape, text) in shapes() {
        let template = template::parse(&text).unwrap_or_else(|why| panic!("{shape}: {why}"));
        let mut sans: SanSet = template.sans.iter().cloned().collect();
        if template.marker {
            sans.extend(more.iter().cloned());
        }
        let rendered = render(&template, &sans);
        tree.write("csr.conf", &rendered);
        run("req -new -batch -key server.key -config csr.conf -outform DER -out server.csr");
        run("req -new -batch -key server.key -config csr.conf -out server.pem");
        run(
            "x509 -req -in server.pem -CA ca.crt -CAkey ca.key -days 30 -extfile csr.conf -extensions v3_ext -outform DER -out server.der",
        );
        let read = |name: &str| std::fs::read(tree.path(name)).expect("openssl wrote it");
        assert_eq!(sans_of(&read("server.der"), "certificate"), sans, "{shape}\n{rendered}");
        // The request has the names of its own extension section, which may be another one.
        if !text.contains("nobody") {
            assert_eq!(sans_of(&read("server.csr"), "request"), sans, "{shape}\n{rendered}");
        }
        // What ipguard makes of its own file is what openssl makes of it.
        let again = template::parse(&rendered).unwrap_or_else(|why| panic!("{shape}: {why}"));
        assert!(sans.is_subset(&again.sans.iter().cloned().collect()), "{shape}\n{rendered}");
        assert_eq!(again.subject, template.subject, "{shape}");
        numbers_seen.insert(rendered.matches("IP.").count());
        // Every line of the operator's is still there, in order.
        let mut lines = rendered.lines();
        for line in text.lines().filter(|line| !line.contains("#MOREIPS")) {
            assert!(lines.any(|there| there == line), "{shape}: {line} is gone from\n{rendered}");
        }
    }
    assert!(numbers_seen.len() > 2, "{numbers_seen:?}");
}

/// What was pasted from a page or slipped in: `openssl req` ends with an error, and the scripts with it. Whoever took such
/// a line for a good one would write a request file that none of them reads.
#[test]
fn what_openssl_does_not_read_is_refused_with_its_line() {
    if !has_openssl() {
        return;
    }
    let tree = Tree::new();
    let (success, said) = tree.openssl("genrsa -out server.key 2048");
    assert!(success, "{said}");
    for line in [
        "\u{a0}DNS.3 = api.example.org",
        "IP.3 = 203.0.113.3\u{a0}",
        "\u{b}DNS.3 = api.example.org",
        "\u{c}IP.3 = 203.0.113.3",
        "\u{2003}#MOREIPS",
        "DNS 3 = api.example.org",
        "DNS .3 = api.example.org",
        "IP.\u{e4} = 203.0.113.3",
        "alt_names:IP.3 = 203.0.113.3",
        "(IP.3) = 203.0.113.3",
    ] {
        let text = microk8s(line);
        tree.write("csr.conf", &text);
        let (success, _) = tree.openssl("req -new -batch -key server.key -config csr.conf -out server.csr");
        assert!(!success, "{line:?}: openssl reads it");
        let why = template::parse(&text).expect_err(line);
        let number = text.split('\n').position(|there| there == line).expect("it is there") + 1;
        assert!(why.starts_with(&format!("line {number}: ")), "{line:?}: {why}");
    }
}
