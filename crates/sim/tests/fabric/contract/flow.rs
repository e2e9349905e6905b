//! Queues that are never too full, and peers that do not keep up.

use super::late::completions_of_left;
use crate::rig::{CREDITS, MILLISECOND, Net, Plan, RawPeer, SECOND, World, answer, config, times};
use legato_base::{Duration, Time};
use legato_fabric::{Cause, ConnectionId, FabricConfig, Refused, ResetCause};
use legato_sim::fault::{CompletionEffect, Frequency, Span};
use legato_sim::provider::{Personality, SimNetworkConfig};
use legato_transport::WorkQueue;
use legato_verbs::CompletionStatus;
use std::collections::BTreeMap;

/// The peer's software stands still for 100 ms.
fn stalled<N: Net>(mut world: World<N>) {
    let (here, _) = world.connect();
    world.right.paused = true;
    let calls: Vec<_> = (0..CREDITS)
        .map(|_| world.call(here, b"?", Duration::from_millis(10)))
        .collect();
    for _ in 0..100 {
        let refused = world.try_call(here, b"?", SECOND);
        assert_eq!(refused, Err(Refused::WouldBlock));
        world.run_for(MILLISECOND);
        assert!(world.left.events.len() <= calls.len());
    }
    let expired: Vec<_> = calls
        .iter()
        .map(|call| (*call, Err(Cause::DeadlineExpired)))
        .collect();
    assert_eq!(world.left.replies(), expired);
    // It goes on, and nothing was overwritten meanwhile.
    world.right.paused = false;
    world.run_for(MILLISECOND);
    let requests = world.right.requests();
    assert_eq!(requests.len(), calls.len());
    for (request, body) in requests {
        assert_eq!(body, b"?");
        world.right.reply(request, b"late");
    }
    world.run_for(MILLISECOND);
    assert_eq!(
        world.left.fabric.counters().replies_late,
        calls.len() as u64
    );
    world.ask(here, b"!");
    world.left.end();
    world.right.end();
}

#[test]
fn f_07_senders_to_a_peer_that_stands_still_are_held_back() {
    for personality in Personality::ATTENTIVE {
        stalled(World::new(Plan::both(personality)));
    }
    stalled(World::shm(config()));
    stalled(World::roce(config()));
}

/// One-sided operations behind calls that nobody takes, as those of a client whose node stands still.
fn read_meanwhile<N: Net>(mut world: World<N>, name: &str) {
    let (here, _) = world.connect();
    world.right.fill(1, 0xA5);
    // Over shared memory the first one asks for the peer's segment.
    world.read(here, 0, SECOND).unwrap();
    world.run_until(|world| !world.left.outcomes().is_empty());
    world.right.paused = true;
    let calls: Vec<_> = (0..CREDITS)
        .map(|_| world.call(here, b"?", SECOND))
        .collect();
    let write = world.write(here, 2, SECOND).unwrap();
    let read = world.read(here, 1, SECOND).unwrap();
    world.run_for(MILLISECOND);
    let done = [(write, Ok(())), (read, Ok(()))];
    assert_eq!(world.left.outcomes(), done, "{name}");
    assert!(world.left.holds(1, 0xA5), "{name}");
    assert_eq!(world.left.replies(), [], "{name}");
    world.right.paused = false;
    let mut replies = Vec::new();
    world.run_until(|world| {
        world.right.serve(answer);
        replies.extend(world.left.replies());
        replies.len() == calls.len()
    });
    let answered: Vec<_> = calls.iter().map(|call| (*call, Ok(answer(b"?")))).collect();
    assert_eq!(replies, answered, "{name}");
    world.left.end();
    world.right.end();
}

/// P-99. Wrong over shared memory: one-sided operations waited until the peer had taken the messages before
/// them.
#[test]
fn reads_and_writes_do_not_wait_for_calls_to_a_peer_that_stands_still() {
    for personality in Personality::ATTENTIVE {
        read_meanwhile(World::new(Plan::both(personality)), personality.name);
    }
    read_meanwhile(World::shm(config()), "shm");
}

/// The peer is alive and never answers: with all credits gone for the liveness bound the connection
/// ends, and another one has them again. With one left it does not.
fn never_answers<N: Net>(mut world: World<N>, name: &str) {
    let (here, _) = world.connect();
    for _ in 1..CREDITS {
        world.call(here, b"?", MILLISECOND);
    }
    world.run_for(Duration::from_secs(25));
    assert_eq!(world.left.disconnected(), [], "{name}");
    // The requests are forgotten there.
    world.right.events.clear();
    world.left.events.clear();
    world.ask(here, b"the last one");
    world.call(here, b"?", MILLISECOND);
    // Seen with the next ping, and then the drain.
    world.run_for(Duration::from_secs(15));
    assert_eq!(world.left.disconnected(), [here], "{name}");
    let cause = world.left.fabric.reset_cause(here);
    assert_eq!(cause, Some(ResetCause::CreditsLost), "{name}");
    world.works_again_and_ends();
}

