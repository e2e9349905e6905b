//! Connections made and refused, message by message.

use crate::wire::{Kind, Wire, accept_parameters, connect_parameters, gid, rejected};
use legato_base::Duration;
use legato_transport::cm::{
    ConnectionState, DisconnectCause, Event, Parameters, PrivateData, RejectParameters,
    RejectReason, ServiceId,
};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};

#[test]
fn v_22_a_connection_is_made_and_ended() {
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    assert_eq!(wire.kinds(), [Kind::Req, Kind::Rep, Kind::Rtu]);
    wire.disconnect(0, active);
    wire.settle();
    assert_eq!(wire.kinds(), [Kind::Dreq, Kind::Drep]);
    let disconnected = |connection, cause| Event::Disconnected { connection, cause };
    let acknowledged = DisconnectCause::Local { acknowledged: true };
    assert_eq!(wire.events(0), [disconnected(active, acknowledged)]);
    assert_eq!(
        wire.events(1),
        [disconnected(passive, DisconnectCause::Peer)]
    );
    for (node, number) in [(0, 100), (1, 200)] {
        let queue_pair = QueuePairNumber::new(number);
        assert!(!wire.nodes[node].manager.is_free(queue_pair));
    }
    wire.run(Parameters::default().time_wait);
    for (node, connection, number) in [(0, active, 100), (1, passive, 200)] {
        let queue_pair = QueuePairNumber::new(number);
        assert_eq!(
            wire.events(node),
            [Event::TimeWaitExit {
                connection,
                queue_pair
            }]
        );
        assert!(wire.nodes[node].manager.is_free(queue_pair));
    }
    wire.assert_idle();
}

