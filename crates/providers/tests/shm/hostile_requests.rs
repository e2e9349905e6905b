//! Peers whose messages, rights and memory are not what they say.

use crate::hostile::{
    ENVELOPE, MAP_REPLY, MAP_REQUEST, PARAMETERS, RING, SEND, SEND_WITH_IMMEDIATE, Victim,
    WRITTEN_WITH_IMMEDIATE, message, segment,
};
use legato_verbs::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, Event, Provider,
    QueuePairAttributes, QueuePairState, RemoteAddress, RemoteKey, SendOperation,
};
use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use rustix::io::{pread, pwrite};

#[test]
fn messages_of_no_kind_end_the_connection() {
    let immediate = 7_u64 << 32;
    let cases = [
        ("an unknown kind", 3),
        ("an unknown flag", SEND | 1 << 9),
        ("reserved bits", SEND_WITH_IMMEDIATE | 1 << 16),
        (
            "a SEND with a number that it does not have",
            SEND | immediate,
        ),
    ];
    for (what, rest) in cases {
        let (mut victim, hostile) = Victim::connected("kind");
        victim.peer.post_receive(1, 0, 1024);
        hostile.write(RING + ENVELOPE, &[0xEE; 8]);
        hostile.put(8, 0, rest, 8);
        assert_eq!(victim.peer.bytes(0, 64), [0; 64]);
        victim.expect_fatal(what);
    }
    // It says that it has written more than any WRITE can.
    let (mut victim, hostile) = Victim::connected("written");
    victim.peer.post_receive(1, 0, 1024);
    hostile.put(64 * 1024 + 1, 0, WRITTEN_WITH_IMMEDIATE, 0);
    victim.expect_fatal("written too much");
}

#[test]
fn parameters_out_of_range_end_the_connection_that_looks_at_them() {
    for word in [0x80_u32, 0x0800, 1 << 31] {
        // A message finds no receive: how long does it wait?
        let (mut victim, hostile) = Victim::connected("parameters");
        hostile.write(PARAMETERS, &word.to_le_bytes());
        hostile.put(0, 0, SEND, 0);
        victim.progress();
        victim.expect_fatal_event("a wait");
        // A WRITE asks what the peer's queue pair allows.
        let (mut victim, hostile) = Victim::connected("allowed");
        victim.peer.post_receive(1, 0, 8);
        hostile.write(PARAMETERS, &word.to_le_bytes());
        let remote = RemoteAddress {
            key: RemoteKey(1),
            address: 0,
        };
        victim.peer.post(2, SendOperation::RdmaWrite(remote), 0, 8);
        victim.expect_fatal_event("a WRITE");
    }
}

#[test]
fn an_immediate_of_a_write_that_is_not_allowed_is_refused() {
    let mut victim = Victim::new("not-allowed");
    let queue_pair = victim.peer.queue_pair;
    let attributes = QueuePairAttributes {
        access_flags: Some(AccessFlags::REMOTE_READ),
        ..QueuePairAttributes::NONE
    };
    victim
        .peer
        .provider
        .modify_queue_pair(queue_pair, QueuePairState::Init, &attributes)
        .unwrap();
    let hostile = victim.accepts();
    victim.peer.post_receive(1, 0, 8);
    hostile.put(8, 0, WRITTEN_WITH_IMMEDIATE, 0);
    let error = Event::Async(AsyncEvent::QueuePairRequestError(queue_pair));
    let peer = &mut victim.peer;
    peer.event("refused", |event| (*event == error).then_some(()));
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    assert_eq!(peer.completion().result, flushed);
    assert_eq!(peer.provider.counters().peers_malformed, 0, "not malformed");
    assert_eq!(peer.provider.resource_counts().connection_state, 0);
}

#[test]
fn an_immediate_without_a_receive_waits_and_no_longer() {
    let (mut victim, hostile) = Victim::connected("waits");
    // Retries without end; and the message changes while it waits.
    hostile.write(PARAMETERS, &0x0700_u32.to_le_bytes());
    for rest in [SEND_WITH_IMMEDIATE, WRITTEN_WITH_IMMEDIATE] {
        hostile.put(0, 0, rest | 9 << 32, 0);
        victim.progress();
        assert_eq!(victim.peer.completions.len(), 0);
    }
    victim.peer.post_receive(1, 0, 8);
    let came = CompletionKind::ReceiveRdmaWithImmediate {
        length: 0,
        immediate: 9,
    };
    assert_eq!(victim.peer.completion().result, Ok(came));
    // Without a retry the refusal comes at once, and the victim goes on.
    let (mut victim, hostile) = Victim::connected("no-longer");
    hostile.put(0, 0, WRITTEN_WITH_IMMEDIATE, 0);
    victim.progress();
    victim.peer.post_receive(1, 0, 8);
    victim.progress();
    assert_eq!(victim.peer.completions.len(), 0, "refused is refused");
    let state = victim
        .peer
        .provider
        .query_queue_pair(victim.peer.queue_pair);
    assert_eq!(state, Ok(QueuePairState::ReadyToSend));
}

