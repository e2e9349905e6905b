//! The shm provider: every rule of verbs, real processes, hostile peers.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod completion_queues;
mod conformance;
mod full_sockets;
mod hostile;
mod hostile_peer;
mod hostile_requests;
#[path = "../peer/mod.rs"]
mod peer;
mod preparing;
mod queue_pair_states;
mod random_calls;
mod requests;
mod rules;
mod shared_receives;
mod standing_still;
mod two_processes;
