//! Queue pairs whose events are lost or come too often, whose requests do not come back, and whose
//! peers vanish.

use crate::rig::{MILLISECOND, Net, Plan, SECOND, World, config, link, quiet};
use legato_base::Duration;
use legato_fabric::{ConnectionId, Effect as Far, FabricEvent, Proof, ResetCause};
use legato_sim::fault::{Effect, EventEffect, Events, Frequency, PacketEffect, Rule, Scope};
use legato_sim::provider::Personality;
use legato_verbs::{AsyncEvent, Event, Provider};

/// Longest from the end of a connection to the end of its queue pair: a tenth of the liveness bound.
const DRAIN: Duration = Duration::from_secs(1);
const LIVENESS: Duration = Duration::from_secs(10);

/// A connection with reads, writes and calls under way, which is closed: all come back.
pub(crate) fn closes_with_all_under_way<N: Net>(world: &mut World<N>, name: &str) {
    let (here, there) = world.connect();
    for number in 0..4 {
        world.write(here, number, SECOND).unwrap();
        world.read(here, number + 4, SECOND).unwrap();
        world.call(here, b"?", SECOND);
    }
    world.left.fabric.close(&mut world.left.nic, here);
    world.run_for(DRAIN + MILLISECOND);
    assert_eq!(world.left.disconnected(), [here], "{name}");
    assert_eq!(world.left.outcomes().len(), 8, "{name}");
    assert_eq!(world.left.quiesced().len(), 8, "{name}");
    assert_eq!(world.left.replies().len(), 4, "{name}");
    assert_eq!(world.left.nic.resource_counts().queue_pairs, 0, "{name}");
    world.run_for(LIVENESS);
    assert_eq!(world.right.disconnected(), [there], "{name}");
    world.right.events.clear();
}

// P-53
#[test]
fn v_28_without_any_asynchronous_event() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let lost = Effect::Event {
            of: Events::Asynchronous,
            effect: EventEffect::Lose,
        };
        let rule = Rule::new(Frequency::Always, lost);
        world.network.faults(|faults| faults.add(rule));
        closes_with_all_under_way(&mut world, personality.name);
        world.left.end();
        world.right.end();
    }
}

/// Not even the connection's own.
#[test]
fn v_28_without_any_event_of_an_end() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, there) = world.connect();
        let lost = Effect::Event {
            of: Events::All,
            effect: EventEffect::Lose,
        };
        let rule = Rule::new(Frequency::Always, lost);
        world.network.faults(|faults| faults.add(rule));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(LIVENESS + DRAIN + DRAIN);
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
        world.left.end();
        world.right.end();
    }
}

/// P-54: Last Work Request Reached and the end of the connection, each up to five times, before and after.
#[test]
fn v_29_events_that_come_again_reap_once() {
    for personality in Personality::ALL {
        for times in 2..=5 {
            let mut world = World::new(Plan::both(personality));
            let again = Effect::Event {
                of: Events::All,
                effect: EventEffect::Repeat(times),
            };
            let rule = Rule::new(Frequency::Always, again);
            let (here, there) = world.connect();
            world.network.faults(|faults| faults.add(rule));
            world.write(here, 1, SECOND).unwrap();
            world.left.fabric.close(&mut world.left.nic, here);
            world.run_for(Duration::from_secs(2));
            assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
            assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
            assert_eq!(world.left.quiesced().len(), 1);
            // Long after.
            world.run_for(Duration::from_secs(3));
            assert_eq!(world.left.disconnected(), []);
            assert_eq!(world.right.disconnected(), []);
            world.left.end();
            world.right.end();
        }
    }
}

