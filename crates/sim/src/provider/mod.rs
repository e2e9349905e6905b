//! The simulated provider: NICs on a virtual wire, in virtual time, from one seed.
//!
//! A [`SimNetwork`] holds every machine and every packet under way; a [`SimProvider`] is one
//! machine's handle on its own NIC. Nothing happens until [`SimNetwork::advance_to`] says so, and
//! all of it happens in an order that follows from the seed alone.
//!
//! A NIC is the channel adapter of `legato-transport` with memory, clock and wire of the simulator.
//! What is on the wire is what a RoCEv2 NIC sends: packets from the base transport header to the
//! invariant CRC, connection management included. What the NIC does where the specification leaves
//! it a choice, or in spite of it, is its [`Personality`].

mod config;
mod environment;
mod hardware;
mod late;
mod memory;
mod network;
mod nic;
mod patience;
mod personality;
#[cfg(test)]
mod tests;
mod trace;
mod verbs;
mod wire;

pub use config::SimNetworkConfig;
pub use memory::{CanaryHit, RegionMemory, WatchId};
pub use network::SimNetwork;
pub use nic::Counters;
pub use personality::{Careless, LateWrites, Mishaps, Personality, UnknownPersonality};
pub use verbs::SimProvider;
