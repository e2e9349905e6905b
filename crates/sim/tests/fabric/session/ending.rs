//! How calls end: one outcome each, in time, whatever happens to the connection and to others.

use super::machine::answer;
use super::world::{CREDITS, MILLISECOND, World, config, millis, network, seconds};
use legato_base::{Duration, Time};
use legato_fabric::session::{CallKind, SessionCause, SessionConfig, SessionEvent};
use legato_fabric::{Blame, Effect, Refused};
use legato_sim::provider::Personality;
use std::collections::BTreeMap;

/// F-17, P-66: three nodes, one of them dead.
#[test]
fn f_17_a_call_to_three_nodes_of_which_one_is_dead_ends_in_time_and_leaks_nothing() {
    for personality in Personality::ALL {
        for dies_before in [true, false] {
            let mut world = World::star(1, personality, &["caller", "a", "b", "c"]);
            if dies_before {
                world.network.kill("b");
            } else {
                world.run_until_up();
                world.network.kill("b");
            }
            let start = world.network.now();
            let calls =
                [0, 1, 2].map(|to| world.call_on((0, to), b"?", CallKind::Once, seconds(2)));
            world.run_until_ended(0, seconds(2), &calls);
            let ends = &world.machines[0].ends;
            for (to, call) in calls.iter().enumerate() {
                let (outcome, at) = &ends[call];
                assert!(at.since(start) <= seconds(2));
                match outcome {
                    Ok(reply) => assert!(to != 1 && *reply == answer(b"?")),
                    Err(error) => {
                        assert_eq!(to, 1, "{}: {error}", personality.name);
                        assert_ne!(error.blame, Blame::Local, "{error}");
                        let sent = error.effect == Effect::Unknown;
                        assert_eq!(sent, !dies_before, "{error}");
                    }
                }
                if to != 1 {
                    assert!(at.since(start) < millis(100));
                }
            }
            world.end();
        }
    }
}

/// L-38, P-63: the server disconnects under calls that wait, that are being executed, and that were
/// executed.
#[test]
fn l_38_a_disconnect_moves_what_waits_and_repeats_nothing() {
    for personality in Personality::ALL {
        let mut world = World::star(2, personality, &["caller", "server"]);
        world.machines[1].answers = false;
        world.run_until_up();
        let bodies: Vec<[u8; 1]> = (0..12).map(|number| [number]).collect();
        let calls: Vec<_> = bodies
            .iter()
            .map(|body| world.call(body, CallKind::Once, seconds(20)))
            .collect();
        let credits = CREDITS as usize;
        world.run_until(seconds(1), |world| world.machines[1].open.len() == credits);
        for round in 0..5 {
            // One is answered and its answer may be lost, the others are not done.
            let server = &mut world.machines[1];
            let connection = *server.accepted.last().unwrap();
            if round % 2 == 0 && !server.open.is_empty() {
                let delivery = server.open.remove(0);
                server.execute(&delivery);
            }
            server.fabric.close(&mut server.nic, connection);
            let connections = server.accepted.len();
            world.run_until(seconds(5), |world| {
                world.machines[1].accepted.len() > connections
            });
            world.run_for(MILLISECOND);
        }
        world.machines[1].execute_all();
        world.machines[1].answers = true;
        world.run_until_ended(0, seconds(5), &calls);
        for (body, reply) in bodies.iter().zip(world.machines[0].replies(&calls)) {
            assert_eq!(reply, Some(answer(body)), "{}", personality.name);
            assert_eq!(world.machines[1].times_executed(body), 1);
        }
        // The first credits' worth were sent again, each time, and nothing else was.
        let counters = *world.machines[0].sessions[0].counters();
        assert!(counters.calls_resent >= u64::from(CREDITS), "{counters:?}");
        world.end();
    }
}

