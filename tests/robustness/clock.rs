//! Hosts whose clock nobody has set yet: a board without a battery, a virtual machine that was asleep.
//!
//! The real binary under a clock of its own (`clock.c`): what the kernel says of the clock and the time itself are the
//! test's, everything else is the host's.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rcgen::{DnType, KeyPair};

use crate::host::{A_WHILE, Host, SOON, Setup, Usage, expect, is_calm, same, until};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::authority::Authority;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "clock::before-the-ca-begins", play: before_the_ca, patience: 60 },
    Case { name: "clock::behind-what-the-host-has-seen", play: behind, patience: 60 },
    Case { name: "clock::unsynchronised-and-plausible", play: plausible, patience: 40 },
    Case { name: "clock::the-host-slept-beyond-a-renewal", play: slept, patience: 60 },
];

const DAY: i64 = 86_400;

/// What the kernel says of its clock: the status bits of adjtimex(2).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kernel {
    Synchronised = 0,
    Unsynchronised = 0x40,
}

/// A clock for the guard alone.
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// Gives the host's guard a clock. `None` without a C compiler.
    pub(crate) fn of(host: &mut Host, kernel: Kernel, days_off: i64) -> Result<Option<Self>> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/robustness/clock.c");
        let (library, file) = (host.tree.path("state/clock.so"), host.tree.path("state/clock"));
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
        let Ok(built) = built else { return Ok(None) };
        expect(built.status.success(), String::from_utf8_lossy(&built.stderr))?;
        let variables = [("LD_PRELOAD", library.into_os_string()), ("CLOCK_FILE", file.clone().into_os_string())];
        host.guard.environment.extend(variables.map(|(name, value)| (name.into(), value)));
        let clock = Self(file);
        mkfifo(&clock.0.with_extension("set"), Mode::S_IRWXU)?;
        clock.set(kernel, days_off)?;
        Ok(Some(clock))
    }

    /// Sets it under a running guard, which hears of it as from the kernel.
    fn step(&self, kernel: Kernel, days_off: i64) -> Result<()> {
        self.set(kernel, days_off)?;
        Ok(fs::OpenOptions::new().write(true).open(self.0.with_extension("set"))?.write_all(b"!")?)
    }

    /// Sets it, in one go.
    fn set(&self, kernel: Kernel, days_off: i64) -> Result<()> {
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{} {}\n", kernel as i32, days_off * DAY))?;
        Ok(fs::rename(new, &self.0)?)
    }
}

pub(crate) fn no_compiler() -> Result<()> {
    skip("there is no C compiler")
}

/// A CA and a server certificate by it that is valid between two days, counted from today.
fn certificates(host: &mut Host, ca_from: i64, (from, to): (i64, i64)) -> Result<()> {
    let authority = Authority::valid_from(ca_from)?;
    host.tree.write("ca.crt", &authority.certificate_pem)?;
    host.tree.write("ca.key", &authority.key_pem)?;
    let key = KeyPair::from_pem(&fs::read_to_string(host.tree.data("certs/server.key"))?)?;
    let microk8s = [(DnType::CommonName, "127.0.0.1")];
    let certificate = authority.sign_for(&microk8s, &key, &Setup::default().spec.sans, (from, to))?;
    host.tree.write("server.crt", &certificate)?;
    host.restart_watchers()
}

/// Start and end of the certificate on disk, in days from today.
fn validity(host: &Host) -> Result<(f64, f64)> {
    let text = fs::read(host.tree.server_certificate())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text)?;
    let validity = pem.parse_x509()?.validity().clone();
    let now = x509_parser::time::ASN1Time::now().timestamp();
    #[allow(clippy::cast_precision_loss, reason = "days")]
    let days = |time: x509_parser::time::ASN1Time| (time.timestamp() - now) as f64 / DAY as f64;
    Ok((days(validity.not_before), days(validity.not_after)))
}

