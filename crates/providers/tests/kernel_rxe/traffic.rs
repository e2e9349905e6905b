//! V-21, V-14: mixed operations in both directions, every byte compared with a model.

use crate::link::with_loss;
use crate::peer::{ARENA, MESSAGE_MAX, Order, Peer, Wanted};
use crate::rig::{Family, Rig};
use legato_base::Random;
use legato_verbs::{CompletionKind, PathMtu, RemoteAddress, SendFlags, SendOperation};
use std::collections::VecDeque;

/// Requests under way at a time, each with a buffer of its own.
const UNDER_WAY: usize = 16;
/// Where the buffers begin: of requests, and of receives.
const BUFFERS_AT: u64 = 1 << 16;
const RECEIVES_AT: u64 = BUFFERS_AT + UNDER_WAY as u64 * MESSAGE_MAX as u64;
/// What the peer may use, with its model.
const SHARED_AT: u64 = RECEIVES_AT + UNDER_WAY as u64 * MESSAGE_MAX as u64;
const SHARED: u32 = 1 << 17;
const RECEIVE: u64 = 1 << 32;

/// A request, and what is to be seen when it is over.
#[derive(Debug)]
struct Posted {
    buffer: u64,
    kind: CompletionKind,
    /// What its buffer then holds, of a READ or an atomic.
    expected: Option<Vec<u8>>,
}

struct Traffic<'a> {
    rig: &'a mut Rig,
    peer: Peer,
    random: Random,
    arena: Vec<u8>,
    shared: Vec<u8>,
    posted: VecDeque<Posted>,
    /// Messages that come back: their bytes, in their order, and the buffers for them.
    messages: VecDeque<(u64, Vec<u8>)>,
    free: Vec<u64>,
    repeats: bool,
    mtu: u32,
    counts: [u32; 7],
}

fn buffer_at(base: u64, number: u64) -> u64 {
    base + number * u64::from(MESSAGE_MAX)
}

