//! What the operations do, and in which order.

use crate::harness::{ALL_ACCESS, LEFT, Options, Pair, RIGHT, entry, remote, request};
use legato_base::{Duration, Time};
use legato_transport::rc::Policy;
use legato_transport::wire::{Body, Opcode};
use legato_transport::{PathMtu, WorkQueue};
use legato_verbs::{CompletionKind, RemoteKey, SendFlags, SendOperation};
use std::cell::RefCell;
use std::rc::Rc;

fn pair(options: &Options) -> Pair {
    let mut pair = Pair::new(options);
    pair.left().host.add(1, 16384, ALL_ACCESS);
    pair.right().host.add(2, 16384, ALL_ACCESS);
    let bytes = |seed: usize| (0..16384).map(move |i| (i * 7 + i / 256 + seed) as u8);
    let (mine, theirs): (Vec<u8>, Vec<u8>) = (bytes(1).collect(), bytes(2).collect());
    pair.left().host.bytes_mut(1).copy_from_slice(&mine);
    pair.right().host.bytes_mut(2).copy_from_slice(&theirs);
    pair
}

/// The opcodes that cross the wire, by sender.
fn watch(pair: &mut Pair) -> Rc<RefCell<Vec<(usize, Opcode)>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    pair.filter = Box::new(move |from, packet| {
        log.borrow_mut().push((from, packet.body.opcode()));
        true
    });
    seen
}

#[test]
fn messages_of_every_length_arrive() {
    for mtu in [PathMtu::Bytes256, PathMtu::Bytes1024, PathMtu::Bytes4096] {
        for length in [0, 1, 3, 255, 256, 257, 1024, 2047, 4096, 4097, 10_001] {
            let options = Options {
                mtu,
                ..Options::default()
            };
            let mut pair = pair(&options);
            // From two pieces into three.
            let first = length / 3;
            let from = vec![entry(1, 0, first), entry(1, 5000, length - first)];
            let to = vec![
                entry(2, 0, length / 2),
                entry(2, 12_000, 0),
                entry(2, 5001, 6000),
            ];
            pair.right().post_receive(1, to);
            pair.left()
                .post(request(1, SendOperation::SendWithImmediate(9), from));
            pair.run();
            let sent = Ok(CompletionKind::Send);
            assert_eq!(pair.left().poll(WorkQueue::Send), [(1, sent)]);
            let received = Ok(CompletionKind::ReceiveWithImmediate {
                length,
                immediate: 9,
            });
            assert_eq!(pair.right().poll(WorkQueue::Receive), [(1, received)]);
            let (first, length) = (first as usize, length as usize);
            let source = pair.left().host.bytes(1);
            let expected = [&source[..first], &source[5000..5000 + length - first]].concat();
            let place = pair.right().host.bytes(2);
            let half = length / 2;
            let got = [&place[..half], &place[5001..5001 + length - half]].concat();
            assert!(expected == got, "{mtu:?} {length}");
        }
    }
}

#[test]
fn one_sided_requests_of_every_length() {
    for length in [1, 1024, 1025, 8192] {
        let mut pair = pair(&Options::default());
        pair.right().post_receive(5, vec![]);
        let write = SendOperation::RdmaWriteWithImmediate(remote(2, 8192), 77);
        pair.left()
            .post(request(1, write, vec![entry(1, 0, length)]));
        let read = SendOperation::RdmaRead(remote(2, 0));
        pair.left()
            .post(request(2, read, vec![entry(1, 8192, length)]));
        pair.run();
        let sends = pair.left().poll(WorkQueue::Send);
        let expected = [
            (1, Ok(CompletionKind::RdmaWrite)),
            (2, Ok(CompletionKind::RdmaRead)),
        ];
        assert_eq!(sends, expected);
        let received = Ok(CompletionKind::ReceiveRdmaWithImmediate {
            length,
            immediate: 77,
        });
        assert_eq!(pair.right().poll(WorkQueue::Receive), [(5, received)]);
        let length = length as usize;
        let (left, right) = (
            pair.ends[LEFT].host.bytes(1),
            pair.ends[RIGHT].host.bytes(2),
        );
        assert!(left[..length] == right[8192..8192 + length]);
        assert!(right[..length] == left[8192..8192 + length]);
    }
}

