//! Events that a program waits for: a peer that asks, a connection that is there, a wake-up. A library
//! that loses, delays or repeats one is defective; a driver that loses wake-ups is no rarity. Whatever
//! becomes of them, nothing waits for ever, nothing is there twice, and nothing is left.

use crate::rig::{MILLISECOND, Plan, SECOND, Side, World, answer};
use legato_base::{Duration, Time};
use legato_fabric::{ConnectError, ConnectionId, FabricEvent, ResetCause};
use legato_sim::fault::{Effect, EventEffect, Events, Frequency, Rule, Scope, Span};
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{Arm, Provider as _};

const LATE: EventEffect = EventEffect::Delay(Span::exactly(Duration::from_millis(300)));
/// When whoever asked has given up, and who was asked too.
const TOO_LATE: EventEffect = EventEffect::Delay(Span::exactly(Duration::from_secs(9)));
const THRICE: EventEffect = EventEffect::Repeat(3);
/// How long the side that is asked waits for the end of a handshake: half of the liveness bound.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The left side asks for a connection and waits a second for it, while this becomes of the first
/// event of a kind on one machine.
fn asks(
    personality: Personality,
    machine: &str,
    of: Events,
    effect: EventEffect,
) -> (World<SimNetwork>, ConnectionId) {
    let mut world = World::new(Plan::both(personality.attentive()));
    let machine = world.network.machine_number(machine).unwrap();
    let rule = Rule::new(Frequency::First(1), Effect::Event { of, effect });
    let rule = rule.within(Scope::Machine(machine));
    world.network.faults(|faults| faults.add(rule));
    let here = world.try_connect(SECOND).unwrap();
    (world, here)
}

/// What has become of the attempts of the left side.
fn ends(world: &mut World<SimNetwork>) -> Vec<(ConnectionId, Result<(), ConnectError>)> {
    world.left.take(|event| match event {
        FabricEvent::Connected { connection, .. } => Some((*connection, Ok(()))),
        FabricEvent::ConnectFailed { connection, error } => Some((*connection, Err(*error))),
        _ => None,
    })
}

fn queue_pairs(world: &World<SimNetwork>) -> [usize; 2] {
    [&world.left, &world.right].map(|side| side.nic.resource_counts().queue_pairs)
}

/// The next one works, and nothing is left of both, in the fabrics and on the way.
fn next_works(mut world: World<SimNetwork>) {
    world.right.events.clear();
    let (again, _) = world.connect();
    world.ask(again, b"?");
    world.left.end();
    world.right.end();
    let end = world.in_time(Duration::from_secs(100));
    while let Some(next) = world.network.next_event_time() {
        assert!(next < end, "something happens at {next:?}");
        world.network.advance_to(next);
    }
}

#[test]
fn l_37_a_request_that_is_lost_ends_with_the_patience_of_who_asked() {
    for personality in Personality::ALL {
        for effect in [EventEffect::Lose, TOO_LATE] {
            let (mut world, here) = asks(personality, "right", Events::Requested, effect);
            world.run_for(SECOND + MILLISECOND);
            let expired = Err(ConnectError::DeadlineExpired);
            assert_eq!(ends(&mut world), [(here, expired)], "{}", personality.name);
            world.run_for(Duration::from_secs(10));
            assert_eq!(world.right.accepted(), []);
            assert_eq!(queue_pairs(&world), [0, 0], "{}", personality.name);
            // Who is told of it after that has nobody to answer.
            let rejected = world.right.fabric.counters().peers_rejected;
            assert_eq!(rejected, u64::from(effect == TOO_LATE));
            next_works(world);
        }
    }
}

#[test]
fn l_37_a_request_that_is_late_is_accepted() {
    for personality in Personality::ALL {
        let (mut world, here) = asks(personality, "right", Events::Requested, LATE);
        world.run_for(Duration::from_millis(299));
        assert_eq!(ends(&mut world), []);
        world.run_for(MILLISECOND + MILLISECOND);
        assert_eq!(ends(&mut world), [(here, Ok(()))], "{}", personality.name);
        next_works(world);
    }
}

#[test]
fn l_37_a_request_that_comes_again_is_accepted_once() {
    for personality in Personality::ALL {
        let (mut world, here) = asks(personality, "right", Events::Requested, THRICE);
        world.run_for(MILLISECOND);
        assert_eq!(ends(&mut world), [(here, Ok(()))], "{}", personality.name);
        assert_eq!(world.right.accepted().len(), 1, "{}", personality.name);
        assert_eq!(world.right.fabric.counters().peers_rejected, 2);
        assert_eq!(queue_pairs(&world), [1, 1], "{}", personality.name);
        world.ask(here, b"once?");
        world.run_for(Duration::from_secs(20));
        assert_eq!(world.left.disconnected(), [], "{}", personality.name);
        next_works(world);
    }
}

/// On the side that asked.
#[test]
fn l_37_a_connection_that_nobody_is_told_of_ends_with_the_patience_of_who_asked() {
    for personality in Personality::ALL {
        for effect in [EventEffect::Lose, TOO_LATE] {
            let (mut world, here) = asks(personality, "left", Events::Established, effect);
            world.run_for(SECOND + MILLISECOND);
            let expired = Err(ConnectError::DeadlineExpired);
            assert_eq!(ends(&mut world), [(here, expired)], "{}", personality.name);
            // The other one was told, and is told of the end.
            world.run_for(Duration::from_secs(10));
            assert_eq!(world.right.accepted(), world.right.disconnected());
            assert_eq!(queue_pairs(&world), [0, 0], "{}", personality.name);
            assert_eq!(ends(&mut world), []);
            next_works(world);
        }
    }
}

