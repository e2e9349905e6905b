//! The ring between two sides in one process, honest and not.

use super::super::envelope::Kind;
use super::super::segment::{HEADER_BYTES, MESSAGE_LENGTH_MAX, RING_BYTES};
use super::*;
use crate::memory;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::Random;
use std::thread;

fn pair() -> (Link, Link) {
    let (left_fd, left) = OwnSegment::create(Parameters::default()).unwrap();
    let (right_fd, right) = OwnSegment::create(Parameters::default()).unwrap();
    let left_seen = PeerSegment::map(&left_fd).unwrap();
    let right_seen = PeerSegment::map(&right_fd).unwrap();
    (Link::new(left, right_seen), Link::new(right, left_seen))
}

fn piece(bytes: &mut [u8]) -> Piece {
    Piece {
        pointer: bytes.as_mut_ptr(),
        length: bytes.len() as u32,
    }
}

fn put(link: &mut Link, bytes: &[u8]) -> bool {
    if !link.has_space(bytes.len() as u64).unwrap() {
        return false;
    }
    let mut copy = bytes.to_vec();
    let envelope = Envelope {
        kind: Kind::Send,
        length: bytes.len() as u32,
        solicited: false,
    };
    // SAFETY: the piece is the vector above.
    unsafe { link.put(envelope, core::iter::once(piece(&mut copy))) };
    true
}

fn take(link: &mut Link) -> Option<Vec<u8>> {
    let envelope = link.next().unwrap()?;
    let length = envelope.length as usize;
    let mut bytes = vec![0; length];
    let (front, back) = bytes.split_at_mut(length / 3);
    let pieces = [piece(front), piece(back)];
    // SAFETY: the pieces are the two parts of the vector above.
    unsafe { link.take(envelope, pieces.into_iter()) };
    Some(bytes)
}

fn message(number: u64) -> Vec<u8> {
    let mut random = Random::from_seed(number);
    let length = match random.below(4) {
        0 => u64::from(MESSAGE_LENGTH_MAX),
        1 => random.below(20),
        _ => random.below(9_000),
    };
    (0..length).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn messages_arrive_once_in_order_and_whole_across_many_wraps() {
    let (mut left, mut right) = pair();
    let (mut sent, mut received, mut acknowledged) = (0, 0, 0);
    while received < 2_000 {
        while sent < 2_000 && put(&mut left, &message(sent)) {
            sent += 1;
        }
        while let Some(bytes) = take(&mut right) {
            assert!(bytes == message(received), "message {received}");
            received += 1;
        }
        acknowledged += left.take_acknowledged().unwrap();
        assert_eq!(acknowledged, received);
    }
}

#[test]
fn messages_cross_between_threads_with_sleep_and_wake_up() {
    const COUNT: u64 = 20_000;
    let (mut left, mut right) = pair();
    let (wake, woken) = std::sync::mpsc::channel();
    let receiver = thread::spawn(move || {
        let mut received = 0_u64;
        while received < COUNT {
            if let Some(bytes) = take(&mut right) {
                assert_eq!(bytes, received.to_le_bytes());
                received += 1;
                continue;
            }
            right.set_sleeping(true);
            if !right.has_message() {
                // A lost wake-up would block here until the channel is closed, and then fail.
                woken.recv().expect("woken before the sender was done");
            }
            right.set_sleeping(false);
        }
    });
    let mut sent = 0_u64;
    while sent < COUNT {
        if put(&mut left, &sent.to_le_bytes()) {
            sent += 1;
            if left.must_wake() {
                wake.send(()).unwrap();
            }
        } else {
            thread::yield_now();
        }
    }
    let mut acknowledged = 0;
    while acknowledged < COUNT {
        acknowledged += left.take_acknowledged().unwrap();
        thread::yield_now();
        if receiver.is_finished() && acknowledged < COUNT {
            acknowledged += left.take_acknowledged().unwrap();
            break;
        }
    }
    receiver.join().unwrap();
    assert_eq!(acknowledged, COUNT);
}

#[test]
fn indices_out_of_range_are_malformed() {
    let (left, right) = pair();
    for bad in [1, 7, RING_BYTES + 8, u64::MAX] {
        left.own().produced.0.store(bad, Ordering::Release);
        assert_eq!(right.next(), Err(Malformed), "produced {bad}");
    }
    for bad in [1, u64::MAX] {
        left.own().consumed.0.store(bad, Ordering::Release);
        assert_eq!(right.has_space(0), Err(Malformed), "consumed {bad}");
    }
    let mut right = right;
    for bad in [1, u64::MAX] {
        left.own().delivered.store(bad, Ordering::Release);
        assert_eq!(right.take_acknowledged(), Err(Malformed), "delivered {bad}");
    }
    left.own().state.store(9, Ordering::Release);
    assert_eq!(right.peer_state(), Err(Malformed));
    assert!(!right.peer_is_open());
}

#[test]
fn lengths_and_numbers_in_the_ring_are_checked() {
    let cases: [(u32, u32, u64); 4] = [
        (MESSAGE_LENGTH_MAX + 1, 0, RING_BYTES),
        (u32::MAX, 0, RING_BYTES),
        (64, 0, 64),
        (8, 1, 24),
    ];
    for (length, number, produced) in cases {
        let (left, right) = pair();
        let mut prefix = [0; 8];
        prefix[..4].copy_from_slice(&length.to_le_bytes());
        prefix[4..].copy_from_slice(&number.to_le_bytes());
        let to = left.own.0.at(HEADER_BYTES, 8).unwrap();
        // SAFETY: eight bytes in our own segment, from a local array.
        unsafe { memory::copy(prefix.as_ptr(), to, 8) };
        left.own().produced.0.store(produced, Ordering::Release);
        assert_eq!(right.next(), Err(Malformed), "length {length}");
    }
}
