//! Near halves that say what cannot be: each costs its own proxy, with all that it had, and no more.

use super::call::{Answer, Call, RegionId, VERSION};
use super::codec::{Decoder, Encoder};
use super::message::{Completed, Direction, Notice, Part, Post, Told, Work};
use super::packet::{self, PACKET_BYTES_MAX, Received};
use super::rings::{OwnRing, Rings};
use super::server::{ProxyEnd, ProxyServer};
use super::{MEMORY_BYTES_MAX, OBJECTS_MAX, connection, frame, unframe};
use crate::ShmProvider;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, CompletionQueue, CompletionStatus, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairCapabilities, QueuePairState, RemoteAddress, RemoteKey,
    ResourceCounts, SendFlags, SendOperation, VerbsError,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};

const REGION_BYTES: u64 = 4096;
const REQUESTS: u32 = 4;
const REGION: RegionId = RegionId(1);

/// A far half, and what its near half would be, in the hands of the test.
struct Rig {
    server: ProxyServer<ShmProvider>,
    socket: OwnedFd,
    rings: Option<Rings>,
    calls: u32,
    now: Time,
}

/// What an honest near half begins with.
#[derive(Clone, Copy)]
struct Own {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pair: QueuePair,
}

impl Rig {
    fn new() -> Self {
        let (socket, far) = connection().unwrap();
        Self {
            server: ProxyServer::new(far, ShmProvider::new().unwrap()),
            socket,
            rings: None,
            calls: 0,
            now: Time::ZERO,
        }
    }

    fn turn(&mut self) -> Option<ProxyEnd> {
        for _ in 0..3 {
            self.now = self.now + legato_base::Duration::from_millis(1);
            self.server.turn(self.now);
        }
        self.server.ended()
    }

