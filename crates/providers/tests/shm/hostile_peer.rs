//! Peers that break the protocol, on a raw socket: each costs its own connection and no more.

use crate::hostile::{
    CONSUMED, DELIVERED, ENVELOPE, HELLO, Hostile, KEY_TABLE_BYTES, MAP_REPLY, MAP_REQUEST,
    PRODUCED, REFUSAL, REJECT, RING, SEGMENT_BYTES, SEND, STATE, Victim, WAKE, message, segment,
};
use crate::peer::{Peer, address};
use legato_base::timeouts::CONNECT;
use legato_base::{Duration, Time};
use legato_verbs::{ConnectionEvent, Event, Provider, SendOperation};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;

#[test]
fn strangers_who_talk_garbage_are_dropped() {
    let open = SealFlags::empty();
    let shrink = SealFlags::SHRINK;
    let bad: [(&str, Vec<u8>, Vec<OwnedFd>); 8] = [
        ("garbage", vec![0xA5; 96], vec![]),
        ("one byte", vec![1], vec![]),
        ("too long", vec![b'L'; 5000], vec![]),
        ("no descriptors", message(HELLO, 0).to_vec(), vec![]),
        ("out of turn", message(MAP_REQUEST, 1).to_vec(), vec![]),
        (
            "segments that can shrink",
            message(HELLO, 0).to_vec(),
            vec![segment(SEGMENT_BYTES, open), segment(KEY_TABLE_BYTES, open)],
        ),
        (
            "a short ring",
            message(HELLO, 0).to_vec(),
            vec![segment(4096, shrink), segment(KEY_TABLE_BYTES, shrink)],
        ),
        (
            "too many descriptors",
            message(HELLO, 0).to_vec(),
            (0..4).map(|_| segment(SEGMENT_BYTES, shrink)).collect(),
        ),
    ];
    for (what, bytes, descriptors) in bad {
        let mut victim = Victim::new("garbage");
        let hostile = Hostile::connect(&victim.address);
        let attached: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        hostile.send(&bytes, &attached);
        victim.progress();
        assert_eq!(hostile.received(), None, "{what}");
        assert_eq!(victim.peer.provider.poll_event(), None, "{what}");
        assert_eq!(victim.peer.provider.counters().peers_malformed, 1, "{what}");
        let left = victim.peer.provider.resource_counts().connection_state;
        assert_eq!(left, 0, "{what}");
    }
}

// P-34
#[test]
fn another_version_is_rejected_with_an_answer() {
    let mut victim = Victim::new("version");
    let hostile = Hostile::connect(&victim.address);
    let mut hello = message(HELLO, 0);
    hello[4] = 99;
    hostile.send(&hello, &[]);
    victim.progress();
    assert_eq!(hostile.received(), Some(REJECT));
    assert_eq!(hostile.received(), None);
    assert_eq!(victim.peer.provider.poll_event(), None);
    // The one before this knew no envelopes in its ring.
    let hostile = Hostile::connect(&victim.address);
    hello[4] = 1;
    hostile.send(&hello, &[]);
    victim.progress();
    assert_eq!(hostile.received(), Some(REJECT));
}

// P-34
#[test]
fn a_stranger_who_says_nothing_is_dropped_in_time() {
    let mut victim = Victim::new("silent");
    let hostile = Hostile::connect(&victim.address);
    victim.progress();
    let provider = &mut victim.peer.provider;
    assert_eq!(provider.resource_counts().connection_state, 1);
    let deadline = provider.progress(Time::from_nanos(1));
    assert_eq!(deadline, Time::from_nanos(1) + CONNECT);
    provider.progress(deadline + Duration::from_nanos(1));
    assert_eq!(provider.resource_counts().connection_state, 0);
    assert_eq!(hostile.received(), None);
}

/// P-98: while one is let in the next may come.
#[test]
fn a_turn_does_not_last_as_long_as_peers_connect() {
    let mut victim = Victim::new("crowd");
    let crowd: Vec<_> = (0..100)
        .map(|_| Hostile::connect(&victim.address))
        .collect();
    for (turn, let_in) in [32, 64, 96, 100].into_iter().enumerate() {
        let now = Time::from_nanos(1 + turn as u64);
        victim.peer.provider.progress(now);
        let found = victim.peer.provider.resource_counts().connection_state;
        assert_eq!(found, let_in, "after turn {turn}");
    }
    drop(crowd);
}

