//! The shared object inside the binary is made of what is in the tree now, and of nothing else.
#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

use std::fs;
use std::path::{Path, PathBuf};

#[allow(dead_code, reason = "the build script, of which one function is tried")]
#[path = "../build.rs"]
mod build;

/// What the build script told cargo to look at.
fn watched() -> Vec<PathBuf> {
    let output = Path::new(env!("OUT_DIR")).with_file_name("output");
    let output = fs::read_to_string(output).unwrap();
    let paths = output
        .lines()
        .filter_map(|line| line.strip_prefix("cargo:rerun-if-changed="));
    paths
        .map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .map(|path| path.canonicalize().unwrap())
        .collect()
}

/// The sources of this workspace that the compiler has read for the object.
fn sources() -> Vec<PathBuf> {
    let list = Path::new(env!("LEGATO_AGENT_OBJECT")).with_extension("d");
    let list = fs::read_to_string(list).unwrap();
    let (_, sources) = list.split_once(": ").unwrap();
    // Blanks in names are escaped there (make).
    let sources = sources.trim_end().replace("\\ ", "\0");
    sources
        .split(' ')
        .map(|path| {
            PathBuf::from(path.replace('\0', " "))
                .canonicalize()
                .unwrap()
        })
        .collect()
}

#[test]
fn a_change_of_anything_in_it_builds_it_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let root = root.unwrap().canonicalize().unwrap();
    let mut parts = sources();
    assert!(parts.len() > 100, "{parts:?}");
    let mut manifests: Vec<PathBuf> = parts
        .iter()
        .filter_map(|source| source.ancestors().find(|it| it.ends_with("src")))
        .map(|src| src.with_file_name("Cargo.toml"))
        .collect();
    manifests.sort();
    manifests.dedup();
    assert!(manifests.len() >= 6, "{manifests:?}");
    parts.extend(manifests);
    parts.extend(["Cargo.toml", "Cargo.lock", "crates/cli/build.rs"].map(|name| root.join(name)));
    let watched = watched();
    let is_watched = |part: &PathBuf| watched.iter().any(|it| part.starts_with(it));
    let unwatched: Vec<_> = parts.iter().filter(|part| !is_watched(part)).collect();
    assert!(unwatched.is_empty(), "{unwatched:?}");
}

#[test]
fn flags_and_settings_of_another_build_are_not_for_it() {
    for foreign in [
        "RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL",
        "CARGO_PROFILE_AGENT_LTO",
    ] {
        assert!(build::is_foreign(foreign), "{foreign}");
    }
    for own in [
        "PATH",
        "CARGO_HOME",
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER",
    ] {
        assert!(!build::is_foreign(own), "{own}");
    }
}
