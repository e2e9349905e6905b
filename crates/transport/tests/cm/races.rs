//! Messages on the way to a connection that are lost, repeated, late, or cross each other.

use crate::wire::{Kind, LOCAL, Wire, count, disconnected, exit, gid, kind, lose_first, rejected};
use legato_base::Duration;
use legato_transport::cm::{
    ConnectionState, DisconnectCause, Event, Mad, Parameters, RejectReason,
};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};

#[test]
fn a_request_and_a_reply_are_lost_and_repeated() {
    for what in [Kind::Req, Kind::Rep] {
        let mut wire = Wire::new(2, 1);
        lose_first(&mut wire, what, 2);
        let active = wire.connect(0, 1, 100);
        let mut passive = None;
        while wire.nodes[0].events.is_empty() {
            wire.run(Duration::from_millis(100));
            if let Some(Event::Requested { connection, .. }) = wire.events(1).first() {
                assert_eq!(passive.replace(*connection), None, "asked twice");
                wire.accept(1, *connection, 200);
            }
        }
        wire.settle();
        for (node, id) in [(0, active), (1, passive.unwrap())] {
            let state = wire.nodes[node].manager.state(id);
            assert_eq!(state, Some(ConnectionState::Established), "{what:?}");
        }
    }
}

#[test]
fn a_lost_ready_is_repeated_for_a_repeated_reply() {
    let mut wire = Wire::new(2, 1);
    lose_first(&mut wire, Kind::Rtu, 1);
    wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.run(Duration::from_secs(5));
    assert_eq!(
        wire.kinds(),
        [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rep, Kind::Rtu]
    );
    assert_eq!(wire.events(0).len(), 1);
    assert_eq!(wire.events(1).len(), 1);
    assert_eq!(wire.nodes[0].manager.counters().duplicates, 1);
}

#[test]
fn a_request_that_comes_again_gets_the_same_reply() {
    let mut wire = Wire::new(2, 1);
    let mut replies = 0;
    wire.rule = Box::new(move |flight| match kind(&flight.mad) {
        Kind::Req => vec![Duration::from_millis(1), Duration::from_millis(30)],
        Kind::Rep if replies == 0 => {
            replies = 1;
            Vec::new()
        }
        _ => vec![crate::wire::LATENCY],
    });
    wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.settle();
    assert_eq!(wire.kinds(), [Kind::Req, Kind::Rep, Kind::Rep, Kind::Rtu]);
    assert_eq!((wire.events(0).len(), wire.events(1).len()), (1, 1));
    // What is repeated is not counted as a try.
    assert_eq!(wire.nodes[1].manager.counters().retransmissions, 0);
}

#[test]
fn a_rejection_of_a_request_that_was_accepted_since_is_late() {
    let parameters = Parameters {
        half_open_max: 1,
        ..Parameters::default()
    };
    let mut wire = Wire::with(3, 1, parameters);
    let other = wire.connect(2, 1, 300);
    wire.settle();
    wire.requested(1);
    // The request comes twice. It is refused for want of room first, which takes long.
    wire.rule = Box::new(move |flight| match kind(&flight.mad) {
        Kind::Req => vec![Duration::from_millis(1), Duration::from_millis(30)],
        Kind::Rej(3) => vec![Duration::from_millis(200)],
        _ => vec![crate::wire::LATENCY],
    });
    let active = wire.connect(0, 1, 100);
    wire.run(Duration::from_millis(10));
    wire.disconnect(2, other);
    wire.run(Duration::from_millis(10));
    wire.events(1);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.run(Duration::from_secs(1));
    assert!(wire.log.iter().any(|&(_, _, kind)| kind == Kind::Rej(3)));
    for (node, id) in [(0, active), (1, passive)] {
        let state = wire.nodes[node].manager.state(id);
        assert_eq!(state, Some(ConnectionState::Established));
    }
}

