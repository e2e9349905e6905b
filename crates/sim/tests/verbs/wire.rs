//! What a bad wire does to messages: nothing.

use crate::bench::{Bench, FLUSHED, MILLISECOND, Outcome, Setup, WRITTEN};
use legato_base::{Duration, Random};
use legato_sim::fault::{Effect, Frequency, Link, PacketEffect, Rule, Span};
use legato_sim::provider::Personality;
use legato_transport::adapter;
use legato_transport::rc::Policy;
use legato_verbs::{
    CompletionKind, PathMtu, Provider, QueuePairCapabilities, QueuePairState, ReceiveRequest,
    RemoteAddress, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::collections::VecDeque;

const SLOT: u64 = 1024;
const SLOTS: u64 = 32;
/// Behind the slots: what comes in, and on the right two numbers after that.
const INCOMING: u64 = SLOTS * SLOT;
const NUMBERS: u64 = INCOMING + 16 * SLOT;
const OUTSTANDING: u64 = 16;

/// What the left expects of a request, when it completes.
struct Expected {
    kind: CompletionKind,
    result: Vec<u8>,
}

/// Requests one after the other, and what both sides' memory must be.
struct Model {
    random: Random,
    slots: Vec<Vec<u8>>,
    counter: u64,
    swapped: u64,
    posted: u64,
    /// From `verified` on.
    expected: VecDeque<Expected>,
    verified: u64,
    /// What the right receives next: the number, the length, and the bytes if they come into the
    /// receive.
    messages: VecDeque<(u32, u32, Option<Vec<u8>>)>,
    receives: u64,
}

fn traffic(personality: Personality, seed: u64, count: u64, rules: &[Rule]) {
    // With seven retries a message in some thousands is given up; here none may be.
    let patient = Personality {
        adapter: adapter::Policy {
            transport: Policy {
                retry_count_infinite: Some(7),
                ..personality.adapter.transport
            },
            ..personality.adapter
        },
        ..personality
    };
    let mut bench = Bench::connected(Setup {
        seed,
        // The slots of completions that never come are never free.
        capabilities: QueuePairCapabilities {
            send_requests_max: 4096,
            receive_requests_max: 64,
            entries_max: 1,
        },
        timeout: 8,
        retry_count: 7,
        rnr_retry: 7,
        mtu: PathMtu::Bytes256,
        first_sequence: 0x00FF_FF00,
        ..Setup::new(patient)
    });
    bench.network.faults(|faults| {
        faults.set_seed(seed);
        for &rule in rules {
            faults.add(rule);
        }
    });
    let mut model = Model::new(seed);
    for _ in 0..8 {
        model.post_receive(&mut bench);
    }
    while model.verified < count {
        while model.posted < count && model.posted < model.verified + OUTSTANDING {
            model.post(&mut bench);
        }
        bench.step();
        model.check(&mut bench);
        if bench
            .left
            .nic
            .waiting_since(bench.left.queue_pair)
            .is_none()
        {
            // Nothing is under way: what has not come is lost, and was executed.
            assert!(personality.careless.is_some() || model.verified == model.posted);
            bench.run_for(MILLISECOND);
            model.check(&mut bench);
            model.verify_until(&bench, model.posted);
        }
    }
    bench.network.faults(|faults| faults.heal());
    bench.run();
    model.check(&mut bench);
    model.end(&bench);
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed),
            slots: vec![vec![0; SLOT as usize]; SLOTS as usize],
            counter: 0,
            swapped: 0,
            posted: 0,
            expected: VecDeque::new(),
            verified: 0,
            messages: VecDeque::new(),
            receives: 0,
        }
    }

    fn post(&mut self, bench: &mut Bench) {
        let number = self.posted;
        self.posted += 1;
        let length = self.random.below(700);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        let source = number % SLOTS * SLOT;
        let slot = self.random.below(SLOTS);
        let target = bench.right.at(slot * SLOT);
        let tag = number as u32;
        let (operation, length) = match self.random.below(6) {
            0 => {
                self.messages
                    .push_back((tag, length as u32, Some(bytes.clone())));
                (SendOperation::SendWithImmediate(tag), length)
            }
            1 | 2 => {
                self.slots[slot as usize][..length as usize].copy_from_slice(&bytes);
                if self.random.ratio(1, 2) {
                    (SendOperation::RdmaWrite(target), length)
                } else {
                    self.messages.push_back((tag, length as u32, None));
                    (SendOperation::RdmaWriteWithImmediate(target, tag), length)
                }
            }
            3 => (SendOperation::RdmaRead(target), length),
            other => (self.atomic(bench.right.at(NUMBERS), other == 4), 8),
        };
        let incoming = operation.writes_locally();
        let result = match operation {
            SendOperation::RdmaRead(_) => self.slots[slot as usize][..length as usize].to_vec(),
            SendOperation::FetchAndAdd { add, .. } => {
                let old = self.counter;
                self.counter = old.wrapping_add(add);
                number_bytes(old)
            }
            SendOperation::CompareAndSwap { compare, swap, .. } => {
                let old = self.swapped;
                if old == compare {
                    self.swapped = swap;
                }
                number_bytes(old)
            }
            _ => Vec::new(),
        };
        self.expected.push_back(Expected {
            kind: operation.completion_kind(),
            result,
        });
        let left = &mut bench.left;
        if !incoming {
            left.fill(source, &bytes);
        }
        let offset = if incoming { INCOMING } else { 0 };
        let at = offset + if incoming { number % 16 * SLOT } else { source };
        let request = SendRequest {
            wr_id: WorkRequestId(number),
            operation,
            entries: vec![left.region.entry(at, length as u32)],
            // A READ that is sent again reads again (IB spec 10.8.3.3, table 79): what changes its
            // bytes waits for it.
            flags: if incoming {
                SendFlags::SIGNALED
            } else {
                SendFlags::SIGNALED | SendFlags::FENCE
            },
        };
        left.nic.post_send(left.queue_pair, &request).unwrap();
    }

    fn atomic(&mut self, at: RemoteAddress, adds: bool) -> SendOperation {
        if adds {
            let add = self.random.next_u64();
            return SendOperation::FetchAndAdd { target: at, add };
        }
        let compare = if self.random.ratio(1, 2) {
            self.swapped
        } else {
            self.random.next_u64()
        };
        SendOperation::CompareAndSwap {
            target: RemoteAddress {
                address: at.address + 8,
                ..at
            },
            compare,
            swap: self.random.next_u64(),
        }
    }

    fn post_receive(&mut self, bench: &mut Bench) {
        let right = &mut bench.right;
        let wr_id = self.receives;
        self.receives += 1;
        let request = ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries: vec![
                right
                    .region
                    .entry(INCOMING + wr_id % 16 * SLOT, SLOT as u32),
            ],
        };
        right.nic.post_receive(right.queue_pair, &request).unwrap();
    }

    /// Messages come once, whole, in the order in which they were sent.
    fn check(&mut self, bench: &mut Bench) {
        for (wr_id, result) in bench.right.polled() {
            let (tag, length, bytes) = self.messages.pop_front().expect("a message too many");
            let expected = match bytes {
                Some(_) => CompletionKind::ReceiveWithImmediate {
                    length,
                    immediate: tag,
                },
                None => CompletionKind::ReceiveRdmaWithImmediate {
                    length,
                    immediate: tag,
                },
            };
            assert_eq!(result, Ok(expected));
            if let Some(bytes) = bytes {
                let came = bench
                    .right
                    .bytes(INCOMING + wr_id % 16 * SLOT, length as usize);
                assert_eq!(came, bytes);
            }
            self.post_receive(bench);
        }
        for (number, result) in bench.left.polled() {
            self.verify_until(bench, number);
            assert_eq!(number, self.verified, "completions are in order");
            let expected: Outcome = Ok(self.expected[0].kind);
            assert_eq!(result, expected);
            self.verify_until(bench, number + 1);
        }
    }

    /// What a request brings is there when it completes, or a later one does.
    fn verify_until(&mut self, bench: &Bench, number: u64) {
        while self.verified < number {
            let expected = self.expected.pop_front().expect("it was posted");
            let at = INCOMING + self.verified % 16 * SLOT;
            let came = bench.left.bytes(at, expected.result.len());
            assert_eq!(came, expected.result, "request {}", self.verified);
            self.verified += 1;
        }
    }

    fn end(&self, bench: &Bench) {
        assert!(self.messages.is_empty(), "messages are missing");
        for (slot, bytes) in self.slots.iter().enumerate() {
            assert_eq!(&bench.right.bytes(slot as u64 * SLOT, SLOT as usize), bytes);
        }
        let numbers = [number_bytes(self.counter), number_bytes(self.swapped)].concat();
        assert_eq!(bench.right.bytes(NUMBERS, 16), numbers);
        assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
    }
}