/// On the side that was asked, with a call that comes before it is told.
#[test]
fn l_37_a_connection_that_the_asked_side_is_not_told_of_ends_within_its_handshake() {
    for personality in Personality::ALL {
        for effect in [EventEffect::Lose, TOO_LATE] {
            let (mut world, here) = asks(personality, "right", Events::Established, effect);
            world.run_for(MILLISECOND);
            assert_eq!(ends(&mut world), [(here, Ok(()))], "{}", personality.name);
            let call = world.call(here, b"?", Duration::from_secs(30));
            world.run_for(HANDSHAKE + SECOND);
            assert_eq!(world.right.accepted(), [], "{}", personality.name);
            let replies = world.left.replies();
            assert_eq!(replies.len(), 1, "{}", personality.name);
            assert_eq!(replies[0].0, call);
            assert!(replies[0].1.is_err(), "{}", personality.name);
            assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
            world.run_for(Duration::from_secs(10));
            assert_eq!(world.right.requests(), [], "{}", personality.name);
            assert_eq!(queue_pairs(&world), [0, 0], "{}", personality.name);
            next_works(world);
        }
    }
}

#[test]
fn l_37_a_connection_that_is_told_of_late_is_there_late() {
    for personality in Personality::ALL {
        for machine in ["left", "right"] {
            let (mut world, here) = asks(personality, machine, Events::Established, LATE);
            world.run_for(Duration::from_millis(310));
            assert_eq!(ends(&mut world), [(here, Ok(()))], "{}", personality.name);
            assert_eq!(world.right.accepted().len(), 1, "{}", personality.name);
            world.ask(here, b"late?");
            world.run_for(Duration::from_secs(10));
            assert_eq!(world.left.disconnected(), [], "{}", personality.name);
            next_works(world);
        }
    }
}

/// What is said of a connection that is there already is out of turn, and ends it, as every such event.
#[test]
fn l_37_a_connection_that_is_told_of_again_ends_once() {
    for personality in Personality::ALL {
        for machine in ["left", "right"] {
            let (mut world, here) = asks(personality, machine, Events::Established, THRICE);
            world.run_for(Duration::from_secs(13));
            assert_eq!(ends(&mut world), [(here, Ok(()))], "{}", personality.name);
            assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
            let there = world.right.accepted();
            assert_eq!(there.len(), 1, "{}", personality.name);
            assert_eq!(world.right.disconnected(), there, "{}", personality.name);
            let cause = match machine {
                "left" => world.left.fabric.reset_cause(here),
                _ => world.right.fabric.reset_cause(there[0]),
            };
            assert_eq!(cause, Some(ResetCause::Unexpected), "{}", personality.name);
            assert_eq!(queue_pairs(&world), [0, 0], "{}", personality.name);
            next_works(world);
        }
    }
}

/// A turn of software that sleeps until its NIC has an event, or until its fabric wants to be called.
fn turns_when_woken(side: &mut Side, now: Time, deadline: &mut Time) {
    while let Some(event) = side.nic.nic.poll_event() {
        side.nic.inject.push_back(event);
    }
    if side.nic.inject.is_empty() && now < *deadline {
        return;
    }
    loop {
        let (due, progressed) = side.turn(now);
        *deadline = due;
        side.serve(answer);
        let queue = side.nic.last_queue.unwrap();
        let waits = side.nic.nic.arm_completion_queue(queue, Arm::Next).unwrap();
        if !progressed && !waits {
            return;
        }
    }
}

/// A call between two that sleep, and how long it takes until its caller sees the reply.
fn time_of_a_call(effect: Option<EventEffect>, lasts: Duration) -> Duration {
    let mut world = World::seeded(1);
    let (here, _) = world.connect();
    if let Some(effect) = effect {
        let of = Events::Ready;
        let rule = Rule::new(Frequency::Always, Effect::Event { of, effect });
        world.network.faults(|faults| faults.add(rule));
    }
    let start = world.network.now();
    let mut deadlines = [start; 2];
    let call = world.call(here, b"?", lasts);
    let replies = loop {
        let now = world.network.now();
        turns_when_woken(&mut world.left, now, &mut deadlines[0]);
        turns_when_woken(&mut world.right, now, &mut deadlines[1]);
        let replies = world.left.replies();
        if !replies.is_empty() {
            break replies;
        }
        let alone = world.network.next_event_time().unwrap_or(Time::NEVER);
        let next = deadlines[0].min(deadlines[1]).min(alone);
        assert_ne!(next, Time::NEVER, "nothing wakes them any more");
        world.network.advance_to(next);
    };
    assert_eq!(replies, [(call, Ok(answer(b"?")))]);
    let took = world.network.now().since(start);
    world.left.end();
    world.right.end();
    took
}

/// Nobody sleeps longer than until its next ping is due, which is at most a second here: a wake-up that
/// is lost costs that on each side, and no call.
#[test]
fn v_18_wake_ups_that_are_lost_late_or_repeated_cost_time_only() {
    let long = Duration::from_secs(8);
    for effect in [None, Some(THRICE)] {
        assert!(time_of_a_call(effect, long) < Duration::from_micros(20));
    }
    let late = time_of_a_call(Some(LATE), long);
    assert!(
        (Duration::from_millis(600)..SECOND).contains(&late),
        "{late}"
    );
    let lost = time_of_a_call(Some(EventEffect::Lose), long);
    assert!((MILLISECOND..=SECOND + SECOND).contains(&lost), "{lost}");
}
