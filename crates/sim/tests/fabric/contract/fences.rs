//! When memory comes back, and what becomes of memory that may not.

use crate::rig::{MILLISECOND, PIECE, Piece, Plan, SECOND, World, config, quiet};
use legato_base::Duration;
use legato_fabric::{
    ConnectError, FabricConfig, FabricEvent, OperationId, Proof, Quarantine, Refused,
};
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{AccessFlags, Address, Provider, VerbsError};

const EIO: VerbsError = VerbsError::System {
    call: "a broken device",
    errno: 5,
};
const CANARY: u8 = 0xC5;

fn quarantined(world: &mut World<SimNetwork>) -> usize {
    let taken = world.left.take(|event| match event {
        FabricEvent::Quarantined { operation } => Some(*operation),
        _ => None,
    });
    taken.len()
}

/// P-52: the queue pair does not go to the error state, and is destroyed in time all the same.
#[test]
fn l_32_the_error_state_is_refused() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let (here, _) = world.connect();
        world.freeze_right();
        let operation = world.read(here, 1, Duration::from_millis(10)).unwrap();
        world.left.nic.refuse_error_changes = Some(EIO);
        world.left.nic.hold_completions = true;
        world.run_for(Duration::from_millis(20));
        assert_eq!(world.left.outcomes().len(), 1);
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.run_for(SECOND);
        let destroyed = Proof::QueuePairDestroyed;
        assert_eq!(world.left.quiesced(), [(operation, 1, destroyed)]);
        assert!(world.left.fabric.counters().error_changes_refused > 0);
        world.left.nic.refuse_error_changes = None;
        world.left.nic.hold_completions = false;
        world.left.end();
    }
}

/// P-58: it is not destroyed either: quarantine, counted and visible. The buffer comes back when the
/// device does what it is told after all, and not before.
#[test]
fn l_32_neither_the_error_state_nor_destruction() {
    for personality in Personality::ALL {
        let personality = Personality {
            late_writes: None,
            ..personality
        };
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let (here, _) = world.connect();
        world.freeze_right();
        world.right.fill(1, 0x11);
        let operation = world.read(here, 1, Duration::from_millis(10)).unwrap();
        world.left.nic.refuse_error_changes = Some(EIO);
        world.left.nic.refuse_destroys = Some(EIO);
        world.left.nic.hold_completions = true;
        world.run_for(Duration::from_millis(1500));
        assert_eq!(world.left.outcomes().len(), 1, "{}", personality.name);
        assert_eq!(world.left.disconnected(), [here]);
        assert_eq!(quarantined(&mut world), 1);
        let held = world.left.fabric.quarantine();
        assert_eq!((held.operations, held.queue_pairs, held.regions), (1, 1, 1));
        assert!(held.bytes > 64);
        // The peer wakes up, and its answer lands in memory that is nobody's.
        world.network.unfreeze("right");
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.left.quiesced(), []);
        assert_eq!(world.left.fabric.quarantine(), held);
        // A provider that does not know it any more has not said that it was destroyed.
        world.left.nic.refuse_destroys = Some(VerbsError::UnknownHandle("queue pair"));
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.left.quiesced(), []);
        world.left.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(2));
        let destroyed = Proof::QueuePairDestroyed;
        assert_eq!(world.left.quiesced(), [(operation, 1, destroyed)]);
        assert_eq!(world.left.fabric.quarantine(), Quarantine::default());
        world.left.fill(1, CANARY);
        world.run_for(SECOND);
        assert!(world.left.holds(1, CANARY));
        world.left.nic.refuse_error_changes = None;
        world.left.nic.hold_completions = false;
        world.left.end();
    }
}

/// A read whose queue pair can be neither stopped nor destroyed, in quarantine.
fn stuck(personality: Personality) -> (World<SimNetwork>, OperationId) {
    let mut world = World::new(Plan {
        network: quiet(),
        ..Plan::both(Personality {
            careless: None,
            late_writes: None,
            ..personality
        })
    });
    let (here, _) = world.connect();
    world.right.paused = true;
    world.network.freeze("right");
    let operation = world.read(here, 1, Duration::from_millis(10)).unwrap();
    world.left.nic.refuse_destroys = Some(EIO);
    world.left.nic.hold_completions = true;
    world.run_for(Duration::from_millis(1500));
    world.left.nic.hold_completions = false;
    assert_eq!(world.left.disconnected(), [here]);
    assert_eq!(quarantined(&mut world), 1, "{}", personality.name);
    world.network.unfreeze("right");
    world.right.paused = false;
    (world, operation)
}

