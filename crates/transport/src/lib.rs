//! The InfiniBand transport (IB spec volume 1, chapters 9, 11 and 12) as a state machine: packets,
//! posts and the time in; packets, completions and events out. No I/O, no clock, no thread.
//!
//! The simulated NIC runs it over a virtual wire; a RoCE NIC in software runs it over sockets.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod adapter;
pub mod cm;
pub mod congestion;
mod host;
pub mod nic;
mod permutation;
pub mod rc;
pub mod wire;

pub use host::{AccessRefused, Host, QueueCompletion, QueuePairEvent, WorkQueue};
pub use legato_verbs::{PacketSequenceNumber, PathMtu, QueuePairNumber};
