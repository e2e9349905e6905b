//! Calls that the provider refuses, one at a time.

use crate::faulty::NO_MEMORY;
use crate::rig::{MILLISECOND, Net, Plan, SECOND, World, answer};
use legato_base::Duration;
use legato_fabric::{Refused, ReplyError, ResetCause};
use legato_sim::fault::{Effect, Frequency, Refusal, Rule, Scope};
use legato_sim::provider::{Personality, SimNetwork};
use legato_transport::WorkQueue;
use legato_verbs::{QueuePairState, VerbsError};

/// A post that is refused sends nothing, says why, and is counted.
#[test]
fn f_09_l_25_a_refused_send_is_told_at_once() {
    for personality in Personality::ALL {
        for (error, expected) in [
            (VerbsError::QueueFull("send"), Refused::WouldBlock),
            (NO_MEMORY, Refused::Provider(NO_MEMORY)),
            (
                VerbsError::InvalidState(QueuePairState::Error),
                Refused::NotConnected,
            ),
        ] {
            let mut world = World::new(Plan::both(personality));
            let (here, _) = world.connect();
            world.left.nic.refuse_sends = Some(error);
            assert_eq!(world.try_call(here, b"?", SECOND), Err(expected));
            world.left.nic.refuse_sends = None;
            assert_eq!(world.left.fabric.counters().posts_refused, 1);
            world.run_for(MILLISECOND);
            assert_eq!(world.right.requests(), [], "{}", personality.name);
            let (refused, piece) = {
                world.left.nic.refuse_sends = Some(error);
                world.write(here, 5, SECOND).unwrap_err()
            };
            world.left.nic.refuse_sends = None;
            assert_eq!((refused, piece.number), (expected, 5));
            if expected == Refused::NotConnected {
                world.run_for(SECOND + SECOND);
                assert_eq!(world.left.disconnected(), [here]);
            } else {
                world.ask(here, b"it is usable");
                world.write(here, 5, SECOND).unwrap();
                world.run_for(MILLISECOND);
            }
            world.left.end();
            world.right.end();
        }
    }
}

/// A reply that cannot be posted waits, and is sent when it can be.
#[test]
fn f_09_a_refused_reply_is_sent_later() {
    for personality in Personality::ATTENTIVE {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        let call = world.call(here, b"?", SECOND);
        world.run_for(MILLISECOND);
        world.right.nic.refuse_sends = Some(VerbsError::QueueFull("send"));
        assert_eq!(world.right.serve(answer), 1);
        world.run_for(MILLISECOND);
        assert_eq!(world.left.replies(), []);
        world.right.nic.refuse_sends = None;
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.left.replies(), [(call, Ok(answer(b"?")))]);
        world.left.end();
        world.right.end();
    }
}

/// A reply that is refused for good ends its connection: the caller learns of it at once.
#[test]
fn f_09_a_reply_that_cannot_be_sent_is_not_silence() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        let call = world.call(here, b"?", Duration::from_secs(60));
        world.run_for(MILLISECOND);
        world.right.nic.refuse_sends = Some(NO_MEMORY);
        let (request, _) = world.right.requests().pop().unwrap();
        let right = &mut world.right;
        let replied = right.fabric.reply(&mut right.nic, request, b"!");
        assert!(matches!(replied, Ok(()) | Err(ReplyError::Provider(_))));
        world.run_for(MILLISECOND);
        world.right.nic.refuse_sends = None;
        world.run_for(SECOND);
        let replies = world.left.replies();
        assert_eq!(replies.len(), 1, "{}: silence", personality.name);
        assert_eq!(replies[0].0, call);
        assert!(world.right.fabric.counters().posts_refused > 0);
        world.left.end();
        world.right.end();
    }
}

fn refuse_receives(world: &World<SimNetwork>, refusal: Refusal) {
    let right = world.network.machine_number("right").unwrap();
    let refused = Effect::Post {
        of: Some(WorkQueue::Receive),
        refusal,
    };
    let once = Rule::new(Frequency::First(1), refused).within(Scope::Machine(right));
    world.network.faults(|faults| faults.add(once));
}

/// One receive is refused once: the depth is back within a second, and the peer sees nothing.
pub(crate) fn is_posted_again<N: Net>(
    mut world: World<N>,
    name: &str,
    refuse: impl FnOnce(&mut World<N>),
) {
    let (here, _) = world.connect();
    let depth = world.right.posted_receives();
    refuse(&mut world);
    for _ in 0..20 {
        world.ask(here, b"?");
    }
    world.run_for(SECOND);
    assert_eq!(world.right.posted_receives(), depth, "{name}");
    assert_eq!(world.left.disconnected(), [], "{name}");
    assert_eq!(world.right.fabric.counters().posts_refused, 1, "{name}");
    for _ in 0..20 {
        world.ask(here, b"?");
    }
    world.left.end();
    world.right.end();
}

// P-50
#[test]
fn v_38_a_receive_that_is_refused_once_is_posted_again() {
    for personality in Personality::ATTENTIVE {
        for refusal in [Refusal::NoMemory, Refusal::QueueFull] {
            let world = World::new(Plan::both(personality));
            is_posted_again(world, personality.name, |world| {
                refuse_receives(world, refusal);
            });
        }
    }
}

