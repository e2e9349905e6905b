//! A call that is sent again is not executed again.

use super::machine::{address, answer};
use super::world::{CREDITS, MILLISECOND, SECOND, World, config, network, seconds};
use legato_base::Duration;
use legato_base::wire::session::{
    SessionClient, SessionReplyHeader, SessionRequestHeader, SessionStatus,
};
use legato_fabric::session::{
    CallKind, Session, SessionCause, SessionConfig, SessionServer, SessionServerConfig,
};
use legato_fabric::{Effect, Fabric, FabricConfig, FabricEvent};
use legato_sim::provider::{Personality, SimNetworkConfig};

const KINDS: [CallKind; 2] = [CallKind::Once, CallKind::Idempotent];

/// Connected, and everything that the second machine sends from now on is lost: calls arrive there,
/// and neither their acknowledgement nor their reply comes back.
fn deafened(seed: u64, personality: Personality) -> World {
    let mut world = World::star(seed, personality, &["caller", "server"]);
    world.run_until_up();
    world.cut(1, 0);
    world
}

/// F-12, P-67.
#[test]
fn f_12_calls_under_way_when_the_link_is_cut_complete_after_it_returns() {
    for personality in Personality::ATTENTIVE {
        for seed in 0..8 {
            let mut world = World::star(seed, personality, &["caller", "server"]);
            world.run_until_up();
            let mut calls = Vec::new();
            for number in 0..20_u8 {
                let kind = KINDS[usize::from(number % 2)];
                calls.push((number, kind, world.call(&[number], kind, seconds(10))));
                if number == 8 {
                    // Some are on their way there, some are on their way back, some wait.
                    world.run_for(Duration::from_nanos(500 * seed));
                    world.cut_both(0, 1);
                }
            }
            world.run_for(seconds(2));
            world.heal();
            let ids: Vec<_> = calls.iter().map(|&(_, _, id)| id).collect();
            world.run_until_ended(0, seconds(5), &ids);
            let name = personality.name;
            for &(number, kind, id) in &calls {
                let (outcome, _) = &world.machines[0].ends[&id];
                assert_eq!(*outcome, Ok(answer(&[number])), "{name}, seed {seed}");
                let times = world.machines[1].times_executed(&[number]);
                assert!(
                    times == 1 || kind == CallKind::Idempotent,
                    "{name}: {times}"
                );
            }
            let epochs: Vec<u64> = world.machines[0].connections.iter().map(|c| c.1).collect();
            assert!(epochs.len() >= 2, "{name}: {epochs:?}");
            assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
            world.end();
        }
    }
}

/// L-24, P-64: the acknowledgement is lost, the call goes over another connection, and is delivered once.
#[test]
fn l_24_a_call_whose_reply_was_lost_gets_it_on_the_next_connection() {
    for personality in Personality::ALL {
        let mut world = deafened(1, personality);
        let call = world.call(b"once", CallKind::Once, seconds(10));
        world.run_until(SECOND, |world| world.machines[1].executed.len() == 1);
        world.run_until(seconds(5), |world| {
            world.machines[0].sessions[0].connection().is_none()
        });
        world.heal();
        world.run_until_ended(0, seconds(5), &[call]);
        let outcome = world.machines[0].ends[&call].0.clone();
        assert_eq!(outcome, Ok(answer(b"once")), "{}", personality.name);
        assert_eq!(world.machines[1].executed.len(), 1);
        assert_eq!(world.machines[1].server.counters().duplicates, 1);
        assert_eq!(world.machines[0].sessions[0].counters().calls_resent, 1);
        world.end();
    }
}

/// L-24, P-65: what has left the window may have been delivered, and is not delivered again.
#[test]
fn l_24_a_call_that_has_left_the_window_is_maybe_executed_and_never_twice() {
    for personality in Personality::ALL {
        let mut world = World::star(2, personality, &["caller", "server"]);
        let limits = SessionServerConfig::for_credits(CREDITS);
        world.machines[1].server = SessionServer::new(SessionServerConfig {
            window: 2,
            ..limits
        });
        world.run_until_up();
        world.cut(1, 0);
        let bodies: [&[u8]; 4] = [b"1", b"2", b"3", b"4"];
        let calls = bodies.map(|body| world.call(body, CallKind::Once, seconds(10)));
        world.run_until(SECOND, |world| world.machines[1].executed.len() == 4);
        world.run_until(seconds(5), |world| {
            world.machines[0].sessions[0].connection().is_none()
        });
        world.heal();
        world.run_until_ended(0, seconds(5), &calls);
        for (number, call) in calls.iter().enumerate() {
            match &world.machines[0].ends[call].0 {
                Ok(reply) => assert!(number >= 2 && *reply == answer(bodies[number])),
                Err(error) => {
                    assert!(number < 2);
                    let maybe = (SessionCause::Forgotten, Effect::Unknown);
                    assert_eq!((error.cause, error.effect), maybe);
                }
            }
            assert_eq!(world.machines[1].times_executed(bodies[number]), 1);
        }
        assert_eq!(world.machines[1].server.counters().calls_forgotten, 2);
        world.end();
    }
}

