//! The design's rules about what may know what, read from the manifests and the sources.
#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

mod documents;
mod protocol;
mod sources;
mod time_limits;

use serde_json::Value;
use sources::{Source, has_word, paths, sources, workspace};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// Every edge between crates of the workspace that there may be, those of tests included.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("base", &[]),
    ("verbs", &["base"]),
    ("transport", &["base", "verbs"]),
    ("providers", &["base", "verbs", "transport"]),
    ("fabric", &["base", "verbs"]),
    ("memnode", &["base", "verbs", "fabric"]),
    ("pager", &["base", "verbs", "fabric"]),
    (
        "sim",
        // The providers for its tests, which run on shared memory too.
        &[
            "base",
            "verbs",
            "transport",
            "providers",
            "fabric",
            "memnode",
            "pager",
        ],
    ),
    (
        "preload",
        &["base", "verbs", "providers", "fabric", "pager"],
    ),
    ("test-programs", &["base"]),
    (
        "cli",
        &[
            "base",
            "verbs",
            "providers",
            "fabric",
            "memnode",
            "pager",
            "sim",
            "preload",
        ],
    ),
];

/// Crates that may not name a clock, a thread, an unsafe block or a randomly ordered map.
const ENGINES: [&str; 5] = ["transport", "fabric", "memnode", "pager", "sim"];

/// Crates without a single unsafe block, which the compiler must know.
const SAFE: [&str; 6] = ["base", "verbs", "transport", "fabric", "memnode", "sim"];

/// Where unsafe code may be: what talks to devices and the kernel, and programs that stand for any.
const UNSAFE_PLACES: [&str; 4] = [
    "crates/providers/",
    "crates/pager/src/uffd/",
    "crates/cli/preload/",
    "crates/cli/tests/programs/",
];

/// The pager's Linux mechanism is no engine.
const MECHANISM: &str = "crates/pager/src/uffd";

const BANNED_IN_ENGINES: [&str; 8] = [
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "thread::spawn",
    "thread::sleep",
    "std::fs",
    "std::net",
];

#[test]
fn crates_depend_downwards_only() {
    let edges = edges();
    for (name, _) in ALLOWED {
        assert!(edges.contains_key(name), "crate {name} is gone: {edges:?}");
    }
    assert_eq!(wrong_edges(&edges), Vec::<String>::new());
}

#[test]
fn a_made_up_upward_edge_is_rejected() {
    for (from, to) in [
        ("base", "verbs"),
        ("fabric", "providers"),
        ("memnode", "pager"),
        ("pager", "sim"),
        ("stranger", "base"),
    ] {
        let mut edges = edges();
        edges
            .entry(from.to_owned())
            .or_default()
            .push(to.to_owned());
        assert_eq!(wrong_edges(&edges), [format!("{from} -> {to}")]);
    }
}

#[test]
fn safe_crates_forbid_unsafe_code() {
    for name in SAFE {
        let root =
            fs::read_to_string(workspace().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        assert!(
            root.contains("#![forbid(unsafe_code)]"),
            "crates/{name}/src/lib.rs must forbid unsafe code"
        );
    }
}

#[test]
fn unsafe_code_is_where_it_belongs() {
    let elsewhere = |file: &&Source| {
        !UNSAFE_PLACES
            .iter()
            .any(|place| file.path.starts_with(place))
    };
    let sources = sources();
    let wrong: Vec<_> = sources
        .iter()
        .filter(elsewhere)
        .filter(|file| has_word(&file.code, "unsafe"))
        .collect();
    assert!(wrong.is_empty(), "unsafe code in {:?}", paths(&wrong));
    assert!(
        sources.iter().any(|file| has_word(&file.code, "unsafe")),
        "the search finds nothing at all"
    );
}

#[test]
fn engines_know_no_clock_thread_or_random_order() {
    let sources = sources();
    let is_engine = |file: &&Source| {
        let of_engine = ENGINES
            .iter()
            .any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
        of_engine && !file.path.starts_with(MECHANISM)
    };
    let engines: Vec<_> = sources.iter().filter(is_engine).collect();
    assert!(engines.len() >= ENGINES.len());
    for name in BANNED_IN_ENGINES {
        let wrong: Vec<_> = engines
            .iter()
            .copied()
            .filter(|file| file.code.contains(name))
            .collect();
        assert!(wrong.is_empty(), "{name} in {:?}", paths(&wrong));
    }
}

#[test]
fn sources_are_ascii() {
    let sources = sources();
    let wrong: Vec<_> = sources
        .iter()
        .filter(|file| !file.text.is_ascii())
        .collect();
    assert!(wrong.is_empty(), "not ASCII: {:?}", paths(&wrong));
}

/// What is printed passes one module, which knows what to do when nobody reads it.
#[test]
fn standard_streams_have_one_module() {
    const MODULE: &str = "crates/cli/src/output.rs";
    let sources = sources();
    let prints = |file: &&Source| {
        // Of standard error too, whose macros end like these.
        ["println!(", "print!("]
            .iter()
            .any(|name| file.code.contains(name))
    };
    let command = sources
        .iter()
        .filter(|file| file.path.starts_with("crates/cli/src/"));
    let wrong: Vec<_> = command.clone().filter(prints).collect();
    assert!(wrong.is_empty(), "prints: {:?}", paths(&wrong));
    assert!(command.clone().any(|file| file.path == MODULE));
}

/// Edges between the crates of the workspace, of every kind of dependency.
fn edges() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(workspace())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let short = |value: &Value| {
        value["name"]
            .as_str()
            .unwrap()
            .strip_prefix("legato-")
            .map(str::to_owned)
    };
    let packages = metadata["packages"].as_array().unwrap();
    let edges_of = |package: &Value| {
        package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(short)
            .collect()
    };
    packages
        .iter()
        .map(|package| {
            (
                short(package).expect("every crate is a legato-"),
                edges_of(package),
            )
        })
        .collect()
}

fn wrong_edges(edges: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let may = |from: &str, to: &str| allowed.get(from).is_some_and(|below| below.contains(&to));
    let all = edges
        .iter()
        .flat_map(|(from, below)| below.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| !may(from, to))
        .map(|(from, to)| format!("{from} -> {to}"))
        .collect()
}
