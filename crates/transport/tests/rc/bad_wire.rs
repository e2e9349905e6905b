//! Wires that lose, double and reorder: everything arrives once and in order.

use crate::harness::{ALL_ACCESS, Faults, LEFT, Options, Pair, RIGHT, entry, remote, request};
use crate::traffic::Traffic;
use legato_base::{Random, Time};
use legato_transport::rc::Policy;
use legato_transport::wire::Body;
use legato_transport::{PathMtu, WorkQueue};
use legato_verbs::{
    CompletionKind, CompletionStatus, QueuePairAttributes, QueuePairState as State, SendOperation,
};

/// Mixed requests both ways over a wire that a seed chose. Retries are without end, for a finite
/// count can run out by chance.
fn bad_wire(seed: u64, messages: u64) {
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let mtus = [PathMtu::Bytes256, PathMtu::Bytes512, PathMtu::Bytes1024];
    let first = if random.ratio(1, 2) {
        0xFF_FFF0
    } else {
        random.below(1 << 24) as u32
    };
    let options = Options {
        policy: Policy {
            retry_count_infinite: Some(7),
            window_packets: 1 + random.below(64) as u32,
            acknowledge_packets: 1 + random.below(16) as u32,
            ..Policy::IDEAL
        },
        mtu: mtus[random.below(3) as usize],
        timeout: 4,
        retry_count: 7,
        rnr_retry: 7,
        rnr_timer: 1,
        first,
        resources: 1 + random.below(8) as u8,
        depth: 32,
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    pair.faults = Faults {
        drop: random.below(301),
        double: random.below(301),
        reorder: random.below(301),
    };
    pair.random = random.fork();
    let mut traffic = Traffic::new(&mut pair, &options, random, messages);
    let mut idle = 0;
    while traffic.turn(&mut pair) {
        // By chance nothing was posted.
        idle = if pair.step(Time::NEVER) { 0 } else { idle + 1 };
        assert!(idle < 100, "seed {seed}: nothing goes on");
    }
    traffic.check_end(&mut pair);
}

#[test]
fn v_11_bad_wire() {
    // 2 * 50 * 1000 messages.
    for seed in 0..50 {
        bad_wire(seed, 1000);
    }
}

#[test]
fn v_12_lost_acknowledgement_then_teardown() {
    let mut pair = Pair::new(&Options::default());
    pair.left().host.add(1, 64, ALL_ACCESS);
    pair.left().host.bytes_mut(1).fill(7);
    pair.right().host.add(2, 64, ALL_ACCESS);
    pair.filter = Box::new(|from, _| from == LEFT);
    let write = SendOperation::RdmaWrite(remote(2, 0));
    pair.left().post(request(1, write, vec![entry(1, 0, 64)]));
    pair.run_for(legato_base::Duration::from_millis(1));
    pair.left().modify(State::Error, &QueuePairAttributes::NONE);
    // Flushed says nothing about the peer: the bytes are there.
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    assert_eq!(pair.left().poll(WorkQueue::Send), [(1, flushed)]);
    assert_eq!(pair.right().host.bytes(2), [7; 64]);
}

#[test]
fn v_14_sequence_numbers_wrap() {
    let options = Options {
        first: 0xFF_FFF0,
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    pair.left().host.add(1, 65536, ALL_ACCESS);
    pair.right().host.add(2, 65536, ALL_ACCESS);
    for (index, byte) in pair.left().host.bytes_mut(1).iter_mut().enumerate() {
        *byte = (index / 1024) as u8;
    }
    // Each packet comes twice, and the acknowledgement of the wrapping one is lost.
    pair.faults.double = 1000;
    let mut lost = false;
    pair.filter = Box::new(move |from, packet| {
        let acknowledges = from == RIGHT && matches!(packet.body, Body::Acknowledge(_));
        let loses = acknowledges && packet.base.sequence.get() < 16 && !lost;
        lost |= loses;
        !loses
    });
    for id in 0..64 {
        let place = entry(1, id * 1024, 1024);
        let operation = if id % 8 == 7 {
            SendOperation::RdmaRead(remote(2, (id - 1) * 1024))
        } else {
            SendOperation::RdmaWrite(remote(2, id * 1024))
        };
        pair.left().post(request(id, operation, vec![place]));
    }
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends.len(), 64);
    assert!(sends.iter().all(|(_, result)| result.is_ok()));
    for id in 0..64_usize {
        let range = id * 1024..(id + 1) * 1024;
        let (here, there) = (
            &pair.ends[LEFT].host.bytes(1)[range.clone()],
            &pair.ends[RIGHT].host.bytes(2)[range],
        );
        if id % 8 == 7 {
            assert_eq!(here, [id as u8 - 1; 1024]);
        } else {
            assert_eq!(there, [id as u8; 1024]);
        }
    }
}

#[test]
fn v_14_a_shared_counter_is_exact_across_the_wrap() {
    let options = Options {
        first: 0xFF_FFF0,
        timeout: 4,
        retry_count: 7,
        policy: Policy {
            retry_count_infinite: Some(7),
            ..Policy::IDEAL
        },
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    pair.left().host.add(1, 8, ALL_ACCESS);
    pair.right().host.add(2, 8, ALL_ACCESS);
    pair.faults = Faults {
        drop: 200,
        double: 200,
        reorder: 200,
    };
    for id in 0..64 {
        let target = remote(2, 0);
        let operation = SendOperation::FetchAndAdd { target, add: 1 };
        pair.left()
            .post(request(id, operation, vec![entry(1, 0, 8)]));
    }
    pair.run();
    let completed = pair.left().poll(WorkQueue::Send);
    let added = Ok(CompletionKind::FetchAndAdd);
    assert!(completed.into_iter().eq((0..64).map(|id| (id, added))));
    let count = zerocopy::IntoBytes::as_bytes(&64_u64).to_vec();
    assert_eq!(pair.right().host.bytes(2), count);
}