/// P-64: a call that is still being executed when it comes again is answered once, on the connection
/// that is there.
#[test]
fn l_24_a_call_that_comes_again_while_it_is_executed_waits_for_the_same_execution() {
    let mut world = World::star(3, Personality::IDEAL, &["caller", "server"]);
    world.machines[1].answers = false;
    world.run_until_up();
    let call = world.call(b"slow", CallKind::Once, seconds(20));
    world.run_until(SECOND, |world| world.machines[1].open.len() == 1);
    for round in 1..4 {
        let server = &mut world.machines[1];
        let connection = *server.accepted.last().unwrap();
        server.fabric.close(&mut server.nic, connection);
        world.run_until(seconds(5), |world| {
            world.machines[1].server.counters().duplicates == round
        });
        assert_eq!(world.machines[1].open.len(), 1);
    }
    world.machines[1].execute_all();
    world.run_until_ended(0, SECOND, &[call]);
    let outcome = world.machines[0].ends[&call].0.clone();
    assert_eq!(outcome, Ok(answer(b"slow")));
    world.end();
}

/// P-63: a peer that has started again does not know what its earlier life has done.
#[test]
fn l_24_a_call_that_an_earlier_life_of_the_peer_may_have_executed_is_not_sent_to_the_next() {
    for personality in Personality::ATTENTIVE {
        let mut world = deafened(4, personality);
        let calls = KINDS.map(|kind| world.call(&[kind as u8], kind, seconds(20)));
        world.run_until(SECOND, |world| world.machines[1].executed.len() == 2);
        world.restart(1, config());
        world.heal();
        world.run_until_ended(0, seconds(10), &calls);
        let error = world.machines[0].ends[&calls[0]].0.clone().unwrap_err();
        let restarted = (SessionCause::PeerRestarted, Effect::Unknown);
        assert_eq!((error.cause, error.effect), restarted);
        let outcome = world.machines[0].ends[&calls[1]].0.clone();
        assert_eq!(outcome, Ok(answer(&[CallKind::Idempotent as u8])));
        let executed = &world.machines[1].executed;
        assert_eq!(*executed, [vec![CallKind::Idempotent as u8]]);
        world.end();
    }
}

/// P-68: one that does not say which life it is may be any.
#[test]
fn l_24_a_peer_without_an_incarnation_gets_nothing_twice() {
    let mut world = World::new(5, network(Personality::IDEAL));
    world.start("caller", config());
    world.start("server", config());
    let server = &mut world.machines[1];
    server.fabric.shutdown(&mut server.nic).unwrap();
    let anonymous = FabricConfig {
        incarnation: 0,
        ..config()
    };
    server.fabric = Fabric::new(&mut server.nic, anonymous).unwrap();
    let listening = server.fabric.listen(&mut server.nic, &address("server"));
    listening.unwrap();
    world.session(0, 1, SessionConfig::default());
    world.run_until_up();
    world.cut(1, 0);
    let call = world.call(b"once", CallKind::Once, seconds(10));
    world.run_until(seconds(5), |world| {
        world.machines[0].sessions[0].connection().is_none()
    });
    world.heal();
    world.run_until_ended(0, seconds(5), &[call]);
    let error = world.machines[0].ends[&call].0.clone().unwrap_err();
    assert_eq!(error.cause, SessionCause::PeerRestarted);
    assert_eq!(world.machines[1].executed.len(), 1);
    // A fabric that is nobody has no sessions.
    let server = &world.machines[1];
    let nobody = Session::new(
        &server.fabric,
        0,
        address("caller"),
        SessionConfig::default(),
        0,
    );
    assert!(nobody.is_none());
    world.end();
}

