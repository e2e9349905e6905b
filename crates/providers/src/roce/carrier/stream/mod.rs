//! The same packets in TCP streams, for networks that do not let UDP through. One stream joins two
//! carriers, whoever of them has connected; each packet has its length before it, two bytes with
//! the more significant one first.
//!
//! Each side begins with a preamble that says who it is. The address in it must be the one
//! that the stream comes from: a stream does not go through address translation, for the same
//! reason that RoCEv2 does not.

mod connection;
mod greeting;
mod output;
mod preamble;
mod receive;
mod sealing;
mod table;

use super::counters::Counters;
use super::name::{canonical, gid_of};
use super::notice::{Notice, Notices, Refusal};
use super::path::family_of;
use super::{CarrierError, Flushed, Options, PACKET_MAX, SendError, step};
use alloc::boxed::Box;
use connection::{Connection, Stage};
use core::net::SocketAddr;
use legato_base::wire::proof;
use legato_transport::wire::icrc::ICRC_LENGTH;
use legato_verbs::PathMtu;
use preamble::Preamble;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, SocketType, sockopt};
pub use sealing::Sealing;
use table::{LISTENER, Table, Token};

/// Connections that can wait for `accept(2)`.
const BACKLOG: i32 = 128;
/// How long sent bytes may stay without an answer of the peer's kernel until the stream counts as
/// lost, in milliseconds.
const SILENCE_MAX: u32 = 10_000;
/// Any packet fits a stream.
const PATH_MTU: PathMtu = PathMtu::Bytes4096;

/// A NIC's port on TCP streams.
#[derive(Debug)]
pub struct StreamCarrier {
    own: Preamble,
    /// With keys every stream is sealed.
    sealing: Option<Box<Sealing>>,
    listener: OwnedFd,
    table: Table,
    send_slots: usize,
    connections_max: usize,
    notices: Notices,
    counters: Counters,
}

impl StreamCarrier {
    /// Listens at `local`, whose port may be 0 for any free one.
    ///
    /// # Errors
    /// If the address is a wildcard or multicast one, or is not to be had.
    pub fn open(local: SocketAddr, options: &Options) -> Result<Self, CarrierError> {
        Self::open_with(local, options, None)
    }