/// Where the answer's packets are to be equally long, each is asked for alone, as far as the peer takes so
/// many READs at a time.
#[test]
fn a_short_read_asks_for_each_packet_alone() {
    for (depth, length, requests) in [
        (8, 4096, 4),
        (8, 4000, 4),
        (8, 1024, 1),
        // Longer than short.
        (8, 4097, 1),
        // The second asks for all of its packets together, and waits for nobody.
        (5, 4096, 4),
        (3, 4096, 1),
    ] {
        let options = Options {
            mtu: PathMtu::Bytes1024,
            depth,
            resources: depth as u8,
            policy: Policy {
                read_pieces: 4,
                ..Policy::IDEAL
            },
            ..Options::default()
        };
        let mut pair = pair(&options);
        let seen = watch(&mut pair);
        let mut expected = Vec::new();
        for (id, place) in [(1, 0), (2, 8192)] {
            let read = SendOperation::RdmaRead(remote(2, place));
            let into = vec![entry(1, place, length)];
            pair.left().post(request(id, read, into));
            expected.push((id, Ok(CompletionKind::RdmaRead)));
        }
        pair.run();
        assert_eq!(pair.left().poll(WorkQueue::Send), expected);
        let seen = seen.borrow();
        let asked = seen.iter().filter(|(from, _)| *from == LEFT).count();
        let second = if depth == 5 { 1 } else { requests };
        assert_eq!(asked, requests + second, "{depth} {length}: {seen:?}");
        let alone = (RIGHT, Opcode::ReadResponseOnly);
        let alone = seen.iter().filter(|it| **it == alone).count();
        assert_eq!(alone > 0, requests == 4 || length == 1024);
        let (mine, theirs) = (
            pair.ends[LEFT].host.bytes(1),
            pair.ends[RIGHT].host.bytes(2),
        );
        for place in [0, 8192] {
            let range = place as usize..(place + length) as usize;
            assert!(mine[range.clone()] == theirs[range]);
        }
    }
}

#[test]
fn atomics_return_what_was_there() {
    let mut pair = pair(&Options::default());
    let number = |bytes: &[u8]| -> u64 { zerocopy::FromBytes::read_from_bytes(bytes).unwrap() };
    let before = number(&pair.right().host.bytes(2)[8..16]);
    let target = remote(2, 8);
    let add = SendOperation::FetchAndAdd { target, add: 5 };
    let swap = |compare, swap| SendOperation::CompareAndSwap {
        target,
        compare,
        swap,
    };
    let after = before.wrapping_add(5);
    let requests = [add, swap(before, 1), swap(after, 2), add];
    for (id, operation) in requests.into_iter().enumerate() {
        let into = vec![entry(1, id as u64 * 8, 8)];
        pair.left().post(request(id as u64, operation, into));
    }
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 4);
    let results: Vec<u64> = pair.left().host.bytes(1)[..32]
        .chunks(8)
        .map(number)
        .collect();
    assert_eq!(results, [before, after, after, 2]);
    assert_eq!(number(&pair.right().host.bytes(2)[8..16]), 7);
}

#[test]
fn inline_bytes_are_those_of_the_post() {
    let mut pair = pair(&Options::default());
    for round in 0..3 {
        let target = SendOperation::RdmaWrite(remote(2, 0));
        let mut request = request(1, target, vec![entry(1, 0, 300)]);
        request.flags = request.flags | SendFlags::INLINE;
        pair.left().host.bytes_mut(1).fill(round);
        pair.left().post(request);
        pair.left().host.bytes_mut(1).fill(99);
        pair.run();
        assert_eq!(pair.left().poll(WorkQueue::Send).len(), 1);
        assert_eq!(pair.right().host.bytes(2)[..300], [round; 300]);
    }
}

#[test]
fn a_fenced_request_waits_for_reads() {
    for fenced in [false, true] {
        let mut pair = pair(&Options::default());
        let seen = watch(&mut pair);
        let read = SendOperation::RdmaRead(remote(2, 0));
        pair.left().post(request(1, read, vec![entry(1, 0, 2048)]));
        let write = SendOperation::RdmaWrite(remote(2, 0));
        let mut request = request(2, write, vec![entry(1, 4096, 8)]);
        if fenced {
            request.flags = request.flags | SendFlags::FENCE;
        }
        pair.left().post(request);
        pair.run();
        assert_eq!(pair.left().poll(WorkQueue::Send).len(), 2);
        let seen = seen.borrow();
        let place = |opcode| seen.iter().position(|(_, seen)| *seen == opcode).unwrap();
        let write_is_later = place(Opcode::ReadResponseLast) < place(Opcode::WriteOnly);
        assert_eq!(write_is_later, fenced);
    }
}

#[test]
fn no_more_reads_are_under_way_than_agreed() {
    let options = Options {
        resources: 2,
        ..Options::default()
    };
    let mut pair = pair(&options);
    let under_way = Rc::new(RefCell::new((0, 0)));
    let log = under_way.clone();
    pair.filter = Box::new(move |_, packet| {
        let (now, most) = &mut *log.borrow_mut();
        match packet.body {
            Body::ReadRequest(_) | Body::FetchAdd(_) => *now += 1,
            Body::ReadResponseOnly(_) | Body::AtomicAcknowledge(..) => *now -= 1,
            _ => {}
        }
        *most = (*most).max(*now);
        true
    });
    for id in 0..20 {
        let target = remote(2, 0);
        let operation = if id % 2 == 0 {
            SendOperation::RdmaRead(target)
        } else {
            SendOperation::FetchAndAdd { target, add: 1 }
        };
        pair.left()
            .post(request(id, operation, vec![entry(1, 0, 8)]));
    }
    pair.run();
    assert_eq!(*under_way.borrow(), (0, 2));
    let ids: Vec<u64> = pair
        .left()
        .poll(WorkQueue::Send)
        .iter()
        .map(|c| c.0)
        .collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
}

