//! Packets that no peer should send, to a queue pair in every state: no panic, bounded answers,
//! every request completes at most once.

use crate::harness::hostile::{FIRST, Hostile};
use crate::harness::{ALL_ACCESS, End, Options, Pair, entry, remote, request};
use legato_base::{Random, Time};
use legato_transport::rc::{Policy, Receives};
use legato_transport::{PathMtu, WorkQueue};
use legato_verbs::{
    QueuePairAttributes, QueuePairState as State, RemoteKey, SendFlags, SendOperation,
};

/// To one queue pair.
const PACKETS: u64 = 60;

/// A queue pair with requests under way, and how many of each queue were posted.
fn busy(options: &Options, state: State) -> (End, u64, u64) {
    let mut end = options.end(1, 2, state);
    end.host.add(1, 4096, ALL_ACCESS);
    end.host.add(2, 4096, ALL_ACCESS);
    let (mut sends, mut receives) = (0, 0);
    if end.queue_pair.check_post_receive().is_ok() {
        for id in 0..4 {
            end.post_receive(id, vec![entry(1, 0, 600)]);
            receives += 1;
        }
    }
    let target = remote(1, 0);
    for operation in [
        SendOperation::Send,
        SendOperation::RdmaRead(target),
        SendOperation::RdmaWrite(target),
        SendOperation::FetchAndAdd { target, add: 1 },
        SendOperation::LocalInvalidate(RemoteKey(2)),
        SendOperation::SendWithImmediate(1),
    ] {
        let length = match operation {
            SendOperation::FetchAndAdd { .. } => 8,
            SendOperation::LocalInvalidate(_) => 0,
            _ => 1000,
        };
        let request = request(sends, operation, vec![entry(1, 0, length)]);
        if end.queue_pair.post_send(request, &mut end.host).is_ok() {
            sends += 1;
        }
    }
    (end, sends, receives)
}

fn fuzz(seed: u64, options: &Options, state: State) {
    let mut hostile = Hostile::new(seed);
    let (mut end, sends, receives) = busy(options, state);
    let (mut now, mut buffer) = (Time::ZERO, vec![0; 8192]);
    for _ in 0..PACKETS {
        let packet = hostile.packet();
        end.queue_pair.input(now, &packet, &mut end.host);
        // What one packet can make it say is no more than its memory and its window hold.
        let drains = hostile.random.ratio(3, 4);
        let answers = (0..400)
            .take_while(|_| {
                drains
                    && end
                        .queue_pair
                        .transmit(now, &mut end.host, &mut buffer)
                        .is_some()
            })
            .count();
        assert!(answers < 400, "seed {seed}: no end of packets");
        if hostile.random.ratio(1, 8) {
            now = end
                .queue_pair
                .next_deadline()
                .min(now + legato_base::Duration::from_secs(1));
            end.queue_pair.expire(now, &mut end.host);
        }
    }
    if end.state() != State::Reset {
        end.modify(State::Error, &QueuePairAttributes::NONE);
    }
    for (queue, posted) in [(WorkQueue::Send, sends), (WorkQueue::Receive, receives)] {
        let completed: Vec<u64> = end.poll(queue).iter().map(|(id, _)| *id).collect();
        let shared = queue == WorkQueue::Receive && options.receives == Receives::Shared;
        if shared || state == State::Reset {
            assert!(completed.len() as u64 <= posted, "seed {seed}");
        } else {
            let all: Vec<u64> = (0..posted).collect();
            assert_eq!(completed, all, "seed {seed} {state:?}");
        }
    }
}

#[test]
fn hostile_packets_in_every_state() {
    let states = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrain,
        State::Error,
    ];
    let seeds = crate::amount::executions(2_000_000) / (PACKETS * states.len() as u64);
    let first = crate::amount::first_seed();
    for seed in first..first + seeds {
        crate::amount::report(seed - first, seeds, "queue pairs");
        for state in states {
            let options = Options {
                policy: [Policy::IDEAL, Policy::RXE][seed as usize % 2],
                receives: [Receives::Own, Receives::Shared][seed as usize / 2 % 2],
                mtu: PathMtu::Bytes256,
                first: FIRST,
                timeout: 1 + seed as u8 % 8,
                ..Options::default()
            };
            fuzz(seed, &options, state);
        }
    }
}

/// One of a pair's packets is changed on its way. What is delivered may be wrong, for no checksum
/// protects it here; but all ends.
#[test]
fn changed_packets_between_two_queue_pairs() {
    for seed in 0..3000 {
        let options = Options {
            mtu: PathMtu::Bytes256,
            timeout: 4,
            depth: 32,
            rnr_timer: 1,
            ..Options::default()
        };
        let mut pair = Pair::new(&options);
        pair.random = Random::from_seed(seed);
        pair.mutate = true;
        for end in &mut pair.ends {
            end.host.add(1, 4096, ALL_ACCESS);
        }
        let mut random = Random::from_seed(!seed);
        for side in 0..2 {
            for id in 0..20 {
                pair.ends[side].post_receive(id, vec![entry(1, 0, 1000)]);
                let target = remote(1, 0);
                let length = random.below(1000) as u32;
                let operation = match random.below(4) {
                    0 => SendOperation::Send,
                    1 => SendOperation::RdmaRead(target),
                    2 => SendOperation::RdmaWriteWithImmediate(target, 1),
                    _ => SendOperation::FetchAndAdd { target, add: 1 },
                };
                let length = match operation {
                    SendOperation::FetchAndAdd { .. } => 8,
                    _ => length,
                };
                let mut request = request(id, operation, vec![entry(1, 0, length)]);
                request.flags = request.flags | SendFlags::SOLICITED;
                pair.ends[side].post(request);
            }
        }
        let mut steps = 0;
        while pair.step(Time::NEVER) {
            steps += 1;
            assert!(steps < 20_000, "seed {seed}: no end");
        }
        for end in &mut pair.ends {
            end.modify(State::Error, &QueuePairAttributes::NONE);
            let ids = end.poll(WorkQueue::Send).into_iter().map(|(id, _)| id);
            assert!(ids.eq(0..20), "seed {seed}");
        }
    }
}

#[test]
fn a_buffer_without_room_gets_no_packet() {
    let mut pair = Pair::new(&Options::default());
    pair.left().post(request(1, SendOperation::Send, vec![]));
    let end = pair.left();
    let mut buffer = vec![0; end.queue_pair.packet_max()];
    for room in [0, 1, buffer.len() - 1] {
        let transmit = end
            .queue_pair
            .transmit(Time::ZERO, &mut end.host, &mut buffer[..room]);
        assert_eq!(transmit, None);
    }
    let transmit = end
        .queue_pair
        .transmit(Time::ZERO, &mut end.host, &mut buffer);
    assert!(transmit.is_some());
}
