//! `tests/go/verify.go`: built once for each run of the tests, and run once for all cases.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Builds the program into a folder. `None`, and said so, where there is no Go.
pub(crate) fn build(folder: &Path) -> Option<std::path::PathBuf> {
    let program = folder.join("verify");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/verify.go");
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        // Only the standard library is needed, and nothing is fetched.
        .envs([("GO111MODULE", "off"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("CGO_ENABLED", "0")])
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: go not found");
        return None;
    };
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