    fn say(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Option<ProxyEnd> {
        packet::send(&self.socket, bytes, descriptor).unwrap();
        self.turn()
    }

    fn packet(&mut self, call: &Call, messages: u64) -> Vec<u8> {
        self.calls += 1;
        let mut bytes = Vec::new();
        let mut encoder = Encoder(&mut bytes);
        frame(self.calls, messages, &mut encoder);
        call.encode(&mut encoder);
        bytes
    }

    fn call_with(
        &mut self,
        call: &Call,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> (Result<Answer, VerbsError>, Option<OwnedFd>) {
        let put = self.rings.as_ref().map_or(0, Rings::put_count);
        let bytes = self.packet(call, put);
        assert_eq!(self.say(&bytes, descriptor), None, "{call:?}");
        let mut bytes = [0; PACKET_BYTES_MAX];
        loop {
            let Received::Packet(length, attached) = packet::receive(&self.socket, &mut bytes)
            else {
                panic!("no answer to {call:?}");
            };
            let (number, _, rest) = unframe(&bytes[..length]).unwrap();
            if number == self.calls {
                return (Answer::decode(rest).unwrap(), attached);
            }
        }
    }

    fn call(&mut self, call: &Call) -> Result<Answer, VerbsError> {
        self.call_with(call, None).0
    }

    fn greet(&mut self) {
        let (own, segment) = OwnRing::create().unwrap();
        let hello = Call::Hello { version: VERSION };
        let (answer, ring) = self.call_with(&hello, Some(segment.as_fd()));
        assert!(matches!(answer, Ok(Answer::Hello(_))));
        self.rings = Some(own.join(&ring.unwrap()).unwrap());
    }

    /// Introduced, with a queue pair in Init and a region.
    fn ready() -> (Self, Own) {
        let mut rig = Self::new();
        rig.greet();
        let Ok(Answer::Domain(domain)) = rig.call(&Call::CreateDomain) else {
            panic!("no domain");
        };
        let Ok(Answer::Queue(queue)) = rig.call(&Call::CreateQueue { entries: 64 }) else {
            panic!("no queue");
        };
        let Ok(Answer::Pair(pair, _)) = rig.call(&Call::CreatePair {
            domain,
            sends: queue,
            receives: queue,
            capabilities: QueuePairCapabilities {
                send_requests_max: REQUESTS,
                receive_requests_max: REQUESTS,
                entries_max: 2,
            },
        }) else {
            panic!("no queue pair");
        };
        let modified = rig.call(&Call::Modify {
            pair,
            to: QueuePairState::Init,
            attributes: QueuePairAttributes::INIT,
        });
        assert_eq!(modified, Ok(Answer::State(QueuePairState::Init)));
        let made = rig.call(&allocation(REGION, domain, REGION_BYTES, AccessFlags::NONE));
        assert!(matches!(made, Ok(Answer::Region { .. })), "{made:?}");
        let own = Own {
            domain,
            queue,
            pair,
        };
        (rig, own)
    }

    fn put(&mut self, bytes: &[u8]) -> Option<ProxyEnd> {
        assert!(self.rings.as_mut().unwrap().put(bytes).unwrap());
        self.turn()
    }

    fn post(
        &mut self,
        pair: QueuePair,
        number: u64,
        work: Work,
        parts: &[Part],
    ) -> Option<ProxyEnd> {
        let mut bytes = Vec::new();
        Post::encode((pair, number), work, parts, &mut Encoder(&mut bytes)).unwrap();
        self.put(&bytes)
    }

    fn told(&mut self) -> Vec<Completed> {
        self.turn();
        let (mut bytes, mut all) = (Vec::new(), Vec::new());
        while self.rings.as_mut().unwrap().take(&mut bytes).unwrap() {
            if let Notice::Completed(done) = Told::decode(Decoder(&bytes)).unwrap().notice {
                all.push(done);
            }
        }
        all
    }

    #[track_caller]
    fn expect_over(mut self, what: &str) {
        let end = self.turn();
        assert!(matches!(end, Some(ProxyEnd::Breach(_))), "{what}: {end:?}");
        let left = self.server.provider().resource_counts();
        assert_eq!(left, ResourceCounts::default(), "{what}");
        assert_eq!(self.server.leaked(), 0, "{what}");
        drop(self.server);
        let mut bytes = [0; PACKET_BYTES_MAX];
        loop {
            match packet::receive(&self.socket, &mut bytes) {
                Received::Packet(..) => {}
                Received::Closed => return,
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}

fn allocation(id: RegionId, domain: ProtectionDomain, length: u64, access: AccessFlags) -> Call {
    Call::AllocateRegion {
        id,
        domain,
        length,
        access,
    }
}

const RECEIVE: Work = Work::Receive;
const SEND: Work = Work::Send(SendOperation::Send, SendFlags::SIGNALED);

#[test]
fn packets_that_are_none_end_the_proxy() {
    for bytes in [&[1u8][..], &[0xA5; 64], &[7; PACKET_BYTES_MAX], &[1; 2000]] {
        let mut rig = Rig::new();
        rig.say(bytes, None);
        rig.expect_over("before the first call");
        let (mut rig, _) = Rig::ready();
        rig.say(bytes, None);
        rig.expect_over("later");
    }
}

#[test]
fn a_first_call_that_is_none_ends_the_proxy() {
    let hello = Call::Hello { version: VERSION };
    for (what, call) in [
        ("without its ring", &hello),
        ("another", &Call::CreateDomain),
    ] {
        let mut rig = Rig::new();
        let bytes = rig.packet(call, 0);
        rig.say(&bytes, None);
        rig.expect_over(what);
    }
    // A ring that can shrink, whose reader would die of SIGBUS; and what is no memory at all.
    let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 1 << 20).unwrap();
    let short = rustix::fs::memfd_create("short", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&short, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    let (socket, _other) = connection().unwrap();
    for (what, descriptor) in [("open", open), ("short", short), ("socket", socket)] {
        let mut rig = Rig::new();
        let bytes = rig.packet(&hello, 0);
        rig.say(&bytes, Some(descriptor.as_fd()));
        rig.expect_over(what);
    }
    let mut rig = Rig::new();
    let (_own, segment) = OwnRing::create().unwrap();
    let other = Call::Hello {
        version: VERSION + 1,
    };
    let (answer, _) = rig.call_with(&other, Some(segment.as_fd()));
    assert!(
        matches!(answer, Err(VerbsError::Unsupported(_))),
        "{answer:?}"
    );
}

#[test]
fn calls_out_of_place_end_the_proxy() {
    let (mut rig, own) = Rig::ready();
    let bytes = rig.packet(&Call::CreateDomain, 1);
    rig.say(&bytes, None);
    rig.expect_over("behind a message that is not there");
    let (mut rig, _) = Rig::ready();
    let (_own, segment) = OwnRing::create().unwrap();
    let bytes = rig.packet(&Call::Hello { version: VERSION }, 0);
    rig.say(&bytes, Some(segment.as_fd()));
    rig.expect_over("a second first call");
    let (mut rig, _) = Rig::ready();
    let bytes = rig.packet(&Call::CreateDomain, 0);
    rig.say(&bytes, Some(segment.as_fd()));
    rig.expect_over("a descriptor that nobody asked for");
    let (mut rig, _) = Rig::ready();
    let again = allocation(REGION, own.domain, 8, AccessFlags::NONE);
    let bytes = rig.packet(&again, 0);
    rig.say(&bytes, None);
    rig.expect_over("a second region of the name");
    let (mut rig, _) = Rig::ready();
    let bytes = rig.packet(&Call::ResourceCounts, 0);
    // Nobody reads the answers, until the socket takes no more.
    for _ in 0..100_000 {
        match packet::send(&rig.socket, &bytes, None) {
            Ok(()) => {}
            Err(_) if rig.turn().is_some() => break,
            Err(_) => {}
        }
    }
    rig.expect_over("answers that nobody reads");
}

#[test]
fn requests_that_cannot_be_end_the_proxy() {
    let part = |region, offset, length| Part {
        region: RegionId(region),
        offset,
        length,
    };
    let unknown = QueuePair {
        index: 77,
        generation: 0,
    };
    type Wrong = fn(QueuePair) -> (QueuePair, u64);
    let names: [(&str, Wrong); 3] = [
        ("a later number", |pair| (pair, 1)),
        ("the last number", |pair| (pair, u64::MAX)),
        ("another generation", |pair| {
            let generation = pair.generation.wrapping_add(1);
            (QueuePair { generation, ..pair }, 0)
        }),
    ];
    for work in [SEND, RECEIVE] {
        for (what, wrong) in names {
            let (mut rig, own) = Rig::ready();
            let (pair, number) = wrong(own.pair);
            rig.post(pair, number, work, &[]);
            rig.expect_over(what);
        }
        let (mut rig, _) = Rig::ready();
        rig.post(unknown, 0, work, &[]);
        rig.expect_over("an unknown queue pair");
        for wrong in [
            part(2, 0, 8),
            part(0, 0, 8),
            part(1, REGION_BYTES, 1),
            part(1, 1, REGION_BYTES as u32),
            part(1, 0, u32::MAX),
            part(1, u64::MAX, 1),
            part(1, u64::MAX - 3, 8),
        ] {
            let (mut rig, own) = Rig::ready();
            // Behind one that is right.
            rig.post(own.pair, 0, work, &[part(1, 0, 8), wrong]);
            rig.expect_over("memory that it does not have");
        }
    }
}

#[test]
fn inline_data_is_of_the_near_halfs_own_memory_only() {
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let (mut rig, own) = Rig::ready();
    let outside = Part {
        region: REGION,
        offset: REGION_BYTES - 4,
        length: 8,
    };
    let inline = Work::Send(SendOperation::Send, flags);
    rig.post(own.pair, 0, inline, &[outside]);
    rig.expect_over("inline data from outside");
}

#[test]
fn messages_that_are_none_end_the_proxy() {
    for bytes in [&[][..], &[0; 7], &[9; 40], &[0xFF; 512], &[0; 513]] {
        let (mut rig, _) = Rig::ready();
        rig.put(bytes);
        rig.expect_over("a message that is none");
    }
}

#[test]
fn more_requests_than_a_queue_holds_end_the_proxy() {
    let (mut rig, own) = Rig::ready();
    for number in 0..u64::from(REQUESTS) {
        assert_eq!(rig.post(own.pair, number, RECEIVE, &[]), None);
    }
    rig.post(own.pair, REQUESTS.into(), RECEIVE, &[]);
    rig.expect_over("one receive too many");
}

#[test]
fn what_the_provider_refuses_fails_in_its_place() {
    let (mut rig, own) = Rig::ready();
    assert_eq!(rig.post(own.pair, 0, RECEIVE, &[]), None);
    // In Init nothing can be sent; an honest near half knows, and may know too late.
    for number in 0..2 {
        assert_eq!(rig.post(own.pair, number, SEND, &[]), None);
    }
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    let told = rig.told();
    let of = |direction| {
        let of_queue = told.iter().filter(move |done| done.direction == direction);
        of_queue
            .map(|done| (done.number, done.result))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Direction::Send), [(0, flushed), (1, flushed)]);
    assert_eq!(of(Direction::Receive), [(0, flushed)]);
    let state = rig.call(&Call::QueryState(own.pair));
    assert_eq!(state, Ok(Answer::State(QueuePairState::Error)));
    // The region may not be written: a protection error, behind one that is only flushed.
    let target = RemoteAddress {
        key: RemoteKey(1),
        address: 0,
    };
    let read = Work::Send(SendOperation::RdmaRead(target), SendFlags::NONE);
    let whole = Part {
        region: REGION,
        offset: 0,
        length: 8,
    };
    assert_eq!(rig.post(own.pair, 2, SEND, &[]), None);
    assert_eq!(rig.post(own.pair, 3, read, &[whole]), None);
    let told = rig.told();
    let told: Vec<_> = told.iter().map(|done| (done.number, done.result)).collect();
    let refused = Err(CompletionStatus::LocalProtection);
    assert_eq!(told, [(2, flushed), (3, refused)]);
}

#[test]
fn handles_of_nothing_are_refused_and_cost_nothing() {
    let (mut rig, own) = Rig::ready();
    let wrong = QueuePair {
        index: u32::MAX,
        generation: 3,
    };
    let queue = CompletionQueue {
        index: u32::MAX,
        generation: 3,
    };
    let domain = ProtectionDomain {
        index: u32::MAX,
        generation: 3,
    };
    for call in [
        Call::DestroyPair(wrong),
        Call::QueryState(wrong),
        Call::Disconnect(wrong),
        Call::DestroyQueue(queue),
        Call::ArmQueue(queue, legato_verbs::Arm::Next),
        Call::DestroyDomain(domain),
        Call::DeregisterRegion(RegionId(9)),
        allocation(RegionId(9), domain, 8, AccessFlags::NONE),
    ] {
        let answer = rig.call(&call);
        assert!(
            matches!(answer, Err(VerbsError::UnknownHandle(_))),
            "{call:?}: {answer:?}"
        );
    }
    let busy = rig.call(&Call::DestroyQueue(own.queue));
    assert!(matches!(busy, Err(VerbsError::Busy(_))), "{busy:?}");
}

#[test]
fn there_is_a_limit_on_everything() {
    let (mut rig, own) = Rig::ready();
    let exceeds = |answer| matches!(answer, Err(VerbsError::LimitExceeded { .. }));
    for length in [0, MEMORY_BYTES_MAX, u64::MAX] {
        let id = RegionId(9);
        assert!(exceeds(rig.call(&allocation(
            id,
            own.domain,
            length,
            AccessFlags::NONE
        ))));
    }
    for count in 1.. {
        match rig.call(&Call::CreateDomain) {
            Ok(_) => assert!(count < OBJECTS_MAX),
            Err(error) => {
                assert!(exceeds(Err(error)));
                assert_eq!(count, OBJECTS_MAX);
                break;
            }
        }
    }
    assert_eq!(rig.server.ended(), None);
}

/// Its ring fills, and it takes nothing. The far half sleeps all the same, holds little, and goes on
/// where it stopped when there is space again.
#[test]
fn a_near_half_that_takes_nothing_costs_no_processor() {
    let (mut rig, own) = Rig::ready();
    let error = rig.call(&Call::Modify {
        pair: own.pair,
        to: QueuePairState::Error,
        attributes: QueuePairAttributes::NONE,
    });
    assert_eq!(error, Ok(Answer::State(QueuePairState::Error)));
    let mut posted = 0;
    // Each receive in the error state is flushed, and so takes a place in the ring.
    loop {
        assert_eq!(rig.post(own.pair, posted, RECEIVE, &[]), None);
        posted += 1;
        let turn = rig.server.turn(rig.now);
        if turn.deadline != Time::NEVER {
            break;
        }
        assert!(posted < 30_000, "the ring never fills");
    }
    assert!(rig.server.set_sleeping(true));
    rig.server.set_sleeping(false);
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < posted {
        let told = rig.told();
        assert!(!told.is_empty(), "{} of {posted}", numbers.len());
        numbers.extend(told.iter().map(|done| done.number));
    }
    assert_eq!(numbers, (0..posted).collect::<Vec<_>>());
    assert_eq!(rig.server.turn(rig.now).deadline, Time::NEVER);
}
