//! Clocks that are set while the host runs, and boots in the past.

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

/// A state from a clock that ran years ahead, in another boot: no wait is longer than it should be.
#[test]
fn what_lies_ahead_holds_nothing_for_longer_than_a_limit() {
    let mut host = renumbered(|h| {
        for _ in 0..3 {
            let at = h.now.wall;
            h.state.restarts.push(Restart { at, service: "kubelite".to_owned(), reason: "a test".to_owned() });
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
