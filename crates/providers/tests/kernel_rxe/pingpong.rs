//! V-21: `ibv_rc_pingpong` of the distribution, in either role: messages go to and fro between a
//! buffer on each side, and each is what was received before.

use crate::exchange::Exchange;
use crate::link::with_wide_link;
use crate::peer::terms;
use crate::rig::{Family, Rig};
use legato_base::Random;
use legato_providers::roce::out_of_band::{Introduction, connect};
use legato_verbs::{
    CompletionKind, PacketSequenceNumber, PathMtu, Provider as _, QueuePair, SendOperation,
};

const SEND_AT: u64 = 0;
const RECEIVE_AT: u64 = 2 << 20;
/// Of both sides; its own 67 ms (14) are too short for a busy machine, but are not ours to choose.
const TIMEOUT: u8 = 18;
const SEQUENCE: PacketSequenceNumber = PacketSequenceNumber::new(0x00FF_FFF0);
/// What its buffer holds at first, and at the beginning of each page if it is to check (`-c`), which
/// then must be zero at its end too.
const FILL: u8 = 0x7B;
const PAGE: usize = 4096;

/// What the program is asked for.
#[derive(Clone, Copy)]
struct Asked {
    family: Family,
    path_mtu: PathMtu,
    length: u32,
    rounds: u32,
    /// It checks (`-c`).
    checks: bool,
    /// It sleeps until a completion is there (`-e`).
    sleeps: bool,
}

impl Asked {
    const USUAL: Self = Self {
        family: Family::Ipv4,
        path_mtu: PathMtu::Bytes1024,
        length: 4096,
        rounds: 100,
        checks: true,
        sleeps: false,
    };

    fn program(&self) -> String {
        let (index, mtu) = (self.family.gid_index(), self.path_mtu.bytes());
        let (length, rounds) = (self.length, self.rounds);
        let flag = |name, wanted| if wanted { name } else { "" };
        format!(
            "ibv_rc_pingpong -d rxe0 -g {index} -m {mtu} -s {length} -n {rounds}{}{}",
            flag(" -c", self.checks),
            flag(" -e", self.sleeps)
        )
    }

    fn connect(&self, rig: &mut Rig, queue_pair: QueuePair, peer: &Introduction) {
        assert_eq!(peer.gid, self.family.gid_there().octets());
        let terms = terms(self.path_mtu, TIMEOUT);
        connect(&mut rig.nic, queue_pair, SEQUENCE, peer, &terms).unwrap();
    }

    /// What the program asks about at its end: the pages' first bytes are zero.
    fn message(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.length).map(|_| random.next_u64() as u8).collect();
        if self.checks {
            bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
        }
        bytes
    }
}

impl Rig {
    fn introduction(&self, queue_pair: QueuePair) -> Introduction {
        Introduction::of(&self.nic, queue_pair, SEQUENCE).unwrap()
    }

    fn post_ball(&mut self, queue_pair: QueuePair, bytes: &[u8]) {
        self.write(SEND_AT, bytes);
        let length = bytes.len() as u32;
        self.post(queue_pair, 1, SendOperation::Send, (SEND_AT, length));
    }

