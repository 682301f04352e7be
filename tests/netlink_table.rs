//! rtnetlink against the real kernel, in network namespaces of our own.
//!
//! `cargo test --test netlink_table [NAME]`; with `-- --capture fixtures/netlink` it writes the captures that
//! `tests/netlink_fixtures.rs` reads. Where namespaces are forbidden every test is skipped, and the count says so.

#[path = "netlink/behaviour.rs"]
mod behaviour;
#[path = "netlink/capture.rs"]
mod capture;
#[path = "netlink/histories.rs"]
mod histories;
#[path = "netlink/namespace.rs"]
mod namespace;
#[path = "netlink/raw.rs"]
mod raw;

use std::panic::catch_unwind;
use std::process::ExitCode;

/// A test and its name; each starts in an empty namespace.
const TESTS: &[(&str, fn())] = &[
    ("any_history_adds_up_to_a_fresh_dump", histories::any_history_adds_up_to_a_fresh_dump),
    ("a_lost_storm_ends_in_the_kernels_state", histories::a_lost_storm_ends_in_the_kernels_state),
    ("snapshots_in_a_storm_are_sound_or_say_so", histories::snapshots_in_a_storm_are_sound_or_say_so),
    ("a_forged_message_changes_nothing", behaviour::a_forged_message_changes_nothing),
    ("a_protocol_outlives_the_replace_that_erases_it", behaviour::a_protocol_outlives_the_replace_that_erases_it),
    ("a_protocol_dies_with_its_address", behaviour::a_protocol_dies_with_its_address),
    ("only_relevant_changes_are_relevant", behaviour::only_relevant_changes_are_relevant),
    ("a_silently_removed_route_is_missed", behaviour::a_silently_removed_route_is_missed),
    ("addresses_are_in_dump_order", behaviour::addresses_are_in_dump_order),
    ("an_odd_name_hides_nothing", behaviour::an_odd_name_hides_nothing),
    ("polling_sees_what_rtnetlink_sees", behaviour::polling_sees_what_rtnetlink_sees),
    ("files_alone_show_the_same_addresses", behaviour::files_alone_show_the_same_addresses),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let entered = namespace::enter();
    if let Some(at) = arguments.iter().position(|argument| argument == "--capture") {
        entered.expect("a capture needs a namespace");
        capture::run(arguments.get(at + 1).expect("a folder follows --capture").as_ref());
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    println!("\nrunning {} tests", TESTS.iter().filter(|(name, _)| chosen(name)).count());
    for (name, test) in TESTS.iter().filter(|(name, _)| chosen(name)) {
        if let Err(reason) = &entered {
            println!("test {name} ... skipped: {reason}");
            skipped += 1;
            continue;
        }
        namespace::fresh();
        if catch_unwind(test).is_ok() {
            println!("test {name} ... ok");
            passed += 1;
        } else {
            println!("test {name} ... FAILED");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        println!("\nfailures:\n    {}", failed.join("\n    "));
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    let filtered = TESTS.len() - passed - failed.len() - skipped;
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {skipped} ignored; 0 measured; {filtered} filtered out\n",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
