//! Packets between two queue pairs that are changed on their way.

use crate::harness::{ALL_ACCESS, Options, Pair, entry, remote, request};
use legato_base::{Random, Time};
use legato_transport::{PathMtu, WorkQueue};
use legato_verbs::{QueuePairAttributes, QueuePairState as State, SendFlags, SendOperation};

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
