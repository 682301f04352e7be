//! Kubeconfigs as distributions write them, and as they must not be.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

/// A fake root with a CA, another CA, and a client of the first.
struct Host {
    root: PathBuf,
    ca: String,
    other: String,
    certificate: String,
    key: String,
}

impl Host {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("ipguard-kubeconfig-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for folder in ["data/credentials/keys", "data/certs", "elsewhere"] {
            std::fs::create_dir_all(root.join(folder)).expect("a temporary folder");
        }
        let made = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            (params.self_signed(&key).expect("a CA").pem(), params, key)
        };
        let (ca, ca_params, ca_key) = made("ca");
        let (other, ..) = made("other");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "admin");
        let certificate = params.signed_by(&key, &Issuer::from_params(&ca_params, &ca_key)).expect("signed").pem();
        Self { root, ca, other, certificate, key: key.serialize_pem() }
    }

    fn path(&self) -> PathBuf {
        self.root.join("data/credentials/client.config")
    }

    fn write(&self, place: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.root.join(place), content).expect("the root is ours");
    }

    /// What a kubeconfig with this cluster and user gives, for both ways to read it.
    fn with(&self, cluster: &str, user: &str) -> (Read<Content>, Result<Credentials, KubeconfigError>) {
        self.of(&config(cluster, user))
    }

    fn of(&self, text: &str) -> (Read<Content>, Result<Credentials, KubeconfigError>) {
        self.write("data/credentials/client.config", text);
        let ca = authority(&self.ca);
        (read(&self.path(), &self.root, Some(&ca), NOW).content, credentials(&self.path(), &self.root))
    }

    fn cluster(&self) -> String {
        format!("server: https://127.0.0.1:16443\ncertificate-authority-data: {}", base64(&self.ca))
    }

    fn user(&self) -> String {
        format!("client-certificate-data: {}\nclient-key-data: {}", base64(&self.certificate), base64(&self.key))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn authority(pem: &str) -> Authority {
    let ders = certificate::bundle_in(pem.as_bytes()).expect("a CA");
    certificate::authority(&ders, None, Purpose::Client, NOW).expect("a CA")
}

fn base64(text: &str) -> String {
    pem::encode("X", text.as_bytes()).lines().filter(|line| !line.starts_with("---")).collect()
}

fn config(cluster: &str, user: &str) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: microk8s\ncontexts:\n- name: microk8s\n  \
         context:\n    cluster: microk8s-cluster\n    user: admin\nclusters:\n- name: microk8s-cluster\n  cluster:\n{}\
         users:\n- name: other\n  user:\n    token: never-looked-at\n- name: admin\n  user:\n{}",
        indented(cluster),
        indented(user)
    )
}

fn refusal(read: &Read<Content>, used: &Result<Credentials, KubeconfigError>) -> (String, String) {
    let read = read.as_ref().map_or_else(ToString::to_string, |content| format!("{:?}", content.client));
    (read, used.as_ref().map_or_else(ToString::to_string, |credentials| format!("{credentials:?}")))
}

#[test]
fn what_microk8s_writes_is_read() {
    let host = Host::new("microk8s");
    let (content, credentials) = host.with(&host.cluster(), &host.user());
    let content = content.expect("it is readable");
    assert_eq!((content.user.as_str(), content.insecure, content.issued_by_authority), ("admin", false, Some(true)));
    let Client::Certificate(leaf) = &content.client else { panic!("{content:?}") };
    let leaf = (**leaf).clone().expect("it is a certificate");
    assert!(leaf.not_after > NOW);
    assert_eq!(content.authority.expect("it has one").expect("readable").certificates.len(), 1);

    let credentials = credentials.expect("it is usable");
    assert_eq!((credentials.server.host.as_str(), credentials.server.port), ("127.0.0.1", 16443));
    assert_eq!(credentials.authority, certificate::bundle_in(host.ca.as_bytes()).expect("a CA"));
    let ClientCredentials::Certificate { chain, key } = &credentials.client else { panic!("{credentials:?}") };
    assert_eq!(chain.len(), 1);
    assert_eq!(*key.public(), leaf.public_key);
    let printed = format!("{credentials:?}");
    assert!(!printed.contains(&base64(&host.key)[40..60]), "{printed}");
}

