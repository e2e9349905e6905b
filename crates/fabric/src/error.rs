//! Why an operation failed: who is to blame, what happened at the far side, and what was seen.

use crate::ProofError;
use legato_base::wire::message::MessageError;
use legato_verbs::{CompletionStatus, RejectReason, UnreachableReason, VerbsError};

/// The failure of a call or of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; at fault: {blame}; at the far side: {effect}")]
pub struct OperationError {
    /// Decides whose health suffers.
    pub blame: Blame,
    /// Decides whether it may be sent again.
    pub effect: Effect,
    pub cause: Cause,
}

/// Who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blame {
    #[error("this side")]
    Local,
    #[error("the path")]
    Path,
    #[error("the peer")]
    Peer,
    #[error("not known")]
    Unknown,
}

/// What happened at the far side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Effect {
    #[error("certainly not executed")]
    NotExecuted,
    #[error("executed")]
    Executed,
    #[error("perhaps executed")]
    Unknown,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("the deadline passed")]
    DeadlineExpired,
    #[error("this side canceled it")]
    Canceled,
    /// This very request failed.
    #[error("{0}")]
    Completion(CompletionStatus),
    /// The connection ended under the operation.
    #[error("the connection was reset: {0}")]
    Reset(ResetCause),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetCause {
    #[error("this side closed it")]
    Closed,
    #[error("the peer disconnected or died")]
    PeerDisconnected,
    /// Nothing but the error state calls a posted operation back.
    #[error("the deadline of a one-sided operation passed")]
    OperationExpired,
    #[error("the peer has said nothing for as long as it is believed to be alive")]
    PeerSilent,
    /// It has said so when it connected again.
    #[error("the peer has closed its side")]
    PeerClosed,
    #[error("a work request has not completed for as long as a peer is believed to be alive")]
    CompletionMissing,
    /// All of them, for as long as a peer is believed to be alive.
    #[error("every credit is held by a call that the peer has not answered")]
    CreditsLost,
    #[error("the port went down")]
    PortDown,
    #[error(
        "this machine does not have the connection's address any more, or its interface is down"
    )]
    AddressRemoved,
    #[error("the peer sent something malformed: {0}")]
    Malformed(MessageError),
    #[error("the peer sent more requests than its credits allow")]
    CreditsExceeded,
    #[error("{0}")]
    Transport(CompletionStatus),
    #[error("the queue pair failed")]
    QueuePairFatal,
    #[error("the completion queue was overrun")]
    CompletionQueueOverrun,
    #[error("the shared receive queue failed")]
    ReceiveQueueFailed,
    #[error("the NIC is gone")]
    DeviceRemoved,
    #[error("the peer tried an access that it has no right to")]
    PeerAccess,
    #[error("the peer sent a request that the queue pair refused")]
    PeerRequest,
    #[error("the provider refused a step: {0}")]
    Provider(VerbsError),
    #[error("the provider reported what cannot happen in this state")]
    Unexpected,
}

/// Why nothing was started. The buffer, if any, comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No credit or no place: poll, and try again.
    #[error("as many operations are under way as there may be")]
    WouldBlock,
    #[error("not connected")]
    NotConnected,
    #[error("longer than the peer or the provider allows")]
    TooLong,
    #[error("the deadline has passed already")]
    DeadlinePassed,
    #[error("too much memory is in quarantine, because its NIC was not seen to be done with it")]
    QuarantineFull,
    #[error("the provider refused: {0}")]
    Provider(VerbsError),
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("as many connections exist as there may be")]
    TooManyConnections,
    #[error("too much memory is in quarantine, because its NIC was not seen to be done with it")]
    QuarantineFull,
    #[error("the private data is longer than {PRIVATE_DATA_USER_MAX} bytes")]
    PrivateDataTooLong,
    #[error("the provider refused: {0}")]
    Provider(VerbsError),
    #[error("the peer rejected the connection ({0:?})")]
    Rejected(RejectReason),
    #[error("nobody answers at the address ({0:?})")]
    Unreachable(UnreachableReason),
    #[error("the deadline passed")]
    DeadlineExpired,
    #[error("the peer went away while connecting")]
    Disconnected,
    #[error("the peer does not speak this protocol: {0}")]
    Incompatible(MessageError),
    #[error("{0}")]
    Proof(ProofError),
    #[error("closed while connecting")]
    Closed,
}

/// Bytes of private data left for the user of a connection.
pub const PRIVATE_DATA_USER_MAX: usize =
    legato_verbs::PRIVATE_DATA_MAX - legato_base::wire::message::HELLO_SIZE;

