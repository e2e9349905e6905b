//! Completions that come late, again, in the other order, or never.

use crate::rig::{MILLISECOND, Net, Plan, SECOND, World, answer, quiet};
use legato_base::Duration;
use legato_fabric::{Cause, Effect as Far, Proof, ResetCause};
use legato_sim::fault::{CompletionEffect, Effect, Frequency, PacketEffect, Rule, Scope, Span};
use legato_sim::provider::{Personality, SimNetwork};
use legato_transport::WorkQueue;

pub(super) fn completions_of_left(
    world: &World<SimNetwork>,
    of: WorkQueue,
    frequency: Frequency,
    effect: CompletionEffect,
) -> Rule {
    let of = Some(of);
    let left = world.network.machine_number("left").unwrap();
    Rule::new(frequency, Effect::Completion { of, effect }).within(Scope::Machine(left))
}

/// The reply comes before the completion of its request's send, or after it, and the connection
/// lives or ends in between.
#[test]
fn l_19_a_reply_before_and_after_its_requests_completion() {
    for personality in Personality::ALL {
        for sends_late in [false, true] {
            for ends in [false, true] {
                let mut world = World::new(Plan::both(personality.attentive()));
                let (here, _) = world.connect();
                let queue = match sends_late {
                    true => WorkQueue::Send,
                    false => WorkQueue::Receive,
                };
                let late = CompletionEffect::Delay(Span::exactly(Duration::from_millis(5)));
                let rule = completions_of_left(&world, queue, Frequency::First(1), late);
                world.network.faults(|faults| faults.add(rule));
                let call = world.call(here, b"?", SECOND);
                world.run_for(MILLISECOND);
                world.right.serve(answer);
                world.run_for(MILLISECOND);
                if ends {
                    world.left.fabric.close(&mut world.left.nic, here);
                }
                world.run_for(SECOND);
                let replies = world.left.replies();
                let came = Ok(answer(b"?"));
                let over = Err(Cause::Reset(ResetCause::Closed));
                match (sends_late, ends) {
                    (true, _) | (_, false) => assert_eq!(replies, [(call, came)]),
                    // The reply may be lost with the queue pair, or not.
                    (false, true) => assert!(
                        replies == [(call, came)] || replies == [(call, over)],
                        "{}: {replies:?}",
                        personality.name
                    ),
                }
                if !ends {
                    for _ in 0..8 {
                        world.ask(here, b"all credits are there");
                    }
                }
                world.left.end();
                world.right.end();
            }
        }
    }
}

/// The completion of a connection that is over comes when another one has its place.
#[test]
fn l_21_completions_of_an_earlier_connection_mean_nothing() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality.attentive()));
        let again = CompletionEffect::Stale(Span::exactly(Duration::from_millis(2)));
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            let rule = completions_of_left(&world, queue, Frequency::EveryNth(3), again);
            world.network.faults(|faults| faults.add(rule));
        }
        let mut old = None;
        for round in 0..20 {
            let (here, _) = world.connect();
            assert_ne!(old, Some(here));
            old = Some(here);
            let number = round % 8;
            world.left.fill(number, round as u8 + 1);
            let operation = world.write(here, number, SECOND).unwrap();
            for _ in 0..3 {
                world.ask(here, b"?");
            }
            let mut outcomes = Vec::new();
            world.run_until(|world| {
                outcomes.extend(world.left.outcomes());
                !outcomes.is_empty()
            });
            assert_eq!(outcomes, [(operation, Ok(()))]);
            assert!(world.right.holds(number, round as u8 + 1));
            world.left.fabric.close(&mut world.left.nic, here);
            world.run_until(|world| world.left.disconnected() == [here]);
            assert_eq!(world.left.quiesced().len(), 1);
        }
        world.run_for(SECOND);
        assert!(world.left.fabric.counters().completions_stale > 10);
        world.left.end();
        world.right.end();
    }
}

