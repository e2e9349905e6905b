//! A call of a session, from its start to its one outcome.

use alloc::vec::Vec;
use core::fmt;
use legato_base::Time;

/// A call of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionCallId {
    pub(super) session: u32,
    pub(super) number: u64,
}

impl fmt::Debug for SessionCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session-call-{}.{}", self.session, self.number)
    }
}

/// How often the peer may execute a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// At most once.
    Once,
    /// Any number of times: the caller says that this does no harm.
    Idempotent,
}

/// A call that has no outcome yet.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) body: Vec<u8>,
    pub(super) kind: CallKind,
    pub(super) deadline: Time,
    pub(super) place: Place,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It was never sent.
    Queued,
    /// It was sent, and this connection still owes the answer.
    Posted { sequence: u64, earlier: Sight },
    /// Its connection has ended without the answer: it is to be sent again.
    Again { sequence: u64, earlier: Sight },
}

/// Who may have executed a call before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Nobody.
    Nobody,
    /// A peer of this incarnation. Zero is any.
    Peer(u64),
}

impl Place {
    pub(super) const fn sequence(self) -> Option<u64> {
        match self {
            Self::Queued => None,
            Self::Posted { sequence, .. } | Self::Again { sequence, .. } => Some(sequence),
        }
    }

    /// May it have been executed?
    pub(super) const fn is_perhaps_executed(self) -> bool {
        match self {
            Self::Queued => false,
            Self::Posted { .. } => true,
            Self::Again { earlier, .. } => matches!(earlier, Sight::Peer(_)),
        }
    }
}

impl Sight {
    /// May a call of this kind be sent to a peer of this incarnation?
    pub(super) fn allows(self, kind: CallKind, peer: u64) -> bool {
        match (self, kind) {
            (Self::Nobody, _) | (_, CallKind::Idempotent) => true,
            // One that says nothing about its life may have forgotten everything (P-68).
            (Self::Peer(seen), CallKind::Once) => seen == peer && peer != 0,
        }
    }
}
