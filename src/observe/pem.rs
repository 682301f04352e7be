//! PEM files (RFC 7468): reading them with a limit, and their blocks.
//!
//! In: a path, or the bytes of a file. Out: blocks with their label and DER. The rule of this file: every byte that may
//! belong to a private key lives in memory that is wiped, so nothing here grows a buffer (a reallocation would leave a
//! copy behind). That, the byte order mark, and saying "encrypted" instead of "nothing found" are why it is not left to
//! a general reader.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

use crate::facts::{Problem, Read, ReadError};
use crate::observe::file;

/// A certificate file of a cluster has a few kilobytes. More than this is a mistake or an attack on our memory.
const LARGEST_FILE: u64 = 1024 * 1024;

/// The byte order mark some editors put before UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One block of a PEM file.
pub struct Block {
    /// The words after BEGIN: `CERTIFICATE`.
    pub label: String,
    /// Whether its headers say that the content is encrypted (RFC 1421 section 4.6.1.1, OpenSSL's traditional form).
    pub encrypted: bool,
    /// Whether BEGIN is the first thing on its line. Go's decoder finds no other, so a server written in Go does not
    /// see a block after a byte order mark or an indented one.
    pub at_line_start: bool,
    /// What the base64 text stands for; `Err` says why it stands for nothing.
    pub der: Result<Zeroizing<Vec<u8>>, &'static str>,
}

/// The content may be a private key and is never printed.
impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:?}, {:?})", self.label, self.der.as_ref().map(|der| der.len()))
    }
}

/// Reads a whole regular file.
///
/// # Errors
/// Missing, empty, too large, not a regular file, or refused by the kernel.
pub fn read_file(path: &Path) -> Read<(Zeroizing<Vec<u8>>, Metadata)> {
    let unreadable = |why: &str| ReadError { path: path.to_owned(), problem: Problem::Unreadable(why.to_owned()) };
    let (bytes, metadata) = match read_bounded(path) {
        Ok(Some(read)) => read,
        Ok(None) => return Err(unreadable("it is not a regular file of at most 1 MiB")),
        Err(error) => return Err(file::unopened(path, &error)),
    };
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(ReadError { path: path.to_owned(), problem: Problem::Empty });
    }
    Ok((bytes, metadata))
}

fn read_bounded(path: &Path) -> io::Result<Option<(Zeroizing<Vec<u8>>, Metadata)>> {
    // Looked at before it is opened, too: to open a device can be an act of its own (a watchdog starts to count).
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_symlink() {
        return Ok(None);
    }
    let mut file = file::open_itself(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > LARGEST_FILE {
        return Ok(None);
    }
    // One byte more than the file had: a read that fills the buffer shows that it is growing under our hands.
    let room = usize::try_from(metadata.len()).expect("a megabyte fits into usize") + 1;
    let mut bytes = Zeroizing::new(vec![0; room]);
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled == room {
            return Err(io::Error::other("it changed while it was read"));
        }
    }
    bytes.truncate(filled);
    Ok(Some((bytes, metadata)))
}

/// The blocks of a file in order. Text around them is ignored, as every reader of PEM does.
pub fn blocks(file: &[u8]) -> Vec<Block> {
    let marked = file.starts_with(BYTE_ORDER_MARK);
    let text = file.strip_prefix(BYTE_ORDER_MARK).unwrap_or(file);
    let mut found = Vec::new();
    let mut open: Option<Open> = None;
    let mut rest = text;
    // A lone carriage return ends a line too, so that CRLF needs no case of its own.
    for (number, line) in text.split(|&byte| byte == b'\n' || byte == b'\r').enumerate() {
        let trimmed = line.trim_ascii();
        rest = rest.get(line.len() + 1..).unwrap_or_default();
        if let Some(label) = between(trimmed, b"-----BEGIN ") {
            found.extend(open.take().map(|block| block.close(Some("the block has no END line"))));
            let at_line_start = line.starts_with(b"-----BEGIN ") && !(marked && number == 0);
            open = Some(Open::new(label, at_line_start, room(rest)));
        } else if let Some(label) = between(trimmed, b"-----END ") {
            let wrong = open.as_ref().is_some_and(|block| block.label.as_bytes() != label);
            let why = wrong.then_some("the END line names another kind than the BEGIN line");
            found.extend(open.take().map(|block| block.close(why)));
        } else if let Some(block) = &mut open {
            block.line(trimmed);
        }
    }
    found.extend(open.map(|block| block.close(Some("the block has no END line"))));
    found
}

/// How many bytes the block that begins here can have: up to the next mark. The whole file would do, but a hostile file
/// of many BEGIN lines would have us wipe it as often.
fn room(rest: &[u8]) -> usize {
    rest.windows(5).position(|window| window == b"-----").unwrap_or(rest.len())
}

/// The label of a line that begins a block or ends one.
fn between<'a>(line: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(start)?.strip_suffix(b"-----")
}

/// A block whose END line has not come yet.
struct Open {
    label: String,
    encrypted: bool,
    at_line_start: bool,
    base64: Zeroizing<Vec<u8>>,
    /// A mark stood inside a line, so what came behind it was not taken in.
    overrun: bool,
}

impl Open {
    fn new(label: &[u8], at_line_start: bool, room: usize) -> Self {
        Self {
            label: String::from_utf8_lossy(label).into_owned(),
            encrypted: label.starts_with(b"ENCRYPTED "),
            at_line_start,
            base64: Zeroizing::new(Vec::with_capacity(room)),
            overrun: false,
        }
    }