/// A completion comes again when another operation has the slot, the send buffer or the place of
/// the one that it was for.
#[test]
fn l_20_a_completion_that_comes_again_is_not_its_successors() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality.attentive()));
        let (here, _) = world.connect();
        let again = CompletionEffect::Stale(Span::exactly(MILLISECOND));
        for round in 0..8 {
            let first = Frequency::First(1);
            let rule = completions_of_left(&world, WorkQueue::Send, first, again);
            world.network.faults(|faults| faults.add(rule));
            world.left.fill(1, 2 * round + 1);
            let first = world.write(here, 1, SECOND).unwrap();
            let mut outcomes = Vec::new();
            world.run_until(|world| {
                outcomes.extend(world.left.outcomes());
                !outcomes.is_empty()
            });
            assert_eq!(outcomes, [(first, Ok(()))]);
            // Its successor takes longer than the other's completion takes to come again.
            world.network.freeze("right");
            world.left.fill(1, 2 * round + 2);
            let second = world.write(here, 1, SECOND).unwrap();
            let stale = world.left.fabric.counters().completions_stale;
            world.run_for(Duration::from_millis(3));
            assert_eq!(world.left.fabric.counters().completions_stale, stale + 1);
            assert_eq!(world.left.outcomes(), [], "{}", personality.name);
            world.network.unfreeze("right");
            world.run_until(|world| {
                outcomes.extend(world.left.outcomes());
                outcomes.len() == 2
            });
            assert_eq!(outcomes[1], (second, Ok(())));
            assert!(world.right.holds(1, 2 * round + 2));
        }
        assert_eq!(world.left.quiesced().len(), 16);
        world.left.end();
        world.right.end();
    }
}

/// Deadlines before, at and after the moment of the completion: one outcome and one buffer, and
/// success only of what is there.
#[test]
fn l_22_a_completion_around_the_deadline() {
    let mut seen = [0, 0];
    for personality in Personality::ALL {
        for tenths in 1..120 {
            let mut world = World::new(Plan {
                seed: tenths,
                ..Plan::both(personality)
            });
            let (here, _) = world.connect();
            world.right.fill(3, 9);
            let lasts = Duration::from_nanos(tenths * 100);
            let operation = world.read(here, 3, lasts).unwrap();
            world.run_for(Duration::from_secs(11));
            let outcomes = world.left.outcomes();
            let expired = Err((Cause::DeadlineExpired, Far::Unknown));
            assert_eq!(outcomes.len(), 1);
            assert_eq!(outcomes[0].0, operation);
            match outcomes[0].1 {
                Ok(()) => {
                    seen[0] += 1;
                    assert!(world.left.holds(3, 9));
                }
                other => {
                    seen[1] += 1;
                    assert_eq!(other, expired);
                }
            }
            let quiesced = world.left.quiesced();
            assert_eq!((quiesced.len(), quiesced[0].0), (1, operation));
            world.left.end();
            world.right.end();
        }
    }
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

/// The completion of an operation never comes: its outcome comes at its deadline, and its buffer
/// when its queue pair has given back what was posted behind it.
#[test]
fn l_23_a_completion_that_is_lost_for_ever() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        let rule = completions_of_left(
            &world,
            WorkQueue::Send,
            Frequency::First(1),
            CompletionEffect::Lose,
        );
        world.network.faults(|faults| faults.add(rule));
        let operation = world.write(here, 3, Duration::from_millis(10)).unwrap();
        let due = world.in_time(Duration::from_millis(10));
        let mut outcomes = Vec::new();
        world.run_until(|world| {
            outcomes.extend(world.left.outcomes());
            !outcomes.is_empty()
        });
        assert_eq!(world.network.now(), due, "{}", personality.name);
        let expired = Err((Cause::DeadlineExpired, Far::Unknown));
        assert_eq!(outcomes, [(operation, expired)]);
        world.run_for(SECOND + MILLISECOND);
        let destroyed = Proof::QueuePairDestroyed;
        assert_eq!(world.left.quiesced(), [(operation, 3, destroyed)]);
        assert_eq!(world.left.disconnected(), [here]);
        world.left.end();
        world.right.end();
    }
}

/// P-51: the same of a call's send: the call is answered all the same, and the buffer of the send is
/// got back by ending the connection.
#[test]
fn l_23_completions_of_messages_that_are_lost_for_ever() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality.attentive()));
        let (here, _) = world.connect();
        let lose = CompletionEffect::Lose;
        let rule = completions_of_left(&world, WorkQueue::Send, Frequency::Always, lose);
        world.network.faults(|faults| faults.add(rule));
        for _ in 0..4 {
            world.ask(here, b"?");
        }
        let refused = world.try_call(here, b"?", SECOND);
        assert_eq!(refused, Err(legato_fabric::Refused::WouldBlock));
        world.run_for(Duration::from_secs(14));
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        // Its pings do not complete either, so the peer may have heard nothing for too long before.
        let cause = world.left.fabric.reset_cause(here).unwrap();
        let causes = [ResetCause::CompletionMissing, ResetCause::PeerDisconnected];
        assert!(causes.contains(&cause), "{}: {cause:?}", personality.name);
        world.network.faults(|faults| faults.heal());
        world.works_again_and_ends();
    }
}

