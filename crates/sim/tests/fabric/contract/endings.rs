//! Every way to fail, at every step.

use crate::rig::{MILLISECOND, Plan, SECOND, Side, World, answer, config, life, quiet};
use legato_base::Duration;
use legato_fabric::{ConnectionId, Effect, Proof, Refused, ResetCause};
use legato_sim::fault::{Rule, Scope};
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{Address, Provider, VerbsError};
use std::collections::BTreeMap;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    CloseHere,
    CloseThere,
    Kill,
    Freeze,
    Cut,
    RemoveHere,
    RemoveThere,
    RefuseSends,
}

const FAILURES: [Failure; 8] = [
    Failure::CloseHere,
    Failure::CloseThere,
    Failure::Kill,
    Failure::Freeze,
    Failure::Cut,
    Failure::RemoveHere,
    Failure::RemoveThere,
    Failure::RefuseSends,
];

fn fail(world: &mut World<SimNetwork>, failure: Failure, here: ConnectionId, there: ConnectionId) {
    match failure {
        Failure::CloseHere => world.left.fabric.close(&mut world.left.nic, here),
        Failure::CloseThere => world.right.fabric.close(&mut world.right.nic, there),
        Failure::Kill => {
            world.network.kill("right");
            world.right.paused = true;
        }
        Failure::Freeze => {
            world.freeze_right();
        }
        Failure::Cut => {
            let number = world.network.machine_number("right").unwrap();
            let rule = Rule::blackhole(number).within(Scope::Machine(number));
            world.network.faults(|faults| faults.add(rule));
        }
        Failure::RemoveHere => world.network.remove_device("left"),
        Failure::RemoveThere => world.network.remove_device("right"),
        Failure::RefuseSends => {
            world.right.nic.refuse_sends = Some(VerbsError::LocalProtection);
        }
    }
}

/// A call, a read and a write are under way when something fails, after so many steps. True if that
/// was before all had ended.
fn at_step(personality: Personality, failure: Failure, steps: u32) -> bool {
    let mut world = World::new(Plan {
        network: quiet(),
        ..Plan::both(personality)
    });
    let context = format!("{} {failure:?} {steps}", personality.name);
    let (here, there) = world.connect();
    world.right.fill(1, 0x11);
    let call = world.call(here, b"?", SECOND);
    let read = world.read(here, 1, SECOND).unwrap();
    let write = world.write(here, 2, SECOND).unwrap();
    for _ in 0..steps {
        world.step();
        world.right.serve(answer);
    }
    let was_early = world.left.fabric.counters().calls_replied == 0;
    fail(&mut world, failure, here, there);
    let deadline = world.in_time(SECOND);
    for _ in 0..1100 {
        world.run_for(MILLISECOND);
        world.right.serve(answer);
    }
    // In time, and once, and never success in place of failure.
    let replies = world.left.replies();
    assert_eq!((replies.len(), replies[0].0), (1, call), "{context}");
    if let Ok(body) = &replies[0].1 {
        assert_eq!(*body, answer(b"?"), "{context}");
    }
    let outcomes = world.left.outcomes();
    assert_eq!(outcomes.len(), 2, "{context}");
    for (operation, outcome) in outcomes {
        assert!(operation == read || operation == write, "{context}");
        if operation == read && outcome.is_ok() {
            assert!(world.left.holds(1, 0x11), "{context}");
        }
        if let Err((_, effect)) = outcome {
            assert_ne!(effect, Effect::Executed, "{context}");
        }
    }
    assert!(world.network.now() >= deadline);
    world.run_for(Duration::from_secs(13));
    assert_eq!(world.left.quiesced().len(), 2, "{context}");
    assert_eq!(world.left.outcomes(), [], "{context}");
    assert_eq!(world.left.replies(), [], "{context}");
    world.network.check_canaries().unwrap();
    world.left.end();
    was_early
}

#[test]
fn f_06_one_outcome_whatever_fails_at_whatever_step() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        for failure in FAILURES {
            let mut early = 0;
            for steps in 0..60 {
                if !at_step(personality, failure, steps) {
                    break;
                }
                early += 1;
            }
            assert!(early > 5, "{early}");
        }
    }
}

