//! The configuration file: TOML in, a checked [`Config`] out, or everything that is wrong with it.
//!
//! In: a path, or text. Out: [`Config`]; on failure a [`ConfigError`] that names each fault with file, line and column
//! and says what is allowed there. The rule of this file: nothing is guessed and nothing is ignored - a key that is not
//! known, a value out of range or a rule that could never match stops the start, since an address rule that silently
//! does not apply is how a certificate goes wrong.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::config::table::{Faults, Table, boolean, choice, duration, integer, limit, positive_duration, text};
use crate::config::{
    AddressConfig, AddressRule, AuthorityKeyId, CertificateConfig, ChoresConfig, Config, LogLevel, ProbeConfig,
    ProfileChoice, RestartConfig, RestartPolicy, RuleClass, SecondaryPolicy, SettleConfig, address,
    duration as durations,
};
use crate::facts::cluster::{Role, Service};
use crate::facts::san::San;

/// Where the file is when the command line does not say: below `--root`.
pub const DEFAULT_PATH: &str = "/etc/ipguard/ipguard.toml";

/// A configuration is a page, not a megabyte: what is larger is not one (a device, a log), and is not read on.
pub const LARGEST: u64 = 1 << 20;

/// Whoever is ordered behind us waits for the first pass, and systemd for a minute and a half.
const LONGEST_BOOT: std::time::Duration = std::time::Duration::from_secs(60);

/// Restarts may be spread, not put off.
const LONGEST_JITTER: std::time::Duration = std::time::Duration::from_secs(600);

/// The words of `[addresses] secondary`.
pub(super) const SECONDARY: [(&str, SecondaryPolicy); 2] =
    [("ignore", SecondaryPolicy::Ignore), ("include", SecondaryPolicy::Include)];
/// The words of `class` in a rule.
pub(super) const CLASSES: [(&str, RuleClass); 4] = [
    ("primary", RuleClass::Primary),
    ("secondary", RuleClass::Secondary),
    ("lb-owned", RuleClass::LbOwned),
    ("ignored", RuleClass::Ignored),
];
/// The word of `[certificate] renew_before` for a third of the certificate's life.
pub(super) const AUTO: &str = "auto";
/// The words of `[certificate] authority_key_id`.
pub(super) const AUTHORITY_KEY_IDS: [(&str, AuthorityKeyId); 2] =
    [("keyid", AuthorityKeyId::KeyId), ("keyid-issuer-serial", AuthorityKeyId::KeyIdIssuerSerial)];
/// The words of `[restart] policy`.
pub(super) const POLICIES: [(&str, RestartPolicy); 2] =
    [("when-needed", RestartPolicy::WhenNeeded), ("never", RestartPolicy::Never)];
/// The words of `role` in a service.
pub(super) const ROLES: [(&str, Role); 2] =
    [("api-server", Role::ApiServer), ("loads-certificate-once", Role::LoadsCertificateOnce)];

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kernel refused, or a file named on the command line is not there.
    #[error("reading {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A directory in the file's place.
    #[error("{path}: a directory, where the configuration file is expected", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// More than [`LARGEST`] bytes.
    #[error("{path}: larger than 1 MiB, so not a configuration file", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// TOML is UTF-8.
    #[error("{path}:{line}: not UTF-8 text (byte {offset} of the file)", path = path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Line of the first byte that is not UTF-8, from 1.
        line: usize,
        /// Its offset, from 0.
        offset: usize,
    },
    /// Read and understood, and wrong: one line for each fault.
    #[error("{}", lines(path, faults))]
    Faults {
        /// The file.
        path: PathBuf,
        /// In the order of the file; never empty.
        faults: Vec<Fault>,
    },
}

/// One thing that is wrong with the text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// From 1.
    pub line: usize,
    /// In characters, from 1, as editors count.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

fn lines(path: &Path, faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{}:{fault}", path.display())).collect::<Vec<_>>().join("\n")
}

