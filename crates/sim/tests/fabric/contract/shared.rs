//! Connections that take their receives from one queue.

use super::drain::closes_with_all_under_way;
use crate::rig::{
    CREDITS, MILLISECOND, Net, Plan, SECOND, World, answer, config, cycle, is_refusal, quiet,
};
use legato_base::Duration;
use legato_fabric::{FabricConfig, ResetCause, SharedReceives};
use legato_sim::fault::{Effect, EventEffect, Events, Frequency, Rule};
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig};
use legato_verbs::{AsyncEvent, Event, Provider, VerbsError};

/// For three connections with all their credits, and some more.
const RECEIVES: u32 = 40;

pub(crate) fn sharing() -> FabricConfig {
    FabricConfig {
        shared_receives: Some(RECEIVES),
        ..config()
    }
}

pub(crate) fn plan(personality: Personality) -> Plan {
    Plan {
        config: sharing(),
        ..Plan::both(personality.attentive())
    }
}

/// The same where nobody tells that a machine is dead.
fn quiet_plan(personality: Personality) -> Plan {
    Plan {
        network: quiet(),
        ..plan(personality)
    }
}

fn lose(of: Events) -> Rule {
    let effect = EventEffect::Lose;
    Rule::new(Frequency::Always, Effect::Event { of, effect })
}

/// No device is late with any, so all are posted and none is in doubt.
fn complete<N: Net>(world: &World<N>) -> [bool; 2] {
    [&world.left.fabric, &world.right.fabric].map(|fabric| {
        let SharedReceives {
            count,
            missing,
            granted,
            doubtful,
        } = fabric.shared_receives().unwrap();
        assert!(
            granted + doubtful + missing <= count,
            "{granted} {doubtful}"
        );
        missing == 0 && doubtful == 0
    })
}

/// Calls on a new connection until every other has been overtaken, and longer than lost receives are
/// looked for.
fn settles<N: Net>(world: &mut World<N>, name: &str) {
    let (here, _) = world.connect();
    for _ in 0..4 {
        world.ask(here, b"?");
        world.run_for(Duration::from_millis(1500));
    }
    world.run_for(Duration::from_secs(12));
    world.ask(here, b"?");
    assert_eq!(complete(world), [true; 2], "{name}");
    world.left.end();
    world.right.end();
}

#[test]
fn v_24_cycles_with_shared_receives_leave_nothing() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        for number in 0..200 {
            cycle(&mut world, number);
        }
        settles(&mut world, personality.name);
    }
    let mut world = World::shm(sharing());
    (0..200).for_each(|number| cycle(&mut world, number));
    settles(&mut world, "shm");
    let mut world = World::roce(sharing());
    (0..50).for_each(|number| cycle(&mut world, number));
    settles(&mut world, "roce");
}

/// P-92: with the event, and with the event hidden, which is counted.
#[test]
fn v_28_shared_receives_without_last_work_request_reached() {
    for personality in Personality::ALL {
        for hidden in [false, true] {
            let world = World::new(plan(personality));
            if hidden {
                let rule = lose(Events::Asynchronous);
                world.network.faults(|faults| faults.add(rule));
            }
            // No receive is flushed here, which is all that some tell of.
            let tells = !matches!(personality.name, "iwarp" | "clocked");
            let is_said = !hidden && tells;
            drains(world, personality.name, is_said);
        }
    }
}

/// All that was under way comes back, and it is counted if nobody said that it had.
pub(crate) fn drains<N: Net>(mut world: World<N>, name: &str, is_said: bool) {
    closes_with_all_under_way(&mut world, name);
    let missing = world.left.fabric.counters().drain_events_missing;
    assert_eq!(missing, u64::from(!is_said), "{name}");
    world.left.end();
    world.right.end();
}

/// P-92: Last Work Request Reached two to five times, and once more when all is over.
#[test]
fn v_29_shared_receives_are_reaped_once() {
    for personality in Personality::ALL {
        for times in 2..=5 {
            let effect = EventEffect::Repeat(times);
            let of = Events::Asynchronous;
            let rule = Rule::new(Frequency::Always, Effect::Event { of, effect });
            let world = World::new(plan(personality));
            reaped_once(world, personality.name, |world| {
                world.network.faults(|faults| faults.add(rule));
            });
        }
    }
}

