//! Completions.

use crate::{QueuePair, RemoteKey, WorkRequestId};

/// What a completion queue hands out, once for each work request that completes.
///
/// On error hardware defines only the request's id, the status, the queue pair and `vendor_err` (the rest of
/// the entry is garbage: `ibv_poll_cq(3)`), so an error has no opcode and no length here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: WorkRequestId,
    pub queue_pair: QueuePair,
    pub result: Result<CompletionKind, CompletionStatus>,
    /// Of a failure, what the device's maker calls it (`vendor_err`): for a human being who has the
    /// maker's list. 0 where the device says nothing.
    pub vendor_error: u32,
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
    /// What was there is in the local buffer.
    CompareAndSwap,
    /// What was there is in the local buffer.
    FetchAndAdd,
    /// The key has ended.
    LocalInvalidate,
    /// The window's next key is valid.
    BindWindow,
    /// As `Receive`, with the sender's number.
    ReceiveWithImmediate { length: u32, immediate: u32 },
    /// As `Receive`; the receiver's key has ended.
    ReceiveWithInvalidate { length: u32, key: RemoteKey },
    /// The peer has written `length` bytes, not into this receive's buffers.
    ReceiveRdmaWithImmediate { length: u32, immediate: u32 },
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
    #[error("bad response: the peer answered what was not asked")]
    BadResponse = 7,
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

/// What a waiter is to be woken for (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Next,
    /// The next of a message whose sender asked for it, or the next failure.
    Solicited,
}

impl CompletionStatus {
    /// The number in `enum ibv_wc_status`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reverse of [`Self::code`]. None for a number that a reliable connection does not have.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::LocalLength,
            2 => Self::LocalQueuePairOperation,
            4 => Self::LocalProtection,
            5 => Self::WorkRequestFlushed,
            7 => Self::BadResponse,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetryExceeded,
            13 => Self::ReceiverNotReadyRetryExceeded,
            _ => return None,
        })
    }
}
