//! Asynchronous and connection events, as values delivered to their owner.

use crate::{ConnectionRequest, Listener, QueuePair};
use alloc::vec::Vec;

/// What [`crate::Provider::poll_event`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Connection(ConnectionEvent),
    Async(AsyncEvent),
}

/// Connection management (IB spec volume 1, chapter 12; `rdma_cm(7)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A peer asks to be connected: accept or reject it.
    Requested {
        listener: Listener,
        request: ConnectionRequest,
        private_data: Vec<u8>,
    },
    /// The queue pair is ready to send. On the active side `private_data` is the acceptor's.
    Established {
        queue_pair: QueuePair,
        private_data: Vec<u8>,
    },
    /// The peer said no. The queue pair is in the error state.
    Rejected {
        queue_pair: QueuePair,
        reason: RejectReason,
        private_data: Vec<u8>,
    },
    /// Nobody answered at the address. The queue pair is in the error state.
    Unreachable {
        queue_pair: QueuePair,
        reason: UnreachableReason,
    },
    /// The connection is over: the peer disconnected, or died. The queue pair is in the error
    /// state and its outstanding requests complete as flushed.
    Disconnected { queue_pair: QueuePair },
}

/// Why a peer rejected a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// Nobody listens there (IB reason 8, invalid service ID).
    InvalidServiceId,
    /// The peer's software said no (IB reason 28, consumer reject).
    ConsumerReject,
    /// The two providers do not speak the same version.
    IncompatibleVersion,
}

/// Why a peer could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason {
    /// The address does not exist.
    NoSuchAddress,
    /// The address exists and may not be used from here.
    PermissionDenied,
    /// No answer within the time that the provider grants.
    TimedOut,
    /// The answer could not be understood or the local system refused a step.
    Failed,
}

/// `enum ibv_event_type`, as far as the providers raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The queue pair broke a rule of the transport and is in the error state.
    QueuePairFatal { queue_pair: QueuePair },
    /// As responder, the queue pair refused an access by its peer and is in the error state.
    QueuePairAccessError { queue_pair: QueuePair },
    /// As responder, the queue pair refused a request by its peer and is in the error state.
    QueuePairRequestError { queue_pair: QueuePair },
}
