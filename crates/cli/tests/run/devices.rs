//! A node and a program at an RDMA device: the kernel's `rdma_rxe` in an emulated guest, where both run.

use crate::harness::{legato, test_directory, test_program};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The script's status where the machine lacks something.
const UNAVAILABLE: i32 = 77;

/// In the guest, with its one emulated processor: little memory, written once and read once. The program
/// itself looks at what it reads, and its exit status says what it found.
const SCRIPT: &str = "\
./legato node --insecure --memory 128MiB --listen 10.77.0.1 2>&1 &
node=$!
tries=0
until ./legato node status --node verbs://10.77.0.1 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || exit 3
    sleep 0.2
done
for address in 10.77.0.1 roce+tcp://10.77.0.1; do
    ./legato node status --node $address 2>&1 | { read -r line; echo \"$address at $line\"; }
done
./legato run --quiet --cache 16MiB --stats stats --nodes 10.77.0.1 -- \\
    ./fill --bytes 32MiB --threads 1 --rounds 1 2>&1
status=$?
cat stats
# What the program had is given back with its end.
./legato node status --json --node verbs://10.77.0.1 2>&1
kill $node
wait $node
exit $status
";

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED, no RDMA device to try: {reason}"
    );
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

#[test]
fn a_program_has_its_pages_at_an_rdma_device() {
    if is_set("LEGATO_SKIP_GUEST") {
        return skip("LEGATO_SKIP_GUEST is set");
    }
    let directory = test_directory();
    let script = directory.join("script");
    std::fs::write(&script, SCRIPT).unwrap();
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/run");
    let mut guest = Command::new(run);
    guest.args(["--limit", "600"]);
    for file in [legato(), &test_program("fill")] {
        guest.arg("--add").arg(file);
    }
    let output = guest.arg(&script).stdin(Stdio::null()).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let reason = errors.lines().last().unwrap_or("no reason given");
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{reason}");
        return skip(reason);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{errors}{lines}",
        output.status
    );
    let number = |name: &str| -> u64 {
        let rest = lines
            .split_once(&format!("\"{name}\":"))
            .map(|(_, rest)| rest.trim_start());
        let digits = rest.and_then(|rest| rest.split(|it: char| !it.is_ascii_digit()).next());
        digits
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| panic!("no {name}: {lines}"))
    };
    assert!(
        number("pages_written") > 0 && number("pages_fetched") > 0,
        "{lines}"
    );
    assert_eq!(number("pages_lost"), 0, "{lines}");
    // An address without a scheme is the device's where both sides have one, and a socket's too.
    for found in [
        "10.77.0.1 at verbs://10.77.0.1:4791: 0 B of",
        "roce+tcp://10.77.0.1 at roce+tcp://10.77.0.1:4791: 0 B of",
    ] {
        assert!(lines.contains(found), "{lines}");
    }
}