/// Atomics, READs and WRITEs are done by who asks for them, in memory that it was given. What a
/// peer that keeps no rule can do is ask for memory.
#[test]
fn memory_is_given_by_region_and_never_more_than_that() {
    let none = AccessFlags::LOCAL_WRITE;
    let atomic = AccessFlags::REMOTE_ATOMIC | none;
    let read = AccessFlags::REMOTE_READ;
    // The queue pair's rights, the region's, another domain, and what is given.
    let all = AccessFlags::from_bits(14);
    let cases = [
        ("an atomic region", all, atomic, false, true),
        ("private memory", all, none, false, false),
        ("another domain", all, atomic, true, false),
        ("no right in common", read, atomic, false, false),
    ];
    for (what, allowed, access, other, given) in cases {
        let mut victim = Victim::new("given");
        let queue_pair = victim.peer.queue_pair;
        let attributes = QueuePairAttributes {
            access_flags: Some(allowed),
            ..QueuePairAttributes::NONE
        };
        let provider = &mut victim.peer.provider;
        provider
            .modify_queue_pair(queue_pair, QueuePairState::Init, &attributes)
            .unwrap();
        let domain = match other {
            true => provider.create_protection_domain().unwrap(),
            false => victim.peer.domain,
        };
        let region = provider.allocate_region(domain, 4096, access).unwrap();
        let hostile = victim.accepts();
        hostile.send(&message(MAP_REQUEST, region.remote_key.0), &[]);
        victim.progress();
        if given {
            assert_eq!(hostile.received(), Some(MAP_REPLY), "{what}");
            continue;
        }
        assert_eq!(hostile.received(), None, "{what}");
        let refused = Event::Async(AsyncEvent::QueuePairAccessError(queue_pair));
        assert_eq!(victim.peer.provider.poll_event(), Some(refused), "{what}");
    }
}

/// The victim does an atomic on a segment of the hostile side that is not what it says.
#[test]
fn a_segment_that_cannot_be_changed_is_no_place_for_an_atomic() {
    let sealed = SealFlags::SHRINK | SealFlags::FUTURE_WRITE;
    let cases = [
        ("too short", segment(4, SealFlags::SHRINK), 4096, true),
        ("can shrink", segment(4096, SealFlags::empty()), 4096, true),
        ("read-only", segment(4096, sealed), 4096, false),
        ("of no length", segment(4096, SealFlags::SHRINK), 0, true),
    ];
    for (what, segment, length, malformed) in cases {
        let (mut victim, hostile) = Victim::connected("atomic");
        victim.peer.post_receive(1, 0, 8);
        hostile.write(PARAMETERS, &14_u32.to_le_bytes());
        let target = RemoteAddress {
            key: RemoteKey(77),
            address: 0,
        };
        let add = SendOperation::FetchAndAdd { target, add: 1 };
        victim.peer.post(2, add, 0, 8);
        assert_eq!(hostile.received(), Some(MAP_REQUEST));
        let mut reply = message(MAP_REPLY, 77);
        reply[16..24].copy_from_slice(&u64::to_le_bytes(length));
        reply[28] = 14;
        hostile.send(&reply, &[segment.as_fd()]);
        if malformed {
            victim.expect_fatal_event(what);
            continue;
        }
        let done = victim.peer.completion();
        let failed = Err(CompletionStatus::LocalQueuePairOperation);
        assert_eq!((done.wr_id.0, done.result), (2, failed), "{what}");
    }
}

/// What an honest initiator asks of a segment that is shorter than it says, or revoked.
#[test]
fn atomics_stay_within_the_segment() {
    for (address, key_is_valid) in [(4096, true), (u64::MAX - 7, true), (0, false)] {
        let (mut victim, hostile) = Victim::connected("within");
        hostile.write(PARAMETERS, &14_u32.to_le_bytes());
        if key_is_valid {
            let key = 77_u32.to_le_bytes();
            assert_eq!(pwrite(&hostile.keys, &key, 0).unwrap(), 4);
        }
        let target = RemoteAddress {
            key: RemoteKey(77),
            address,
        };
        let add = SendOperation::FetchAndAdd { target, add: 1 };
        victim.peer.post(2, add, 0, 8);
        assert_eq!(hostile.received(), Some(MAP_REQUEST));
        let given = segment(4096, SealFlags::SHRINK);
        let mut reply = message(MAP_REPLY, 77);
        reply[16..24].copy_from_slice(&u64::to_le_bytes(4096));
        reply[28] = 14;
        hostile.send(&reply, &[given.as_fd()]);
        let done = victim.peer.completion();
        assert_eq!(done.result, Err(CompletionStatus::RemoteAccess));
        let mut word = [0xAA; 8];
        assert_eq!(pread(&given, &mut word, 0).unwrap(), 8);
        assert_eq!(word, [0; 8]);
    }
}
