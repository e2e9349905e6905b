//! A peer that is no NIC: connection management on a plain socket, and packets that a test writes. Its queue pairs
//! have the numbers that the test gives them, and never answer.

use crate::guest::{Guest, PATIENCE};
use crate::raw_packets::{RawSocket, header};
use crate::rig::{GUEST, HERE};
use legato_base::{Duration, Random, Time};
use legato_transport::cm::{
    Bits, CaGuid, ConnectParameters, ConnectReply, ConnectionId, ConnectionManager,
    DATAGRAM_BUFFER, Event as Said, Gid, IpAddresses, IpHeader, IpPrivateData, LocalPort,
    Parameters, RejectReason, ServiceId, TimeoutCode, Transmit, encode_datagram, open_datagram,
};
use legato_transport::wire::{Body, Extra};
use legato_verbs::{PacketSequenceNumber, PathMtu, QueuePairNumber, ROCE_PORT};
use rustix::event::Timespec;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// The same in every life of the peer.
const CA_GUID: CaGuid = CaGuid(0xCA00_0001);
/// Bytes of a whole message.
pub(crate) const MESSAGE: u32 = 64;

fn place(text: &str) -> SocketAddrV4 {
    text.parse().unwrap()
}

fn gid(ip: Ipv4Addr) -> Gid {
    Gid::from_ipv4(ip)
}

/// This side. It has no memory of its own but that of connection management.
pub(crate) struct RawPeer {
    pub(crate) guest: Guest,
    socket: RawSocket,
    manager: ConnectionManager,
    events: Vec<Said>,
    begun: Instant,
    /// Datagrams so far.
    sent: u32,
}

fn manager(life: u64) -> ConnectionManager {
    let port = LocalPort {
        ca_guid: CA_GUID,
        gid: gid(*place(HERE).ip()),
    };
    ConnectionManager::new(port, Parameters::default(), Random::from_seed(life))
}

impl RawPeer {
    pub(crate) fn new(guest: Guest) -> Self {
        Self {
            guest,
            socket: RawSocket::open(place(HERE), place(GUEST)),
            manager: manager(1),
            events: Vec::new(),
            begun: Instant::now(),
            sent: 0,
        }
    }

    /// It has forgotten everything.
    pub(crate) fn vanish_and_return(&mut self) {
        self.manager = manager(2);
        self.events.clear();
    }

    fn now(&self) -> Time {
        Time::ZERO + Duration::from_nanos(self.begun.elapsed().as_nanos() as u64 + 1)
    }

    fn turn(&mut self) {
        let now = self.now();
        self.manager.handle_timeout(now);
        while let Some(Transmit { mad, .. }) = self.manager.poll_transmit() {
            let sequence = PacketSequenceNumber::new(self.sent);
            self.sent += 1;
            let mut buffer = [0; DATAGRAM_BUFFER];
            let length = encode_datagram(sequence, &mad, &mut buffer);
            self.socket
                .send(&self.socket.seal(buffer[..length].to_vec()));
        }
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // Acknowledgements come too, and nobody waits for them.
        let came = self
            .socket
            .receive(&moment, |packet| open_datagram(packet).ok().copied());
        if let Some(Some(mad)) = came {
            let from = gid(*place(GUEST).ip());
            self.manager.handle_message(from, &mad, now);
        }
        self.events
            .extend(std::iter::from_fn(|| self.manager.poll_event()));
    }

    fn until<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.turn();
            if let Some(found) = probe(self) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "not {what}: {:?}", self.events);
        }
    }

    /// The guest's side of the story.
    pub(crate) fn told(&mut self, word: &str) {
        self.until(word, |it| it.guest.take(word));
    }

    /// Asks for a connection of a queue pair, to which is sent from this number on: the connection and the
    /// peer's answer, or why it has refused.
    pub(crate) fn request(
        &mut self,
        queue_pair: QueuePairNumber,
        sequence: u32,
    ) -> Result<(ConnectionId, ConnectReply), RejectReason> {
        let addresses = IpAddresses::V4 {
            source: *place(HERE).ip(),
            destination: *place(GUEST).ip(),
        };
        let ip = IpHeader {
            // No private data.
            source_port: 0xC000,
            addresses,
        };
        let parameters = ConnectParameters {
            peer: gid(*place(GUEST).ip()),
            service: ServiceId::tcp(ROCE_PORT),
            queue_pair,
            starting_sequence: PacketSequenceNumber::new(sequence),
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: Bits::new(6),
            rnr_retry_count: Bits::new(6),
            path_mtu: PathMtu::Bytes1024,
            ack_timeout: TimeoutCode::new(18),
            traffic_class: 0,
            shared_receive_queue: false,
            private_data: ip.before(&IpPrivateData::default()),
        };
        let now = self.now();
        let connection = self.manager.connect(&parameters, now).unwrap();
        self.until("answered", |it| {
            it.events.drain(..).find_map(|event| match event {
                Said::Established {
                    connection: of,
                    reply: Some(reply),
                } => (of == connection).then_some(Ok((of, *reply))),
                Said::Rejected {
                    connection: of,
                    reason,
                    ..
                } => (of == connection).then_some(Err(reason)),
                _ => None,
            })
        })
    }

    pub(crate) fn disconnect(&mut self, connection: ConnectionId) {
        let now = self.now();
        self.manager.disconnect(connection, now).unwrap();
    }

    /// A packet of so many bytes to the guest's queue pair, the `ahead`th of its connection.
    fn send(&self, to: &ConnectReply, ahead: u32, body: &Body, length: u32) {
        let sequence = to.starting_sequence.get() + ahead;
        let base = header(to.queue_pair, PacketSequenceNumber::new(sequence));
        let packet = self.socket.packet(&base, body, length as usize);
        self.socket.send(&packet);
    }

    pub(crate) fn say(&self, to: &ConnectReply, ahead: u32) {
        self.send(to, ahead, &Body::SendOnly(Extra::Nothing), MESSAGE);
    }

    /// The first packet of a message that has more.
    pub(crate) fn say_half(&self, to: &ConnectReply, ahead: u32) {
        self.send(to, ahead, &Body::SendFirst, PathMtu::Bytes1024.bytes());
    }
}