/// L-38: what fails does not blame this side.
#[test]
fn l_38_calls_that_expire_without_a_connection_do_not_blame_this_side() {
    for personality in Personality::ALL {
        let mut world = World::star(3, personality, &["caller", "server"]);
        world.machines[1].answers = false;
        world.run_until_up();
        let calls: Vec<_> = (0..8_u8)
            .map(|number| world.call(&[number], CallKind::Once, seconds(3)))
            .collect();
        world.run_until(seconds(1), |world| world.machines[1].open.len() == 4);
        let start = world.network.now();
        world.cut_both(0, 1);
        world.run_until_ended(0, seconds(3), &calls);
        assert!(world.network.now().since(start) <= seconds(3));
        for (number, call) in calls.iter().enumerate() {
            let error = world.machines[0].ends[call].0.clone().unwrap_err();
            assert_ne!(error.blame, Blame::Local, "{}: {error}", personality.name);
            let was_sent = number < CREDITS as usize;
            let expected = if was_sent {
                Effect::Unknown
            } else {
                Effect::NotExecuted
            };
            assert_eq!(error.effect, expected, "{}: {error}", personality.name);
        }
        world.end();
    }
}

/// L-27: an outcome makes its owner start a call, which fails at once, and so on.
#[test]
fn l_27_ten_thousand_failures_inside_failures_do_not_deepen_the_stack() {
    // A level of recursion that costs no more than this would need four times the stack.
    let stack = std::thread::Builder::new().stack_size(256 << 10);
    stack
        .spawn(|| {
            let mut world = World::star(4, Personality::IDEAL, &["caller", "server"]);
            world.cut_both(0, 1);
            world.run_for(MILLISECOND);
            let first = world.call(b"0", CallKind::Once, seconds(1));
            let mut ended = 0_u32;
            let (mut lowest, mut highest) = (usize::MAX, 0);
            world.machines[0].sessions[0].cancel(first);
            while ended < 10_000 {
                let session = &mut world.machines[0].sessions[0];
                let Some(SessionEvent::Ended { outcome, .. }) = session.poll_event() else {
                    panic!("an outcome is missing");
                };
                let probe = 0_u8;
                let place = std::ptr::from_ref(&probe).addr();
                (lowest, highest) = (lowest.min(place), highest.max(place));
                ended += 1;
                let error = outcome.unwrap_err();
                assert_eq!(error.cause, SessionCause::Canceled);
                assert_eq!(error.effect, Effect::NotExecuted);
                // One is refused inline, the other fails inline.
                let passed = session.call(Vec::new(), CallKind::Once, Time::ZERO);
                assert_eq!(passed.unwrap_err().0, Refused::DeadlinePassed);
                let call = session
                    .call(Vec::new(), CallKind::Once, Time::NEVER)
                    .unwrap();
                assert!(session.cancel(call));
                assert!(!session.cancel(call));
            }
            assert_eq!(lowest, highest);
            let session = &mut world.machines[0].sessions[0];
            assert!(session.poll_event().is_some());
            assert!(session.poll_event().is_none());
            assert_eq!(session.calls_open(), 0);
            world.end();
        })
        .unwrap()
        .join()
        .unwrap();
}

/// A call is canceled before it is sent, while it is executed, and after its end.
#[test]
fn a_canceled_call_has_one_outcome_that_says_what_may_have_happened() {
    let mut world = World::star(5, Personality::IDEAL, &["caller", "server"]);
    world.machines[1].answers = false;
    world.run_until_up();
    let calls: Vec<_> = (0..6_u8)
        .map(|number| world.call(&[number], CallKind::Once, seconds(20)))
        .collect();
    let credits = CREDITS as usize;
    world.run_until(seconds(1), |world| world.machines[1].open.len() == credits);
    for &call in &calls {
        assert!(world.machines[0].sessions[0].cancel(call));
        assert!(!world.machines[0].sessions[0].cancel(call));
    }
    world.run_for(MILLISECOND);
    for (number, call) in calls.iter().enumerate() {
        let error = world.machines[0].ends[call].0.clone().unwrap_err();
        assert_eq!(error.cause, SessionCause::Canceled);
        let was_sent = number < credits;
        assert_eq!(error.effect == Effect::Unknown, was_sent);
    }
    world.machines[1].answers = true;
    world.machines[1].execute_all();
    let last = world.call(b"last", CallKind::Once, seconds(1));
    world.run_until_ended(0, seconds(1), &[last]);
    // What was never sent is never executed, and what comes late is nobody's.
    assert_eq!(world.machines[1].executed.len(), credits + 1);
    let late = world.machines[0].sessions[0].counters().answers_late;
    assert_eq!(late, u64::from(CREDITS));
    world.end();
}

