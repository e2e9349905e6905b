//! The software RoCE NIC: on loopback, on networks, and against hostile packets.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod addresses;
mod allocations;
#[path = "../carrier_rig/mod.rs"]
mod carrier_rig;
mod conformance;
mod endings;
mod halves;
mod hostile;
mod marks;
mod narrow;
#[path = "../netns/mod.rs"]
mod netns;
mod networks;
#[path = "../peer/mod.rs"]
mod peer;
mod rig;
mod rules;
#[path = "../rules_beside/mod.rs"]
mod rules_beside;
mod services;
mod share;
mod vanished;
mod world;
