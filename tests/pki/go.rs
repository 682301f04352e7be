//! `tests/go/verify.go`: built once for each run of the tests, and run once for all cases.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use crate::skipped::skipped;

/// The program, built when it is first asked for. `None`, and said so, where there is no Go.
pub(crate) fn program() -> Option<&'static Path> {
    static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(build);
    let program = PROGRAM.as_deref();
    if program.is_none() {
        skipped("go not found");
    }
    program
}

fn build() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verify");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/verify.go");
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        // Only the standard library is needed, and nothing is fetched.
        .envs([("GO111MODULE", "off"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("CGO_ENABLED", "0")])
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
        .output();
    let output = output.ok()?;
    assert!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The verdicts on the cases, in their order.
pub(crate) fn judge(program: &Path, cases: &[Value]) -> Vec<Value> {
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was just built");
    let cases = serde_json::to_vec(cases).expect("it is text");
    let mut input = child.stdin.take().expect("it is piped");
    // It reads all of its input before it writes.
    input.write_all(&cases).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}
