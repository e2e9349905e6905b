//! Connection management of an adapter: what its owner asks for.

use super::objects::{NO_QUEUE_PAIR, limit};
use super::policy::Configuration;
use super::queue_pair::{Link, Stage};
use super::surroundings::Surroundings;
use super::{ChannelAdapter, Owner, Waiting};
use crate::cm::{
    AcceptParameters, Bits, ConnectParameters, ConnectRequest, Gid, IpAddresses, IpHeader,
    IpPrivateData, PrivateData, RejectParameters, RejectReason, ServiceId, TimeoutCode,
};
use crate::nic::Handle;
use crate::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use legato_verbs::{
    AddressVector, ConnectionRequest, Listener, PRIVATE_DATA_MAX, QueuePair, QueuePairAttributes,
    QueuePairState, RetryCount, VerbsError, private_data,
};

const NO_REQUEST: VerbsError = VerbsError::UnknownHandle("connection request");
/// Private data that says how long it is.
fn answer<const ROOM: usize>(data: &[u8], asked: &Waiting) -> PrivateData<ROOM> {
    let bytes = private_data::answer(data, asked.source_port);
    PrivateData::from_slice(&bytes).unwrap_or_default()
}

/// What both sides of a connection give their queue pairs.
pub(super) struct Agreed {
    pub(super) peer: Gid,
    pub(super) destination: QueuePairNumber,
    pub(super) path_mtu: PathMtu,
    pub(super) receive_sequence: PacketSequenceNumber,
    pub(super) send_sequence: PacketSequenceNumber,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: RetryCount,
    pub(super) rnr_retry: u8,
}

impl Agreed {
    /// What the side that is asked makes of a request.
    fn as_asked(
        config: &Configuration,
        peer: Gid,
        asked: &ConnectRequest,
        receive_sequence: PacketSequenceNumber,
    ) -> Self {
        // Seven that is without end is for the device's owner to want, not for a peer.
        let retry_count = RetryCount::from_bits(asked.retry_count.get() as u8);
        let retry_count = match config.policy.transport.retry_count_infinite {
            Some(_) => retry_count.with_an_end(),
            None => retry_count,
        };
        Self {
            peer,
            destination: asked.queue_pair,
            path_mtu: asked.path_mtu,
            receive_sequence,
            send_sequence: asked.starting_sequence,
            responder_resources: config.reads_max.min(asked.initiator_depth),
            initiator_depth: config.reads_max.min(asked.responder_resources),
            retry_count,
            rnr_retry: asked.rnr_retry_count.get() as u8,
        }
    }

    pub(super) fn to_receive(&self, config: &Configuration) -> QueuePairAttributes {
        QueuePairAttributes {
            address_vector: Some(AddressVector {
                destination: self.peer.0,
            }),
            path_mtu: Some(self.path_mtu),
            destination: Some(self.destination),
            receive_sequence: Some(self.receive_sequence),
            responder_resources: Some(self.responder_resources),
            rnr_timer: Some(config.rnr_timer),
            ..QueuePairAttributes::NONE
        }
    }

    pub(super) fn to_send(&self, config: &Configuration) -> QueuePairAttributes {
        QueuePairAttributes {
            timeout: Some(config.timeout),
            retry_count: Some(self.retry_count),
            rnr_retry: Some(self.rnr_retry),
            send_sequence: Some(self.send_sequence),
            initiator_depth: Some(self.initiator_depth),
            ..QueuePairAttributes::NONE
        }
    }
}

/// Whom a queue pair is to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub gid: Gid,
    pub service: ServiceId,
    /// What the path there takes, if that is less than the configuration says.
    pub path_mtu: Option<PathMtu>,
}

/// Both in the version of IP that they are of.
fn addresses(source: Gid, destination: Gid) -> IpAddresses {
    let (source, destination) = (Ipv6Addr::from(source.0), Ipv6Addr::from(destination.0));
    match (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
        (Some(source), Some(destination)) => IpAddresses::V4 {
            source,
            destination,
        },
        _ => IpAddresses::V6 {
            source,
            destination,
        },
    }
}

