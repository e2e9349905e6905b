//! Reliable connections: queue pairs with hosts of plain memory, in virtual time.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "../amount/mod.rs"]
mod amount;
mod bad_wire;
mod bottleneck;
mod congestion;
mod fuzz;
mod harness;
mod patience;
mod refusals;
mod requests;
mod rules;
mod rxe;
mod states;
mod traffic;
