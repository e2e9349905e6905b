//! Disconnects that are lost, repeated, cross each other, or are about nothing.

use crate::wire::{Kind, LOCAL, Wire, count, disconnected, exit, gid, lose_first};
use legato_base::Duration;
use legato_transport::QueuePairNumber;
use legato_transport::cm::{
    CommunicationId, ConnectionState, DisconnectCause, DisconnectRequest, Message, MessageBody,
    PrivateData, TransactionId,
};

#[test]
fn v_34_a_disconnect_request_is_lost() {
    for lost in 1..16 {
        let mut wire = Wire::new(2, 1);
        let (active, passive) = wire.establish((0, 100), (1, 200));
        lose_first(&mut wire, Kind::Dreq, lost);
        wire.disconnect(0, active);
        wire.finish();
        assert_eq!(count(&wire, Kind::Dreq), lost as usize + 1);
        assert_eq!(count(&wire, Kind::Drep), 1);
        assert_eq!(
            wire.events(0),
            [disconnected(active, LOCAL(true)), exit(active, 100)]
        );
        assert_eq!(
            wire.events(1),
            [
                disconnected(passive, DisconnectCause::Peer),
                exit(passive, 200)
            ]
        );
        wire.assert_idle();
    }
}

#[test]
fn v_34_all_disconnect_requests_are_lost() {
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    let begin = wire.now;
    wire.lose(|_, _| true);
    wire.disconnect(0, active);
    wire.run(Duration::from_millis(16 * 4_608 - 1));
    assert_eq!(wire.events(0), []);
    wire.finish();
    assert_eq!(wire.now.since(begin).as_millis(), 16 * 4_608 + 536);
    assert_eq!(
        wire.events(0),
        [disconnected(active, LOCAL(false)), exit(active, 100)]
    );
    // The other side never heard of it; its own disconnect is answered by whoever is there.
    wire.heal();
    wire.disconnect(1, passive);
    wire.finish();
    assert_eq!(
        wire.events(1),
        [disconnected(passive, LOCAL(true)), exit(passive, 200)]
    );
    wire.assert_idle();
}

#[test]
fn v_34_a_disconnect_reply_is_lost() {
    // The repeated request comes when the other side has forgotten the connection.
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    lose_first(&mut wire, Kind::Drep, 3);
    wire.disconnect(0, active);
    wire.finish();
    assert_eq!((count(&wire, Kind::Dreq), count(&wire, Kind::Drep)), (4, 4));
    assert_eq!(
        wire.events(0),
        [disconnected(active, LOCAL(true)), exit(active, 100)]
    );
    assert_eq!(
        wire.events(1),
        [
            disconnected(passive, DisconnectCause::Peer),
            exit(passive, 200)
        ]
    );
    wire.assert_idle();
}

#[test]
fn v_34_a_disconnect_request_is_repeated_in_time_wait() {
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    // Each message comes twice.
    let twice = [Duration::from_millis(1), Duration::from_millis(5)];
    wire.rule = Box::new(move |_| twice.to_vec());
    wire.disconnect(0, active);
    wire.settle();
    let state = wire.nodes[1].manager.state(passive);
    assert_eq!(state, Some(ConnectionState::TimeWait));
    assert_eq!((count(&wire, Kind::Dreq), count(&wire, Kind::Drep)), (1, 2));
    wire.finish();
    assert_eq!((wire.events(0).len(), wire.events(1).len()), (2, 2));
    wire.assert_idle();
}

#[test]
fn v_34_both_sides_disconnect_at_once() {
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    wire.disconnect(0, active);
    wire.disconnect(1, passive);
    wire.finish();
    assert_eq!((count(&wire, Kind::Dreq), count(&wire, Kind::Drep)), (2, 2));
    assert_eq!(
        wire.events(0),
        [disconnected(active, LOCAL(true)), exit(active, 100)]
    );
    assert_eq!(
        wire.events(1),
        [disconnected(passive, LOCAL(true)), exit(passive, 200)]
    );
    wire.assert_idle();
}

#[test]
fn v_34_a_disconnect_request_for_an_unknown_connection_is_answered() {
    let mut wire = Wire::new(2, 1);
    let request = DisconnectRequest {
        communication_id: CommunicationId(5),
        remote_communication_id: CommunicationId(6),
        remote_queue_pair: QueuePairNumber::new(200),
        private_data: PrivateData::EMPTY,
    };
    let transaction = TransactionId(77);
    let body = MessageBody::DisconnectRequest(request);
    wire.nodes[1]
        .manager
        .handle_message(gid(0), &Message { transaction, body }.encode(), wire.now);
    let answer = wire.nodes[1].manager.poll_transmit().unwrap();
    assert_eq!(answer.destination, gid(0));
    let message = Message::parse(&answer.mad).unwrap();
    assert_eq!(message.transaction, transaction);
    let MessageBody::DisconnectReply(reply) = message.body else {
        panic!("{message:?}");
    };
    assert_eq!(reply.communication_id, CommunicationId(6));
    assert_eq!(reply.remote_communication_id, CommunicationId(5));
    wire.assert_idle();
}

#[test]
fn v_34_the_queue_pair_is_not_free_before_the_time_wait_ends() {
    let mut wire = Wire::new(2, 1);
    let (active, _) = wire.establish((0, 100), (1, 200));
    wire.disconnect(0, active);
    wire.run(Duration::from_millis(536));
    let queue_pair = QueuePairNumber::new(100);
    let parameters = crate::wire::connect_parameters(1, 100);
    assert!(!wire.nodes[0].manager.is_free(queue_pair));
    assert!(
        wire.nodes[0]
            .manager
            .connect(&parameters, wire.now)
            .is_err()
    );
    wire.run(Duration::from_millis(5));
    assert!(wire.nodes[0].manager.is_free(queue_pair));
    wire.events(0);
    wire.events(1);
    wire.establish((0, 100), (1, 200));
}