// P-51
#[test]
fn f_22_credits_that_nobody_gives_back() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        never_answers(World::new(Plan::both(personality)), personality.name);
    }
    never_answers(World::shm(config()), "shm");
    never_answers(World::roce(config()), "roce");
}

const MANY: usize = 256;

fn crowd() -> FabricConfig {
    FabricConfig {
        connections_max: MANY as u32 + 2,
        ..config()
    }
}

/// On every connection as many calls as it has credits, all answered at once, again and again.
/// How long each call took, in order of length.
fn rounds<N: Net>(
    world: &mut World<N>,
    connections: &[ConnectionId],
    rounds: u32,
    mut between: impl FnMut(&mut World<N>, u32),
) -> Vec<Duration> {
    let mut took = Vec::new();
    for round in 0..rounds {
        between(world, round);
        let mut expected = BTreeMap::new();
        for (number, connection) in connections.iter().enumerate() {
            for _ in 0..CREDITS {
                let body = (number as u32 * 1000 + round).to_le_bytes();
                let call = world.call(*connection, &body, SECOND);
                assert!(expected.insert(call, answer(&body)).is_none());
            }
        }
        let start: Time = world.network.now();
        // The server looks when all have come.
        world.right.paused = true;
        world.run_for(Duration::from_micros(200));
        world.right.paused = false;
        world.run_until(|world| {
            world.right.serve(answer);
            for (call, outcome) in world.left.replies() {
                assert_eq!(outcome.ok(), expected.remove(&call));
                took.push(world.network.now().since(start));
            }
            expected.is_empty()
        });
    }
    took.sort_unstable();
    took
}

#[test]
fn f_08_many_queue_pairs_complete_at_once_into_one_queue() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let mut world = World::new(Plan {
            config: crowd(),
            ..Plan::both(personality)
        });
        let connections: Vec<_> = (0..64).map(|_| world.connect().0).collect();
        rounds(
            &mut world,
            &connections,
            times("LEGATO_ROUNDS", 8) as u32,
            |_, _| {},
        );
        for side in [&world.left, &world.right] {
            let counters = side.fabric.counters();
            assert_eq!(counters.posts_refused, 0, "{}", personality.name);
            assert_eq!(counters.connections_reset, 0);
            assert_eq!(counters.completion_queues_replaced, 0);
        }
        world.left.end();
        world.right.end();
    }
}

/// One of 256 connections ends in each second round, in one way or another. The p99 of calls before and
/// meanwhile.
fn one_bad_of_many<N: Net>(mut world: World<N>) -> [Duration; 2] {
    let mut connections: Vec<_> = (0..MANY - 4).map(|_| world.connect().0).collect();
    let bad: Vec<_> = (0..4).map(|_| world.connect()).collect();
    let good = connections.len();
    let quiet = rounds(&mut world, &connections, 4, |_, _| {});
    let mut ended = 0;
    let disturbed = rounds(&mut world, &connections, 4, |world, round| {
        let (here, there) = bad[round as usize];
        match round {
            0 => world.left.fabric.close(&mut world.left.nic, here),
            1 => world.right.fabric.close(&mut world.right.nic, there),
            // Its deadline costs it its connection.
            2 => {
                world.write(here, 1, Duration::from_nanos(1)).unwrap();
            }
            _ => {
                let (mut to, piece) = (world.right.place(1), world.left.piece(1));
                to.key.0 ^= 0x0F00;
                let deadline = world.in_time(SECOND);
                let left = &mut world.left;
                left.fabric
                    .write(&mut left.nic, here, to, piece, deadline)
                    .unwrap();
            }
        }
        ended += 1;
    });
    assert_eq!(ended, 4);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.left.disconnected().len(), 4);
    let [calm, rough] = [&quiet, &disturbed].map(|took| *took.last().unwrap());
    assert!(rough < calm + calm + MILLISECOND, "{rough} {calm}");
    assert_eq!(world.left.fabric.counters().calls_failed, 0);
    connections.truncate(good);
    rounds(&mut world, &connections, 1, |_, _| {});
    world.left.end();
    world.right.end();
    [quiet, disturbed].map(|took| took[took.len() * 99 / 100])
}

