//! The real `legato` binary, with real programs under it. A machine without full userfaultfd, or
//! without what `scripts/setup` installs, fails here: these tests are never skipped.

#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

mod harness;

mod leftovers;
mod limit;
mod lost;
mod memory;
mod pattern;
mod real_programs;
mod redis;
mod refusals;
mod signals;
mod status;
