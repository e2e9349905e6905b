//! Calls and replies: each call has one reply, its own.

use crate::rig::{Net, Plan, SECOND, World, answer, config, times};
use legato_base::{Duration, Random};
use legato_fabric::{CallId, Cause, ConnectionId, FabricConfig, Refused, RequestId};
use legato_sim::provider::{Personality, SimNetworkConfig};
use legato_verbs::RetryCount;
use std::collections::BTreeMap;

const CONNECTIONS: usize = 4;
const CALLERS: usize = 64;
const LONG: Duration = Duration::from_secs(1000);
const SHORTLY: Duration = Duration::from_micros(20);

pub(crate) fn wide() -> FabricConfig {
    FabricConfig {
        connections_max: CONNECTIONS as u32 + 2,
        credits: 16,
        ..config()
    }
}

/// How many calls ended otherwise than with a reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Missed {
    pub(crate) expired: u64,
    pub(crate) failed: u64,
}

struct Caller {
    connection: usize,
    call: Option<(CallId, Vec<u8>)>,
}

/// Callers that each wait for one call at a time, and a server that answers late and in any order.
/// Connections that end are made again.
pub(crate) fn many_calls<N: Net>(
    world: &mut World<N>,
    calls: u64,
    seed: u64,
    mut lasts: impl FnMut(&mut Random) -> Duration,
) -> Missed {
    let mut random = Random::from_seed(seed);
    let mut connections: Vec<ConnectionId> = (0..CONNECTIONS).map(|_| world.connect().0).collect();
    let mut callers: Vec<Caller> = (0..CALLERS)
        .map(|number| Caller {
            connection: number % CONNECTIONS,
            call: None,
        })
        .collect();
    let mut waiting: BTreeMap<CallId, usize> = BTreeMap::new();
    let mut open: Vec<(RequestId, Vec<u8>)> = Vec::new();
    let mut missed = Missed::default();
    let mut left_to_do = calls;
    world.run_at_most(2_000_000 + 1_000 * calls, |world| {
        for (call, outcome) in world.left.replies() {
            let caller = waiting.remove(&call).expect("it has ended already");
            let (expected, body) = callers[caller].call.take().unwrap();
            assert_eq!(expected, call);
            match outcome {
                Ok(reply) => assert_eq!(reply, answer(&body)),
                Err(Cause::DeadlineExpired) => missed.expired += 1,
                Err(_) => missed.failed += 1,
            }
        }
        for ended in world.left.disconnected() {
            let place = connections.iter().position(|it| *it == ended).unwrap();
            connections[place] = world.try_connect(SECOND).unwrap();
        }
        for (number, caller) in callers.iter_mut().enumerate() {
            if caller.call.is_some() || left_to_do == 0 || random.ratio(1, 2) {
                continue;
            }
            let length = random.below(201) as usize;
            let body: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
            let time = lasts(&mut random);
            match world.try_call(connections[caller.connection], &body, time) {
                Ok(call) => {
                    left_to_do -= 1;
                    waiting.insert(call, number);
                    caller.call = Some((call, body));
                }
                Err(refused) => assert!(
                    matches!(refused, Refused::WouldBlock | Refused::NotConnected),
                    "{refused}"
                ),
            }
        }
        open.extend(world.right.requests());
        // What else was said is of no interest here.
        world.left.events.clear();
        world.right.events.clear();
        while !open.is_empty() && random.ratio(3, 4) {
            let one = random.below(open.len() as u64) as usize;
            let (request, body) = open.swap_remove(one);
            // Its connection may have ended meanwhile.
            let right = &mut world.right;
            let _ = right.fabric.reply(&mut right.nic, request, &answer(&body));
        }
        left_to_do == 0 && waiting.is_empty()
    });
    // Late replies give their credits back.
    for (request, body) in open {
        let right = &mut world.right;
        let _ = right.fabric.reply(&mut right.nic, request, &answer(&body));
    }
    missed
}

fn loses(personality: Personality) -> bool {
    personality.careless.is_some()
}

#[test]
fn f_01_f_10_each_of_many_calls_has_its_own_reply() {
    let calls = times("LEGATO_CALLS", 10_000);
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            config: wide(),
            ..Plan::both(personality)
        });
        let missed = many_calls(&mut world, calls, 1, |_| LONG);
        if !loses(personality) {
            assert_eq!(missed, Missed::default(), "{}", personality.name);
        }
        world.network.check_canaries().unwrap();
        world.left.end();
        world.right.end();
    }
}

#[test]
fn f_01_each_of_many_calls_has_its_own_reply_through_shared_memory() {
    let mut world = World::shm(wide());
    let missed = many_calls(&mut world, times("LEGATO_CALLS", 10_000), 1, |_| LONG);
    assert_eq!(missed, Missed::default());
    world.left.end();
    world.right.end();
}

#[test]
fn f_01_each_of_many_calls_has_its_own_reply_over_roce() {
    let mut world = World::roce(wide());
    let missed = many_calls(&mut world, times("LEGATO_CALLS", 10_000), 1, |_| LONG);
    assert_eq!(missed, Missed::default());
    world.left.end();
    world.right.end();
}