pub(crate) fn reaped_once<N: Net>(
    mut world: World<N>,
    name: &str,
    repeat: impl FnOnce(&mut World<N>),
) {
    let (here, there) = world.connect();
    let queue_pair = world.left.nic.last_queue_pair.unwrap();
    repeat(&mut world);
    // While it is established it means nothing.
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(queue_pair));
    world.left.nic.inject.push_back(last.clone());
    world.ask(here, b"?");
    let fatal = AsyncEvent::QueuePairFatal(queue_pair);
    for event in [
        last.clone(),
        Event::Async(fatal),
        last.clone(),
        last.clone(),
    ] {
        world.left.nic.inject.push_back(event);
    }
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.left.disconnected(), [here], "{name}");
    let cause = world.left.fabric.reset_cause(here);
    assert_eq!(cause, Some(ResetCause::QueuePairFatal));
    world.left.nic.inject.push_back(last);
    world.run_for(Duration::from_secs(12));
    assert_eq!(world.left.disconnected(), []);
    assert_eq!(world.right.disconnected(), [there], "{name}");
    settles(&mut world, name);
}

/// P-93: neither events nor completions: the deadline of the drain, then destruction; and the queue is as
/// full as before.
#[test]
fn v_30_shared_receives_come_back_without_event_and_marker() {
    for personality in Personality::ALL {
        let mut world = World::new(quiet_plan(personality));
        let (here, there) = world.connect();
        world.call(here, b"?", Duration::from_secs(5));
        world.freeze_right();
        world.read(here, 1, Duration::from_secs(5)).unwrap();
        world.run_for(MILLISECOND);
        world.left.nic.hold_completions = true;
        let rule = lose(Events::All);
        world.network.faults(|faults| faults.add(rule));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(Duration::from_millis(500));
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 1);
        // What can be known is known.
        assert_eq!(world.left.outcomes().len(), 1, "{}", personality.name);
        assert_eq!(world.left.replies().len(), 1, "{}", personality.name);
        world.run_for(SECOND);
        assert_eq!(world.left.quiesced().len(), 1, "{}", personality.name);
        assert_eq!(world.left.fabric.counters().drains_overdue, 1);
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 0);
        world.left.nic.hold_completions = false;
        world.network.faults(|faults| faults.heal());
        world.network.unfreeze("right");
        world.right.paused = false;
        world.run_until(|world| world.right.disconnected() == [there]);
        world.right.events.clear();
        world.left.events.clear();
        // The time-wait states, and late writes of the one that has them.
        world.run_for(Duration::from_secs(13));
        settles(&mut world, personality.name);
    }
}

/// P-93: a connection ends in the middle of a message of several packets, between any two of them.
#[test]
fn v_31_the_receive_of_half_a_message_comes_back() {
    const LENGTH: u32 = 40_000;
    for personality in Personality::ALL {
        let mut halves = 0;
        for micros in (2..50).step_by(6) {
            let mut plan = quiet_plan(personality);
            plan.config.message_length_max = LENGTH;
            // 40 us for the message.
            plan.network.bytes_per_second = Some(1_000_000_000);
            let mut world = World::new(plan);
            let (here, there) = world.connect();
            // Another connection overtakes it.
            let (other, _) = world.connect();
            world.call(here, &[7; LENGTH as usize], Duration::from_secs(60));
            world.run_for(Duration::from_micros(micros));
            world.right.fabric.close(&mut world.right.nic, there);
            world.run_for(MILLISECOND);
            for _ in 0..6 {
                world.run_for(SECOND);
                world.left.events.clear();
                world.ask(other, b"?");
            }
            let reclaimed = world.right.fabric.counters().receives_reclaimed;
            halves += reclaimed;
            world.run_for(Duration::from_secs(13));
            world.ask(other, b"?");
            world.ask(other, b"?");
            let held = world.right.fabric.shared_receives();
            let name = personality.name;
            assert!(complete(&world)[1], "{name} {micros}: {held:?}");
            world.left.end();
            world.right.end();
        }
        // These keep the receive.
        let keeps = ["rxe", "ehca"].contains(&personality.name);
        assert_eq!(halves > 0, keeps, "{}: {halves}", personality.name);
    }
}

