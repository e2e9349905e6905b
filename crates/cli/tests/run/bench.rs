//! `legato bench fault` and `legato bench program` on this machine. What is measured is not looked at.

use crate::harness::{Finished, MIB, PATIENCE, Run, legato, test_program, wait_until_gone};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

fn bench(arguments: &[&str]) -> Run {
    Run::plain(legato())
        .arguments(["bench", "fault", "--cache", "8MiB", "--rounds", "1"])
        .arguments(["--times", "2", "--swap", "none"])
        .arguments(arguments)
}

fn bench_program(arguments: &[&str], program: &[&str]) -> Run {
    Run::plain(legato())
        .arguments(["bench", "program", "--rounds", "1"])
        .arguments(arguments)
        .arguments(["--"])
        .arguments(program)
}

fn report(run: &Finished) -> Value {
    serde_json::from_str(&run.output()).unwrap()
}

#[test]
fn two_versions_are_compared_in_all_ways_of_touching() {
    let other = legato().to_str().unwrap();
    let run = bench(&["--order", "random", "--access", "read,write"])
        .arguments([
            "--threads",
            "1,2",
            "--passes",
            "2",
            "--settle",
            "1",
            "--json",
        ])
        .arguments(["--other", other])
        .finish()
        .expect_code(0);
    let report = report(&run);
    let told = report["workloads"].as_array().unwrap().iter();
    let ways: Vec<_> = told
        .map(|row| {
            for contender in ["legato_us", "other_us", "plain_us"] {
                assert!(row[contender]["median"].as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(row["legato_over_other"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row.get("zram_us").is_none(), "{row}");
            (
                row["access"].as_str().unwrap(),
                row["threads"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(ways, [("read", 1), ("read", 2), ("write", 1), ("write", 2)]);
    assert_eq!(
        (&report["passes"], &report["settle"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(report["missing"], Value::Array(Vec::new()));
}

#[test]
fn another_version_that_cannot_run_is_said_to_be_missing() {
    let run = bench(&["--order", "seq", "--other", "/nowhere/legato"])
        .finish()
        .expect_code(0);
    let text = run.output();
    assert!(
        text.contains("\nother is missing from round 1 on: the program could not be run"),
        "{text}"
    );
}

/// All of them are in the one row of the table, and the others set against Legato.
fn expect_figures(report: &Value, contenders: &[&str]) {
    let row = &report["workloads"][0];
    for contender in contenders {
        let seconds = &row[format!("{contender}_s")];
        assert!(seconds["median"].as_f64().unwrap() > 0.0, "{report}");
    }
    for baseline in contenders.iter().filter(|name| **name != "legato") {
        let ratio = &row[format!("legato_over_{baseline}")];
        assert!(ratio.as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(report["missing"], json!([]));
}

#[test]
fn a_program_is_measured_with_half_of_its_memory_local() {
    let fill = test_program("fill");
    let program = [fill.to_str().unwrap(), "--bytes", "40MiB"];
    let other = legato().to_str().unwrap();
    let run = bench_program(&["--swap", "none", "--json", "--other", other], &program)
        .finish()
        .expect_code(0);
    run.expect_told("under Legato with all memory local: N s");
    run.expect_told("round N of N");
    let report = report(&run);
    expect_figures(&report, &["legato", "other", "plain"]);
    let row = &report["workloads"][0];
    assert!(row.get("zram_s").is_none(), "{report}");
    assert_eq!(row["command"], json!(program));
    let bytes = |name: &str| report[name].as_u64().unwrap();
    let half = bytes("memory_bytes") / 100 * 50 / MIB * MIB;
    assert_eq!(bytes("cache_bytes"), half.max(8 * MIB), "{report}");
}

/// It sets up swap for the whole machine: in a soak alone.
#[test]
fn a_program_is_compared_with_linux_swap() {
    let fill = test_program("fill");
    // What the program leaves running ends with its group.
    let script = "\"$0\" --bytes 40MiB; \
         if grep -q legato-bench /proc/self/cgroup; then sleep 1000 <&- >&- 2>&- & fi";
    let program = ["sh", "-c", script, fill.to_str().unwrap()];
    let options = ["--swap", "zram,file", "--cache", "20MiB", "--json"];
    let run = bench_program(&options, &program).finish().expect_code(0);
    expect_figures(&report(&run), &["legato", "zram", "file", "plain"]);
    assert!(!run.stderr.contains("cannot remove"), "{}", run.stderr);
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    assert_eq!(swaps.lines().count(), 1, "{swaps}");
}

#[test]
fn a_program_that_prints_something_else_is_said_to_do_so() {
    let program = ["sh", "-c", "echo $$"];
    let run = bench_program(&["--swap", "none"], &program)
        .finish()
        .expect_code(2);
    let expected = "under Legato with all memory local: the program printed something else";
    assert!(run.stderr.contains(expected), "{}", run.stderr);
    run.expect_told("under Legato with all memory local: REASON");
    run.expect_told("on local memory: N s");
    bench_program(&["--swap", "none", "--any-output"], &program)
        .finish()
        .expect_code(0);
}

#[test]
fn a_program_that_takes_too_long_is_ended_and_said_to_be_slow() {
    bench_program(&["--cache", "7MiB"], &["true"])
        .finish()
        .expect_code(2);
    let run = bench_program(&["--time-limit", "1"], &["sleep", "1000"])
        .finish()
        .expect_code(2);
    let expected = "on local memory: the program did not end within 1 s";
    assert!(run.stderr.contains(expected), "{}", run.stderr);
    run.expect_told("on local memory: REASON");
}

#[test]
fn whoever_ends_a_measurement_ends_the_program_and_what_it_started() {
    let script = "echo ready >&2; sleep 1000; true";
    let running = bench_program(&[], &["sh", "-c", script]).start();
    running.wait_for_message("ready");
    let processes = running.processes();
    kill_process(running.pid(), Signal::TERM).unwrap();
    let run = running.finish().expect_code(130);
    run.expect_told("interrupted");
    wait_until_gone(&processes, PATIENCE);
}
