//! Where received packets lie until they are read: the kernel writes them here, and nobody copies
//! them again.

use super::counters::Counters;
use super::name::gid_of;
use super::system::MESSAGES;
use super::{PACKET_MAX, PACKET_MIN, pseudo_envelope};
use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;
use legato_transport::cm::Gid;
use legato_transport::wire::icrc::{self, Envelope, ICRC_LENGTH, IcrcError, Network};

/// Bytes of a piece: the longest datagram that `UDP_GRO` joins fits.
pub(super) const PIECE: usize = 1 << 16;
/// Bytes of the length before a packet in a stream.
pub(super) const LENGTH_BYTES: usize = 2;

/// A packet as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Where the sender is. In a stream that is where it listens.
    pub source: SocketAddr,
    pub congestion: Congestion,
    /// Without the invariant CRC, which was right.
    pub packet: &'a [u8],
}

/// What the routers on the way said about congestion (RFC 3168, 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// They may not say, so they drop instead.
    NotTold,
    None,
    Experienced,
}

impl Congestion {
    pub(super) const fn from_traffic_class(byte: u8) -> Self {
        match byte & 3 {
            0 => Self::NotTold,
            3 => Self::Experienced,
            _ => Self::None,
        }
    }
}

/// What is in a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Where in the piece the packets begin and end.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) congestion: Congestion,
    pub(super) framing: Framing,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Framing {
    /// Datagrams of so many bytes, the last one of the rest.
    Datagrams(usize),
    /// Packets that have their length before them.
    Stream,
}

/// Received packets that wait to be read.
pub struct Inbox {
    memory: Box<[u8]>,
    loads: [Option<Load>; MESSAGES],
    filled: usize,
    /// The load that is read, and how far in it.
    current: usize,
    at: usize,
    identifications: Identifications,
    /// The carrier had more, as far as it knows.
    pub(super) perhaps_more: bool,
    pub(super) counters: Counters,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("filled", &self.filled)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl Inbox {
    /// An inbox of so many pieces of 64 KiB, 1 to 16. Memory that is never used costs nothing.
    pub fn new(pieces: usize) -> Self {
        Self {
            memory: vec![0; pieces.clamp(1, MESSAGES) * PIECE].into(),
            loads: [None; MESSAGES],
            filled: 0,
            current: 0,
            at: 0,
            identifications: Identifications { last: None },
            perhaps_more: false,
            counters: Counters::default(),
        }
    }

    /// What was received, and what was wrong with it.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether all has been read, so that there is room for more.
    pub const fn is_empty(&self) -> bool {
        self.current == self.filled
    }

    /// Whether the carrier may have had more when it was asked last, even if nothing is in here. Told
    /// once.
    pub fn take_perhaps_more(&mut self) -> bool {
        core::mem::take(&mut self.perhaps_more)
    }

    /// The next packet whose invariant CRC is right; the others are counted and left out.
    #[expect(
        clippy::should_implement_trait,
        reason = "what it returns borrows the inbox, which no Iterator can say"
    )]
    pub fn next(&mut self) -> Option<Received<'_>> {
        let (load, range) = self.next_right()?;
        Some(Received {
            source: load.from,
            congestion: load.congestion,
            packet: self.memory.get(range)?,
        })
    }

    fn next_right(&mut self) -> Option<(Load, Range<usize>)> {
        while self.current < self.filled {
            let load = self.loads[self.current]?;
            let base = self.current * PIECE;
            let range = self.cut(&load, base);
            let Some(datagram) = self.memory.get(range.clone()) else {
                continue;
            };
            let right = match datagram.len() {
                PACKET_MIN..=PACKET_MAX => match load.framing {
                    Framing::Datagrams(_) => {
                        self.identifications
                            .check(&load, datagram, &mut self.counters)
                    }
                    Framing::Stream => {
                        let envelope = pseudo_envelope(gid_of(load.from), gid_of(load.to));
                        icrc::check(&envelope, datagram).map(drop)
                    }
                },
                length => Err(IcrcError::TooLong(length)),
            };
            match right {
                Ok(()) => {
                    self.counters.packets_received += 1;
                    self.counters.bytes_received += range.len() as u64;
                    return Some((load, range.start..range.end - ICRC_LENGTH));
                }
                Err(IcrcError::Mismatch { .. }) => self.counters.damaged += 1,
                Err(_) => self.counters.malformed += 1,
            }
        }
        None
    }

    /// Takes the next datagram off the current load. Returns where it is in the memory.
    fn cut(&mut self, load: &Load, base: usize) -> Range<usize> {
        let begin = load.start + self.at;
        let (begin, end) = match load.framing {
            Framing::Datagrams(segment) => (begin, (begin + segment).min(load.end)),
            Framing::Stream => {
                let length = self
                    .memory
                    .get(base + begin..base + load.end)
                    .and_then(frame_length);
                let begin = begin + LENGTH_BYTES;
                (begin, (begin + length.unwrap_or(0)).min(load.end))
            }
        };
        self.at = end - load.start;
        if end == load.end {
            self.current += 1;
            self.at = 0;
        }
        base + begin..base + end
    }

    /// Makes an inbox that has been read to its end ready to be filled.
    pub(super) fn restart(&mut self) {
        self.filled = 0;
        self.current = 0;
        self.at = 0;
        self.perhaps_more = false;
    }

    /// The pieces that hold nothing yet.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.memory
            .get_mut(self.filled * PIECE..)
            .unwrap_or_default()
    }

    /// How many pieces there are.
    pub(super) fn pieces(&self) -> usize {
        self.memory.len() / PIECE
    }

    /// The first free piece.
    pub(super) fn piece(&mut self) -> Option<&mut [u8]> {
        let begin = self.filled * PIECE;
        self.memory.get_mut(begin..begin + PIECE)
    }

    /// Says what has been written to the first free piece.
    pub(super) fn fill(&mut self, load: Load) {
        if let Some(place) = self.loads.get_mut(self.filled) {
            *place = Some(load);
            self.filled += 1;
        }
    }

    /// Says what has been written to a piece, counted from the first. They are told in their order,
    /// and one that is left out makes those after it move up.
    pub(super) fn fill_from(
        &mut self,
        piece: usize,
        length: usize,
        load: impl FnOnce(usize) -> Load,
    ) {
        let length = length.min(PIECE);
        if piece != self.filled {
            let from = piece * PIECE;
            self.memory
                .copy_within(from..from + length, self.filled * PIECE);
        }
        self.fill(load(length));
    }
}

