//! What the rules of the protocol promise about the sources: each is cited by the code that obeys it
//! and by the test that would catch its breaking.

use crate::sources::{Source, sources, workspace};
use std::collections::BTreeSet;
use std::fs;

const DOCUMENT: &str = "docs/protocol.md";
/// A search that finds no more than this has missed the tables.
const RULES_MIN: usize = 90;
/// What the number of a rule begins with.
const PREFIX: &str = "P-";
/// From here on a file is its own tests.
const OWN_TESTS: &str = "\n#[cfg(test)]\nmod tests {";

/// A row of the document's tables.
#[derive(Debug)]
struct Rule<'a> {
    number: u32,
    /// Under `crates/`.
    files: Vec<&'a str>,
    tests: Vec<&'a str>,
}

/// The rules, and the rows that look like one and are none.
fn rules(document: &str) -> (Vec<Rule<'_>>, Vec<&str>) {
    let (mut rules, mut broken) = (Vec::new(), Vec::new());
    for row in document.lines().filter(|line| line.starts_with("| P-")) {
        match rule(row) {
            Some(rule) => rules.push(rule),
            None => broken.push(row),
        }
    }
    (rules, broken)
}

fn rule(row: &str) -> Option<Rule<'_>> {
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    let ["", number, _, files, tests, ""] = cells[..] else {
        return None;
    };
    Some(Rule {
        number: number.strip_prefix(PREFIX)?.parse().ok()?,
        files: quoted(files),
        tests: quoted(tests),
    })
}

/// What is between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The numbers of the rules that a text cites.
fn cited(text: &str) -> BTreeSet<u32> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    text.split(|c| !is_inside(c))
        .filter_map(|word| word.strip_prefix(PREFIX)?.parse().ok())
        .collect()
}

/// The rules cited beside the code of a file: neither at its head nor in its own tests.
fn cited_by_code(file: &Source) -> BTreeSet<u32> {
    let code = file.text.split(OWN_TESTS).next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.starts_with("//!"));
    lines.flat_map(cited).collect()
}

/// The rules cited directly above each function of this name.
fn cited_above(text: &str, function: &str) -> Vec<BTreeSet<u32>> {
    let head = format!("fn {function}(");
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let is_above = |line: &&&str| line.starts_with("//") || line.starts_with('#');
    let found = lines.iter().enumerate();
    let found = found.filter(|(_, line)| line.starts_with(&head));
    found
        .map(|(index, _)| {
            let above = lines[..index].iter().rev().take_while(is_above);
            above.flat_map(|line| cited(line)).collect()
        })
        .collect()
}

fn document() -> String {
    fs::read_to_string(workspace().join(DOCUMENT)).unwrap()
}

#[track_caller]
fn expect_none(what: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{what}: {offenders:#?}");
}

#[test]
fn every_rule_has_a_number_of_its_own_a_file_and_a_test() {
    let document = document();
    let (rules, broken) = rules(&document);
    assert!(broken.is_empty(), "rows that are no rule: {broken:#?}");
    assert!(rules.len() > RULES_MIN, "{} rules found", rules.len());
    let mut seen = BTreeSet::new();
    let again = rules.iter().filter(|rule| !seen.insert(rule.number));
    let again: Vec<_> = again.map(|rule| format!("P-{}", rule.number)).collect();
    expect_none("numbers given twice", &again);
    let bare = rules
        .iter()
        .filter(|rule| rule.files.is_empty() || rule.tests.is_empty());
    let bare: Vec<_> = bare.map(|rule| format!("P-{}", rule.number)).collect();
    expect_none("rules without a file or without a test", &bare);
}

#[test]
fn the_code_that_obeys_a_rule_cites_it() {
    let (document, sources) = (document(), sources());
    let mut wrong = Vec::new();
    for rule in rules(&document).0 {
        for name in rule.files {
            let path = format!("crates/{name}");
            match sources.iter().find(|source| source.path == path) {
                None => wrong.push(format!("P-{}: there is no {path}", rule.number)),
                Some(file) if !cited_by_code(file).contains(&rule.number) => {
                    wrong.push(format!("P-{} is not cited in {path}", rule.number));
                }
                Some(_) => {}
            }
        }
    }
    expect_none("files of rules", &wrong);
}

#[test]
fn the_test_of_a_rule_cites_it() {
    let (document, sources) = (document(), sources());
    let mut wrong = Vec::new();
    for rule in rules(&document).0 {
        for name in rule.tests {
            let mut is_there = false;
            for source in sources.iter().filter(|source| source.text.contains(name)) {
                for above in cited_above(&source.text, name) {
                    is_there = true;
                    if !above.contains(&rule.number) {
                        let path = &source.path;
                        wrong.push(format!(
                            "P-{} is not cited by {name} in {path}",
                            rule.number
                        ));
                    }
                }
            }
            if !is_there {
                wrong.push(format!("P-{}: there is no test {name}", rule.number));
            }
        }
    }
    expect_none("tests of rules", &wrong);
}

#[test]
fn what_is_cited_is_a_rule() {
    let document = document();
    let known: BTreeSet<u32> = rules(&document).0.iter().map(|rule| rule.number).collect();
    let mut wrong = Vec::new();
    for source in sources() {
        let unknown: Vec<_> = cited(&source.text).difference(&known).copied().collect();
        if !unknown.is_empty() {
            wrong.push(format!("{}: P-{unknown:?}", source.path));
        }
    }
    expect_none("numbers that no rule has", &wrong);
}

#[test]
fn a_citation_is_a_whole_word_at_the_right_place() {
    let numbers = |text| cited(text).into_iter().collect::<Vec<_>>();
    assert_eq!(numbers("(P-28 and P-29), P-9."), [9, 28, 29]);
    assert_eq!(numbers("// F-4, P-13: in time"), [13]);
    assert!(cited("UP-1 P-2x P-3-4 xP-5 P- P-six").is_empty());
    let file = Source {
        path: String::new(),
        text: "//! P-1\n// P-2\nfn f() {}\n#[cfg(test)]\nmod tests {\n    // P-3\n}".to_owned(),
        code: String::new(),
    };
    assert_eq!(cited_by_code(&file), BTreeSet::from([2]));
    let text = "// P-4\n\n/// P-5: why\n#[test]\n#[ignore]\nfn tried() {\n    // P-6\n}\nfn tried_again() {}";
    assert_eq!(cited_above(text, "tried"), [BTreeSet::from([5])]);
    assert!(cited_above(text, "gone").is_empty());
}
