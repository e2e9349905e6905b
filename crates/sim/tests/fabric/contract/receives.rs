//! The receives that a peer's messages find.

use super::shared;
use crate::rig::{CREDITS, EPOCH, MILLISECOND, Plan, RawPeer, SECOND, Side, World, answer, quiet};
use legato_base::Duration;
use legato_base::wire::message::{MESSAGE_HEADER_SIZE, MessageHeader, MessageKind, TimeLeft};
use legato_fabric::{ConnectError, FabricEvent};
use legato_sim::provider::{Personality, SimNetworkConfig};
use legato_verbs::VerbsError;

/// P-5: all that a peer may send comes while nobody looks: its calls, its replies, a ping and a pong.
/// There is no second try on these NICs.
#[test]
fn a_side_that_stands_still_has_a_receive_for_everything_that_may_come() {
    // A peer that has said nothing for a tenth of the liveness bound is asked.
    let asked = Duration::from_millis(1100);
    for personality in Personality::ATTENTIVE {
        let name = personality.name;
        let mut world = World::new(Plan {
            network: SimNetworkConfig {
                rnr_retry: 0,
                ..quiet()
            },
            ..Plan::both(personality)
        });
        let (here, there) = world.connect();
        let credits = CREDITS as usize;
        let long = Duration::from_secs(60);
        world.left.paused = true;
        for _ in 0..CREDITS {
            let deadline = world.in_time(long);
            let right = &mut world.right;
            let called = right.fabric.call(&mut right.nic, there, b"?", deadline);
            called.unwrap();
        }
        world.run_for(asked);
        world.right.paused = true;
        world.left.paused = false;
        world.run_for(MILLISECOND);
        assert_eq!(world.left.serve(answer), credits, "{name}");
        for _ in 0..CREDITS {
            world.call(here, b"?", long);
        }
        world.run_for(asked);
        world.right.paused = false;
        world.run_for(MILLISECOND);
        assert_eq!(world.right.serve(answer), credits, "{name}");
        world.run_for(MILLISECOND);
        for side in [&mut world.left, &mut world.right] {
            let replies = side.replies();
            assert_eq!(replies.len(), credits, "{name}");
            assert!(replies.iter().all(|(_, reply)| reply.is_ok()), "{name}");
            assert_eq!(side.disconnected(), [], "{name}");
            assert_eq!(side.fabric.counters().connections_reset, 0, "{name}");
        }
        world.left.end();
        world.right.end();
    }
}

/// P-5: whoever has the answer to a ping may ask again.
#[test]
fn a_receive_is_posted_again_before_the_ping_in_it_is_answered() {
    let mut world = World::new(Plan::default());
    let (mut peer, _) = RawPeer::established(&mut world, 16);
    let depth = world.right.posted_receives();
    let ping = MessageHeader {
        kind: MessageKind::Ping,
        call: 0,
        length: 0,
        time_left: TimeLeft::UNBOUNDED,
        epoch: EPOCH,
    };
    peer.send(&ping.to_bytes());
    world.run_for(MILLISECOND);
    let bytes = peer.received(0, MESSAGE_HEADER_SIZE);
    let pong = MessageHeader::parse(&bytes, MESSAGE_HEADER_SIZE as u32).unwrap();
    assert_eq!(pong.kind, MessageKind::Pong);
    assert_eq!(world.right.nic.receives_at_send, depth);
    assert_eq!(world.right.posted_receives(), depth);
    peer.end();
    world.left.end();
    world.right.end();
}

const fn side(world: &mut World, on_right: bool) -> &mut Side {
    match on_right {
        true => &mut world.right,
        false => &mut world.left,
    }
}

/// P-91: the others have what there is, so the next connection is not made, by whichever side; when there
/// is something again it is.
#[test]
fn a_connection_without_a_credit_is_not_made() {
    let full = VerbsError::QueueFull("shared receive");
    // Of the twelve for two connections, five are the first one's and five the second one's.
    for missing in [2, 3] {
        for on_right in [true, false] {
            let mut plan = shared::plan(Personality::IDEAL);
            plan.config.connections_max = 2;
            plan.config.shared_receives = Some(12);
            let mut world = World::new(plan);
            let (first, _) = world.connect();
            side(&mut world, on_right).nic.refuse_receives = Some(full);
            for _ in 0..missing {
                world.ask(first, b"?");
            }
            let said = side(&mut world, on_right).fabric.shared_receives().unwrap();
            assert_eq!((said.granted, said.missing), (5, missing));
            let second = world.try_connect(SECOND);
            world.run_for(MILLISECOND);
            let ended = world.left.take(|event| match event {
                FabricEvent::Connected { .. } => Some(Ok(())),
                FabricEvent::ConnectFailed { error, .. } => Some(Err(*error)),
                _ => None,
            });
            match (missing, on_right) {
                (2, _) => assert_eq!(ended, [Ok(())]),
                (_, true) => {
                    assert!(matches!(ended[..], [Err(ConnectError::Rejected(_))]));
                    assert_eq!(world.right.fabric.counters().peers_rejected, 1);
                }
                (_, false) => {
                    let none = VerbsError::LimitExceeded {
                        what: "receives that connections share",
                        asked: 13,
                        limit: 12,
                    };
                    assert_eq!(second, Err(ConnectError::Provider(none)));
                }
            }
            side(&mut world, on_right).nic.refuse_receives = None;
            world.run_for(Duration::from_millis(50));
            world.right.events.clear();
            world.ask(first, b"?");
            if missing == 3 {
                let (second, _) = world.connect();
                world.ask(second, b"?");
            }
            world.left.end();
            world.right.end();
        }
    }
}
