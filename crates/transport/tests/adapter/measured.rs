//! Adapters that measure round trips and control congestion.

use super::end::{LEFT, RIGHT, WIDE, connect, pattern};
use super::machine::Setup;
use super::wire::{Copies, Wire};
use legato_base::{Duration, Random, Time};
use legato_transport::congestion::{Counters, Flight};
use legato_transport::rc::Recovery;
use legato_verbs::{PathMtu, SendOperation, conformance};

const LENGTH: u32 = 30_000;

fn wire(seed: u64, room: usize) -> Wire {
    Wire::with(&Setup {
        seed,
        room,
        path_mtu: [PathMtu::Bytes1024; 2],
        recovery: Recovery::Measured,
    })
}

#[test]
fn every_rule_of_the_suite_is_kept() {
    for seed in 0..4 {
        let report = conformance::run(&mut || Box::new(wire(seed, WIDE)));
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
}

#[test]
fn loss_changes_no_byte_and_leaves_nothing_under_way() {
    let mut counted = Counters::default();
    for seed in 0..20 {
        let mut wire = wire(seed, WIDE);
        let (left, right, _) = connect(&mut wire);
        // A round trip is known.
        let write = SendOperation::RdmaWrite(right.remote(0));
        left.send(&mut wire, write, 0, 100);
        wire.run_until_idle();
        assert_eq!(left.polled(&mut wire).len(), 1);
        let mut random = Random::from_seed(seed);
        wire.fate = Box::new(move |_, _| match random.below(100) {
            0..5 => Copies::None,
            5..8 => Copies::Two,
            _ => Copies::One,
        });
        let data = pattern(LENGTH as usize);
        left.fill(&mut wire, 0, &data);
        let begun = wire.now();
        left.send(&mut wire, write, 0, LENGTH);
        let read = SendOperation::RdmaRead(right.remote(0));
        left.send(&mut wire, read, u64::from(LENGTH), LENGTH);
        let mut done = Vec::new();
        while done.len() < 2 {
            done.extend(left.polled(&mut wire));
            assert!(wire.step() || done.len() == 2);
        }
        assert!(done.iter().all(|(_, result)| result.is_ok()), "{done:?}");
        assert_eq!(right.bytes(&wire, 0, data.len()), data);
        assert_eq!(left.bytes(&wire, u64::from(LENGTH), data.len()), data);
        // A timeout of before is 67 ms, and 60 packets in which every twentieth is lost often had one.
        assert!(wire.now().since(begun) < Duration::from_millis(100));
        let adapter = &wire.machines[LEFT].machine.adapter;
        let engine = adapter.engine(left.queue_pair).unwrap();
        assert_eq!(engine.flight(), Flight::default());
        assert_eq!(engine.next_deadline(), Time::NEVER);
        assert!(adapter.paths().all(|path| path.in_flight == [0, 0]));
        counted = counted.plus(&adapter.congestion_counters());
    }
    assert!(
        counted.losses > 10 && counted.tail_probes > 0,
        "{counted:?}"
    );
}

#[test]
fn a_queue_pair_that_ends_takes_nothing_along_of_its_path() {
    let mut wire = wire(1, WIDE);
    let (left, right, _) = connect(&mut wire);
    let data = pattern(LENGTH as usize);
    left.fill(&mut wire, 0, &data);
    wire.fate = Box::new(|_, _| Copies::None);
    for operation in [
        SendOperation::RdmaWrite(right.remote(0)),
        SendOperation::RdmaRead(right.remote(0)),
    ] {
        left.send(&mut wire, operation, 0, LENGTH);
    }
    assert!(wire.step());
    let under_way = |wire: &Wire| {
        let paths = wire.machines[LEFT].machine.adapter.paths();
        paths.map(|path| path.in_flight).collect::<Vec<_>>()
    };
    assert_eq!(under_way(&wire), [[30, 30]]);
    left.destroy(&mut wire);
    assert_eq!(under_way(&wire), [[0, 0]]);
}

#[test]
fn marks_are_told_and_heeded() {
    let mut wire = wire(1, WIDE);
    let (left, right, _) = connect(&mut wire);
    let data = pattern(LENGTH as usize);
    left.fill(&mut wire, 0, &data);
    wire.marks = true;
    for operation in [
        SendOperation::RdmaWrite(right.remote(0)),
        SendOperation::RdmaRead(right.remote(0)),
    ] {
        left.send(&mut wire, operation, 0, LENGTH);
        wire.run_until_idle();
    }
    assert_eq!(left.polled(&mut wire).len(), 2);
    let [near, far] = [LEFT, RIGHT].map(|side| &wire.machines[side].machine.adapter);
    let (asked, asker) = (far.congestion_counters(), near.congestion_counters());
    assert!(asked.marks_seen > 25 && asker.marks_seen > 25);
    assert!(asked.notifications_sent > 0);
    assert_eq!(asker.notifications_received, asked.notifications_sent);
    // Not for each packet: they are 50 us apart, and all took less than a millisecond.
    assert!(asked.notifications_sent < asked.marks_seen / 5);
    let windows = near.paths().next().unwrap().windows;
    assert!(windows.iter().all(|&window| window < 64), "{windows:?}");
}

#[test]
fn a_silent_peer_is_given_up_as_late_as_by_the_attributes() {
    let given_up = |recovery| {
        let mut wire = Wire::with(&Setup {
            seed: 1,
            room: WIDE,
            path_mtu: [PathMtu::Bytes1024; 2],
            recovery,
        });
        let (left, right, _) = connect(&mut wire);
        // A round trip is known.
        let write = SendOperation::RdmaWrite(right.remote(0));
        left.send(&mut wire, write, 0, 100);
        wire.run_until_idle();
        assert_eq!(left.polled(&mut wire).len(), 1);
        wire.fate = Box::new(|_, _| Copies::None);
        let begun = wire.now();
        left.send(&mut wire, write, 0, 100);
        loop {
            let polled = left.polled(&mut wire);
            if let [(_, result)] = polled[..] {
                assert!(result.is_err());
                return wire.now().since(begun);
            }
            assert!(wire.step());
        }
    };
    let expected = given_up(Recovery::AsAttributes);
    let measured = given_up(Recovery::Measured);
    assert_eq!(measured, expected);
}
