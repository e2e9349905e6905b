//! Programs of others, which print the same under Legato with a quarter of the memory that they
//! take. `scripts/programs` runs these and larger ones, and measures.

mod build;
mod cpython;
mod gdb;
mod java;
mod node;
mod perl;
mod redis_save;
mod sqlite;

use crate::harness::{Finished, MIB, Run, conclusive, is_soak};
use crate::limit::within;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The far memory of each run.
const MEMORY_MIB: u64 = 2048;

/// A source or a script of `programs/`.
fn source(name: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/third_party/programs");
    let source = programs.join(name);
    assert!(source.is_file(), "{} is gone", source.display());
    source
}

/// Runs a program plain and under Legato, to the same output. `arrange` adds what both are given.
#[track_caller]
fn same_output(program: impl AsRef<OsStr>, cache_mib: u64, arrange: impl Fn(Run) -> Run) {
    compare(program, cache_mib, arrange, |_, _| Ok(()));
}

/// The same of a program of one process, which takes several times its cache on local memory, or the run
/// would show little, and stays within the limit of docs/operations.md (both in a soak only).
#[track_caller]
fn same_output_within_the_limit(
    program: impl AsRef<OsStr>,
    cache_mib: u64,
    arrange: impl Fn(Run) -> Run,
) {
    compare(program, cache_mib, arrange, |plain, far| {
        let (peak, cache) = (plain.seen.anonymous_peak, cache_mib * MIB);
        assert!(
            !is_soak() || peak >= 3 * cache,
            "a peak of {} MiB is no more than a cache of {cache_mib} MiB can nearly hold: more work",
            peak / MIB,
        );
        within(far, cache)
    });
}

#[track_caller]
fn compare(
    program: impl AsRef<OsStr>,
    cache_mib: u64,
    arrange: impl Fn(Run) -> Run,
    bound: impl Fn(&Finished, &Finished) -> Result<(), String>,
) {
    let plain = arrange(Run::plain(&program)).finish().expect_code(0);
    assert!(!plain.stdout.is_empty(), "the program says nothing");
    let far = || {
        let run = Run::far(&program)
            .cache_mib(cache_mib)
            .memory_mib(MEMORY_MIB);
        let far = arrange(run).finish().expect_code(0).expect_far_pages();
        assert_eq!(far.output(), plain.output());
        far
    };
    conclusive(far, |far| bound(&plain, far));
}
