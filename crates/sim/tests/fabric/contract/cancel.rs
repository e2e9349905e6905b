//! Operations that their owner gives up.

use crate::rig::{MILLISECOND, Net, Plan, SECOND, World, answer, config};
use legato_base::Duration;
use legato_fabric::{Cause, Effect};
use legato_sim::provider::Personality;

const CANARY: u8 = 0xC5;

/// How a world is watched for what it does behind a cancellation.
pub(crate) struct Watch {
    /// Looks in the first 10 ms.
    looks: u64,
    /// Longer than a world without a clock of its own jumps.
    call_lasts: Duration,
}

const CLOSE: Watch = Watch {
    looks: 200,
    call_lasts: Duration::from_secs(60),
};

/// Where each step takes time of the test's.
pub(crate) const COARSE: Watch = Watch {
    looks: 5,
    call_lasts: Duration::from_secs(3),
};

/// A read, a write and a call are given up after so many steps: each has one outcome, and a buffer
/// that is back is never written again.
pub(crate) fn given_up<N: Net>(mut world: World<N>, steps: u32, watch: &Watch) {
    let (here, _) = world.connect();
    world.right.fill(1, 0x11);
    let read = world.read(here, 1, SECOND).unwrap();
    let write = world.write(here, 2, SECOND).unwrap();
    let call = world.call(here, b"?", watch.call_lasts);
    for _ in 0..steps {
        world.step();
        world.right.serve(answer);
    }
    let canceled = [read, write].map(|operation| world.left.fabric.cancel(operation));
    let call_canceled = world.left.fabric.cancel_call(call);
    // Once is enough.
    assert!(!world.left.fabric.cancel(read) && !world.left.fabric.cancel(write));
    assert!(!world.left.fabric.cancel_call(call));
    let mut quiesced = Vec::new();
    let mut outcomes = Vec::new();
    for _ in 0..watch.looks {
        world.run_for(Duration::from_micros(10_000 / watch.looks));
        outcomes.extend(world.left.outcomes());
        for (operation, number, _) in world.left.quiesced() {
            assert!(outcomes.iter().any(|it| it.0 == operation));
            world.left.fill(number, CANARY);
            quiesced.push(operation);
        }
        world.right.serve(answer);
    }
    world.run_for(watch.call_lasts + SECOND);
    quiesced.extend(world.left.quiesced().iter().map(|it| it.0));
    quiesced.sort_unstable();
    let mut both = [read, write];
    both.sort_unstable();
    assert_eq!(quiesced, both);
    assert_eq!(outcomes.len(), 2);
    let error = Err((Cause::Canceled, Effect::Unknown));
    for (operation, canceled) in [read, write].into_iter().zip(canceled) {
        let expected = if canceled { error } else { Ok(()) };
        assert!(outcomes.contains(&(operation, expected)));
    }
    assert!(world.left.holds(1, CANARY) && world.left.holds(2, CANARY));
    let reply = match call_canceled {
        true => Err(Cause::Canceled),
        false => Ok(answer(b"?")),
    };
    assert_eq!(world.left.replies(), [(call, reply)]);
    // The connection is as good as before.
    for _ in 0..8 {
        world.ask(here, b"again");
    }
    world.left.end();
    world.right.end();
}

// P-61
#[test]
fn l_26_v_36_given_up_at_every_step() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        for steps in 0..30 {
            given_up(World::new(Plan::both(personality)), steps, &CLOSE);
        }
    }
}

#[test]
fn l_26_v_36_given_up_at_every_step_through_shared_memory() {
    for steps in 0..6 {
        given_up(World::shm(config()), steps, &CLOSE);
    }
}

#[test]
fn l_26_v_36_given_up_at_every_step_over_roce() {
    for steps in 0..20 {
        given_up(World::roce(config()), steps, &CLOSE);
    }
}

/// P-61: what is given up while its peer is dead: the outcome at once, the buffer from the fence.
#[test]
fn l_26_given_up_under_a_dead_peer() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.freeze_right();
        let read = world.read(here, 1, Duration::from_secs(5)).unwrap();
        world.run_for(MILLISECOND);
        assert!(world.left.fabric.cancel(read));
        world.run_for(MILLISECOND);
        let error = Err((Cause::Canceled, Effect::Unknown));
        assert_eq!(world.left.outcomes(), [(read, error)]);
        assert_eq!(world.left.quiesced(), [], "{}", personality.name);
        world.run_for(Duration::from_secs(7));
        let quiesced = world.left.quiesced();
        assert_eq!((quiesced.len(), quiesced[0].0), (1, read));
        assert_eq!(world.left.outcomes(), []);
        world.left.end();
    }
}
