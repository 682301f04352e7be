//! Clocks that are set while the host runs, and boots in the past.

use super::certificates::{NAMES, ca, complete, leaf, order_of};
use super::*;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Sets the clock by years and hours while the host runs: what was remembered keeps its age.
#[test]
fn a_clock_that_is_set_makes_nothing_older() {
    let jumps: [fn(&mut Host); 4] = [
        |h| h.now.wall = h.now.wall + YEAR * 50,
        |h| h.now.wall = h.now.wall + HOUR * 3,
        |h| h.now.wall = h.now.wall - HOUR * 3,
        |h| h.now.wall = h.now.wall - YEAR * 5,
    ];
    for jump in jumps {
        let mut host = changed(|h| {
            h.add("eth0", "192.0.2.100/24");
        });
        host.settle();
        host.pass_time(HOUR);
        host.settle();
        host.remove("192.0.2.10");
        host.settle();
        host.pass_time(Duration::from_secs(10));
        jump(&mut host);
        // The VIP does not take the place before the hold has passed, and does then.
        assert!(host.planned_primary().is_empty(), "at {}", host.now.wall);
        host.settle();
        host.pass_time(Duration::from_secs(25));
        assert_eq!(host.planned_primary(), ["192.0.2.100"], "at {}", host.now.wall);
        host.settle();
        host.add("eth0", "192.0.2.10/24");
        assert_eq!(host.planned_primary(), ["192.0.2.10"], "at {}", host.now.wall);
    }
}

/// The limit of restarts is one of time that has passed, whatever a clock says: a log that is known, and one that was lost.
#[test]
fn a_clock_that_is_set_frees_no_restart() {
    let used_up: [fn(&mut Host); 2] = [
        |h| {
            for minutes in [25, 20, 15] {
                let (service, reason) = ("kubelite".to_owned(), "a test".to_owned());
                h.state.restarts.push(Restart { at: h.now.wall - MINUTE * minutes, service, reason, open: false });
            }
        },
        |h| h.state.restarts_lost = Some(h.now.wall - MINUTE * 15),
    ];
    for use_up in used_up {
        for years in [0, 50] {
            let mut host = renumbered(use_up);
            assert_eq!(holds(&host.settle()), ["restart-limit"]);
            host.now.wall = host.now.wall + YEAR * years + HOUR * 2;
            for facts in &mut host.cluster.certificates {
                facts.leaf.as_mut().expect("readable").not_after = host.now.wall + YEAR;
            }
            let plan = host.settle();
            assert!(holds(&plan).contains(&"restart-limit".to_owned()), "{:?}", plan.holds);
            host.pass_time(MINUTE * 50);
            let plan = host.settle();
            assert!(!holds(&plan).contains(&"restart-limit".to_owned()), "{:?}", plan.holds);
        }
    }
}

/// A state from a clock that ran years ahead, in another boot: no wait is longer than it should be.
#[test]
fn what_lies_ahead_holds_nothing_for_longer_than_a_limit() {
    let mut host = renumbered(|h| {
        for _ in 0..3 {
            let at = h.now.wall;
            h.state.restarts.push(Restart {
                at,
                service: "kubelite".to_owned(),
                reason: "a test".to_owned(),
                open: false,
            });
        }
    });
    host.boot_id = "another boot".to_owned();
    host.now.wall = host.now.wall - YEAR;
    for facts in &mut host.cluster.certificates {
        facts.leaf.as_mut().expect("readable").not_before = host.now.wall - DAY;
    }
    // The wait for the lost address begins anew, and is as long as ever.
    host.settle();
    host.pass_time(MINUTE);
    let plan = host.settle();
    assert!(holds(&plan).contains(&"restart-limit".to_owned()), "{:?}", plan.holds);
    for hold in &plan.holds {
        assert!(hold.until.is_none_or(|at| at <= host.now.wall + HOUR), "{hold:?}");
    }
}