/// The clock is two days behind and the CA is from yesterday: its and the certificate's start lie ahead.
fn before_the_ca(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    certificates(&mut host, -1, (-1, 355))?;
    let Some(clock) = Clock::of(&mut host, Kernel::Unsynchronised, -2)? else { return no_compiler() };
    let daemon = host.daemon()?;
    host.await_said("clock-unsynchronised")?;
    host.nothing_happens(A_WHILE)?;
    same("reissues for dates that nobody can judge", &host.reissues(), &0)?;
    // A name that is missing does not wait, and what is made is valid now and when the clock is right.
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    let (from, to) = validity(&host)?;
    expect((-1.01..=-0.99).contains(&from), format!("begins with the CA: {from} days from now"))?;
    expect(to > 363.0, format!("ends a year behind what has surely passed: {to} days from now"))?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    // The clock is set: everything is in step, and nothing was lost by waiting.
    clock.step(Kernel::Synchronised, 0)?;
    host.await_said("the clock was set")?;
    host.nothing_happens(A_WHILE)?;
    same("exit status of check", &host.once(&["check"])?.status.code(), &Some(0))?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // The kernel stands by that time: then it is the CA that is wrong, and nothing can be made with it.
    clock.set(Kernel::Synchronised, -2)?;
    host.add("198.51.101.7")?;
    let printed = host.once(&["check", "--apply"])?;
    expect(printed.stdout.contains("ca-not-valid"), &printed.stdout)?;
    expect(!host.covers("198.51.101.7"), "nothing is made")
}

/// The host was up yesterday, and its clock starts a month earlier: the certificate that it made yesterday has not begun.
fn behind(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    certificates(&mut host, -90, (-300, 20))?;
    let Some(clock) = Clock::of(&mut host, Kernel::Synchronised, 0)? else { return no_compiler() };
    // It is near its end, so it is renewed, and remembered when.
    let daemon = host.daemon()?;
    until("renewed", SOON, || validity(&host).is_ok_and(|(_, to)| to > 360.0))?;
    host.await_restarts((0, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let renewed = fs::read(host.tree.server_certificate())?;
    clock.set(Kernel::Unsynchronised, -30)?;
    // An hour after the start nobody sets a clock any more. (The services' start times stay on the real one, so that they
    // seem to have started later than everything: nobody is restarted from here on.)
    host.guard.environment.push(("UPTIME_SECONDS".into(), "60".into()));
    let daemon = host.daemon()?;
    host.await_said("clock-unsynchronised")?;
    host.nothing_happens(A_WHILE)?;
    same("the certificate", &fs::read(host.tree.server_certificate())?, &renewed)?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    let (from, to) = validity(&host)?;
    // Valid on the clock as it is and as it will be.
    expect(from <= -30.0, format!("begins {from} days from now"))?;
    expect(to > 364.0, format!("ends {to} days from now"))?;
    clock.step(Kernel::Synchronised, 0)?;
    host.await_said("the clock was set")?;
    host.nothing_happens(A_WHILE)?;
    same("exit status of check", &host.once(&["check"])?.status.code(), &Some(0))?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Nothing speaks against the time but that nobody vouches for it, as on a host without NTP: renewal goes on.
fn plausible(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    certificates(&mut host, -90, (-40, -10))?;
    if Clock::of(&mut host, Kernel::Unsynchronised, 0)?.is_none() {
        return no_compiler();
    }
    let daemon = host.daemon()?;
    until("renewed", SOON, || validity(&host).is_ok_and(|(_, to)| to > 360.0))?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A resume is a clock that is set: it goes on by the time asleep while the other one stood still. What has come due
/// meanwhile is done at once and without any other event, and an idle daemon is not woken in between.
fn slept(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    certificates(&mut host, -90, (-90, 275))?;
    let Some(clock) = Clock::of(&mut host, Kernel::Synchronised, 0)? else { return no_compiler() };
    let daemon = host.daemon()?;
    sleep(Duration::from_secs(1));
    let before = Usage::of(&daemon)?.wakeups;
    host.nothing_happens(A_WHILE * 2)?;
    same("wakeups of an idle daemon", &(Usage::of(&daemon)?.wakeups - before), &0)?;
    // Two hundred days asleep: less than a third of its life is left.
    clock.step(Kernel::Synchronised, 200)?;
    until("renewed", SOON, || validity(&host).is_ok_and(|(_, to)| to > 560.0))?;
    host.await_restarts((0, 1))?;
    // Asleep again: nothing is due, and nothing spins.
    clock.step(Kernel::Synchronised, 201)?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
