//! Starts programs, plain or under `legato run`, with a time limit, and collects what they say,
//! what they use and what they leave behind.

mod capture;
mod cgroup;
mod hosts;
pub(crate) mod messages;
mod node;
mod process;
mod programs;
mod run;
mod sampler;
mod verdict;
mod watchdog;

pub(crate) use cgroup::Cgroup;
pub(crate) use hosts::{Hosts, World};
pub(crate) use node::{Node, SECRET_VARIABLE, status_of};
pub(crate) use process::{Process, Resident, marked, wait_until_gone};
pub(crate) use programs::{
    EnterableDirectory, archive, compiled_c, compiled_go, legato, python, static_c, system_program,
    system_python, test_directory, test_program,
};
pub(crate) use run::{Finished, Run, Running, expect_pattern};
pub(crate) use sampler::held_through;
pub(crate) use verdict::conclusive;

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

/// Of a whole run, on a machine that may be busy with other things. What stands still is ended before.
pub(crate) const DEADLINE: Duration = Duration::from_secs(900);

/// Of anything that is about to happen, in the same sense.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Whether this is a soak (`scripts/soak`). Only there is the machine ours, so that what is sampled from
/// outside against the clock tells of Legato, and not of who had a processor.
pub(crate) fn is_soak() -> bool {
    std::env::var("LEGATO_TEST_SOAK").is_ok_and(|value| value == "1")
}

/// The size in a soak, and the one that shows the same within seconds.
pub(crate) fn sized<T>(soak: T, gate: T) -> T {
    if is_soak() { soak } else { gate }
}

pub(crate) const MIB: u64 = 1 << 20;

/// Asks again and again until the answer is yes; panics with `what` after `limit`.
pub(crate) fn poll_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "after {limit:?} still not: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program that `enter` becomes, on another host or in a control group, or nobody.
pub(crate) fn started_by(enter: &[String], program: impl AsRef<OsStr>) -> Command {
    match enter.split_first() {
        Some((first, arguments)) => {
            let mut command = Command::new(first);
            command.args(arguments).arg(program);
            command
        }
        None => Command::new(program),
    }
}
