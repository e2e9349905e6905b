//! The fuzz program on a cache that is a small part of its memory: it checks itself, and prints what
//! it prints without Legato.

use crate::harness::{Finished, Run, sized, test_program};
use crate::limit::expect_limited;

/// What is refused on far memory, and so goes another way there: see docs/testing.md, the section on
/// the fuzzer.
const REFUSED: &str = "guard,unguard";

fn arguments(seed: u64, threads: u64, processes: u64) -> Vec<String> {
    // Each thread takes all steps.
    let steps = sized(250, 120).min(1000 / threads);
    format!(
        "--seed {seed} --steps {steps} --threads {threads} --processes {processes} --bytes 64MiB \
         --skip {REFUSED}"
    )
    .split(' ')
    .map(str::to_owned)
    .collect()
}

fn agrees(seed: u64, threads: u64, processes: u64, cache_mib: u64) {
    let fuzz = test_program("fuzz");
    let arguments = arguments(seed, threads, processes);
    let plain = Run::plain(&fuzz)
        .arguments(arguments.clone())
        .finish()
        .expect_code(0);
    assert!(plain.output().starts_with("process 0 contents "));
    let far = || {
        Run::far(&fuzz)
            .arguments(arguments.clone())
            .memory_mib(2048)
    };
    let same = |far: &Finished| assert_eq!(plain.output(), far.output(), "{}", far.stderr);
    if processes == 1 {
        expect_limited(cache_mib, 0, far, same);
    } else {
        // What is shared would count once for each.
        let far = far().cache_mib(cache_mib).finish();
        same(&far.expect_code(0).expect_far_pages());
    }
}

#[test]
fn fuzz_agrees_with_one_thread_on_8_mib() {
    agrees(1, 1, 1, 8);
}

#[test]
fn fuzz_agrees_with_two_threads_on_8_mib() {
    agrees(2, 2, 1, 8);
}

#[test]
fn fuzz_agrees_with_8_threads_on_8_mib() {
    agrees(8, 8, 1, 8);
}

#[test]
fn fuzz_agrees_with_32_threads_on_8_mib() {
    agrees(32, 32, 1, 8);
}

#[test]
fn fuzz_threads_agree_with_local_memory() {
    for &seed in sized(&[3, 4][..], &[3]) {
        agrees(seed, 4, 1, 16);
    }
}

#[test]
fn fuzz_processes_agree_with_local_memory() {
    for &seed in sized(&[7, 8][..], &[7]) {
        agrees(seed, 4, 4, 24);
    }
}

/// A child grew a mapping into a hole, up to the rest of what had been one mapping before it was forked:
/// for Linux they are two, and it refuses to grow them together.
#[test]
fn fuzz_knows_what_stays_apart_in_a_child() {
    let arguments = "--seed 1795565835 --steps 600 --threads 4 --processes 4 --bytes 64MiB --skip guard,unguard";
    Run::plain(test_program("fuzz"))
        .arguments(arguments.split(' '))
        .finish()
        .expect_code(0);
}

/// What it expects is what Linux does.
#[test]
fn fuzz_passes_on_local_memory() {
    for seed in 100..104 {
        let arguments = arguments(seed, 4, 6)
            .into_iter()
            .filter(|text| text != "--skip" && text != REFUSED);
        Run::plain(test_program("fuzz"))
            .arguments(arguments)
            .finish()
            .expect_code(0);
    }
}

/// A byte that no operation wrote must be found.
#[test]
fn fuzz_sees_one_flipped_bit() {
    let run = Run::plain(test_program("fuzz"))
        .arguments([
            "--bytes",
            "8MiB",
            "--steps",
            "30",
            "--processes",
            "1",
            "--flip-bit",
        ])
        .finish()
        .expect_code(70);
    assert!(run.stderr.contains("1 wrong bytes"), "{}", run.stderr);
}
