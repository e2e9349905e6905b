//! What the documents promise about the sources.

use crate::sources::{sources, workspace};
use std::fs;

const DOCUMENT: &str = "docs/architecture.md";
const TABLES: &str = "## Where to find what";

/// Paths between backquotes in the document's tables; a directory ends with a slash.
fn places(document: &str) -> Vec<&str> {
    let (_, tables) = document.split_once(TABLES).unwrap();
    let rows = tables.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|row| !row.starts_with("| what | file"));
    let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    quoted.filter(|place| place.contains('/')).collect()
}

#[test]
fn every_module_has_a_row_in_the_architecture() {
    let document = fs::read_to_string(workspace().join(DOCUMENT)).unwrap();
    let places = places(&document);
    let has_row = |path: &str| {
        let is_it = |place: &&str| match place.strip_suffix('/') {
            Some(_) => path.starts_with(*place),
            None => path == *place,
        };
        places.iter().any(is_it)
    };
    let sources = sources();
    let modules = sources.iter().filter_map(|source| {
        let path = source.path.strip_prefix("crates/")?;
        (path.contains("/src/") && !path.contains("/tests/")).then_some(path)
    });
    let modules: Vec<_> = modules.collect();
    assert!(modules.len() > 300, "{}", modules.len());
    let without: Vec<_> = modules.iter().filter(|path| !has_row(path)).collect();
    assert!(without.is_empty(), "no row in {DOCUMENT}: {without:?}");
    let crates = workspace().join("crates");
    let gone: Vec<_> = places
        .iter()
        .filter(|place| !crates.join(place).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "rows in {DOCUMENT} without a file: {gone:?}"
    );
}
