//! The software RoCE NIC and the Linux kernel's, `rdma_rxe` in an emulated guest, on one Ethernet
//! link. `docs/testing.md` says how the guest is made.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

#[cfg(feature = "ibverbs")]
mod both_ends;
mod counters;
mod damage;
mod exchange;
#[path = "../guest_shell/mod.rs"]
mod guest;
#[cfg(feature = "ibverbs")]
mod halves;
#[cfg(feature = "ibverbs")]
mod ibverbs;
mod link;
#[path = "../netns/mod.rs"]
mod netns;
mod nic;
mod peer;
mod perftest;
mod pingpong;
#[path = "../raw_packets/mod.rs"]
mod raw_packets;
#[cfg(feature = "ibverbs")]
mod raw_peer;
mod refusals;
mod rejects;
#[cfg(feature = "ibverbs")]
mod returned;
mod rig;
mod rping;
#[cfg(feature = "ibverbs")]
mod rping_there;
#[cfg(feature = "ibverbs")]
#[path = "../peer/mod.rs"]
mod side;
mod sizes;
mod traffic;

/// Boots the guest once and runs all other tests of this file beside it, one after the other.
#[test]
fn beside_a_guest() {
    guest::beside::run_beside_a_guest(&[]);
}