#[test]
fn v_27_a_name_used_again_belongs_to_its_new_connection() {
    let mut wire = Wire::new(2, 1);
    wire.establish((0, 100), (1, 200));
    wire.lose(|kind, _| kind == Kind::Dreq);
    let ask = |wire: &mut Wire, sequence| {
        wire.restart(0, 31);
        let mut parameters = crate::wire::connect_parameters(1, 100);
        parameters.starting_sequence = PacketSequenceNumber::new(sequence);
        let asked = wire.nodes[0].manager.connect(&parameters, wire.now);
        wire.collect(0);
        wire.settle();
        asked.unwrap()
    };
    let first = ask(&mut wire, 5);
    assert_eq!(
        rejected(&wire.events(0)[0]),
        Some((first, RejectReason::STALE_CONNECTION))
    );
    wire.events(1);
    let second = ask(&mut wire, 6);
    assert_eq!(second, first);
    wire.requested(1);
    // The old connection, which had the same name, goes away.
    wire.lose(|kind, _| kind == Kind::Mra);
    wire.run(Duration::from_secs(6));
    assert!(matches!(
        wire.events(1).as_slice(),
        [Event::TimeWaitExit { .. }]
    ));
    // The request comes again, and is known.
    wire.log.clear();
    wire.run(Duration::from_secs(20));
    assert!(wire.kinds().contains(&Kind::Mra));
    assert!(
        !wire
            .events(1)
            .iter()
            .any(|event| matches!(event, Event::Requested { .. }))
    );
}

#[test]
fn data_establishes_the_answering_side_once() {
    let mut wire = Wire::new(2, 1);
    wire.lose(|kind, _| kind == Kind::Rtu);
    wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.settle();
    assert_eq!(wire.events(1), []);
    wire.heal();
    for _ in 0..2 {
        wire.nodes[1]
            .manager
            .data_arrived(QueuePairNumber::new(200));
        wire.nodes[1]
            .manager
            .data_arrived(QueuePairNumber::new(300));
    }
    wire.collect(1);
    wire.run(Duration::from_secs(100));
    assert_eq!(
        wire.events(1),
        [Event::Established {
            connection: passive,
            reply: None
        }]
    );
    // The reply is not repeated any more.
    assert_eq!(count(&wire, Kind::Rep), 1);
}

#[test]
fn all_readies_are_lost_and_both_sides_say_that_it_failed() {
    let mut wire = Wire::new(2, 1);
    wire.lose(|kind, _| kind == Kind::Rtu);
    let active = wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.finish();
    assert_eq!(count(&wire, Kind::Rep), 2);
    let events = wire.events(0);
    let cause = DisconnectCause::Rejected(RejectReason::TIMEOUT);
    assert!(matches!(events[0], Event::Established { .. }));
    assert_eq!(
        events[1..],
        [disconnected(active, cause), exit(active, 100)]
    );
    assert_eq!(
        wire.events(1),
        [
            Event::Unreachable {
                connection: passive
            },
            exit(passive, 200)
        ]
    );
    wire.assert_idle();
}

#[test]
fn a_user_who_takes_time_holds_the_peer_off() {
    let mut wire = Wire::new(2, 1);
    let active = wire.connect(0, 1, 100);
    wire.run(Duration::from_secs(60));
    // The second request is answered with an acknowledgment, and there is no third.
    assert_eq!(wire.kinds(), [Kind::Req, Kind::Req, Kind::Mra]);
    let state = wire.nodes[0].manager.state(active);
    assert_eq!(state, Some(ConnectionState::RequestAcknowledged));
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.settle();
    assert!(matches!(
        wire.events(0).as_slice(),
        [Event::Established { .. }]
    ));
}

#[test]
fn a_user_who_never_decides_ends_both_sides() {
    let mut wire = Wire::new(2, 1);
    let active = wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.finish();
    let reason = RejectReason::TIMEOUT;
    assert_eq!(rejected(&wire.events(0)[0]), Some((active, reason)));
    let events = wire.events(1);
    assert_eq!(rejected(&events[0]), Some((passive, reason)));
    assert_eq!(events.len(), 1);
    wire.assert_idle();
}

#[test]
fn acknowledgments_extend_a_wait_once_for_each_try() {
    let mut wire = Wire::new(2, 1);
    wire.connect(0, 1, 100);
    wire.run(Duration::from_secs(5));
    wire.requested(1);
    // The acknowledgment of the second request arrives again and again.
    wire.lose(|_, _| true);
    let deadline = wire.nodes[0].manager.next_deadline();
    let request = wire.nodes[1].manager.counters().duplicates;
    assert_eq!(request, 1);
    let unexpected = wire.nodes[0].manager.counters().unexpected;
    for _ in 0..10 {
        let mad = acknowledgment(&wire);
        wire.deliver(gid(1), 0, &mad);
        wire.now = wire.now + Duration::from_millis(1);
    }
    assert_eq!(wire.nodes[0].manager.next_deadline(), deadline);
    assert_eq!(wire.nodes[0].manager.counters().unexpected, unexpected + 10);
}

