//! How packets get from one machine to another: RoCEv2 over UDP, or the same packets in TCP
//! streams where UDP does not get through. A carrier knows nothing of queue pairs; it loses packets
//! at any time, and the transport above sends them again.
//!
//! A carrier never blocks and has no thread: the user calls `send`, `flush` and `receive`, and sleeps on
//! the descriptor of [`Carrier::descriptors`] when there is nothing to do. Nothing is allocated for a packet.
//!
//! # Source ports
//!
//! Routers choose among equal paths by the UDP source port, and RoCEv2 wants one per queue pair
//! (annex A17.9.2). A socket has one source port. Between two carriers at port 4791, where the source of a
//! packet does not tell the port to answer to, one has up to [`Options::source_ports`] sockets more that only
//! send, from ports of 0xC000 and above, and the flow label of [`Carrier::send`] chooses among them. At any
//! other port a carrier is known by that port, so all that it sends to a peer takes one path.

mod counters;
mod datagram;
mod inbox;
mod name;
mod notice;
mod path;
mod stream;
mod system;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_base::SystemError;
use legato_transport::cm::Gid;
use legato_transport::wire::HEADERS_MAX;
use legato_transport::wire::icrc::{Envelope, ICRC_LENGTH, Network};
use legato_verbs::{PathMtu, ROCE_PORT};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

pub use counters::Counters;
pub use datagram::DatagramCarrier;
pub use inbox::{Congestion, Inbox, Received};
pub use name::{gid_of, ip_of};
pub use notice::{Notice, Refusal};
pub(super) use path::family_of;
pub use path::{MTU_OF_ONE_PACKET, largest_path_mtu};
pub use stream::{Sealing, StreamCarrier};

/// Source ports from here on are of flows.
pub(super) const FIRST_FLOW_PORT: u16 = 0xC000;
/// Bytes of the longest packet, invariant CRC included.
pub const PACKET_MAX: usize = HEADERS_MAX + 4096 + ICRC_LENGTH;
/// Bytes of memory for a packet that nobody copies again, and three more. Not a power of two, so that the heads
/// of packets do not all fall into the same set of the cache.
pub const PACKET_BUFFER: usize = (PACKET_MAX + 3).next_multiple_of(64);
/// Bytes of the shortest packet: a base transport header and the CRC.
pub const PACKET_MIN: usize = 12 + ICRC_LENGTH;
/// Bytes of the IP and UDP headers in front of a packet.
const IP4_UDP: usize = 20 + 8;
const IP6_UDP: usize = 40 + 8;

/// What a carrier does as its user wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Packets that can wait to be sent (UDP), or as many of the longest per peer (TCP).
    pub send_slots: usize,
    /// Bytes of each of the kernel's buffers; it may grant less (`net.core.rmem_max`).
    pub socket_buffer: usize,
    /// Joins packets for one peer to one message that the kernel or the NIC segments again.
    pub segmentation: bool,
    /// Lets the kernel join received datagrams.
    pub joining: bool,
    /// Sockets that only send, each with a source port of its own. They are opened for the first peer at
    /// port 4791 of a carrier that is at that port too.
    pub source_ports: usize,
    /// The byte with service class and congestion bits in IP headers, `0x02` for "routers may mark".
    pub traffic_class: u8,
    /// Tells one life of a carrier from the next one at the same address. A stream's peer that sees
    /// another number knows that the old connection is dead.
    pub instance: u64,
    /// Streams to and from peers at most.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_slots: 256,
            socket_buffer: 4 << 20,
            segmentation: true,
            joining: true,
            source_ports: 8,
            traffic_class: 0,
            instance: 0,
            connections: 256,
        }
    }
}

/// Why a carrier could not do something at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarrierError {
    #[error("{call}: {}", SystemError(.errno.raw_os_error()))]
    System { call: &'static str, errno: Errno },
    #[error("{0} is no address of one machine: the GID is in every packet's CRC")]
    NoUnicastAddress(SocketAddr),
    #[error("{peer} is not of the same IP version as this carrier")]
    OtherFamily { peer: SocketAddr },
    #[error("the path to {peer} takes {mtu} bytes, too few for packets of 256")]
    PathTooNarrow { peer: SocketAddr, mtu: u32 },
}

/// Why a packet was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError<E> {
    /// Back-pressure: again after `flush` has made room.
    #[error("no room until packets have been sent")]
    Busy,
    #[error("there is no connection to the peer, and there are too many to make one")]
    TooManyConnections,
    #[error("{0} bytes are no packet")]
    Length(usize),
    #[error("the peer is not of the same IP version as this carrier")]
    OtherFamily,
    /// The caller's own.
    #[error("the packet was not written")]
    Write(E),
}