/// A deadline shorter than the transport's own retries: the outcome comes at it, and the buffer
/// not before nothing can be sent from it any more.
#[test]
fn f_05_a_deadline_shorter_than_the_retries() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let (here, _) = world.connect();
        world.freeze_right();
        let due = world.in_time(Duration::from_millis(10));
        let operation = world.write(here, 3, Duration::from_millis(10)).unwrap();
        world.run_until(|world| !world.left.outcomes().is_empty());
        assert_eq!(world.network.now(), due, "{}", personality.name);
        let mut quiesced = Vec::new();
        world.run_until(|world| {
            quiesced.extend(world.left.quiesced());
            !quiesced.is_empty()
        });
        assert_eq!((quiesced[0].0, quiesced[0].1), (operation, 3));
        world.run_until(|world| world.left.disconnected() == [here]);
        // Whatever is put there now stays on this side, even if the peer wakes up.
        world.left.fill(3, 0xEE);
        world.run_for(Duration::from_secs(2));
        world.network.unfreeze("right");
        world.run_for(SECOND);
        assert!(!world.right.holds(3, 0xEE), "{}", personality.name);
        world.left.end();
    }
}

/// What is started while a connection ends is refused with its buffer, and the queue pair is
/// destroyed only when what was posted has come back.
#[test]
fn l_45_destroyed_after_the_drain_and_nothing_starts_in_between() {
    for personality in Personality::ATTENTIVE {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.freeze_right();
        let operation = world.read(here, 1, SECOND).unwrap();
        world.run_for(MILLISECOND);
        world.left.nic.hold_completions = true;
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 1);
        let (refused, piece) = world.write(here, 2, SECOND).unwrap_err();
        assert_eq!((refused, piece.number), (Refused::NotConnected, 2));
        let refused = world.try_call(here, b"?", SECOND);
        assert_eq!(refused, Err(Refused::NotConnected));
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.left.nic.hold_completions = false;
        world.run_for(SECOND);
        let quiesced = world.left.quiesced();
        assert_eq!((quiesced.len(), quiesced[0].0), (1, operation));
        let flushes = personality.name != "ehca";
        assert_eq!(quiesced[0].2 == Proof::QueuePairDrained, flushes);
        assert_eq!(world.left.disconnected(), [here]);
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 0);
        world.left.end();
    }
}

/// A connection in error is not usable, its name never becomes another's, and requests of its
/// neighbours go where they should, also where generations wrap.
#[test]
fn f_15_a_connection_in_error_is_not_chosen() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let mut plan = Plan::both(personality);
        plan.config.first_generation = (1 << 28) - 500;
        let mut world = World::new(plan);
        let [bad, good, other] = [0; 3].map(|_| world.connect());
        world.write(bad.0, 1, Duration::from_nanos(1)).unwrap();
        world.run_until(|world| {
            let refused = world.try_call(bad.0, b"bad", SECOND);
            refused == Err(Refused::NotConnected)
        });
        world.run_until(|world| world.left.disconnected() == [bad.0]);
        // It has its place until it knows.
        world.run_until(|world| world.right.disconnected() == [bad.1]);
        world.left.events.clear();
        let (again, _) = world.connect();
        assert_eq!(again.index, bad.0.index);
        for round in 0..400_u32 {
            let refused = world.try_call(bad.0, b"bad", SECOND);
            assert_eq!(refused, Err(Refused::NotConnected));
            for connection in [good.0, other.0, again] {
                let body = [connection.index as u8, round as u8];
                world.ask(connection, &body);
            }
        }
        world.left.end();
        world.right.end();
    }
}

/// Two servers that answer differently, and a client whose connections to them end and begin again: no
/// request goes to the other server, also where generations wrap.
#[test]
fn f_15_no_request_goes_to_another_server() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let mut plan = Plan::both(personality);
        plan.config.first_generation = (1 << 28) - 40;
        let mut world = World::new(plan);
        let elsewhere = Address::Sim("elsewhere".to_owned());
        let second = world.network.provider_with("second", personality);
        let mut second = Side::new(second, life(config(), 3));
        second.fabric.listen(&mut second.nic, &elsewhere).unwrap();
        let servers = [world.address.clone(), elsewhere];
        for round in 0..60_u8 {
            let mut connections = servers.each_ref().map(|_| None);
            // Names that were used in another order.
            let order = if round % 3 == 0 { [1, 0] } else { [0, 1] };
            for server in order {
                let deadline = world.in_time(SECOND);
                let left = &mut world.left;
                let begun = left
                    .fabric
                    .connect(&mut left.nic, &servers[server], b"", deadline);
                connections[server] = Some(begun.unwrap());
            }
            let connections = connections.map(Option::unwrap);
            run_both(&mut world, &mut second);
            let mut calls = BTreeMap::new();
            for body in 0..3 {
                for (server, connection) in connections.into_iter().enumerate() {
                    let call = world.call(connection, &[round, body], SECOND);
                    calls.insert(call, vec![server as u8, round, body]);
                }
            }
            run_both(&mut world, &mut second);
            let answer = |server: u8| move |body: &[u8]| [&[server], body].concat();
            assert_eq!(world.right.serve(answer(0)), 3);
            assert_eq!(second.serve(answer(1)), 3);
            run_both(&mut world, &mut second);
            let replies = world.left.replies().into_iter();
            let replies = replies.map(|(call, reply)| (call, reply.unwrap()));
            assert_eq!(replies.collect::<BTreeMap<_, _>>(), calls);
            // In error, or closed.
            for (server, connection) in connections.into_iter().enumerate() {
                if (usize::from(round) + server).is_multiple_of(2) {
                    world.write(connection, 1, Duration::from_nanos(1)).unwrap();
                } else {
                    world.left.fabric.close(&mut world.left.nic, connection);
                }
            }
            let (mut ended, patience) = (0, world.in_time(Duration::from_secs(5)));
            while ended < 2 {
                assert!(world.network.now() < patience, "{}", personality.name);
                run_both(&mut world, &mut second);
                ended += world.left.disconnected().len();
            }
            world.left.events.clear();
            world.right.events.clear();
            second.events.clear();
        }
        second.end();
        world.left.end();
        world.right.end();
    }
}