    /// A completion of a send, or the next message.
    fn await_ball(&mut self, length: u32) -> Vec<u8> {
        loop {
            match self.await_success() {
                (1, CompletionKind::Send) => {}
                (2, kind) => {
                    assert_eq!(kind, CompletionKind::Receive { length });
                    return self.bytes(RECEIVE_AT, length);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn end_game(&mut self, asked: &Asked, queue_pair: QueuePair) {
        let figures = format!("{} iters in ", asked.rounds);
        let figures = self.await_line(&figures);
        assert!(figures.ends_with(" usec/iter"), "{figures}");
        assert_eq!(self.await_line("ended "), "ended 0");
        self.nic.destroy_queue_pair(queue_pair).unwrap();
        self.check_packets();
    }
}

/// This side is the server: it answers.
fn serve(rig: &mut Rig, asked: Asked) {
    let queue_pair = rig.queue_pair();
    let receive = (RECEIVE_AT, asked.length);
    rig.post_receive(queue_pair, 2, receive);
    let mut exchange = Exchange::serve(rig, &asked.program());
    let peer = exchange.receive_introduction(rig);
    asked.connect(rig, queue_pair, &peer);
    exchange.send(&rig.introduction(queue_pair).to_bytes());
    exchange.receive_done(rig);
    let mut random = Random::from_seed(u64::from(asked.length));
    let mut expected = vec![FILL; asked.length as usize];
    if asked.checks {
        expected.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    }
    for round in 0..asked.rounds {
        let found = rig.await_ball(asked.length);
        assert!(found == expected, "round {round}");
        rig.post_receive(queue_pair, 2, receive);
        expected = asked.message(&mut random);
        rig.post_ball(queue_pair, &expected);
    }
    rig.end_game(&asked, queue_pair);
}

/// This side is the client: it begins.
fn ask(rig: &mut Rig, asked: Asked) {
    let queue_pair = rig.queue_pair();
    let mut exchange = Exchange::ask(rig, &asked.program());
    exchange.send(&rig.introduction(queue_pair).to_bytes());
    let peer = exchange.receive_introduction(rig);
    exchange.send_done();
    asked.connect(rig, queue_pair, &peer);
    let mut random = Random::from_seed(u64::from(asked.length));
    for round in 0..asked.rounds {
        rig.post_receive(queue_pair, 2, (RECEIVE_AT, asked.length));
        let message = asked.message(&mut random);
        rig.post_ball(queue_pair, &message);
        let found = rig.await_ball(asked.length);
        assert!(found == message, "round {round}");
    }
    rig.end_game(&asked, queue_pair);
}

/// With every path MTU of a link of 1500 bytes, short and long messages.
fn both_roles(run: fn(&mut Rig, Asked)) {
    let mut rig = Rig::new();
    for (path_mtu, length, rounds, sleeps) in [
        (PathMtu::Bytes256, 1, 100, false),
        (PathMtu::Bytes512, 4096, 50, true),
        (PathMtu::Bytes1024, 4097, 100, false),
        (PathMtu::Bytes1024, 1 << 20, 2, true),
    ] {
        let asked = Asked {
            path_mtu,
            length,
            rounds,
            sleeps,
            ..Asked::USUAL
        };
        run(&mut rig, asked);
    }
    with_wide_link(&mut rig, |rig| {
        for path_mtu in [PathMtu::Bytes2048, PathMtu::Bytes4096] {
            let (length, rounds) = (8191, 50);
            let asked = Asked {
                path_mtu,
                length,
                rounds,
                ..Asked::USUAL
            };
            run(rig, asked);
        }
    });
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_a_server_for_ibv_rc_pingpong() {
    both_roles(serve);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_a_client_of_ibv_rc_pingpong() {
    both_roles(ask);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ibv_rc_pingpong_over_ipv6() {
    let mut rig = Rig::over(Family::Ipv6);
    let asked = Asked {
        family: Family::Ipv6,
        ..Asked::USUAL
    };
    serve(&mut rig, asked);
    ask(&mut rig, asked);
}

/// That the program looks at what it has received: a wrong byte in its last message is told.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn ibv_rc_pingpong_sees_a_wrong_byte() {
    let mut rig = Rig::new();
    let queue_pair = rig.queue_pair();
    let asked = Asked {
        rounds: 1,
        length: 3 * PAGE as u32,
        ..Asked::USUAL
    };
    let mut exchange = Exchange::ask(&mut rig, &asked.program());
    exchange.send(&rig.introduction(queue_pair).to_bytes());
    let peer = exchange.receive_introduction(&mut rig);
    exchange.send_done();
    asked.connect(&mut rig, queue_pair, &peer);
    rig.post_receive(queue_pair, 2, (RECEIVE_AT, asked.length));
    let mut message = asked.message(&mut Random::from_seed(1));
    message[PAGE] = 1;
    rig.post_ball(queue_pair, &message);
    assert!(rig.await_ball(asked.length) == message);
    assert_eq!(rig.await_line("invalid data"), "invalid data in page 1");
    rig.end_game(&asked, queue_pair);
}