impl ChannelAdapter {
    /// Hears those who ask for a service.
    ///
    /// # Errors
    /// [`VerbsError::AddressInUse`].
    pub fn listen(&mut self, service: ServiceId) -> Result<Listener, VerbsError> {
        self.check_present()?;
        if self.manager.listen(service).is_err() {
            return Err(VerbsError::AddressInUse);
        }
        match self.listeners.insert(service) {
            Some(Handle { index, generation }) => Ok(Listener { index, generation }),
            None => Err(VerbsError::AddressInUse),
        }
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn close_listener(
        &mut self,
        surroundings: &mut impl Surroundings,
        listener: Listener,
    ) -> Result<(), VerbsError> {
        let service = self.listeners.remove(Handle {
            index: listener.index,
            generation: listener.generation,
        });
        let service = service.ok_or(VerbsError::UnknownHandle("listener"))?;
        let waiting: Vec<Handle> = self
            .requests
            .iter()
            .filter(|(_, waiting)| waiting.listener == listener)
            .map(|(handle, _)| handle)
            .collect();
        let now = surroundings.now();
        for handle in waiting {
            if let Some(waiting) = self.requests.remove(handle) {
                let reason = RejectParameters::new(RejectReason::CONSUMER);
                // The peer may have given up meanwhile.
                let _ = self.manager.reject(waiting.connection, &reason, now);
            }
        }
        self.manager.stop_listening(service, now);
        self.drive_manager(surroundings);
        Ok(())
    }

    /// A queue pair in Init that nobody connects, and private data that fits.
    fn may_connect(&self, name: QueuePair, private_data: &[u8]) -> Result<(), VerbsError> {
        let record = self.record(name).ok_or(NO_QUEUE_PAIR)?;
        let state = record.engine.state();
        let busy = record.link.is_some_and(|link| link.stage != Stage::Ending);
        if state != QueuePairState::Init || busy {
            return Err(VerbsError::InvalidState(state));
        }
        if record.link.is_some() || !self.manager.is_free(record.engine.number()) {
            // Its last connection has not left the time-wait state.
            return Err(VerbsError::Busy("queue pair"));
        }
        limit(
            "private data",
            private_data.len() as u64,
            PRIVATE_DATA_MAX as u64,
        )
    }

    /// As [`legato_verbs::Provider::connect`], with an address that has been looked up. Without a
    /// target it belongs to nobody: the caller calls [`Self::no_such_address`] when that would be
    /// found out.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`], [`VerbsError::Busy`], [`VerbsError::LimitExceeded`].
    pub fn connect(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        target: Option<Target>,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.check_present()?;
        self.may_connect(name, private_data)?;
        let receive_sequence = self.new_sequence();
        let mut link = Link {
            id: None,
            stage: Stage::Asked,
            receive_sequence,
            peer: target.map_or(self.configuration.port.gid, |target| target.gid),
            path_mtu: target.and_then(|target| target.path_mtu),
            told: false,
        };
        if let Some(target) = target {
            let parameters = self.ask(name, target, private_data, &link);
            let asked = self.manager.connect(&parameters, surroundings.now());
            let id = asked.map_err(|_| VerbsError::Busy("connection manager"))?;
            link.id = Some(id);
            self.connections.insert(id, Owner::QueuePair(name));
        }
        if let Some(record) = self.record_mut(name) {
            record.link = Some(link);
        }
        self.drive_manager(surroundings);
        Ok(())
    }

    fn ask(&self, name: QueuePair, target: Target, data: &[u8], link: &Link) -> ConnectParameters {
        let config = &self.configuration;
        let (number, shared) = self
            .record(name)
            .map_or((QueuePairNumber::new(0), false), |record| {
                (record.engine.number(), record.context.is_shared())
            });
        let header = IpHeader {
            source_port: private_data::source_port(data.len()),
            addresses: addresses(config.port.gid, target.gid),
        };
        let data = IpPrivateData::from_slice(data).unwrap_or_default();
        ConnectParameters {
            peer: target.gid,
            service: target.service,
            queue_pair: number,
            starting_sequence: link.receive_sequence,
            responder_resources: config.reads_max,
            initiator_depth: config.reads_max,
            retry_count: Bits::new(u32::from(config.retry_count.get())),
            rnr_retry_count: Bits::new(u32::from(config.rnr_retry)),
            path_mtu: link.path_mtu(config),
            ack_timeout: TimeoutCode::new(config.timeout),
            traffic_class: 0,
            shared_receive_queue: shared,
            private_data: header.before(&data),
        }
    }

    fn new_sequence(&mut self) -> PacketSequenceNumber {
        PacketSequenceNumber::new(self.sequences.next_u64() as u32)
    }

    /// # Errors
    /// As [`legato_verbs::Provider::accept`].
    pub fn accept(
        &mut self,
        surroundings: &mut impl Surroundings,
        request: ConnectionRequest,
        name: QueuePair,
        data: &[u8],
    ) -> Result<(), VerbsError> {
        self.check_present()?;
        let waiting = self.requests.get(request_handle(request));
        if waiting.is_none() {
            return Err(NO_REQUEST);
        }
        self.may_connect(name, data)?;
        let waiting = self.requests.remove(request_handle(request));
        let waiting = waiting.ok_or(NO_REQUEST)?;
        let receive_sequence = self.new_sequence();
        let asked = &waiting.request;
        let config = &self.configuration;
        let rnr_retry = config.rnr_retry;
        let agreed = Agreed::as_asked(config, waiting.peer, asked, receive_sequence);
        let (to_receive, to_send) = (agreed.to_receive(config), agreed.to_send(config));
        self.with(surroundings, name, |engine, host| {
            engine.modify(QueuePairState::ReadyToReceive, &to_receive, host)
        });
        let shared = self
            .record(name)
            .is_some_and(|record| record.context.is_shared());
        let number = self.record(name).map(|record| record.engine.number());
        let parameters = AcceptParameters {
            queue_pair: number.unwrap_or(QueuePairNumber::new(0)),
            starting_sequence: receive_sequence,
            responder_resources: agreed.responder_resources,
            initiator_depth: agreed.initiator_depth,
            target_ack_delay: TimeoutCode::new(0),
            rnr_retry_count: Bits::new(u32::from(rnr_retry)),
            shared_receive_queue: shared,
            private_data: answer(data, &waiting),
        };
        let id = waiting.connection;
        self.connections.insert(id, Owner::QueuePair(name));
        if let Some(record) = self.record_mut(name) {
            record.to_send = Some(to_send);
            record.link = Some(Link {
                id: Some(id),
                stage: Stage::Accepted,
                receive_sequence,
                peer: waiting.peer,
                path_mtu: None,
                told: false,
            });
        }
        self.tell_connected(surroundings, name);
        // The manager knows the request as long as it waits here, and the queue pair is free.
        let accepted = self.manager.accept(id, &parameters, surroundings.now());
        self.drive_manager(surroundings);
        accepted.map_err(|_| NO_REQUEST)
    }

    /// # Errors
    /// As [`legato_verbs::Provider::reject`].
    pub fn reject(
        &mut self,
        surroundings: &mut impl Surroundings,
        request: ConnectionRequest,
        data: &[u8],
    ) -> Result<(), VerbsError> {
        let length = data.len() as u64;
        limit("private data", length, PRIVATE_DATA_MAX as u64)?;
        let waiting = self.requests.remove(request_handle(request));
        let waiting = waiting.ok_or(NO_REQUEST)?;
        let parameters = RejectParameters {
            private_data: answer(data, &waiting),
            ..RejectParameters::new(RejectReason::CONSUMER)
        };
        let now = surroundings.now();
        let rejected = self.manager.reject(waiting.connection, &parameters, now);
        self.drive_manager(surroundings);
        rejected.map_err(|_| NO_REQUEST)
    }
}

const fn request_handle(request: ConnectionRequest) -> Handle {
    Handle {
        index: request.index,
        generation: request.generation,
    }
}
