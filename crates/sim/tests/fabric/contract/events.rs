//! Every event in every state.

use crate::rig::{MILLISECOND, Plan, SECOND, World};
use legato_base::Duration;
use legato_fabric::ConnectionId;
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{
    AsyncEvent, CompletionQueue, ConnectionEvent, ConnectionRequest, Event, Listener,
    Provider as _, QueuePair, QueuePairState, RejectReason, SharedReceiveQueue, UnreachableReason,
};

/// Everything that a provider can say about a queue pair.
fn of_queue_pair(queue_pair: QueuePair) -> Vec<Event> {
    let connection = [
        ConnectionEvent::Established {
            queue_pair,
            private_data: vec![1, 2, 3],
        },
        ConnectionEvent::Rejected {
            queue_pair,
            reason: RejectReason::StaleConnection,
            private_data: Vec::new(),
        },
        ConnectionEvent::Unreachable {
            queue_pair,
            reason: UnreachableReason::NoSuchAddress,
        },
        ConnectionEvent::Disconnected { queue_pair },
        ConnectionEvent::DeviceRemoved { queue_pair },
        ConnectionEvent::AddressRemoved { queue_pair },
        ConnectionEvent::AddressReturned { queue_pair },
        ConnectionEvent::TimeWaitExit { queue_pair },
    ];
    let events = [
        AsyncEvent::QueuePairFatal(queue_pair),
        AsyncEvent::QueuePairRequestError(queue_pair),
        AsyncEvent::QueuePairAccessError(queue_pair),
        AsyncEvent::CommunicationEstablished(queue_pair),
        AsyncEvent::SendQueueDrained(queue_pair),
        AsyncEvent::PathMigrated(queue_pair),
        AsyncEvent::PathMigrationError(queue_pair),
        AsyncEvent::LastWorkRequestReached(queue_pair),
    ];
    let connection = connection.into_iter().map(Event::Connection);
    connection
        .chain(events.into_iter().map(Event::Async))
        .collect()
}

/// Everything about other things, none of which exist but the device and its port.
fn of_others() -> Vec<Event> {
    let (index, generation) = (7, 77);
    let queue = SharedReceiveQueue { index, generation };
    let completions = CompletionQueue { index, generation };
    let events = [
        AsyncEvent::CompletionQueueError(completions),
        AsyncEvent::SharedReceiveQueueError(queue),
        AsyncEvent::SharedReceiveQueueLimit(queue),
        AsyncEvent::PortActive(1),
        AsyncEvent::PortError(1),
        AsyncEvent::LocalIdentifierChange(1),
        AsyncEvent::PartitionKeyChange(1),
        AsyncEvent::SubnetManagerChange(1),
        AsyncEvent::ClientReregister(1),
        AsyncEvent::AddressChange(1),
        AsyncEvent::DeviceFatal,
    ];
    let mut all: Vec<Event> = events.into_iter().map(Event::Async).collect();
    all.push(Event::CompletionQueueReady(completions));
    all.push(Event::Connection(ConnectionEvent::Requested {
        listener: Listener { index, generation },
        request: ConnectionRequest { index, generation },
        private_data: vec![9; 56],
    }));
    all
}

/// Everything that can be said where this queue pair is.
fn every(queue_pair: QueuePair) -> Vec<Event> {
    [of_queue_pair(queue_pair), of_others()].concat()
}

/// How many different events there are.
fn kinds() -> usize {
    every(QueuePair {
        index: 0,
        generation: 0,
    })
    .len()
}

/// Where the left side's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Established,
    Draining,
    Gone,
}

const STAGES: [Stage; 4] = [
    Stage::Connecting,
    Stage::Established,
    Stage::Draining,
    Stage::Gone,
];

