//! The limit of local memory, seen from outside while programs touch fresh memory.

use crate::harness::{
    Finished, MIB, Run, conclusive, is_soak, sized, system_program, test_program,
};

/// The stated limit: the cache, 5 % of it for tables, and 16 MiB for the agent.
pub(crate) const fn stated(cache: u64) -> u64 {
    cache + cache / 20 + 16 * MIB
}

/// Runs to the end with local memory within the stated limit. What the machine spoiled is run again.
#[track_caller]
pub(crate) fn expect_within(cache: u64, run: impl FnMut() -> Finished) -> Finished {
    let run = conclusive(run, |run| within(run, cache));
    assert_eq!(run.stat("cache_bytes_limit"), cache);
    run
}

/// The same with a cache of so many MiB, watched closely: the program ends with `code`, pages have gone
/// far, and `check` looks at the rest.
#[track_caller]
pub(crate) fn expect_limited(
    cache_mib: u64,
    code: i32,
    run: impl Fn() -> Run,
    check: impl Fn(&Finished),
) -> Finished {
    expect_within(cache_mib * MIB, || {
        let run = run().cache_mib(cache_mib).watched_closely().finish();
        let run = run.expect_code(code).expect_far_pages();
        check(&run);
        run
    })
}

/// What breaks the limit, in words. In a soak only.
pub(crate) fn within(run: &Finished, cache: u64) -> Result<(), String> {
    if !is_soak() {
        return Ok(());
    }
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
    let run = || {
        let run = Run::far(test_program("fill"));
        run.arguments(["--bytes", "768MiB", "--threads", threads])
            .memory_mib(1024)
    };
    expect_limited(64, 0, run, |run| {
        assert_eq!(run.output(), "fill: 196608 pages, 0 wrong\n");
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

/// What the agent knows of so much memory, and needs to forget it, comes back each time.
#[test]
fn memory_that_is_given_back_and_had_anew_stays_within_the_limit() {
    let (bytes, rounds) = sized(("4GiB", "10"), ("512MiB", "3"));
    let run = || {
        Run::far(test_program("fill"))
            .arguments(["--bytes", bytes, "--threads", "2"])
            .arguments(["--rounds", rounds, "--anew"])
            .memory_mib(sized(9, 2) * 1024)
    };
    expect_limited(64, 0, run, |run| {
        assert!(run.output().ends_with(" pages, 0 wrong\n"));
        // Of the program's own, of which some are far when it ends.
        assert!(run.stat("far_pages_current") < 1000);
    });
}

/// While a program sleeps its agent does too.
#[test]
fn memory_that_comes_after_a_rest_stays_within_the_limit() {
    let script = "import time\n\
         for turn in range(20):\n\
         \x20   time.sleep(0.1)\n\
         \x20   area = b'x' * (96 << 20)\n\
         print(len(area))";
    let run = || Run::far(system_program("python3")).arguments(["-c", script]);
    expect_limited(64, 0, run, |run| {
        assert_eq!(run.output(), "100663296\n");
    });
}

#[test]
fn random_reads_and_writes_stay_within_the_limit() {
    let run = || {
        Run::far(test_program("scan"))
            .arguments(["--bytes", "256MiB", "--order", "random"])
            .arguments(["--rounds", "2", "--write", "50"])
            .memory_mib(512)
    };
    expect_limited(64, 0, run, |_| {});
}