/// Writes of which some are done when the peer dies, before this side looks: those are successes.
#[test]
fn l_34_what_came_back_well_before_the_peers_end_is_well() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality.attentive())
        });
        let (here, _) = world.connect();
        let done = world.write(here, 1, SECOND).unwrap();
        world.left.paused = true;
        world.run_for(MILLISECOND);
        world.network.kill("right");
        world.right.paused = true;
        world.left.paused = false;
        let lost = world.write(here, 2, Duration::from_secs(5));
        world.run_for(Duration::from_secs(12));
        let outcomes = world.left.outcomes();
        assert_eq!(outcomes[0], (done, Ok(())), "{}", personality.name);
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[1].0, lost.unwrap());
        let (_, effect) = outcomes[1].1.unwrap_err();
        assert_eq!(effect, Far::Unknown);
        assert_eq!(world.left.quiesced().len(), 2);
        assert_eq!(world.left.disconnected(), [here]);
        world.left.end();
    }
}

/// A request that is under way when its connection ends is not seen by the other side's owner
/// afterwards, and what a peer says on a connection that drains is not either.
#[test]
fn l_35_messages_of_a_connection_that_is_over_are_dropped() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, there) = world.connect();
        let call = world.call(here, b"?", SECOND);
        world.left.paused = true;
        // It waits in the completion queue of the right side.
        world.right.paused = true;
        world.run_for(MILLISECOND);
        world.right.paused = false;
        world.right.fabric.close(&mut world.right.nic, there);
        world.left.paused = false;
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.right.requests(), [], "{}", personality.name);
        let counters = world.right.fabric.counters();
        assert_eq!(counters.requests_received, counters.requests_dropped);
        let replies = world.left.replies();
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].0, call);
        assert!(replies[0].1.is_err());
        world.left.end();
        world.right.end();
    }
}

/// P-62: a write of a connection that is over arrives when another one has taken its place and the
/// memory that it was meant for is something else.
#[test]
fn l_30_a_key_is_never_issued_again_and_old_writes_reach_nothing_new() {
    use legato_verbs::{AccessFlags, Provider};
    for personality in Personality::ATTENTIVE {
        let mut world = World::new(Plan::both(personality));
        let (here, there) = world.connect();
        world.left.fill(3, 7);
        // What leaves from now on takes ten milliseconds more.
        let slow = PacketEffect::Delay(Span::exactly(Duration::from_millis(10)));
        let way = crate::rig::link(&world.network, "left", "right");
        let rule = Rule::new(Frequency::Always, Effect::Packet(slow)).within(Scope::Link(way));
        let slow = world.network.faults(|faults| faults.add(rule));
        world.write(here, 3, SECOND).unwrap();
        world.run_for(MILLISECOND);
        world.network.faults(|faults| faults.end(slow));
        world.left.fabric.close(&mut world.left.nic, here);
        world.right.fabric.close(&mut world.right.nic, there);
        world.run_for(MILLISECOND);
        let old = world.right.region;
        world.right.nic.deregister_region(&old).unwrap();
        let domain = world.right.fabric.domain();
        let access = AccessFlags::from_bits(7);
        let nic = &mut world.right.nic;
        let new = nic.allocate_region(domain, old.length, access).unwrap();
        assert_ne!(new.remote_key, old.remote_key);
        world.right.region = new;
        let watch = world.network.watch("right", &new, 0..new.length).unwrap();
        let (again, _) = world.connect();
        world.run_for(Duration::from_secs(3));
        assert!(!world.network.touched(watch), "{}", personality.name);
        world.ask(again, b"?");
        world.left.end();
        world.right.end();
    }
}

// P-62
#[test]
fn l_30_keys_are_never_issued_again() {
    fn keys<N: Net>(mut world: World<N>) {
        use legato_verbs::{AccessFlags, Provider};
        let domain = world.left.fabric.domain();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2_000 {
            let nic = &mut world.left.nic;
            let access = AccessFlags::from_bits(7);
            let region = nic.allocate_region(domain, 4096, access).unwrap();
            assert!(seen.insert(region.remote_key));
            nic.deregister_region(&region).unwrap();
        }
        world.left.end();
        world.right.end();
    }
    for personality in Personality::ALL {
        keys(World::new(Plan::both(personality)));
    }
    keys(World::shm(crate::rig::config()));
    keys(World::roce(crate::rig::config()));
}