    /// As [`Self::open`], with streams that are sealed.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        local: SocketAddr,
        options: &Options,
        sealing: Option<Sealing>,
    ) -> Result<Self, CarrierError> {
        let local = canonical(local);
        if local.ip().is_unspecified() || local.ip().is_multicast() {
            return Err(CarrierError::NoUnicastAddress(local));
        }
        let listener = new_socket(local)?;
        sockopt::set_socket_reuseaddr(&listener, true).map_err(step("setsockopt SO_REUSEADDR"))?;
        net::bind(&listener, &local).map_err(step("bind"))?;
        net::listen(&listener, BACKLOG).map_err(step("listen"))?;
        let address = net::getsockname(&listener)
            .and_then(SocketAddr::try_from)
            .map_err(step("getsockname"))?;
        Ok(Self {
            own: Preamble {
                address: canonical(address),
                path_mtu: PATH_MTU,
                instance: options.instance,
            },
            sealing: sealing.map(Box::new),
            table: Table::new(&listener)?,
            listener,
            send_slots: options.send_slots,
            connections_max: options.connections.max(1),
            notices: Notices::new(),
            counters: Counters::default(),
        })
    }

    /// Where peers reach this carrier.
    pub const fn local_address(&self) -> SocketAddr {
        self.own.address
    }

    /// See [`super::Carrier::path_mtu`].
    ///
    /// # Errors
    /// If the peer is of another IP version.
    pub fn path_mtu(&self, peer: SocketAddr) -> Result<PathMtu, CarrierError> {
        let peer = canonical(peer);
        if peer.is_ipv4() != self.local_address().is_ipv4() {
            return Err(CarrierError::OtherFamily { peer });
        }
        Ok(match self.table.of_peer(peer).map(|open| open.stage) {
            Some(Stage::Open { path_mtu, .. }) => path_mtu.min(PATH_MTU),
            _ => PATH_MTU,
        })
    }

    /// See [`super::Carrier::send`]. The first packet makes the connection.
    ///
    /// # Errors
    /// As there.
    pub fn send<E>(
        &mut self,
        peer: SocketAddr,
        _flow: u32,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), SendError<E>> {
        let peer = canonical(peer);
        let local = self.local_address();
        if peer.is_ipv4() != local.is_ipv4() {
            return Err(SendError::OtherFamily);
        }
        if self.table.of_peer(peer).is_none() {
            if self.table.count() >= self.connections_max {
                return Err(SendError::TooManyConnections);
            }
            if let Err(errno) = self.connect(peer) {
                self.tell_refused(peer, errno);
            }
        }
        match self.table.of_peer_mut(peer) {
            Some(connection) => connection.output.push((gid_of(local), gid_of(peer)), write),
            // The packet is lost like one that nobody answers, and the notice says why.
            None => Ok(()),
        }
    }

    /// The packet is copied into what waits for the stream.
    ///
    /// # Errors
    /// As [`super::Carrier::send`].
    pub fn send_packet<E>(
        &mut self,
        peer: SocketAddr,
        flow: u32,
        packet: &[u8],
        length: usize,
    ) -> Result<(), SendError<E>> {
        let packet = packet.get(..length);
        let fits = packet.filter(|_| length + ICRC_LENGTH <= PACKET_MAX);
        let packet = fits.ok_or(SendError::Length(length))?;
        self.send(peer, flow, |place| {
            place[..length].copy_from_slice(packet);
            Ok(length)
        })
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<(), Errno> {
        let local = self.local_address();
        let socket = new_socket(local).map_err(|error| match error {
            CarrierError::System { errno, .. } => errno,
            _ => Errno::INVAL,
        })?;
        let mut own = local;
        own.set_port(0);
        net::bind(&socket, &own)?;
        let stage = match net::connect(&socket, &peer) {
            Ok(()) => Stage::Greeting { peer },
            Err(Errno::INPROGRESS | Errno::INTR) => Stage::Connecting { peer },
            Err(errno) => return Err(errno),
        };
        let mut connection = Connection::new(socket, stage, self.send_slots);
        match &mut self.sealing {
            None => connection.greet(self.own.to_bytes().to_vec()),
            Some(sealing) => {
                let (seal, asking) = sealing.ask(peer, self.own).ok_or(Errno::IO)?;
                connection.seal = seal;
                connection.greet(asking);
            }
        }
        connection.waits_for_room = true;
        let token = self.table.insert(connection)?;
        self.table.set_peer(peer, token);
        Ok(())
    }

    fn tell_refused(&mut self, peer: SocketAddr, errno: Errno) {
        self.counters.refused += 1;
        let refusal = Refusal::new(errno, None);
        self.notices
            .push(Notice::Refused { peer, refusal }, &mut self.counters);
    }

    /// Sends what waits, as much as the kernel takes.
    pub fn flush(&mut self) -> Flushed {
        let mut flushed = Flushed::All;
        let mut after = None;
        while let Some(token) = self.table.next(after) {
            after = Some(token);
            if self.write(token) == Flushed::Blocked {
                flushed = Flushed::Blocked;
            }
        }
        flushed
    }

    fn write(&mut self, token: Token) -> Flushed {
        let Some(connection) = self.table.get_mut(token) else {
            return Flushed::All;
        };
        let connecting = matches!(connection.stage, Stage::Connecting { .. });
        let written = connection.write(&mut self.counters);
        let waits = connection.has_waiting();
        match written {
            Ok(()) => self.table.wait_for_room(token, connecting),
            Err(Errno::AGAIN) => {
                self.counters.would_block += 1;
                self.table.wait_for_room(token, true);
            }
            Err(errno) => {
                self.lose(token, errno);
                return Flushed::All;
            }
        }
        match waits {
            true => Flushed::Blocked,
            false => Flushed::All,
        }
    }

    /// Gives a connection up and tells so.
    fn lose(&mut self, token: Token, errno: Errno) {
        let Some(connection) = self.table.remove(token) else {
            return;
        };
        let Some(peer) = connection.peer() else {
            return;
        };
        self.table.drop_superseded(peer);
        self.counters.connections_lost += u64::from(connection.is_open());
        let refusal = Refusal::new(errno, None);
        self.notices
            .push(Notice::Lost { peer, refusal }, &mut self.counters);
    }

    /// The peer does not take this side for want of the right secret.
    fn lose_refused(&mut self, token: Token, peer: SocketAddr, reason: proof::Refusal) {
        self.counters.secrets_refused += 1;
        self.table.remove(token);
        self.table.drop_superseded(peer);
        let refusal = Refusal::Secret(reason);
        self.notices
            .push(Notice::Refused { peer, refusal }, &mut self.counters);
    }

    /// Ends the connection to a peer, with all that waits for it. The next packet makes a new one.
    pub fn disconnect(&mut self, peer: SocketAddr) {
        let peer = canonical(peer);
        if let Some(token) = self.table.token_of(peer) {
            self.table.remove(token);
            self.table.drop_superseded(peer);
        }
    }

    /// What happened to peers, oldest first.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Readable when `receive` or `flush` has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.table.descriptor()
    }

    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn new_socket(local: SocketAddr) -> Result<OwnedFd, CarrierError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family_of(local), SocketType::STREAM, flags, None)
        .map_err(step("socket"))?;
    set_up(socket.as_fd()).map_err(step("setsockopt"))?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).map_err(step("setsockopt IPV6_V6ONLY"))?;
    }
    Ok(socket)
}

/// Packets leave when they are written, and a silent peer is noticed (tcp(7)). Accepted sockets
/// have this from the listener.
fn set_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE_MAX)
}

/// What is waited for at a connection.
fn interest(room: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, room);
    flags
}