/// What a file asks for, in a form that is the same for the same requests: comments, order and spelling do not matter, nor
/// do the keys that change nothing of a certificate. Only what stands in the file: a key that a later version knows makes
/// no difference. `None` when it is no TOML.
pub fn meaning(text: &str) -> Option<String> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    for key in ["profile", "observe", "chores", "log", "metrics"] {
        table.remove(key);
    }
    serde_json::to_string(&table).ok()
}

/// Reads a configuration file. One that is not there means the defaults, unless it is `required`: named by somebody.
///
/// # Errors
/// The file cannot be read, is no text, or has faults; all of those are listed.
pub fn load(path: &Path, required: bool) -> Result<Config, ConfigError> {
    let refuse = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    match File::open(path) {
        // A link that leads nowhere is a configuration that went missing, not one that was never written.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !required && path.symlink_metadata().is_err() => {
            return Ok(Config::default());
        }
        Err(error) => return Err(refuse(error)),
        Ok(file) if file.metadata().is_ok_and(|m| m.is_dir()) => {
            return Err(ConfigError::Directory { path: path.to_owned() });
        }
        Ok(file) => file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(refuse)?,
    };
    if bytes.len() as u64 > LARGEST {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let offset = error.valid_up_to();
        let line = 1 + bytes[..offset].iter().filter(|byte| **byte == b'\n').count();
        ConfigError::NotUtf8 { path: path.to_owned(), line, offset }
    })?;
    parse(text).map_err(|faults| ConfigError::Faults { path: path.to_owned(), faults })
}

/// Reads the text of a configuration file.
///
/// # Errors
/// Every fault, in the order of the text. A text that is not TOML has only faults of syntax: what its values would have
/// been is not known.
pub fn parse(text: &str) -> Result<Config, Vec<Fault>> {
    let (tree, errors) = DeTable::parse_recoverable(text);
    let mut faults = Faults::default();
    let mut config = Config::default();
    if errors.is_empty() {
        config = document(&Table::open("", tree.get_ref(), 0, &mut faults), &mut faults);
    }
    for error in &errors {
        faults.add(error.span().map_or(0, |span| span.start), error.message());
    }
    if faults.0.is_empty() {
        return Ok(config);
    }
    let mut placed = place(text, faults.0);
    if !errors.is_empty() {
        // One missing bracket is one mistake, however often the parser stumbles over it in that line.
        placed.dedup_by_key(|fault| fault.line);
    }
    Err(placed)
}

