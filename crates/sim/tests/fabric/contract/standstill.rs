//! A side that looks late, or not at all for a while, and what waits for its peer meanwhile.

use crate::rig::{Plan, SECOND, World};
use legato_base::{Duration, Time};
use legato_fabric::{Cause, FabricEvent};
use legato_sim::provider::Personality;

/// How late a turn is from which on it counts: L/200.
const LATE: Duration = Duration::from_millis(60);
const NOT_LATE: Duration = Duration::from_millis(40);
const DEADLINE: Duration = Duration::from_millis(500);

/// Turns of the left side only, each so much later than it is due, until `done`, which is to be soon.
fn turn_late(
    world: &mut World,
    late: Duration,
    mut done: impl FnMut(&FabricEvent<crate::rig::Piece>) -> bool,
) -> Time {
    let mut due = Time::ZERO;
    for _ in 0..1000 {
        let now = due.max(world.network.now()) + late;
        world.network.advance_to(now);
        due = world.left.turn(now).0;
        if world.left.events.iter().any(&mut done) {
            return now;
        }
    }
    panic!("it never ends");
}

/// P-13: every turn is late, and what waits for a peer that says nothing ends all the same: its deadline
/// is put off by as much as one of them, and again by as much.
#[test]
fn f_16_late_turns_do_not_put_an_outcome_off_for_ever() {
    for late in [LATE, NOT_LATE] {
        let allowed = if late == LATE {
            late + late
        } else {
            Duration::ZERO
        };
        for what in ["operation", "call", "connection"] {
            let mut world = World::new(Plan::default());
            let (here, _) = world.connect();
            world.freeze_right();
            let deadline = world.in_time(DEADLINE);
            match what {
                "operation" => {
                    world.write(here, 1, DEADLINE).unwrap();
                }
                "call" => {
                    world.call(here, b"?", DEADLINE);
                }
                _ => {
                    world.try_connect(DEADLINE).unwrap();
                }
            }
            let ended = turn_late(&mut world, late, |event| {
                matches!(
                    event,
                    FabricEvent::Outcome { .. }
                        | FabricEvent::Replied { .. }
                        | FabricEvent::ConnectFailed { .. }
                )
            });
            // The first turn after it, which comes late itself.
            let latest = deadline + allowed + late;
            assert!(ended >= deadline, "{what}: {ended:?} before {deadline:?}");
            assert!(ended <= latest, "{what}: {ended:?} after {latest:?}");
        }
    }
}

/// P-13: both sides stood still for longer than everything had time: it is done when they go on.
#[test]
fn v_26_what_is_under_way_when_both_sides_stand_still_is_done_afterwards() {
    for personality in Personality::ATTENTIVE {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.left.fill(1, 7);
        world.network.freeze("left");
        world.freeze_right();
        let operation = world.write(here, 1, DEADLINE).unwrap();
        let call = world.call(here, b"?", DEADLINE);
        let stopped = world.network.now();
        world.left.turn(stopped);
        world.left.paused = true;
        world.run_for(Duration::from_secs(25));
        for machine in ["left", "right"] {
            world.network.unfreeze(machine);
        }
        (world.left.paused, world.right.paused) = (false, false);
        let mut replies = Vec::new();
        world.run_for(Duration::from_millis(1));
        world.run_until(|world| {
            world.right.serve(crate::rig::answer);
            replies.extend(world.left.replies());
            !replies.is_empty()
        });
        assert_eq!(replies, [(call, Ok(crate::rig::answer(b"?")))]);
        assert_eq!(world.left.outcomes(), [(operation, Ok(()))]);
        assert!(world.right.holds(1, 7), "{}", personality.name);
        assert_eq!(world.left.disconnected(), []);
        world.left.end();
        world.right.end();
    }
}

/// P-13: a deadline that passes while this side stands still leaves the peer a tenth of the time of liveness
/// afterwards.
#[test]
fn f_16_who_stood_still_waits_a_little_longer() {
    let mut world = World::new(Plan::default());
    let (here, _) = world.connect();
    world.right.paused = true;
    let call = world.call(here, b"?", DEADLINE);
    let stopped = world.network.now();
    world.left.turn(stopped);
    world.left.paused = true;
    world.run_for(SECOND + SECOND);
    world.left.paused = false;
    let woken = world.network.now();
    let ended = turn_late(&mut world, Duration::ZERO, |event| {
        matches!(event, FabricEvent::Replied { .. })
    });
    assert_eq!(world.left.replies(), [(call, Err(Cause::DeadlineExpired))]);
    assert_eq!(ended, woken + SECOND);
    world.left.end();
    world.right.end();
}
