//! Why a verb was refused. A refused call has changed nothing.

use crate::{ModifyError, QueuePairState};
use legato_base::SystemError;

/// An immediate refusal, as opposed to a completion with an error status or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// A full queue gives the request back and never spins.
    #[error("the {0} queue is full: poll completions and post again")]
    QueueFull(&'static str),
    #[error("the queue pair is in state {0:?}, which does not allow this")]
    InvalidState(QueuePairState),
    /// The ledger of a completion queue: every request that may complete has its entry reserved
    /// when the queue pair is made, so an overrun cannot happen.
    #[error("the completion queue has {free} free entries and the queue pair needs {needed}")]
    CompletionQueueTooSmall { needed: u32, free: u32 },
    #[error("no such {0}")]
    UnknownHandle(&'static str),
    #[error("the {0} is still used by another object")]
    Busy(&'static str),
    #[error("{what} is limited to {limit}, {asked} were asked for")]
    LimitExceeded {
        what: &'static str,
        asked: u64,
        limit: u64,
    },
    /// The attributes of a change of a queue pair.
    #[error(transparent)]
    Attributes(ModifyError),
    /// It is over: [`crate::AsyncEvent::CompletionQueueError`] has said so.
    #[error("the completion queue was overrun, and its completions are lost")]
    CompletionQueueOverrun,
    /// [`crate::AsyncEvent::DeviceFatal`] has said so.
    #[error("the NIC is gone")]
    DeviceRemoved,
    #[error("this provider has no {0}")]
    Unsupported(&'static str),
    #[error("the local key does not cover the buffer or does not allow the access")]
    LocalProtection,
    #[error("the address is in use")]
    AddressInUse,
    #[error("this provider cannot use that kind of address")]
    UnsupportedAddress,
    #[error("not allowed to use the address")]
    PermissionDenied,
    /// `errno` of the failed system call, where the provider stands on system calls.
    #[error("the system refused {call}: {}", SystemError(*.errno))]
    System { call: &'static str, errno: i32 },
}

impl From<ModifyError> for VerbsError {
    fn from(error: ModifyError) -> Self {
        match error {
            ModifyError::Transition { from, .. } | ModifyError::OtherState(from) => {
                Self::InvalidState(from)
            }
            other => Self::Attributes(other),
        }
    }
}
