//! Starts programs, plain or under `legato run`, with a time limit, and collects what they say,
//! what they use and what they leave behind.

mod capture;
mod node;
mod process;
mod programs;
mod run;
mod sampler;

pub(crate) use node::Node;
pub(crate) use process::{marked, wait_until_gone};
pub(crate) use programs::{legato, python, system_program, test_directory, test_program};
pub(crate) use run::{Finished, Run, Running};

use std::time::{Duration, Instant};

/// Generous: a test that takes this long has hung.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

/// Of a program that is about to say something.
pub(crate) const OUTPUT_DEADLINE: Duration = Duration::from_secs(90);

pub(crate) const MIB: u64 = 1 << 20;

/// Asks again and again until the answer is yes; panics with `what` after `limit`.
pub(crate) fn poll_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "after {limit:?} still not: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