/// P-98: what more it says keeps till the next.
#[test]
fn a_turn_does_not_last_as_long_as_a_peer_speaks() {
    let (mut victim, hostile) = Victim::connected("talker");
    for _ in 0..150 {
        hostile.send(&message(WAKE, 0), &[]);
    }
    let key = victim.peer.region.remote_key;
    hostile.send(&message(MAP_REQUEST, key.0), &[]);
    // 64 of a connection in a turn.
    for turn in 0..2 {
        victim.peer.provider.progress(Time::from_nanos(1 + turn));
        assert_eq!(hostile.waiting(), [], "after turn {turn}");
    }
    victim.peer.provider.progress(Time::from_nanos(3));
    assert_eq!(hostile.waiting(), [MAP_REPLY]);
}

// P-36
#[test]
fn words_out_of_range_end_the_connection() {
    let cases: [(&str, u64, &[u8]); 7] = [
        ("produced", PRODUCED, &[3, 0, 0, 0, 0, 0, 0, 0]),
        ("produced too much", PRODUCED, &[0xFF; 8]),
        ("delivered", DELIVERED, &[5, 0, 0, 0, 0, 0, 0, 0]),
        ("refused nothing", REFUSAL, &[9, 0, 0, 0]),
        ("refused with an unknown status", REFUSAL, &[200, 0, 0, 0]),
        ("state", STATE, &[77, 0, 0, 0]),
        ("a state of the next version", STATE, &[5, 0, 0, 0]),
    ];
    for (what, offset, bytes) in cases {
        let (mut victim, hostile) = Victim::connected("words");
        victim.peer.post_receive(1, 0, 1024);
        hostile.write(offset, bytes);
        victim.expect_fatal(what);
    }
    let (mut victim, hostile) = Victim::connected("consumed");
    victim.peer.post_receive(1, 0, 1024);
    hostile.write(CONSUMED, &[0xFF; 8]);
    let send = SendOperation::Send;
    victim.peer.post(1, send, 0, 64);
    victim.expect_fatal("consumed");
}

// P-36
#[test]
fn a_message_with_a_wrong_length_touches_nothing() {
    for (length, number) in [(u32::MAX, 0_u32), (64 * 1024 + 1, 0), (60, 0), (8, 7)] {
        let (mut victim, hostile) = Victim::connected("length");
        victim.peer.post_receive(1, 0, 128 * 1024);
        hostile.write(RING + ENVELOPE, &[0xEE; 64]);
        hostile.put(length, number, SEND, 8);
        let untouched = victim.peer.bytes(0, 1024);
        assert_eq!(untouched, vec![0; 1024]);
        victim.expect_fatal("a wrong length");
    }
}

// P-37
#[test]
fn control_messages_out_of_turn_end_the_connection() {
    for (what, bytes) in [
        ("garbage", vec![7; 96]),
        ("a second hello", message(HELLO, 0).to_vec()),
        ("an answer to no question", message(MAP_REPLY, 1).to_vec()),
    ] {
        let (mut victim, hostile) = Victim::connected("turn");
        victim.peer.post_receive(1, 0, 1024);
        hostile.send(&bytes, &[]);
        victim.expect_fatal(what);
    }
}

// P-37
#[test]
fn one_hostile_peer_does_not_disturb_another_connection() {
    let address = address("others");
    let mut server = Peer::new();
    server.provider.listen(&address).unwrap();
    let mut random = legato_base::Random::from_seed(5);
    for _ in 0..200 {
        let hostile = Hostile::connect(&address);
        for _ in 0..random.below(4) {
            let mut bytes = message(random.below(9) as u16, 0);
            bytes[random.below(96) as usize] = random.next_u64() as u8;
            hostile.send(&bytes, &[]);
        }
        server.provider.progress(Time::from_nanos(1));
    }
    server.provider.progress(Time::from_nanos(2));
    assert_eq!(server.provider.resource_counts().connection_state, 0);
    while server.provider.poll_event().is_some() {}
    let mut client = Peer::new();
    client
        .provider
        .connect(client.queue_pair, &address, &client.introduction())
        .unwrap();
    server.provider.progress(Time::from_nanos(3));
    let event = server.provider.poll_event();
    assert!(
        matches!(
            event,
            Some(Event::Connection(ConnectionEvent::Requested { .. }))
        ),
        "{event:?}"
    );
}
