//! A memory node and its clients.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod clients;
mod refusals;
mod secret_roce;
