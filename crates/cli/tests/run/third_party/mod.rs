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

use crate::harness::{Finished, MIB, Run, is_soak};
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
fn same_output(
    program: impl AsRef<OsStr>,
    cache_mib: u64,
    arrange: impl Fn(Run) -> Run,
) -> Compared {
    let plain = arrange(Run::plain(&program)).finish().expect_code(0);
    let far = arrange(
        Run::far(&program)
            .cache_mib(cache_mib)
            .memory_mib(MEMORY_MIB),
    )
    .finish()
    .expect_code(0);
    assert_eq!(far.output(), plain.output());
    assert!(!plain.stdout.is_empty(), "the program says nothing");
    Compared {
        plain,
        far: far.expect_far_pages(),
        cache_mib,
    }
}

struct Compared {
    plain: Finished,
    far: Finished,
    cache_mib: u64,
}

impl Compared {
    /// The program takes several times its cache on local memory, or the run shows little. In a soak only.
    #[track_caller]
    fn expect_a_small_cache(self) -> Self {
        if !is_soak() {
            return self;
        }
        let (peak, cache) = (self.plain.seen.anonymous_peak, self.cache_mib * MIB);
        assert!(
            peak >= 3 * cache,
            "a peak of {} MiB is no more than a cache of {} MiB can nearly hold: more work",
            peak / MIB,
            self.cache_mib
        );
        self
    }

    /// The limit of docs/operations.md, for a program of one process. In a soak only.
    #[track_caller]
    fn expect_within_the_limit(self) -> Self {
        if !is_soak() {
            return self;
        }
        let limit = self.cache_mib * MIB * 105 / 100 + 16 * MIB;
        assert!(
            self.far.seen.anonymous_peak <= limit,
            "{} bytes of anonymous memory with a limit of {limit}",
            self.far.seen.anonymous_peak
        );
        self
    }
}
