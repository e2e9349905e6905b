//! A hostile side on a raw socket, and its victim.

use crate::peer::{Peer, address};
use legato_base::Time;
use legato_providers::shm::{REGIONS_MAX, RING_BYTES};
use legato_verbs::{
    Address, AsyncEvent, CompletionStatus, ConnectionEvent, Event, Provider, QueuePairState,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, IoSlice, pwrite};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, recv, sendmsg, socket,
};
use std::mem::MaybeUninit;

pub(crate) const HELLO: u16 = 1;
pub(crate) const ACCEPT: u16 = 2;
pub(crate) const REJECT: u16 = 3;
pub(crate) const MAP_REQUEST: u16 = 4;
pub(crate) const MAP_REPLY: u16 = 5;
pub(crate) const WAKE: u16 = 6;
pub(crate) const REVOKED: u16 = 7;
pub(crate) const SEGMENT_BYTES: u64 = 4096 + RING_BYTES;
pub(crate) const KEY_TABLE_BYTES: u64 = REGIONS_MAX as u64 * 4;
/// Offsets of words in a ring segment.
pub(crate) const PRODUCED: u64 = 0;
pub(crate) const CONSUMED: u64 = 64;
pub(crate) const DELIVERED: u64 = 128;
pub(crate) const REFUSAL: u64 = 136;
pub(crate) const STATE: u64 = 140;
pub(crate) const PARAMETERS: u64 = 144;
/// Where the ring begins, and what a message's head takes in it.
pub(crate) const RING: u64 = 4096;
pub(crate) const ENVELOPE: u64 = 16;
/// Kinds of messages.
pub(crate) const SEND: u64 = 0;
pub(crate) const SEND_WITH_IMMEDIATE: u64 = 1;
pub(crate) const WRITTEN_WITH_IMMEDIATE: u64 = 2;

pub(crate) fn message(kind: u16, first: u32) -> [u8; 96] {
    let mut bytes = [0; 96];
    bytes[..4].copy_from_slice(b"LGTS");
    bytes[4..6].copy_from_slice(&4_u16.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
    bytes[8..12].copy_from_slice(&first.to_le_bytes());
    bytes
}

pub(crate) fn segment(length: u64, seals: SealFlags) -> OwnedFd {
    let segment = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&segment, length).unwrap();
    fcntl_add_seals(&segment, seals).unwrap();
    segment
}

/// The hostile side: a socket, and the segment that its victim has mapped.
pub(crate) struct Hostile {
    pub(crate) socket: OwnedFd,
    pub(crate) ring: OwnedFd,
    pub(crate) keys: OwnedFd,
}

impl Hostile {
    pub(crate) fn connect(address: &Address) -> Self {
        let Address::Shm(name) = address else {
            panic!("not a shm address");
        };
        let name = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).unwrap();
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &name).unwrap();
        Self {
            socket,
            ring: segment(SEGMENT_BYTES, SealFlags::SHRINK),
            keys: segment(KEY_TABLE_BYTES, SealFlags::SHRINK),
        }
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    pub(crate) fn hello(&self) {
        let attached = [self.ring.as_fd(), self.keys.as_fd()];
        self.send(&message(HELLO, 0), &attached);
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.ring, bytes, offset).unwrap(), bytes.len());
    }

    /// Puts the first message into the ring: kind, flags and immediate as they stand there.
    pub(crate) fn put(&self, length: u32, number: u32, rest: u64, payload: u64) {
        self.write(RING, &length.to_le_bytes());
        self.write(RING + 4, &number.to_le_bytes());
        self.write(RING + 8, &rest.to_le_bytes());
        self.write(PRODUCED, &(ENVELOPE + payload).to_le_bytes());
    }

    /// The kind of the next message, or `None` at the end of file.
    pub(crate) fn received(&self) -> Option<u16> {
        self.receive().expect("an answer or an end")
    }

    /// The kinds of all messages that are there.
    pub(crate) fn waiting(&self) -> Vec<u16> {
        std::iter::from_fn(|| self.receive().flatten()).collect()
    }

    /// As [`Self::received`]; `None` if there is nothing yet.
    fn receive(&self) -> Option<Option<u16>> {
        let mut bytes = [0; 96];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => None,
            Ok((_, 96)) => Some(Some(u16::from_le_bytes([bytes[6], bytes[7]]))),
            _ => Some(None),
        }
    }
}

pub(crate) struct Victim {
    pub(crate) peer: Peer,
    pub(crate) address: Address,
}

impl Victim {
    pub(crate) fn new(name: &str) -> Self {
        let mut peer = Peer::new();
        let address = address(name);
        peer.provider.listen(&address).unwrap();
        Self { peer, address }
    }

    pub(crate) fn progress(&mut self) {
        for _ in 0..3 {
            self.peer.provider.progress(Time::from_nanos(1));
        }
    }

    /// A connection with a hostile peer that has behaved so far.
    pub(crate) fn connected(name: &str) -> (Self, Hostile) {
        let mut victim = Self::new(name);
        let hostile = victim.accepts();
        (victim, hostile)
    }

    pub(crate) fn accepts(&mut self) -> Hostile {
        let victim = self;
        let hostile = Hostile::connect(&victim.address);
        hostile.hello();
        let request = victim.peer.event("a request", |event| match event {
            Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(*request),
            _ => None,
        });
        let queue_pair = victim.peer.queue_pair;
        victim
            .peer
            .provider
            .accept(request, queue_pair, &[])
            .unwrap();
        victim.peer.events.clear();
        victim.peer.provider.poll_event();
        assert_eq!(hostile.received(), Some(ACCEPT), "accepted");
        hostile
    }

    /// The queue pair must have failed, and each event come once.
    pub(crate) fn expect_fatal_event(&mut self, what: &str) {
        let queue_pair = self.peer.queue_pair;
        let fatal = Event::Async(AsyncEvent::QueuePairFatal(queue_pair));
        self.peer
            .event(what, |event| (*event == fatal).then_some(()));
        self.peer.disconnected();
        let exit = Event::Connection(ConnectionEvent::TimeWaitExit { queue_pair });
        assert_eq!(self.peer.events, [exit], "{what}");
        assert_eq!(self.peer.provider.counters().peers_malformed, 1, "{what}");
    }

    /// The connection must have ended, its receive flushed, and nothing left.
    pub(crate) fn expect_fatal(mut self, what: &str) {
        self.expect_fatal_event(what);
        let queue_pair = self.peer.queue_pair;
        let done = self.peer.completion();
        assert_eq!(
            done.result,
            Err(CompletionStatus::WorkRequestFlushed),
            "{what}"
        );
        let state = self.peer.provider.query_queue_pair(queue_pair);
        assert_eq!(state, Ok(QueuePairState::Error), "{what}");
        let left = self.peer.provider.resource_counts().connection_state;
        assert_eq!(left, 0, "{what}");
    }
}