impl Traffic<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(u64::from(bound)) as u32
    }

    /// Short ones mostly, but also those around the path MTU and of many packets.
    fn length(&mut self) -> u32 {
        match self.below(16) {
            0 => 0,
            1 => MESSAGE_MAX - self.below(3),
            2 => self.below(MESSAGE_MAX),
            3..5 => self.mtu - 1 + self.below(3),
            5..7 => 4 * self.mtu - 1 + self.below(3),
            _ => self.below(600),
        }
    }

    fn random_bytes(&mut self, length: u32) -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| self.random.next_u64().to_le_bytes());
        words.take(length as usize).collect()
    }

    /// One request more, or an order for the peer.
    fn step(&mut self) {
        let choice = self.below(20);
        if choice == 19 {
            self.finish();
            return self.order();
        }
        while self.posted.len() == UNDER_WAY || self.free.is_empty() {
            self.complete_one();
        }
        let Some(buffer) = self.free.pop() else {
            return;
        };
        let at = buffer_at(BUFFERS_AT, buffer);
        let length = self.length().max(u32::from(self.repeats));
        let offset = self.below(ARENA - length);
        let place = self.peer.place(offset);
        let range = offset as usize..(offset + length) as usize;
        let (operation, length, expected) = match choice {
            0..6 => {
                let bytes = self.random_bytes(length);
                self.rig.write(at, &bytes);
                self.arena[range].copy_from_slice(&bytes);
                (SendOperation::RdmaWrite(place), length, None)
            }
            6..12 => {
                let expected = Some(self.arena[range].to_vec());
                (SendOperation::RdmaRead(place), length, expected)
            }
            12..15 => {
                let (operation, old) = self.atomic();
                (operation, 8, Some(old))
            }
            _ => {
                let bytes = self.random_bytes(length);
                self.rig.write(at, &bytes);
                let receive = (buffer_at(RECEIVES_AT, buffer), length);
                let queue_pair = self.peer.queue_pair;
                self.rig.post_receive(queue_pair, RECEIVE | buffer, receive);
                self.messages.push_back((buffer, bytes));
                (SendOperation::Send, length, None)
            }
        };
        let kind = operation.completion_kind();
        self.rig
            .post(self.peer.queue_pair, buffer, operation, (at, length));
        self.posted.push_back(Posted {
            buffer,
            kind,
            expected,
        });
        let class = [0..6, 6..12, 12..15, 15..19];
        let class = class.iter().position(|class| class.contains(&choice));
        self.counts[class.unwrap()] += 1;
    }

    /// An atomic of this side's, and what it returns. Half of the comparisons hold.
    fn atomic(&mut self) -> (SendOperation, Vec<u8>) {
        let offset = self.below(ARENA / 8) * 8;
        let target = self.peer.place(offset);
        let place = &mut self.arena[offset as usize..offset as usize + 8];
        let bytes: [u8; 8] = place.try_into().unwrap();
        let old = u64::from_le_bytes(bytes);
        let (new, operation) = match self.random.below(4) {
            0 => {
                let swap = self.random.next_u64();
                let compare = old;
                let operation = SendOperation::CompareAndSwap {
                    target,
                    compare,
                    swap,
                };
                (swap, operation)
            }
            1 => {
                let (compare, swap) = (old ^ 1, 7);
                let operation = SendOperation::CompareAndSwap {
                    target,
                    compare,
                    swap,
                };
                (old, operation)
            }
            _ => {
                let add = self.random.next_u64();
                let operation = SendOperation::FetchAndAdd { target, add };
                (old.wrapping_add(add), operation)
            }
        };
        place.copy_from_slice(&new.to_le_bytes());
        (operation, bytes.to_vec())
    }

    /// Waits for a completion and compares what it brings.
    fn complete_one(&mut self) {
        let (id, kind) = self.rig.await_success();
        if id & RECEIVE != 0 {
            let (buffer, expected) = self.messages.pop_front().unwrap();
            // A receive takes the message that comes next, and all come back in order.
            assert_eq!(id, RECEIVE | buffer);
            let length = expected.len() as u32;
            assert_eq!(kind, CompletionKind::Receive { length });
            let found = self.rig.bytes(buffer_at(RECEIVES_AT, buffer), length);
            assert!(found == expected, "a message came back otherwise");
            self.free.push(buffer);
            return;
        }
        let posted = self.posted.pop_front().unwrap();
        assert_eq!((id, kind), (posted.buffer, posted.kind));
        if let Some(expected) = posted.expected {
            let at = buffer_at(BUFFERS_AT, posted.buffer);
            let found = self.rig.bytes(at, expected.len() as u32);
            assert!(found == expected, "{kind:?} brought something else");
        }
        // That of a message is free when it has come back.
        if posted.kind != CompletionKind::Send {
            self.free.push(posted.buffer);
        }
    }

    fn finish(&mut self) {
        while !self.posted.is_empty() || !self.messages.is_empty() {
            self.complete_one();
        }
    }

    /// The peer's turn.
    fn order(&mut self) {
        let choice = self.below(4);
        let length = self.length();
        let there = self.below(ARENA - length);
        let here = self.below(SHARED - length);
        let theirs = there as usize..(there + length) as usize;
        let own = here as usize..(here + length) as usize;
        match choice {
            0 => {
                self.execute(Order::Write, here, (there, length));
                self.shared[own].copy_from_slice(&self.arena[theirs]);
            }
            1 => {
                self.execute(Order::Read, here, (there, length));
                self.arena[theirs].copy_from_slice(&self.shared[own]);
            }
            _ => self.ordered_atomic(choice == 2, here / 8 * 8, there / 8 * 8),
        }
        self.counts[4 + choice.min(2) as usize] += 1;
        let found = self.rig.bytes(SHARED_AT, SHARED);
        assert!(found == self.shared, "the peer changed something else");
    }

    fn ordered_atomic(&mut self, compares: bool, here: u32, there: u32) {
        let place = here as usize..here as usize + 8;
        let bytes: [u8; 8] = self.shared[place.clone()].try_into().unwrap();
        let old = u64::from_le_bytes(bytes);
        let word = self.random.next_u64();
        let (order, new) = if compares {
            let (compare, swap) = (old, word);
            (Order::CompareAndSwap { compare, swap }, word)
        } else {
            (Order::FetchAndAdd(word), old.wrapping_add(word))
        };
        assert_eq!(self.execute(order, here, (there, 8)), old, "{order:?}");
        self.shared[place].copy_from_slice(&new.to_le_bytes());
        self.arena[there as usize..there as usize + 8].copy_from_slice(&bytes);
    }

    fn execute(&mut self, order: Order, here: u32, local: (u32, u32)) -> u64 {
        let place = RemoteAddress {
            address: self.rig.region.address + SHARED_AT + u64::from(here),
            key: self.rig.region.remote_key,
        };
        self.rig.order(self.peer, order, place, local)
    }

    /// The whole arena, as the peer has it.
    fn compare_arena(&mut self) {
        for offset in (0..ARENA).step_by(MESSAGE_MAX as usize) {
            let read = SendOperation::RdmaRead(self.peer.place(offset));
            let buffer = (BUFFERS_AT, MESSAGE_MAX);
            self.rig.post(self.peer.queue_pair, 0, read, buffer);
            self.rig.await_success();
            let expected = &self.arena[offset as usize..][..MESSAGE_MAX as usize];
            assert!(self.rig.bytes(BUFFERS_AT, MESSAGE_MAX) == expected);
        }
    }
}