#[test]
fn both_sides_learn_what_the_other_has() {
    let mut wire = Wire::new(2, 1);
    let asked = connect_parameters(1, 100);
    wire.nodes[0].manager.connect(&asked, wire.now).unwrap();
    wire.collect(0);
    wire.settle();
    let events = wire.events(1);
    let [
        Event::Requested {
            connection,
            peer,
            request,
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!(*peer, gid(0));
    assert_eq!(request.queue_pair, asked.queue_pair);
    assert_eq!(request.starting_sequence, asked.starting_sequence);
    assert_eq!(request.path_mtu, asked.path_mtu);
    let mut answer = accept_parameters(200);
    answer.private_data = PrivateData::from_slice(b"welcome").unwrap();
    wire.nodes[1]
        .manager
        .accept(*connection, &answer, wire.now)
        .unwrap();
    wire.collect(1);
    wire.settle();
    let events = wire.events(0);
    let [
        Event::Established {
            reply: Some(reply), ..
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!(reply.queue_pair, answer.queue_pair);
    assert_eq!(reply.starting_sequence, answer.starting_sequence);
    assert_eq!(reply.private_data, answer.private_data);
}

#[test]
fn v_22_a_service_that_nobody_offers_is_rejected_with_8() {
    let mut wire = Wire::new(2, 1);
    let mut parameters = connect_parameters(1, 100);
    parameters.service = ServiceId::tcp(9999);
    let id = wire.nodes[0]
        .manager
        .connect(&parameters, wire.now)
        .unwrap();
    wire.collect(0);
    wire.settle();
    assert_eq!(wire.kinds(), [Kind::Req, Kind::Rej(8)]);
    let events = wire.events(0);
    let reason = RejectReason::INVALID_SERVICE_ID;
    assert_eq!(rejected(&events[0]), Some((id, reason)));
    assert!(matches!(events[1..], [Event::TimeWaitExit { .. }]));
    wire.assert_idle();
}

#[test]
fn v_22_a_queue_pair_that_is_connected_already_is_rejected_with_10_and_the_old_one_ended() {
    let mut wire = Wire::new(2, 1);
    let (_, old) = wire.establish((0, 100), (1, 200));
    wire.log.clear();
    wire.restart(0, 2);
    let again = wire.connect(0, 1, 100);
    wire.settle();
    assert_eq!(
        wire.kinds(),
        [Kind::Req, Kind::Rej(10), Kind::Dreq, Kind::Drep]
    );
    let reason = RejectReason::STALE_CONNECTION;
    assert_eq!(rejected(&wire.events(0)[0]), Some((again, reason)));
    let cause = DisconnectCause::Stale;
    assert_eq!(
        wire.events(1),
        [Event::Disconnected {
            connection: old,
            cause
        }]
    );
    wire.finish();
    wire.assert_idle();
}

#[test]
fn v_27_a_peer_that_returns_with_the_same_queue_pair_is_connected_within_a_second() {
    for seed in 0..50 {
        let mut wire = Wire::new(2, seed);
        let (_, old) = wire.establish((0, 100), (1, 200));
        let begin = wire.now;
        // With the same names too, for even seeds; but it begins to send somewhere else.
        let first = seed * 31;
        wire.restart(0, if seed % 2 == 0 { first } else { first + 7 });
        let mut parameters = connect_parameters(1, 100);
        parameters.starting_sequence = PacketSequenceNumber::new(5);
        let again = wire.nodes[0]
            .manager
            .connect(&parameters, wire.now)
            .unwrap();
        wire.collect(0);
        wire.settle();
        let events = wire.events(0);
        let reason = RejectReason::STALE_CONNECTION;
        assert_eq!(rejected(&events[0]), Some((again, reason)), "{seed}");
        let events = wire.events(1);
        assert!(
            matches!(events.as_slice(), [Event::Disconnected { connection, cause: DisconnectCause::Stale }] if *connection == old),
            "{events:?}"
        );
        wire.establish((0, 100), (1, 201));
        assert!(wire.now.since(begin) < Duration::from_secs(1));
        // The old connection's queue pair is still waiting.
        assert!(!wire.nodes[1].manager.is_free(QueuePairNumber::new(200)));
        assert_eq!(wire.nodes[1].manager.counters().stale, 1);
    }
}

#[test]
fn v_27_the_answering_side_returns_with_the_same_queue_pair() {
    let mut wire = Wire::new(2, 1);
    let (old, _) = wire.establish((0, 100), (1, 200));
    wire.restart(1, 2);
    let new = wire.connect(0, 1, 101);
    wire.settle();
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.settle();
    let events = wire.events(0);
    let reason = RejectReason::STALE_CONNECTION;
    assert_eq!(rejected(&events[0]), Some((new, reason)));
    assert!(events.contains(&Event::Disconnected {
        connection: old,
        cause: DisconnectCause::Stale
    }));
    assert_eq!(
        rejected(&wire.events(1)[0]),
        Some((passive, RejectReason::STALE_CONNECTION))
    );
    wire.run(Duration::from_millis(600));
    wire.events(0);
    wire.events(1);
    wire.establish((0, 101), (1, 200));
}

#[test]
fn somebody_else_cannot_end_a_connection_as_stale() {
    let mut wire = Wire::new(3, 1);
    let (_, passive) = wire.establish((0, 100), (1, 200));
    // Node 2 claims to be node 0's NIC.
    let mut spy = crate::wire::manager(0, 9, Parameters::default());
    spy.connect(&connect_parameters(1, 100), wire.now).unwrap();
    let mad = spy.poll_transmit().unwrap().mad;
    wire.deliver(gid(2), 1, &mad);
    wire.settle();
    assert_eq!(wire.events(1), []);
    let state = wire.nodes[1].manager.state(passive);
    assert_eq!(state, Some(ConnectionState::Established));
    assert_eq!(wire.kinds()[3..], [Kind::Rej(12)]);
}

#[test]
fn a_rejection_carries_its_reason_and_data_and_is_repeated() {
    let mut wire = Wire::new(2, 1);
    let id = wire.connect(0, 1, 100);
    wire.settle();
    let request = wire.requested(1);
    let mut parameters = RejectParameters::new(RejectReason::CONSUMER);
    parameters.private_data = PrivateData::from_slice(b"full").unwrap();
    // The first is lost; the request comes again, and is not shown to the user again.
    let mut left = 1;
    wire.lose(move |kind, _| matches!(kind, Kind::Rej(_)) && std::mem::take(&mut left) == 1);
    wire.nodes[1]
        .manager
        .reject(request, &parameters, wire.now)
        .unwrap();
    wire.collect(1);
    wire.run(Duration::from_secs(5));
    assert_eq!(
        wire.kinds(),
        [Kind::Req, Kind::Rej(28), Kind::Req, Kind::Rej(28)]
    );
    assert_eq!(wire.events(1), []);
    let events = wire.events(0);
    let Event::Rejected {
        connection,
        reason,
        private_data,
        ..
    } = &events[0]
    else {
        panic!("{events:?}");
    };
    assert_eq!((*connection, *reason), (id, RejectReason::CONSUMER));
    assert_eq!(**private_data, parameters.private_data);
    wire.finish();
    wire.assert_idle();
}

#[test]
fn a_peer_that_never_answers_is_unreachable_after_sixteen_tries() {
    let mut wire = Wire::new(2, 1);
    wire.lose(|_, _| true);
    let begin = wire.now;
    let id = wire.connect(0, 1, 100);
    wire.finish();
    assert_eq!(wire.now.since(begin).as_millis(), 16 * 4_608);
    let kinds = wire.kinds();
    assert_eq!(kinds[..16], [Kind::Req; 16]);
    assert_eq!(kinds[16..], [Kind::Rej(4)]);
    let queue_pair = QueuePairNumber::new(100);
    assert_eq!(
        wire.events(0),
        [
            Event::Unreachable { connection: id },
            Event::TimeWaitExit {
                connection: id,
                queue_pair
            }
        ]
    );
    wire.assert_idle();
}