/// Sorts faults and turns byte offsets into lines and columns, in one walk over the text.
fn place(text: &str, mut faults: Vec<(usize, String)>) -> Vec<Fault> {
    faults.sort();
    // The byte order mark takes no column in any editor.
    let mut rest = text.char_indices().filter(|(_, c)| *c != '\u{feff}').peekable();
    let (mut line, mut column) = (1, 1);
    let mut placed = Vec::with_capacity(faults.len());
    for (at, message) in faults {
        while let Some((_, c)) = rest.next_if(|(offset, _)| *offset < at) {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        placed.push(Fault { line, column, message });
    }
    placed
}

fn document(file: &Table<'_>, faults: &mut Faults) -> Config {
    let mut config = Config::default();
    if let Some(profile) = file.read("profile", faults, |value| text(value).map(ProfileChoice::from)) {
        config.profile = profile;
    }
    if let Some(observe) = file.read("observe", faults, boolean) {
        config.observe = observe;
    }
    if let Some(table) = file.table("addresses", "[addresses]", faults) {
        config.addresses = addresses(&table, faults);
    }
    if let Some(table) = file.table("certificate", "[certificate]", faults) {
        certificate(&table, &mut config.certificate, faults);
    }
    if let Some(table) = file.table("settle", "[settle]", faults) {
        settle(&table, &mut config.settle, faults);
    }
    if let Some(table) = file.table("restart", "[restart]", faults) {
        restart(&table, &mut config.restart, faults);
    }
    if let Some(table) = file.table("probe", "[probe]", faults) {
        probe(&table, &mut config.probe, faults);
    }
    config.services = services(&file.tables("service", "[[service]]", faults), faults);
    if let Some(table) = file.table("chores", "[chores]", faults) {
        chores(&table, &mut config.chores, faults);
    }
    if let Some(table) = file.table("log", "[log]", faults)
        && let Some(level) = table.read("level", faults, |value| choice(value, &LogLevel::WORDS))
    {
        config.log_level = level;
    }
    // Reserved: the table may be there, and opening it reports every key in it.
    file.table("metrics", "[metrics]", faults);
    config
}

fn addresses(table: &Table<'_>, faults: &mut Faults) -> AddressConfig {
    let pin = table.read_list("pin", faults, address::pin).unwrap_or_default();
    let secondary = table.read("secondary", faults, |value| choice(value, &SECONDARY)).unwrap_or_default();
    let rules = table.tables("rule", "[[addresses.rule]]", faults);
    let rules = rules.iter().enumerate().filter_map(|(index, table)| rule(index, table, faults)).collect();
    AddressConfig { pin, secondary, rules }
}

fn rule(index: usize, table: &Table<'_>, faults: &mut Faults) -> Option<AddressRule> {
    let conditions = ["address", "cidr", "interface", "kind", "protocol"];
    if table.all_known && !conditions.iter().any(|key| table.has(key)) {
        faults.add(table.at, "a rule needs a condition: `address`, `cidr`, `interface`, `kind` or `protocol`");
    }
    if table.all_known && !table.has("class") {
        faults.add(table.at, "a rule needs a `class`: \"primary\", \"secondary\", \"lb-owned\" or \"ignored\"");
    }
    let name = table.read("name", faults, |value| text(value).map(str::to_owned));
    let address = table.read("address", faults, |value| address::address(text(value)?));
    let cidr = table.read("cidr", faults, |value| address::network(text(value)?));
    if let (Some(address), Some(cidr)) = (address, cidr)
        && !cidr.contains(&address)
    {
        faults.add(table.place_of(&["cidr"]), format!("the rule can never match: {address} is not in {cidr}"));
    }
    Some(AddressRule {
        name: name.unwrap_or_else(|| format!("rule {}", index + 1)),
        address,
        cidr,
        interface: table.read("interface", faults, |value| address::interface(text(value)?)),
        kind: table.read("kind", faults, |value| address::kind(text(value)?)),
        protocol: table.read("protocol", faults, |value| match value {
            DeValue::String(name) => address::protocol_name(name),
            _ => address::protocol_number(integer(value, address::PROTOCOL_MUST)?),
        }),
        class: table.read("class", faults, |value| choice(value, &CLASSES))?,
    })
}

fn certificate(table: &Table<'_>, certificate: &mut CertificateConfig, faults: &mut Faults) {
    let san =
        |text: &str| text.parse::<San>().map_err(|error| format!("must hold host names and IP addresses: {error}"));
    set(&mut certificate.extra_sans, table.read_list("extra_sans", faults, san));
    set(&mut certificate.validity, table.read("validity", faults, positive_duration));
    let pointer = table.read("authority_key_id", faults, |value| choice(value, &AUTHORITY_KEY_IDS));
    set(&mut certificate.authority_key_id, pointer);
    let renew_before = table.read("renew_before", faults, |value| match value {
        DeValue::String(word) if word == AUTO => Ok(None),
        _ => positive_duration(value).map(Some),
    });
    set(&mut certificate.renew_before, renew_before);
    let bundle = table.read("foreign_bundle", faults, |value| match PathBuf::from(text(value)?) {
        path if path.is_absolute() => Ok(Some(path)),
        path => Err(format!("must be an absolute path, not {}", path.display())),
    });
    set(&mut certificate.foreign_bundle, bundle);
    set(&mut certificate.retain, table.read("retain", faults, duration));
    set(&mut certificate.reissue_limit, table.read("reissue_limit", faults, limit));
    if let Some(renew_before) = certificate.renew_before
        && certificate.validity <= renew_before
    {
        // A certificate that is due for renewal when it is made would be made again in every pass.
        let message = format!(
            "`certificate.renew_before` ({}) must be shorter than `certificate.validity` ({})",
            durations::format(renew_before),
            durations::format(certificate.validity)
        );
        faults.add(table.place_of(&["renew_before", "validity"]), message);
    }
}

fn settle(table: &Table<'_>, settle: &mut SettleConfig, faults: &mut Faults) {
    set(&mut settle.quiet, table.read("quiet", faults, positive_duration));
    set(&mut settle.max, table.read("max", faults, positive_duration));
    set(&mut settle.promotion_hold, table.read("promotion_hold", faults, duration));
    set(&mut settle.boot, table.read("boot", faults, duration));
    if settle.boot > LONGEST_BOOT {
        let message = format!("`settle.boot` must be at most 60s, not {}", durations::format(settle.boot));
        faults.add(table.place_of(&["boot"]), message);
    }
    if settle.quiet > settle.max {
        let message = format!(
            "`settle.quiet` ({}) must not be longer than `settle.max` ({})",
            durations::format(settle.quiet),
            durations::format(settle.max)
        );
        faults.add(table.place_of(&["quiet", "max"]), message);
    }
}

fn restart(table: &Table<'_>, restart: &mut RestartConfig, faults: &mut Faults) {
    set(&mut restart.limit, table.read("limit", faults, limit));
    set(&mut restart.window, table.read("window", faults, positive_duration));
    set(&mut restart.jitter, table.read("jitter", faults, duration));
    set(&mut restart.policy, table.read("policy", faults, |value| choice(value, &POLICIES)));
    if restart.jitter > LONGEST_JITTER {
        let message = format!("`restart.jitter` must be at most 10m, not {}", durations::format(restart.jitter));
        faults.add(table.place_of(&["jitter"]), message);
    }
}

fn probe(table: &Table<'_>, probe: &mut ProbeConfig, faults: &mut Faults) {
    set(&mut probe.reload_timeout, table.read("reload_timeout", faults, positive_duration));
}

fn chores(table: &Table<'_>, chores: &mut ChoresConfig, faults: &mut Faults) {
    set(&mut chores.permissions, table.read("permissions", faults, boolean));
    set(&mut chores.hooks, table.read("hooks", faults, boolean));
    set(&mut chores.registry, table.read("registry", faults, boolean));
}

fn services(tables: &[Table<'_>], faults: &mut Faults) -> Vec<Service> {
    let mut services: Vec<Service> = Vec::new();
    for table in tables {
        for key in ["name", "role", "unit"] {
            if table.all_known && !table.has(key) {
                faults.add(table.at, format!("a service needs a `{key}`"));
            }
        }
        let name = table.read("name", faults, |value| word(value, "a name, such as kubelite").map(str::to_owned));
        let role = table.read("role", faults, |value| choice(value, &ROLES));
        let unit = table.read("unit", faults, |value| match word(value, "a systemd unit, such as k3s.service")? {
            unit if unit.strip_suffix(".service").is_some_and(|stem| !stem.is_empty()) => Ok(unit.to_owned()),
            unit => Err(format!("must be a systemd unit that ends in .service, not {}", address::quoted(unit))),
        });
        let snap = table.read("snap", faults, |value| {
            word(value, "a snap application, such as microk8s.daemon-kubelite").map(str::to_owned)
        });
        if let Some(name) = &name
            && services.iter().any(|other| other.name == *name)
        {
            faults.add(table.place_of(&["name"]), format!("there is a service {name:?} already"));
        }
        if let (Some(name), Some(role), Some(unit)) = (name, role, unit) {
            services.push(Service { name, role, unit, snap, ready: None });
        }
    }
    services
}

/// A name that is handed to a service manager as an argument of its own: never an option, never a path.
fn word<'v>(value: &'v DeValue<'_>, what: &str) -> Result<&'v str, String> {
    let text = text(value)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.@:\\".contains(&b);
    if text.bytes().all(allowed) && !text.starts_with(['-', '.']) && text.len() <= 255 {
        Ok(text)
    } else {
        Err(format!("must be {what}, not {}", address::quoted(text)))
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}
