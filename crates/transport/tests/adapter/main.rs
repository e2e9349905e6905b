//! The channel adapter with the least around it: real memory, a wire of vectors, a clock that a
//! test moves. What a provider over sockets is built on must work here first.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod end;
mod hostile;
mod machine;
mod measured;
mod provider;
mod wire;

use end::{End, LEFT, RIGHT, WIDE, connect, next_event, pattern};
use legato_base::Duration;
use legato_transport::cm::Gid;
use legato_transport::rc::Recovery;
use legato_verbs::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, ConnectionEvent, Event, PathMtu,
    Provider, QueuePairState, RejectReason, ResourceCounts, SendOperation, UnreachableReason,
    VerbsError, conformance,
    conformance::{Side, World as _},
};
use machine::{NO_MEMORY, Setup};
use std::net::Ipv4Addr;
use wire::{Copies, Wire};
use zerocopy::IntoBytes;

/// In the host's byte order, as atomics find it.
fn word(value: u64) -> Vec<u8> {
    value.as_bytes().to_vec()
}

const SENT: (u64, Result<CompletionKind, CompletionStatus>) = (1, Ok(CompletionKind::Send));

#[test]
fn a_connection_from_its_begin_to_its_end() {
    let mut wire = Wire::new(1, WIDE);
    let (left, right, listener) = connect(&mut wire);
    let data = pattern(10_000);
    left.fill(&mut wire, 0, &data);

    right.receive(&mut wire, 0, 10_000);
    left.send(&mut wire, SendOperation::Send, 0, 10_000);
    wire.run_until_idle();
    let received = CompletionKind::Receive { length: 10_000 };
    assert_eq!(right.polled(&mut wire), [(2, Ok(received))]);
    assert_eq!(left.polled(&mut wire), [SENT]);
    assert_eq!(right.bytes(&wire, 0, 10_000), data);

    let write = SendOperation::RdmaWrite(right.remote(20_000));
    left.send(&mut wire, write, 0, 10_000);
    wire.run_until_idle();
    assert_eq!(left.polled(&mut wire), [(1, Ok(CompletionKind::RdmaWrite))]);
    assert_eq!(right.bytes(&wire, 20_000, 10_000), data);

    let read = SendOperation::RdmaRead(right.remote(20_000));
    left.send(&mut wire, read, 30_000, 10_000);
    wire.run_until_idle();
    assert_eq!(left.polled(&mut wire), [(1, Ok(CompletionKind::RdmaRead))]);
    assert_eq!(left.bytes(&wire, 30_000, 10_000), data);

    right.fill(&mut wire, 40_000, &word(41));
    let target = right.remote(40_000);
    let add = SendOperation::FetchAndAdd { target, add: 1 };
    left.send(&mut wire, add, 50_000, 8);
    wire.run_until_idle();
    let added = (1, Ok(CompletionKind::FetchAndAdd));
    assert_eq!(left.polled(&mut wire), [added]);
    assert_eq!(left.bytes(&wire, 50_000, 8), word(41));
    assert_eq!(right.bytes(&wire, 40_000, 8), word(42));

    wire.machines[LEFT].disconnect(left.queue_pair).unwrap();
    for end in [left, right] {
        let queue_pair = end.queue_pair;
        for event in [
            ConnectionEvent::Disconnected { queue_pair },
            ConnectionEvent::TimeWaitExit { queue_pair },
        ] {
            assert_eq!(next_event(&mut wire, end), Event::Connection(event));
        }
        let state = wire.machines[end.side].query_queue_pair(queue_pair);
        assert_eq!(state, Ok(QueuePairState::Error));
        end.destroy(&mut wire);
    }
    wire.machines[RIGHT].close_listener(listener).unwrap();
    wire.run_until_idle();
    for nic in &wire.machines {
        assert_eq!(nic.resource_counts(), ResourceCounts::default());
        assert!(nic.machine.around.memory.is_empty());
        assert_eq!(nic.machine.adapter.numbers_in_use(), 0);
    }
}