/// What has become of the packets that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// None waits any more.
    All,
    /// The kernel takes no more now. The descriptor becomes readable when it does.
    Blocked,
}

fn step(call: &'static str) -> impl FnOnce(Errno) -> CarrierError {
    move |errno| CarrierError::System { call, errno }
}

/// In a stream there are no headers that a CRC could cover, so it is computed as if the packet went
/// over IPv6 from GID to GID.
fn pseudo_envelope(source: Gid, destination: Gid) -> Envelope {
    Envelope {
        network: Network::Ipv6 {
            source: source.0.into(),
            destination: destination.0.into(),
        },
        source_port: ROCE_PORT,
        destination_port: ROCE_PORT,
    }
}

/// Either kind of carrier.
#[derive(Debug)]
pub enum Carrier {
    Datagram(DatagramCarrier),
    Stream(StreamCarrier),
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($carrier:expr, $inner:ident => $call:expr) => {
        match $carrier {
            Carrier::Datagram($inner) => $call,
            Carrier::Stream($inner) => $call,
        }
    };
}

impl Carrier {
    /// Where peers reach this carrier.
    pub const fn local_address(&self) -> SocketAddr {
        either!(self, inner => inner.local_address())
    }

    pub fn local_gid(&self) -> Gid {
        gid_of(self.local_address())
    }

    /// The largest path MTU whose packets reach `peer` unfragmented, as far as it is known now.
    ///
    /// # Errors
    /// If there is no route, or not even one of 256 bytes.
    pub fn path_mtu(&self, peer: SocketAddr) -> Result<PathMtu, CarrierError> {
        either!(self, inner => inner.path_mtu(peer))
    }

    /// Queues a packet for the carrier at `peer`. `write` gets room for the longest packet without its
    /// invariant CRC, and three bytes more; it returns how many it has written. `flow` is any number
    /// that stays the same for a queue pair.
    ///
    /// # Errors
    /// [`SendError::Busy`] if there is no room even after a flush.
    pub fn send<E>(
        &mut self,
        peer: SocketAddr,
        flow: u32,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), SendError<E>> {
        either!(self, inner => inner.send(peer, flow, write))
    }

    /// Queues a packet of `length` bytes, without its invariant CRC, for which `packet` has room. If it is
    /// queued, `packet` is other memory of [`PACKET_BUFFER`] bytes afterwards, or still the same.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_packet<E>(
        &mut self,
        peer: SocketAddr,
        flow: u32,
        packet: &mut Box<[u8]>,
        length: usize,
    ) -> Result<(), SendError<E>> {
        either!(self, inner => inner.send_packet(peer, flow, packet, length))
    }

    /// Sends what waits, as much as the kernel takes.
    pub fn flush(&mut self) -> Flushed {
        either!(self, inner => inner.flush())
    }

    /// Receives what there is room for into an inbox that has been read to its end.
    /// Returns whether there may be something in it now.
    pub fn receive(&mut self, inbox: &mut Inbox) -> bool {
        either!(self, inner => inner.receive(inbox))
    }

    /// Ends a stream to a peer, with all that waits for it; the next packet makes a new one. Between
    /// datagrams there is nothing to end.
    pub fn disconnect(&mut self, peer: SocketAddr) {
        match self {
            Self::Datagram(_) => {}
            Self::Stream(inner) => inner.disconnect(peer),
        }
    }

    /// Sends what waits, and makes notices of all that is known to have happened to it by now.
    pub fn settle(&mut self) {
        self.flush();
        match self {
            Self::Datagram(inner) => inner.take_all_errors(),
            Self::Stream(_) => {}
        }
    }

    /// Before its user sleeps on the descriptor: else that is readable as long as the network's answers wait
    /// that `receive` does not look for.
    pub fn before_sleep(&mut self) {
        match self {
            Self::Datagram(inner) => inner.take_errors_of_senders(),
            Self::Stream(_) => {}
        }
    }

    /// What happened to peers, oldest first.
    pub fn notice(&mut self) -> Option<Notice> {
        either!(self, inner => inner.notice())
    }

    /// Adds the descriptor to wait on. It stays the same for the carrier's life, and is readable
    /// when `receive` or `flush` has something to do.
    pub fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        either!(self, inner => into.push(inner.descriptor()));
    }

    /// What was sent and refused; what was received is in [`Inbox::counters`].
    pub const fn counters(&self) -> &Counters {
        either!(self, inner => inner.counters())
    }
}
