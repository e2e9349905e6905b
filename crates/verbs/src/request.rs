//! Work requests.

use crate::{CompletionKind, RemoteKey, ScatterGatherEntry, VerbsError, WindowBinding};
use alloc::vec::Vec;
use core::ops::BitOr;

/// The poster's own name for a request, given back in its completion. By rule P-6 it
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
    pub flags: SendFlags,
}

impl SendRequest {
    /// For providers that have SEND, RDMA WRITE and RDMA READ, and no inline data.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] for anything else.
    pub const fn expect_basic(&self) -> Result<(), VerbsError> {
        use SendOperation::{RdmaRead, RdmaWrite, Send};
        if !matches!(self.operation, Send | RdmaWrite(_) | RdmaRead(_)) {
            return Err(VerbsError::Unsupported("such operation"));
        }
        if self.flags.contains(SendFlags::INLINE) {
            return Err(VerbsError::Unsupported("inline data"));
        }
        Ok(())
    }
}

/// How a send request is treated (`enum ibv_send_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SendFlags(u8);

impl SendFlags {
    pub const NONE: Self = Self(0);
    /// It starts when all RDMA READs and atomics before it have completed.
    pub const FENCE: Self = Self(1);
    /// Without it a request completes silently on success; its queue slot is free again only when
    /// a later signaled one has completed. Errors always complete.
    pub const SIGNALED: Self = Self(2);
    /// Its message raises an event at a receiver who waits for solicited ones only.
    pub const SOLICITED: Self = Self(4);
    /// The bytes are copied when it is posted: the buffer is the poster's at once, and its key is
    /// not looked at. For SEND and RDMA WRITE.
    pub const INLINE: Self = Self(8);

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 15)
    }

    /// The flags of `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for SendFlags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
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
    /// As `Send`; the receive's completion has the number.
    SendWithImmediate(u32),
    /// As `Send`; the receiver's key ends before the receive completes.
    SendWithInvalidate(RemoteKey),
    /// As `RdmaWrite`; then it takes a receive of the peer, whose completion has the number.
    RdmaWriteWithImmediate(RemoteAddress, u32),
    /// If the peer's 8 bytes are `compare` they become `swap`. What was there comes into the
    /// entries, 8 bytes long. The address is a multiple of 8.
    CompareAndSwap {
        target: RemoteAddress,
        compare: u64,
        swap: u64,
    },
    /// Adds to the peer's 8 bytes. What was there comes into the entries, 8 bytes long. The address
    /// is a multiple of 8.
    FetchAndAdd { target: RemoteAddress, add: u64 },
    /// Ends a key of the poster's own before later requests start.
    LocalInvalidate(RemoteKey),
    /// Gives a window to the peer before later requests start. It waits for what was posted before.
    BindWindow(WindowBinding),
}

impl SendOperation {
    /// May the entries' memory be written?
    pub const fn writes_locally(self) -> bool {
        matches!(
            self,
            Self::RdmaRead(_) | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. }
        )
    }

    /// What its completion says.
    pub const fn completion_kind(self) -> CompletionKind {
        match self {
            Self::Send | Self::SendWithImmediate(_) | Self::SendWithInvalidate(_) => {
                CompletionKind::Send
            }
            Self::RdmaWrite(_) | Self::RdmaWriteWithImmediate(..) => CompletionKind::RdmaWrite,
            Self::RdmaRead(_) => CompletionKind::RdmaRead,
            Self::CompareAndSwap { .. } => CompletionKind::CompareAndSwap,
            Self::FetchAndAdd { .. } => CompletionKind::FetchAndAdd,
            Self::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
            Self::BindWindow(_) => CompletionKind::BindWindow,
        }
    }
}

/// A request for the receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    pub wr_id: WorkRequestId,
    pub entries: Vec<ScatterGatherEntry>,
}
