//! What a provider tells its owner without being asked, as values.

use crate::{CompletionQueue, ConnectionRequest, Listener, QueuePair, SharedReceiveQueue};
use alloc::vec::Vec;

/// What [`crate::Provider::poll_event`] returns. One that was polled is the poller's: there is
/// nothing to acknowledge, and no destruction waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Connection(ConnectionEvent),
    Async(AsyncEvent),
    /// The queue was armed, and a completion has come since
    /// ([`crate::Provider::arm_completion_queue`]).
    CompletionQueueReady(CompletionQueue),
}

/// Connection management (IB spec volume 1, chapter 12; `rdma_cm(7)`).
///
/// Of `Rejected`, `Unreachable`, `Disconnected` and `DeviceRemoved` each queue pair gets exactly one
/// after a connect or accept. `TimeWaitExit` follows it.
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
    /// The connection is over: one of the two sides disconnected, or the peer died. The queue pair
    /// is in the error state and its outstanding requests complete as flushed.
    Disconnected { queue_pair: QueuePair },
    /// The connection is over, or does not come to be, because the NIC is gone.
    DeviceRemoved { queue_pair: QueuePair },
    /// The machine does not have the address any more that the queue pair has here, or has set its
    /// interface down. Nothing goes or comes until `AddressReturned`; it may be told more than once
    /// before. The queue pair stays as it is: its timers run.
    AddressRemoved { queue_pair: QueuePair },
    /// The machine has the queue pair's address again.
    AddressReturned { queue_pair: QueuePair },
    /// No packet of the ended connection is under way any more: taken to Reset and Init, the queue
    /// pair can be connected again. A queue pair that is destroyed earlier gets none, and
    /// its number is kept out of use as long.
    TimeWaitExit { queue_pair: QueuePair },
    /// The network interface of the connection has another hardware address now, as after the failover
    /// of a bond. The connection stays where it is: a hint.
    AddressChanged { queue_pair: QueuePair },
}

/// Why a peer rejected a connection (IB spec table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The peer has no room for it (reasons 1 to 3).
    NoResources,
    /// The peer did not get the answer that it waited for (4).
    Timeout,
    /// Nobody listens there (8).
    InvalidServiceId,
    /// The peer still has a connection with this queue pair's number, of before (10).
    StaleConnection,
    /// The peer's software said no (28).
    ConsumerReject,
    /// The two providers do not speak the same version.
    IncompatibleVersion,
    /// Another one, by its number.
    Other(u16),
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

/// What happens to an object without a request for it: all of `enum ibv_event_type` that a reliable
/// connected service knows (IB spec 11.6.3; `ibv_get_async_event(3)`), and a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An overrun: completions are lost.
    CompletionQueueError(CompletionQueue),
    /// It cannot go on, and is in the error state.
    QueuePairFatal(QueuePair),
    /// As responder it refused a request by its peer, and is in the error state.
    QueuePairRequestError(QueuePair),
    /// As responder it refused an access by its peer, and is in the error state.
    QueuePairAccessError(QueuePair),
    /// The first packet came before the connection was established.
    CommunicationEstablished(QueuePair),
    /// What had started before the send queue was stopped is over.
    SendQueueDrained(QueuePair),
    PathMigrated(QueuePair),
    PathMigrationError(QueuePair),
    /// In the error state it takes no more receives of the shared queue. Some devices never say
    /// it, some repeat it: a hint, never the only proof.
    LastWorkRequestReached(QueuePair),
    SharedReceiveQueueError(SharedReceiveQueue),
    /// Fewer receives are posted than the armed limit, which is disarmed.
    SharedReceiveQueueLimit(SharedReceiveQueue),
    /// The rest names ports by their number, from 1 on.
    PortActive(u8),
    PortError(u8),
    LocalIdentifierChange(u8),
    PartitionKeyChange(u8),
    SubnetManagerChange(u8),
    ClientReregister(u8),
    /// Something in the port's table of addresses is new or gone: a hint. Whose address it is hears
    /// [`ConnectionEvent::AddressRemoved`].
    AddressChange(u8),
    /// Nothing of the device works any more.
    DeviceFatal,
    /// Its peer lives and has had no receive for a request for a second; with retries without end
    /// (`rnr_retry` 7) it may wait for ever. Raised once for each such wait, by providers that
    /// see the packets; `libibverbs` has nothing of the kind.
    ReceiverNotReady(QueuePair),
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    CompletionQueue(CompletionQueue),
    QueuePair(QueuePair),
    SharedReceiveQueue(SharedReceiveQueue),
    Port(u8),
    Device,
}

impl Subject {
    /// Is it a port, and another one than this?
    pub const fn is_of_other_port(self, port: u8) -> bool {
        matches!(self, Self::Port(other) if other != port)
    }
}

impl AsyncEvent {
    pub const fn subject(self) -> Subject {
        match self {
            Self::CompletionQueueError(queue) => Subject::CompletionQueue(queue),
            Self::QueuePairFatal(queue_pair)
            | Self::QueuePairRequestError(queue_pair)
            | Self::QueuePairAccessError(queue_pair)
            | Self::CommunicationEstablished(queue_pair)
            | Self::SendQueueDrained(queue_pair)
            | Self::PathMigrated(queue_pair)
            | Self::PathMigrationError(queue_pair)
            | Self::LastWorkRequestReached(queue_pair)
            | Self::ReceiverNotReady(queue_pair) => Subject::QueuePair(queue_pair),
            Self::SharedReceiveQueueError(queue) | Self::SharedReceiveQueueLimit(queue) => {
                Subject::SharedReceiveQueue(queue)
            }
            Self::PortActive(port)
            | Self::PortError(port)
            | Self::LocalIdentifierChange(port)
            | Self::PartitionKeyChange(port)
            | Self::SubnetManagerChange(port)
            | Self::ClientReregister(port)
            | Self::AddressChange(port) => Subject::Port(port),
            Self::DeviceFatal => Subject::Device,
        }
    }

    /// The number in `enum ibv_event_type`, or one from 128 on.
    pub const fn code(self) -> u8 {
        match self {
            Self::CompletionQueueError(_) => 0,
            Self::QueuePairFatal(_) => 1,
            Self::QueuePairRequestError(_) => 2,
            Self::QueuePairAccessError(_) => 3,
            Self::CommunicationEstablished(_) => 4,
            Self::SendQueueDrained(_) => 5,
            Self::PathMigrated(_) => 6,
            Self::PathMigrationError(_) => 7,
            Self::DeviceFatal => 8,
            Self::PortActive(_) => 9,
            Self::PortError(_) => 10,
            Self::LocalIdentifierChange(_) => 11,
            Self::PartitionKeyChange(_) => 12,
            Self::SubnetManagerChange(_) => 13,
            Self::SharedReceiveQueueError(_) => 14,
            Self::SharedReceiveQueueLimit(_) => 15,
            Self::LastWorkRequestReached(_) => 16,
            Self::ClientReregister(_) => 17,
            Self::AddressChange(_) => 18,
            Self::ReceiverNotReady(_) => 128,
        }
    }
}