#[test]
fn keys_end_where_the_queue_says() {
    let mut pair = pair(&Options::default());
    pair.left().host.add(7, 64, ALL_ACCESS);
    pair.right().host.add(8, 64, ALL_ACCESS);
    pair.right().post_receive(1, vec![]);
    let write = SendOperation::RdmaWrite(remote(2, 0));
    pair.left().post(request(1, write, vec![entry(7, 0, 64)]));
    let invalidate = SendOperation::LocalInvalidate(RemoteKey(7));
    pair.left().post(request(2, invalidate, vec![]));
    let send = SendOperation::SendWithInvalidate(RemoteKey(8));
    pair.left().post(request(3, send, vec![]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let expected = [
        (1, Ok(CompletionKind::RdmaWrite)),
        (2, Ok(CompletionKind::LocalInvalidate)),
        (3, Ok(CompletionKind::Send)),
    ];
    assert_eq!(sends, expected);
    let received = Ok(CompletionKind::ReceiveWithInvalidate {
        length: 0,
        key: RemoteKey(8),
    });
    assert_eq!(pair.right().poll(WorkQueue::Receive), [(1, received)]);
    assert!(!pair.left().host.regions.contains_key(&7));
    assert!(!pair.right().host.regions.contains_key(&8));
}

#[test]
fn a_lost_part_of_a_read_is_asked_for_again_from_there() {
    let options = Options {
        depth: 16,
        ..Options::default()
    };
    let mut pair = pair(&options);
    let asked = Rc::new(RefCell::new(Vec::new()));
    let (log, mut lost) = (asked.clone(), false);
    pair.filter = Box::new(move |from, packet| {
        if let Body::ReadRequest(header) = packet.body {
            log.borrow_mut()
                .push((header.address - crate::harness::BASE, header.length));
        }
        // The fourth response of eight is lost, once.
        let loses = from == RIGHT && packet.base.sequence.get() == 103 && !lost;
        lost |= loses;
        !loses
    });
    let read = SendOperation::RdmaRead(remote(2, 0));
    pair.left().post(request(1, read, vec![entry(1, 0, 8192)]));
    pair.run();
    assert_eq!(*asked.borrow(), [(0, 8192), (3072, 5120)]);
    let completed = Ok(CompletionKind::RdmaRead);
    assert_eq!(pair.left().poll(WorkQueue::Send), [(1, completed)]);
    assert!(pair.ends[LEFT].host.bytes(1)[..8192] == pair.ends[RIGHT].host.bytes(2)[..8192]);
    assert!(
        pair.now < Time::ZERO + Duration::from_micros(10),
        "no timer was needed"
    );
}

#[test]
fn a_lost_atomic_answer_is_repeated_and_not_executed_again() {
    let mut pair = pair(&Options::default());
    pair.right().host.bytes_mut(2)[..8].fill(0);
    let mut lost = 0;
    pair.filter = Box::new(move |_, packet| {
        let loses = matches!(packet.body, Body::AtomicAcknowledge(..)) && lost < 3;
        lost += u32::from(loses);
        !loses
    });
    for id in 0..3 {
        let operation = SendOperation::FetchAndAdd {
            target: remote(2, 0),
            add: 1,
        };
        pair.left()
            .post(request(id, operation, vec![entry(1, id * 8, 8)]));
    }
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 3);
    let results = pair.left().host.bytes(1)[..24].to_vec();
    let number = |bytes: &[u8]| -> u64 { zerocopy::FromBytes::read_from_bytes(bytes).unwrap() };
    assert_eq!(results.chunks(8).map(number).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(number(&pair.right().host.bytes(2)[..8]), 3);
}

#[test]
fn acknowledgements_are_few() {
    let options = Options {
        mtu: PathMtu::Bytes256,
        ..Options::default()
    };
    let mut pair = pair(&options);
    let seen = watch(&mut pair);
    for id in 0..16 {
        let write = SendOperation::RdmaWrite(remote(2, 0));
        pair.left()
            .post(request(id, write, vec![entry(1, 0, 4096)]));
    }
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 16);
    let answers = seen
        .borrow()
        .iter()
        .filter(|(from, _)| *from == RIGHT)
        .count();
    assert!(answers <= 4, "{answers}");
}

#[test]
fn a_long_read_streams_in_a_window_of_its_own() {
    let options = Options {
        mtu: PathMtu::Bytes256,
        ..Options::default()
    };
    let mut pair = pair(&options);
    let length = 1 << 20;
    pair.left().host.add(3, length, ALL_ACCESS);
    pair.right().host.add(3, length, ALL_ACCESS);
    pair.right().host.bytes_mut(3).fill(9);
    let read = SendOperation::RdmaRead(remote(3, 0));
    pair.left()
        .post(request(1, read, vec![entry(3, 0, length as u32)]));
    let write = SendOperation::RdmaWrite(remote(2, 0));
    pair.left().post(request(2, write, vec![entry(1, 0, 8)]));
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 2);
    assert!(pair.left().host.bytes(3).iter().all(|byte| *byte == 9));
}
