//! The pager, the fabric and memory nodes under a simulated kernel.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod announcements;
mod damaged;
mod families;
mod memory;
mod prefetch;
mod regressions;
mod scene;
mod seeds;
mod semantics;
mod strays;
