//! Packets as UDP datagrams, which is RoCEv2 proper (annex A17).

mod batches;
mod errors;
mod receive;
mod send;
mod sockets;

use super::counters::Counters;
use super::name::canonical;
use super::notice::{Notice, Notices};
use super::path;
use super::system::{Envelope, MESSAGES};
use super::{CarrierError, Options, step};
use alloc::boxed::Box;
use alloc::vec;
use batches::Batches;
use core::net::SocketAddr;
use legato_verbs::PathMtu;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use sockets::Sockets;

/// A NIC's port on UDP sockets.
#[derive(Debug)]
pub struct DatagramCarrier {
    sockets: Sockets,
    epoll: OwnedFd,
    /// Whether the descriptor waits for room in a socket.
    blocked: bool,
    batches: Batches,
    /// Of the messages that were received last.
    envelopes: Box<[Envelope]>,
    /// Messages that the next call asks for.
    expected: usize,
    notices: Notices,
    counters: Counters,
}

impl DatagramCarrier {
    /// Binds `local`, whose port may be 0 for any free one.
    ///
    /// # Errors
    /// If the address is a wildcard or multicast one, or is not to be had.
    pub fn open(local: SocketAddr, options: &Options) -> Result<Self, CarrierError> {
        let local = canonical(local);
        let sockets = Sockets::open(local, options)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(step("epoll_create1"))?;
        let carrier = Self {
            sockets,
            epoll,
            blocked: false,
            batches: Batches::new(options.send_slots, options.segmentation),
            envelopes: vec![Envelope::EMPTY; MESSAGES].into(),
            expected: 1,
            notices: Notices::new(),
            counters: Counters::default(),
        };
        carrier.watch(0).map_err(step("epoll_ctl"))?;
        Ok(carrier)
    }

    fn watch(&self, index: usize) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(index as u64);
        let socket = self.sockets.descriptor(index);
        epoll::add(&self.epoll, socket, data, interest(index, self.blocked))
    }

    /// The number of the socket that a packet is sent from.
    fn socket_for(&mut self, peer: SocketAddr, flow: u32) -> usize {
        if !self.sockets.has_flows_to(peer) {
            return 0;
        }
        if self.sockets.open_others() {
            for index in 1..self.sockets.count() {
                // Its errors are taken when something is sent from it.
                let _ = self.watch(index);
            }
        }
        self.sockets.of_flow(flow)
    }

    /// Where peers reach this carrier.
    pub const fn local_address(&self) -> SocketAddr {
        self.sockets.local()
    }

    /// See [`super::Carrier::path_mtu`].
    ///
    /// # Errors
    /// As there.
    pub fn path_mtu(&self, peer: SocketAddr) -> Result<PathMtu, CarrierError> {
        if canonical(peer).is_ipv4() != self.local_address().is_ipv4() {
            return Err(CarrierError::OtherFamily { peer });
        }
        path::probe(self.local_address(), peer)
    }

    /// What happened to peers, oldest first.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Readable when `receive` or `flush` has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Packets that can be queued before there is back-pressure.
    pub fn room(&self) -> usize {
        self.batches.room()
    }

    /// Makes the descriptor wait for room in the sockets, or not any more.
    fn set_blocked(&mut self, blocked: bool) {
        if self.blocked == blocked {
            return;
        }
        self.blocked = blocked;
        for (index, socket) in self.sockets.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            // Both descriptors are ours and were joined when they were made.
            let _ = epoll::modify(&self.epoll, socket, data, interest(index, blocked));
        }
    }
}

/// What is waited for: only the first socket receives. Errors are always told (epoll_ctl(2)).
fn interest(index: usize, blocked: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, index == 0);
    flags.set(epoll::EventFlags::OUT, blocked);
    flags
}
