//! Completion queues that have less room than the fabric asked for.

use crate::faulty::QueueDepth;
use crate::rig::{MILLISECOND, Plan, SECOND, World};
use legato_fabric::{ConnectError, ResetCause};
use legato_sim::provider::Personality;
use legato_verbs::{Provider as _, VerbsError};

/// More completions than the queue has room for, while the software stands still: all connections
/// on the queue end, what is said to have been written was, and another queue takes its place.
#[test]
fn v_16_a_queue_that_is_overrun_is_replaced() {
    const WRITES: u32 = 8;
    for personality in Personality::ALL {
        let name = personality.name;
        let mut world = World::new(Plan {
            queue_depth: QueueDepth::Overcommitted(WRITES / 2),
            ..Plan::both(personality)
        });
        let connections = [(); 2].map(|()| world.connect().0);
        let operations: Vec<_> = (0..WRITES)
            .map(|number| {
                world.left.fill(number, 1 + number as u8);
                world.write(connections[0], number, SECOND).unwrap()
            })
            .collect();
        world.left.paused = true;
        world.run_for(MILLISECOND);
        world.left.paused = false;
        world.run_for(SECOND + SECOND);

        let mut disconnected = world.left.disconnected();
        disconnected.sort_unstable();
        assert_eq!(disconnected, connections, "{name}");
        for connection in connections {
            let cause = world.left.fabric.reset_cause(connection).unwrap();
            // Of which the queue pair may tell first, where events get lost.
            let told = cause == ResetCause::QueuePairFatal && personality.careless.is_some();
            assert!(
                told || cause == ResetCause::CompletionQueueOverrun,
                "{name}: {cause:?}"
            );
        }
        let mut outcomes = world.left.outcomes();
        outcomes.sort_unstable_by_key(|(operation, _)| *operation);
        let ended: Vec<_> = outcomes.iter().map(|(operation, _)| *operation).collect();
        assert_eq!(ended, operations, "{name}");
        for (number, (_, outcome)) in (0..).zip(outcomes) {
            assert!(
                outcome.is_err() || world.right.holds(number, 1 + number as u8),
                "{name}: {number} was not written"
            );
        }
        let mut quiet: Vec<_> = world.left.quiesced().iter().map(|it| it.0).collect();
        quiet.sort_unstable();
        assert_eq!(quiet, operations, "{name}");
        assert_eq!(world.left.fabric.counters().completion_queues_replaced, 1);
        world.run_until(|world| world.right.disconnected().len() == 2);

        let (again, _) = world.connect();
        world.ask(again, b"?");
        world.left.end();
        world.right.end();
    }
}

/// A connection for whose completions there is no room is not made, and the numbers are told.
#[test]
fn v_17_a_connection_without_room_for_its_completions_is_refused() {
    /// Completions that a connection of the rig may have at a time.
    const EACH: u32 = 30;
    for personality in Personality::ALL {
        let name = personality.name;
        let mut world = World::new(Plan {
            queue_depth: QueueDepth::Short(2 * EACH - 1),
            ..Plan::both(personality)
        });
        let (here, _) = world.connect();
        let before = world.left.nic.resource_counts();
        let refused = world.try_connect(SECOND);
        let too_small = VerbsError::CompletionQueueTooSmall {
            needed: EACH,
            free: EACH - 1,
        };
        assert_eq!(refused, Err(ConnectError::Provider(too_small)), "{name}");
        assert_eq!(world.left.nic.resource_counts(), before, "{name}");
        world.ask(here, b"?");
        world.left.end();
        world.right.end();
    }
}