/// P-50: what the provider may refuse for a moment it is asked for again, a tenth of the liveness bound
/// long; then the connection ends with that reason.
#[test]
fn f_09_receives_that_are_refused_for_long_end_the_connection() {
    // Of the 10 s that the rig's peers are believed to be alive.
    let (tenth, retry) = (SECOND, Duration::from_millis(10));
    for personality in Personality::ATTENTIVE {
        for error in [VerbsError::QueueFull("receive"), NO_MEMORY] {
            let name = personality.name;
            let mut world = World::new(Plan::both(personality));
            let (here, there) = world.connect();
            let depth = world.right.posted_receives();
            world.right.nic.refuse_receives = Some(error);
            let refused = world.network.now();
            world.ask(here, b"?");
            world.run_for(tenth - world.network.now().since(refused) - MILLISECOND);
            world.ask(here, b"it is usable");
            assert_eq!(world.right.posted_receives(), depth - 2, "{name}");
            world.run_for(retry + retry);
            let right = &mut world.right;
            let deadline = world.network.now() + SECOND;
            let ended = right.fabric.call(&mut right.nic, there, b"?", deadline);
            assert_eq!(ended, Err(Refused::NotConnected), "{name}");
            world.run_for(SECOND + SECOND);
            assert_eq!(world.right.disconnected(), [there], "{name}");
            let cause = world.right.fabric.reset_cause(there);
            assert_eq!(cause, Some(ResetCause::Provider(error)), "{name}");
            assert_eq!(world.left.disconnected(), [here], "{name}");
            world.right.nic.refuse_receives = None;
            let (again, _) = world.connect();
            world.ask(again, b"?");
            world.left.end();
            world.right.end();
        }
    }
}

/// P-50: what does not pass by itself is not waited for.
#[test]
fn f_09_receives_that_stay_refused_end_the_connection() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, there) = world.connect();
        world.right.nic.refuse_receives = Some(VerbsError::LocalProtection);
        world.call(here, b"?", Duration::from_secs(60));
        world.run_for(MILLISECOND);
        let right = &mut world.right;
        let deadline = world.network.now() + SECOND;
        let ended = right.fabric.call(&mut right.nic, there, b"?", deadline);
        assert_eq!(ended, Err(Refused::NotConnected), "{}", personality.name);
        world.run_for(SECOND);
        assert_eq!(world.left.replies().len(), 1, "{}", personality.name);
        assert_eq!(world.left.disconnected(), [here]);
        world.right.nic.refuse_receives = None;
        world.run_for(SECOND + SECOND);
        assert_eq!(world.right.disconnected(), [there]);
        let cause = world.right.fabric.reset_cause(there);
        assert!(matches!(cause, Some(ResetCause::Provider(_))), "{cause:?}");
        world.left.end();
        world.right.end();
    }
}

/// Each call of the provider that needs memory fails once, on either side, while a connection is
/// made, used and ended: nothing is left over, and the node goes on.
#[test]
fn f_14_l_36_no_memory_at_any_step_leaks_nothing() {
    for personality in [Personality::IDEAL, Personality::RXE] {
        for on_left in [true, false] {
            let mut steps = 0;
            for step in 0.. {
                let mut world = World::new(Plan::both(personality));
                let side = if on_left {
                    &mut world.left.nic
                } else {
                    &mut world.right.nic
                };
                side.fail_after = Some(step);
                live(&mut world);
                let side = if on_left {
                    &mut world.left.nic
                } else {
                    &mut world.right.nic
                };
                let was_reached = side.fail_after.take().is_none();
                // Whatever came of that, the next connection is as good as ever.
                world.works_again_and_ends();
                if !was_reached {
                    break;
                }
                steps += 1;
            }
            assert!(steps > 20, "{steps}");
        }
    }
}

fn live(world: &mut World<SimNetwork>) {
    let here = world.try_connect(SECOND);
    world.run_for(MILLISECOND);
    let Ok(here) = here else {
        return;
    };
    for number in 0..4 {
        // Either may be refused.
        let _ = world.try_call(here, b"?", SECOND);
        let _ = world.write(here, number, SECOND);
        world.run_for(MILLISECOND);
        world.right.serve(answer);
        world.run_for(MILLISECOND);
    }
    world.left.fabric.close(&mut world.left.nic, here);
    world.run_for(Duration::from_secs(3));
}

/// Everything else ends, and the listener when the provider lets it.
#[test]
fn a_listener_that_cannot_be_closed_keeps_no_connection() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (_, there) = world.connect();
        let right = &mut world.right;
        right.nic.refuse_closes = Some(NO_MEMORY);
        let ended = right.fabric.disconnect_all(&mut right.nic);
        assert_eq!(ended, Err(NO_MEMORY));
        right.turn(world.network.now());
        assert_eq!(right.disconnected(), [there]);
        right.nic.refuse_closes = None;
        right.end();
    }
}
