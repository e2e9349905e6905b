//! V-21: every operation of either side with lengths around multiples of every path MTU.

use crate::link::with_wide_link;
use crate::peer::{ARENA, MESSAGE_MAX, Order, Peer, Wanted};
use crate::rig::{Family, Rig};
use legato_base::Random;
use legato_verbs::{CompletionKind, PathMtu, RemoteAddress, SendOperation};

const SOURCE_AT: u64 = 1 << 20;
const SINK_AT: u64 = 2 << 20;
/// Places that are aligned to nothing.
const THERE: u32 = 4097;
const HERE: u64 = 3;

/// Lengths of one packet less than a multiple, of it, and of one more.
fn lengths(path_mtu: PathMtu) -> impl Iterator<Item = u32> {
    let mtu = path_mtu.bytes();
    let multiples = [1, 2, 3, 8].map(|count| count * mtu);
    multiples.into_iter().flat_map(|all| all - 1..=all + 1)
}

struct Sizes<'a> {
    rig: &'a mut Rig,
    peer: Peer,
    random: Random,
}

impl Sizes<'_> {
    /// Random bytes at the source, and others where they are to come to.
    fn prepare(&mut self, length: u32) -> Vec<u8> {
        let mut bytes = || self.random.next_u64() as u8;
        let source: Vec<u8> = (0..length).map(|_| bytes()).collect();
        self.rig.write(SOURCE_AT + HERE, &source);
        let sink = vec![!source[0]; length as usize + 2];
        self.rig.write(SINK_AT + HERE - 1, &sink);
        source
    }

    /// The bytes have come, and nothing beside them has changed.
    fn check(&self, what: &str, expected: &[u8]) {
        let length = expected.len();
        let found = self.rig.bytes(SINK_AT + HERE - 1, length as u32 + 2);
        assert!(found[1..=length] == *expected, "{what} of {length}");
        let around = [found[0], found[length + 1]];
        assert_eq!(around, [!expected[0]; 2], "{what} of {length}");
    }

    fn execute(&mut self, operation: SendOperation, at: u64, length: u32) {
        let kind = operation.completion_kind();
        let place = (at + HERE, length);
        self.rig.post(self.peer.queue_pair, 1, operation, place);
        assert_eq!(self.rig.await_success(), (1, kind));
    }

    fn write_and_read(&mut self, length: u32) {
        let bytes = self.prepare(length);
        let place = self.peer.place(THERE);
        self.execute(SendOperation::RdmaWrite(place), SOURCE_AT, length);
        self.execute(SendOperation::RdmaRead(place), SINK_AT, length);
        self.check("WRITE and READ", &bytes);
    }

    fn message_and_back(&mut self, length: u32) {
        let bytes = self.prepare(length);
        let queue_pair = self.peer.queue_pair;
        self.rig
            .post_receive(queue_pair, 2, (SINK_AT + HERE, length));
        let place = (SOURCE_AT + HERE, length);
        self.rig.post(queue_pair, 1, SendOperation::Send, place);
        let found = [self.rig.await_success(), self.rig.await_success()];
        assert!(found.contains(&(1, CompletionKind::Send)), "{found:?}");
        assert!(found.contains(&(2, CompletionKind::Receive { length })));
        self.check("a message", &bytes);
    }

    fn order(&mut self, order: Order, at: u64, length: u32) {
        let place = RemoteAddress {
            address: self.rig.region.address + at + HERE,
            key: self.rig.region.remote_key,
        };
        let local = (ARENA / 2, length);
        self.rig.order(self.peer, order, place, local);
    }

    /// The peer reads here, and writes it back elsewhere.
    fn peers_read_and_write(&mut self, length: u32) {
        let bytes = self.prepare(length);
        self.order(Order::Read, SOURCE_AT, length);
        self.order(Order::Write, SINK_AT, length);
        self.check("the peer's READ and WRITE", &bytes);
    }
}

fn every_size(rig: &mut Rig, family: Family, path_mtu: PathMtu) {
    let wanted = Wanted {
        family,
        path_mtu,
        ..Wanted::USUAL
    };
    let peer = rig.connect_peer(wanted);
    let random = Random::from_seed(u64::from(path_mtu.bytes()));
    let mut sizes = Sizes { rig, peer, random };
    for length in lengths(path_mtu) {
        assert!(length <= MESSAGE_MAX);
        sizes.write_and_read(length);
        sizes.message_and_back(length);
        sizes.peers_read_and_write(length);
    }
    rig.end_peer(peer);
    rig.check_packets();
}

fn every_path_mtu(family: Family) {
    let mut rig = Rig::over(family);
    for path_mtu in [PathMtu::Bytes256, PathMtu::Bytes512, PathMtu::Bytes1024] {
        every_size(&mut rig, family, path_mtu);
    }
    with_wide_link(&mut rig, |rig| {
        for path_mtu in [PathMtu::Bytes2048, PathMtu::Bytes4096] {
            every_size(rig, family, path_mtu);
        }
    });
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_sizes_around_every_path_mtu() {
    every_path_mtu(Family::Ipv4);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_sizes_around_every_path_mtu_over_ipv6() {
    every_path_mtu(Family::Ipv6);
}
