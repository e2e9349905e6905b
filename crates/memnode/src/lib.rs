//! A memory node: extents of page slots, each owned by one client.
//!
//! The node only hands out registered memory; pages travel by one-sided operations that it never
//! sees. What belongs to a client ends with the client's connection.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod node;
mod server;

pub use node::{Caller, Interface, LEFT_AVAILABLE, MemoryNode, NodeConfig, NodeCounters};
pub use server::{NodeServer, OverdueHandler};