/// The length that stands before a packet in a stream.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [high, low] = *bytes.first_chunk()?;
    Some(usize::from(high) << 8 | usize::from(low))
}

/// Guesses the identifications of IPv4 headers, which no socket shows but the CRC covers.
///
/// Linux sends 0 from a socket that is not connected and forbids fragments, and from there on
/// upwards in the segments of one message (`inet_gso_segment`). Other senders count in their own
/// ways.
#[derive(Debug)]
struct Identifications {
    /// Who sent last, and with which identification.
    last: Option<(SocketAddr, u16)>,
}

impl Identifications {
    fn check(
        &mut self,
        load: &Load,
        datagram: &[u8],
        counters: &mut Counters,
    ) -> Result<(), IcrcError> {
        let next = match self.last {
            Some((from, last)) if from == load.from => last.wrapping_add(1),
            _ => 0,
        };
        // Within one joined message it goes on, and where one begins it most likely begins too.
        let joined = matches!(load.framing, Framing::Datagrams(segment) if segment < load.end);
        let guess = if joined { next } else { 0 };
        let envelope = envelope(load, guess);
        let (_, found) = icrc::solve(&envelope, datagram)?;
        if let Some(found) = found {
            if found == next || found == 0 {
                counters.identifications_expected += 1;
            } else {
                counters.identifications_solved += 1;
            }
            self.last = Some((load.from, found));
        }
        Ok(())
    }
}

/// The headers of a received datagram.
fn envelope(load: &Load, identification: u16) -> Envelope {
    headers(load.from, load.to, identification)
}

/// The headers between two sockets, as far as the CRC covers them.
pub(super) fn headers(from: SocketAddr, to: SocketAddr, identification: u16) -> Envelope {
    let network = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4(source, destination, identification),
        (source, destination) => Network::Ipv6 {
            source: ipv6(source),
            destination: ipv6(destination),
        },
    };
    Envelope {
        network,
        source_port: from.port(),
        destination_port: to.port(),
    }
}

const fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, identification: u16) -> Network {
    Network::Ipv4 {
        source,
        destination,
        identification,
        do_not_fragment: true,
    }
}

const fn ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl Received<'_> {
    /// The GID of the sender.
    pub fn source_gid(&self) -> Gid {
        gid_of(self.source)
    }
}
