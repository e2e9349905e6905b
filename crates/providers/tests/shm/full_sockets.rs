//! Peers that do not read their socket for a while: they are told what there is to tell when they do, and
//! nobody looks for that again and again meanwhile.

use crate::hostile::{Hostile, MAP_REPLY, MAP_REQUEST, PARAMETERS, REVOKED, Victim, message};
use crate::peer::Peer;
use legato_verbs::{AccessFlags, Provider, RemoteAddress, RemoteKey, SendOperation};
use rustix::event::Timespec;

/// More than a socket holds messages: some 280 (`net.core.wmem_default`).
const REGIONS: usize = 2000;

/// A victim whose peer was told of so many regions, and has not read that they are gone.
fn unread(name: &str) -> (Victim, Hostile) {
    let (mut victim, hostile) = Victim::connected(name);
    let domain = victim.peer.domain;
    let mut regions = Vec::new();
    for _ in 0..REGIONS {
        let access =
            AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        let provider = &mut victim.peer.provider;
        let region = provider.allocate_region(domain, 4096, access).unwrap();
        asks(&hostile, region.remote_key);
        victim.progress();
        assert_eq!(hostile.received(), Some(MAP_REPLY));
        regions.push(region);
    }
    for region in &regions {
        victim.peer.provider.deregister_region(region).unwrap();
    }
    assert!(!has_something_to_do(&victim.peer), "before it reads");
    (victim, hostile)
}

fn asks(hostile: &Hostile, key: RemoteKey) {
    hostile.send(&message(MAP_REQUEST, key.0), &[]);
}

fn has_something_to_do(peer: &Peer) -> bool {
    peer.wait(&Timespec::default())
}

/// The peer reads all that there is, again and again, until everything was said: that all its regions are
/// gone, and then what is returned.
fn read_all(victim: &mut Victim, hostile: &Hostile, more: usize) -> Vec<u16> {
    let mut told = hostile.waiting();
    assert!(told.len() < REGIONS, "the socket holds it all");
    while told.len() < REGIONS + more {
        assert!(has_something_to_do(&victim.peer), "after it has read");
        victim.progress();
        told.extend(hostile.waiting());
    }
    victim.progress();
    assert!(!has_something_to_do(&victim.peer), "when all is said");
    let others = told.split_off(REGIONS);
    assert!(told.iter().all(|&kind| kind == REVOKED));
    others
}

// P-97
#[test]
fn a_peer_learns_of_every_region_that_is_gone() {
    let (mut victim, hostile) = unread("revoked");
    assert_eq!(read_all(&mut victim, &hostile, 0), []);
}

/// P-97: as one that was stopped with a question asked.
#[test]
fn a_peer_that_has_not_read_gets_its_answer() {
    let (mut victim, hostile) = unread("answer");
    asks(&hostile, victim.peer.region.remote_key);
    victim.progress();
    assert_eq!(victim.peer.provider.poll_event(), None);
    assert_eq!(victim.peer.provider.counters().peers_malformed, 0);
    assert_eq!(read_all(&mut victim, &hostile, 1), [MAP_REPLY]);
}

// P-97
#[test]
fn a_peer_that_has_not_read_is_asked() {
    let (mut victim, hostile) = unread("question");
    let access = AccessFlags::REMOTE_READ.bits();
    hostile.write(PARAMETERS, &access.to_le_bytes());
    let remote = RemoteAddress {
        key: RemoteKey(1),
        address: 0,
    };
    victim.peer.post(1, SendOperation::RdmaRead(remote), 0, 8);
    victim.progress();
    assert_eq!(read_all(&mut victim, &hostile, 1), [MAP_REQUEST]);
}

/// An honest one has one question open at a time.
#[test]
fn a_peer_that_asks_on_and_reads_nothing_is_dropped() {
    let (mut victim, hostile) = unread("asks-on");
    let key = victim.peer.region.remote_key;
    for _ in 0..2 {
        asks(&hostile, key);
    }
    victim.progress();
    victim.expect_fatal_event("two questions");
}
