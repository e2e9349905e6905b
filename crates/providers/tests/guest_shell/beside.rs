//! Boots the guest and runs tests of this program beside it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The script's status where the machine lacks something.
const UNAVAILABLE: i32 = 77;

/// Boots the guest once and runs the ignored tests of this program that `filter` names, as the test runner
/// takes it, one after the other. The guest has the program too. Skipped, visibly, where there can be no guest.
pub(crate) fn run_beside_a_guest(filter: &[&str]) {
    if is_set("LEGATO_SKIP_GUEST") {
        return skip("LEGATO_SKIP_GUEST is set");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/beside");
    let program = std::env::current_exe().unwrap();
    let output = Command::new(script)
        // The guest runs its side of some of them.
        .arg("--add")
        .arg(&program)
        .arg(&program)
        .args(["--ignored", "--test-threads=1", "--nocapture"])
        .args(filter)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let reason = errors.lines().last().unwrap_or("no reason given");
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{reason}");
        return skip(reason);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !lines.contains(" 0 passed"),
        "beside the guest: {}\n{errors}{lines}",
        output.status
    );
    println!("{lines}");
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED, no kernel to talk to: {reason}");
}
