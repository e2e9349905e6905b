//! What the user asks for.

use super::super::connection::{
    ConnectionId, Established, ReplySent, RequestReceived, RequestSent, Side, State,
};
use super::super::event::{DisconnectCause, Event, ManagerError};
use super::super::message::{
    Bits, ConnectReject, ConnectReply, ConnectRequest, MessageBody, Path, RejectReason,
    RejectedMessage, ServiceId,
};
use super::super::parameters::{AcceptParameters, ConnectParameters, RejectParameters};
use super::ConnectionManager;
use crate::QueuePairNumber;
use legato_base::Time;

/// The only partition of RoCE, with full membership.
const PARTITION_KEY: u16 = 0xFFFF;
const HOP_LIMIT: u8 = 64;
/// 2.5 Gb/s, the lowest, which limits nobody (IB spec 10.6.2.1).
const PACKET_RATE: Bits<6> = Bits::new(2);
/// How often a reply is repeated to a peer that has sent nothing but one request, which may be forged: with
/// the reply itself and the rejection that ends the matter that is three messages for one, as RFC 9000,
/// section 8.1, allows. Who has not got the reply repeats the request, and gets one for each.
const UNHEARD_REPETITIONS: u8 = 1;

impl ConnectionManager {
    /// # Errors
    /// [`ManagerError::ServiceInUse`], [`ManagerError::DeviceRemoved`].
    pub fn listen(&mut self, service: ServiceId) -> Result<(), ManagerError> {
        self.check_present()?;
        if self.listeners.insert(service) {
            Ok(())
        } else {
            Err(ManagerError::ServiceInUse(service))
        }
    }

    /// Requests that wait are rejected.
    pub fn stop_listening(&mut self, service: ServiceId, now: Time) {
        if !self.listeners.remove(&service) {
            return;
        }
        for id in self.table.ids() {
            let waits = self.table.get(id).is_some_and(|connection| {
                matches!(&connection.state, State::RequestReceived(it) if it.service == service)
            });
            if waits {
                let reason = RejectParameters::new(RejectReason::INVALID_SERVICE_ID);
                // It is in the state that allows it.
                let _ = self.reject(id, &reason, now);
            }
        }
    }

