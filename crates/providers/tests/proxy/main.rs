//! A NIC at second hand, and one with several users.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod conformance;
mod far;
mod pages;
#[path = "../peer/mod.rs"]
mod peer;
#[path = "../rules_beside/mod.rs"]
mod rules_beside;
mod shared_nic;