/// P-92: no receive is posted, and a queue pair on which nothing happens ends.
#[test]
fn v_32_an_idle_queue_pair_on_an_empty_queue_is_reaped() {
    for personality in Personality::ALL {
        let mut plan = plan(personality);
        plan.config.connections_max = 2;
        plan.config.shared_receives = Some(12);
        let mut world = World::new(plan);
        let (busy, _) = world.connect();
        let (idle, there) = world.connect();
        world.right.nic.refuse_receives = Some(VerbsError::QueueFull("shared receive"));
        // Each takes one, until none is left.
        for _ in 0..12 {
            world.call(busy, b"?", SECOND);
            world.run_for(MILLISECOND);
            world.right.serve(answer);
            world.run_for(MILLISECOND);
        }
        let left = world.right.fabric.shared_receives().unwrap();
        assert_eq!(left.missing, 12, "{}", personality.name);
        world.right.fabric.close(&mut world.right.nic, there);
        world.run_for(Duration::from_millis(51));
        assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
        world.right.nic.refuse_receives = None;
        world.run_for(Duration::from_millis(100));
        let left = world.right.fabric.shared_receives().unwrap();
        assert_eq!(left.missing, 0, "{}", personality.name);
        world.left.events.clear();
        world.right.events.clear();
        world.ask(busy, b"?");
        assert_ne!(world.left.disconnected(), [busy]);
        assert!(idle != busy);
        world.left.end();
        world.right.end();
    }
}

/// A receive is refused for a while: the depth is back right behind it, and no connection ends.
pub(crate) fn is_posted_again<N: Net>(mut world: World<N>, name: &str) {
    let (here, _) = world.connect();
    world.right.nic.refuse_receives = Some(VerbsError::QueueFull("shared receive"));
    world.ask(here, b"?");
    assert_eq!(complete(&world), [true, false], "{name}");
    world.right.nic.refuse_receives = None;
    world.run_for(Duration::from_millis(50));
    assert_eq!(complete(&world), [true; 2], "{name}");
    assert_eq!(world.right.fabric.counters().connections_reset, 0);
    world.left.end();
    world.right.end();
}

#[test]
fn v_38_a_shared_receive_that_is_refused_once_is_posted_again() {
    for personality in Personality::ALL {
        is_posted_again(World::new(plan(personality)), personality.name);
    }
}

/// P-94: for a tenth of the liveness bound; then all end, and the next connection finds another queue.
#[test]
fn f_09_shared_receives_that_stay_refused_end_all_connections() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let ends = [0; 2].map(|_| world.connect());
        let full = VerbsError::QueueFull("shared receive");
        world.right.nic.refuse_receives = Some(full);
        world.ask(ends[0].0, b"?");
        world.run_for(Duration::from_millis(2300));
        let mut ended = world.right.disconnected();
        ended.sort_unstable();
        assert_eq!(ended, ends.map(|(_, there)| there), "{}", personality.name);
        for (_, there) in ends {
            let cause = world.right.fabric.reset_cause(there);
            assert_eq!(cause, Some(ResetCause::Provider(full)));
        }
        world.right.nic.refuse_receives = None;
        world.run_for(Duration::from_secs(13));
        world.left.events.clear();
        world.right.events.clear();
        let (again, _) = world.connect();
        world.ask(again, b"?");
        assert_eq!(complete(&world), [true; 2], "{}", personality.name);
        world.left.end();
        world.right.end();
    }
}

/// P-94: the device gives the queue up.
#[test]
fn l_37_the_shared_queue_fails() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (here, there) = world.connect();
        let queue = world.right.nic.last_shared_queue.unwrap();
        let failed = Event::Async(AsyncEvent::SharedReceiveQueueError(queue));
        world.right.nic.inject.push_back(failed.clone());
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
        let cause = world.right.fabric.reset_cause(there);
        assert_eq!(cause, Some(ResetCause::ReceiveQueueFailed));
        world.run_for(Duration::from_secs(12));
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        let (again, _) = world.connect();
        assert_ne!(world.right.nic.last_shared_queue, Some(queue));
        // Of the one that is gone.
        world.right.nic.inject.push_back(failed);
        world.ask(again, b"?");
        world.left.end();
        world.right.end();
    }
}

