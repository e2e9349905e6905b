//! The sockets of a provider.

use super::carrier::{
    Carrier, CarrierError, Counters, DatagramCarrier, FIRST_FLOW_PORT, Inbox, Notice, Options,
    PACKET_BUFFER, Sealing, SendError, StreamCarrier, family_of,
};
use super::peers::PortIndex;
use crate::memory::system;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::mem;
use core::net::{IpAddr, SocketAddr};
use legato_base::Random;
use legato_verbs::{PathMtu, VerbsError};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, SocketType};

/// Ports at most.
const PORTS_MAX: usize = 64;
/// Ports that are chosen here begin at this one, above those of well-known services.
const FIRST_OWN_PORT: u16 = 0x8000;
/// Ports that are tried before none is free.
const TRIES: u32 = 64;

/// Packets that are held at most: the parts of one, and what connection management sends without asking.
const HELD_MAX: usize = 8;

/// What carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Datagram,
    Stream,
}

/// The ports of a provider, each in a place of its own.
#[derive(Debug)]
pub(super) struct Ports {
    ports: Vec<Option<Port>>,
    options: Options,
    sealing: Option<Sealing>,
    epoll: OwnedFd,
}

#[derive(Debug)]
struct Port {
    kind: Kind,
    carrier: Carrier,
    listeners: u32,
    /// It was opened for listeners, and is closed after them.
    passing: bool,
    /// A packet, or the parts of one, that the carrier had no room for.
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    peer: SocketAddr,
    flow: u32,
    packet: Box<[u8]>,
    length: usize,
}

