//! Mixed requests of both ends at once, and a model of what they do.

use crate::harness::{ALL_ACCESS, LEFT, Options, Pair, RIGHT, entry, remote};
use legato_base::{Random, Time};
use legato_transport::WorkQueue;
use legato_verbs::{
    CompletionKind, QueuePairState, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::collections::VecDeque;

/// What is sent; never written.
const SOURCE: u32 = 1;
/// What the peer writes and reads.
const TARGET: u32 = 2;
/// Where the results of READs and atomics come.
const RESULTS: u32 = 3;
/// Where messages come.
const RECEIVES: u32 = 4;
/// What the peer's atomics change.
const COUNTERS: u32 = 5;

const LENGTH_MAX: u32 = 4096;
const TARGET_LENGTH: u32 = 16384;
const COUNTER_COUNT: u64 = 4;

pub(crate) struct Traffic {
    random: Random,
    sides: [Side; 2],
    depth: u64,
}

struct Side {
    posted: u64,
    messages: u64,
    /// Of what it posted, the oldest first.
    under_way: VecDeque<Posted>,
    /// Messages for it that have not come, the oldest first.
    incoming: VecDeque<(CompletionKind, Vec<u8>)>,
    /// Receives that wait to be posted again, and those that are posted.
    idle_receives: Vec<u64>,
    /// The model of its target and its counters.
    target: Vec<u8>,
    counters: Vec<u64>,
    /// A READ may still come back with what a later WRITE leaves, unless that is fenced.
    must_fence: bool,
}

struct Posted {
    id: u64,
    kind: CompletionKind,
    signaled: bool,
    /// Where the result is, and what it must be.
    result: Option<(u64, Vec<u8>)>,
}

impl Traffic {
    pub(crate) fn new(
        pair: &mut Pair,
        options: &Options,
        mut random: Random,
        messages: u64,
    ) -> Self {
        let depth = u64::from(options.depth);
        let room = depth as usize * LENGTH_MAX as usize;
        let sides = [LEFT, RIGHT].map(|side| {
            let host = &mut pair.ends[side].host;
            host.add(SOURCE, 2 * LENGTH_MAX as usize, ALL_ACCESS);
            host.add(TARGET, TARGET_LENGTH as usize, ALL_ACCESS);
            host.add(RESULTS, room, ALL_ACCESS);
            host.add(RECEIVES, room, ALL_ACCESS);
            host.add(COUNTERS, 8 * COUNTER_COUNT as usize, ALL_ACCESS);
            for byte in host.bytes_mut(SOURCE) {
                *byte = random.below(256) as u8;
            }
            Side {
                posted: 0,
                messages,
                under_way: VecDeque::new(),
                incoming: VecDeque::new(),
                idle_receives: (0..depth).collect(),
                target: vec![0; TARGET_LENGTH as usize],
                counters: vec![0; COUNTER_COUNT as usize],
                must_fence: false,
            }
        });
        Self {
            random,
            sides,
            depth,
        }
    }

    /// Looks at what came, and posts more. False if all is done.
    pub(crate) fn turn(&mut self, pair: &mut Pair) -> bool {
        for side in [LEFT, RIGHT] {
            self.check_receives(pair, side);
            self.check_sends(pair, side);
        }
        for side in [LEFT, RIGHT] {
            self.post_receives(pair, side);
            self.post_sends(pair, side);
        }
        self.sides.iter().any(|side| {
            side.posted < side.messages || !side.under_way.is_empty() || !side.incoming.is_empty()
        })
    }

    fn check_receives(&mut self, pair: &mut Pair, side: usize) {
        for (slot, result) in pair.ends[side].poll(WorkQueue::Receive) {
            let (kind, bytes) = self.sides[side].incoming.pop_front().unwrap();
            assert_eq!(result, Ok(kind));
            let start = slot as usize * LENGTH_MAX as usize;
            let place = &pair.ends[side].host.bytes(RECEIVES)[start..start + bytes.len()];
            assert!(place == bytes, "a message has other bytes");
            self.sides[side].idle_receives.push(slot);
        }
    }

    fn check_sends(&mut self, pair: &mut Pair, side: usize) {
        for (id, result) in pair.ends[side].poll(WorkQueue::Send) {
            loop {
                let posted = self.sides[side].under_way.pop_front().unwrap();
                if let Some((slot, expected)) = &posted.result {
                    let start = *slot as usize * LENGTH_MAX as usize;
                    let host = &pair.ends[side].host;
                    let place = &host.bytes(RESULTS)[start..start + expected.len()];
                    assert!(place == expected, "a READ or an atomic brought other bytes");
                }
                if posted.id == id {
                    assert_eq!(result, Ok(posted.kind));
                    break;
                }
                assert!(!posted.signaled, "completions come in order");
            }
        }
    }

    fn post_receives(&mut self, pair: &mut Pair, side: usize) {
        // Now and then it is late, so that the peer is not ready.
        if !self.random.ratio(1, 4) {
            return;
        }
        while let Some(slot) = self.sides[side].idle_receives.pop() {
            let offset = slot * u64::from(LENGTH_MAX);
            pair.ends[side].post_receive(slot, vec![entry(RECEIVES, offset, LENGTH_MAX)]);
        }
    }

    fn post_sends(&mut self, pair: &mut Pair, side: usize) {
        loop {
            let own = &self.sides[side];
            let room = (own.under_way.len() as u64) < self.depth;
            if own.posted == own.messages || !room || self.random.ratio(1, 3) {
                return;
            }
            let id = own.posted;
            let (mut request, posted) = self.draw(pair, side);
            // Slots come back with signaled ones only.
            let last = id + 1 == self.sides[side].messages;
            if last || id.is_multiple_of(self.depth / 2) || self.random.ratio(1, 2) {
                request.flags = request.flags | SendFlags::SIGNALED;
            }
            let signaled = request.flags.contains(SendFlags::SIGNALED);
            pair.ends[side].post(request);
            self.sides[side].posted += 1;
            self.sides[side]
                .under_way
                .push_back(Posted { signaled, ..posted });
        }
    }

    /// Draws a request, and does it in the model.
    fn draw(&mut self, pair: &Pair, side: usize) -> (SendRequest, Posted) {
        let id = self.sides[side].posted;
        let slot = id % self.depth;
        let length = if self.random.ratio(1, 4) {
            self.random.below(u64::from(LENGTH_MAX) + 1) as u32
        } else {
            self.random.below(300) as u32
        };
        let offset = self.random.below(u64::from(LENGTH_MAX));
        let start = offset as usize;
        let bytes = pair.ends[side].host.bytes(SOURCE)[start..start + length as usize].to_vec();
        let place = self.random.below(u64::from(TARGET_LENGTH - length) + 1);
        let range = place as usize..place as usize + length as usize;
        let mut entries = vec![entry(SOURCE, offset, length)];
        let mut flags = SendFlags::NONE;
        let mut result = None;
        let number = self.random.next_u64() as u32;
        let peer = 1 - side;
        let operation = match self.random.below(6) {
            0 => {
                let kind = CompletionKind::Receive { length };
                self.sides[peer].incoming.push_back((kind, bytes));
                SendOperation::Send
            }
            1 => {
                let immediate = number;
                let kind = CompletionKind::ReceiveWithImmediate { length, immediate };
                self.sides[peer].incoming.push_back((kind, bytes));
                SendOperation::SendWithImmediate(number)
            }
            kind @ 2..=3 => {
                self.sides[peer].target[range].copy_from_slice(&bytes);
                if std::mem::replace(&mut self.sides[side].must_fence, false) {
                    flags = SendFlags::FENCE;
                }
                let target = remote(TARGET, place);
                if kind == 2 {
                    SendOperation::RdmaWrite(target)
                } else {
                    let immediate = number;
                    let kind = CompletionKind::ReceiveRdmaWithImmediate { length, immediate };
                    self.sides[peer].incoming.push_back((kind, Vec::new()));
                    SendOperation::RdmaWriteWithImmediate(target, number)
                }
            }
            4 => {
                result = Some((slot, self.sides[peer].target[range].to_vec()));
                entries = vec![entry(RESULTS, slot * u64::from(LENGTH_MAX), length)];
                self.sides[side].must_fence = true;
                SendOperation::RdmaRead(remote(TARGET, place))
            }
            _ => {
                let which = self.random.below(COUNTER_COUNT);
                let counter = &mut self.sides[peer].counters[which as usize];
                let old = zerocopy::IntoBytes::as_bytes(counter).to_vec();
                result = Some((slot, old));
                entries = vec![entry(RESULTS, slot * u64::from(LENGTH_MAX), 8)];
                let target = remote(COUNTERS, which * 8);
                let add = u64::from(number);
                if self.random.ratio(1, 2) {
                    *counter = counter.wrapping_add(add);
                    SendOperation::FetchAndAdd { target, add }
                } else {
                    let compare = *counter ^ self.random.below(2);
                    if compare == *counter {
                        *counter = add;
                    }
                    let swap = add;
                    SendOperation::CompareAndSwap {
                        target,
                        compare,
                        swap,
                    }
                }
            }
        };
        let request = SendRequest {
            wr_id: WorkRequestId(id),
            operation,
            entries,
            flags,
        };
        let posted = Posted {
            id,
            kind: operation.completion_kind(),
            signaled: false,
            result,
        };
        (request, posted)
    }

    /// Memory is as in the model, and nothing is left over.
    pub(crate) fn check_end(&self, pair: &mut Pair) {
        pair.step(Time::NEVER);
        for (end, side) in pair.ends.iter().zip(&self.sides) {
            assert_eq!(end.state(), QueuePairState::ReadyToSend);
            assert!(end.host.events.is_empty());
            assert!(end.host.bytes(TARGET) == side.target, "memory differs");
            let counters: Vec<u8> = side
                .counters
                .iter()
                .flat_map(|counter| zerocopy::IntoBytes::as_bytes(counter).to_vec())
                .collect();
            assert!(end.host.bytes(COUNTERS) == counters, "counters differ");
        }
    }
}