/// P-59: two clients of one server, of which one connects again and again: the other's connection has
/// nothing to do with that, also if neither says who it is.
#[test]
fn l_33_a_peer_does_not_speak_for_another() {
    for lives in [[1, 3], [0, 0]] {
        let mut world = World::new(Plan::default());
        let [left, second] = lives.map(|incarnation| life(config(), incarnation));
        world.left.end();
        world.left = Side::new(world.network.provider("left"), left);
        let mut second = Side::new(world.network.provider("second"), second);
        let (here, _) = world.connect();
        for _ in 0..3 {
            let deadline = world.in_time(SECOND);
            let connection = second
                .fabric
                .connect(&mut second.nic, &world.address, b"", deadline)
                .unwrap();
            run_both(&mut world, &mut second);
            second.fabric.close(&mut second.nic, connection);
            run_both(&mut world, &mut second);
            assert_eq!(second.disconnected(), [connection]);
        }
        assert_eq!(world.left.disconnected(), []);
        world.ask(here, b"still there?");
        second.end();
        world.left.end();
        world.right.end();
    }
}

fn run_both(world: &mut World<SimNetwork>, third: &mut Side) {
    for _ in 0..50 {
        world.run_for(Duration::from_micros(20));
        third.turn(world.network.now());
    }
}

/// P-59. Lost: what was in quarantine at a client did not count among its connections. As long as it may still send
/// on one, that one is not closed, and nothing is sent again on another.
#[test]
fn l_33_a_client_has_not_closed_what_it_cannot_destroy() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let plan = Plan {
            network: quiet(),
            ..Plan::both(personality)
        };
        let mut world = World::new(plan);
        let (here, there) = world.connect();
        let epoch = world.left.fabric.epoch_of(here).unwrap();
        let number = world.network.machine_number("left").unwrap();
        let cut = world
            .network
            .faults(|faults| faults.add(Rule::blackhole(number)));
        world.left.nic.refuse_destroys = Some(VerbsError::Busy("queue pair"));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_until(|world| world.left.disconnected() == [here]);
        world.network.faults(|faults| faults.end(cut));
        assert_eq!(world.left.fabric.quarantine().queue_pairs, 1);
        let (again, _) = world.connect();
        world.run_for(Duration::from_millis(1500));
        // It may hear of the end in another way, as the queue pair is in the error state.
        let cause = world.right.fabric.reset_cause(there);
        assert_ne!(cause, Some(ResetCause::PeerClosed), "{}", personality.name);
        assert!(!world.left.fabric.is_after(again, epoch));
        world.left.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(2));
        let (last, _) = world.connect();
        world.run_for(Duration::from_millis(1500));
        assert!(world.left.fabric.is_after(last, epoch));
        world.left.end();
        world.right.end();
    }
}

/// P-58, P-59: a client that comes back says that its old connections are closed: what is left of them here
/// ends at once, and not after the liveness bound.
#[test]
fn l_33_a_peer_that_returns_has_closed_its_old_connections() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let (here, there) = world.connect();
        // The left side ends it, and nothing that it says about that arrives.
        let number = world.network.machine_number("left").unwrap();
        let cut = world
            .network
            .faults(|faults| faults.add(Rule::blackhole(number)));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_until(|world| world.left.disconnected() == [here]);
        world.network.faults(|faults| faults.end(cut));
        assert_eq!(world.right.disconnected(), []);
        let (again, _) = world.connect();
        world.run_for(Duration::from_millis(1500));
        assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
        let cause = world.right.fabric.reset_cause(there);
        assert_eq!(cause, Some(ResetCause::PeerClosed), "{}", personality.name);
        world.ask(again, b"?");
        world.left.end();
        world.right.end();
    }
}
