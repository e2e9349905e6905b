//! Builds the shared object that `legato run` loads into programs, so that the one binary carries
//! it inside.
//!
//! A second cargo does it and not a dependency edge, because the object is another kind of
//! artifact: without the standard library, without unwinding, with no library needed at load time,
//! and always optimised. Its features must not be unified with those of the binary either.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that end up in the object, seen from `crates/`.
const CRATES: [&str; 7] = [
    "base",
    "verbs",
    "transport",
    "providers",
    "fabric",
    "pager",
    "cli/preload",
];

/// The linker's part: nothing of the C runtime, no undefined symbol, everything bound at load; and
/// where to enter when no dynamic loader does it.
const LINK_ARGUMENTS: [&str; 7] = [
    "-nostartfiles",
    "-nostdlib",
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-Bsymbolic",
    "-Wl,-soname,legato-agent.so",
    "-Wl,-e,legato_entry",
];

/// Set for this build script and wrong for another build: flags (coverage, sanitizers) that need
/// the standard library, and wrappers (clippy) that check instead of compiling. Likewise
/// CARGO_TARGET_*_RUSTFLAGS, and the settings of other profiles, CARGO_PROFILE_*.
const FOREIGN_VARIABLES: [&str; 6] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
];

fn main() {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let crates = here.parent().expect("the crate lies in crates/");
    for name in CRATES {
        for part in ["src", "Cargo.toml"] {
            let part = crates.join(name).join(part);
            println!("cargo:rerun-if-changed={}", part.display());
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
    // The profile that it is built with, the versions of what it is built of, and the compiler.
    for file in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        let file = crates.join("..").join(file);
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let object = match is_linted() {
        true => empty(),
        false => build(&here.join("preload/Cargo.toml"), crates),
    };
    println!("cargo:rustc-env=LEGATO_AGENT_OBJECT={}", object.display());
}

/// Whether clippy looks at the workspace. It runs nothing, and has build output of its own.
fn is_linted() -> bool {
    env::var_os("RUSTC_WORKSPACE_WRAPPER")
        .is_some_and(|wrapper| wrapper.to_string_lossy().contains("clippy-driver"))
}

/// In the place of the object where nobody will run it.
fn empty() -> PathBuf {
    let object = PathBuf::from(variable("OUT_DIR")).join("empty.so");
    std::fs::write(&object, []).expect("the output directory can be written");
    object
}

fn build(manifest: &Path, crates: &Path) -> PathBuf {
    let target = variable("TARGET");
    let directory = PathBuf::from(variable("OUT_DIR")).join("agent");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "rustc",
            "--lib",
            "--crate-type",
            "cdylib",
            "--profile",
            "agent",
        ])
        .args(["--target", &target])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&directory);
    if crates.join("../Cargo.lock").exists() {
        cargo.arg("--locked");
    }
    cargo.args(["--", "--cfg", "legato_shared_object"]);
    for argument in LINK_ARGUMENTS {
        cargo.arg(format!("-Clink-arg={argument}"));
    }
    for (name, _) in env::vars_os() {
        if is_foreign(&name.to_string_lossy()) {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.status().expect("cargo starts");
    assert!(
        status.success(),
        "the agent's shared object does not build: {status}"
    );
    directory.join(target).join("agent/liblegato_preload.so")
}

pub(crate) fn is_foreign(variable: &str) -> bool {
    FOREIGN_VARIABLES.contains(&variable)
        || variable.starts_with("CARGO_PROFILE_")
        || variable.starts_with("CARGO_TARGET_") && variable.ends_with("_RUSTFLAGS")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