#[test]
fn every_rule_of_the_suite_is_kept() {
    for seed in 0..4 {
        let report = conformance::run(&mut || Box::new(Wire::new(seed, WIDE)));
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
}

/// A READ's answer that waits for the link may have bytes of a later WRITE, which is not fenced
/// (IB spec 10.8.3.3, table 79): that rule of the suite holds only where answers are sent at once.
#[test]
fn every_other_rule_is_kept_on_a_busy_link() {
    let overtaken = "V-11 mixed operations complete in posting order and equal a model";
    let mut seen = false;
    for (seed, room) in [(0, 1), (1, 2), (2, 3), (3, 5), (4, 3)] {
        let report = conformance::run(&mut || Box::new(Wire::new(seed, room)));
        for (rule, violation) in &report.failed {
            assert_eq!(*rule, overtaken, "seed {seed}, room {room}: {violation}");
            assert_eq!(violation.what, "what READs fetched");
            seen = true;
        }
    }
    assert!(seen, "the wires are too wide");
}

#[test]
fn a_busy_link_is_waited_for() {
    let mut wire = Wire::new(1, 1);
    let (left, right, _) = connect(&mut wire);
    let data = pattern(60_000);
    left.fill(&mut wire, 0, &data);
    let before = wire.now();
    left.send(
        &mut wire,
        SendOperation::RdmaWrite(right.remote(0)),
        0,
        60_000,
    );
    while left.polled(&mut wire).is_empty() {
        assert!(wire.step());
    }
    assert_eq!(right.bytes(&wire, 0, 60_000), data);
    // One packet of 1024 bytes each microsecond.
    assert!(wire.now().since(before) >= Duration::from_micros(58));
    assert!(wire.machines[LEFT].machine.around.times_link_was_busy >= 58);
}

#[test]
fn packets_that_are_lost_damaged_and_doubled_change_no_byte() {
    let mut wire = Wire::new(1, WIDE);
    let (left, right, _) = connect(&mut wire);
    wire.fate = Box::new(|number, packet| match number % 7 {
        2 => Copies::None,
        4 => Copies::Two,
        5 => {
            packet.damage();
            Copies::One
        }
        _ => Copies::One,
    });
    let data = pattern(5_000);
    left.fill(&mut wire, 0, &data);
    right.fill(&mut wire, 40_000, &word(7));
    for round in 1..=20 {
        left.send(
            &mut wire,
            SendOperation::RdmaWrite(right.remote(0)),
            0,
            5_000,
        );
        left.send(
            &mut wire,
            SendOperation::RdmaRead(right.remote(0)),
            10_000,
            5_000,
        );
        let target = right.remote(40_000);
        left.send(
            &mut wire,
            SendOperation::FetchAndAdd { target, add: 1 },
            50_000,
            8,
        );
        let mut done = 0;
        while done < 3 {
            let polled = left.polled(&mut wire);
            assert!(
                polled.iter().all(|(_, result)| result.is_ok()),
                "{polled:?}"
            );
            done += polled.len();
            assert!(wire.step() || done == 3);
        }
        assert_eq!(right.bytes(&wire, 0, 5_000), data);
        assert_eq!(left.bytes(&wire, 10_000, 5_000), data);
        let sum = 7 + round;
        assert_eq!(right.bytes(&wire, 40_000, 8), word(sum));
    }
    assert!(wire.machines.iter().any(|nic| nic.machine.damaged > 0));
}

/// Packets are as long as the side that asks says: both sides must count by the same length.
#[test]
fn a_peer_with_shorter_packets_is_followed_and_one_with_longer_refused() {
    let (short, long) = (PathMtu::Bytes512, PathMtu::Bytes4096);
    let setup = |path_mtu| Setup {
        seed: 1,
        room: WIDE,
        path_mtu,
        recovery: Recovery::AsAttributes,
    };
    let mut wire = Wire::with(&setup([short, long]));
    let (left, right, _) = connect(&mut wire);
    let data = pattern(9_000);
    for (from, to) in [(left, right), (right, left)] {
        from.fill(&mut wire, 0, &data);
        let write = SendOperation::RdmaWrite(to.remote(20_000));
        from.send(&mut wire, write, 0, 9_000);
        wire.run_until_idle();
        assert_eq!(from.polled(&mut wire), [(1, Ok(CompletionKind::RdmaWrite))]);
        assert_eq!(to.bytes(&wire, 20_000, 9_000), data);
    }

    let mut wire = Wire::with(&setup([long, short]));
    let (left, right) = (End::new(&mut wire, LEFT), End::new(&mut wire, RIGHT));
    let address = wire.fresh_address(Side::Right);
    wire.machines[RIGHT].listen(&address).unwrap();
    wire.machines[LEFT]
        .connect(left.queue_pair, &address, &[])
        .unwrap();
    let rejected = ConnectionEvent::Rejected {
        queue_pair: left.queue_pair,
        reason: RejectReason::Other(26),
        private_data: Vec::new(),
    };
    assert_eq!(next_event(&mut wire, left), Event::Connection(rejected));
    assert_eq!(right.event(&mut wire), None);
}

#[test]
fn an_address_that_nobody_has_is_said_once() {
    let mut wire = Wire::new(1, WIDE);
    let left = End::new(&mut wire, LEFT);
    let queue_pair = left.queue_pair;
    let address = wire.fresh_address(Side::Right);
    wire.machines[LEFT]
        .connect(queue_pair, &address, &[])
        .unwrap();
    assert_eq!(wire.machines[LEFT].resource_counts().connection_state, 1);
    wire.run_until_idle();
    let reason = UnreachableReason::NoSuchAddress;
    for event in [
        ConnectionEvent::Unreachable { queue_pair, reason },
        ConnectionEvent::TimeWaitExit { queue_pair },
    ] {
        assert_eq!(left.event(&mut wire), Some(Event::Connection(event)));
    }
    assert_eq!(left.event(&mut wire), None);
    left.destroy(&mut wire);
    let counts = wire.machines[LEFT].resource_counts();
    assert_eq!(counts, ResourceCounts::default());
}

#[test]
fn memory_that_there_is_not_leaves_nothing_behind() {
    let mut wire = Wire::new(1, WIDE);
    let nic = &mut wire.machines[LEFT];
    nic.machine.around.memory_max = 4096;
    let domain = nic.create_protection_domain().unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    for _ in 0..3 {
        assert_eq!(nic.allocate_region(domain, 4097, access), Err(NO_MEMORY));
    }
    let region = nic.allocate_region(domain, 4096, access).unwrap();
    assert_eq!(nic.allocate_region(domain, 1, access), Err(NO_MEMORY));
    assert_eq!(nic.resource_counts().memory_regions, 1);
    nic.deregister_region(&region).unwrap();
    nic.destroy_protection_domain(domain).unwrap();
    assert_eq!(nic.resource_counts(), ResourceCounts::default());
    assert!(nic.machine.around.memory.is_empty());
}

#[test]
fn bytes_that_are_no_packet_are_counted() {
    let mut wire = Wire::new(1, WIDE);
    let (left, right, _) = connect(&mut wire);
    let machine = &mut wire.machines[RIGHT].machine;
    let stranger = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 9));
    for (number, bytes) in [&[][..], &[0; 11], &[0xFF; 12], &[0; 300]]
        .iter()
        .enumerate()
    {
        machine
            .adapter
            .receive(&mut machine.around, stranger, bytes);
        assert_eq!(machine.adapter.packets_discarded(), number as u64 + 1);
    }
    right.receive(&mut wire, 0, 64);
    left.send(&mut wire, SendOperation::Send, 0, 64);
    wire.run_until_idle();
    assert_eq!(left.polled(&mut wire), [SENT]);
}

