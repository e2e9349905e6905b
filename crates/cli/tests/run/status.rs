//! Exit status, standard streams, children, and the summary.

use crate::harness::{MIB, Run, legato, messages, python, test_program};
use std::process::Command;

fn shell(script: &str) -> Run {
    Run::far("sh")
        .arguments(["-c", script])
        .cache_mib(64)
        .memory_mib(256)
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 2, 3, 126, 255] {
        let run = shell(&format!("exit {status}"))
            .finish()
            .expect_code(status);
        assert_eq!(run.stat("exit_status"), status as u64);
    }
}

#[test]
fn a_signal_gives_128_and_its_number() {
    for signal in [6, 9, 11, 15] {
        let run = shell(&format!("kill -{signal} $$"))
            .finish()
            .expect_code(128 + signal);
        assert_eq!(run.stat("exit_status"), 128 + signal as u64);
        assert_eq!(run.stat("signal"), signal as u64);
    }
}

/// Wrong: it was that of a run that could not start.
#[test]
fn statistics_that_cannot_be_written_do_not_change_the_exit_status() {
    let output = Command::new(legato())
        .args(["run", "--quiet", "--stats", "/dev/full"])
        .args(["--", "sh", "-c", "exit 3"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.starts_with("legato: cannot write /dev/full: "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    messages::expect_told(&said, "WHAT: REASON; make room");
}

#[test]
fn standard_streams_are_the_programs() {
    let mut run = shell("cat; echo problem >&2").start();
    let bytes: Vec<u8> = (0..3 * MIB).map(|index| (index * 7 % 251) as u8).collect();
    run.write(&bytes);
    let run = run.finish().expect_code(0);
    assert!(
        run.stdout == bytes,
        "{} bytes of {}",
        run.stdout.len(),
        bytes.len()
    );
    assert_eq!(run.stderr, "problem\n");
}

#[test]
fn arguments_environment_and_directory_are_the_programs() {
    let script = "printf '%s|' \"$@\"; echo \"$FRUIT\"; pwd";
    let run = Run::far("sh").arguments(["-c", script, "sh", "", "a b", "--cache", "*"]);
    let run = run
        .environment("FRUIT", "pear")
        .cache_mib(64)
        .memory_mib(64)
        .finish()
        .expect_code(0);
    let directory = std::env::current_dir().unwrap();
    assert_eq!(
        run.output(),
        format!("|a b|--cache|*|pear\n{}\n", directory.display())
    );
}

/// A child of the program has far memory too, and a limit.
#[test]
fn children_of_a_shell_run_on_far_memory() {
    let scan = test_program("scan");
    let script = format!(
        "'{}' --bytes 256MiB --order random; echo $?",
        scan.display()
    );
    let run = shell(&script)
        .memory_mib(512)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n0\n"), "{}", run.output());
}

#[test]
fn children_of_python_run_on_far_memory() {
    let script = "import subprocess, sys\n\
        done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n\
        print(done.returncode, done.stdout.strip())";
    let run = Run::far(python())
        .arguments(["-c", script])
        .arguments([test_program("scan")])
        .arguments(["--bytes", "256MiB", "--order", "random", "--no-final"])
        .cache_mib(64)
        .memory_mib(512)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(
        run.output().starts_with("0 scan: 65536 touches"),
        "{}",
        run.output()
    );
}

#[test]
fn the_summary_is_short_and_can_be_silenced() {
    let scan = || Run::far(test_program("scan")).arguments(["--bytes", "128MiB", "--order", "seq"]);
    let run = scan()
        .cache_mib(64)
        .memory_mib(256)
        .with_summary()
        .finish()
        .expect_code(0);
    for word in ["p50", "p99", "fetched", "written", "prefetched", "clean"] {
        assert!(run.stderr.contains(word), "no '{word}' in: {}", run.stderr);
    }
    for row in ["WHAT; far pages", "faults N (", "pages fetched N"] {
        run.expect_told(row);
    }
    assert!(run.stderr.lines().count() <= 12, "{}", run.stderr);
    let quiet = scan().cache_mib(64).memory_mib(256).finish().expect_code(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn the_statistics_have_every_field() {
    let run = Run::far(test_program("scan"))
        .arguments(["--bytes", "48MiB", "--order", "random", "--rounds", "2"])
        .cache_mib(16)
        .memory_mib(512)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert_eq!(run.stat("exit_status"), 0);
    assert_eq!(run.stat("cache_bytes_limit"), 16 * MIB);
    assert!(run.stat("cache_bytes_peak") > 8 * MIB);
    let (p50, p99, max) = (
        run.stat("fault_ns/p50"),
        run.stat("fault_ns/p99"),
        run.stat("fault_ns/max"),
    );
    assert!(0 < p50 && p50 <= p99, "{:?}", run.stats);
    assert!(max > 0, "{:?}", run.stats);
    assert!(run.stat("faults") > 0);
    assert_eq!(run.stat("pages_lost"), 0);
    // Read twice at random and never written: most of what is evicted then is clean.
    assert!(run.stat("pages_clean_dropped") > 0, "{:?}", run.stats);
    run.stat("pages_prefetched");
    let nodes = run
        .stats
        .as_ref()
        .unwrap()
        .get("nodes")
        .expect("the nodes are named");
    assert!(
        nodes.is_array() || nodes.is_object() || nodes.is_u64(),
        "{nodes}"
    );
}