impl Ports {
    pub(super) fn new(options: Options, sealing: Option<Sealing>) -> Result<Self, VerbsError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        Ok(Self {
            ports: Vec::new(),
            options,
            sealing,
            epoll,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// [`Self::descriptor`] is readable while this is.
    pub(super) fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<(), VerbsError> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))
    }

    /// The port at an address, opened if need be.
    pub(super) fn at(&mut self, kind: Kind, local: SocketAddr) -> Result<PortIndex, VerbsError> {
        if let Some(index) = self.opened_at(kind, local) {
            return Ok(index);
        }
        if local.port() >= FIRST_FLOW_PORT {
            return Err(VerbsError::UnsupportedAddress);
        }
        self.open(kind, local)
    }

    /// The first port with the IP address from which the system reaches a peer, opened if need be.
    pub(super) fn towards(
        &mut self,
        kind: Kind,
        peer: SocketAddr,
        random: &mut Random,
    ) -> Result<PortIndex, VerbsError> {
        let own = source_towards(peer)?;
        let fits = |port: &Port| {
            let mut local = port.carrier.local_address();
            local.set_port(0);
            let are_loopback = own.ip().is_loopback() && local.ip().is_loopback();
            port.kind == kind && (local == own || are_loopback && local.is_ipv4() == own.is_ipv4())
        };
        match self.find(fits) {
            Some(index) => Ok(index),
            None => self.open_any(kind, own, random),
        }
    }

    /// A port of an address that nobody has, below those that stand for flows.
    pub(super) fn open_any(
        &mut self,
        kind: Kind,
        mut own: SocketAddr,
        random: &mut Random,
    ) -> Result<PortIndex, VerbsError> {
        let choices = u64::from(FIRST_FLOW_PORT - FIRST_OWN_PORT);
        let mut error = VerbsError::AddressInUse;
        for _ in 0..TRIES {
            let port = FIRST_OWN_PORT + random.below(choices) as u16;
            own.set_port(port);
            match self.open(kind, own) {
                Err(VerbsError::AddressInUse) => error = VerbsError::AddressInUse,
                other => return other,
            }
        }
        Err(error)
    }

    fn open(&mut self, kind: Kind, local: SocketAddr) -> Result<PortIndex, VerbsError> {
        let free = self.ports.iter().position(Option::is_none);
        let index = free.unwrap_or(self.ports.len());
        if index >= PORTS_MAX {
            return Err(VerbsError::LimitExceeded {
                what: "ports",
                asked: PORTS_MAX as u64 + 1,
                limit: PORTS_MAX as u64,
            });
        }
        let carrier = match kind {
            Kind::Datagram => DatagramCarrier::open(local, &self.options).map(Carrier::Datagram),
            Kind::Stream => {
                let sealing = self.sealing.as_mut().map(Sealing::fork);
                StreamCarrier::open_with(local, &self.options, sealing).map(Carrier::Stream)
            }
        }
        .map_err(refused)?;
        let mut descriptors = Vec::new();
        carrier.descriptors(&mut descriptors);
        for descriptor in descriptors {
            self.watch(descriptor)?;
        }
        let port = Some(Port {
            kind,
            carrier,
            listeners: 0,
            passing: false,
            held: VecDeque::new(),
        });
        match self.ports.get_mut(index) {
            Some(place) => *place = port,
            None => self.ports.push(port),
        }
        Ok(index as PortIndex)
    }

    /// The port for a listener at an address.
    pub(super) fn listen(
        &mut self,
        kind: Kind,
        local: SocketAddr,
    ) -> Result<PortIndex, VerbsError> {
        let is_new = self.opened_at(kind, local).is_none();
        let index = self.at(kind, local)?;
        if let Some(port) = self.port_mut(index) {
            port.listeners += 1;
            port.passing |= is_new;
        }
        Ok(index)
    }

    /// A listener of a port is closed.
    pub(super) fn end_listener(&mut self, index: PortIndex) {
        if let Some(port) = self.port_mut(index) {
            port.listeners = port.listeners.saturating_sub(1);
        }
    }

    /// Closes ports that were opened for listeners and that nobody uses any more.
    pub(super) fn close_all_but(&mut self, mut used: impl FnMut(PortIndex) -> bool) {
        for (index, place) in self.ports.iter_mut().enumerate() {
            let over = |port: &Port| port.passing && port.listeners == 0;
            if place.as_ref().is_some_and(over) && !used(index as PortIndex) {
                // What the system has closed is out of the epoll set too (epoll(7)).
                *place = None;
            }
        }
    }

    fn opened_at(&self, kind: Kind, local: SocketAddr) -> Option<PortIndex> {
        self.find(|port| port.kind == kind && port.carrier.local_address() == local)
    }

    fn find(&self, wanted: impl Fn(&Port) -> bool) -> Option<PortIndex> {
        let is_wanted = |place: &Option<Port>| place.as_ref().is_some_and(&wanted);
        let index = self.ports.iter().position(is_wanted)?;
        Some(index as PortIndex)
    }

    /// Is a port at this IP address?
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.find(|port| port.carrier.local_address().ip() == address)
            .is_some()
    }

    fn port(&self, index: PortIndex) -> Option<&Port> {
        self.ports.get(usize::from(index))?.as_ref()
    }

    fn port_mut(&mut self, index: PortIndex) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(index))?.as_mut()
    }

    /// Places of ports, in use or not.
    pub(super) fn places(&self) -> PortIndex {
        self.ports.len() as PortIndex
    }

    pub(super) fn local_address(&self, index: PortIndex) -> Option<SocketAddr> {
        Some(self.port(index)?.carrier.local_address())
    }

    /// What the path to a peer takes; None says nothing.
    pub(super) fn path_mtu(&self, index: PortIndex, peer: SocketAddr) -> Option<PathMtu> {
        self.port(index)?.carrier.path_mtu(peer).ok()
    }

    /// Could the packet that is sent next be held, whatever its port?
    pub(super) fn has_room(&self) -> bool {
        self.ports.iter().flatten().all(|port| port.held.is_empty())
    }

    pub(super) fn carries_datagrams(&self, index: PortIndex) -> bool {
        self.port(index)
            .is_some_and(|port| port.kind == Kind::Datagram)
    }

    /// Queues a packet of so many bytes. Returns memory for another one.
    pub(super) fn send(
        &mut self,
        index: PortIndex,
        peer: SocketAddr,
        flow: u32,
        mut packet: Box<[u8]>,
        length: usize,
    ) -> Box<[u8]> {
        if let Some(port) = self.port_mut(index)
            && port.held.len() < HELD_MAX
            && !(port.held.is_empty() && port.take(peer, flow, &mut packet, length))
        {
            let other = vec![0; PACKET_BUFFER].into();
            port.held.push_back(Held {
                peer,
                flow,
                packet: mem::replace(&mut packet, other),
                length,
            });
        }
        packet
    }

    /// Sends what waits. What the sockets do not take now stays.
    pub(super) fn flush(&mut self) {
        self.ports.iter_mut().flatten().for_each(Port::flush);
    }

    /// Sends what waits at one port.
    pub(super) fn flush_one(&mut self, index: PortIndex) {
        self.port_mut(index).into_iter().for_each(Port::flush);
    }

    /// Receives through one port into an inbox that has been read.
    pub(super) fn receive(&mut self, index: PortIndex, inbox: &mut Inbox) -> bool {
        let port = self.port_mut(index);
        port.is_some_and(|port| port.carrier.receive(inbox))
    }

    /// All that is known by now of what was sent through a port becomes notices.
    pub(super) fn settle(&mut self, index: PortIndex) {
        if let Some(port) = self.port_mut(index) {
            port.carrier.settle();
        }
    }

    /// The user is about to sleep.
    pub(super) fn before_sleep(&mut self, index: PortIndex) {
        if let Some(port) = self.port_mut(index) {
            port.carrier.before_sleep();
        }
    }

    /// Of all that are open.
    pub(super) fn counters(&self) -> Counters {
        let all = self.ports.iter().flatten();
        all.fold(Counters::default(), |sum, port| {
            sum.plus(port.carrier.counters())
        })
    }

    /// The oldest thing that happened to a peer of a port.
    pub(super) fn notice(&mut self, index: PortIndex) -> Option<Notice> {
        self.port_mut(index)?.carrier.notice()
    }
}

