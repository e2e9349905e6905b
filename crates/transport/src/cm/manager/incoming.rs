//! Messages of peers: where they go, and those that answer what this side has sent.

use super::super::connection::{Connection, Established, Remote, Side, State};
use super::super::event::Event;
use super::super::message::{
    AcknowledgedMessage, CommunicationId, ConnectReply, Gid, Message, MessageBody, MessageError,
    MessageReceiptAcknowledgment, ReadyToUse, RejectReason, RejectedMessage, TransactionId,
};
use super::ConnectionManager;
use super::outgoing::{Ids, ids_of};
use alloc::boxed::Box;
use legato_base::Time;

impl ConnectionManager {
    /// Takes a management datagram that came from the port of `from`. It is answered with one
    /// message at most.
    pub fn handle_message(&mut self, from: Gid, mad: &[u8], now: Time) {
        if !self.present {
            return;
        }
        self.counters.received += 1;
        let Message { transaction, body } = match Message::parse(mad) {
            Ok(message) => message,
            Err(error) => {
                self.counters.malformed += 1;
                if let MessageError::Unsupported(request) = error {
                    self.refuse_unsupported(from, request);
                }
                return;
            }
        };
        match body {
            MessageBody::ConnectRequest(it) => self.handle_request(from, transaction, it, now),
            MessageBody::MessageReceiptAcknowledgment(it) => {
                self.handle_acknowledgment(from, &it, now);
            }
            MessageBody::ConnectReject(it) => self.handle_reject(from, it, now),
            MessageBody::ConnectReply(it) => self.handle_reply(from, transaction, it, now),
            MessageBody::ReadyToUse(it) => self.handle_ready(from, transaction, &it),
            MessageBody::DisconnectRequest(it) => {
                self.handle_disconnect_request(from, transaction, &it, now);
            }
            MessageBody::DisconnectReply(it) => self.handle_disconnect_reply(from, &it, now),
        }
    }

    /// The connection that a message answers; counted if there is none, or it is another peer's.
    pub(super) fn answered(&mut self, from: Gid, id: CommunicationId) -> Option<&Connection> {
        let found = self.table.by_communication_id(id);
        match found {
            None => self.counters.unexpected += 1,
            Some(connection) if connection.peer != from => self.counters.foreign += 1,
            Some(_) => return found,
        }
        None
    }

    /// The wait for an answer gets longer, once for each time that the message was sent, and by no
    /// more than this side allows.
    fn handle_acknowledgment(
        &mut self,
        from: Gid,
        message: &MessageReceiptAcknowledgment,
        now: Time,
    ) {
        let Some(connection) = self.answered(from, message.remote_communication_id) else {
            return;
        };
        let id = connection.id;
        let expected = match (&connection.state, message.message) {
            (State::RequestSent(_), AcknowledgedMessage::Request) => true,
            (State::ReplySent(state), AcknowledgedMessage::Reply) => {
                state.origin.remote.communication_id == message.communication_id
            }
            _ => false,
        };
        let exchange = self
            .table
            .state_mut(id)
            .filter(|_| expected)
            .and_then(State::exchange_mut)
            .filter(|exchange| !exchange.acknowledged);
        let Some(exchange) = exchange else {
            self.counters.unexpected += 1;
            return;
        };
        exchange.acknowledged = true;
        let service = message.service_timeout.duration();
        let longer = service.min(self.parameters.service_timeout_max);
        let deadline = self.response_deadline(now) + longer;
        self.table.set_deadline(id, deadline);
    }

    fn handle_reply(
        &mut self,
        from: Gid,
        transaction: TransactionId,
        reply: ConnectReply,
        now: Time,
    ) {
        let ids = Ids {
            local: reply.remote_communication_id,
            remote: reply.communication_id,
        };
        let Some(connection) = self.table.by_communication_id(ids.local) else {
            return self.reject_unknown(from, transaction, ids, RejectedMessage::Reply);
        };
        if connection.peer != from {
            self.counters.foreign += 1;
            return;
        }
        match &connection.state {
            State::RequestSent(_) => self.establish_active(from, transaction, reply, now),
            // It has not got what says that the reply arrived.
            State::Established(Established {
                side: Side::Active(transaction),
                remote,
                ..
            }) if remote.communication_id == ids.remote => {
                let transaction = *transaction;
                self.counters.duplicates += 1;
                self.send_ready(from, transaction, ids);
            }
            // The disconnect says what there is to say.
            State::DisconnectSent(state) if state.remote_id == ids.remote => {
                self.counters.unexpected += 1;
            }
            _ => self.reject_unknown(from, transaction, ids, RejectedMessage::Reply),
        }
    }

    /// A reply to a request that waits for one.
    fn establish_active(
        &mut self,
        from: Gid,
        transaction: TransactionId,
        reply: ConnectReply,
        now: Time,
    ) {
        let remote = Remote {
            communication_id: reply.communication_id,
            ca_guid: reply.ca_guid,
            queue_pair: reply.queue_pair,
        };
        let found = self
            .table
            .by_communication_id(reply.remote_communication_id);
        let Some(connection) = found else {
            return;
        };
        let id = connection.id;
        let ids = ids_of(connection, reply.communication_id);
        let State::RequestSent(state) = &connection.state else {
            return;
        };
        let (queue_pair, asked) = (state.queue_pair, state.exchange.transaction);
        if let Some(old) = self.table.by_remote_queue_pair(remote.queue_pair_key()) {
            let (old, peer) = (old.id, old.peer);
            let (message, reason) = (RejectedMessage::Reply, RejectReason::STALE_CONNECTION);
            self.send_reject(from, transaction, ids, message, reason);
            self.raise_rejected(id, reason);
            self.finish(id);
            if peer == from {
                self.end_stale(old, now);
            }
            return;
        }
        let state = State::Established(Established {
            queue_pair,
            remote,
            side: Side::Active(asked),
        });
        self.table.replace(id, state, Time::NEVER);
        self.raise(Event::Established {
            connection: id,
            reply: Some(Box::new(reply)),
        });
        self.send_ready(from, asked, ids);
    }

    fn handle_ready(&mut self, from: Gid, transaction: TransactionId, ready: &ReadyToUse) {
        let ids = Ids {
            local: ready.remote_communication_id,
            remote: ready.communication_id,
        };
        let Some(connection) = self.table.by_communication_id(ids.local) else {
            return self.reject_unknown(from, transaction, ids, RejectedMessage::Other);
        };
        if connection.peer != from {
            self.counters.foreign += 1;
            return;
        }
        let named = |remote: CommunicationId| remote == ids.remote;
        match &connection.state {
            State::ReplySent(state) if named(state.origin.remote.communication_id) => {
                self.establish_passive(connection.id);
            }
            State::Established(state) if named(state.remote.communication_id) => {
                self.counters.duplicates += 1;
            }
            State::DisconnectSent(state) if named(state.remote_id) => {
                self.counters.unexpected += 1;
            }
            _ => self.reject_unknown(from, transaction, ids, RejectedMessage::Other),
        }
    }

    /// The peer believes in a connection that is none here, and shall not do so for ever.
    fn reject_unknown(
        &mut self,
        from: Gid,
        transaction: TransactionId,
        ids: Ids,
        message: RejectedMessage,
    ) {
        self.counters.unexpected += 1;
        let reason = RejectReason::INVALID_COMMUNICATION_ID;
        self.send_reject(from, transaction, ids, message, reason);
    }
}
