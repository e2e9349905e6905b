//! No packet allocates.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod adapter;
mod engine;
mod machine;
#[path = "../../examples/pair_cost/side.rs"]
mod side;
