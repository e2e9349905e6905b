//! What a NIC is, in the words of the InfiniBand verbs: protection domains, memory regions,
//! completion queues, queue pairs, work requests, asynchronous events and connection management,
//! as one [`Provider`] trait; and the conformance suite that every provider passes.
//!
//! A provider is a set of queues that the caller drives: nothing here blocks, reads a clock or
//! starts a thread. `progress(now)` lets a software provider do its own work (sockets, rings,
//! virtual wires); completions and events are then polled.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
mod completion;
pub mod conformance;
mod error;
mod event;
mod handle;
mod memory;
mod provider;
mod queue_pair;
mod request;

pub use address::{Address, AddressError};
pub use completion::{Completion, CompletionKind, CompletionStatus};
pub use error::VerbsError;
pub use event::{AsyncEvent, ConnectionEvent, Event, RejectReason, UnreachableReason};
pub use handle::{CompletionQueue, ConnectionRequest, Listener, ProtectionDomain, QueuePair};
pub use memory::{AccessFlags, LocalKey, MemoryRegion, RemoteKey, ScatterGatherEntry};
pub use provider::{DeviceAttributes, PRIVATE_DATA_MAX, Provider, ResourceCounts};
pub use queue_pair::{QueuePairCapabilities, QueuePairState};
pub use request::{ReceiveRequest, RemoteAddress, SendOperation, SendRequest, WorkRequestId};
