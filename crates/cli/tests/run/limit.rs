//! The limit of local memory, seen from outside while programs touch fresh memory.

use crate::harness::{Finished, MIB, Run, conclusive, is_soak, test_program};

/// The stated limit: the cache, 5 % of it for tables, and 16 MiB for the agent.
pub(crate) const fn stated(cache: u64) -> u64 {
    cache + cache / 20 + 16 * MIB
}

/// Runs to the end with local memory within the stated limit. That is asserted in a soak only, and what
/// the machine spoiled is run again.
#[track_caller]
pub(crate) fn expect_within(cache: u64, run: impl FnMut() -> Finished) -> Finished {
    let run = conclusive(run, |run| {
        if is_soak() {
            within(run, cache)
        } else {
            Ok(())
        }
    });
    assert_eq!(run.stat("cache_bytes_limit"), cache);
    run
}

/// What breaks the limit, in words.
pub(crate) fn within(run: &Finished, cache: u64) -> Result<(), String> {
    let limit = stated(cache);
    let peak = run.seen.anonymous_peak;
    let counted = run
        .stat("cache_bytes_peak")
        .max(run.stat("local_bytes_peak"));
    if run.seen.samples <= 100 || peak == 0 {
        return Err(format!("only {} samples, peak {peak}", run.seen.samples));
    }
    if peak > limit {
        let (peak, limit) = (peak / 1024, limit / 1024);
        return Err(format!("{peak} KiB of {limit} KiB: {:?}", run.seen.at_peak));
    }
    if counted > limit {
        return Err(format!("the summary says {counted} of {limit} bytes"));
    }
    Ok(())
}

fn fill_fast(threads: &str) {
    expect_within(64 * MIB, || {
        let run = Run::far(test_program("fill"))
            .arguments(["--bytes", "768MiB", "--threads", threads])
            .cache_mib(64)
            .memory_mib(1024)
            .watched_closely()
            .finish()
            .expect_code(0)
            .expect_far_pages();
        assert_eq!(run.output(), "fill: 196608 pages, 0 wrong\n");
        run
    });
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
    expect_within(64 * MIB, || {
        Run::far(test_program("scan"))
            .arguments(["--bytes", "256MiB", "--order", "random"])
            .arguments(["--rounds", "2", "--write", "50"])
            .cache_mib(64)
            .memory_mib(512)
            .watched_closely()
            .finish()
            .expect_code(0)
            .expect_far_pages()
    });
}