/// On a wire that loses, doubles and reorders.
#[test]
fn f_01_each_of_many_calls_has_its_own_reply_on_a_bad_wire() {
    use legato_sim::fault::{PacketEffect, Rule, Span};
    let config = SimNetworkConfig {
        retry_count: RetryCount::SEVEN,
        timeout: 8,
        ..SimNetworkConfig::default()
    };
    for personality in [Personality::IDEAL, Personality::RXE] {
        let mut world = World::new(Plan {
            config: wide(),
            network: config,
            ..Plan::both(personality)
        });
        let later = Span::exactly(SHORTLY);
        world.network.faults(|faults| {
            faults.add(Rule::packets(5, PacketEffect::Drop));
            faults.add(Rule::packets(5, PacketEffect::Duplicate(later)));
            faults.add(Rule::packets(5, PacketEffect::Reorder(SHORTLY)));
        });
        let missed = many_calls(&mut world, 2_000, 2, |_| LONG);
        assert_eq!(missed.expired, 0, "{}", personality.name);
        world.left.end();
        world.right.end();
    }
}

/// Calls that time out while their replies are on the way, and slots that are used again at once.
#[test]
fn v_37_late_replies_never_reach_who_has_their_slot_now() {
    let calls = times("LEGATO_LATE_REPLIES", 8_000);
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            config: wide(),
            ..Plan::both(personality)
        });
        let missed = many_calls(&mut world, calls, 3, short);
        assert!(
            missed.expired > calls / 10,
            "{}: {missed:?}",
            personality.name
        );
        if !loses(personality) {
            assert_eq!(missed.failed, 0, "{}", personality.name);
            world.run_for(SECOND);
            let counters = world.left.fabric.counters();
            assert_eq!(counters.replies_late, missed.expired);
        }
        world.left.end();
        world.right.end();
    }
}

#[test]
fn v_37_late_replies_never_reach_who_has_their_slot_now_through_shared_memory() {
    let mut world = World::shm(wide());
    // The clock of this world goes on only when nothing else does.
    let missed = many_calls(&mut world, 10_000, 4, short);
    assert_eq!(missed.failed, 0);
    world.left.end();
    world.right.end();
}

#[test]
fn v_37_late_replies_never_reach_who_has_their_slot_now_over_roce() {
    let mut world = World::roce(wide());
    let missed = many_calls(&mut world, 10_000, 4, short);
    assert_eq!(missed.failed, 0);
    world.left.end();
    world.right.end();
}

fn short(random: &mut Random) -> Duration {
    Duration::from_micros(3 + random.below(12))
}

/// A request's slot is its credit: with all of them back, as many calls fit as at the start.
#[test]
fn f_02_every_slot_serves_again_after_late_replies() {
    let rounds = times("LEGATO_LATE_REPLIES", 8_000);
    for personality in [Personality::IDEAL, Personality::RXE, Personality::EHCA] {
        let mut world = World::new(Plan::both(personality));
        let region = world.left.region;
        let watch = world
            .network
            .watch("left", &region, 0..region.length)
            .unwrap();
        late_rounds(&mut world, rounds);
        assert!(
            !world.network.touched(watch),
            "only the engine's own memory"
        );
        world.network.check_canaries().unwrap();
        world.left.end();
        world.right.end();
    }
    let mut world = World::shm(config());
    late_rounds(&mut world, rounds / 2);
    world.left.end();
    world.right.end();
    let mut world = World::roce(config());
    late_rounds(&mut world, rounds / 10);
    world.left.end();
    world.right.end();
}

fn late_rounds<N: Net>(world: &mut World<N>, rounds: u64) {
    let (here, _) = world.connect();
    for round in 0..rounds {
        let slow = world.call(here, &round.to_le_bytes(), SHORTLY);
        let mut replies = Vec::new();
        let mut requests = Vec::new();
        world.run_until(|world| {
            requests.extend(world.right.requests());
            replies.extend(world.left.replies());
            !replies.is_empty()
        });
        assert_eq!(replies, [(slow, Err(Cause::DeadlineExpired))]);
        world.right.reply(requests[0].0, b"late");
        world.ask(here, &round.to_le_bytes());
        world.right.events.clear();
    }
    let counters = world.left.fabric.counters();
    assert_eq!(counters.replies_late, rounds);
    assert_eq!((counters.replies_stale, counters.connections_reset), (0, 0));
}

/// A NIC that says everything twice.
#[test]
fn f_03_l_20_what_completes_twice_is_counted_and_changes_nothing() {
    for personality in Personality::ATTENTIVE {
        let mut world = World::new(Plan {
            config: wide(),
            ..Plan::both(personality)
        });
        world.left.nic.double_completions = true;
        world.right.nic.double_completions = true;
        let missed = many_calls(&mut world, 2_000, 5, |_| LONG);
        let (here, _) = world.connect();
        let mut operations = Vec::new();
        for number in 0..8 {
            operations.push(world.write(here, number, SECOND).unwrap());
        }
        world.run_for(SECOND + SECOND);
        let mut outcomes: Vec<_> = world.left.outcomes().iter().map(|it| it.0).collect();
        outcomes.sort_unstable();
        operations.sort_unstable();
        assert_eq!(outcomes, operations, "{}", personality.name);
        if !loses(personality) {
            assert_eq!(missed, Missed::default(), "{}", personality.name);
            // A send and a receive of each call, and each write.
            assert!(world.left.fabric.counters().completions_stale >= 2 * 2_000 + 8);
        }
        world.left.end();
        world.right.end();
    }
}
