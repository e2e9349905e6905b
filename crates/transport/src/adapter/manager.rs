//! What a NIC's connection manager says: events for queue pairs and their owners, datagrams for
//! the wire, and when it wants to be called.

use super::alarms::Alarm;
use super::connections::Agreed;
use super::endings::reason_of;
use super::queue_pair::Stage;
use super::surroundings::{Flow, Surroundings};
use super::{ChannelAdapter, Owner, Waiting};
use crate::cm::{
    ConnectReply, ConnectRequest, ConnectionId, DATAGRAM_BUFFER, Event as ManagerEvent, Gid,
    IpHeader, RejectParameters, RejectReason, Transmit, encode_datagram,
};
use crate::nic::Handle;
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    ConnectionEvent, ConnectionRequest, Event, Listener, QueuePair, QueuePairState, private_data,
};

impl ChannelAdapter {
    /// Takes the manager's events, moves queue pairs, and sends what it wants to be sent.
    pub(super) fn drive_manager(&mut self, surroundings: &mut impl Surroundings) {
        loop {
            while let Some(event) = self.manager.poll_event() {
                self.manager_event(surroundings, event);
            }
            let Some(transmit) = self.manager.poll_transmit() else {
                break;
            };
            self.send_datagram(surroundings, &transmit);
        }
        let deadline = self.manager.next_deadline().unwrap_or(Time::NEVER);
        if deadline < self.manager_timer {
            self.manager_timer = deadline;
            surroundings.set_alarm(deadline, Alarm::ConnectionManager);
        }
    }

    pub(super) fn manager_timer(&mut self, surroundings: &mut impl Surroundings) {
        if self.manager_timer > surroundings.now() {
            return;
        }
        self.manager_timer = Time::NEVER;
        self.manager.handle_timeout(surroundings.now());
        self.drive_manager(surroundings);
    }

    fn send_datagram(&mut self, surroundings: &mut impl Surroundings, transmit: &Transmit) {
        let mut packet = [0; DATAGRAM_BUFFER];
        let length = encode_datagram(self.datagrams, &transmit.mad, &mut packet);
        self.datagrams = self.datagrams.plus(1);
        let mut buffer = surroundings.take_buffer(DATAGRAM_BUFFER);
        match (buffer.as_mut().get_mut(..length), packet.get(..length)) {
            (Some(room), Some(packet)) => {
                room.copy_from_slice(packet);
                surroundings.send(Flow::Management, transmit.destination, buffer, length);
            }
            _ => surroundings.give_buffer(buffer),
        }
    }

    fn manager_event(&mut self, surroundings: &mut impl Surroundings, event: ManagerEvent) {
        match event {
            ManagerEvent::Requested {
                connection,
                peer,
                request,
            } => self.requested(surroundings, connection, peer, request),
            ManagerEvent::Established { connection, reply } => match reply {
                Some(reply) => self.established_active(surroundings, connection, &reply),
                None => self.established_passive(surroundings, connection),
            },
            ManagerEvent::Rejected {
                connection,
                reason,
                private_data,
                ..
            } => {
                let data = private_data::answered(private_data.as_bytes());
                self.ended(surroundings, connection, |queue_pair| {
                    ConnectionEvent::Rejected {
                        queue_pair,
                        reason: reason_of(reason),
                        private_data: data,
                    }
                });
            }
            ManagerEvent::Unreachable { connection } => {
                self.ended(surroundings, connection, |queue_pair| {
                    ConnectionEvent::Unreachable {
                        queue_pair,
                        reason: legato_verbs::UnreachableReason::TimedOut,
                    }
                });
            }
            ManagerEvent::Disconnected { connection, .. } => {
                self.ended(surroundings, connection, |queue_pair| {
                    ConnectionEvent::Disconnected { queue_pair }
                });
            }
            ManagerEvent::DeviceRemoved { connection } => {
                self.ended(surroundings, connection, |queue_pair| {
                    ConnectionEvent::DeviceRemoved { queue_pair }
                });
            }
            ManagerEvent::TimeWaitExit { connection, .. } => {
                self.time_wait_exit(surroundings, connection);
            }
        }
    }