#[test]
fn a_removed_device_ends_what_it_had_and_can_be_cleaned_up() {
    let mut wire = Wire::new(1, WIDE);
    let (left, _, _) = connect(&mut wire);
    let queue_pair = left.queue_pair;
    left.receive(&mut wire, 0, 64);
    let machine = &mut wire.machines[LEFT].machine;
    machine.adapter.remove_device(&mut machine.around);
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    assert_eq!(left.polled(&mut wire), [(2, flushed)]);
    let fatal = Event::Async(AsyncEvent::DeviceFatal);
    let removed = Event::Connection(ConnectionEvent::DeviceRemoved { queue_pair });
    assert_eq!(left.event(&mut wire), Some(fatal));
    assert_eq!(left.event(&mut wire), Some(removed));
    let nic = &mut wire.machines[LEFT];
    assert_eq!(
        nic.create_protection_domain(),
        Err(VerbsError::DeviceRemoved)
    );
    left.destroy(&mut wire);
    let counts = wire.machines[LEFT].resource_counts();
    assert_eq!(counts, ResourceCounts::default());
}

/// Equal seeds, equal packets.
#[test]
fn a_seed_is_one_history() {
    let history = |seed| {
        let mut wire = Wire::new(seed, 2);
        let (left, _, _) = connect(&mut wire);
        let number = wire.machines[LEFT].queue_pair_number(left.queue_pair);
        let attributes = wire.machines[LEFT].query_attributes(left.queue_pair);
        (
            number.unwrap(),
            attributes.unwrap(),
            left.region,
            wire.now(),
        )
    };
    assert_eq!(history(5), history(5));
    assert_ne!(history(5), history(6));
}