fn one_bad_of_many_everywhere(config: FabricConfig) {
    for personality in Personality::ALL {
        let [calm, rough] = one_bad_of_many(World::new(Plan {
            config,
            ..Plan::both(personality.attentive())
        }));
        assert!(rough < calm + calm, "{}: {rough} {calm}", personality.name);
    }
    one_bad_of_many(World::shm(config));
    one_bad_of_many(World::roce(config));
}

#[test]
fn v_40_one_bad_connection_of_many_costs_the_others_nothing() {
    one_bad_of_many_everywhere(crowd());
}

/// The same with one receive queue for all. 256 connections with all their credits would need 2816
/// receives.
#[test]
fn v_40_one_bad_connection_of_many_that_share_receives() {
    one_bad_of_many_everywhere(FabricConfig {
        shared_receives: Some(2816 + 64),
        ..crowd()
    });
}

/// A peer that has no receive for a call, and never will.
#[test]
fn f_11_a_peer_without_a_receive_fails_the_call_in_time() {
    for personality in Personality::ALL {
        for rnr_retry in [2, 7] {
            let mut world = World::new(Plan {
                network: SimNetworkConfig {
                    rnr_retry,
                    ..SimNetworkConfig::default()
                },
                ..Plan::both(personality)
            });
            let (peer, connection) = RawPeer::established(&mut world, 0);
            let deadline = world.in_time(SECOND);
            let right = &mut world.right;
            let call = right
                .fabric
                .call(&mut right.nic, connection, b"?", deadline)
                .unwrap();
            let mut replies = Vec::new();
            world.run_until(|world| {
                replies.extend(world.right.replies());
                !replies.is_empty()
            });
            assert!(world.network.now() <= deadline);
            let status = CompletionStatus::ReceiverNotReadyRetryExceeded;
            let cause = match rnr_retry {
                // It would go on for ever.
                7 => Cause::DeadlineExpired,
                _ => Cause::Completion(status),
            };
            assert_eq!(replies, [(call, Err(cause))], "{}", personality.name);
            if rnr_retry == 2 {
                let says = if personality == Personality::MLX5 {
                    0x87
                } else {
                    0
                };
                assert_eq!(world.right.fabric.counters().vendor_error, says);
            }
            // And no endless retry: the connection ends.
            world.run_for(Duration::from_secs(12));
            assert_eq!(world.right.disconnected(), [connection]);
            peer.end();
            world.left.end();
            world.right.end();
        }
    }
}

/// P-52: no send completes, so that every place of the queue but that of the marker is taken when the
/// connection ends: by replies, writes, calls, a ping and a pong.
#[test]
fn v_33_full_queues_drain() {
    const LONG: Duration = Duration::from_secs(8);
    for personality in Personality::ALL {
        let name = personality.name;
        let mut world = World::new(Plan::both(personality.attentive()));
        let (here, there) = world.connect();
        let later = CompletionEffect::Delay(Span::exactly(LONG));
        let rule = completions_of_left(&world, WorkQueue::Send, Frequency::Always, later);
        let rule = world.network.faults(|faults| faults.add(rule));
        let deadline = world.in_time(LONG);
        for _ in 0..CREDITS {
            let right = &mut world.right;
            let asked = right.fabric.call(&mut right.nic, there, b"?", deadline);
            asked.unwrap();
        }
        world.run_for(MILLISECOND);
        assert_eq!(world.left.serve(answer), CREDITS as usize);
        for number in 0..8 {
            world.write(here, number, LONG).unwrap();
        }
        for _ in 0..CREDITS {
            world.call(here, b"?", LONG);
        }
        // Silence, and each side asks the other.
        world.run_for(SECOND + SECOND);
        assert_eq!(world.right.replies().len(), CREDITS as usize, "{name}");
        world.left.fabric.close(&mut world.left.nic, here);
        world.network.faults(|faults| faults.end(rule));
        world.run_for(LONG);
        let counters = world.left.fabric.counters();
        let refused = (counters.posts_refused, counters.markers_refused);
        assert_eq!(refused, (0, 0), "{name}");
        assert_eq!(world.left.disconnected(), [here], "{name}");
        assert_eq!(world.left.quiesced().len(), 8, "{name}");
        assert_eq!(world.left.replies().len(), CREDITS as usize, "{name}");
        assert_eq!(world.right.disconnected(), [there], "{name}");
        world.run_for(LONG);
        world.left.end();
        world.right.end();
    }
}
