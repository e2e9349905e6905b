//! Events in every state, and devices and ports that fail.

use crate::rig::{MILLISECOND, Plan, SECOND, World, quiet};
use legato_base::Duration;
use legato_fabric::{Cause, ConnectionId, Effect, Proof, ResetCause};
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{
    AsyncEvent, CompletionQueue, ConnectionEvent, ConnectionRequest, Event, Listener, QueuePair,
    RejectReason, SharedReceiveQueue, UnreachableReason, VerbsError,
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
        let personality = Personality {
            careless: None,
            ..personality
        };
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
            let kinds = {
                let (world, _) = world_at(stage, plan);
                let queue_pair = world.left.nic.last_queue_pair.unwrap();
                of_queue_pair(queue_pair).len() + of_others().len()
            };
            for kind in 0..kinds {
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
    let mut all = of_queue_pair(queue_pair);
    all.extend(of_others());
    let event = all.swap_remove(kind);
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
    world.left.events.clear();
    world.right.events.clear();
    let (again, _) = world.connect();
    world.ask(again, b"?");
    world.left.end();
    world.right.end();
}

/// The same of the side that was asked, before it is established.
#[test]
fn l_37_every_event_of_a_connection_that_is_accepted() {
    let kinds = of_queue_pair(QueuePair {
        index: 0,
        generation: 0,
    })
    .len()
        + of_others().len();
    for plan in plans() {
        for kind in 0..kinds {
            let mut world = World::new(plan);
            world.try_connect(SECOND).unwrap();
            world.run_until(|world| world.right.nic.last_queue_pair.is_some());
            let queue_pair = world.right.nic.last_queue_pair.unwrap();
            let mut all = of_queue_pair(queue_pair);
            all.extend(of_others());
            world.right.nic.inject.push_back(all.swap_remove(kind));
            world.run_for(Duration::from_secs(13));
            world.left.events.clear();
            world.right.events.clear();
            let (again, _) = world.connect();
            world.ask(again, b"?");
            world.left.end();
            world.right.end();
        }
    }
}

/// A read, a write and a call are under way when something becomes of the device or port: all fail
/// with this cause within 100 ms, also where nothing is flushed, and their buffers are back.
fn all_fail(world: &mut World<SimNetwork>, here: ConnectionId, cause: ResetCause, name: &str) {
    world.run_for(Duration::from_millis(100));
    let reset = Cause::Reset(cause);
    let outcomes = world.left.outcomes();
    assert_eq!(outcomes.len(), 2, "{name}");
    for (_, outcome) in outcomes {
        assert_eq!(outcome, Err((reset, Effect::Unknown)), "{name}");
    }
    let replies = world.left.replies();
    assert_eq!(replies.len(), 1, "{name}");
    assert_eq!(replies[0].1, Err(reset), "{name}");
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.left.quiesced().len(), 2, "{name}");
    assert_eq!(world.left.disconnected(), [here], "{name}");
}

fn under_way(personality: Personality) -> (World<SimNetwork>, ConnectionId) {
    let mut world = World::new(Plan {
        network: quiet(),
        ..Plan::both(Personality {
            careless: None,
            ..personality
        })
    });
    let (here, _) = world.connect();
    world.freeze_right();
    world.read(here, 1, Duration::from_secs(60)).unwrap();
    world.write(here, 2, Duration::from_secs(60)).unwrap();
    world.call(here, b"?", Duration::from_secs(60));
    world.run_for(MILLISECOND);
    (world, here)
}

fn recovers(world: &mut World<SimNetwork>) {
    world.network.unfreeze("right");
    world.right.paused = false;
    world.run_for(Duration::from_secs(13));
    let (again, _) = world.connect();
    world.ask(again, b"?");
    world.left.end();
    world.right.end();
}

// P-56, P-90
#[test]
fn v_39_the_port_goes_down_and_comes_back() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.network.set_link("left", false);
        all_fail(&mut world, here, ResetCause::PortDown, personality.name);
        world.network.set_link("left", true);
        recovers(&mut world);
    }
}

// P-56, P-90
#[test]
fn v_39_an_address_changes() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.network.raise("left", AsyncEvent::AddressChange(1));
        all_fail(
            &mut world,
            here,
            ResetCause::AddressChanged,
            personality.name,
        );
        recovers(&mut world);
    }
}

/// P-56: the device is gone: no completion comes any more, and nothing is refused for ever.
#[test]
fn l_40_l_41_v_39_the_device_is_removed() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.left.nic.hold_completions = true;
        world.network.remove_device("left");
        world.run_for(Duration::from_secs(2));
        let outcomes = world.left.outcomes();
        assert_eq!(outcomes.len(), 2, "{}", personality.name);
        let quiesced = world.left.quiesced();
        assert_eq!(quiesced.len(), 2, "{}", personality.name);
        for (_, _, proof) in quiesced {
            assert_eq!(proof, Proof::DeviceStopped, "{}", personality.name);
        }
        assert_eq!(world.left.replies().len(), 1);
        assert_eq!(world.left.disconnected(), [here]);
        let cause = world.left.fabric.reset_cause(here);
        assert_eq!(cause, Some(ResetCause::DeviceRemoved));
        // Everything can be destroyed.
        world.left.end();
    }
}

/// P-58: it stops while a connection drains that cannot be destroyed: nothing of it stays in quarantine.
#[test]
fn l_40_the_device_stops_under_a_connection_that_drains() {
    const EIO: VerbsError = VerbsError::System {
        call: "destroy",
        errno: 5,
    };
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.left.nic.hold_completions = true;
        world.left.nic.refuse_destroys = Some(EIO);
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(MILLISECOND);
        let fatal = Event::Async(AsyncEvent::DeviceFatal);
        world.left.nic.inject.push_back(fatal);
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.left.outcomes().len(), 2, "{}", personality.name);
        let quiesced = world.left.quiesced();
        assert_eq!(
            quiesced.len(),
            2,
            "{}: {:?}",
            personality.name,
            world.left.fabric.quarantine()
        );
        for (_, _, proof) in quiesced {
            assert_eq!(proof, Proof::DeviceStopped, "{}", personality.name);
        }
        world.left.nic.refuse_destroys = None;
        world.left.nic.hold_completions = false;
        world.run_for(Duration::from_secs(3));
        world.left.end();
    }
}
