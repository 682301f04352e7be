//! The configuration as text: the documented defaults, and what is in force.
//!
//! In: nothing, or a [`Config`]. Out: TOML that [`crate::config::file::parse`] reads back to the same values. The rule
//! of this file: what is shown is complete, so that the shown text can replace the file.

use std::fmt::{Display, Write as _};

use crate::config::file::{AUTHORITY_KEY_IDS, AUTO, CLASSES, POLICIES, ROLES, SECONDARY};
use crate::config::{Config, LogLevel, ProfileChoice, duration};

/// The defaults, each with its meaning: a file to start from.
pub fn default_text() -> String {
    include_str!("default.toml").to_owned()
}

/// The configuration in force, as a configuration file.
pub fn show(config: &Config) -> String {
    let mut text = String::new();
    write_config(&mut text, config).expect("writing to a String does not fail");
    text
}

fn write_config(out: &mut String, config: &Config) -> std::fmt::Result {
    let profile = match &config.profile {
        ProfileChoice::Auto => "auto",
        ProfileChoice::Named(name) => name,
    };
    let duration = |value| string(&duration::format(value));
    writeln!(out, "profile = {}", string(profile))?;
    writeln!(out, "observe = {}", config.observe)?;

    writeln!(out, "\n[addresses]")?;
    writeln!(out, "pin = {}", array(&config.addresses.pin))?;
    writeln!(out, "secondary = {}", string(word(&SECONDARY, config.addresses.secondary)))?;
    for rule in &config.addresses.rules {
        writeln!(out, "\n[[addresses.rule]]")?;
        writeln!(out, "name = {}", string(&rule.name))?;
        optional(out, "address", rule.address)?;
        optional(out, "cidr", rule.cidr)?;
        optional(out, "interface", rule.interface.as_ref())?;
        optional(out, "kind", rule.kind.as_ref())?;
        if let Some(protocol) = rule.protocol {
            writeln!(out, "protocol = {protocol}")?;
        }
        writeln!(out, "class = {}", string(word(&CLASSES, rule.class)))?;
    }

    writeln!(out, "\n[certificate]")?;
    writeln!(out, "extra_sans = {}", array(&config.certificate.extra_sans))?;
    writeln!(out, "validity = {}", duration(config.certificate.validity))?;
    let pointer = word(&AUTHORITY_KEY_IDS, config.certificate.authority_key_id);
    writeln!(out, "authority_key_id = {}", string(pointer))?;
    let renew_before = config.certificate.renew_before.map_or_else(|| string(AUTO), duration);
    writeln!(out, "renew_before = {renew_before}")?;
    optional(out, "foreign_bundle", config.certificate.foreign_bundle.as_ref().map(|path| path.display()))?;
    writeln!(out, "retain = {}", duration(config.certificate.retain))?;
    writeln!(out, "reissue_limit = {}", config.certificate.reissue_limit)?;

    writeln!(out, "\n[settle]")?;
    writeln!(out, "quiet = {}", duration(config.settle.quiet))?;
    writeln!(out, "max = {}", duration(config.settle.max))?;
    writeln!(out, "promotion_hold = {}", duration(config.settle.promotion_hold))?;
    writeln!(out, "boot = {}", duration(config.settle.boot))?;

    writeln!(out, "\n[restart]")?;
    writeln!(out, "limit = {}", config.restart.limit)?;
    writeln!(out, "window = {}", duration(config.restart.window))?;
    writeln!(out, "jitter = {}", duration(config.restart.jitter))?;
    writeln!(out, "policy = {}", string(word(&POLICIES, config.restart.policy)))?;

    writeln!(out, "\n[probe]")?;
    writeln!(out, "reload_timeout = {}", duration(config.probe.reload_timeout))?;

    for service in &config.services {
        writeln!(out, "\n[[service]]")?;
        writeln!(out, "name = {}", string(&service.name))?;
        writeln!(out, "role = {}", string(word(&ROLES, service.role)))?;
        writeln!(out, "unit = {}", string(&service.unit))?;
        optional(out, "snap", service.snap.as_ref())?;
    }

    writeln!(out, "\n[chores]")?;
    writeln!(out, "permissions = {}", config.chores.permissions)?;
    writeln!(out, "hooks = {}", config.chores.hooks)?;
    writeln!(out, "registry = {}", config.chores.registry)?;

    writeln!(out, "\n[log]")?;
    writeln!(out, "level = {}", string(word(&LogLevel::WORDS, config.log_level)))
}