/// A board without a clock of its own starts in the past. Its certificates wait for the clock, and the API server, which
/// was started with the new address, is not restarted.
#[test]
fn a_boot_in_the_past() {
    let mut host = changed(|h| {
        h.pass_time(DAY);
        h.settle();
        h.state.boot_id = "the boot before".to_owned();
    });
    let behind = host.now.wall - DAY;
    host.now = Now { wall: behind, uptime: Duration::from_secs(20) };
    host.network.addresses.retain(|a| a.value.is_loopback());
    host.add("eth0", "192.0.2.20/24");
    host.now.uptime = Duration::from_secs(60);
    host.service_since(Duration::from_secs(40));
    for _ in 0..3 {
        let plan = host.settle();
        assert_eq!((steps(&plan), reasons(&plan)), (vec![], vec!["address-missing".to_owned()]));
        assert!(holds(&plan).contains(&"clock-unsynchronised".to_owned()), "{:?}", holds(&plan));
        host.pass_time(MINUTE);
    }
    // The clock is set.
    host.now.wall = host.now.wall + DAY + MINUTE;
    assert_eq!(steps(&host.settle()), RELOAD);
    host.certificate(&["192.0.2.20"]);
    host.pass_time(HOUR);
    assert_eq!(reasons(&host.settle()), NONE);
}

/// What the kernel says about its clock, the moment, and what becomes of expiry and of a missing address.
#[test]
fn every_state_of_the_clock() {
    let behind: fn(&mut Host) = |h| h.state.written = h.now.wall + DAY;
    let before_authority: fn(&mut Host) = |h| {
        let at = h.now.wall + DAY;
        h.cluster.certificates.iter_mut().for_each(|facts| {
            ca(facts).not_before = at;
            leaf(facts).not_before = at;
        });
    };
    let plausible: fn(&mut Host) = |_| {};
    let (now, unsynchronised) = (None, "clock-unsynchronised");
    // (kernel, moment, hold on expiry, hold on names)
    let cases = [
        (Some(true), plausible, now, now),
        (Some(false), plausible, now, now),
        (None, plausible, now, now),
        (Some(true), behind, now, now),
        (Some(false), behind, Some(unsynchronised), now),
        (None, behind, Some(unsynchronised), Some(unsynchronised)),
        (Some(true), before_authority, Some("ca-not-valid"), Some("ca-not-valid")),
        (Some(false), before_authority, Some(unsynchronised), now),
        (None, before_authority, Some("ca-not-valid"), Some("ca-not-valid")),
    ];
    for (number, (kernel, moment, on_dates, on_names)) in cases.into_iter().enumerate() {
        for (index, name) in NAMES.iter().enumerate() {
            let young = |h: &mut Host| {
                h.clock_synchronised = kernel;
                h.now.uptime = MINUTE * 10;
                // Both were started a moment ago.
                h.service_since(MINUTE);
                moment(h);
            };
            let plan = complete(|h| {
                young(h);
                let now = h.now.wall;
                leaf(&mut h.cluster.certificates[index]).not_after = now - DAY;
            })
            .plan();
            let of =
                |plan: &Plan| plan.holds.iter().find(|h| h.code.to_string() != "settling").map(|h| h.code.to_string());
            assert_eq!(of(&plan).as_deref(), on_dates, "expiry, case {number}, {name}");
            assert_eq!(order_of(&plan, name).is_some(), on_dates.is_none(), "expiry, case {number}, {name}");
            let plan = complete(|h| {
                young(h);
                leaf(&mut h.cluster.certificates[index]).usage.is_ca = true;
            })
            .plan();
            let held = plan.holds.iter().any(|h| Some(h.code.to_string().as_str()) == on_names);
            let order = order_of(&plan, name);
            assert_eq!(
                (held, order.is_some()),
                (on_names.is_some(), on_names.is_none()),
                "names, case {number}, {name}"
            );
            let Some(order) = order else { continue };
            // Valid now or from the CA's start on, and after the clock has been set for a year.
            let host = complete(young);
            let signer = host.cluster.certificates[index].signer().expect("it can sign");
            assert_eq!(order.not_before, (host.now.wall - HOUR).max(signer.not_before), "case {number}");
            if kernel == Some(false) {
                let known = host.now.wall.max(host.state.written).max(signer.not_before);
                assert_eq!(order.not_after, known + DAY * 365, "case {number}");
            }
        }
    }
    // An hour after the start nobody sets the clock any more: what it says is what there is.
    let plan = complete(|h| {
        h.clock_synchronised = Some(false);
        h.state.written = h.now.wall + DAY;
        near_expiry(h);
    })
    .plan();
    assert_eq!((reasons(&plan), holds(&plan)), (vec!["near-expiry".to_owned()], vec![]));
}
