//! The design's rules about what may know what, read from the manifests and the sources.
#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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

/// Where product code may have a time of a second or more that is no time limit: it paces work, or
/// engines are told otherwise.
const PACES: [(&str, &str); 17] = [
    ("crates/cli/src/bench/", ""),
    ("crates/cli/src/node/refusals.rs", "INTERVAL"),
    ("crates/cli/src/run/supervise.rs", "WAITING_NOTICE"),
    ("crates/cli/src/run/budget.rs", "ASK_AGAIN"),
    ("crates/cli/src/run/proxies.rs", "SLEEP_MAX"),
    ("crates/cli/src/sim/sweep.rs", "PROGRESS_INTERVAL"),
    ("crates/fabric/src/session/", ""),
    ("crates/pager/src/engine/memory.rs", "QUIET_AFTER"),
    ("crates/pager/src/engine/strays.rs", "REST_M"),
    ("crates/pager/src/engine/strays.rs", "USED_AFTER"),
    ("crates/pager/src/far/room.rs", "ASK_AGAIN_MAX"),
    ("crates/pager/src/order/mod.rs", "CONTESTED"),
    ("crates/pager/src/uffd/linux_kernel/rss.rs", "REST_MAX"),
    ("crates/providers/src/ibverbs/", ""),
    ("crates/providers/src/proxy/agent/line.rs", "LOOK"),
    ("crates/sim/src/", ""),
    ("crates/transport/src/", ""),
];
const TIME_LIMITS: &str = "crates/base/src/timeouts/mod.rs";

#[test]
fn time_limits_stand_in_one_file() {
    let sources = sources();
    let products = sources.iter().filter(|file| {
        file.path.contains("/src/")
            && !file.path.contains("test")
            && !file.path.starts_with("crates/base/")
    });
    let strays: Vec<String> = products
        .flat_map(|file| file.text.lines().map(|line| (&file.path, line.trim())))
        .filter(|(_, line)| line.contains("const ") && line.contains("from_secs("))
        .filter(|(path, line)| {
            let paces =
                |(place, name): &(&str, &str)| path.starts_with(place) && line.contains(name);
            !PACES.iter().any(paces)
        })
        .map(|(path, line)| format!("{path}: {line}"))
        .collect();
    assert_eq!(strays, Vec::<String>::new(), "see {TIME_LIMITS}");
}

/// Each has a row that says what it is, what it protects and what is at its end.
#[test]
fn every_time_limit_is_explained() {
    let text = fs::read_to_string(workspace().join(TIME_LIMITS)).unwrap();
    let lines = || text.lines();
    let names: Vec<&str> = lines()
        .filter_map(|line| Some(line.strip_prefix("pub const ")?.split_once(':')?.0))
        .collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let named = format!("[`{name}`]");
        let row = lines().find(|line| line.starts_with("//! | [`") && line.contains(&named));
        let columns = row.map(|row| row.split(" | ").count());
        assert_eq!(columns, Some(5), "{name}");
    }
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

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
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

#[derive(Debug)]
struct Source {
    /// From the workspace's root on.
    path: String,
    text: String,
    code: String,
}

fn paths<'a>(sources: &[&'a Source]) -> Vec<&'a str> {
    sources.iter().map(|source| source.path.as_str()).collect()
}

fn sources() -> Vec<Source> {
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

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|part| part == word)
}

/// The text without comments and without what is between quotes.
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