    /// Nobody hears of a request that was not made as [`ChannelAdapter::connect`] makes it, or
    /// whose packets are too long: the side that asks chooses their length (IB spec 12.6.7.2, "Path
    /// MTU" of the rejections).
    fn requested(
        &mut self,
        surroundings: &mut impl Surroundings,
        connection: ConnectionId,
        peer: Gid,
        request: Box<ConnectRequest>,
    ) {
        let mut listeners = self.listeners.iter();
        let listener = listeners.find(|&(_, &service)| service == request.service);
        let listener =
            listener.map(|(Handle { index, generation }, _)| Listener { index, generation });
        let header = IpHeader::parse(&request.private_data);
        let is_short = request.path_mtu <= self.configuration.path_mtu;
        let (Some(listener), Ok((header, data)), true) = (listener, header, is_short) else {
            let reason = if is_short {
                RejectReason::CONSUMER
            } else {
                RejectReason::INVALID_MTU
            };
            let parameters = RejectParameters::new(reason);
            // The request waits: it was announced a moment ago.
            let _ = self
                .manager
                .reject(connection, &parameters, surroundings.now());
            return;
        };
        let private_data = private_data::asked(data.as_bytes(), header.source_port);
        let waiting = Waiting {
            listener,
            connection,
            peer,
            source_port: header.source_port,
            request,
        };
        if let Some(Handle { index, generation }) = self.requests.insert(waiting) {
            let event = ConnectionEvent::Requested {
                listener,
                request: ConnectionRequest { index, generation },
                private_data,
            };
            self.objects.raise(surroundings, Event::Connection(event));
        }
    }

    fn established_active(
        &mut self,
        surroundings: &mut impl Surroundings,
        connection: ConnectionId,
        reply: &ConnectReply,
    ) {
        let Some(Owner::QueuePair(name)) = self.connections.get(&connection).copied() else {
            return;
        };
        let Some((link, state)) = self
            .record(name)
            .and_then(|record| Some((record.link?, record.engine.state())))
        else {
            return;
        };
        if state != QueuePairState::Init {
            // Its owner has done something else with it.
            return self.end_connection(surroundings, name);
        }
        let config = &self.configuration;
        let agreed = Agreed {
            peer: link.peer,
            destination: reply.queue_pair,
            path_mtu: link.path_mtu(config),
            receive_sequence: link.receive_sequence,
            send_sequence: reply.starting_sequence,
            responder_resources: config.reads_max.min(reply.initiator_depth),
            initiator_depth: config.reads_max.min(reply.responder_resources),
            retry_count: config.retry_count,
            rnr_retry: reply.rnr_retry_count.get() as u8,
        };
        let to_receive = agreed.to_receive(&self.configuration);
        let to_send = agreed.to_send(&self.configuration);
        self.with(surroundings, name, |engine, host| {
            engine.modify(QueuePairState::ReadyToReceive, &to_receive, host)?;
            engine.modify(QueuePairState::ReadyToSend, &to_send, host)
        });
        let data = private_data::answered(reply.private_data.as_bytes());
        self.announce_established(surroundings, name, data);
    }

    fn established_passive(
        &mut self,
        surroundings: &mut impl Surroundings,
        connection: ConnectionId,
    ) {
        let Some(Owner::QueuePair(name)) = self.connections.get(&connection).copied() else {
            return;
        };
        let found = self.record(name);
        let Some((to_send, state)) = found.and_then(|it| Some((it.to_send?, it.engine.state())))
        else {
            return;
        };
        if state != QueuePairState::ReadyToReceive {
            return self.end_connection(surroundings, name);
        }
        self.with(surroundings, name, |engine, host| {
            engine.modify(QueuePairState::ReadyToSend, &to_send, host)
        });
        self.announce_established(surroundings, name, Vec::new());
    }

    fn announce_established(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        private_data: Vec<u8>,
    ) {
        if let Some(link) = self.record_mut(name).and_then(|it| it.link.as_mut()) {
            link.stage = Stage::Established;
        }
        self.tell_connected(surroundings, name);
        let event = ConnectionEvent::Established {
            queue_pair: name,
            private_data,
        };
        self.objects.raise(surroundings, Event::Connection(event));
        self.kick(surroundings, name, surroundings.now());
    }
}
