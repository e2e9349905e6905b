//! A simulated queue pair.

use super::wire::Place;
use legato_base::Time;
use legato_verbs::{
    CompletionQueue, ProtectionDomain, QueuePairCapabilities, QueuePairState, ReceiveRequest,
    SendRequest,
};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct QueuePairRecord {
    pub(super) domain: ProtectionDomain,
    pub(super) queue: CompletionQueue,
    pub(super) capabilities: QueuePairCapabilities,
    pub(super) phase: Phase,
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) sends_posted: u64,
    /// Sends whose slot is free again: all up to the last one whose completion was polled.
    pub(super) sends_reclaimed: u64,
    pub(super) receives: VecDeque<ReceiveRequest>,
    pub(super) receives_posted: u64,
    pub(super) receives_reclaimed: u64,
    /// Sequence of the peer's next request.
    pub(super) requests_expected: u64,
    /// Requests that wait for a receive, the oldest in front, as the peer sent them.
    pub(super) stalled: VecDeque<Arrived>,
    /// Tries of the oldest stalled request so far.
    pub(super) stall_tries: u32,
    /// No message of this queue pair may arrive earlier than one that it sent before.
    pub(super) last_arrival: Time,
    /// When the peer last answered, or the oldest request left.
    pub(super) last_progress: Time,
    pub(super) retry_timer_armed: bool,
    /// The owner knows that the connection is over.
    pub(super) told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Reset,
    Init,
    /// A request is on its way to the machine or waits there.
    Connecting {
        machine: Option<usize>,
    },
    ReadyToReceive {
        peer: Place,
    },
    ReadyToSend {
        peer: Place,
    },
    /// `peer` only while the other end still has to hear of the end of the connection.
    Error {
        peer: Option<Place>,
    },
}

#[derive(Debug)]
pub(super) struct PostedSend {
    pub(super) sequence: u64,
    pub(super) request: SendRequest,
    /// It left; its effect at the peer is unknown until the answer.
    pub(super) sent: bool,
}

/// A request at the responder.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) sequence: u64,
    pub(super) body: RequestBody,
}

#[derive(Debug)]
pub(super) enum RequestBody {
    Send(Vec<u8>),
    Write {
        at: legato_verbs::RemoteAddress,
        bytes: Vec<u8>,
    },
    Read {
        at: legato_verbs::RemoteAddress,
        length: u64,
    },
}

impl QueuePairRecord {
    pub(super) const fn new(
        domain: ProtectionDomain,
        queue: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Self {
        Self {
            domain,
            queue,
            capabilities,
            phase: Phase::Reset,
            sends: VecDeque::new(),
            sends_posted: 0,
            sends_reclaimed: 0,
            receives: VecDeque::new(),
            receives_posted: 0,
            receives_reclaimed: 0,
            requests_expected: 0,
            stalled: VecDeque::new(),
            stall_tries: 0,
            last_arrival: Time::ZERO,
            last_progress: Time::ZERO,
            retry_timer_armed: false,
            told: false,
        }
    }

    pub(super) const fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Reset => QueuePairState::Reset,
            Phase::Init | Phase::Connecting { .. } => QueuePairState::Init,
            Phase::ReadyToReceive { .. } => QueuePairState::ReadyToReceive,
            Phase::ReadyToSend { .. } => QueuePairState::ReadyToSend,
            Phase::Error { .. } => QueuePairState::Error,
        }
    }

    pub(super) const fn peer(&self) -> Option<Place> {
        match self.phase {
            Phase::ReadyToReceive { peer } | Phase::ReadyToSend { peer } => Some(peer),
            Phase::Error { peer } => peer,
            Phase::Reset | Phase::Init | Phase::Connecting { .. } => None,
        }
    }

    /// Entries of the completion queue that are reserved for this queue pair.
    pub(super) const fn completions_max(&self) -> u32 {
        self.capabilities
            .send_requests_max
            .saturating_add(self.capabilities.receive_requests_max)
    }
}