/// P-71: a peer that owes the answers to canceled calls loses its connection for it, and the next one has
/// all credits.
#[test]
fn credits_of_canceled_calls_come_back() {
    for personality in Personality::ALL {
        let mut world = World::star(8, personality, &["caller", "server"]);
        world.machines[1].answers = false;
        world.run_until_up();
        let calls: Vec<_> = (0..4_u8)
            .map(|number| world.call(&[number], CallKind::Once, seconds(3600)))
            .collect();
        world.run_until(seconds(1), |world| world.machines[1].open.len() == 4);
        for call in calls {
            assert!(world.machines[0].sessions[0].cancel(call));
        }
        world.machines[1].answers = true;
        let next = world.call(b"next", CallKind::Once, seconds(30));
        world.run_until_ended(0, seconds(30), &[next]);
        let outcome = world.machines[0].ends[&next].0.clone();
        assert_eq!(outcome, Ok(answer(b"next")), "{}", personality.name);
        assert_eq!(world.machines[1].times_executed(b"next"), 1);
        world.end();
    }
}

#[test]
fn a_full_queue_gives_the_body_back() {
    let mut world = World::new(6, network(Personality::IDEAL));
    world.start("caller", config());
    world.start("server", config());
    let small = SessionConfig {
        calls_max: 3,
        ..SessionConfig::default()
    };
    world.session(0, 1, small);
    world.run_for(MILLISECOND);
    let deadline = world.in_time(seconds(1));
    let session = &mut world.machines[0].sessions[0];
    for number in 0..3 {
        session
            .call(vec![number], CallKind::Once, deadline)
            .unwrap();
    }
    let full = session.call(vec![3], CallKind::Once, deadline);
    assert_eq!(full, Err((Refused::WouldBlock, vec![3])));
    world.run_for(MILLISECOND);
    let session = &mut world.machines[0].sessions[0];
    session.call(vec![3], CallKind::Once, deadline).unwrap();
    // Too long for the peer: not sent, and typed.
    let long = session.call(vec![0; 190], CallKind::Once, deadline);
    let long = long.unwrap();
    world.run_for(MILLISECOND);
    let error = world.machines[0].ends[&long].0.clone().unwrap_err();
    let refused = SessionCause::Refused(Refused::TooLong);
    assert_eq!((error.cause, error.effect), (refused, Effect::NotExecuted));
    let machine = &mut world.machines[0];
    machine.sessions[0].close(&mut machine.fabric, &mut machine.nic);
    let closed = machine.sessions[0].call(vec![], CallKind::Once, deadline);
    assert_eq!(closed, Err((Refused::NotConnected, vec![])));
    world.end();
}

/// One session of eight is to a machine that stands still, is cut off, comes and goes: the others
/// do not notice.
#[test]
fn one_sick_session_of_many_disturbs_no_other() {
    for personality in Personality::ATTENTIVE {
        let names = ["caller", "sick", "a", "b", "c", "d", "e", "f", "g"];
        let mut world = World::star(7, personality, &names);
        world.run_until_up();
        let mut slowest: BTreeMap<usize, Duration> = BTreeMap::new();
        for round in 0..100_u32 {
            match round % 20 {
                0 => world.cut_both(0, 1),
                7 => {
                    world.heal();
                    world.machines[1].stopped = true;
                }
                14 => world.machines[1].stopped = false,
                _ => {}
            }
            let body = round.to_le_bytes();
            let start = world.network.now();
            let calls: Vec<_> = (0..8)
                .map(|to| {
                    let kind = CallKind::Once;
                    world.call_on((0, to), &body, kind, millis(200))
                })
                .collect();
            world.run_for(millis(100));
            for (to, call) in calls.into_iter().enumerate().skip(1) {
                let (outcome, at) = &world.machines[0].ends[&call];
                assert_eq!(*outcome, Ok(answer(&body)), "{}", personality.name);
                let slowest = slowest.entry(to).or_default();
                *slowest = (*slowest).max(at.since(start));
            }
        }
        let failed = world.machines[0].sessions[0].counters().calls_failed;
        assert!(failed > 10, "the first session was not sick: {failed}");
        // A round trip takes 6 us; a lost completion of a hostile NIC costs nothing more.
        for (to, slowest) in slowest {
            assert!(slowest < MILLISECOND, "session {to}: {slowest}");
        }
        world.end();
    }
}
