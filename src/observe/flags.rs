//! An argument file, read the way kubelite reads it.
//!
//! In: bytes, and the variables of its process. Out: flags by name. The rule of this file: what the component would see,
//! we see. Its reader (`ReadArgsFromFile` of MicroK8s' kubelite patch, the same from 1.21 to today) trims a line, skips it
//! when nothing or a `#` is left at its start, takes all quotes away, splits on single spaces and expands `$NAME` in each
//! part as Go's `os.Expand` does; pflag then takes a word without `=` to be followed by its value, whatever that looks
//! like, and the last value counts. A shell's rules would be friendlier and would read another file than kubelite does.

use std::collections::BTreeMap;
use std::path::Path;

/// Flags of one component; the last value of each.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Flags(BTreeMap<String, String>);

/// Variables of the component's process that are known: `SNAP_DATA` and its like.
pub type Variables = BTreeMap<String, String>;

/// The longest line that kubelite reads (`bufio.MaxScanTokenSize`); with a longer one it does not start.
const LONGEST_LINE: usize = 64 * 1024;

/// Flags that are looked up here and take a value: a word behind one of them is its value even if it begins with `--`. Of
/// others it is not known whether they are switches, and nothing depends on it.
const VALUED: &[&str] = &[
    "address",
    "advertise-address",
    "bind-address",
    "cluster-cidr",
    "cluster-signing-key-file",
    "endpoint-reconciler-type",
    "hostname-override",
    "kubelet-certificate-authority",
    "node-ip",
    "port",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "requestheader-client-ca-file",
    "root-ca-file",
    "secure-port",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
];

impl Flags {
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// Names the line on which kubelite gives up.
    pub fn read(bytes: &[u8], variables: &Variables) -> Result<Self, String> {
        if let Some(at) = bytes.split(|byte| *byte == b'\n').position(|line| line.len() >= LONGEST_LINE) {
            return Err(format!("line {}: 64 KiB or longer, and kubelite does not start with it", at + 1));
        }
        // kubelite cares for no encoding; a stray byte in a comment must not hide the flags.
        let text = String::from_utf8_lossy(bytes);
        let words: Vec<String> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .flat_map(|line| {
                let unquoted: String = line.chars().filter(|c| !matches!(c, '"' | '\'')).collect();
                unquoted.split(' ').map(|word| expand(word, variables)).collect::<Vec<_>>()
            })
            .collect();
        Ok(Self::of_words(&words))
    }

    fn of_words(words: &[String]) -> Self {
        let mut flags = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            // Behind a bare `--` nothing is a flag.
            if word == "--" {
                break;
            }
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name.replace('_', "-"), value.to_owned()),
                None => {
                    let name = flag.replace('_', "-");
                    let value = if VALUED.contains(&name.as_str()) { words.next() } else { None };
                    (name, value.cloned().unwrap_or_default())
                }
            };
            flags.insert(name, value);
        }
        Self(flags)
    }

    /// The value of a flag.
    pub fn value(&self, name: &str) -> Option<&str> {
        debug_assert!(VALUED.contains(&name), "--{name} is looked up and not listed");
        self.0.get(name).map(String::as_str)
    }
}

/// A profile's variables for the data folder of the moment: `{data}` stands for it as the component sees it, without the
/// prefix of `--root`, and `{revision}` for its last part.
pub fn variables(templates: &BTreeMap<String, String>, data: &Path, root: &Path) -> Variables {
    let seen = data.strip_prefix(root).map_or_else(|_| data.to_owned(), |below| Path::new("/").join(below));
    let revision = data.file_name().unwrap_or_default().to_string_lossy();
    let fill = |text: &String| text.replace("{data}", &seen.to_string_lossy()).replace("{revision}", &revision);
    templates.iter().map(|(name, text)| (name.clone(), fill(text))).collect()
}