#[test]
fn json_and_other_forms_of_yaml_are_the_same() {
    let host = Host::new("forms");
    let (ca, certificate, key) = (base64(&host.ca), base64(&host.certificate), base64(&host.key));
    let json = format!(
        r#"{{"kind":"Config","current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"k","user":"u"}}}}],
        "clusters":[{{"name":"k","cluster":{{"server":"https://h","certificate-authority-data":"{ca}","insecure-skip-tls-verify":false}}}}],
        "users":[{{"name":"u","user":{{"client-certificate-data":"{certificate}","client-key-data":"{key}","exec":null,"token":""}}}}]}}"#
    );
    let (content, credentials) = host.of(&json);
    assert_eq!(content.expect("it is readable").issued_by_authority, Some(true));
    assert_eq!(credentials.expect("it is usable").server.port, 443);
    // Base64 in a literal block, as some write it.
    let folded = |text: &str| {
        text.as_bytes().chunks(64).map(|line| format!("  {}\n", String::from_utf8_lossy(line))).collect::<String>()
    };
    let user = format!("client-certificate-data: |\n{}client-key-data: |\n{}", folded(&certificate), folded(&key));
    let (content, credentials) = host.with(&host.cluster(), &user);
    assert!(content.is_ok() && credentials.is_ok(), "{content:?} {credentials:?}");
}

#[test]
fn files_are_found_beside_the_kubeconfig_and_below_the_root() {
    let host = Host::new("files");
    host.write("data/certs/ca.crt", &host.ca);
    host.write("data/credentials/client.crt", &host.certificate);
    host.write("data/credentials/keys/client.key", &host.key);
    symlink("data", host.root.join("current")).expect("the root is ours");
    let user = "client-certificate: client.crt\nclient-key: keys/client.key";
    for ca in
        ["../certs/ca.crt", "/data/certs/ca.crt", "/current/certs/ca.crt", "/data/certs/../../../../data/certs/ca.crt"]
    {
        let (content, credentials) = host.with(&format!("server: https://h\ncertificate-authority: {ca}"), user);
        let content = content.expect(ca);
        assert!(matches!(&content.client, Client::Certificate(leaf) if leaf.is_ok()), "{ca}: {content:?}");
        assert!(matches!(content.authority, Some(Ok(_))), "{ca}");
        assert!(credentials.is_ok(), "{ca}: {credentials:?}");
    }
    // What is embedded comes first, as in client-go.
    let both = format!("{}\ncertificate-authority: /nowhere", host.cluster());
    assert!(host.with(&both, user).1.is_ok());
    // The public parts need no key, and do not look whether there is one.
    std::fs::remove_file(host.root.join("data/credentials/keys/client.key")).expect("it is ours");
    let (content, credentials) = host.with(&host.cluster(), user);
    assert!(matches!(&content.expect("readable").client, Client::Certificate(leaf) if leaf.is_ok()));
    let refused = credentials.expect_err("the key is gone").to_string();
    assert!(refused.contains("client.config: user admin: client-key: "), "{refused}");
    assert!(refused.ends_with("keys/client.key: no such file"), "{refused}");
}

