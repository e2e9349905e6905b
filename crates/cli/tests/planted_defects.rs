//! The defects that `scripts/planted-defects` plants can still be planted, and are documented.
#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

/// A patch, as `diff -u` writes them, after some lines of text.
#[derive(Debug)]
struct Defect {
    name: String,
    text: String,
}

impl Defect {
    /// The packages and names of the tests that must notice it.
    fn noticed_by(&self) -> Vec<(&str, &str)> {
        let mut lines = self.text.lines();
        let tests = lines.find_map(|line| line.strip_prefix("Noticed by: "));
        let tests = tests.unwrap_or_else(|| panic!("{}: no line \"Noticed by: \"", self.name));
        tests
            .split(", ")
            .map(|test| test.split_once(' ').expect("a package and a test"))
            .collect()
    }

    /// Of each hunk, the file and what must stand there.
    fn hunks(&self) -> Vec<(String, String)> {
        let mut file = String::new();
        let mut hunks: Vec<(String, String)> = Vec::new();
        for line in self.text.lines() {
            if let Some(path) = line.strip_prefix("--- a/") {
                path.clone_into(&mut file);
            } else if line.starts_with("+++ ") {
                // The same file.
            } else if line.starts_with("@@ ") {
                hunks.push((file.clone(), String::new()));
            } else if let Some((_, before)) = hunks.last_mut()
                && !line.starts_with('+')
            {
                before.push_str(line.get(1..).unwrap_or_default());
                before.push('\n');
            }
        }
        hunks
    }
}

fn defects() -> Vec<Defect> {
    let directory = workspace().join("scripts/defects");
    let entries = fs::read_dir(directory).unwrap().flatten();
    let patches = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "patch"));
    let read = |entry: fs::DirEntry| Defect {
        name: entry
            .path()
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned(),
        text: fs::read_to_string(entry.path()).unwrap(),
    };
    patches.map(read).collect()
}

#[test]
fn every_defect_can_be_planted() {
    let defects = defects();
    assert!(defects.len() >= 10, "{defects:?}");
    for defect in &defects {
        let hunks = defect.hunks();
        assert!(!hunks.is_empty(), "{} changes nothing", defect.name);
        for (file, before) in hunks {
            let text = fs::read_to_string(workspace().join(&file)).unwrap_or_default();
            assert_eq!(
                text.matches(&before).count(),
                1,
                "{}: write the defect anew, because {file} has changed; not once in it:\n{before}",
                defect.name
            );
        }
    }
}

#[test]
fn every_defect_stands_in_the_documents_with_what_notices_it() {
    let documents = fs::read_to_string(workspace().join("docs/testing.md")).unwrap();
    for defect in defects() {
        let row = format!("| `{}` |", defect.name);
        let row = documents.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("{} has no row", defect.name));
        for (package, test) in defect.noticed_by() {
            assert!(
                row.contains(&format!("`{test}`")),
                "{package} {test}: {row}"
            );
        }
    }
}
