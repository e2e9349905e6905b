//! The fabric, its sessions and the secrets between its ends, on simulated NICs and on real providers.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod contract;
mod faulty;
mod operations;
mod recordings;
mod regions;
mod rig;
mod secret;
mod seeds_past;
mod session;