    fn line(&mut self, line: &[u8]) {
        // A colon is no base64 digit: the line is a header, `Proc-Type: 4,ENCRYPTED` for one.
        if line.contains(&b':') {
            self.encrypted |= line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED");
        } else if line.len() > self.base64.capacity() - self.base64.len() {
            self.overrun = true;
        } else {
            self.base64.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace()));
        }
    }

    fn close(self, why: Option<&'static str>) -> Block {
        let der = match why {
            Some(why) => Err(why),
            None => Some(&self.base64)
                .filter(|_| !self.overrun)
                .and_then(|text| decode(text))
                .ok_or("the block is not base64 text"),
        };
        Block { label: self.label, encrypted: self.encrypted, at_line_start: self.at_line_start, der }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648 section 4), without the white space.
pub(crate) fn decode(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let digits = text.get(..text.len() - padding).filter(|_| padding <= 2)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 4 * 3));
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for &digit in group {
            bits = bits << 6 | u32::from(value(digit)?);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// One block as text, in lines of 64 characters (RFC 7468 section 2).
pub fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let digits = der.len().div_ceil(3) * 4;
    let mut text = Zeroizing::new(String::with_capacity(digits + digits / 64 + 2 * label.len() + 64));
    text.push_str("-----BEGIN ");
    text.push_str(label);
    text.push_str("-----\n");
    // 48 bytes are 64 digits.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let mut bytes = [0; 4];
            bytes[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(bytes);
            for place in 0..4 {
                let digit = ALPHABET[(bits >> (18 - 6 * place) & 0x3f) as usize];
                text.push(if place <= group.len() { digit as char } else { '=' });
            }
        }
        text.push('\n');
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Vec<Result<Vec<u8>, &'static str>> {
        blocks(text.as_bytes()).into_iter().map(|block| block.der.map(|der| der.to_vec())).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [1, 2, 3, 47, 48, 49, 1000] {
            let der: Vec<u8> = (0..length).map(|n: usize| (n * 7 % 256).try_into().expect("below 256")).collect();
            let text = encode("CERTIFICATE", &der);
            assert_eq!(content(&text), [Ok(der)]);
            assert!(text.lines().all(|line| line.len() <= 64), "{}", *text);
            assert!(text.capacity() <= text.len() + 64, "the buffer was grown, or is far too large");
        }
    }

    #[test]
    fn base64_is_the_one_of_the_rfc() {
        // RFC 4648 section 10.
        for (bytes, digits) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(decode(digits.as_bytes()).expect("it is base64").as_slice(), bytes.as_bytes());
            assert!(encode("X", bytes.as_bytes()).contains(&format!("\n{digits}\n")));
        }
        for bad in ["", "Zg", "Zg=", "Zg=x", "Z===", "====", "Zm9v\u{0}", "Zm-v"] {
            assert!(decode(bad.as_bytes()).is_none(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn text_marks_and_line_ends_around_a_block_do_not_matter() {
        let plain = encode("X", b"foo");
        let inside = plain.replace('\n', "\r\n");
        assert_eq!(content(&format!("subject=CN = x\r\n{inside}\r\ntrailing")), [Ok(b"foo".to_vec())]);
        assert_eq!(content(&format!("\u{feff}{}", *plain)), [Ok(b"foo".to_vec())]);
        assert_eq!(content(&plain.replace('\n', "\n  ")), [Ok(b"foo".to_vec())]);
    }

    #[test]
    fn a_block_go_cannot_find_is_told_apart() {
        let plain = encode("X", b"foo");
        let at_start = |text: String| blocks(text.as_bytes())[0].at_line_start;
        assert!(at_start(plain.to_string()));
        assert!(at_start(format!("\u{feff}text\n{}", *plain)));
        assert!(!at_start(format!("\u{feff}{}", *plain)));
        assert!(!at_start(format!("  {}", *plain)));
    }

    #[test]
    fn broken_blocks_say_how() {
        assert_eq!(content("-----BEGIN X-----\nZm9v\n"), [Err("the block has no END line")]);
        let second = "-----BEGIN X-----\nZm9v\n-----BEGIN X-----\nZm9v\n-----END X-----";
        assert_eq!(content(second), [Err("the block has no END line"), Ok(b"foo".to_vec())]);
        assert!(content("-----BEGIN X-----\nZm9v\n-----END Y-----")[0].is_err());
        assert!(content("-----BEGIN X-----\n\n-----END X-----")[0].is_err());
        assert!(content("-----END X-----\n-----BEGIN -----\n")[0].is_err());
        assert!(content("").is_empty());
    }

    #[test]
    fn a_file_of_beginnings_takes_no_time_and_a_mark_inside_a_line_no_room() {
        let began = std::time::Instant::now();
        let hostile = "-----BEGIN X-----\n".repeat(1024 * 1024 / 18);
        assert_eq!(blocks(hostile.as_bytes()).len(), 1024 * 1024 / 18);
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
        let inside = format!("-----BEGIN X-----\nZm9v-----\n{}-----END X-----\n", "Zm9v\n".repeat(100));
        assert!(content(&inside)[0].is_err());
    }

    #[test]
    fn the_content_is_never_printed() {
        let text = encode("PRIVATE KEY", &[0xab; 40]);
        assert_eq!(format!("{:?}", blocks(text.as_bytes())), r#"[Block("PRIVATE KEY", Ok(40))]"#);
    }

    #[test]
    fn encryption_is_seen_in_both_forms() {
        let legacy = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nZm9v\n-----END RSA PRIVATE KEY-----";
        assert!(blocks(legacy.as_bytes())[0].encrypted);
        assert!(blocks(encode("ENCRYPTED PRIVATE KEY", b"x").as_bytes())[0].encrypted);
        assert!(!blocks(encode("PRIVATE KEY", b"x").as_bytes())[0].encrypted);
    }
}