/// In the host's order.
fn number_bytes(number: u64) -> Vec<u8> {
    zerocopy::IntoBytes::as_bytes(&number).to_vec()
}

fn bad(per_cent: u32) -> [Rule; 3] {
    let copy = PacketEffect::Duplicate(Span {
        least: Duration::ZERO,
        most: Duration::from_micros(50),
    });
    let overtaken = PacketEffect::Reorder(Duration::from_micros(20));
    [PacketEffect::Drop, copy, overtaken].map(|effect| Rule::packets(per_cent, effect))
}

#[test]
fn v_11_messages_on_a_bad_wire_come_once_and_in_order() {
    for (seed, personality) in (11..).zip(Personality::ATTENTIVE) {
        traffic(personality, seed, 3_000, &bad(5));
    }
}

#[test]
fn v_11_a_hundred_thousand_messages_on_a_bad_wire() {
    for (seed, personality) in (1100..).zip(Personality::ATTENTIVE) {
        traffic(personality, seed, 100_000, &bad(30));
    }
}

#[test]
fn v_12_a_lost_acknowledgement_and_then_the_end() {
    for personality in Personality::ALL {
        let mut bench = Bench::connected(Setup::new(personality));
        let numbers = ["right", "left"].map(|name| bench.network.machine_number(name).unwrap());
        let [from, to] = numbers;
        let cut = Rule::one_way_cut(Link { from, to });
        bench.network.faults(|faults| faults.add(cut));
        bench.left.fill(0, &[7; 64]);
        let target = bench.right.at(128);
        bench.left.post(1, SendOperation::RdmaWrite(target), 64);
        bench.run_for(MILLISECOND);
        bench.left.enter_error();
        // It was flushed, and it was executed: a flush says nothing about the far side.
        let came = bench.left.polled();
        match personality.name {
            "ehca" => assert_eq!(came, []),
            "hostile" => assert!(came.is_empty() || came == [(1, FLUSHED)]),
            _ => assert_eq!(came, [(1, FLUSHED)]),
        }
        assert_eq!(bench.right.bytes(128, 64), [7; 64]);
    }
}

