//! The tokens by which nodes may still join.
//!
//! In: the token files of the cluster-agent. Out: how many there are and when they end, never the tokens. The rule of this
//! file: what the cluster-agent would accept counts, and nothing else does.
//!
//! A line is `token` or `token|seconds since 1970` (`IsValidToken` of canonical/microk8s-cluster-agent); an end that is no
//! number makes the token worthless. `persistent-cluster-tokens.txt` has lines without an end. Tokens of
//! `certs-request-tokens.txt` and `callback-tokens.txt` do not count: whoever has one has joined, or is joining, and looks at
//! the certificate no more.

use std::path::PathBuf;

use crate::facts::Problem;
use crate::facts::cluster::JoinTokens;
use crate::facts::time::Timestamp;
use crate::observe::file;

/// Reads the token files.
pub fn read(paths: impl Iterator<Item = PathBuf>) -> JoinTokens {
    let mut tokens = JoinTokens::default();
    for path in paths {
        match file::read_bytes(&path) {
            Ok(bytes) => add(&mut tokens, &String::from_utf8_lossy(&bytes)),
            Err(error) if matches!(error.problem, Problem::Missing | Problem::Empty) => {}
            Err(error) => tokens.unreadable = Some(error),
        }
    }
    tokens
}

fn add(tokens: &mut JoinTokens, text: &str) {
    for line in text.lines().map(str::trim) {
        match line.split_once('|') {
            _ if line.is_empty() => {}
            None => tokens.lasting += 1,
            Some(("", _)) => {}
            // As many seconds as nobody lives to see are as good as no end.
            Some((_, end)) => match end.parse::<i64>() {
                Ok(end) if end > i64::MAX / 1000 => tokens.lasting += 1,
                Ok(end) => tokens.ends.push(Timestamp::from_seconds(end)),
                Err(_) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (usize, Vec<i64>) {
        let mut tokens = JoinTokens::default();
        add(&mut tokens, text);
        (tokens.lasting, tokens.ends.iter().map(|end| end.seconds()).collect())
    }

    #[test]
    fn what_the_cluster_agent_would_accept_counts() {
        assert_eq!(of("\none-time\n\n  spaced  \nexpiring|1800000000\r\n"), (2, vec![1_800_000_000]));
        assert_eq!(of("invalid|-10a\ninvalid|\ninvalid|1|2\n|1800000000\n|\n"), (0, vec![]));
        assert_eq!(of("past|-5\nfar|9223372036854775807\n"), (1, vec![-5]));
        assert_eq!(of(""), (0, vec![]));
    }

    #[test]
    fn no_file_is_no_token_and_an_unreadable_one_is_told() {
        let folder = std::env::temp_dir().join(format!("ipguard-tokens-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let (first, second) = (folder.join("cluster-tokens.txt"), folder.join("persistent-cluster-tokens.txt"));
        let read = || read([first.clone(), second.clone()].into_iter());
        assert_eq!(read(), JoinTokens::default());
        std::fs::write(&first, b"token\xff\n").expect("the folder is ours");
        std::fs::create_dir(&second).expect("the folder is ours");
        let tokens = read();
        assert_eq!(tokens.lasting, 1);
        assert!(tokens.unreadable.is_some());
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