/// The peer ends its side, and says so when it is connected again: what it had sent before has
/// time to arrive, and then the buffer is back.
#[test]
fn l_33_quarantine_ends_with_the_peers_word() {
    for personality in Personality::ALL {
        let (mut world, operation) = stuck(personality);
        // Both have found out by now.
        world.run_for(Duration::from_secs(13));
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.right.events.clear();
        let (again, _) = world.connect();
        world.run_for(Duration::from_millis(500));
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.run_for(SECOND);
        let quiesced = world.left.quiesced();
        assert_eq!(quiesced, [(operation, 1, Proof::PeerClosed)]);
        // The queue pair is still there, and still counted.
        assert_eq!(world.left.fabric.quarantine().queue_pairs, 1);
        world.ask(again, b"?");
        world.left.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(2));
        world.left.end();
        world.right.end();
    }
}

/// P-59. Lost: what was in quarantine at the peer did not count among its connections, so that they were taken
/// for closed while its stuck queue pair could still answer.
#[test]
fn l_33_a_peer_whose_queue_pair_is_stuck_too_has_not_closed_it() {
    for personality in Personality::ALL {
        let (mut world, operation) = stuck(personality);
        world.right.nic.refuse_destroys = Some(EIO);
        // Both have found out by now.
        world.run_for(Duration::from_secs(13));
        assert_eq!(world.right.fabric.quarantine().queue_pairs, 1);
        world.right.events.clear();
        let (again, _) = world.connect();
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.right.nic.refuse_destroys = None;
        world.left.fabric.close(&mut world.left.nic, again);
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.left.events.clear();
        world.right.events.clear();
        world.connect();
        world.run_for(Duration::from_millis(1500));
        let quiesced = world.left.quiesced();
        assert_eq!(quiesced, [(operation, 1, Proof::PeerClosed)]);
        world.left.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(2));
        world.left.end();
        world.right.end();
    }
}

/// An operator has reset the device.
#[test]
fn l_33_quarantine_ends_by_order() {
    for personality in Personality::ALL {
        let (mut world, operation) = stuck(personality);
        world.run_for(SECOND);
        assert_eq!(world.left.quiesced(), []);
        world.left.fabric.device_stopped();
        world.run_for(MILLISECOND);
        let stopped = Proof::DeviceStopped;
        assert_eq!(world.left.quiesced(), [(operation, 1, stopped)]);
        world.left.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(2));
        world.left.end();
        world.right.end();
    }
}

/// A buffer with a region of its own needs not be waited for: its key is ended.
#[test]
fn l_33_a_region_of_its_own_is_ended_instead() {
    let mut world = World::new(Plan {
        network: quiet(),
        config: FabricConfig {
            late_write_bound: Duration::from_millis(50),
            ..config()
        },
        ..Plan::both(Personality::CLOCKED)
    });
    let (here, _) = world.connect();
    world.network.kill("right");
    world.right.paused = true;
    let domain = world.left.fabric.domain();
    let access = AccessFlags::LOCAL_WRITE;
    let own = world.left.nic.allocate_region(domain, 64, access).unwrap();
    let piece = Piece {
        number: 70,
        entry: own.entry(0, 64),
        own: Some(own),
    };
    let (from, deadline) = (world.right.place(1), world.in_time(MILLISECOND));
    let left = &mut world.left;
    let operation = left
        .fabric
        .read(&mut left.nic, here, from, piece, deadline)
        .unwrap();
    world.run_for(Duration::from_millis(5));
    let ended = Proof::LocalInvalidation;
    assert_eq!(world.left.quiesced(), [(operation, 70, ended)]);
    let gone = world.left.nic.deregister_region(&own);
    assert!(
        matches!(gone, Err(VerbsError::UnknownHandle(_))),
        "{gone:?}"
    );
    world.run_for(Duration::from_secs(2));
    world.left.end();
}

