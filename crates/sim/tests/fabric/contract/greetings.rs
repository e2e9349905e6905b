//! What two sides say to each other before the first message, and what follows from it.

use crate::rig::{
    CREDITS, HELLO, MILLISECOND, Plan, RawPeer, SECOND, Side, World, answer, config, life,
};
use legato_base::Time;
use legato_base::wire::message::{Hello, MessageError};
use legato_fabric::{ConnectError, ConnectionId, FabricConfig, FabricEvent, Refused};
use legato_sim::provider::SimNetworkConfig;
use legato_verbs::{ConnectionEvent, Event, Provider as _, RejectReason};
use std::collections::BTreeSet;

/// Where a Hello has its version.
const VERSION_AT: usize = 4;

/// A Hello with one byte of another value.
fn with(hello: Hello, at: usize, value: u8) -> Vec<u8> {
    let mut bytes = hello.to_bytes();
    assert_ne!(bytes[at], value);
    bytes[at] = value;
    bytes.to_vec()
}

/// P-1: the one before, and the one that comes next.
#[test]
fn a_connect_of_another_version_is_rejected() {
    let mut world = World::new(Plan::default());
    for version in [1, 3] {
        let mut peer = RawPeer::connect(&world, &with(HELLO, VERSION_AT, version), 16);
        let rejected = Event::Connection(ConnectionEvent::Rejected {
            queue_pair: peer.queue_pair,
            reason: RejectReason::ConsumerReject,
            private_data: Vec::new(),
        });
        // Another event is of this machine's earlier connection.
        world.run_until(|_| peer.nic.poll_event().as_ref() == Some(&rejected));
        assert_eq!(world.right.accepted(), [], "{version}");
        peer.end();
    }
    assert_eq!(world.right.fabric.counters().peers_rejected, 2);
    let (peer, _) = RawPeer::established(&mut world, 16);
    peer.end();
    world.left.end();
    world.right.end();
}

/// P-1, P-45: an accept says who accepts, in this version, and repeats the number of the connection.
#[test]
fn an_accept_that_is_no_answer_to_the_connect_fails_it() {
    type Answer = fn(Hello) -> Vec<u8>;
    let answers: [(Answer, Result<(), MessageError>); 7] = [
        (|_| Vec::new(), Err(MessageError::Short)),
        (
            |hello| hello.to_bytes()[..39].to_vec(),
            Err(MessageError::Short),
        ),
        (|hello| with(hello, 0, b'X'), Err(MessageError::Magic)),
        (
            |hello| with(hello, VERSION_AT, 1),
            Err(MessageError::Version(1)),
        ),
        (
            |hello| with(hello, VERSION_AT, 3),
            Err(MessageError::Version(3)),
        ),
        (
            |hello| {
                let epoch = hello.epoch + 1;
                Hello { epoch, ..hello }.to_bytes().to_vec()
            },
            Err(MessageError::Epoch),
        ),
        (|hello| hello.to_bytes().to_vec(), Ok(())),
    ];
    let mut world = World::new(Plan::default());
    for (answer, expected) in answers {
        let (peer, connection) = RawPeer::accept(&mut world, answer);
        world.run_for(MILLISECOND);
        let connected = world.left.take(|event| match event {
            FabricEvent::Connected { connection, .. } => Some(*connection),
            _ => None,
        });
        match expected {
            Ok(()) => assert_eq!(connected, [connection]),
            Err(error) => {
                let error = ConnectError::Incompatible(error);
                assert_eq!(world.left.failed_connects(), [(connection, error)]);
                assert_eq!(connected, [], "{error}");
            }
        }
        peer.end();
    }
    world.left.end();
    world.right.end();
}

/// As many calls as it may have, on one side.
fn call_all(side: &mut Side, connection: ConnectionId, now: Time) -> u32 {
    for calls in 0.. {
        let deadline = now + SECOND;
        match side.fabric.call(&mut side.nic, connection, b"?", deadline) {
            Ok(_) => {}
            Err(refused) => {
                assert_eq!(refused, Refused::WouldBlock);
                return calls;
            }
        }
    }
    unreachable!("there is no end of calls");
}

/// P-4: the left side has fewer credits than the right one, or more; and nobody sends twice.
#[test]
fn a_side_has_no_more_unanswered_calls_than_its_peer_gave() {
    for credits in [1, CREDITS - 1, CREDITS + 1, 3 * CREDITS] {
        let network = SimNetworkConfig {
            rnr_retry: 0,
            ..SimNetworkConfig::default()
        };
        let mut world = World::new(Plan {
            network,
            ..Plan::default()
        });
        let other = FabricConfig {
            credits,
            ..config()
        };
        world.left = Side::new(world.network.provider("other"), life(other, 3));
        let (here, there) = world.connect();
        for _ in 0..3 {
            let now = world.network.now();
            let most = credits.min(CREDITS);
            assert_eq!(call_all(&mut world.left, here, now), most, "{credits}");
            assert_eq!(call_all(&mut world.right, there, now), most, "{credits}");
            world.run_for(MILLISECOND);
            for side in [&mut world.left, &mut world.right] {
                assert_eq!(side.serve(answer), most as usize, "{credits}");
            }
            world.run_for(MILLISECOND);
            for side in [&mut world.left, &mut world.right] {
                let replies = side.replies();
                assert_eq!(replies.len(), most as usize, "{credits}");
                assert!(replies.iter().all(|(_, reply)| reply.is_ok()), "{credits}");
                assert_eq!(side.disconnected(), [], "{credits}");
            }
        }
        world.left.end();
        world.right.end();
    }
}

/// P-82: drawn anew for every NIC, and for every connection.
#[test]
fn first_numbers_of_queue_pairs_and_packets_are_drawn() {
    let (mut numbers, mut sequences) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..2 {
        let mut world = World::roce(config());
        world.connect();
        for side in [&world.left, &world.right] {
            let queue_pair = side.nic.last_queue_pair.unwrap();
            let known = side.nic.query_attributes(queue_pair).unwrap();
            numbers.insert(side.nic.queue_pair_number(queue_pair).unwrap());
            sequences.insert(known.send_sequence.unwrap().get());
        }
        world.left.end();
        world.right.end();
    }
    // Of 24 bits each, so that four are never the same.
    assert!(numbers.len() > 1, "{numbers:?}");
    assert!(sequences.len() > 1, "{sequences:?}");
}
