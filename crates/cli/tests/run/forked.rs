//! Forked children without a program of their own: one limit for the family, and pages leave the
//! children as well.

use crate::harness::{
    DEADLINE, Finished, MIB, Process, Resident, Run, Running, conclusive, held_through, is_soak,
    python, sized, test_program,
};
use crate::limit;
use crate::semantics::children_size;
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

const CACHE_MIB: u64 = 32;

/// Pss_Anon: a page that several processes share counts once in the sum.
fn proportional(process: Process) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
    let rollup = rollup.unwrap_or_default();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[test]
fn pages_leave_forked_children_that_outlive_their_parent() {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/python/forked.py"
    );
    let start = || {
        Run::far(python())
            .arguments([script, sized("96", "48"), "2", sized("2", "1")])
            .cache_mib(CACHE_MIB)
            .memory_mib(1024)
            .with_summary()
            .start()
    };
    // Without eviction in the children each would hold 96 MiB.
    expect_family_within(CACHE_MIB, start, |run| {
        let output = run.output();
        let mut lines: Vec<&str> = output.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["child: done", "child: done", "parent: done"]);
        let left = run.stat("far_pages_current");
        assert_eq!(
            left, 0,
            "errors: {}\nstatistics: {:?}",
            run.stderr, run.stats
        );
    });
}

fn children_stay_within_the_limit(case: &str, rounds: &str) {
    let (bytes, cache_mib) = children_size();
    let start = || {
        let mut run = Run::far(test_program("semantics"))
            .arguments(["--case", case, "--alone", "--bytes", bytes])
            .arguments(["--rounds", rounds, "--expect-evicted"])
            .cache_mib(cache_mib)
            .memory_mib(1024)
            .with_summary()
            .start();
        run.write(b"go\ngo\n");
        run
    };
    expect_family_within(cache_mib, start, |run| {
        assert_eq!(run.output(), format!("ready\nready\n{case}: ok\n"));
    });
}

#[test]
fn two_thousand_children_stay_within_the_limit() {
    children_stay_within_the_limit("part-forks-then-waits", sized("2000", "150"));
}

#[test]
fn two_thousand_children_of_which_eight_are_alive_stay_within_the_limit() {
    children_stay_within_the_limit("part-crowds-then-waits", sized("2000", "150"));
}

/// All programs of a run together stay within the stated limit (seen in a soak only), pages go far, and
/// `check` looks at the rest. What the machine spoiled is run again.
#[track_caller]
fn expect_family_within(cache_mib: u64, start: impl Fn() -> Running, check: impl Fn(&Finished)) {
    let peak = Cell::new(0);
    let run = || {
        let (run, seen) = finish_watched(start());
        peak.set(seen);
        let run = run.expect_code(0).expect_far_pages();
        check(&run);
        run
    };
    let limit = limit::stated(cache_mib * MIB);
    conclusive(run, |_| match peak.get() {
        0 => Err("nobody was seen".to_owned()),
        peak if is_soak() && peak > limit => Err(format!("{peak} of {limit} bytes")),
        _ => Ok(()),
    });
}

/// With the sum of what its programs had at most.
fn finish_watched(mut run: Running) -> (Finished, u64) {
    let begin = Instant::now();
    let (mut peak, mut before) = (0, Vec::new());
    while run.is_running() && begin.elapsed() < DEADLINE {
        let programs = run.processes().into_iter().filter(Process::is_program);
        let look = |one: Process| {
            let anonymous = proportional(one);
            (
                one,
                Resident {
                    anonymous,
                    shared: 0,
                },
            )
        };
        let now: Vec<(Process, Resident)> = programs.map(look).collect();
        let held = held_through(&before, &now);
        peak = held.iter().map(|one| one.anonymous).sum::<u64>().max(peak);
        before = now;
        // In a gate nothing is asserted of what is seen.
        std::thread::sleep(sized(Duration::ZERO, Duration::from_millis(20)));
    }
    (run.finish(), peak)
}
