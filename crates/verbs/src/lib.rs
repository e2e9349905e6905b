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
mod attributes;
mod completion;
pub mod conformance;
#[doc(hidden)]
pub mod delegate;
mod error;
mod event;
mod handle;
mod memory;
mod number;
pub mod private_data;
mod provider;
mod queue_pair;
mod request;
mod transitions;

pub use address::{Address, AddressError, ROCE_PORT, UnresolvedAddress, VerbsPort};
pub use attributes::{AddressVector, QueuePairAttributes};
pub use completion::{Arm, Completion, CompletionKind, CompletionStatus};
pub use error::VerbsError;
pub use event::{AsyncEvent, ConnectionEvent, Event, RejectReason, Subject, UnreachableReason};
pub use handle::{
    CompletionQueue, ConnectionRequest, Listener, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
pub use memory::{
    AccessFlags, LocalKey, MemoryRegion, Prepared, RemoteKey, ScatterGatherEntry, WindowBinding,
};
pub use number::{PacketSequenceNumber, PathMtu, QueuePairNumber, RetryCount, RnrTimer};
pub use provider::{DeviceAttributes, PRIVATE_DATA_MAX, Provider, ResourceCounts};
pub use queue_pair::{
    QueuePairCapabilities, QueuePairInit, QueuePairState, Receives, SharedReceiveQueueCapabilities,
};
pub use request::{
    ReceiveRequest, RemoteAddress, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
pub use transitions::ModifyError;
