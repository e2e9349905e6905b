//! Runs the probes in the guest.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The script's status where the machine lacks something.
const UNAVAILABLE: i32 = 77;

/// What the probes print, or `None`, with a reason, where there can be no guest. With
/// `LEGATO_REQUIRE_GUEST=1` that is a failure.
pub(crate) fn lines() -> Option<String> {
    if is_set("LEGATO_SKIP_GUEST") {
        skip("LEGATO_SKIP_GUEST is set");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/probe");
    let output = Command::new(script)
        .stdin(Stdio::null())
        .output()
        .expect("scripts/rdma-guest/probe starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let reason = errors.lines().last().unwrap_or("no reason given");
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{reason}");
        skip(reason);
        return None;
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "the guest: {}\n{errors}{lines}",
        output.status
    );
    Some(lines)
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED, no real rxe: {reason}");
}
