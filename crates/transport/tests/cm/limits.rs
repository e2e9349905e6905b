//! What a manager keeps, how much of it, and that nothing of it stays.

use crate::wire::{SERVICE, Wire, accept_parameters, connect_parameters, rejected};
use legato_base::{Duration, Time};
use legato_transport::QueuePairNumber;
use legato_transport::cm::{
    ConnectionState, Event, ManagerCounts, ManagerError, Parameters, RejectParameters, RejectReason,
};

#[test]
fn half_open_requests_are_bounded() {
    let parameters = Parameters {
        half_open_max: 3,
        ..Parameters::default()
    };
    let mut wire = Wire::with(2, 1, parameters);
    for number in 100..105 {
        wire.connect(0, 1, number);
    }
    wire.settle();
    assert_eq!(wire.nodes[1].manager.counts().half_open, 3);
    assert_eq!(wire.nodes[1].manager.counters().refused_for_resources, 2);
    let no_resources = |event: &&Event| {
        rejected(event).is_some_and(|(_, reason)| reason == RejectReason::NO_RESOURCES)
    };
    assert_eq!(wire.events(0).iter().filter(no_resources).count(), 2);
    // Nobody decides: all ends by itself.
    wire.finish();
    wire.assert_idle();
    assert_eq!(wire.events(1).len(), 6);
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let mut wire = Wire::new(2, 1);
    let (active, passive) = wire.establish((0, 100), (1, 200));
    let now = wire.now;
    let manager = &mut wire.nodes[0].manager;
    let before = manager.counts();
    let established = ManagerError::InvalidState(ConnectionState::Established);
    let accept = accept_parameters(300);
    assert_eq!(manager.accept(active, &accept, now), Err(established));
    let reject = RejectParameters::new(RejectReason::CONSUMER);
    assert_eq!(manager.reject(active, &reject, now), Err(established));
    let used = ManagerError::QueuePairInUse(QueuePairNumber::new(100));
    assert_eq!(manager.connect(&connect_parameters(1, 100), now), Err(used));
    for number in [0, 1, 0xFF_FFFF] {
        let reserved = ManagerError::ReservedQueuePair(QueuePairNumber::new(number));
        assert_eq!(
            manager.connect(&connect_parameters(1, number), now),
            Err(reserved)
        );
    }
    assert_eq!(
        manager.listen(SERVICE),
        Err(ManagerError::ServiceInUse(SERVICE))
    );
    let unknown = Err(ManagerError::UnknownConnection);
    assert_eq!(manager.disconnect(passive, now), unknown);
    assert_eq!(manager.counts(), before);
    assert_eq!(manager.poll_event(), None);
    assert_eq!(manager.poll_transmit(), None);
}

#[test]
fn a_name_that_has_ended_names_nothing_afterwards() {
    let parameters = Parameters {
        connections_max: 1,
        ..Parameters::default()
    };
    let mut wire = Wire::with(2, 1, parameters);
    let mut ended = Vec::new();
    for _ in 0..100 {
        let (active, _) = wire.establish((0, 100), (1, 200));
        let full = wire.nodes[0]
            .manager
            .connect(&connect_parameters(1, 101), wire.now);
        assert_eq!(full, Err(ManagerError::TooManyConnections(1)));
        for &old in &ended {
            let unknown = Err(ManagerError::UnknownConnection);
            assert_eq!(wire.nodes[0].manager.disconnect(old, wire.now), unknown);
            assert_eq!(wire.nodes[0].manager.state(old), None);
        }
        wire.disconnect(0, active);
        wire.finish();
        wire.events(0);
        wire.events(1);
        ended.push(active);
    }
}

#[test]
fn requests_that_wait_are_rejected_when_listening_ends() {
    let mut wire = Wire::new(2, 1);
    let id = wire.connect(0, 1, 100);
    wire.settle();
    wire.requested(1);
    wire.nodes[1].manager.stop_listening(SERVICE, wire.now);
    wire.collect(1);
    wire.settle();
    let reason = RejectReason::INVALID_SERVICE_ID;
    assert_eq!(rejected(&wire.events(0)[0]), Some((id, reason)));
    assert_eq!(wire.events(1), []);
    wire.finish();
    wire.assert_idle();
}

#[test]
fn when_the_nic_is_gone_everything_ends_with_an_event() {
    let mut wire = Wire::new(2, 1);
    let (established, _) = wire.establish((0, 100), (1, 200));
    let (ending, _) = wire.establish((0, 101), (1, 201));
    let (ended, _) = wire.establish((0, 102), (1, 202));
    wire.disconnect(0, ended);
    wire.settle();
    wire.lose(|_, _| true);
    wire.disconnect(0, ending);
    let asking = wire.connect(0, 1, 103);
    wire.heal();
    wire.connect(1, 0, 203);
    wire.settle();
    let events = wire.events(0);
    let Some(Event::Requested {
        connection: asked, ..
    }) = events.last()
    else {
        panic!("{events:?}");
    };
    let asked = *asked;

    let manager = &mut wire.nodes[0].manager;
    manager.remove_device();
    assert_eq!(manager.counts(), ManagerCounts::default());
    assert_eq!(
        manager.connect(&connect_parameters(1, 100), Time::ZERO),
        Err(ManagerError::DeviceRemoved)
    );
    assert_eq!(wire.collect(0), 0);
    let events = wire.events(0);
    let ends = |id| {
        let of = |event: &&Event| **event == Event::DeviceRemoved { connection: id };
        let exits = |event: &&Event| matches!(event, Event::TimeWaitExit { connection, .. } if *connection == id);
        (
            events.iter().filter(of).count(),
            events.iter().filter(exits).count(),
        )
    };
    assert_eq!(ends(established), (1, 1));
    assert_eq!(ends(ending), (1, 1));
    assert_eq!(ends(ended), (0, 1));
    assert_eq!(ends(asking), (1, 1));
    assert_eq!(ends(asked), (1, 0));
    assert_eq!(events.len(), 8);
}

/// V-24 at the level of messages.
#[test]
fn v_24_ten_thousand_connections_leave_nothing() {
    let mut wire = Wire::new(2, 1);
    for cycle in 0..10_000_u32 {
        let (from, to) = if cycle % 2 == 0 { (0, 1) } else { (1, 0) };
        let (active, passive) = wire.establish((from, 100), (to, 200));
        if cycle % 3 == 0 {
            wire.disconnect(from, active);
        } else {
            wire.disconnect(to, passive);
        }
        wire.run(Duration::from_millis(600));
        assert_eq!(wire.events(0).len() + wire.events(1).len(), 4, "{cycle}");
        wire.assert_idle();
    }
    for node in &wire.nodes {
        let counters = node.manager.counters();
        assert_eq!(counters.retransmissions + counters.unexpected, 0);
    }
}