fn run(rig: &mut Rig, wanted: Wanted, seed: u64, steps: u32) {
    let before = rig.count();
    let peer = rig.connect_peer(wanted);
    mix(rig, peer, wanted, seed, steps);
    rig.end_peer(peer);
    rig.check_packets();
    rig.check_counted(&before);
}

fn mix(rig: &mut Rig, peer: Peer, wanted: Wanted, seed: u64, steps: u32) {
    let mut traffic = Traffic {
        rig,
        peer,
        random: Random::from_seed(seed),
        arena: vec![0; ARENA as usize],
        shared: vec![0; SHARED as usize],
        posted: VecDeque::new(),
        messages: VecDeque::new(),
        free: (0..UNDER_WAY as u64).collect(),
        repeats: wanted.repeats,
        mtu: wanted.path_mtu.bytes(),
        counts: [0; 7],
    };
    traffic.rig.write(SHARED_AT, &vec![0; SHARED as usize]);
    for _ in 0..steps {
        traffic.step();
    }
    traffic.finish();
    traffic.compare_arena();
    println!(
        "  write, read, atomic, message and back; the peer's write, read, atomic: {:?}",
        traffic.counts
    );
    assert!(steps < 200 || traffic.counts.iter().all(|&count| count > 0));
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ten_thousand_mixed_operations() {
    run(&mut Rig::new(), Wanted::USUAL, 21, 10_000);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_every_path_mtu_of_the_link() {
    let mut rig = Rig::new();
    for path_mtu in [PathMtu::Bytes256, PathMtu::Bytes512, PathMtu::Bytes1024] {
        let wanted = Wanted {
            path_mtu,
            ..Wanted::USUAL
        };
        run(&mut rig, wanted, 22, 200);
    }
}

/// The numbers of both directions go round soon after the beginning, at another place each time.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v14_sequence_numbers_go_round() {
    let mut rig = Rig::new();
    for back in [1, 20, 300] {
        let wanted = Wanted {
            sequences: (0x0100_0000 - back, 0x0100_0000 - back / 2 - 1),
            ..Wanted::USUAL
        };
        run(&mut rig, wanted, u64::from(back), 250);
    }
}

/// With two receives at the peer, most messages find none and come again.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_a_peer_that_is_not_ready() {
    let wanted = Wanted {
        slots: 2,
        repeats: true,
        ..Wanted::USUAL
    };
    run(&mut Rig::new(), wanted, 23, 1000);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_mixed_operations_over_ipv6() {
    let wanted = Wanted {
        family: Family::Ipv6,
        ..Wanted::USUAL
    };
    run(&mut Rig::over(Family::Ipv6), wanted, 24, 1000);
}

/// V-11: one of 100 packets in each direction does not arrive.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_two_thousand_mixed_operations_over_a_link_that_loses() {
    let mut rig = Rig::new();
    let wanted = Wanted {
        repeats: true,
        // 34 ms.
        timeout: 13,
        ..Wanted::USUAL
    };
    let peer = rig.connect_peer(wanted);
    // A READ whose answer was lost is executed again, and would find what was written after it (IB spec
    // 9.7.5.1.1, table 79).
    rig.flags = SendFlags::SIGNALED | SendFlags::FENCE;
    with_loss(&mut rig, 10, |rig| mix(rig, peer, wanted, 25, 2000));
    rig.end_peer(peer);
    rig.check_packets();
}
