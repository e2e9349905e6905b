//! Paths that lose long packets without a word, from the beginning or from some time on.

use crate::carrier_rig::{Kind, Side};
use crate::rig::{Rig, Way};
use legato_base::Duration;
use legato_providers::roce::carrier::Options;
use legato_verbs::QueuePair;
use std::cell::Cell;
use std::rc::Rc;

const LENGTH: u32 = 32 << 10;
/// As a frame of 1500 bytes has room for, CRC included.
const NARROW: usize = 1472;
const WIDE: usize = 9000;

/// A connection over a relay that loses what is longer than it takes, and remembers the longest of the rest.
struct World {
    rig: Rig,
    client: QueuePair,
    takes: Rc<Cell<usize>>,
    longest: Rc<Cell<usize>>,
    rounds: u8,
}

impl World {
    fn new(net: u8, takes: usize, drops_own: bool) -> Self {
        let mut rig = Rig::new(net);
        let [takes, longest] = [takes, 0].map(|number| Rc::new(Cell::new(number)));
        let (limit, seen) = (Rc::clone(&takes), Rc::clone(&longest));
        rig.rule = Box::new(move |_: Way, bytes: &[u8]| {
            let is_own = bytes[0] >= 0xC0;
            if bytes.len() > limit.get() || is_own && drops_own {
                return vec![];
            }
            if !is_own {
                seen.set(seen.get().max(bytes.len()));
            }
            vec![(Duration::ZERO, bytes.to_vec())]
        });
        let (client, _, connected) = rig.connect();
        assert!(connected);
        Self {
            rig,
            client,
            takes,
            longest,
            rounds: 0,
        }
    }

    /// A WRITE and a READ of it. False if they do not end well in that time.
    fn moves(&mut self, within: Duration) -> bool {
        self.rounds += 1;
        self.longest.set(0);
        let bytes: Vec<u8> = (0..LENGTH)
            .map(|at| (at % 251) as u8 ^ self.rounds)
            .collect();
        self.rig.moves(self.client, &bytes, within)
    }

    fn pass(&mut self, time: Duration) {
        self.rig.run(time, |_| false);
    }
}

#[test]
fn a_path_that_is_narrower_than_its_ends_carries_everything() {
    let mut world = World::new(70, NARROW, false);
    assert!(world.moves(Duration::from_secs(5)));
    // From there on nothing is lost.
    let before = world.rig.client.provider.congestion_counters();
    assert!(world.moves(Duration::from_secs(1)));
    let after = world.rig.client.provider.congestion_counters();
    assert_eq!(
        (before.timeouts, before.resends),
        (after.timeouts, after.resends)
    );
}

/// Lost: the node, with all pages there.
// P-104
#[test]
fn a_path_that_becomes_narrow_under_work_loses_no_connection() {
    let mut world = World::new(71, WIDE, false);
    assert!(world.moves(Duration::from_secs(1)));
    assert!(world.longest.get() > 4096);
    world.takes.set(NARROW);
    assert!(world.moves(Duration::from_secs(5)));
    // Nobody trusts it before it was tried.
    world.takes.set(WIDE);
    assert!(world.moves(Duration::from_secs(1)));
    assert!(world.longest.get() < NARROW);
    world.pass(Duration::from_secs(700));
    assert!(world.moves(Duration::from_secs(1)));
    assert!(world.longest.get() > 4096);
}

/// Other NICs' way with packets that they do not know.
#[test]
fn a_peer_that_answers_no_tries_gets_long_packets() {
    let mut world = World::new(72, WIDE, true);
    for _ in 0..3 {
        assert!(world.moves(Duration::from_secs(1)));
        assert!(world.longest.get() > 4096);
        world.pass(Duration::from_secs(10));
    }
}

/// Who can send in another's name could have much sent to him.
// P-104
#[test]
fn strangers_are_not_answered() {
    let mut world = World::new(73, WIDE, false);
    // Opcode 0xC0 to queue pair 0, numbers, and that something is missing.
    let mut packet = [0xC0, 0x40, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 0, 0];
    let stranger = "127.31.73.9:4791";
    let mut side = Side::open(Kind::Datagram, stranger, &Options::default());
    let server = "127.31.73.1:4791".parse().unwrap();
    for _ in 0..2 {
        side.send(server, &packet);
        side.carrier.flush();
        world.pass(Duration::from_millis(50));
        assert_eq!(side.receive().len(), 0);
        packet[11] = 6;
    }
    // A peer is.
    let answers = Rc::new(Cell::new(0));
    let counted = Rc::clone(&answers);
    world.rig.rule = Box::new(move |way, bytes| {
        let is_answer = way == Way::ToClient && bytes[0] == 0xC1;
        counted.set(counted.get() + u32::from(is_answer));
        vec![]
    });
    world.rig.forge(Way::ToServer, &packet);
    world.pass(Duration::from_millis(50));
    assert_eq!(answers.get(), 1);
}