/// That every single bit is covered is a test of the wire itself.
#[test]
fn v_13_a_flipped_bit_is_a_lost_packet() {
    for seed in 0..200 {
        let mut bench = Bench::connected(Setup {
            seed,
            ..Setup::new(Personality::IDEAL)
        });
        let corrupt = Rule::new(Frequency::First(1), Effect::Packet(PacketEffect::Corrupt));
        bench.network.faults(|faults| {
            faults.set_seed(seed);
            faults.add(corrupt)
        });
        bench.left.fill(0, &[9; 64]);
        bench.right.receive(2, 64);
        bench.left.send(1, 64);
        let (_, came) = bench.time_of_completion();
        assert_eq!(came, [(1, crate::bench::SENT)]);
        assert_eq!(bench.right.bytes(32 * 1024, 64), [9; 64]);
        let received = CompletionKind::Receive { length: 64 };
        assert_eq!(bench.right.polled(), [(2, Ok(received))]);
        // FECN, BECN and six reserved bits of 640 are not covered.
        let damaged =
            bench.right.nic.counters().packets_damaged + bench.left.nic.counters().packets_damaged;
        assert!(damaged >= 1 || came_at_once(&bench), "seed {seed}");
    }
}

fn came_at_once(bench: &Bench) -> bool {
    bench.network.now().as_nanos() < 1_000_000
}

#[test]
fn v_14_sequence_numbers_wrap() {
    for personality in [Personality::IDEAL, Personality::RXE] {
        let mut bench = Bench::connected(Setup {
            first_sequence: 0x00FF_FFF0,
            ..Setup::new(personality)
        });
        // Each packet comes twice, the second time after the next ones.
        let copy = PacketEffect::Duplicate(Span::exactly(Duration::from_micros(10)));
        bench
            .network
            .faults(|faults| faults.add(Rule::packets(100, copy)));
        for number in 0..64_u8 {
            bench.left.fill(0, &[number; 16]);
            let target = bench.right.at(u64::from(number) * 16);
            bench.left.post(1, SendOperation::RdmaWrite(target), 16);
            bench.run_for(Duration::from_micros(7));
            while bench.left.polled() != [(1, WRITTEN)] {
                bench.step();
            }
        }
        bench.run();
        assert_eq!(bench.left.polled(), []);
        let expected: Vec<u8> = (0..64).flat_map(|number| [number; 16]).collect();
        assert_eq!(bench.right.bytes(0, 1024), expected);
        assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
    }
}
