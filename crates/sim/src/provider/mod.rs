//! The simulated provider: NICs on a virtual wire, in virtual time, from one seed.
//!
//! A [`SimNetwork`] holds every machine and every message under way; a [`SimProvider`] is one
//! machine's handle on its own NIC. Nothing happens until [`SimNetwork::advance_to`] says so, and
//! all of it happens in an order that follows from the seed alone.
//!
//! What is modelled: latency with jitter, the bandwidth of each machine's link, the order of a
//! connection's messages, requests that leave their buffer later than they were posted and that
//! arrive even if their sender has flushed them meanwhile, one-sided access without target
//! software, receiver-not-ready retries, retransmission timeouts, killed machines and frozen ones.
//! What is not: packets. A message arrives whole or not at all, and always once.

mod connection;
mod machine;
mod network;
mod posting;
mod queue_pair;
mod table;
#[cfg(test)]
mod tests;
mod trace;
mod transfer;
mod verbs;
mod wire;

pub use network::{SimNetwork, SimNetworkConfig};
pub use verbs::SimProvider;