/// P-65, P-69: a client that had to make room for another is not taken for a new one.
#[test]
fn l_24_a_client_that_was_evicted_gets_nothing_twice() {
    let mut world = World::star(6, Personality::IDEAL, &["first", "server", "second"]);
    world.machines[0].sessions.pop();
    let limits = SessionServerConfig::for_credits(CREDITS);
    world.machines[1].server = SessionServer::new(SessionServerConfig {
        clients_max: 1,
        ..limits
    });
    world.run_until_up();
    world.cut(1, 0);
    let lost = world.call(b"lost", CallKind::Once, seconds(60));
    // The server, too, gives the connection up, because nothing that it sends is acknowledged.
    world.run_until(seconds(10), |world| {
        let events = &world.machines[1].events;
        let ended = |event: &FabricEvent<_>| matches!(event, FabricEvent::Disconnected { .. });
        events.iter().any(ended)
    });
    world.cut(0, 1);
    world.session(2, 1, SessionConfig::default());
    let busy = world.call_on((2, 0), b"other", CallKind::Once, seconds(60));
    world.run_until_ended(2, seconds(30), &[busy]);
    assert!(world.machines[2].ends[&busy].0.is_ok());
    assert_eq!(world.machines[1].server.counters().clients_evicted, 1);
    // There is no room again while the second client is connected.
    let second = &mut world.machines[2];
    second.sessions[0].close(&mut second.fabric, &mut second.nic);
    world.run_for(SECOND);
    world.heal();
    world.run_until_ended(0, seconds(30), &[lost]);
    let error = world.machines[0].ends[&lost].0.clone().unwrap_err();
    let maybe = (SessionCause::Forgotten, Effect::Unknown);
    assert_eq!((error.cause, error.effect), maybe);
    assert_eq!(world.machines[1].times_executed(b"lost"), 1);
    let again = world.call(b"again", CallKind::Once, seconds(10));
    world.run_until_ended(0, seconds(20), &[again]);
    assert_eq!(world.machines[0].ends[&again].0, Ok(answer(b"again")));
    world.end();
}

/// P-69: a call of a client whose process has a connection may be on its way, so room is not made there.
#[test]
fn a_client_is_not_forgotten_while_its_process_has_a_connection() {
    let mut world = World::star(8, Personality::IDEAL, &["first", "server", "second"]);
    world.machines[0].sessions.pop();
    let limits = SessionServerConfig::for_credits(CREDITS);
    world.machines[1].server = SessionServer::new(SessionServerConfig {
        clients_max: 1,
        ..limits
    });
    world.session(2, 1, SessionConfig::default());
    let first = world.call(b"first", CallKind::Once, seconds(10));
    world.run_until_ended(0, SECOND, &[first]);
    assert_eq!(world.machines[0].ends[&first].0, Ok(answer(b"first")));
    let refused = world.call_on((2, 0), b"refused", CallKind::Once, seconds(10));
    world.run_until_ended(2, SECOND, &[refused]);
    let error = world.machines[2].ends[&refused].0.clone().unwrap_err();
    let busy = (SessionCause::PeerBusy, Effect::NotExecuted);
    assert_eq!((error.cause, error.effect), busy);
    assert_eq!(world.machines[1].server.counters().clients_evicted, 0);
    // Its connection has ended on both sides.
    let machine = &mut world.machines[0];
    machine.sessions[0].close(&mut machine.fabric, &mut machine.nic);
    world.run_for(SECOND + SECOND);
    let served = world.call_on((2, 0), b"served", CallKind::Once, seconds(10));
    world.run_until_ended(2, SECOND, &[served]);
    assert_eq!(world.machines[2].ends[&served].0, Ok(answer(b"served")));
    assert_eq!(world.machines[1].server.counters().clients_evicted, 1);
    assert_eq!(world.machines[1].times_executed(b"refused"), 0);
    world.end();
}

/// P-70: what is not of a session, or of another client than its connection, is refused and not executed.
#[test]
fn what_is_no_call_of_a_session_is_refused() {
    let mut world = World::new(7, SimNetworkConfig::default());
    world.start("caller", config());
    world.start("server", config());
    let deadline = world.in_time(SECOND);
    let caller = &mut world.machines[0];
    let connection = caller
        .fabric
        .connect(&mut caller.nic, &address("server"), &[], deadline)
        .unwrap();
    world.run_for(MILLISECOND);
    let foreign = SessionRequestHeader {
        client: SessionClient {
            incarnation: 4711,
            session: 0,
        },
        is_idempotent: false,
        sequence: 1,
        oldest: 1,
        opened: 1,
    };
    let mut newer = foreign.to_bytes().to_vec();
    newer[4] = 9;
    for body in [&b"?"[..], &foreign.to_bytes(), &newer] {
        let caller = &mut world.machines[0];
        let called = caller
            .fabric
            .call(&mut caller.nic, connection, body, deadline);
        called.unwrap();
    }
    world.run_for(MILLISECOND);
    let mut statuses = Vec::new();
    for event in world.machines[0].events.drain(..) {
        if let FabricEvent::Replied { outcome, .. } = event {
            let bytes = outcome.unwrap();
            let parsed = SessionReplyHeader::parse(&bytes);
            statuses.push(parsed.unwrap().0.status);
        }
    }
    let malformed = SessionStatus::Malformed;
    assert_eq!(statuses, [malformed, malformed, SessionStatus::Version]);
    assert_eq!(world.machines[1].server.counters().calls_malformed, 3);
    assert!(world.machines[1].executed.is_empty());
    world.end();
}
