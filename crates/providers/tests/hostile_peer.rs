//! Peers that break the protocol, on a raw socket: each costs its own connection and no more.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod peer;

use legato_base::{Duration, Time};
use legato_providers::shm::{CONNECT_TIMEOUT, REGIONS_MAX, RING_BYTES};
use legato_verbs::{
    Address, AsyncEvent, CompletionStatus, ConnectionEvent, Event, Provider, QueuePairState,
};
use peer::{Peer, address};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, IoSlice, pwrite};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, recv, sendmsg, socket,
};
use std::mem::MaybeUninit;

const HELLO: u16 = 1;
const REJECT: u16 = 3;
const MAP_REQUEST: u16 = 4;
const MAP_REPLY: u16 = 5;
const SEGMENT_BYTES: u64 = 4096 + RING_BYTES;
const KEY_TABLE_BYTES: u64 = REGIONS_MAX as u64 * 4;
/// Offsets of words in a ring segment.
const PRODUCED: u64 = 0;
const CONSUMED: u64 = 64;
const DELIVERED: u64 = 128;
const REFUSAL: u64 = 136;
const STATE: u64 = 140;

fn message(kind: u16, first: u32) -> [u8; 88] {
    let mut bytes = [0; 88];
    bytes[..4].copy_from_slice(b"LGTS");
    bytes[4..6].copy_from_slice(&1_u16.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
    bytes[8..12].copy_from_slice(&first.to_le_bytes());
    bytes
}

fn segment(length: u64, seals: SealFlags) -> OwnedFd {
    let segment = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&segment, length).unwrap();
    fcntl_add_seals(&segment, seals).unwrap();
    segment
}

/// The hostile side: a socket, and the segment that its victim has mapped.
struct Hostile {
    socket: OwnedFd,
    ring: OwnedFd,
    keys: OwnedFd,
}

impl Hostile {
    fn connect(address: &Address) -> Self {
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

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    fn hello(&self) {
        let attached = [self.ring.as_fd(), self.keys.as_fd()];
        self.send(&message(HELLO, 0), &attached);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.ring, bytes, offset).unwrap(), bytes.len());
    }

    /// The kind of the next message, or `None` at the end of file.
    fn received(&self) -> Option<u16> {
        let mut bytes = [0; 88];
        let received = recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT);
        assert_ne!(received, Err(Errno::AGAIN), "no answer and no end");
        let (_, length) = received.ok()?;
        (length == 88).then(|| u16::from_le_bytes([bytes[6], bytes[7]]))
    }
}

struct Victim {
    peer: Peer,
    address: Address,
}

impl Victim {
    fn new(name: &str) -> Self {
        let mut peer = Peer::new();
        let address = address(name);
        peer.provider.listen(&address).unwrap();
        Self { peer, address }
    }

    fn progress(&mut self) {
        for _ in 0..3 {
            self.peer.provider.progress(Time::from_nanos(1));
        }
    }

    /// A connection with a hostile peer that has behaved so far.
    fn connected(name: &str) -> (Self, Hostile) {
        let mut victim = Self::new(name);
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
        assert_eq!(hostile.received(), Some(2), "accepted");
        (victim, hostile)
    }

    /// The connection must have ended with `expected`, its receive flushed, and nothing left.
    fn expect_fatal(mut self, what: &str) {
        let queue_pair = self.peer.queue_pair;
        let fatal = Event::Async(AsyncEvent::QueuePairFatal { queue_pair });
        self.peer
            .event(what, |event| (*event == fatal).then_some(()));
        let done = self.peer.completion();
        assert_eq!(
            done.result,
            Err(CompletionStatus::WorkRequestFlushed),
            "{what}"
        );
        let state = self.peer.provider.query_queue_pair(queue_pair);
        assert_eq!(state, Ok(QueuePairState::Error), "{what}");
        assert_eq!(self.peer.provider.counters().peers_malformed, 1, "{what}");
        let left = self.peer.provider.resource_counts().connection_state;
        assert_eq!(left, 0, "{what}");
    }
}

#[test]
fn strangers_who_talk_garbage_are_dropped() {
    let open = SealFlags::empty();
    let shrink = SealFlags::SHRINK;
    let bad: [(&str, Vec<u8>, Vec<OwnedFd>); 8] = [
        ("garbage", vec![0xA5; 88], vec![]),
        ("one byte", vec![1], vec![]),
        ("too long", vec![b'L'; 5000], vec![]),
        ("no descriptors", message(HELLO, 0).to_vec(), vec![]),
        ("out of turn", message(MAP_REQUEST, 1).to_vec(), vec![]),
        (
            "segments that can shrink",
            message(HELLO, 0).to_vec(),
            vec![segment(SEGMENT_BYTES, open), segment(KEY_TABLE_BYTES, open)],
        ),
        (
            "a short ring",
            message(HELLO, 0).to_vec(),
            vec![segment(4096, shrink), segment(KEY_TABLE_BYTES, shrink)],
        ),
        (
            "too many descriptors",
            message(HELLO, 0).to_vec(),
            (0..4).map(|_| segment(SEGMENT_BYTES, shrink)).collect(),
        ),
    ];
    for (what, bytes, descriptors) in bad {
        let mut victim = Victim::new("garbage");
        let hostile = Hostile::connect(&victim.address);
        let attached: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        hostile.send(&bytes, &attached);
        victim.progress();
        assert_eq!(hostile.received(), None, "{what}");
        assert_eq!(victim.peer.provider.poll_event(), None, "{what}");
        assert_eq!(victim.peer.provider.counters().peers_malformed, 1, "{what}");
        let left = victim.peer.provider.resource_counts().connection_state;
        assert_eq!(left, 0, "{what}");
    }
}

