//! Packets of RoCEv2 over IPv4 from a plain socket, as nobody's NIC sends them.
#![allow(dead_code, reason = "each test program uses a part of this")]

use legato_transport::wire::icrc::{self, Envelope, ICRC_LENGTH, Network};
use legato_transport::wire::{BaseHeader, Body, Packet, encode};
use legato_verbs::{PacketSequenceNumber, QueuePairNumber};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, bind, getsockname, recv, sendto, socket,
};
use std::convert::Infallible;
use std::net::{SocketAddr, SocketAddrV4};

/// Room for a packet of the widest usual link.
const PACKET_MAX: usize = 2048;
/// Each byte of a payload.
pub(crate) const PAYLOAD_BYTE: u8 = 3;

pub(crate) struct RawSocket {
    socket: OwnedFd,
    here: SocketAddrV4,
    there: SocketAddrV4,
}

/// The header that all packets have, of one that asks for an acknowledgement.
pub(crate) const fn header(
    destination: QueuePairNumber,
    sequence: PacketSequenceNumber,
) -> BaseHeader {
    BaseHeader {
        destination,
        sequence,
        acknowledge: true,
        solicited: false,
        forward_congestion: false,
        backward_congestion: false,
    }
}

impl RawSocket {
    /// At `here`, whose port may be 0: any that is free.
    pub(crate) fn open(here: SocketAddrV4, there: SocketAddrV4) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        // Then the identification is 0 (`ip_select_ident_segs`, net/ip.h).
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).unwrap();
        bind(&socket, &here).unwrap();
        let bound = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        let here = SocketAddrV4::new(*here.ip(), bound.port());
        Self {
            socket,
            here,
            there,
        }
    }

    /// A whole packet with so many bytes of payload.
    pub(crate) fn packet(&self, base: &BaseHeader, body: &Body, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; PACKET_MAX];
        let Ok(length) = encode(base, body, &mut bytes, payload, |payload| {
            payload.fill(PAYLOAD_BYTE);
            Ok::<_, Infallible>(())
        });
        bytes.truncate(length);
        self.seal(bytes)
    }

    /// With the invariant CRC behind it.
    pub(crate) fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let envelope = Envelope {
            network: Network::Ipv4 {
                source: *self.here.ip(),
                destination: *self.there.ip(),
                identification: 0,
                do_not_fragment: true,
            },
            source_port: self.here.port(),
            destination_port: self.there.port(),
        };
        let length = bytes.len();
        bytes.resize(length + ICRC_LENGTH, 0);
        icrc::append(&envelope, &mut bytes, length).unwrap();
        bytes
    }

    pub(crate) fn send(&self, packet: &[u8]) {
        let sent = sendto(&self.socket, packet, SendFlags::empty(), &self.there);
        assert_eq!(sent, Ok(packet.len()));
    }

    /// The next packet that comes within `wait`, and hands it on without its CRC.
    pub(crate) fn receive<T>(
        &self,
        wait: &Timespec,
        take: impl FnOnce(&Packet<'_>) -> T,
    ) -> Option<T> {
        let mut waited = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut waited, Some(wait)).unwrap() == 0 {
            return None;
        }
        let mut bytes = [0; PACKET_MAX];
        let (length, _) = recv(&self.socket, &mut bytes, RecvFlags::empty()).unwrap();
        let packet = Packet::parse(&bytes[..length - ICRC_LENGTH]).unwrap();
        Some(take(&packet))
    }
}