/// P-91: few are left, because much comes at once: it says so, and goes on. Nobody waits for a receive:
/// there is no second try on these NICs.
#[test]
fn v_15_credits_of_all_connections_never_exceed_what_is_posted() {
    const CONNECTIONS: u32 = 10;
    for personality in Personality::ALL {
        for receives in [60, 80, 110, 200] {
            let mut plan = plan(personality);
            plan.config.connections_max = CONNECTIONS;
            plan.config.shared_receives = Some(receives);
            plan.network = SimNetworkConfig {
                rnr_retry: 0,
                ..plan.network
            };
            let mut world = World::new(plan);
            let name = personality.name;
            let connections: Vec<_> = (0..CONNECTIONS).map(|_| world.connect().0).collect();
            for round in 0..4 {
                let mut started = Vec::new();
                for &connection in &connections {
                    while let Ok(call) = world.try_call(connection, b"?", SECOND) {
                        started.push(call);
                    }
                }
                // As many as there are credits, at least one for each and at most all.
                let most = (CONNECTIONS * CREDITS) as usize;
                let least = if receives == 200 { most } else { 10 };
                assert!((least..=most).contains(&started.len()), "{name}");
                world.right.paused = true;
                world.run_for(MILLISECOND);
                world.right.paused = false;
                world.run_for(MILLISECOND);
                world.right.serve(answer);
                world.run_for(MILLISECOND);
                let replies = world.left.replies();
                assert_eq!(replies.len(), started.len(), "{name} {receives} {round}");
                assert!(replies.iter().all(|(_, reply)| reply.is_ok()), "{name}");
            }
            assert_eq!(complete(&world), [true; 2], "{name} {receives}");
            world.left.end();
            world.right.end();
        }
    }
}

#[test]
fn v_15_few_receives_left_is_said_and_harmless() {
    for personality in Personality::ALL {
        for lost in [false, true] {
            let mut plan = plan(personality);
            plan.config.connections_max = 1;
            plan.config.shared_receives = Some(11);
            let mut world = World::new(plan);
            if lost {
                let rule = lose(Events::Asynchronous);
                world.network.faults(|faults| faults.add(rule));
            }
            let (here, _) = world.connect();
            for round in 0..3 {
                world.right.nic.refuse_receives = Some(VerbsError::QueueFull("shared receive"));
                // All but one are taken.
                let mut calls = 0;
                for count in [CREDITS, CREDITS, 2] {
                    for _ in 0..count {
                        world.call(here, b"?", SECOND);
                    }
                    world.run_for(MILLISECOND);
                    calls += world.right.serve(answer);
                    world.run_for(MILLISECOND);
                }
                world.right.nic.refuse_receives = None;
                world.run_for(Duration::from_millis(50));
                assert_eq!((calls, world.left.replies().len()), (10, 10));
                let low = world.right.fabric.counters().receives_low;
                let expected = if lost { 0 } else { round + 1 };
                assert_eq!(low, expected, "{}", personality.name);
                assert_eq!(complete(&world), [true; 2], "{}", personality.name);
            }
            world.left.end();
            world.right.end();
        }
    }
}

/// The peer's access is refused, and its connection ends; a queue pair that only receives has nothing
/// to flush then, and learns it from the event or by silence.
#[test]
fn v_26_a_queue_pair_that_fails_by_itself_is_found() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (here, there) = world.connect();
        let (mut to, piece) = (world.right.place(1), world.left.piece(1));
        to.key.0 ^= 0x0F00;
        let deadline = world.in_time(SECOND);
        let left = &mut world.left;
        left.fabric
            .write(&mut left.nic, here, to, piece, deadline)
            .unwrap();
        world.run_for(Duration::from_secs(2));
        let outcomes = world.left.outcomes();
        let (cause, _) = outcomes[0].1.unwrap_err();
        assert!(is_refusal(cause), "{}: {cause:?}", personality.name);
        assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        world.left.quiesced();
        world.run_for(Duration::from_secs(12));
        settles(&mut world, personality.name);
    }
}

/// P-91: a node without enough receives says so when it is made, and one that has none left when somebody
/// asks.
#[test]
fn shared_receives_have_limits() {
    let network = SimNetwork::new(1, SimNetworkConfig::default());
    let mut nic = network.provider("node");
    let few = FabricConfig {
        shared_receives: Some(17),
        ..config()
    };
    let refused = legato_fabric::Fabric::<legato_fabric::NoBuffer>::new(&mut nic, few);
    let limit = VerbsError::LimitExceeded {
        what: "connections that share receives",
        asked: 3,
        limit: 2,
    };
    assert_eq!(refused.err(), Some(limit));
    assert_eq!(
        nic.resource_counts(),
        legato_verbs::ResourceCounts::default()
    );
}
