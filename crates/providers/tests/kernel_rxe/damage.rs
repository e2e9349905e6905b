//! Packets for a queue pair of the kernel's from a plain socket: V-13, no damaged one is answered;
//! and one repetition that it does not bear.

use crate::guest::Guest;
use crate::raw_packets::{RawSocket, header};
use crate::rig::{GUEST, HERE};
use legato_transport::wire::{Body, Extra, NakCode, RemoteHeader, Syndrome};
use legato_verbs::{PacketSequenceNumber, QueuePairNumber, RemoteKey};
use rustix::event::Timespec;

const FIRST: u32 = 100;
const PAYLOAD: usize = 64;
/// Damaged packets: a bit of each of the last bytes, those of the CRC among them.
const DAMAGED: usize = 40;
/// The guest answers within a few milliseconds, if it does.
const BRIEF: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const LONG: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

/// A queue pair in the guest, and the socket that it answers.
struct Raw {
    guest: Guest,
    socket: RawSocket,
    number: u32,
    address: u64,
    key: RemoteKey,
}

impl Raw {
    fn new() -> Self {
        let mut guest = Guest::new();
        let socket = RawSocket::open(HERE.parse().unwrap(), GUEST.parse().unwrap());
        guest.say(&format!(
            "./peer 77 {FIRST} 200 4 1024 18 1 ::ffff:10.77.0.1"
        ));
        let line = guest.await_line("peer ");
        let numbers: Vec<u64> = line[5..].split(' ').map(|n| n.parse().unwrap()).collect();
        Self {
            guest,
            socket,
            number: numbers[0] as u32,
            address: numbers[1],
            key: RemoteKey(numbers[2] as u32),
        }
    }

    /// A whole packet, `ahead` of the first.
    fn packet(&self, ahead: u32, body: &Body, payload: usize) -> Vec<u8> {
        let number = QueuePairNumber::new(self.number);
        let base = header(number, PacketSequenceNumber::new(FIRST + ahead));
        self.socket.packet(&base, body, payload)
    }

    fn send(&self, packet: &[u8]) {
        self.socket.send(packet);
    }

    /// The next packet that comes: its number, counted from the first, and what it is.
    fn receive(&self, wait: &Timespec) -> Option<(u32, Body)> {
        self.socket.receive(wait, |packet| {
            (packet.base.sequence.get() - FIRST, packet.body)
        })
    }

    fn read(&self, ahead: u32, length: u32) -> Vec<u8> {
        let remote = RemoteHeader {
            address: self.address,
            key: self.key,
            length,
        };
        self.packet(ahead, &Body::ReadRequest(remote), 0)
    }

    fn end_program(&mut self) {
        self.guest.say("");
        self.guest.await_line("peer ends");
    }
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v13_the_kernel_answers_no_damaged_packet() {
    let mut raw = Raw::new();
    let whole = raw.packet(0, &Body::SendOnly(Extra::Nothing), PAYLOAD);
    for place in (0..whole.len()).rev().take(DAMAGED) {
        let mut damaged = whole.clone();
        damaged[place] ^= 1 << (place % 8);
        raw.send(&damaged);
    }
    let answer = raw.receive(&BRIEF);
    assert_eq!(answer, None, "an answer to a damaged packet");
    raw.send(&whole);
    let Some((0, Body::Acknowledge(acknowledgement))) = raw.receive(&LONG) else {
        panic!("no answer to the whole packet");
    };
    let syndrome = acknowledgement.syndrome;
    assert!(matches!(syndrome, Syndrome::Acknowledged { .. }));
    assert_eq!(acknowledgement.messages, 1);
    raw.end_program();
}

/// A deviation of `rdma_rxe`: in Linux 6.12 `read_reply` (rxe_resp.c) looks for the region of a
/// repeated READ only if the request that was executed last is not empty, and refuses it otherwise.
/// So what may be repeated must not be mixed with empty READs. Linux 6.1 answers it.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn the_kernel_refuses_to_repeat_a_read_after_an_empty_one() {
    for second in [8, 0] {
        let mut raw = Raw::new();
        for (ahead, length) in [(0, 8), (1, second), (0, 8)] {
            raw.send(&raw.read(ahead, length));
        }
        for number in [0, 1] {
            let answer = raw.receive(&LONG);
            assert!(
                matches!(answer, Some((n, Body::ReadResponseOnly(_))) if n == number),
                "{answer:?}"
            );
        }
        let is_repeated = match raw.receive(&LONG) {
            Some((0, Body::ReadResponseOnly(_))) => true,
            Some((0, Body::Acknowledge(acknowledgement))) => {
                let refused = Syndrome::Refused(NakCode::RemoteAccess);
                assert_eq!(acknowledgement.syndrome, refused);
                false
            }
            other => panic!("{other:?}"),
        };
        raw.end_program();
        raw.guest.say("uname -r");
        let is_old = raw.guest.await_line("6.").starts_with("6.1.");
        assert_eq!(is_repeated, second > 0 || is_old);
    }
}
