//! Completions.

use crate::{QueuePair, WorkRequestId};

/// What a completion queue hands out, once for each work request that completes.
///
/// On error hardware defines only the request's id, the status and the queue pair (the rest of
/// the entry is garbage: `ibv_poll_cq(3)`), so an error has no opcode and no length here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: WorkRequestId,
    pub queue_pair: QueuePair,
    pub result: Result<CompletionKind, CompletionStatus>,
}

/// What was completed, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// The buffer may be reused. Delivery to the peer's software is the peer's word.
    Send,
    /// A message of `length` bytes is in the posted buffers.
    Receive { length: u32 },
    /// The bytes were placed in the peer's memory.
    RdmaWrite,
    /// The peer's bytes are in the local buffers.
    RdmaRead,
}

/// Why a work request failed: `enum ibv_wc_status`, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[repr(u8)]
pub enum CompletionStatus {
    #[error("local length error: the message does not fit the receive buffers")]
    LocalLength = 1,
    #[error("local queue pair operation error")]
    LocalQueuePairOperation = 2,
    #[error("local protection error: a local key does not cover the buffer")]
    LocalProtection = 4,
    #[error("flushed: the queue pair was in the error state before the request was executed")]
    WorkRequestFlushed = 5,
    #[error("remote invalid request: the peer could not accept the message")]
    RemoteInvalidRequest = 9,
    #[error("remote access error: the remote key does not allow this access")]
    RemoteAccess = 10,
    #[error("remote operation error")]
    RemoteOperation = 11,
    #[error("transport retries exceeded: the peer does not answer")]
    RetryExceeded = 12,
    #[error("receiver-not-ready retries exceeded: the peer posted no receive")]
    ReceiverNotReadyRetryExceeded = 13,
}

impl CompletionStatus {
    /// The number in `enum ibv_wc_status`.
    pub const fn code(self) -> u8 {
        self as u8
    }
}