    /// Asks a peer to connect. Events say how it goes.
    ///
    /// # Errors
    /// [`ManagerError::QueuePairInUse`], [`ManagerError::ReservedQueuePair`],
    /// [`ManagerError::TooManyConnections`], [`ManagerError::DeviceRemoved`].
    pub fn connect(
        &mut self,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<ConnectionId, ManagerError> {
        self.check_present()?;
        let queue_pair = parameters.queue_pair;
        self.check_queue_pair(queue_pair)?;
        let id = self
            .table
            .next_id()
            .ok_or(ManagerError::TooManyConnections(self.table.places_max()))?;
        let body = MessageBody::ConnectRequest(self.request(id, parameters));
        let transaction = self.new_transaction();
        let retries = self.parameters.retries_max;
        let exchange = self.begin(parameters.peer, transaction, body, retries);
        let state = State::RequestSent(RequestSent {
            queue_pair,
            exchange,
        });
        let deadline = self.response_deadline(now);
        self.table.insert(id, parameters.peer, state, deadline);
        Ok(id)
    }

    fn request(&self, id: ConnectionId, parameters: &ConnectParameters) -> ConnectRequest {
        ConnectRequest {
            communication_id: id.communication_id(),
            service: parameters.service,
            ca_guid: self.port.ca_guid,
            queue_pair: parameters.queue_pair,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            remote_response_timeout: self.parameters.response_code,
            end_to_end_flow_control: false,
            starting_sequence: parameters.starting_sequence,
            local_response_timeout: self.parameters.response_code,
            retry_count: parameters.retry_count,
            partition_key: PARTITION_KEY,
            path_mtu: parameters.path_mtu,
            rnr_retry_count: parameters.rnr_retry_count,
            retries_max: Bits::new(u32::from(self.parameters.retries_max.min(15))),
            shared_receive_queue: parameters.shared_receive_queue,
            primary: Path {
                local: self.port.gid,
                remote: parameters.peer,
                flow_label: Bits::new(0),
                packet_rate: PACKET_RATE,
                traffic_class: parameters.traffic_class,
                hop_limit: HOP_LIMIT,
                service_level: Bits::new(0),
                subnet_local: true,
                ack_timeout: parameters.ack_timeout,
            },
            private_data: parameters.private_data,
        }
    }

    /// Says yes to a peer. A reply that is not answered is repeated once, and again whenever the request
    /// comes again; the first packet of its queue pair is an answer too. Its queue pair may send as soon as the reply has left, so this side's
    /// is to be ready to receive by then.
    ///
    /// # Errors
    /// [`ManagerError::UnknownConnection`] also if the peer has given up in the meantime,
    /// [`ManagerError::InvalidState`], [`ManagerError::QueuePairInUse`],
    /// [`ManagerError::ReservedQueuePair`].
    pub fn accept(
        &mut self,
        connection: ConnectionId,
        parameters: &AcceptParameters,
        now: Time,
    ) -> Result<(), ManagerError> {
        let found = self.live(connection)?;
        let peer = found.peer;
        let &State::RequestReceived(RequestReceived {
            origin,
            retries_max,
            ..
        }) = &found.state
        else {
            return Err(ManagerError::InvalidState(found.state.seen()));
        };
        let queue_pair = parameters.queue_pair;
        self.check_queue_pair(queue_pair)?;
        let reply = ConnectReply {
            communication_id: connection.communication_id(),
            remote_communication_id: origin.remote.communication_id,
            queue_pair,
            starting_sequence: parameters.starting_sequence,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            target_ack_delay: parameters.target_ack_delay,
            failover: ConnectReply::FAILOVER_NOT_SUPPORTED,
            end_to_end_flow_control: false,
            rnr_retry_count: parameters.rnr_retry_count,
            shared_receive_queue: parameters.shared_receive_queue,
            ca_guid: self.port.ca_guid,
            private_data: parameters.private_data,
        };
        let body = MessageBody::ConnectReply(reply);
        let retries = self.parameters.retries_max.min(retries_max);
        let mut exchange = self.begin(peer, origin.transaction, body, retries);
        exchange.repetitions_left = retries.min(UNHEARD_REPETITIONS);
        let state = State::ReplySent(ReplySent {
            queue_pair,
            origin,
            exchange,
        });
        let deadline = self.response_deadline(now);
        self.table.replace(connection, state, deadline);
        Ok(())
    }

    /// Says no to a peer. The connection has no more events.
    ///
    /// # Errors
    /// [`ManagerError::UnknownConnection`] also if the peer has given up in the meantime,
    /// [`ManagerError::InvalidState`].
    pub fn reject(
        &mut self,
        connection: ConnectionId,
        parameters: &RejectParameters,
        now: Time,
    ) -> Result<(), ManagerError> {
        let found = self.live(connection)?;
        let peer = found.peer;
        let State::RequestReceived(it) = &found.state else {
            return Err(ManagerError::InvalidState(found.state.seen()));
        };
        let origin = it.origin;
        let reject = ConnectReject {
            communication_id: connection.communication_id(),
            remote_communication_id: origin.remote.communication_id,
            message: RejectedMessage::Request,
            reason: parameters.reason,
            information: parameters.information,
            private_data: parameters.private_data,
        };
        self.refuse(now, peer, origin, reject);
        self.finish(connection);
        Ok(())
    }

    /// Ends a connection, or what would have become one. Nothing happens if it ends already.
    ///
    /// # Errors
    /// [`ManagerError::UnknownConnection`].
    pub fn disconnect(&mut self, connection: ConnectionId, now: Time) -> Result<(), ManagerError> {
        match &self.live(connection)?.state {
            State::RequestSent(_) => {
                self.give_up_request(connection);
                self.raise_local(connection, false);
                self.finish(connection);
            }
            State::RequestReceived(_) => {
                let reason = RejectParameters::new(RejectReason::CONSUMER);
                return self.reject(connection, &reason, now);
            }
            State::ReplySent(_) => {
                self.give_up_reply(connection, RejectReason::CONSUMER, now);
                self.raise_local(connection, false);
                self.enter_time_wait(connection, now);
            }
            State::Established(_) => self.begin_disconnect(connection, false, now),
            State::DisconnectSent(_) | State::TimeWait(_) => {}
        }
        Ok(())
    }

    /// The first packet has come for a queue pair: its connection is there, even if the message
    /// that says so is lost (IB spec 12.9.8.7.1).
    pub fn data_arrived(&mut self, queue_pair: QueuePairNumber) {
        let Some(connection) = self.table.by_local_queue_pair(queue_pair) else {
            return;
        };
        if matches!(connection.state, State::ReplySent(_)) {
            self.establish_passive(connection.id);
        }
    }

    pub(super) fn establish_passive(&mut self, id: ConnectionId) {
        let Some(State::ReplySent(state)) = self.table.get(id).map(|found| &found.state) else {
            return;
        };
        let state = State::Established(Established {
            queue_pair: state.queue_pair,
            remote: state.origin.remote,
            side: Side::Passive(state.origin),
        });
        self.table.replace(id, state, Time::NEVER);
        self.raise(Event::Established {
            connection: id,
            reply: None,
        });
    }

    pub(super) fn raise_local(&mut self, connection: ConnectionId, acknowledged: bool) {
        self.raise(Event::Disconnected {
            connection,
            cause: DisconnectCause::Local { acknowledged },
        });
    }

    /// The NIC is gone. Everything ends at once, nothing is sent, and nothing can be asked for
    /// any more.
    pub fn remove_device(&mut self) {
        self.present = false;
        self.listeners.clear();
        self.refusals.clear();
        self.transmits.clear();
        for id in self.table.ids() {
            let ended = self.table.get(id).is_none_or(|connection| {
                matches!(&connection.state, State::TimeWait(_))
                    || matches!(&connection.state, State::DisconnectSent(it) if it.announced)
            });
            if !ended {
                self.raise(Event::DeviceRemoved { connection: id });
            }
            self.finish(id);
        }
    }
}
