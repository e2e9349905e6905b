//! Who has recorded what somebody said that knows the secret, and says it again.

use super::secret::{end, refused, works, world};
use crate::rig::{MILLISECOND, RawPeer, SECOND, World};
use legato_base::Duration;
use legato_base::wire::proof::ASKING_SIZE;
use legato_fabric::{ConnectError, ProofError};
use legato_verbs::Provider;

/// What came with requests to connect to the right side.
fn asked(world: &World) -> Vec<Vec<u8>> {
    let private = world.right.nic.path.private.iter();
    let asked = private.filter(|data| data.len() == ASKING_SIZE);
    asked.cloned().collect()
}

/// What so many peers have said that connected to somebody with this secret: to connect, and to confirm. Where it
/// was said it is known; elsewhere, or after a restart, it is not.
fn recordings(secret: u8, count: usize) -> [Vec<Vec<u8>>; 2] {
    let mut world = world(90, Some(secret), Some(secret));
    (0..count).for_each(|_| works(&mut world));
    let heard = asked(&world);
    let confirmed = world.left.nic.path.confirmations.clone();
    end(world);
    assert_eq!((heard.len(), confirmed.len()), (count, count));
    [heard, confirmed]
}

// P-100
#[test]
fn a_recording_is_refused_where_it_was_recorded() {
    let mut world = world(5, Some(1), Some(1));
    for _ in 0..3 {
        works(&mut world);
    }
    let idle = world.right.nic.resource_counts();
    let made = world.right.nic.last_queue_pair;
    for (number, asked) in asked(&world).iter().enumerate() {
        let peer = RawPeer::connect(&world, asked, 1);
        world.run_for(Duration::from_millis(10));
        let counters = world.right.fabric.counters();
        let count = 1 + number as u64;
        assert_eq!(
            (counters.secrets_repeated, counters.peers_rejected),
            (count, count)
        );
        assert_eq!(world.right.nic.resource_counts(), idle);
        peer.end();
    }
    assert_eq!(
        world.right.nic.last_queue_pair, made,
        "there was one for it"
    );
    works(&mut world);
    end(world);
}

// P-79
#[test]
fn a_recording_gets_a_queue_pair_for_a_short_time_and_nothing_else() {
    let [asked, confirmed] = recordings(1, 2);
    let mut world = world(6, Some(1), Some(1));
    works(&mut world);
    let idle = world.right.nic.resource_counts();
    // The connect alone, and with the confirmation that went with it.
    for (asked, says) in asked.iter().zip([None, Some(&confirmed[1])]) {
        let mut peer = RawPeer::connect(&world, asked, 4);
        world.run_for(Duration::from_millis(10));
        assert_eq!(world.right.nic.resource_counts().queue_pairs, 1);
        let silent = says.is_none();
        if let Some(says) = says {
            peer.send(says);
        }
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.right.accepted(), []);
        assert_eq!(world.right.nic.resource_counts(), idle);
        let counters = world.right.fabric.counters();
        let expected = if silent { (1, 0) } else { (1, 1) };
        assert_eq!((counters.proofs_missing, counters.proofs_wrong), expected);
        peer.end();
    }
    works(&mut world);
    end(world);
}

// P-79
#[test]
fn recordings_take_half_of_all_places_and_no_more() {
    let [asked, _] = recordings(1, 6);
    let mut world = world(7, Some(1), Some(1));
    let peers = all_played(&mut world, &asked);
    assert_eq!(world.right.nic.resource_counts().queue_pairs, 4);
    assert_eq!(world.right.fabric.counters().secrets_busy, 2);
    let busy = refused(&mut world);
    assert_eq!(busy, ConnectError::Proof(ProofError::Busy));
    // Their time is over by now.
    assert_eq!(world.right.fabric.counters().proofs_missing, 4);
    works(&mut world);
    for peer in peers {
        peer.end();
    }
    end(world);
}

/// Somebody connects with each of these recordings.
fn all_played(world: &mut World, asked: &[Vec<u8>]) -> Vec<RawPeer> {
    let mut played = |asked: &Vec<u8>| {
        let peer = RawPeer::connect(world, asked, 1);
        world.run_for(MILLISECOND);
        peer
    };
    asked.iter().map(&mut played).collect()
}

/// P-79: before the recordings' time is over, as soon as they had time enough to confirm.
#[test]
fn who_knows_the_secret_takes_the_place_of_a_recording() {
    let [asked, _] = recordings(1, 4);
    let mut world = world(8, Some(1), Some(1));
    let peers = all_played(&mut world, &asked);
    // More than L/200 after each of them.
    world.run_for(Duration::from_millis(51));
    assert_eq!(world.right.nic.resource_counts().queue_pairs, 4);
    // Nobody gives up a place for whoever does not know it.
    let wrong = all_played(&mut world, &recordings(2, 1)[0]);
    let counters = world.right.fabric.counters();
    assert_eq!((counters.secrets_wrong, counters.proofs_missing), (1, 0));
    let (here, _) = world.connect();
    assert_eq!(world.right.nic.resource_counts().queue_pairs, 4);
    let counters = world.right.fabric.counters();
    assert_eq!((counters.proofs_missing, counters.secrets_busy), (1, 0));
    world.ask(here, b"a question");
    assert_eq!(world.right.fabric.counters().secrets_wrong, 1);
    world.run_for(Duration::from_secs(2));
    for peer in peers.into_iter().chain(wrong) {
        peer.end();
    }
    end(world);
}

// P-78
#[test]
fn nothing_is_heard_from_a_peer_before_its_confirmation() {
    let [asked, _] = recordings(1, 1);
    let mut world = world(8, Some(1), Some(1));
    works(&mut world);
    let mut peer = RawPeer::connect(&world, &asked[0], 4);
    world.run_for(Duration::from_millis(10));
    // A request of the protocol without a secret.
    let header = legato_base::wire::message::MessageHeader {
        kind: legato_base::wire::message::MessageKind::Request,
        call: 1,
        length: 4,
        time_left: legato_base::wire::message::TimeLeft::UNBOUNDED,
        epoch: 1,
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(b"body");
    peer.send(&bytes);
    world.run_for(SECOND);
    assert_eq!(world.right.requests(), []);
    assert_eq!(world.right.accepted(), []);
    // That of the connection before.
    assert_eq!(world.right.fabric.counters().requests_received, 1);
    assert_eq!(world.right.fabric.counters().proofs_wrong, 1);
    peer.end();
    end(world);
}
