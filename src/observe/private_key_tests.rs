//! Keys made by rcgen, and by the openssl command where it is installed.

use super::*;
use std::process::Command;
use std::time::Duration;

use rcgen::PublicKeyData as _;

/// A folder of its own for each test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ipguard-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    /// Runs openssl in the folder. `None` where it is not installed; a failing command fails the test.
    fn openssl(&self, arguments: &str) -> Option<Vec<u8>> {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(&self.0).output();
        let Ok(output) = output else {
            crate::skipped::skipped("openssl not found");
            return None;
        };
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        Some(output.stdout)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).expect("it was made")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn public(file: &[u8]) -> Result<Vec<u8>, Unusable> {
    PrivateKey::from_pem(file, &Owner::Authority(Vec::new())).map(|key| key.public.0)
}

fn public_of(cache: &mut KeyCache, path: &Path) -> Read<PublicKey> {
    cache.public(path, &Owner::Server(None))
}

#[test]
fn generated_keys_of_all_kinds_give_the_public_key_of_their_maker() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let key = rcgen::KeyPair::generate_for(algorithm).expect("ring makes these");
        assert_eq!(public(key.serialize_pem().as_bytes()), Ok(key.subject_public_key_info()));
    }
}

#[test]
fn a_new_key_survives_writing_and_reading() {
    let key = PrivateKey::generate().expect("random bytes");
    assert_eq!(key.kind(), Kind::P256);
    assert_eq!(public(key.to_pem().as_bytes()), Ok(key.public.0.clone()));
    assert!(key.to_pem().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(format!("{key:?}"), "PrivateKey(P256)");
}

#[test]
fn every_form_openssl_writes_gives_the_public_key_openssl_computes() {
    let scratch = Scratch::new("key-forms");
    let forms = [
        ("genrsa -out key 2048", "rsa PKCS#8"),
        ("genrsa -traditional -out key 3072", "rsa PKCS#1"),
        ("genrsa -out key 4096", "rsa 4096"),
        ("ecparam -name prime256v1 -genkey -out key", "EC PARAMETERS before SEC1"),
        ("ecparam -name secp384r1 -genkey -noout -out key", "SEC1"),
        ("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out key", "EC PKCS#8"),
        ("genpkey -algorithm ed25519 -out key", "Ed25519"),
    ];
    for (arguments, form) in forms {
        if scratch.openssl(arguments).is_none() {
            return;
        }
        let expected = scratch.openssl("pkey -in key -pubout -outform DER").expect("it ran before");
        let plain = scratch.read("key");
        let crlf = String::from_utf8_lossy(&plain).replace('\n', "\r\n").into_bytes();
        let marked = [BOM, &plain].concat();
        let certificate = pem::encode("CERTIFICATE", b"not a key");
        let after = [b"Bag Attributes\n  localKeyID: 01\n", certificate.as_bytes(), &plain].concat();
        for (variant, file) in [("plain", plain), ("CRLF", crlf), ("marked", marked), ("behind others", after)] {
            assert_eq!(public(&file).as_ref(), Ok(&expected), "{form}, {variant}");
        }
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

fn generated(count: usize) -> Vec<PrivateKey> {
    (0..count).map(|_| PrivateKey::generate().expect("random bytes")).collect()
}

fn file_of(keys: &[PrivateKey]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_pem().as_bytes().to_vec()).collect()
}

#[test]
fn a_ca_may_have_its_key_anywhere_in_the_file() {
    let keys = generated(3);
    let owned = |wanted: &[&PrivateKey]| {
        let owner = Owner::Authority(wanted.iter().map(|key| key.public.clone()).collect());
        PrivateKey::from_pem(&file_of(&keys), &owner).map(|key| key.public)
    };
    assert_eq!(owned(&[&keys[2]]), Ok(keys[2].public.clone()));
    assert_eq!(owned(&[&keys[2], &keys[1]]), Ok(keys[1].public.clone()), "the first that fits");
    assert_eq!(owned(&generated(1).iter().collect::<Vec<_>>()), Ok(keys[0].public.clone()), "none fits");
    // What stands before it is not looked at.
    let broken = "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n";
    let file = [broken.as_bytes(), &file_of(&keys)].concat();
    let owner = Owner::Authority(vec![keys[0].public.clone()]);
    assert_eq!(PrivateKey::from_pem(&file, &owner).map(|key| key.public), Ok(keys[0].public.clone()));
}

#[test]
fn a_server_has_the_key_that_go_takes_or_none() {
    let keys = generated(3);
    let owned = |file: &[u8], wanted: Option<&PrivateKey>| {
        let owner = Owner::Server(wanted.map(|key| key.public.clone()));
        PrivateKey::from_pem(file, &owner).map(|key| key.public)
    };
    let first = Ok(keys[0].public.clone());
    let file = file_of(&keys);
    assert_eq!(owned(&file, None), first);
    assert_eq!(owned(&file, Some(&keys[0])), first);
    assert_eq!(owned(&file, Some(&generated(1)[0])), first, "none fits, and the first can get a new certificate");
    let why = owned(&file, Some(&keys[2])).expect_err("Go would fail");
    assert_eq!((why.clone(), why.holds_a_key()), (Unusable::NotFirst(3), true));
    assert!(why.to_string().ends_with(
        "is number 3 of the file, and a Go server reads the first alone: put it first or remove the others"
    ));

    let marked = [BOM, &file_of(&keys[..1])].concat();
    assert_eq!(owned(&marked, None), Err(Unusable::NotAtLineStart));
    assert!(Unusable::NotAtLineStart.holds_a_key());
    assert_eq!(
        owned(&[BOM, &file_of(&keys[..2])].concat(), None),
        Ok(keys[1].public.clone()),
        "Go skips the marked one"
    );
    assert_eq!(owned(&[BOM, b"text\n", &file].concat(), None), first);
    let indented = String::from_utf8(file_of(&keys[..1])).expect("PEM").replace("-----BEGIN", "  -----BEGIN");
    assert_eq!(owned(indented.as_bytes(), None), Err(Unusable::NotAtLineStart));
}

#[test]
fn keys_that_cannot_be_used_are_named() {
    let scratch = Scratch::new("key-refused");
    let cases = [
        ("genrsa -out key 1024", "RSA key of 1024 bits"),
        (
            "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_pubexp:4294967297 -out key",
            "public exponent that Go refuses",
        ),
        ("genpkey -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 -out key", "RSA-PSS"),
        ("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out key", "P-521"),
        ("ecparam -name secp521r1 -genkey -noout -out key", "P-521"),
        ("ecparam -name secp256k1 -genkey -out key", "secp256k1"),
        ("ecparam -name prime256v1 -genkey -noout -param_enc explicit -out key", "explicit parameters"),
        ("genpkey -algorithm ed448 -out key", "Ed448"),
        ("genpkey -algorithm x25519 -out key", "X25519"),
        ("genpkey -genparam -algorithm DSA -pkeyopt dsa_paramgen_bits:1024 -out parameters", ""),
        ("genpkey -paramfile parameters -out key", "DSA"),
        ("dsa -in key -out key", "DSA"),
    ];
    for (arguments, expected) in cases {
        if scratch.openssl(arguments).is_none() {
            return;
        }
        if expected.is_empty() {
            continue;
        }
        let why = public(&scratch.read("key")).expect_err(arguments);
        assert!(why.holds_a_key(), "{arguments}: {why}");
        assert!(why.to_string().contains(expected), "{arguments}: {why}");
    }
    for arguments in
        ["genrsa -aes128 -passout pass:x -out key 2048", "genrsa -traditional -aes128 -passout pass:x -out key 2048"]
    {
        scratch.openssl(arguments);
        assert_eq!(public(&scratch.read("key")), Err(Unusable::Encrypted), "{arguments}");
    }
    scratch.openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out plain");
    scratch.openssl("pkcs8 -topk8 -v1 PBE-SHA1-3DES -passout pass:x -in plain -out key");
    assert_eq!(public(&scratch.read("key")), Err(Unusable::Encrypted));
    scratch.openssl("pkey -in plain -outform DER -out key");
    let why = public(&scratch.read("key")).expect_err("there is no PEM");
    assert!(why.holds_a_key() && why.to_string().contains("DER"), "{why}");
    scratch.openssl("pkey -inform DER -in key -out mended");
    assert_eq!(public(&scratch.read("mended")), public(&scratch.read("plain")), "the advice works");
}

#[test]
fn an_rsa_key_too_large_is_named_by_its_size() {
    // To make one takes openssl half a minute, and its size is all that is looked at.
    let number = |bytes: &[u8]| tlv(2, &[bytes]);
    let large = [&[0][..], &[0xff; 1024]].concat();
    let half = [&[0][..], &[0xff; 512]].concat();
    let numbers = [number(&[0]), number(&large), number(&[1, 0, 1]), number(&large)];
    let rest = [number(&half), number(&half), number(&half), number(&half), number(&half)];
    let all: Vec<&[u8]> = numbers.iter().chain(&rest).map(|number| number.as_slice()).collect();
    let why = public(pem::encode("RSA PRIVATE KEY", &tlv(SEQUENCE, &all)).as_bytes()).expect_err("it is too large");
    assert_eq!(why, Unusable::Unsupported("an RSA key of 8192 bits".to_owned()));
    assert!(why.holds_a_key());
}

#[test]
fn the_advice_for_a_key_without_public_half_works() {
    let scratch = Scratch::new("key-half");
    let Some(_) = scratch.openssl("ecparam -name prime256v1 -genkey -noout -out whole") else { return };
    scratch.openssl("ec -in whole -no_public -out half");
    assert_eq!(public(&scratch.read("half")), Err(Unusable::NoPublicHalf));
    scratch.openssl("ec -in half -out mended");
    assert_eq!(public(&scratch.read("mended")), public(&scratch.read("whole")));
}

/// Go computes the public half; here the certificate has it, and whether it fits is checked.
#[test]
fn the_public_half_may_be_a_certificates() {
    let scratch = Scratch::new("key-certified");
    for (curve, pkcs8) in [("prime256v1", false), ("secp384r1", false), ("prime256v1", true)] {
        let Some(_) = scratch.openssl(&format!("ecparam -name {curve} -genkey -noout -out whole")) else { return };
        scratch.openssl("ec -in whole -no_public -out half");
        if pkcs8 {
            scratch.openssl("pkcs8 -topk8 -nocrypt -in half -out half8");
            std::fs::rename(scratch.0.join("half8"), scratch.0.join("half")).expect("it is ours");
        }
        let whole = PublicKey(public(&scratch.read("whole")).expect("openssl made it"));
        let others: Vec<PublicKey> = ["prime256v1", "secp384r1"]
            .into_iter()
            .map(|curve| {
                scratch.openssl(&format!("ecparam -name {curve} -genkey -noout -out other"));
                PublicKey(public(&scratch.read("other")).expect("openssl made it"))
            })
            .chain([PublicKey(Vec::new()), PublicKey(vec![0x30; 20])])
            .collect();
        let half = scratch.read("half");
        let owned = |owner: Owner| PrivateKey::from_pem(&half, &owner).map(|key| key.public);
        let all = [others.clone(), vec![whole.clone()]].concat();
        assert_eq!(owned(Owner::Authority(all)), Ok(whole.clone()), "{curve}");
        assert_eq!(owned(Owner::Server(Some(whole.clone()))), Ok(whole), "{curve}");
        assert_eq!(owned(Owner::Authority(others.clone())), Err(Unusable::NoPublicHalf), "{curve}");
        assert_eq!(owned(Owner::Server(Some(others[0].clone()))), Err(Unusable::NoPublicHalf), "{curve}");
    }
}

#[test]
fn rubbish_is_no_key_and_nobodys_key() {
    for file in
        ["", "hello", "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"]
    {
        let why = public(file.as_bytes()).expect_err(file);
        assert!(!why.holds_a_key(), "{file}: {why}");
    }
    let other = rcgen::KeyPair::generate().expect("P-256").public_key_pem();
    assert_eq!(public(other.as_bytes()), Err(Unusable::NoKey));
}

#[test]
fn mutated_keys_never_panic_and_never_keep_a_wrong_public_half() {
    let key = PrivateKey::generate().expect("random bytes");
    let mut accepted = 0;
    for position in 0..key.der.len() {
        for flip in [1, 0x80, 0xff] {
            let mut mutant = key.der.to_vec();
            mutant[position] ^= flip;
            // Whatever is accepted must still sign for the public key it shows.
            if let Ok(mutant) = PrivateKey::from_der(&mutant) {
                accepted += 1;
                let signed = mutant.sign(b"message").expect("an accepted key signs");
                let signer = Signer::new(mutant.kind, &mutant.der).expect("it was accepted");
                let algorithm = match mutant.kind() {
                    Kind::P384 => &signature::ECDSA_P384_SHA384_ASN1,
                    _ => &signature::ECDSA_P256_SHA256_ASN1,
                };
                let public = signature::UnparsedPublicKey::new(algorithm, signer.public_bytes());
                public.verify(b"message", &signed).expect("private and public half belong together");
            }
        }
        let _ = PrivateKey::from_der(&key.der[..position]);
    }
    assert!(accepted < key.der.len(), "{accepted} mutants were accepted");
}

#[test]
fn an_unchanged_file_is_not_read_again() {
    let scratch = Scratch::new("key-cache");
    let path = scratch.0.join("key");
    let (first, second) = (PrivateKey::generate().expect("random"), PrivateKey::generate().expect("random"));
    let write = |key: &PrivateKey| std::fs::write(&path, key.to_pem().as_bytes()).expect("it is ours");
    write(&first);
    let mut cache = KeyCache::default();
    assert_eq!(public_of(&mut cache, &path).as_ref(), Ok(first.public()));
    assert!(cache.entries.is_empty(), "a file written this moment may be written again within one clock tick");

    // Old enough: remembered. The entry is replaced by a false one to see that the file is not read.
    std::thread::sleep(Duration::from_millis(3_100));
    assert_eq!(public_of(&mut cache, &path).as_ref(), Ok(first.public()));
    cache.entries.get_mut(&path).expect("it is remembered").public = Ok(second.public().clone());
    assert_eq!(public_of(&mut cache, &path).as_ref(), Ok(second.public()), "it was read again");

    // Any change is seen: content of the same length, and a file that is gone.
    write(&first);
    assert_eq!(public_of(&mut cache, &path).as_ref(), Ok(first.public()));
    std::fs::remove_file(&path).expect("it is ours");
    assert_eq!(public_of(&mut cache, &path).expect_err("it is gone").problem, crate::facts::Problem::Missing);
}

#[test]
fn files_that_are_no_files_do_not_block() {
    use crate::facts::Problem;
    let scratch = Scratch::new("key-odd");
    let fifo = scratch.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("it is ours");
    let large = scratch.0.join("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(1024 * 1024 + 1)).expect("it is ours");
    let mut cache = KeyCache::default();
    for path in [&fifo, &scratch.0, &large, &PathBuf::from("/dev/zero")] {
        let problem = public_of(&mut cache, path).expect_err("it holds no key").problem;
        assert!(matches!(problem, Problem::Unreadable(_)), "{}: {problem}", path.display());
    }
    for content in [&b""[..], b" \r\n\t\n", BOM] {
        let path = scratch.0.join("empty");
        std::fs::write(&path, content).expect("it is ours");
        assert_eq!(public_of(&mut cache, &path).expect_err("it is empty").problem, Problem::Empty);
    }
}
