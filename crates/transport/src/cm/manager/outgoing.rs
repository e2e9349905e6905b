//! What is sent: answers, and messages that are repeated until they are answered.

use super::super::connection::{Connection, ConnectionId, Exchange, Origin};
use super::super::event::Transmit;
use super::super::message::{
    AcknowledgedMessage, AdditionalInformation, CommunicationId, ConnectReject, DisconnectReply,
    DisconnectRequest, Gid, Mad, Message, MessageBody, MessageReceiptAcknowledgment, PrivateData,
    ReadyToUse, RejectReason, RejectedMessage, TransactionId,
};
use super::ConnectionManager;
use alloc::boxed::Box;
use legato_base::Time;

/// The two names of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) local: CommunicationId,
    pub(super) remote: CommunicationId,
}

impl ConnectionManager {
    /// Messages may be lost at any time; so may those that nobody takes.
    pub(super) fn send_mad(&mut self, destination: Gid, mad: Mad) {
        if self.transmits.len() >= self.parameters.transmits_max {
            self.counters.transmits_dropped += 1;
            return;
        }
        self.transmits.push_back(Transmit { destination, mad });
    }

    pub(super) fn send(&mut self, destination: Gid, transaction: TransactionId, body: MessageBody) {
        self.send_mad(destination, Message { transaction, body }.encode());
    }

    /// Sends a message that will be repeated as often as it is retried.
    pub(super) fn begin(
        &mut self,
        destination: Gid,
        transaction: TransactionId,
        body: MessageBody,
        retries_left: u8,
    ) -> Exchange {
        let mad = Message { transaction, body }.encode();
        self.send_mad(destination, mad);
        Exchange {
            transaction,
            mad: Box::new(mad),
            retries_left,
            repetitions_left: retries_left,
            acknowledged: false,
        }
    }

    pub(super) fn response_deadline(&self, now: Time) -> Time {
        now + self.parameters.response_timeout
    }

    /// Sends once more what a connection waits for an answer to, and returns whether there is
    /// such a thing.
    pub(super) fn repeat(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get(id) else {
            return false;
        };
        let peer = connection.peer;
        let Some(mad) = self
            .table
            .state_mut(id)
            .and_then(|state| state.exchange_mut())
            .map(|exchange| *exchange.mad)
        else {
            return false;
        };
        self.send_mad(peer, mad);
        true
    }

    /// A rejection of what a peer sent, by somebody who keeps nothing about it.
    pub(super) fn send_reject(
        &mut self,
        destination: Gid,
        transaction: TransactionId,
        ids: Ids,
        message: RejectedMessage,
        reason: RejectReason,
    ) {
        let reject = ConnectReject {
            communication_id: ids.local,
            remote_communication_id: ids.remote,
            message,
            reason,
            information: self.information_for(reason),
            private_data: PrivateData::EMPTY,
        };
        self.send(destination, transaction, MessageBody::ConnectReject(reject));
    }

    /// Who has given up, or where this port is (IB spec table 109).
    fn information_for(&self, reason: RejectReason) -> AdditionalInformation {
        match reason {
            RejectReason::TIMEOUT => {
                let guid = zerocopy::big_endian::U64::new(self.port.ca_guid.0);
                AdditionalInformation::from_array::<8>(zerocopy::transmute!(guid))
            }
            RejectReason::INVALID_GID => AdditionalInformation::from_array(self.port.gid.0),
            _ => AdditionalInformation::NONE,
        }
    }

    /// Refuses a request for good: what repeats it gets the same answer.
    pub(super) fn refuse(
        &mut self,
        now: Time,
        peer: Gid,
        origin: Origin,
        mut reject: ConnectReject,
    ) {
        let transaction = origin.transaction;
        self.send(
            peer,
            transaction,
            MessageBody::ConnectReject(reject.clone()),
        );
        // Whoever repeats the request knows no other message of this side.
        reject.message = RejectedMessage::Request;
        let body = MessageBody::ConnectReject(reject);
        let mad = Message { transaction, body }.encode();
        let until = now + self.parameters.refusal_memory;
        self.refusals.remember(peer, origin, mad, until);
    }

    /// The rejection of a connection that this side gives up.
    pub(super) fn reject_of(
        &self,
        id: ConnectionId,
        remote: CommunicationId,
        message: RejectedMessage,
        reason: RejectReason,
    ) -> ConnectReject {
        ConnectReject {
            communication_id: id.communication_id(),
            remote_communication_id: remote,
            message,
            reason,
            information: self.information_for(reason),
            private_data: PrivateData::EMPTY,
        }
    }

    /// MRA
    pub(super) fn send_acknowledgment(&mut self, id: ConnectionId, peer: Gid, origin: Origin) {
        let acknowledgment = MessageReceiptAcknowledgment {
            communication_id: id.communication_id(),
            remote_communication_id: origin.remote.communication_id,
            message: AcknowledgedMessage::Request,
            service_timeout: self.parameters.service_code,
            private_data: PrivateData::EMPTY,
        };
        self.send(
            peer,
            origin.transaction,
            MessageBody::MessageReceiptAcknowledgment(acknowledgment),
        );
    }

    /// RTU
    pub(super) fn send_ready(&mut self, peer: Gid, transaction: TransactionId, ids: Ids) {
        let ready = ReadyToUse {
            communication_id: ids.local,
            remote_communication_id: ids.remote,
            private_data: PrivateData::EMPTY,
        };
        self.send(peer, transaction, MessageBody::ReadyToUse(ready));
    }

    /// DREP: to whoever wants a connection to end, whether it is known or not.
    pub(super) fn send_disconnect_reply(
        &mut self,
        peer: Gid,
        transaction: TransactionId,
        request: &DisconnectRequest,
    ) {
        let reply = DisconnectReply {
            communication_id: request.remote_communication_id,
            remote_communication_id: request.communication_id,
            private_data: PrivateData::EMPTY,
        };
        self.send(peer, transaction, MessageBody::DisconnectReply(reply));
    }
}

pub(super) const fn ids_of(connection: &Connection, remote: CommunicationId) -> Ids {
    Ids {
        local: connection.id.communication_id(),
        remote,
    }
}
