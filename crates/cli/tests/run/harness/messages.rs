//! What Legato says is what docs/troubleshooting.md says that it says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

const DOCUMENT: &str = include_str!("../../../../../docs/troubleshooting.md");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run");
/// How a table of messages begins.
const HEAD: &str = "| message |";
/// The table of reasons, and what stands for any of them at the end of a message.
const REASONS: &str = "### Why there is no agent";
const WHY: &str = "WHY";
const LOG: &str = "## The log of a node";
/// A text of so many bytes may be the beginning of a row by accident.
const SHORT: usize = 8;
/// Stand for what differs.
const WORDS: [&str; 16] = [
    "ADDR", "COMMAND", "FILE", "N", "NAME", "NAMES", "OPTION", "PID", "PLACE", "PROG", "REASON",
    "SIZE", "TEXT", "TIME", "WHAT", WHY,
];

/// A message as the document has it.
#[derive(Debug)]
struct Row {
    section: &'static str,
    text: &'static str,
    /// What is in it between the words that stand for something.
    parts: Vec<&'static str>,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let (mut section, mut is_table) = ("", false);
    let mut rows = Vec::new();
    for line in DOCUMENT.lines() {
        if line.starts_with('#') {
            section = line;
        }
        is_table = line.starts_with(HEAD) || (is_table && line.starts_with('|'));
        if let (true, Some(text)) = (is_table, line.split('`').nth(1)) {
            let parts = parts(text);
            rows.push(Row {
                section,
                text,
                parts,
            });
        }
    }
    rows
});

fn parts(text: &'static str) -> Vec<&'static str> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        if WORDS.contains(&bare) {
            parts.push(&text[begin..at]);
            begin = at + bare.len();
        }
        at += word.len();
    }
    parts.push(&text[begin..]);
    parts
}

impl Row {
    fn matches(&self, said: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return said == self.text;
        };
        let Some(mut rest) = said.strip_prefix(first) else {
            return false;
        };
        for part in middle {
            // A word stands for one character at least.
            let Some(at) = rest.get(1..).and_then(|rest| rest.find(part)) else {
                return false;
            };
            rest = &rest[1 + at + part.len()..];
        }
        if self.text.ends_with(WHY) {
            let mut reasons = ROWS.iter().filter(|row| !row.text.ends_with(WHY));
            return reasons.any(|reason| reason.matches(rest));
        }
        rest.len() > last.len() && rest.ends_with(last)
    }

    /// Whether a line of standard error is this message, or has it as its reason.
    fn is(&self, line: &str) -> bool {
        if self.section == LOG {
            return of_log(line).is_some_and(|said| self.matches(said));
        }
        of_legato(line).is_some_and(|said| {
            let mut wholes = ROWS.iter().filter(|row| row.text.ends_with(WHY));
            let is_reason =
                |whole: &Self| whole.reason_in(said).is_some_and(|why| self.matches(why));
            (self.section != REASONS && self.matches(said)) || wholes.any(is_reason)
        })
    }

    /// What stands for WHY.
    fn reason_in<'a>(&self, said: &'a str) -> Option<&'a str> {
        let before = self.parts[self.parts.len() - 2];
        said.split_once(before).map(|(_, why)| why)
    }
}

fn of_legato(line: &str) -> Option<&str> {
    line.strip_prefix("legato: ")
}

/// Of a line of a log at a level that somebody should look at.
fn of_log(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once("Z ")?;
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("WARN ").or(rest.strip_prefix("ERROR "))?;
    let (module, said) = rest.split_once(": ")?;
    (time.starts_with("20") && module.starts_with("legato")).then_some(said)
}

/// Every message among these lines has its row.
#[track_caller]
pub(crate) fn expect_known(stderr: &str) {
    for line in stderr.lines() {
        let is_message = of_legato(line).is_some() || of_log(line).is_some();
        assert!(
            !is_message || ROWS.iter().any(|row| row.is(line)),
            "docs/troubleshooting.md has no row for: {line}"
        );
    }
}

/// The one row that begins so.
fn row(begin: &str) -> Option<&'static Row> {
    let mut rows = ROWS.iter().filter(|row| row.text.starts_with(begin));
    let first = rows.next();
    first.filter(|_| rows.next().is_none())
}

/// Among these lines is the message whose row begins so.
pub(crate) fn is_told(stderr: &str, begin: &str) -> bool {
    let row = row(begin).unwrap_or_else(|| {
        panic!("docs/troubleshooting.md has not one row that begins with: {begin}")
    });
    stderr.lines().any(|line| row.is(line))
}

#[track_caller]
pub(crate) fn expect_told(stderr: &str, begin: &str) {
    expect_known(stderr);
    assert!(
        is_told(stderr, begin),
        "not told: {begin}...\nbut: {stderr}"
    );
}

/// The command says this one line and prints nothing.
#[track_caller]
pub(crate) fn expect_refused(command: &mut Command, code: i32, row: &str) -> String {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = (output.status.code(), told.lines().count());
    assert_eq!(found, (Some(code), 1), "{told}");
    assert_eq!(output.stdout, b"", "{told}");
    expect_told(&told, row);
    told
}

/// Every row begins with a text in the sources of these tests that no other row begins with, and so do all that
/// are given up.
#[track_caller]
pub(crate) fn expect_all_tried<'a>(given_up: impl Iterator<Item = &'a str>) {
    let mut tried = BTreeSet::new();
    for file in sources(Path::new(SOURCES)) {
        let source = std::fs::read_to_string(file).unwrap();
        let texts = source.split('"').filter(|text| text.len() > SHORT);
        tried.extend(texts.filter_map(row).map(|row| row.text));
    }
    assert!(ROWS.len() > 100, "{}", ROWS.len());
    let rows = ROWS.iter().map(|row| row.text);
    let untried: Vec<_> = rows.filter(|text| !tried.contains(text)).collect();
    assert!(untried.is_empty(), "no test tells: {untried:#?}");
    let unknown: Vec<_> = given_up.filter(|begin| row(begin).is_none()).collect();
    assert!(unknown.is_empty(), "of no row: {unknown:#?}");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let found = paths.map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    found.flatten().collect()
}