impl Port {
    fn flush(&mut self) {
        self.carrier.flush();
        let had_any = !self.held.is_empty();
        while let Some(mut held) = self.held.pop_front() {
            if !self.take(held.peer, held.flow, &mut held.packet, held.length) {
                self.held.push_front(held);
                break;
            }
        }
        if had_any {
            self.carrier.flush();
        }
    }

    /// False if there is no room. A packet that cannot be sent at all is lost, as on any network.
    fn take(&mut self, peer: SocketAddr, flow: u32, packet: &mut Box<[u8]>, length: usize) -> bool {
        let sent = self.carrier.send_packet(peer, flow, packet, length);
        sent != Err(SendError::<Infallible>::Busy)
    }
}

/// The own address from which the system sends to a peer, with port 0 (`connect` on a datagram socket
/// sends nothing, udp(7)).
pub(crate) fn source_towards(peer: SocketAddr) -> Result<SocketAddr, VerbsError> {
    let socket = net::socket_with(
        family_of(peer),
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(system("socket"))?;
    net::connect(&socket, &peer).map_err(system("find a route"))?;
    let name = net::getsockname(&socket).map_err(system("getsockname"))?;
    let mut own = SocketAddr::try_from(name).map_err(system("getsockname"))?;
    own.set_port(0);
    Ok(own)
}

fn refused(error: CarrierError) -> VerbsError {
    match error {
        CarrierError::System {
            errno: Errno::ADDRINUSE,
            ..
        } => VerbsError::AddressInUse,
        CarrierError::System {
            errno: Errno::ACCESS | Errno::PERM,
            ..
        } => VerbsError::PermissionDenied,
        CarrierError::System { call, errno } => system(call)(errno),
        CarrierError::NoUnicastAddress(_)
        | CarrierError::OtherFamily { .. }
        | CarrierError::PathTooNarrow { .. } => VerbsError::UnsupportedAddress,
    }
}
