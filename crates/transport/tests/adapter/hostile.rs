//! A peer that says anything at all, in packets whose CRC is right.

use super::end::{End, LEFT, RIGHT, WIDE};
use super::wire::{Copies, Wire};
use legato_base::Random;
use legato_verbs::conformance::{Side, World as _};
use legato_verbs::{
    ConnectionEvent, Event, Provider, QueuePairState, ResourceCounts, SendOperation,
};
use std::cell::Cell;
use std::rc::Rc;

const STEPS: u32 = 400;
/// Of the base transport header and one more, as long as the longest.
const HEADER_BITS: u64 = 8 * (12 + 28);

/// Bits of headers, of messages and of data change, of connection management too. Nothing panics,
/// no byte is written outside what the peer was given, and in the end nothing is left over.
#[test]
fn forged_packets_break_nothing_that_is_not_the_peers() {
    let mut connected = 0;
    let forged = Rc::new(Cell::new(0));
    for seed in 0..2_000 {
        let mut wire = Wire::new(seed, WIDE);
        let mut random = Random::from_seed(seed);
        let one_in = 2 + seed % 30;
        let count = Rc::clone(&forged);
        wire.fate = Box::new(move |_, packet| {
            if random.ratio(1, one_in) {
                let of_all = random.ratio(1, 2);
                packet.forge(random.below(if of_all { u64::MAX } else { HEADER_BITS }));
                count.set(count.get() + 1);
            }
            Copies::One
        });
        connected += u32::from(exchange(&mut wire));
        assert!(wire.machines.iter().all(|nic| nic.machine.damaged == 0));
    }
    assert!(connected > 1_000, "hardly anything was said: {connected}");
    assert!(
        forged.get() > 5_000,
        "hardly anything was forged: {forged:?}"
    );
}

/// True if the two were connected for a while.
fn exchange(wire: &mut Wire) -> bool {
    let (left, right) = (End::new(wire, LEFT), End::new(wire, RIGHT));
    let private = End::new(wire, RIGHT);
    private.fill(wire, 0, &[0xA5; 4096]);
    let address = wire.fresh_address(Side::Right);
    let listener = wire.machines[RIGHT].listen(&address).unwrap();
    let asked = wire.machines[LEFT].connect(left.queue_pair, &address, b"who");
    asked.unwrap();
    let mut connected = false;
    for _ in 0..STEPS {
        while let Some(event) = right.event(wire) {
            if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                // It may have gone away, and the queue pair may be another's already.
                let _ = wire.machines[RIGHT].accept(request, right.queue_pair, &[]);
            }
        }
        let state = wire.machines[LEFT].query_queue_pair(left.queue_pair);
        if state == Ok(QueuePairState::ReadyToSend) && left.polled(wire).is_empty() {
            if !connected {
                work(wire, left, right);
            }
            connected = true;
        }
        wire.step();
    }
    assert_eq!(private.bytes(wire, 0, 4096), [0xA5; 4096]);
    wire.machines[RIGHT].close_listener(listener).unwrap();
    for end in [left, right, private] {
        end.destroy(wire);
    }
    wire.run_until_idle();
    for nic in &wire.machines {
        assert_eq!(nic.resource_counts(), ResourceCounts::default());
        assert!(nic.machine.around.memory.is_empty());
        assert_eq!(nic.machine.adapter.numbers_in_use(), 0);
    }
    connected
}

fn work(wire: &mut Wire, left: End, right: End) {
    right.receive(wire, 0, 4096);
    left.send(wire, SendOperation::Send, 0, 4096);
    left.send(wire, SendOperation::RdmaWrite(right.remote(8192)), 0, 5000);
    left.send(wire, SendOperation::RdmaRead(right.remote(0)), 16_384, 5000);
    let target = right.remote(32_768);
    left.send(wire, SendOperation::FetchAndAdd { target, add: 1 }, 0, 8);
}
