//! Colours: on a terminal, and only there; never where somebody has set `NO_COLOR` (<https://no-color.org>). The real
//! binary on a real pseudo-terminal.

mod stage;

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

use nix::pty::openpty;

use stage::Result;
use stage::secrets::stay_secret;
use stage::services;
use stage::timeline::Timeline;
use stage::tree::{Tree, TreeSpec};

/// The beginning of every escape sequence.
const ESCAPE: char = '\u{1b}';

/// What prints for people, and whether there is something to paint in it.
const COMMANDS: [(&[&str], bool); 8] = [
    (&["explain"], true),
    (&["explain", "203.0.113.50"], true),
    (&["check"], true),
    // For programs, whatever it is written to.
    (&["explain", "--format", "json"], false),
    (&["check", "--format", "json"], false),
    (&["ips"], false),
    (&["--help"], false),
    (&["config", "show"], false),
];

/// A tree with a certificate to report and a pin to explain, whatever the machine's own addresses are.
fn tree() -> Result<Tree> {
    let names = ["DNS:kubernetes", "127.0.0.1", "10.152.183.1"].map(str::to_owned).into();
    let tree = Tree::create(&TreeSpec { sans: names, ..TreeSpec::default() }, false)?;
    services::install(tree.root())?;
    std::fs::write(tree.path("etc/ipguard/ipguard.toml"), "[addresses]\npin = [\"203.0.113.50\"]\n")?;
    Ok(tree)
}

fn command(tree: &Tree, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipguard"));
    command.env_clear().env("TERM", "xterm-256color").envs(environment.iter().copied());
    command.args(arguments).args(["--log-level", "trace", "--root"]).arg(tree.root()).stdin(Stdio::null());
    command
}

/// What a command writes to a terminal, and what else it says while standard error is one too, or is not.
fn on_a_terminal(tree: &Tree, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(String, String)> {
    let (out, err) = (openpty(None, None)?, openpty(None, None)?);
    let mut child = command(tree, arguments, environment).stdout(out.slave).stderr(err.slave).spawn()?;
    // The command object, and our own ends of what it writes to, are gone: the child has the only ones.
    let read = |master| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // The end of a terminal is EIO; what came before is all there is.
            let _ = File::from(master).read_to_end(&mut text);
            String::from_utf8_lossy(&text).replace("\r\n", "\n")
        })
    };
    let (out, err) = (read(out.master), read(err.master));
    child.wait()?;
    Ok((out.join().map_err(|_| "a reader panicked")?, err.join().map_err(|_| "a reader panicked")?))
}

fn in_a_pipe(tree: &Tree, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(String, String)> {
    let output = command(tree, arguments, environment).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(output.stdout), text(output.stderr)))
}

/// Without `ESC [ ... m`, the only sequences that change nothing but the colour.
fn unpainted(text: &str) -> String {
    let mut parts = text.split(ESCAPE);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let codes = part.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        let (codes, rest) = codes.unwrap_or_else(|| panic!("not a colour: {part:?}"));
        assert!(codes.chars().all(|c| c.is_ascii_digit() || c == ';'), "not a colour: {part:?}");
        plain.push_str(rest);
    }
    plain
}

/// Every time and age is another one the next time.
fn timeless(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

#[test]
fn colours_are_for_terminals_and_for_nobody_who_set_no_color() -> Result<()> {
    let (tree, timeline) = (tree()?, Timeline::start());
    for (arguments, painted) in COMMANDS {
        let (plain, said) = in_a_pipe(&tree, arguments, &[])?;
        assert!(!plain.contains(ESCAPE) && !said.contains(ESCAPE), "{arguments:?} paints a pipe: {plain}{said}");
        assert!(!plain.is_empty(), "{arguments:?} prints nothing: {said}");

        let (colourful, log) = on_a_terminal(&tree, arguments, &[])?;
        assert_eq!(colourful.contains(ESCAPE), painted, "{arguments:?} on a terminal: {colourful}");
        assert_eq!(timeless(&unpainted(&colourful)), timeless(&plain), "{arguments:?}: the same words");

        for value in ["1", "0", "no"] {
            let (text, log) = on_a_terminal(&tree, arguments, &[("NO_COLOR", value)])?;
            assert!(!text.contains(ESCAPE), "{arguments:?} with NO_COLOR={value}: {text}");
            assert!(!log.contains(ESCAPE), "{arguments:?} with NO_COLOR={value}: the log: {log}");
            assert_eq!(timeless(&text), timeless(&plain), "{arguments:?}: the same words");
        }
        // Set to nothing is not set.
        let (text, _) = on_a_terminal(&tree, arguments, &[("NO_COLOR", "")])?;
        assert_eq!(text.contains(ESCAPE), painted, "{arguments:?} with an empty NO_COLOR: {text}");
        // Nobody can ask for colours in a pipe, and a terminal for the log makes none of standard output.
        let (text, _) = in_a_pipe(&tree, arguments, &[("CLICOLOR_FORCE", "1"), ("FORCE_COLOR", "1")])?;
        assert!(!text.contains(ESCAPE), "{arguments:?}: {text}");
        let err = openpty(None, None)?;
        let output = command(&tree, arguments, &[]).stderr(err.slave).stdout(Stdio::piped()).output()?;
        assert!(!output.stdout.contains(&0x1b), "{arguments:?}: a terminal on standard error alone paints");
        for text in [plain, said, colourful, log] {
            timeline.note("ipguard", text);
        }
    }
    stay_secret(&tree, &timeline)
}
