//! Work requests.

use crate::{RemoteKey, ScatterGatherEntry};
use alloc::vec::Vec;

/// The poster's own name for a request, given back in its completion. By the design's rule 4 it
/// is an index and a generation, never a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkRequestId(pub u64);

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    pub key: RemoteKey,
    pub address: u64,
}

/// A request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    pub wr_id: WorkRequestId,
    pub operation: SendOperation,
    pub entries: Vec<ScatterGatherEntry>,
    /// Unsignaled requests complete silently on success; their queue slot is free again only when
    /// a later signaled one has completed. Errors always complete.
    pub signaled: bool,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// Deliver the entries' bytes into the peer's next posted receive.
    Send,
    /// Place the entries' bytes in the peer's memory.
    RdmaWrite(RemoteAddress),
    /// Fetch the peer's bytes into the entries.
    RdmaRead(RemoteAddress),
}

/// A request for the receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    pub wr_id: WorkRequestId,
    pub entries: Vec<ScatterGatherEntry>,
}
