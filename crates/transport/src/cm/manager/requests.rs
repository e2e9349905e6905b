//! REQ: new, repeated, refused, or of a peer that has started anew.

use super::super::connection::{ConnectionId, Origin, RequestReceived, State};
use super::super::event::Event;
use super::super::message::{
    CommunicationId, ConnectRequest, Gid, RejectReason, RejectedMessage, TransactionId,
    UnsupportedRequest,
};
use super::ConnectionManager;
use super::outgoing::Ids;
use alloc::boxed::Box;
use legato_base::Time;

impl ConnectionManager {
    pub(super) fn handle_request(
        &mut self,
        from: Gid,
        transaction: TransactionId,
        request: ConnectRequest,
        now: Time,
    ) {
        let origin = Origin::new(transaction, &request);
        self.refusals.forget_until(now);
        if let Some(mad) = self.refusals.find(from, &origin) {
            let mad = *mad;
            self.counters.duplicates += 1;
            return self.send_mad(from, mad);
        }
        if let Some(connection) = self.table.by_request(origin.key()) {
            if connection.peer != from {
                self.counters.foreign += 1;
                return;
            }
            if connection.state.origin() == Some(origin) {
                return self.handle_repeated_request(connection.id, origin);
            }
            // A peer that has started anew and happens to use an old name.
            let id = connection.id;
            if connection.state.keys().remote_queue_pair.is_some() {
                return self.refuse_stale(id, from, origin, now);
            }
        }
        let is_as_named = request.primary.remote == self.port.gid && request.primary.local == from;
        if self.parameters.checks_gids && !is_as_named {
            return self.refuse_once(from, origin, RejectReason::INVALID_GID);
        }
        let key = origin.remote.queue_pair_key();
        if let Some(connection) = self.table.by_remote_queue_pair(key) {
            return self.refuse_stale(connection.id, from, origin, now);
        }
        if !self.listeners.contains(&request.service) {
            return self.refuse_once(from, origin, RejectReason::INVALID_SERVICE_ID);
        }
        self.admit(from, origin, request, now);
    }

    fn admit(&mut self, from: Gid, origin: Origin, request: ConnectRequest, now: Time) {
        let room = self.table.half_open() < self.parameters.half_open_max
            && self.events.len() < self.parameters.events_max;
        let Some(id) = room.then(|| self.table.next_id()).flatten() else {
            self.counters.refused_for_resources += 1;
            return self.refuse_once(from, origin, RejectReason::NO_RESOURCES);
        };
        let state = State::RequestReceived(RequestReceived {
            origin,
            service: request.service,
            // Four bits.
            retries_max: request.retries_max.get() as u8,
        });
        let deadline = now + self.parameters.decision_timeout;
        self.table.insert(id, from, state, deadline);
        self.raise(Event::Requested {
            connection: id,
            peer: from,
            request: Box::new(request),
        });
    }

    /// The same answer as before, if there was one.
    fn handle_repeated_request(&mut self, id: ConnectionId, origin: Origin) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let peer = connection.peer;
        self.counters.duplicates += 1;
        match &connection.state {
            State::RequestReceived(_) => self.send_acknowledgment(id, peer, origin),
            State::ReplySent(_) => {
                self.repeat(id);
            }
            State::TimeWait(_) => self.refuse_once(peer, origin, RejectReason::STALE_CONNECTION),
            // The peer has got the reply, or it would not be established: this one is late.
            State::RequestSent(_) | State::Established(_) | State::DisconnectSent(_) => {}
        }
    }

    /// A queue pair that asks to be connected cannot be connected already: its side has forgotten
    /// that (IB spec 12.9.8.3.1). Somebody else may not end a connection so.
    fn refuse_stale(&mut self, old: ConnectionId, from: Gid, origin: Origin, now: Time) {
        self.refuse_once(from, origin, RejectReason::STALE_CONNECTION);
        if self.table.get(old).is_some_and(|it| it.peer == from) {
            self.end_stale(old, now);
        } else {
            self.counters.foreign += 1;
        }
    }

    /// Refuses a request, and keeps nothing about it.
    fn refuse_once(&mut self, from: Gid, origin: Origin, reason: RejectReason) {
        let ids = Ids {
            local: CommunicationId::UNKNOWN,
            remote: origin.remote.communication_id,
        };
        self.send_reject(
            from,
            origin.transaction,
            ids,
            RejectedMessage::Request,
            reason,
        );
    }

    pub(super) fn refuse_unsupported(&mut self, from: Gid, request: UnsupportedRequest) {
        let ids = Ids {
            local: CommunicationId::UNKNOWN,
            remote: request.communication_id,
        };
        self.send_reject(
            from,
            request.transaction,
            ids,
            RejectedMessage::Request,
            request.reason,
        );
    }
}
