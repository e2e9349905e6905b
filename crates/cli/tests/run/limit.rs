//! The limit of local memory, seen from outside while programs touch fresh memory.

use crate::harness::{Finished, MIB, Run, is_soak, test_program};

/// The stated limit: the cache, 5 % of it for tables, and 16 MiB for the agent.
pub(crate) const fn stated(cache: u64) -> u64 {
    cache + cache / 20 + 16 * MIB
}

/// Local memory was within the stated limit. In a soak only.
#[track_caller]
pub(crate) fn expect_within(run: &Finished, cache: u64) {
    assert_eq!(run.stat("cache_bytes_limit"), cache);
    if !is_soak() {
        return;
    }
    let limit = stated(cache);
    let peak = run.seen.anonymous_peak;
    assert!(run.seen.samples > 100, "only {} samples", run.seen.samples);
    assert!(peak > 0, "the program was never seen");
    assert!(
        peak <= limit,
        "{} KiB of {} KiB: {:?}",
        peak / 1024,
        limit / 1024,
        run.seen.at_peak
    );
    assert!(
        run.stat("cache_bytes_peak") <= limit,
        "the summary says {:?}",
        run.stats
    );
}

fn fill_fast(threads: &str) {
    let run = Run::far(test_program("fill"))
        .arguments(["--bytes", "768MiB", "--threads", threads])
        .cache_mib(64)
        .memory_mib(1024)
        .watched_closely()
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert_eq!(run.output(), "fill: 196608 pages, 0 wrong\n");
    expect_within(&run, 64 * MIB);
}

#[test]
fn one_thread_is_never_let_past_the_limit() {
    fill_fast("1");
}

#[test]
fn two_threads_are_never_let_past_the_limit() {
    fill_fast("2");
}

#[test]
fn four_threads_are_never_let_past_the_limit() {
    fill_fast("4");
}

#[test]
fn random_reads_and_writes_stay_within_the_limit() {
    let run = Run::far(test_program("scan"))
        .arguments([
            "--bytes", "256MiB", "--order", "random", "--rounds", "2", "--write", "50",
        ])
        .cache_mib(64)
        .memory_mib(512)
        .watched_closely()
        .finish()
        .expect_code(0)
        .expect_far_pages();
    expect_within(&run, 64 * MIB);
}
