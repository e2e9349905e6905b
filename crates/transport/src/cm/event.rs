//! What a manager says to its user.

use super::connection::{ConnectionId, ConnectionState};
use super::message::{
    AdditionalInformation, ConnectReply, ConnectRequest, Gid, Mad, PrivateData, RejectReason,
    ServiceId,
};
use crate::QueuePairNumber;
use alloc::boxed::Box;

/// A datagram to send from the general service queue pair to that of `destination`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    pub destination: Gid,
    pub mad: Mad,
}

/// What happens to a connection.
///
/// Of [`Self::Rejected`], [`Self::Unreachable`], [`Self::Disconnected`] and
/// [`Self::DeviceRemoved`] each connection gets exactly one, except for a request of a peer that
/// this side rejects. One that had a queue pair then gets [`Self::TimeWaitExit`], which is its
/// last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks to be connected: accept or reject it.
    Requested {
        connection: ConnectionId,
        peer: Gid,
        request: Box<ConnectRequest>,
    },
    /// The connection is there.
    Established {
        connection: ConnectionId,
        /// On the side that asked: what the peer's queue pair is.
        reply: Option<Box<ConnectReply>>,
    },
    /// The connection does not come to be: the peer said so, or it is the peer of another
    /// connection now.
    Rejected {
        connection: ConnectionId,
        reason: RejectReason,
        information: AdditionalInformation,
        private_data: Box<PrivateData<148>>,
    },
    /// The connection does not come to be: the peer does not answer.
    Unreachable { connection: ConnectionId },
    /// The connection is over.
    Disconnected {
        connection: ConnectionId,
        cause: DisconnectCause,
    },
    /// The connection is over, or does not come to be, because the NIC is gone.
    DeviceRemoved { connection: ConnectionId },
    /// The queue pair may be used again.
    TimeWaitExit {
        connection: ConnectionId,
        queue_pair: QueuePairNumber,
    },
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectCause {
    /// The user asked for it. `acknowledged`: the peer knows.
    Local { acknowledged: bool },
    /// The peer asked for it.
    Peer,
    /// The peer does not know the connection, or gave it up.
    Rejected(RejectReason),
    /// The peer uses its queue pair for something else: it has forgotten this connection.
    Stale,
}

/// Why a call was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    #[error("no such connection")]
    UnknownConnection,
    #[error("the connection is in state {0:?}, which does not allow this")]
    InvalidState(ConnectionState),
    #[error("queue pair {0:?} has a connection, or had one a moment ago")]
    QueuePairInUse(QueuePairNumber),
    #[error("queue pair {0:?} cannot be connected")]
    ReservedQueuePair(QueuePairNumber),
    #[error("there are as many connections as are allowed: {0}")]
    TooManyConnections(u32),
    #[error("{0:?} is listened for already")]
    ServiceInUse(ServiceId),
    #[error("the NIC is gone")]
    DeviceRemoved,
}

/// Numbers for whoever looks for what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    pub received: u64,
    /// No message of connection management.
    pub malformed: u64,
    /// Of a connection with somebody else.
    pub foreign: u64,
    /// Of a connection that is past it, or never got there, or does not exist.
    pub unexpected: u64,
    /// Repeated by the peer, and answered as before.
    pub duplicates: u64,
    /// Repeated by this side.
    pub retransmissions: u64,
    /// Not taken in time by the user of this side.
    pub transmits_dropped: u64,
    /// Requests refused for want of room.
    pub refused_for_resources: u64,
    /// Connections ended because their peer had forgotten them.
    pub stale: u64,
}

/// Objects alive: all zero when everything has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ManagerCounts {
    pub connections: usize,
    pub half_open: usize,
    /// Queue pairs that may not be used again yet.
    pub queue_pairs: usize,
    pub timers: usize,
    pub refusals: usize,
}
