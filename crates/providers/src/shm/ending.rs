//! How a queue pair's connection ends, and the ways into the error and reset states.

use super::hub::Hub;
use super::queue_pair::{Pair, Phase};
use super::ring::LinkState;
use legato_verbs::{
    AsyncEvent, CompletionStatus, ConnectionEvent, Event, QueuePair, QueuePairAttributes,
    QueuePairState,
};

/// Why a queue pair goes to the error state.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// What the first request of each queue fails with; the rest is flushed.
    pub(super) send: Option<CompletionStatus>,
    pub(super) receive: Option<CompletionStatus>,
    /// What the peer finds in our segment.
    pub(super) link: LinkState,
    pub(super) event: Option<fn(QueuePair) -> AsyncEvent>,
    /// The connection's last event, if it is not [`ConnectionEvent::Disconnected`].
    pub(super) ending: Option<ConnectionEvent>,
}

impl Failure {
    /// None: this side or the peer has ended it.
    pub(super) const NONE: Self = Self {
        send: None,
        receive: None,
        link: LinkState::Closed,
        event: None,
        ending: None,
    };

    /// The oldest send request fails.
    pub(super) fn of_send(status: CompletionStatus) -> Self {
        Self {
            send: Some(status),
            ..Self::NONE
        }
    }

    /// The oldest send request fails by our own judgement, of which the peer is told.
    pub(super) fn as_initiator(status: CompletionStatus) -> Self {
        let link = match status {
            CompletionStatus::RemoteAccess => LinkState::AccessViolated,
            CompletionStatus::RemoteInvalidRequest => LinkState::RequestViolated,
            _ => LinkState::Closed,
        };
        Self {
            link,
            ..Self::of_send(status)
        }
    }

    pub(super) fn with(event: fn(QueuePair) -> AsyncEvent) -> Self {
        Self {
            event: Some(event),
            ..Self::NONE
        }
    }
}

const FLUSHED: CompletionStatus = CompletionStatus::WorkRequestFlushed;

impl Pair {
    /// Ends whatever connection there is and flushes both queues: the only way into Error. The
    /// receives of a shared queue stay there, but for one that failed.
    pub(super) fn enter_error(&mut self, hub: &mut Hub, failure: Failure) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        if let Phase::Established(connection) = &self.phase {
            connection.link.close(failure.link);
            self.deliver_rest(hub);
        }
        self.close(hub, failure.link);
        self.started = 0;
        self.overdue = None;
        let mut status = failure.send;
        while let Some(flushed) = self.sends.pop_front() {
            hub.regions.count_user(flushed.entries(), false);
            let result = Err(status.take().unwrap_or(FLUSHED));
            self.complete_send(hub, flushed.wr_id, result);
        }
        let mut status = failure.receive;
        while status.is_some() || self.receives.shared().is_none() {
            let Some(flushed) = self.take_first_receive(hub) else {
                break;
            };
            let result = Err(status.take().unwrap_or(FLUSHED));
            self.complete_receive(hub, flushed.wr_id, result, false);
        }
        if let Some(event) = failure.event {
            hub.raise(event(self.handle));
        }
        // From here on it takes nothing from the shared queue (IB spec C11-5.2.5).
        if self.receives.shared().is_some() {
            hub.raise(AsyncEvent::LastWorkRequestReached(self.handle));
        }
        self.end_connection(hub, failure.ending);
    }

    /// Says how the connection ended, once. Nothing of it is under way any more: the socket is
    /// closed and the rings are unmapped.
    fn end_connection(&mut self, hub: &mut Hub, ending: Option<ConnectionEvent>) {
        if !core::mem::take(&mut self.ending_owed) {
            return;
        }
        let queue_pair = self.handle;
        let ending = ending.unwrap_or(ConnectionEvent::Disconnected { queue_pair });
        for event in [ending, ConnectionEvent::TimeWaitExit { queue_pair }] {
            hub.events.push_back(Event::Connection(event));
        }
    }

    /// Closes the socket and unmaps the peer's segments. The peer learns why from our segment,
    /// which it keeps mapped.
    fn close(&mut self, hub: &mut Hub, state: LinkState) {
        match core::mem::replace(&mut self.phase, Phase::Unconnected) {
            Phase::Unconnected => {}
            Phase::Connecting(connecting) => connecting.close(hub),
            Phase::Established(connection) => {
                connection.link.close(state);
                hub.poller.remove(&connection.socket, connection.token);
            }
        }
    }

    /// To the reset state: all is forgotten without a completion.
    pub(super) fn reset(&mut self, hub: &mut Hub) {
        self.close(hub, LinkState::Closed);
        self.forget(hub);
        self.state = QueuePairState::Reset;
        self.attributes = QueuePairAttributes::NONE;
        self.drained_wanted = false;
        self.overdue = None;
        self.end_connection(hub, None);
    }

    /// Ends the pair without a trace in the completion queues.
    pub(super) fn destroy(mut self, hub: &mut Hub) {
        self.close(hub, LinkState::Closed);
        self.forget(hub);
        for (queue, reserved) in self.ledger() {
            if let Some(found) = hub.queues.get_mut(queue) {
                found.release(reserved);
            }
        }
        if let Some(shared) = self.receives.shared()
            && let Some(found) = hub.shared.get_mut(shared)
        {
            found.users -= 1;
        }
        let queue_pair = self.handle;
        let exit = Event::Connection(ConnectionEvent::TimeWaitExit { queue_pair });
        hub.events.retain(|event| *event != exit);
    }

    /// The peer broke the protocol.
    pub(super) fn malformed(&mut self, hub: &mut Hub) {
        hub.counters.peers_malformed += 1;
        self.enter_error(hub, Failure::with(AsyncEvent::QueuePairFatal));
    }

    /// The peer closed the connection in `state`, or died.
    pub(super) fn peer_gone(&mut self, hub: &mut Hub, state: LinkState) {
        let asked_for = match &self.phase {
            Phase::Established(connection) => connection.control.asked_for(),
            Phase::Unconnected | Phase::Connecting(_) => None,
        };
        let next = self.sends.front().and_then(|next| next.one_sided());
        let waits_for = next.map(|next| next.remote.key.0);
        let refused = state == LinkState::AccessRefused
            && self.started == 0
            && waits_for.is_some()
            && waits_for == asked_for;
        let event: Option<fn(QueuePair) -> AsyncEvent> = match state {
            LinkState::AccessViolated => Some(AsyncEvent::QueuePairAccessError),
            LinkState::RequestViolated => Some(AsyncEvent::QueuePairRequestError),
            LinkState::Open | LinkState::Closed | LinkState::AccessRefused => None,
        };
        let failure = Failure {
            send: refused.then_some(CompletionStatus::RemoteAccess),
            event,
            ..Failure::NONE
        };
        self.enter_error(hub, failure);
    }
}