#[test]
fn another_version_is_rejected_with_an_answer() {
    let mut victim = Victim::new("version");
    let hostile = Hostile::connect(&victim.address);
    let mut hello = message(HELLO, 0);
    hello[4] = 99;
    hostile.send(&hello, &[]);
    victim.progress();
    assert_eq!(hostile.received(), Some(REJECT));
    assert_eq!(hostile.received(), None);
    assert_eq!(victim.peer.provider.poll_event(), None);
}

#[test]
fn a_stranger_who_says_nothing_is_dropped_in_time() {
    let mut victim = Victim::new("silent");
    let hostile = Hostile::connect(&victim.address);
    victim.progress();
    let provider = &mut victim.peer.provider;
    assert_eq!(provider.resource_counts().connection_state, 1);
    let deadline = provider.progress(Time::from_nanos(1));
    assert_eq!(deadline, Time::from_nanos(1) + CONNECT_TIMEOUT);
    provider.progress(deadline + Duration::from_nanos(1));
    assert_eq!(provider.resource_counts().connection_state, 0);
    assert_eq!(hostile.received(), None);
}

#[test]
fn words_out_of_range_end_the_connection() {
    let cases: [(&str, u64, &[u8]); 6] = [
        ("produced", PRODUCED, &[3, 0, 0, 0, 0, 0, 0, 0]),
        ("produced too much", PRODUCED, &[0xFF; 8]),
        ("delivered", DELIVERED, &[5, 0, 0, 0, 0, 0, 0, 0]),
        ("refused nothing", REFUSAL, &[9, 0, 0, 0]),
        ("refused with an unknown status", REFUSAL, &[200, 0, 0, 0]),
        ("state", STATE, &[77, 0, 0, 0]),
    ];
    for (what, offset, bytes) in cases {
        let (mut victim, hostile) = Victim::connected("words");
        victim.peer.post_receive(1, 0, 1024);
        hostile.write(offset, bytes);
        victim.expect_fatal(what);
    }
    let (mut victim, hostile) = Victim::connected("consumed");
    victim.peer.post_receive(1, 0, 1024);
    hostile.write(CONSUMED, &[0xFF; 8]);
    let send = legato_verbs::SendOperation::Send;
    victim.peer.post(1, send, 0, 64);
    victim.expect_fatal("consumed");
}

#[test]
fn a_message_with_a_wrong_length_touches_nothing() {
    for (length, number) in [(u32::MAX, 0_u32), (64 * 1024 + 1, 0), (60, 0), (8, 7)] {
        let (mut victim, hostile) = Victim::connected("length");
        victim.peer.post_receive(1, 0, 128 * 1024);
        hostile.write(4096, &length.to_le_bytes());
        hostile.write(4100, &number.to_le_bytes());
        hostile.write(4104, &[0xEE; 64]);
        hostile.write(PRODUCED, &16_u64.to_le_bytes());
        let untouched = victim.peer.bytes(0, 1024);
        assert_eq!(untouched, vec![0; 1024]);
        victim.expect_fatal("a wrong length");
    }
}

#[test]
fn control_messages_out_of_turn_end_the_connection() {
    for (what, bytes) in [
        ("garbage", vec![7; 88]),
        ("a second hello", message(HELLO, 0).to_vec()),
        ("an answer to no question", message(MAP_REPLY, 1).to_vec()),
    ] {
        let (mut victim, hostile) = Victim::connected("turn");
        victim.peer.post_receive(1, 0, 1024);
        hostile.send(&bytes, &[]);
        victim.expect_fatal(what);
    }
}

#[test]
fn one_hostile_peer_does_not_disturb_another_connection() {
    let address = address("others");
    let mut server = Peer::new();
    server.provider.listen(&address).unwrap();
    let mut random = legato_base::Random::from_seed(5);
    for _ in 0..200 {
        let hostile = Hostile::connect(&address);
        for _ in 0..random.below(4) {
            let mut bytes = message(random.below(9) as u16, 0);
            bytes[random.below(88) as usize] = random.next_u64() as u8;
            hostile.send(&bytes, &[]);
        }
        server.provider.progress(Time::from_nanos(1));
    }
    server.provider.progress(Time::from_nanos(2));
    assert_eq!(server.provider.resource_counts().connection_state, 0);
    while server.provider.poll_event().is_some() {}
    let mut client = Peer::new();
    client
        .provider
        .connect(client.queue_pair, &address, &client.introduction())
        .unwrap();
    server.provider.progress(Time::from_nanos(3));
    let event = server.provider.poll_event();
    assert!(
        matches!(
            event,
            Some(Event::Connection(ConnectionEvent::Requested { .. }))
        ),
        "{event:?}"
    );
}
