//! The provider on RDMA devices, with the Linux kernel's `rdma_rxe` as the device: the conformance suite, and what
//! only a real device can show. Everything runs in an emulated guest, where both ends of each connection are;
//! `docs/testing.md` says how it is made.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod conformance;
mod cycles;
mod deviations;
mod device;
mod refusals;
mod rig;
mod world;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The script's status where the machine lacks something.
const UNAVAILABLE: i32 = 77;

/// Boots the guest once and runs all other tests of this file in it, one after the other.
#[test]
fn in_a_guest() {
    if is_set("LEGATO_SKIP_GUEST") {
        return skip("LEGATO_SKIP_GUEST is set");
    }
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    // What LEGATO_GUEST_TESTS names only, while somebody works on it.
    let filter = std::env::var("LEGATO_GUEST_TESTS").unwrap_or_default();
    let script = std::env::temp_dir().join(format!("legato-ibverbs-{}", std::process::id()));
    let lines = format!("./{name} {filter} --ignored --test-threads=1 --nocapture 2>&1\n");
    std::fs::write(&script, lines).unwrap();
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/run");
    let output = Command::new(run)
        .args(["--limit", "1200", "--add"])
        .arg(&program)
        .arg(&script)
        .stdin(Stdio::null())
        .output();
    std::fs::remove_file(&script).unwrap();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let reason = errors.lines().last().unwrap_or("no reason given");
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{reason}");
        return skip(reason);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !lines.contains(" 0 passed"),
        "in the guest: {}\n{errors}{lines}",
        output.status
    );
    println!("{lines}");
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED, no RDMA device to try: {reason}"
    );
}