/// `os.Expand` of Go. A variable that is not known here stays as it is written: its value in kubelite's process may be
/// anything, and what is made of it must fail to parse and be told, not be guessed.
fn expand(word: &str, variables: &Variables) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        let (before, dollar) = rest.split_at(at);
        out.push_str(before);
        let (name, length) = name_of_variable(&dollar[1..]);
        let (written, after) = dollar.split_at(1 + length);
        match name {
            // A dollar that names nothing stays; `${}` and a brace without its other half go.
            "" if length == 0 => out.push('$'),
            "" => {}
            name => out.push_str(variables.get(name).map_or(written, String::as_str)),
        }
        rest = after;
    }
    out + rest
}

/// The name behind a dollar sign, and how many bytes it takes.
fn name_of_variable(text: &str) -> (&str, usize) {
    let special = |byte: &u8| b"*#$@!?-0123456789".contains(byte);
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'{') => match text.find('}') {
            Some(end) => (&text[1..end], end + 1),
            None => ("", 1),
        },
        Some(byte) if special(byte) => (&text[..1], 1),
        _ => {
            let end = bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
            (&text[..end], end)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lines made of what matters to a reader, in any order.
    fn odd_file() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "--secure-port",
            "--secure_port",
            "=1",
            " ",
            "  ",
            "\t",
            "\"",
            "'",
            "#",
            "\n",
            "\r\n",
            "\r",
            "\0",
            "$",
            "{",
            "}",
            "$SNAP",
            "${SNAP_DATA}",
            "--",
            "-",
            "=",
            "x",
            "\u{a0}",
            "\u{fffd}",
            "--v",
            "--node-ip",
            "::",
        ]);
        let bytes = prop::collection::vec(any::<u8>(), 0..40);
        let text = prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes());
        prop::collection::vec(prop_oneof![text, bytes], 0..4).prop_map(|parts| parts.concat())
    }

    proptest! {
        /// Whatever stands before them, two lines at the end are read, and the last counts: a flag without its value
        /// takes the first of them, and nothing takes both. Only a bare `--` ends the flags.
        #[test]
        fn nothing_in_a_file_hides_its_last_line(before in odd_file()) {
            let file = [&before[..], b"\n--secure-port=7\n--secure-port=8\n"].concat();
            let read = Flags::read(&file, &known()).expect("its lines are short");
            let text = String::from_utf8_lossy(&before).replace(['"', '\'', '$', '{', '}'], "");
            let ended = text.lines().flat_map(|line| line.trim().split(' ')).any(|word| word == "--");
            prop_assert!(read.value("secure-port") == Some("8") || ended, "{read:?}");
            // Line ends are the same to kubelite.
            let other: Vec<u8> = file.split(|b| *b == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..]);
            prop_assert_eq!(Flags::read(&other, &known()), Ok(read));
        }
    }

    fn known() -> Variables {
        [("SNAP_DATA", "/var/snap/microk8s/7400"), ("SNAP", "/snap/microk8s/7400")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn flags(text: &str) -> Flags {
        Flags::read(text.as_bytes(), &known()).expect("kubelite reads it")
    }

    #[test]
    fn files_are_read_as_kubelite_reads_them() {
        let flags = flags(
            "# --bind-address=0.0.0.0\n--secure-port=16443\n--advertise_address=\"192.0.2.7\"\n\
             --service-cluster-ip-range 10.152.183.0/24 --secure-port='16444'\n\t # --node-ip=1.2.3.4\n--v=2 # 4\n\
             \"#\"--cluster-cidr=10.1.0.0/16 --port=7 # --port=8\n",
        );
        assert_eq!(flags.value("bind-address"), None, "a comment is not a flag");
        assert_eq!(flags.value("secure-port"), Some("16444"), "the last one wins, quotes are stripped");
        assert_eq!(flags.value("advertise-address"), Some("192.0.2.7"), "_ equals -");
        assert_eq!(flags.value("service-cluster-ip-range"), Some("10.152.183.0/24"));
        assert_eq!(flags.value("node-ip"), None, "an indented comment is one: the line is trimmed first");
        assert_eq!(
            flags.value("cluster-cidr"),
            None,
            "the quote stood in front of the #, which is then part of a word"
        );
        assert_eq!(flags.value("port"), Some("8"), "# is a comment only at the start of a line");
    }

    #[test]
    fn values_in_words_of_their_own() {
        assert_eq!(flags("--bind-address\n192.0.2.7\n").value("bind-address"), Some("192.0.2.7"), "on the next line");
        assert_eq!(
            flags("--bind-address  192.0.2.7").value("bind-address"),
            Some(""),
            "two spaces, an empty word between"
        );
        assert_eq!(flags("--bind-address --node-ip=::1").value("bind-address"), Some("--node-ip=::1"));
        assert_eq!(flags("--bind-address --node-ip=::1").value("node-ip"), None);
        assert_eq!(flags("--bind-address").value("bind-address"), Some(""));
        assert_eq!(flags("--allow-privileged --port=1").value("port"), Some("1"), "a switch takes no value");
        assert_eq!(flags("--port=1 -- --port=2").value("port"), Some("1"), "nothing behind -- is a flag");
        assert_eq!(flags("-port=1 ---port=2 port=3 --=4").value("port"), None);
        assert_eq!(flags("--node-ip=a=b").value("node-ip"), Some("a=b"));
        assert_eq!(flags("--port=1\t--port=2").value("port"), Some("1\t--port=2"), "a tab splits nothing");
    }

    #[test]
    fn odd_files() {
        assert_eq!(flags("--port=1\r\n--secure-port=2\r\n").value("port"), Some("1"), "CRLF");
        assert_eq!(flags("--port=1").value("port"), Some("1"), "no newline at the end");
        assert_eq!(flags("\u{a0}\t--port=1\u{b}").value("port"), Some("1"), "white space of every kind around a line");
        assert_eq!(flags("--port=1\0").value("port"), Some("1\0"));
        assert_eq!(flags(""), Flags::default());
        let bytes = b"# caf\xe9\n--port=1\n--node-ip=\xff\n";
        let read = Flags::read(bytes, &known()).expect("a stray byte hides nothing");
        assert_eq!((read.value("port"), read.value("node-ip")), (Some("1"), Some("\u{fffd}")));
        let long = |length: usize| format!("--port=1\n#{}\n--port=2", "x".repeat(length - 1));
        assert_eq!(flags(&long(LONGEST_LINE - 1)).value("port"), Some("2"));
        let refused = Flags::read(long(LONGEST_LINE).as_bytes(), &known()).expect_err("too long");
        assert_eq!(refused, "line 2: 64 KiB or longer, and kubelite does not start with it");
    }

    #[test]
    fn variables_are_expanded_as_go_does() {
        let value = |text: &str| flags(&format!("--tls-cert-file={text}")).value("tls-cert-file").map(str::to_owned);
        for (text, expanded) in [
            ("${SNAP_DATA}/certs", "/var/snap/microk8s/7400/certs"),
            ("$SNAP_DATA/certs", "/var/snap/microk8s/7400/certs"),
            ("$SNAP", "/snap/microk8s/7400"),
            // Another variable, and not SNAP_DATA with something behind it.
            ("$SNAP_DATAX/certs", "$SNAP_DATAX/certs"),
            ("${SNAP_COMMON}/run", "${SNAP_COMMON}/run"),
            ("'${SNAP_DATA}'/x", "/var/snap/microk8s/7400/x"),
            ("${SNAP_DATA", "SNAP_DATA"),
            ("a${}b", "ab"),
            ("a$", "a$"),
            ("a$/b", "a$/b"),
            ("$$SNAP", "$$SNAP"),
            ("\u{e4}$SNAP\u{e4}", "\u{e4}/snap/microk8s/7400\u{e4}"),
        ] {
            assert_eq!(value(text).as_deref(), Some(expanded), "{text}");
        }
    }

    #[test]
    fn variables_are_those_that_the_component_sees() {
        let templates = [("SNAP_DATA", "{data}"), ("SNAP", "/snap/microk8s/{revision}")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
        let below = variables(&templates, Path::new("/r/var/snap/microk8s/7400"), Path::new("/r"));
        assert_eq!(below, known());
        assert_eq!(variables(&templates, Path::new("/var/snap/microk8s/7400"), Path::new("/")), known());
    }
}
