//! How a call of a session fails.

use crate::{Blame, ConnectError, Effect, OperationError, Refused, ResetCause};
use legato_base::wire::session::SessionWireError;

/// The failure of a call: who is to blame, and what happened at the far side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; at fault: {blame}; at the far side: {effect}")]
pub struct SessionError {
    pub blame: Blame,
    pub effect: Effect,
    pub cause: SessionCause,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionCause {
    #[error("the deadline passed")]
    DeadlineExpired,
    /// The deadline passed while there was no connection.
    #[error("the deadline passed, and the last attempt to connect had failed: {0}")]
    NotConnected(ConnectError),
    /// The deadline passed after the connection had ended.
    #[error("the deadline passed, and the connection had ended: {0}")]
    Disconnected(ResetCause),
    #[error("the caller canceled it")]
    Canceled,
    #[error("the session was closed")]
    Closed,
    #[error("{0}")]
    Refused(Refused),
    #[error("{0}")]
    Operation(OperationError),
    /// The peer that may have executed it has started again, and cannot know any more.
    #[error("the peer has started again since it was sent")]
    PeerRestarted,
    /// The peer has its later calls in its window, and not this one.
    #[error("the peer does not know any more whether it has executed it")]
    Forgotten,
    #[error("the peer has too many calls under way")]
    PeerBusy,
    /// The peer could not read the request.
    #[error("the peer did not understand the request")]
    NotUnderstood,
    #[error("the peer sent what is no reply of a session: {0}")]
    Malformed(SessionWireError),
    #[error("the peer sent the reply of another call")]
    WrongReply,
}

impl SessionError {
    pub(super) const fn new(blame: Blame, effect: Effect, cause: SessionCause) -> Self {
        Self {
            blame,
            effect,
            cause,
        }
    }
}

/// Nothing was sent in any of these cases.
pub(super) const fn connect_blame(error: ConnectError) -> Blame {
    match error {
        ConnectError::TooManyConnections
        | ConnectError::QuarantineFull
        | ConnectError::PrivateDataTooLong
        | ConnectError::Provider(_)
        | ConnectError::Closed => Blame::Local,
        ConnectError::Unreachable(_) => Blame::Path,
        ConnectError::Rejected(_) | ConnectError::Disconnected | ConnectError::Incompatible(_) => {
            Blame::Peer
        }
        // Which of the two secrets is the right one nobody can tell.
        ConnectError::Proof(_) => Blame::Unknown,
        // Silence: a cable and a dead peer sound the same.
        ConnectError::DeadlineExpired => Blame::Unknown,
    }
}