#[test]
fn no_link_is_followed_to_a_file() {
    let host = Host::new("links");
    host.write("elsewhere/client.crt", &host.certificate);
    symlink("../../elsewhere/client.crt", host.root.join("data/credentials/client.crt")).expect("ours");
    let (content, _) = host.with(&host.cluster(), "client-certificate: client.crt\nclient-key: x");
    let Client::Certificate(leaf) = content.expect("it is readable itself").client else { panic!("a certificate") };
    let why = leaf.expect_err("a link").to_string();
    assert!(why.ends_with("client.crt: a symbolic link, which is not followed"), "{why}");
    // Nor to the kubeconfig.
    std::fs::remove_file(host.path()).expect("it is ours");
    host.write("elsewhere/real.config", config(&host.cluster(), &host.user()));
    symlink("../../elsewhere/real.config", host.path()).expect("ours");
    let facts = read(&host.path(), &host.root, None, NOW);
    assert!(facts.content.expect_err("a link").to_string().contains("a symbolic link"));
    // A FIFO and a folder do not stop anybody.
    let began = Instant::now();
    nix::unistd::mkfifo(&host.root.join("data/credentials/pipe"), nix::sys::stat::Mode::S_IRWXU).expect("ours");
    for file in ["pipe", "keys", "/", "..", "/dev/zero", "missing/file"] {
        std::fs::remove_file(host.path()).expect("it is ours");
        let (content, credentials) =
            host.with(&host.cluster(), &format!("client-certificate: {file}\nclient-key: {file}"));
        let client = content.expect("it is readable itself").client;
        assert!(matches!(&client, Client::Certificate(leaf) if leaf.is_err()), "{file}: {client:?}");
        assert!(credentials.is_err(), "{file}");
    }
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn another_authority_is_told() {
    let host = Host::new("other");
    let cluster = format!("server: https://h\ncertificate-authority-data: {}", base64(&host.other));
    host.write("data/credentials/client.config", config(&cluster, &host.user()));
    let other = authority(&host.other);
    let content = read(&host.path(), &host.root, Some(&other), NOW).content.expect("readable");
    assert_eq!(content.issued_by_authority, Some(false));
    assert_eq!(read(&host.path(), &host.root, None, NOW).content.expect("readable").issued_by_authority, None);
}

#[test]
fn tokens_are_used_and_never_shown() {
    let host = Host::new("tokens");
    let secret = "s3cret.t0ken";
    let token = |user: &str| {
        let (content, credentials) = host.with(&host.cluster(), user);
        assert_eq!(content.as_ref().map(|content| content.client.clone()), Ok(Client::Token), "{user}");
        assert!(!format!("{content:?}{credentials:?}").contains(secret), "{user}");
        credentials.map(|credentials| match credentials.client {
            ClientCredentials::Token(token) => token.to_string(),
            other => format!("{other:?}"),
        })
    };
    assert_eq!(token(&format!("token: {secret}")), Ok(secret.to_owned()));
    assert_eq!(token("token: 12345"), Ok("12345".to_owned()));
    host.write("data/credentials/token", format!("{secret}\n"));
    assert_eq!(token("tokenFile: token"), Ok(secret.to_owned()));
    assert_eq!(token("tokenFile: token\ntoken: other"), Ok(secret.to_owned()), "the file comes first");
    host.write("data/credentials/token", "a\r\nX-Remote-User: admin");
    for user in ["token: \"a b\"", "token: \"a\\r\\nX: y\"", "token: gr\u{fc}n", "tokenFile: token"] {
        let why = token(user).expect_err(user).to_string();
        assert!(why.contains("it is no token"), "{user}: {why}");
    }
    // A certificate comes before a token.
    let (content, credentials) = host.with(&host.cluster(), &format!("{}\ntoken: {secret}", host.user()));
    assert!(matches!(content.expect("readable").client, Client::Certificate(_)));
    assert!(matches!(credentials.expect("usable").client, ClientCredentials::Certificate { .. }));
}

#[test]
fn what_is_not_done_is_refused_with_the_reason() {
    let host = Host::new("refused");
    let secret = "never-shown-0815";
    for (user, field) in [
        (
            format!("exec:\n  command: /bin/evil\n  env:\n  - {{name: A, value: {secret}}}"),
            "user admin: exec is not used: ",
        ),
        (
            format!("auth-provider: {{name: oidc, config: {{id-token: {secret}}}}}"),
            "user admin: auth-provider is not used",
        ),
        (format!("username: admin\npassword: {secret}"), "user admin: username is not used"),
        (format!("password: {secret}"), "user admin: password is not used"),
        (format!("as: root\ntoken: {secret}"), "user admin: as is not used"),
    ] {
        let (content, credentials) = host.with(&host.cluster(), &user);
        let (read, used) = refusal(&content, &credentials);
        assert!(read.contains(field), "{read}");
        assert!(used.contains(field), "{used}");
        assert!(!(read + &used).contains(secret), "{user}");
        // Beside a certificate the expiry is still looked at, and the credentials are still not used.
        let (content, credentials) = host.with(&host.cluster(), &format!("{}\n{user}", host.user()));
        assert!(matches!(content.expect("readable").client, Client::Certificate(_)), "{user}");
        assert!(credentials.is_err(), "{user}");
    }
    for (cluster, field) in [
        ("insecure-skip-tls-verify: true", "cluster microk8s-cluster: insecure-skip-tls-verify is not used"),
        ("proxy-url: socks5://h", "cluster microk8s-cluster: proxy-url is not used"),
    ] {
        let (content, credentials) = host.with(&format!("{}\n{cluster}", host.cluster()), &host.user());
        assert_eq!(content.expect("readable").insecure, cluster.starts_with("insecure"));
        let used = credentials.expect_err(cluster).to_string();
        assert!(used.contains(field), "{used}");
    }
}

#[test]
fn what_is_missing_or_makes_no_sense_is_named() {
    let host = Host::new("missing");
    let (cluster, user) = (host.cluster(), host.user());
    let whole = config(&cluster, &user);
    let key = KeyPair::generate().expect("a key").serialize_pem();
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from}");
        whole.replacen(from, to, 1)
    };
    for (text, said) in [
        (changed("current-context: microk8s\n", ""), "current-context is missing"),
        (changed("current-context: microk8s", "current-context: \"\""), "current-context is missing"),
        (changed("current-context: microk8s", "current-context: [a]"), "current-context: it is no text"),
        (changed("current-context: microk8s", "current-context: other"), "context other is missing"),
        (changed("name: admin", "name: somebody"), "user admin is missing"),
        (changed("name: other", "name: admin"), "user admin: there are two of that name"),
        (changed("    cluster: microk8s-cluster\n", ""), "context microk8s: cluster is missing"),
        (changed("name: microk8s-cluster", "name: x"), "cluster microk8s-cluster is missing"),
        (changed("kind: Config", "kind: Secret"), "kind: no kubeconfig has another than Config"),
        (changed("apiVersion: v1", "apiVersion: v2"), "apiVersion: no kubeconfig has another than v1"),
        (changed("users:\n", "users: x\nignored:\n"), "users: it is no list"),
        (changed("    server: https://127.0.0.1:16443\n", ""), "cluster microk8s-cluster: server is missing"),
        (changed("https://", "http://"), "cluster microk8s-cluster: server: it is not https"),
        (changed("certificate-authority-data: ", "ignored: "), "certificate-authority-data is missing"),
        (changed("certificate-authority-data: ", "certificate-authority-data: '*'\n    ignored: "), "it is not base64"),
        (changed(&base64(&host.ca), "Zm9v"), "there is no CERTIFICATE block in it"),
        (changed(&base64(&host.certificate), "Zm9v"), "there is no CERTIFICATE block in it"),
        (changed(&base64(&host.key), "Zm9v"), "there is no PEM block with a private key in it"),
        (changed(&base64(&host.key), &base64(&key)), "client-key-data: it is not the key of the client's certificate"),
        (changed("client-key-data: ", "ignored: "), "user admin: client-key-data is missing"),
        (changed("client-certificate-data: ", "ignored: "), "user admin: client-certificate-data is missing"),
        ("[a]".to_owned(), "it is no mapping"),
        ("text".to_owned(), "it is no mapping"),
        (" \n".to_owned(), "the file is empty"),
        ("a: b\na: c\n".to_owned(), "line 2: a key that was there before"),
    ] {
        let (_, credentials) = host.of(&text);
        let used = credentials.expect_err(said).to_string();
        assert!(used.contains(said), "{said}: {used}");
        assert!(used.starts_with(&host.path().display().to_string()), "{used}");
        assert!(!used.contains(&base64(&host.key)[40..60]), "{used}");
    }
}