/// A queue pair's fatal event, and the last work request of one that is not there any more.
#[test]
fn v_29_a_fatal_event_and_events_of_what_is_gone() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        let queue_pair = world.left.nic.last_queue_pair.unwrap();
        for event in [
            AsyncEvent::LastWorkRequestReached(queue_pair),
            AsyncEvent::QueuePairFatal(queue_pair),
            AsyncEvent::LastWorkRequestReached(queue_pair),
            AsyncEvent::QueuePairFatal(queue_pair),
        ] {
            world.left.nic.inject.push_back(Event::Async(event));
        }
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        assert_eq!(
            world.left.fabric.reset_cause(here),
            Some(ResetCause::QueuePairFatal)
        );
        let gone = AsyncEvent::LastWorkRequestReached(queue_pair);
        world.left.nic.inject.push_back(Event::Async(gone));
        world.run_for(SECOND);
        assert_eq!(world.left.disconnected(), []);
        world.left.end();
        world.right.end();
    }
}

/// P-53: neither events nor flushed requests nor markers: the deadline of the drain, then destruction.
#[test]
fn v_30_neither_the_event_nor_the_marker() {
    for personality in [
        Personality::EHCA,
        Personality::IWARP,
        Personality::HOSTILE,
        Personality::CLOCKED,
        Personality::IDEAL,
    ] {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.freeze_right();
        let operation = world.read(here, 1, Duration::from_secs(5)).unwrap();
        world.run_for(MILLISECOND);
        world.left.nic.hold_completions = true;
        let lost = Effect::Event {
            of: Events::All,
            effect: EventEffect::Lose,
        };
        let rule = Rule::new(Frequency::Always, lost);
        world.network.faults(|faults| faults.add(rule));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(Duration::from_millis(500));
        assert_eq!(world.left.quiesced(), []);
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 1);
        world.run_for(DRAIN);
        let outcomes = world.left.outcomes();
        assert_eq!(outcomes.len(), 1, "{}", personality.name);
        assert_eq!(outcomes[0].1.unwrap_err().1, Far::Unknown);
        let destroyed = Proof::QueuePairDestroyed;
        assert_eq!(world.left.quiesced(), [(operation, 1, destroyed)]);
        assert_eq!(world.left.fabric.counters().drains_overdue, 1);
        assert_eq!(world.left.nic.resource_counts().queue_pairs, 0);
        world.left.end();
    }
}

/// The active side vanishes: the passive side, which only receives, finds out by itself.
#[test]
fn v_26_a_peer_that_vanishes_without_a_word() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let (_, there) = world.connect();
        world.network.kill("left");
        world.left.paused = true;
        let mut suspected = false;
        let start = world.network.now();
        world.run_for(Duration::from_secs(5));
        suspected |= !world
            .right
            .take(|event| match event {
                FabricEvent::Suspected { connection } => Some(*connection),
                _ => None,
            })
            .is_empty();
        world.run_until(|world| world.right.disconnected() == [there]);
        let took = world.network.now().since(start);
        assert!(took <= LIVENESS + DRAIN, "{}: {took}", personality.name);
        // A path that gives up its retries is found before.
        let cause = world.right.fabric.reset_cause(there);
        let silent = cause == Some(ResetCause::PeerSilent);
        assert!(
            silent && suspected || matches!(cause, Some(ResetCause::Transport(_))),
            "{}: {cause:?}",
            personality.name
        );
        assert_eq!(world.right.nic.resource_counts().queue_pairs, 0);
        world.right.end();
    }
}

/// A peer whose NIC acknowledges everything and whose software stands still; or whose NIC is software
/// too, and stands still with it: its transport is more patient than this.
pub(crate) fn stands_still<N: Net>(mut world: World<N>, name: &str, expected: ResetCause) {
    let (_, there) = world.connect();
    world.left.paused = true;
    let start = world.network.now();
    world.run_until(|world| world.right.disconnected() == [there]);
    let took = world.network.now().since(start);
    assert!(took <= LIVENESS + DRAIN, "{name}: {took}");
    let cause = world.right.fabric.reset_cause(there);
    assert_eq!(cause, Some(expected), "{name}");
    world.left.paused = false;
    world.run_for(Duration::from_secs(3));
    world.left.end();
    world.right.end();
}