fn world_at(stage: Stage, plan: Plan) -> (World<SimNetwork>, ConnectionId) {
    let mut world = World::new(plan);
    if stage == Stage::Connecting {
        let here = world.try_connect(SECOND).unwrap();
        return (world, here);
    }
    let (here, _) = world.connect();
    if stage != Stage::Established {
        world.write(here, 1, SECOND).unwrap();
        world.call(here, b"?", SECOND);
        world.left.nic.hold_completions = stage == Stage::Draining;
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(MILLISECOND);
    }
    (world, here)
}

/// All kinds of NICs, with receives of each connection's own and with shared ones.
fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for personality in Personality::ALL {
        let personality = personality.attentive();
        for shared_receives in [None, Some(60)] {
            let mut plan = Plan::both(personality);
            plan.config.shared_receives = shared_receives;
            plans.push(plan);
        }
    }
    plans
}

/// P-54: whatever is said, in whatever state and however often: nothing panics, nothing leaks, each
/// thing that was started ends once, and the next connection works.
#[test]
fn l_37_every_event_in_every_state() {
    for plan in plans() {
        for stage in STAGES {
            for kind in 0..kinds() {
                for times in 1..=2 {
                    said_in(stage, plan, kind, times);
                }
            }
        }
    }
}

fn said_in(stage: Stage, plan: Plan, kind: usize, times: u32) {
    let (mut world, here) = world_at(stage, plan);
    let queue_pair = world.left.nic.last_queue_pair.unwrap();
    let event = every(queue_pair).swap_remove(kind);
    let shared = plan.config.shared_receives;
    let context = format!("{} {shared:?} {stage:?} {event:?}", plan.left.name);
    for _ in 0..times {
        world.left.nic.inject.push_back(event.clone());
    }
    if stage == Stage::Established {
        world.write(here, 1, SECOND).unwrap();
        world.call(here, b"?", SECOND);
    }
    world.run_for(MILLISECOND);
    world.left.nic.hold_completions = false;
    world.run_for(Duration::from_secs(13));
    assert!(world.left.disconnected().len() <= 1, "{context}");
    let outcomes = world.left.outcomes().len();
    assert_eq!(outcomes, world.left.quiesced().len(), "{context}");
    world.works_again_and_ends();
}

/// The same of the side that was asked, before it is established.
#[test]
fn l_37_every_event_of_a_connection_that_is_accepted() {
    for plan in plans() {
        for kind in 0..kinds() {
            let mut world = World::new(plan);
            world.try_connect(SECOND).unwrap();
            world.run_until(|world| world.right.nic.last_queue_pair.is_some());
            let queue_pair = world.right.nic.last_queue_pair.unwrap();
            let event = every(queue_pair).swap_remove(kind);
            world.right.nic.inject.push_back(event);
            world.run_for(Duration::from_secs(13));
            world.works_again_and_ends();
        }
    }
}

/// The same of either side while it waits for the other's proof.
#[test]
fn l_37_every_event_of_a_connection_that_is_not_proved() {
    for mut plan in plans() {
        plan.config.separate_peers = true;
        for (of_left, kind) in [false, true]
            .into_iter()
            .flat_map(|of_left| (0..kinds()).map(move |kind| (of_left, kind)))
        {
            let mut world = World::new(plan);
            world.prove(1, Some(1), Some(1));
            world.try_connect(SECOND).unwrap();
            world.run_until(|world| world.right.nic.last_queue_pair.is_some());
            if of_left {
                world.right.paused = true;
            } else {
                world.left.paused = true;
            }
            world.run_for(MILLISECOND);
            let side = if of_left {
                &mut world.left
            } else {
                &mut world.right
            };
            // The queue pair is ready, and nobody was told.
            let queue_pair = side.nic.last_queue_pair.unwrap();
            let state = side.nic.query_queue_pair(queue_pair);
            assert_eq!(state, Ok(QueuePairState::ReadyToSend));
            assert!(side.events.is_empty());
            let event = every(queue_pair).swap_remove(kind);
            side.nic.inject.push_back(event);
            world.run_for(MILLISECOND);
            world.left.paused = false;
            world.right.paused = false;
            world.run_for(Duration::from_secs(13));
            world.works_again_and_ends();
        }
    }
}
