//! Carriers of packets: datagrams, streams, sealed streams.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "../carrier_rig/mod.rs"]
mod carrier_rig;
mod links;
mod loopback;
#[path = "../netns/mod.rs"]
mod netns;
mod sealed;
mod streams;
