//! The simulated NICs at the level of the verbs: what every personality does, and where they
//! differ. Tests are named by the scenario that they are of.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod bench;
mod broken;
mod conformance;
mod life;
mod oracles;
mod patience;
mod queues;
mod refusals;
mod sends;
mod states;
mod suite;
mod wire;