#[test]
fn nothing_that_stands_in_a_file_makes_it_panic_or_wait() {
    let host = Host::new("hostile");
    let whole = config(&host.cluster(), &host.user());
    let began = Instant::now();
    host.write("data/credentials/client.config", vec![b'a'; 2 * 1024 * 1024]);
    assert!(credentials(&host.path(), &host.root).expect_err("too large").to_string().contains("at most 1 MiB"));
    for bytes in [&b"\xff\xfe\x00a"[..], b"\x7fELF\x02\x01\x01\x00", b"a: \xc3\x28\n", b"\0", b"{\"a\":\"\\u0000\"}"] {
        host.write("data/credentials/client.config", bytes);
        assert!(credentials(&host.path(), &host.root).is_err(), "{bytes:?}");
    }
    // Cut anywhere: an interrupted write. Whatever is left, it is an error or the same credentials.
    for end in (0..whole.len()).step_by(37) {
        let (_, credentials) = host.of(&whole[..end]);
        assert!(credentials.is_err(), "{end}: {credentials:?}");
    }
    // And with a byte of its structure replaced.
    let structure: Vec<usize> =
        whole.char_indices().filter(|(_, c)| !c.is_ascii_alphanumeric()).map(|(at, _)| at).collect();
    for at in structure {
        for byte in [b'[', b'{', b'&', b'*', b'"', b'!', b'|', b'\t', b'%', b'\n'] {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] = byte;
            host.write("data/credentials/client.config", bytes);
            let _ = credentials(&host.path(), &host.root);
            let _ = read(&host.path(), &host.root, None, NOW);
        }
    }
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
}

#[test]
fn a_kubeconfig_is_read_again_when_it_changed_and_not_before() {
    let host = Host::new("cache");
    let ca = authority(&host.ca);
    let mut cache = KubeconfigCache::default();
    let mut look = |ca: &Authority| cache.read(vec![host.path()], &host.root, Some(ca), NOW);
    assert_eq!(look(&ca)[0].content.as_ref().expect_err("it is not there").problem, Problem::Missing);
    host.write("data/credentials/client.config", config(&host.cluster(), &host.user()));
    let first = look(&ca);
    assert_eq!(first[0].content.as_ref().expect("readable").issued_by_authority, Some(true));
    std::thread::sleep(Duration::from_millis(3100));
    assert_eq!(look(&ca), first);
    assert_eq!(look(&ca), first);
    // Another CA of the cluster is another answer.
    let other = look(&authority(&host.other));
    assert_eq!(other[0].content.as_ref().expect("readable").issued_by_authority, Some(false));
    host.write("data/credentials/client.config", config(&host.cluster(), "token: x"));
    assert_eq!(look(&ca)[0].content.as_ref().expect("readable").client, Client::Token);
}
