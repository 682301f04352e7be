//! The configuration file as operators write it: `fixtures/config/valid` loads, and each file of
//! `fixtures/config/invalid` is refused with exactly the text beside it. `BLESS=1` rewrites those texts.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use ipguard::config::file::{self, ConfigError};
use ipguard::config::{Config, print};

type Outcome = Result<(), Box<dyn Error>>;

fn files(folder: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config").join(folder);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    assert!(!files.is_empty());
    Ok(files)
}

/// The whole chain of causes, with the folder left out.
fn told(error: &ConfigError, path: &Path) -> Result<String, Box<dyn Error>> {
    let folder = path.parent().ok_or("no folder")?.display().to_string() + "/";
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    Ok(text.replace(&folder, "") + "\n")
}

#[test]
fn valid_files_load_and_survive_being_shown() -> Outcome {
    for path in files("valid")? {
        let config = file::load(&path, true).map_err(|error| format!("{}: {error}", path.display()))?;
        let shown = print::show(&config);
        assert_eq!(file::parse(&shown), Ok(config), "{}", path.display());
    }
    Ok(())
}

#[test]
fn invalid_files_are_refused_with_the_expected_words() -> Outcome {
    for path in files("invalid")? {
        let Err(error) = file::load(&path, true) else {
            return Err(format!("{} was accepted", path.display()).into());
        };
        let told = told(&error, &path)?;
        let expected = path.with_extension("txt");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&expected, &told)?;
        }
        assert_eq!(told, fs::read_to_string(&expected)?, "{}", path.display());
    }
    Ok(())
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(file::parse(""), Ok(Config::default()));
}

#[test]
fn only_a_file_that_nobody_named_may_be_missing() -> Outcome {
    let folder = Folder::new("missing")?;
    let path = folder.0.join("ipguard.toml");
    assert_eq!(file::load(&path, false)?, Config::default());
    assert_eq!(file::load(&folder.0.join("no/such/folder.toml"), false)?, Config::default());
    let error = file::load(&path, true).err().ok_or("a missing file was accepted")?;
    assert_eq!(told(&error, &path)?, "reading ipguard.toml: No such file or directory (os error 2)\n");
    // Somebody made the link, so there is a configuration that cannot be read.
    std::os::unix::fs::symlink("nowhere.toml", &path)?;
    assert!(matches!(file::load(&path, false), Err(ConfigError::Read { .. })));
    Ok(())
}

#[test]
fn what_is_no_file_of_a_page_is_refused_before_it_is_parsed() -> Outcome {
    let folder = Folder::new("refused")?;
    assert!(matches!(file::load(&folder.0, false), Err(ConfigError::Directory { .. })));
    assert!(matches!(file::load(Path::new("/dev/zero"), true), Err(ConfigError::TooLarge { .. })));
    let path = folder.0.join("large.toml");
    let limit = usize::try_from(file::LARGEST)?;
    fs::write(&path, "#".repeat(limit))?;
    assert_eq!(file::load(&path, true)?, Config::default());
    fs::write(&path, "#".repeat(limit + 1))?;
    assert!(matches!(file::load(&path, true), Err(ConfigError::TooLarge { .. })));
    // A folder's name that is a file.
    assert!(matches!(file::load(&path.join("ipguard.toml"), false), Err(ConfigError::Read { .. })));
    Ok(())
}

#[test]
fn a_file_of_nothing_but_brackets_or_unknown_keys_is_an_error_and_not_a_crash() {
    let limit = 1 << 20;
    for text in ["[".repeat(limit), format!("x = {}", "[".repeat(limit)), format!("x = {}", "{a=".repeat(limit / 3))] {
        assert!(file::parse(&text).is_err());
    }
    let keys: String = (0..20_000).map(|i| format!("key{i} = 1\n")).collect();
    assert_eq!(file::parse(&keys).map_err(|faults| faults.len()), Err(20_000));
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("ipguard-config-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_a_file_asks_for_is_the_same_however_it_is_written() {
    let meaning = |text: &str| file::meaning(text);
    let asked = meaning("[certificate]\nvalidity = \"300d\"\nextra_sans = [\"a.example\"]\n");
    assert!(asked.is_some());
    for same in [
        "# why\n[certificate]\nextra_sans = ['a.example'] # for the office\n\n\nvalidity = '300d'\n",
        "observe = true\nprofile = \"microk8s\"\ncertificate = { validity = \"300d\", extra_sans = [\"a.example\"] }\n[chores]\nhooks = false\n[log]\nlevel = \"debug\"\n",
    ] {
        assert_eq!(meaning(same), asked, "{same}");
    }
    for other in [
        "",
        "[certificate]\nvalidity = \"301d\"\nextra_sans = [\"a.example\"]\n",
        "[certificate]\nvalidity = \"300d\"\n",
    ] {
        assert_ne!(meaning(other), asked, "{other}");
        assert!(meaning(other).is_some());
    }
    assert_eq!(meaning("[certificate"), None);
}
