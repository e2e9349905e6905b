//! The sources, as the rules read them.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Source {
    /// From the workspace's root on.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text without comments and without what is between quotes.
    pub(crate) code: String,
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

pub(crate) fn paths<'a>(sources: &[&'a Source]) -> Vec<&'a str> {
    sources.iter().map(|source| source.path.as_str()).collect()
}

pub(crate) fn sources() -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    let mut directories = vec![root.join("crates")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                let code = code_of(&text);
                found.push(Source { path, text, code });
            }
        }
    }
    found
}

pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|part| part == word)
}

fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if first == '"' {
            quoted(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            // Characters that would look like the begin of a text.
            rest[2..].find('\'').map_or(rest.len(), |end| end + 3)
        } else {
            code.push(first);
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

/// Length of the quoted text that `rest` begins with.
fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return index + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

#[test]
fn comments_and_texts_are_not_taken_for_code() {
    let text = "let a = \"unsafe \\\" unsafe\"; // unsafe\n/* unsafe */ let b = '\"'; let c = r#\"unsafe\"#;";
    assert!(!has_word(&code_of(text), "unsafe"), "{}", code_of(text));
    assert!(has_word(
        &code_of("let a: &'static str; unsafe { f(\"\") }"),
        "unsafe"
    ));
    assert!(!has_word(&code_of("#![forbid(unsafe_code)]"), "unsafe"));
}
