//! Connection management: two to three managers, and a wire that loses, repeats and delays.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "../amount/mod.rs"]
mod amount;
mod disconnects;
mod exchanges;
mod histories;
mod hostile;
mod limits;
mod messages;
mod races;
mod wire;