fn optional(out: &mut String, key: &str, value: Option<impl Display>) -> std::fmt::Result {
    match value {
        Some(value) => writeln!(out, "{key} = {}", string(&value.to_string())),
        None => Ok(()),
    }
}

fn array(values: &[impl Display]) -> String {
    let items: Vec<String> = values.iter().map(|value| string(&value.to_string())).collect();
    format!("[{}]", items.join(", "))
}

/// The word the file has for a value: the tables that read it also write it.
fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, meaning)| *meaning == value).map(|(word, _)| *word).expect("every value has a word")
}

/// A TOML basic string (TOML 1.0, section String).
pub(super) fn string(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(c)).expect("writing to a String does not fail")
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use ipnet::IpNet;
    use proptest::prelude::*;
    use proptest::{collection::vec, option, sample::select};

    use super::*;
    use crate::config::file::{ConfigError, parse};
    use crate::config::table::TABLES;
    use crate::config::{AddressRule, ChoresConfig, refused_as_pin};
    use crate::facts::cluster::Service;
    use crate::facts::san::San;

    #[test]
    fn the_default_text_is_the_default_configuration() {
        assert_eq!(parse(&default_text()), Ok(Config::default()));
    }

    #[test]
    fn the_default_text_names_every_table_and_every_key() {
        let text = default_text();
        for (heading, keys) in TABLES {
            assert!(text.contains(heading), "{heading}");
            for key in keys {
                // Conditions of a rule and the snap of a service are named in the prose above their example.
                assert!(text.contains(key), "{heading} {key}");
            }
        }
    }

    #[test]
    fn the_examples_in_the_default_text_are_valid() -> Result<(), ConfigError> {
        // Prose has a space after its `#`, examples do not.
        let uncommented: String = default_text()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(example) if !example.is_empty() && !example.starts_with(' ') => format!("{example}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let config =
            parse(&uncommented).map_err(|faults| ConfigError::Faults { path: "default.toml".into(), faults })?;
        assert_eq!((config.addresses.rules.len(), config.services.len()), (1, 1));
        Ok(())
    }

    #[test]
    fn the_defaults_shown_in_full() {
        let expected = r#"profile = "auto"
observe = false

[addresses]
pin = []
secondary = "ignore"

[certificate]
extra_sans = []
validity = "365d"
authority_key_id = "keyid"
renew_before = "auto"
retain = "1d"
reissue_limit = 6

[settle]
quiet = "5s"
max = "30s"
promotion_hold = "30s"
boot = "30s"

[restart]
limit = 3
window = "1h"
jitter = "20s"
policy = "when-needed"

[probe]
reload_timeout = "1m10s"

[chores]
permissions = true
hooks = true
registry = true

[log]
level = "info"
"#;
        assert_eq!(show(&Config::default()), expected);
    }

    fn any_value() -> impl Strategy<Value = IpAddr> {
        any::<IpAddr>().prop_map(|value| value.to_canonical())
    }

    fn any_duration(from: u64, to: u64) -> impl Strategy<Value = Duration> {
        (from..=to).prop_map(Duration::from_millis)
    }

    fn any_rule() -> impl Strategy<Value = AddressRule> {
        let place = prop_oneof![
            any_value().prop_map(|address| (Some(address), None)),
            (any_value(), 0..=32u8).prop_map(|(value, bits)| {
                let net = IpNet::new(value, bits).expect("32 bits fit both families").trunc();
                (value.is_ipv4().then_some(value), value.is_ipv4().then_some(net))
            }),
        ];
        let link = (option::of("[a-z*?.\"\\\\-]{1,15}"), option::of("[a-z0-9_-]{1,12}"), 1..=255u8);
        ("[^\\p{C}]{1,20}", place, link, select(&CLASSES[..])).prop_map(|(name, place, link, class)| AddressRule {
            name,
            address: place.0,
            cidr: place.1,
            interface: link.0,
            kind: link.1,
            protocol: Some(link.2),
            class: class.1,
        })
    }

    fn any_service() -> impl Strategy<Value = Service> {
        let snap = option::of("[a-z][a-z0-9-]{0,9}\\.[a-z]{1,9}");
        ("[a-z][a-zA-Z0-9_@:-]{0,20}", select(&ROLES[..]), "[a-z][a-z0-9\\\\@-]{0,12}\\.service", snap)
            .prop_map(|(name, role, unit, snap)| Service { name, role: role.1, unit, snap, ready: None })
    }

    prop_compose! {
        fn any_config()(
            profile in option::of("[^\\p{C}]{1,12}"),
            observe in any::<bool>(),
            pin in vec(any_value().prop_filter("a node's", |value| refused_as_pin(*value).is_none()), 0..4),
            secondary in select(&SECONDARY[..]),
            rules in vec(any_rule(), 0..4),
            sans in vec(any_value().prop_map(San::ip), 0..3),
            spans in (any_duration(1, 1 << 40), any_duration(1, 1 << 40), any_duration(0, 1 << 40), any_duration(1, 600_000)),
            settle in (any_duration(1, 60_000), any_duration(0, 60_000), any_duration(0, 60_000), any_duration(0, 60_000)),
            limits in (1..=1000u32, 1..=1000u32),
            policy in select(&POLICIES[..]),
            pointer in select(&AUTHORITY_KEY_IDS[..]),
            services in vec(any_service(), 0..3),
            chores in any::<(bool, bool, bool)>(),
            level in select(&LogLevel::WORDS[..]),
        ) -> Config {
            let profile = profile.map_or(ProfileChoice::Auto, |name| ProfileChoice::from(name.as_str()));
            let mut config = Config { profile, observe, log_level: level.1, ..Config::default() };
            config.addresses.pin = pin;
            config.addresses.secondary = secondary.1;
            config.addresses.rules = rules;
            config.certificate.extra_sans = sans;
            config.certificate.renew_before = observe.then_some(spans.0);
            config.certificate.validity = spans.0 + spans.1;
            config.certificate.retain = spans.2;
            config.certificate.authority_key_id = pointer.1;
            config.certificate.reissue_limit = limits.0;
            config.settle.quiet = settle.0;
            config.settle.max = settle.0 + settle.1;
            config.settle.promotion_hold = settle.2;
            config.settle.boot = settle.3;
            config.restart.limit = limits.1;
            config.restart.window = spans.1;
            config.restart.jitter = spans.3;
            config.restart.policy = policy.1;
            config.probe.reload_timeout = spans.3;
            config.chores = ChoresConfig { permissions: chores.0, hooks: chores.1, registry: chores.2 };
            for service in services {
                if config.services.iter().all(|other| other.name != service.name) {
                    config.services.push(service);
                }
            }
            config
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(config in any_config()) {
            prop_assert_eq!(parse(&show(&config)), Ok(config));
        }

        #[test]
        fn any_string_survives_its_quotes(text in any::<String>()) {
            let line = format!("x = {}", string(&text));
            let (tree, errors) = toml::de::DeTable::parse_recoverable(&line);
            prop_assert!(errors.is_empty());
            prop_assert_eq!(tree.get_ref()["x"].get_ref().as_str(), Some(text.as_str()));
        }
    }
}
