//! How connections end: REJ, DREQ, DREP, and peers that have forgotten.

use super::super::connection::{
    Connection, ConnectionId, DisconnectSent, Established, ReplySent, State,
};
use super::super::event::{DisconnectCause, Event};
use super::super::message::{
    CaGuid, CommunicationId, ConnectReject, DisconnectReply, DisconnectRequest, Gid, MessageBody,
    PrivateData, RejectReason, RejectedMessage, TransactionId,
};
use super::ConnectionManager;
use alloc::boxed::Box;
use legato_base::Time;
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

impl ConnectionManager {
    /// Tells the peer that this side waits no longer for an answer to its request.
    pub(super) fn give_up_request(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let State::RequestSent(state) = &connection.state else {
            return;
        };
        let (peer, transaction) = (connection.peer, state.exchange.transaction);
        let reject = self.reject_of(
            id,
            CommunicationId::UNKNOWN,
            RejectedMessage::Other,
            RejectReason::TIMEOUT,
        );
        self.send(peer, transaction, MessageBody::ConnectReject(reject));
    }

    /// Tells the peer that this side takes its reply back.
    pub(super) fn give_up_reply(&mut self, id: ConnectionId, reason: RejectReason, now: Time) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let State::ReplySent(ReplySent { origin, .. }) = connection.state else {
            return;
        };
        let peer = connection.peer;
        let remote = origin.remote.communication_id;
        let reject = self.reject_of(id, remote, RejectedMessage::Other, reason);
        self.refuse(now, peer, origin, reject);
    }

    /// DREQ. `announced`: the user has been told already.
    pub(super) fn begin_disconnect(&mut self, id: ConnectionId, announced: bool, now: Time) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let State::Established(state) = &connection.state else {
            return;
        };
        let (peer, queue_pair, origin) = (connection.peer, state.queue_pair, state.origin());
        let remote_id = state.remote.communication_id;
        let body = MessageBody::DisconnectRequest(DisconnectRequest {
            communication_id: id.communication_id(),
            remote_communication_id: remote_id,
            remote_queue_pair: state.remote.queue_pair,
            private_data: PrivateData::EMPTY,
        });
        let transaction = self.new_transaction();
        let exchange = self.begin(peer, transaction, body, self.parameters.retries_max);
        let state = State::DisconnectSent(DisconnectSent {
            queue_pair,
            remote_id,
            origin,
            exchange,
            announced,
        });
        let deadline = self.response_deadline(now);
        self.table.replace(id, state, deadline);
    }

    /// The disconnect is over, with or without an answer.
    pub(super) fn end_disconnect(&mut self, id: ConnectionId, acknowledged: bool, now: Time) {
        let Some(State::DisconnectSent(state)) = self.table.get(id).map(|found| &found.state)
        else {
            return;
        };
        if !state.announced {
            self.raise_local(id, acknowledged);
        }
        self.enter_time_wait(id, now);
    }

    /// The peer has forgotten this connection (IB spec 12.9.8.3.1).
    pub(super) fn end_stale(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        self.counters.stale += 1;
        match &connection.state {
            State::RequestReceived(_) => {
                self.raise_rejected(id, RejectReason::STALE_CONNECTION);
                self.finish(id);
            }
            State::ReplySent(_) => {
                self.raise_rejected(id, RejectReason::STALE_CONNECTION);
                self.enter_time_wait(id, now);
            }
            State::Established(_) => {
                self.raise(Event::Disconnected {
                    connection: id,
                    cause: DisconnectCause::Stale,
                });
                self.begin_disconnect(id, true, now);
            }
            State::RequestSent(_) | State::DisconnectSent(_) | State::TimeWait(_) => {}
        }
    }

    pub(super) fn handle_reject(&mut self, from: Gid, reject: ConnectReject, now: Time) {
        let Some(connection) = self.rejected(&reject) else {
            self.counters.unexpected += 1;
            return;
        };
        if connection.peer != from {
            self.counters.foreign += 1;
            return;
        }
        let id = connection.id;
        let named = |remote: CommunicationId| remote == reject.communication_id;
        match &connection.state {
            State::RequestSent(_) => {
                self.raise_reject(id, reject);
                self.finish(id);
            }
            State::RequestReceived(state) if named(state.origin.remote.communication_id) => {
                self.raise_reject(id, reject);
                self.finish(id);
            }
            State::ReplySent(state) if named(state.origin.remote.communication_id) => {
                self.raise_reject(id, reject);
                self.enter_time_wait(id, now);
            }
            State::Established(state) if named(state.remote.communication_id) => {
                let cause = DisconnectCause::Rejected(reject.reason);
                self.raise(Event::Disconnected {
                    connection: id,
                    cause,
                });
                self.enter_time_wait(id, now);
            }
            // It does not know the connection, so it needs no disconnect.
            State::DisconnectSent(state) if named(state.remote_id) => {
                self.end_disconnect(id, true, now);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// The connection that a rejection is about. Who has given up on a request knows no name of
    /// this side, and gives its GUID instead (IB spec table 109, code 4).
    fn rejected(&self, reject: &ConnectReject) -> Option<&Connection> {
        if reject.remote_communication_id != CommunicationId::UNKNOWN {
            return self
                .table
                .by_communication_id(reject.remote_communication_id);
        }
        if reject.reason != RejectReason::TIMEOUT {
            return None;
        }
        let guid = U64::read_from_bytes(reject.information.as_bytes()).ok()?;
        self.table
            .by_request((CaGuid(guid.get()), reject.communication_id))
    }

    fn raise_reject(&mut self, connection: ConnectionId, reject: ConnectReject) {
        self.raise(Event::Rejected {
            connection,
            reason: reject.reason,
            information: reject.information,
            private_data: Box::new(reject.private_data),
        });
    }

    pub(super) fn handle_disconnect_request(
        &mut self,
        from: Gid,
        transaction: TransactionId,
        request: &DisconnectRequest,
        now: Time,
    ) {
        let found = self
            .table
            .by_communication_id(request.remote_communication_id);
        let Some(connection) = found else {
            // It is over here: so it is for the peer (IB spec 12.9.8.2).
            self.counters.unexpected += 1;
            return self.send_disconnect_reply(from, transaction, request);
        };
        if connection.peer != from {
            self.counters.foreign += 1;
            return;
        }
        let id = connection.id;
        let named = |remote: CommunicationId| remote == request.communication_id;
        match &connection.state {
            State::ReplySent(ReplySent {
                queue_pair, origin, ..
            }) if named(origin.remote.communication_id) => {
                if *queue_pair != request.remote_queue_pair {
                    self.counters.foreign += 1;
                    return;
                }
                self.end_by_peer(id, now);
            }
            State::Established(Established {
                queue_pair, remote, ..
            }) if named(remote.communication_id) => {
                if *queue_pair != request.remote_queue_pair {
                    self.counters.foreign += 1;
                    return;
                }
                self.end_by_peer(id, now);
            }
            // Both sides at once.
            State::DisconnectSent(state) if named(state.remote_id) => {
                self.end_disconnect(id, true, now);
            }
            State::TimeWait(_) => self.counters.duplicates += 1,
            _ => self.counters.unexpected += 1,
        }
        self.send_disconnect_reply(from, transaction, request);
    }

    fn end_by_peer(&mut self, id: ConnectionId, now: Time) {
        self.raise(Event::Disconnected {
            connection: id,
            cause: DisconnectCause::Peer,
        });
        self.enter_time_wait(id, now);
    }

    pub(super) fn handle_disconnect_reply(
        &mut self,
        from: Gid,
        reply: &DisconnectReply,
        now: Time,
    ) {
        let Some(connection) = self.answered(from, reply.remote_communication_id) else {
            return;
        };
        match &connection.state {
            State::DisconnectSent(state) if state.remote_id == reply.communication_id => {
                let id = connection.id;
                self.end_disconnect(id, true, now);
            }
            _ => self.counters.unexpected += 1,
        }
    }
}