#[test]
fn v_26_a_peer_that_stands_still() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let world = World::new(Plan::both(personality));
        stands_still(world, personality.name, ResetCause::PeerSilent);
    }
    stands_still(World::shm(config()), "shm", ResetCause::PeerSilent);
    stands_still(World::roce(config()), "roce", ResetCause::PeerSilent);
}

/// Silent for less than the bound: suspected after a third of it, and heard again.
fn comes_back<N: Net>(mut world: World<N>, name: &str) {
    let (_, there) = world.connect();
    world.left.paused = true;
    // Asked each second.
    world.run_for(Duration::from_millis(2900));
    assert!(suspicions(&mut world).is_empty(), "{name}");
    world.run_for(Duration::from_millis(1200));
    assert_eq!(suspicions(&mut world), [(there, true)], "{name}");
    world.run_for(Duration::from_millis(3500));
    world.left.paused = false;
    world.run_for(SECOND);
    assert_eq!(suspicions(&mut world), [(there, false)], "{name}");
    assert_eq!(world.right.disconnected(), [], "{name}");
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.right.disconnected(), [], "{name}");
    world.left.end();
    world.right.end();
}

#[test]
fn f_16_suspected_within_three_pings() {
    let mut world = World::new(Plan::default());
    let (_, there) = world.connect();
    world.left.paused = true;
    world.run_for(Duration::from_secs(3) + MILLISECOND);
    assert_eq!(suspicions(&mut world), [(there, true)]);
}

/// Of the right side: true for one that began.
fn suspicions<N: Net>(world: &mut World<N>) -> Vec<(ConnectionId, bool)> {
    world.right.take(|event| match event {
        FabricEvent::Suspected { connection } => Some((*connection, true)),
        FabricEvent::Heard { connection } => Some((*connection, false)),
        _ => None,
    })
}

#[test]
fn f_16_a_peer_that_stands_still_is_suspected_and_heard_again() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        comes_back(World::new(Plan::both(personality)), personality.name);
    }
    comes_back(World::shm(config()), "shm");
    comes_back(World::roce(config()), "roce");
}

/// A peer asks to be connected, is accepted, and is never heard of again, or its last message of
/// the handshake is lost.
#[test]
fn v_26_a_peer_that_vanishes_while_it_connects() {
    for personality in Personality::ALL {
        for dies in [true, false] {
            let mut world = World::new(Plan {
                network: quiet(),
                ..Plan::both(personality)
            });
            world.try_connect(SECOND).unwrap();
            world.run_until(|world| world.right.nic.last_queue_pair.is_some());
            if dies {
                world.network.kill("left");
                world.left.paused = true;
            } else {
                let way = link(&world.network, "left", "right");
                world
                    .network
                    .faults(|faults| faults.add(Rule::one_way_cut(way)));
            }
            world.run_for(LIVENESS + DRAIN + DRAIN);
            let counts = world.right.nic.resource_counts();
            assert_eq!(counts.queue_pairs, 0, "{} {dies}", personality.name);
            if !dies {
                assert_eq!(world.left.nic.resource_counts().queue_pairs, 0);
                world.left.end();
            }
            world.right.end();
        }
    }
}

/// Silence in one direction only, in either.
#[test]
fn v_26_a_path_that_is_cut_in_one_direction() {
    for personality in Personality::ALL {
        for (from, to) in [("left", "right"), ("right", "left")] {
            let mut world = World::new(Plan {
                network: quiet(),
                ..Plan::both(personality)
            });
            let (here, there) = world.connect();
            let way = link(&world.network, from, to);
            let cut = Rule::new(Frequency::Always, Effect::Packet(PacketEffect::Drop));
            let cut = cut.within(Scope::Link(way));
            world.network.faults(|faults| faults.add(cut));
            world.run_for(LIVENESS + DRAIN + MILLISECOND);
            assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
            assert_eq!(world.right.disconnected(), [there], "{}", personality.name);
            world.left.end();
            world.right.end();
        }
    }
}
