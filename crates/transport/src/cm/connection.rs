//! A connection: its name, and its states with what may be known in each.

use super::message::{CaGuid, CommunicationId, ConnectRequest, Gid, Mad, TransactionId};
use crate::{PacketSequenceNumber, QueuePairNumber};
use alloc::boxed::Box;
use legato_base::Time;

/// Names a connection of a manager: a place, and how many had it before. A name is never used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl ConnectionId {
    /// Places that a communication ID can tell apart.
    pub(super) const PLACES: u32 = 0xFFFF;

    /// The name on the wire: never zero, and the same again only after 65536 others in its place,
    /// all of which wait.
    pub(super) const fn communication_id(self) -> CommunicationId {
        CommunicationId(self.generation << 16 | (self.index + 1))
    }

    /// The place that a communication ID may be of.
    pub(super) const fn index_of(id: CommunicationId) -> Option<u32> {
        (id.0 & Self::PLACES).checked_sub(1)
    }
}

/// The states that are seen from outside (IB spec 12.9.5, 12.9.6). A reply and a disconnect request
/// are answered at once, so their own states (REP received, DREQ received) do not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// REQ sent
    RequestSent,
    /// MRA (REQ) received
    RequestAcknowledged,
    /// REQ received
    RequestReceived,
    /// REP sent
    ReplySent,
    /// MRA (REP) received
    ReplyAcknowledged,
    Established,
    /// DREQ sent
    DisconnectSent,
    TimeWait,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) peer: Gid,
    pub(super) deadline: Time,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    RequestSent(RequestSent),
    RequestReceived(RequestReceived),
    ReplySent(ReplySent),
    Established(Established),
    DisconnectSent(DisconnectSent),
    TimeWait(TimeWait),
}

#[derive(Debug)]
pub(super) struct RequestSent {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) exchange: Exchange,
}

#[derive(Debug)]
pub(super) struct RequestReceived {
    pub(super) origin: Origin,
    pub(super) service: super::message::ServiceId,
    /// How often the peer lets the reply be repeated.
    pub(super) retries_max: u8,
}

#[derive(Debug)]
pub(super) struct ReplySent {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) origin: Origin,
    pub(super) exchange: Exchange,
}

#[derive(Debug)]
pub(super) struct Established {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) remote: Remote,
    pub(super) side: Side,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// It asked, in this exchange.
    Active(TransactionId),
    /// It was asked.
    Passive(Origin),
}

#[derive(Debug)]
pub(super) struct DisconnectSent {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) remote_id: CommunicationId,
    pub(super) origin: Option<Origin>,
    pub(super) exchange: Exchange,
    /// The user knows that the connection is over.
    pub(super) announced: bool,
}

#[derive(Debug)]
pub(super) struct TimeWait {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) origin: Option<Origin>,
}

/// The queue pair at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) communication_id: CommunicationId,
    pub(super) ca_guid: CaGuid,
    pub(super) queue_pair: QueuePairNumber,
}

/// The request that a connection came from. Another one that is equal is its repetition; another
/// one of the same NIC and communication ID is of a peer that has started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) remote: Remote,
    pub(super) transaction: TransactionId,
    sequence: PacketSequenceNumber,
}

/// A message that is repeated until it is answered.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) transaction: TransactionId,
    pub(super) mad: Box<Mad>,
    pub(super) retries_left: u8,
    /// In so many of them it is sent again; the others only wait.
    pub(super) repetitions_left: u8,
    /// The peer has said that the answer takes its time, since the message was last sent.
    pub(super) acknowledged: bool,
}

/// By what a connection is found, apart from its own name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) request: Option<(CaGuid, CommunicationId)>,
    /// While the peer's queue pair is thought to be connected to this side's.
    pub(super) remote_queue_pair: Option<(CaGuid, QueuePairNumber)>,
    pub(super) local_queue_pair: Option<QueuePairNumber>,
}

impl Remote {
    pub(super) const fn queue_pair_key(&self) -> (CaGuid, QueuePairNumber) {
        (self.ca_guid, self.queue_pair)
    }
}

impl Origin {
    pub(super) const fn new(transaction: TransactionId, request: &ConnectRequest) -> Self {
        Self {
            remote: Remote {
                communication_id: request.communication_id,
                ca_guid: request.ca_guid,
                queue_pair: request.queue_pair,
            },
            transaction,
            sequence: request.starting_sequence,
        }
    }

    pub(super) const fn key(&self) -> (CaGuid, CommunicationId) {
        (self.remote.ca_guid, self.remote.communication_id)
    }
}

impl State {
    pub(super) fn keys(&self) -> Keys {
        let ended = |origin: &Option<Origin>, queue_pair| Keys {
            request: origin.as_ref().map(Origin::key),
            remote_queue_pair: None,
            local_queue_pair: Some(queue_pair),
        };
        match self {
            Self::RequestSent(state) => Keys {
                local_queue_pair: Some(state.queue_pair),
                ..Keys::default()
            },
            Self::RequestReceived(state) => Keys {
                request: Some(state.origin.key()),
                remote_queue_pair: Some(state.origin.remote.queue_pair_key()),
                local_queue_pair: None,
            },
            Self::ReplySent(state) => Keys {
                request: Some(state.origin.key()),
                remote_queue_pair: Some(state.origin.remote.queue_pair_key()),
                local_queue_pair: Some(state.queue_pair),
            },
            Self::Established(state) => Keys {
                request: state.origin().as_ref().map(Origin::key),
                remote_queue_pair: Some(state.remote.queue_pair_key()),
                local_queue_pair: Some(state.queue_pair),
            },
            Self::DisconnectSent(state) => ended(&state.origin, state.queue_pair),
            Self::TimeWait(state) => ended(&state.origin, state.queue_pair),
        }
    }

    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self, Self::RequestReceived(_) | Self::ReplySent(_))
    }

    /// The request that it came from.
    pub(super) const fn origin(&self) -> Option<Origin> {
        match self {
            Self::RequestSent(_) => None,
            Self::RequestReceived(state) => Some(state.origin),
            Self::ReplySent(state) => Some(state.origin),
            Self::Established(state) => state.origin(),
            Self::DisconnectSent(state) => state.origin,
            Self::TimeWait(state) => state.origin,
        }
    }

    /// The message that is repeated now.
    pub(super) const fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        match self {
            Self::RequestSent(state) => Some(&mut state.exchange),
            Self::ReplySent(state) => Some(&mut state.exchange),
            Self::DisconnectSent(state) => Some(&mut state.exchange),
            Self::RequestReceived(_) | Self::Established(_) | Self::TimeWait(_) => None,
        }
    }

    pub(super) const fn seen(&self) -> ConnectionState {
        match self {
            Self::RequestSent(state) if state.exchange.acknowledged => {
                ConnectionState::RequestAcknowledged
            }
            Self::RequestSent(_) => ConnectionState::RequestSent,
            Self::RequestReceived(_) => ConnectionState::RequestReceived,
            Self::ReplySent(state) if state.exchange.acknowledged => {
                ConnectionState::ReplyAcknowledged
            }
            Self::ReplySent(_) => ConnectionState::ReplySent,
            Self::Established(_) => ConnectionState::Established,
            Self::DisconnectSent(_) => ConnectionState::DisconnectSent,
            Self::TimeWait(_) => ConnectionState::TimeWait,
        }
    }
}

impl Established {
    pub(super) const fn origin(&self) -> Option<Origin> {
        match self.side {
            Side::Active(_) => None,
            Side::Passive(origin) => Some(origin),
        }
    }
}