/// Why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It was replied to already, or its connection is gone.
    #[error("the request does not wait for a reply")]
    NotWaiting,
    /// The request still waits.
    #[error("the reply is longer than the peer allows")]
    TooLong,
    #[error("the provider refused: {0}")]
    Provider(VerbsError),
}

impl OperationError {
    pub(crate) const EXPIRED: Self = Self {
        blame: Blame::Unknown,
        effect: Effect::Unknown,
        cause: Cause::DeadlineExpired,
    };

    /// The peer's word that it was not executed, because it came too late.
    pub(crate) const EXPIRED_UNEXECUTED: Self = Self {
        effect: Effect::NotExecuted,
        ..Self::EXPIRED
    };

    /// What was posted cannot be called back.
    pub(crate) const CANCELED: Self = Self {
        blame: Blame::Local,
        effect: Effect::Unknown,
        cause: Cause::Canceled,
    };

    /// For what was posted and did not complete: it may have been executed and its
    /// acknowledgement lost.
    pub(crate) const fn reset(cause: ResetCause) -> Self {
        Self {
            blame: cause.blame(),
            effect: Effect::Unknown,
            cause: Cause::Reset(cause),
        }
    }

    /// For the work request that itself failed with `status`.
    pub(crate) const fn completion(status: CompletionStatus) -> Self {
        let effect = match status {
            // The responder refuses these before it touches anything (IB spec volume 1, 9.7.4.1),
            // and a message that is too long never leaves.
            CompletionStatus::RemoteInvalidRequest
            | CompletionStatus::ReceiverNotReadyRetryExceeded
            | CompletionStatus::LocalLength => Effect::NotExecuted,
            CompletionStatus::LocalQueuePairOperation
            | CompletionStatus::LocalProtection
            | CompletionStatus::WorkRequestFlushed
            | CompletionStatus::BadResponse
            // A WRITE may leave its region with a later packet: those before it are written.
            | CompletionStatus::RemoteAccess
            | CompletionStatus::RemoteOperation
            | CompletionStatus::RetryExceeded => Effect::Unknown,
        };
        Self {
            blame: blame(status),
            effect,
            cause: Cause::Completion(status),
        }
    }
}

impl ResetCause {
    /// Was this perhaps only the consequence of another cause, which is told later? A flush always is one; and that a
    /// connection is over is also told when this side's own NIC has ended it.
    pub(crate) const fn may_follow_from(self, other: Self) -> bool {
        match self {
            Self::Transport(CompletionStatus::WorkRequestFlushed) => true,
            Self::PeerDisconnected => match other {
                Self::Transport(status) => !matches!(status, CompletionStatus::WorkRequestFlushed),
                Self::QueuePairFatal
                | Self::DeviceRemoved
                | Self::PeerAccess
                | Self::PeerRequest => true,
                _ => false,
            },
            _ => false,
        }
    }

    pub const fn blame(self) -> Blame {
        match self {
            Self::Closed
            | Self::QueuePairFatal
            | Self::CompletionQueueOverrun
            | Self::ReceiveQueueFailed
            | Self::DeviceRemoved
            | Self::PortDown
            | Self::AddressRemoved
            | Self::Provider(_)
            | Self::Unexpected => Blame::Local,
            Self::PeerDisconnected
            | Self::PeerClosed
            | Self::CreditsLost
            | Self::Malformed(_)
            | Self::CreditsExceeded
            | Self::PeerAccess
            | Self::PeerRequest => Blame::Peer,
            // A dead path and a dead peer are silent in the same way, and so is a NIC that loses completions.
            Self::OperationExpired | Self::PeerSilent | Self::CompletionMissing => Blame::Unknown,
            Self::Transport(status) => blame(status),
        }
    }
}

const fn blame(status: CompletionStatus) -> Blame {
    match status {
        CompletionStatus::LocalLength
        | CompletionStatus::LocalQueuePairOperation
        | CompletionStatus::LocalProtection => Blame::Local,
        CompletionStatus::BadResponse
        | CompletionStatus::RemoteInvalidRequest
        | CompletionStatus::RemoteAccess
        | CompletionStatus::RemoteOperation
        | CompletionStatus::ReceiverNotReadyRetryExceeded => Blame::Peer,
        CompletionStatus::RetryExceeded => Blame::Path,
        CompletionStatus::WorkRequestFlushed => Blame::Unknown,
    }
}