/// P-60: a quarantine that is full stops new work, before it stops the machine.
#[test]
fn f_22_a_full_quarantine_starts_nothing_new() {
    let mut world = World::new(Plan {
        network: quiet(),
        config: FabricConfig {
            quarantine_max: 100,
            grants_max: 1,
            ..config()
        },
        ..Plan::default()
    });
    let left_port = Address::Sim("left-port".to_owned());
    let left = &mut world.left;
    left.fabric.listen(&mut left.nic, &left_port).unwrap();
    let (bad, _) = world.connect();
    let (good, _) = world.connect();
    world.left.nic.refuse_destroys = Some(EIO);
    world.left.fabric.close(&mut world.left.nic, bad);
    world.run_for(Duration::from_secs(2));
    assert!(world.left.fabric.quarantine().bytes > 100);
    let refused = world.try_call(good, b"?", SECOND);
    assert_eq!(refused, Err(Refused::QuarantineFull));
    let (refused, piece) = world.write(good, 3, SECOND).unwrap_err();
    assert_eq!((refused, piece.number), (Refused::QuarantineFull, 3));
    let (piece, deadline) = (world.left.piece(4), world.in_time(SECOND));
    let left = &mut world.left;
    let access = AccessFlags::REMOTE_READ;
    let granted = left
        .fabric
        .grant(&mut left.nic, good, piece, access, deadline);
    assert_eq!(granted.unwrap_err().0, Refused::QuarantineFull);
    assert_eq!(world.try_connect(SECOND), Err(ConnectError::QuarantineFull));
    let right = &mut world.right;
    let asks = right
        .fabric
        .connect(&mut right.nic, &left_port, b"", deadline);
    world.run_for(MILLISECOND);
    let failed = world.right.failed_connects();
    assert!(
        matches!(failed[..], [(failed, ConnectError::Rejected(_))] if Ok(failed) == asks),
        "{failed:?}"
    );
    assert_eq!(world.left.accepted(), []);
    world.left.nic.refuse_destroys = None;
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.left.fabric.quarantine(), Quarantine::default());
    world.ask(good, b"?");
    world.left.end();
    world.right.end();
}

/// A region of messages that is not taken back is not used again.
#[test]
fn l_36_regions_that_are_not_taken_back_are_quarantined() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.left.nic.refuse_deregistrations = Some(VerbsError::Busy("region"));
        world.left.fabric.close(&mut world.left.nic, here);
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.left.disconnected(), [here]);
        let held = world.left.fabric.quarantine();
        assert_eq!(
            (held.operations, held.regions),
            (0, 1),
            "{}",
            personality.name
        );
        world.left.nic.refuse_deregistrations = None;
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.left.fabric.quarantine(), Quarantine::default());
        assert_eq!(world.left.nic.resource_counts().memory_regions, 1);
        world.left.end();
        world.right.end();
    }
}

/// So long a device goes on writing into what it has given back in error.
const LATE: Duration = Personality::CLOCKED.late_writes.unwrap().lasts;

/// A read fails under a dead peer. When its buffer is back a canary goes there; is it there later?
fn canary_lives(late_write_bound: Duration) -> bool {
    let mut world = World::new(Plan {
        network: quiet(),
        config: FabricConfig {
            late_write_bound,
            ..config()
        },
        ..Plan::both(Personality::CLOCKED)
    });
    let (here, _) = world.connect();
    world.network.kill("right");
    world.right.paused = true;
    let mut operations = Vec::new();
    for number in 0..8 {
        operations.push(world.read(here, number, Duration::from_millis(10)).unwrap());
    }
    let mut back = Vec::new();
    for _ in 0..2000 {
        world.run_for(Duration::from_micros(500));
        for (operation, number, _) in world.left.quiesced() {
            world.left.fill(number, CANARY);
            back.push(operation);
        }
    }
    back.sort_unstable();
    operations.sort_unstable();
    assert_eq!(back, operations);
    let lives = (0..8).all(|number| world.left.holds(number, CANARY));
    world.left.end();
    lives
}

// P-57
#[test]
fn v_30_a_device_that_writes_late_is_waited_for() {
    // Without the bound the test sees what it is to see.
    assert!(!canary_lives(Duration::ZERO));
    assert!(canary_lives(LATE));
}

/// P-60: what waits for late writes to end is in quarantine, and comes back also after every connection is
/// gone.
#[test]
fn f_22_buffers_held_for_late_writes_come_back_after_all_connections() {
    let mut world = World::new(Plan {
        config: FabricConfig {
            late_write_bound: LATE,
            quarantine_max: u64::from(PIECE) - 1,
            ..config()
        },
        ..Plan::both(Personality::CLOCKED)
    });
    let (here, _) = world.connect();
    world.freeze_right();
    let operation = world.read(here, 1, SECOND).unwrap();
    world.run_for(MILLISECOND);
    world
        .left
        .fabric
        .disconnect_all(&mut world.left.nic)
        .unwrap();
    world.run_for(MILLISECOND);
    assert_eq!(world.left.disconnected(), [here]);
    assert_eq!(world.left.outcomes().len(), 1);
    assert_eq!(world.left.quiesced(), []);
    let waits = Quarantine {
        held: 1,
        bytes: u64::from(PIECE),
        ..Quarantine::default()
    };
    assert_eq!(world.left.fabric.quarantine(), waits);
    assert_eq!(world.try_connect(SECOND), Err(ConnectError::QuarantineFull));
    world.run_for(LATE + MILLISECOND);
    let quiesced = world.left.quiesced();
    assert_eq!((quiesced.len(), quiesced[0].0), (1, operation));
    assert_eq!(world.left.fabric.quarantine(), Quarantine::default());
    world.left.end();
}