/// Of the only request of node 0.
fn acknowledgment(wire: &Wire) -> Mad {
    let mut peer = crate::wire::manager(1, 5, Parameters::default());
    let mut asker = crate::wire::manager(0, 31, Parameters::default());
    let parameters = crate::wire::connect_parameters(1, 100);
    // The same seed as node 0's, so the same names.
    asker.connect(&parameters, wire.now).unwrap();
    let mad = asker.poll_transmit().unwrap().mad;
    peer.handle_message(gid(0), &mad, wire.now);
    peer.handle_message(gid(0), &mad, wire.now);
    let mad = peer.poll_transmit().unwrap().mad;
    assert_eq!(kind(&mad), Kind::Mra);
    mad
}

#[test]
fn a_request_given_up_is_withdrawn_at_the_peer() {
    let mut wire = Wire::new(2, 1);
    let active = wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.disconnect(0, active);
    wire.settle();
    assert_eq!(wire.kinds(), [Kind::Req, Kind::Rej(4)]);
    let events = wire.events(1);
    assert_eq!(rejected(&events[0]), Some((passive, RejectReason::TIMEOUT)));
    assert_eq!(
        wire.events(0),
        [disconnected(active, LOCAL(false)), exit(active, 100)]
    );
    wire.assert_idle();
}

#[test]
fn a_reply_for_a_request_given_up_is_rejected() {
    let mut wire = Wire::new(2, 1);
    let active = wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    // The withdrawal is lost.
    wire.lose(|kind, _| kind == Kind::Rej(4));
    wire.disconnect(0, active);
    wire.accept(1, passive, 200);
    wire.settle();
    assert_eq!(wire.kinds()[1..], [Kind::Rej(4), Kind::Rep, Kind::Rej(6)]);
    let reason = RejectReason::INVALID_COMMUNICATION_ID;
    assert_eq!(rejected(&wire.events(1)[0]), Some((passive, reason)));
    wire.finish();
    wire.assert_idle();
}

#[test]
fn a_reply_taken_back_ends_the_asking_side() {
    let mut wire = Wire::new(2, 1);
    let active = wire.connect(0, 1, 100);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.disconnect(1, passive);
    wire.settle();
    assert_eq!(
        wire.kinds(),
        [Kind::Req, Kind::Rep, Kind::Rej(28), Kind::Rtu, Kind::Rej(6)]
    );
    let events = wire.events(0);
    let cause = DisconnectCause::Rejected(RejectReason::CONSUMER);
    assert!(matches!(events[0], Event::Established { .. }));
    assert_eq!(events[1..], [disconnected(active, cause)]);
    wire.finish();
    wire.assert_idle();
}

#[test]
fn simultaneous_connects_are_two_connections() {
    let mut wire = Wire::new(2, 1);
    let ids = [wire.connect(0, 1, 100), wire.connect(1, 0, 200)];
    wire.settle();
    let asked = [wire.requested(0), wire.requested(1)];
    wire.accept(0, asked[0], 101);
    wire.accept(1, asked[1], 201);
    wire.settle();
    for node in 0..2 {
        assert_eq!(wire.events(node).len(), 2);
        for id in [ids[node], asked[node]] {
            let state = wire.nodes[node].manager.state(id);
            assert_eq!(state, Some(ConnectionState::Established));
        }
        // A queue pair that asks cannot answer.
        assert_eq!(wire.nodes[node].manager.counts().queue_pairs, 2);
    }
}

#[test]
fn messages_of_somebody_else_are_dropped() {
    let mut wire = Wire::new(3, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    // What the two say to each other when they part, from the wrong address.
    let mut taken = Vec::new();
    wire.lose(|_, _| true);
    wire.nodes[0].manager.disconnect(active, wire.now).unwrap();
    while let Some(transmit) = wire.nodes[0].manager.poll_transmit() {
        taken.push(transmit.mad);
    }
    assert_eq!(taken.len(), 1);
    wire.deliver(gid(2), 1, &taken[0]);
    let manager = &wire.nodes[1].manager;
    assert_eq!(manager.state(passive), Some(ConnectionState::Established));
    assert_eq!(manager.counters().foreign, 1);
    assert_eq!(wire.nodes[1].events, []);
}
