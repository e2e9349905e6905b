//! V-21: programs of perftest 4.5 of the distribution. Before and after the data they exchange
//! messages over TCP (its `perftest_communication.c`): the side that came speaks first, the other
//! answers with as many bytes. This side answers with what it was told, but for the lines that say
//! where the buffers are. It has the software RoCE NIC, or runs in the guest and has the provider
//! `ibverbs`.

use crate::exchange::Exchange;
use crate::nic::Nic;
use crate::peer::terms;
use crate::rig::Rig;
use legato_providers::roce::out_of_band::{Introduction, connect};
use legato_verbs::{
    CompletionKind, PacketSequenceNumber, PathMtu, QueuePair, QueuePairNumber, RemoteAddress,
    RemoteKey, SendOperation,
};
use std::fmt::Write as _;
use zerocopy::big_endian::U64;

/// What it writes about its version, the bytes that a buffer is used in cycles of (4096), those of a cache
/// line (64), and its path MTU (`enum ibv_mtu`, a digit).
const ABOUT: [&[u8]; 4] = [
    b"6.06\0\0\0\0\0\0\0\0\0\0\0\0",
    &[0, 0, 16, 0],
    &[0, 0, 0, 64],
    b"3\0",
];
const LINE: usize = 108;
const SEQUENCE: PacketSequenceNumber = PacketSequenceNumber::new(0x0012_3456);
const BUFFER_AT: u64 = 1 << 20;
const BUFFER: u32 = 1 << 20;
const ROUNDS: u32 = 200;
const LENGTH: u32 = 5000;
/// 67 ms, as it has it itself, and a busy machine.
const TIMEOUT: u8 = 18;

/// `LID:READS:QPN:PSN:RKEY:ADDRESS:` and the 16 bytes of a GID, then the number of a shared queue.
struct Line {
    introduction: Introduction,
    buffer: RemoteAddress,
}

impl Line {
    fn text(&self) -> Vec<u8> {
        let Introduction {
            queue_pair,
            sequence,
            gid,
        } = self.introduction;
        let mut text = format!(
            "0000:0010:{:06x}:{:06x}:{:08x}:{:016x}:",
            queue_pair.get(),
            sequence.get(),
            self.buffer.key.0,
            self.buffer.address
        );
        for byte in gid {
            write!(text, "{byte:02x}:").unwrap();
        }
        text.push_str("00000000:");
        let mut bytes = text.into_bytes();
        bytes.resize(LINE, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap();
        let numbers = text.split(':').map(|part| u64::from_str_radix(part, 16));
        let numbers: Vec<u64> = numbers.map_while(Result::ok).collect();
        assert_eq!(numbers.len(), 23, "{text}");
        let gid: Vec<u8> = numbers[6..22].iter().map(|&byte| byte as u8).collect();
        Self {
            introduction: Introduction {
                queue_pair: QueuePairNumber::new(numbers[2] as u32),
                sequence: PacketSequenceNumber::new(numbers[3] as u32),
                gid: gid.try_into().unwrap(),
            },
            buffer: RemoteAddress {
                key: RemoteKey(numbers[4] as u32),
                address: numbers[5],
            },
        }
    }
}

/// This side of a run.
struct Run<'a, P> {
    rig: &'a mut Rig<P>,
    exchange: Exchange,
    queue_pair: QueuePair,
    own: Line,
    /// This side came, and speaks first.
    first: bool,
}

impl<'a, P: Nic> Run<'a, P> {
    fn new(rig: &'a mut Rig<P>, first: bool, program: &str) -> Self {
        let queue_pair = rig.queue_pair();
        let program = format!("{program} -F -d rxe0 -x 1 -s {LENGTH} -n {ROUNDS}");
        let exchange = match first {
            true => Exchange::ask(rig, &program),
            false => Exchange::serve(rig, &program),
        };
        let own = Line {
            introduction: Introduction::of(&rig.nic, queue_pair, SEQUENCE).unwrap(),
            buffer: RemoteAddress {
                key: rig.region.remote_key,
                address: rig.region.address + BUFFER_AT,
            },
        };
        Self {
            rig,
            exchange,
            queue_pair,
            own,
            first,
        }
    }

    /// Says something and is told as many bytes, or is told them and says it; or the same, if there is
    /// nothing of its own to say.
    fn swap(&mut self, own: Option<&[u8]>, length: usize) -> Vec<u8> {
        if self.first {
            self.exchange.send(own.unwrap());
            return self.exchange.receive(self.rig, length);
        }
        let told = self.exchange.receive(self.rig, length);
        self.exchange.send(own.unwrap_or(&told));
        told
    }

    fn swap_lines(&mut self) -> Line {
        let own = self.own.text();
        Line::parse(&self.swap(Some(&own), LINE))
    }

    /// Everything until data moves: so many lines are exchanged after the first.
    fn begin(&mut self, more: u32) -> Line {
        for about in ABOUT {
            let own = self.first.then_some(about);
            let told = self.swap(own, about.len());
            println!("  perftest: {told:?}");
        }
        let peer = self.swap_lines();
        let terms = terms(PathMtu::Bytes1024, TIMEOUT);
        let introduction = &peer.introduction;
        let (nic, queue_pair) = (&mut self.rig.nic, self.queue_pair);
        connect(nic, queue_pair, SEQUENCE, introduction, &terms).unwrap();
        for _ in 0..more {
            self.swap_lines();
        }
        peer
    }

    /// The figures of a bandwidth: length, rounds, the peak, the average, messages a second.
    fn swap_figures(&mut self) -> Vec<u64> {
        self.swap_lines();
        let (length, rounds) = (u64::from(LENGTH), u64::from(ROUNDS));
        let rates = [2.0, 1.0, 0.5].map(f64::to_bits);
        let own = [length, rounds].into_iter().chain(rates);
        let told = own.map(|own| {
            let own = U64::new(own).to_bytes();
            let told = self.swap(Some(&own), own.len());
            U64::from_bytes(told.try_into().unwrap()).get()
        });
        told.collect()
    }

    fn end(mut self) -> (&'a mut Rig<P>, String) {
        self.swap_lines();
        if self.first {
            self.exchange.send_done();
        } else {
            self.exchange.receive_done(self.rig);
        }
        assert_eq!(self.rig.await_line("ended "), "ended 0");
        let figures = self.rig.await_line(&format!(" {LENGTH} "));
        self.rig.check_packets();
        (self.rig, figures)
    }
}

fn bytes_of_none() -> Vec<u8> {
    vec![0xA5; BUFFER as usize]
}

/// `ib_read_lat` reads here.
pub(crate) fn is_read<P: Nic>(rig: &mut Rig<P>) {
    rig.write(BUFFER_AT, &bytes_of_none());
    let mut run = Run::new(rig, false, "ib_read_lat");
    run.begin(3);
    let (rig, figures) = run.end();
    // Bytes, rounds, and the shortest, longest, typical and average time.
    let figures: Vec<f64> = numbers(&figures);
    assert_eq!(figures[..2], [f64::from(LENGTH), f64::from(ROUNDS)]);
    assert!(figures[2] > 0.0 && figures[2] <= figures[4] && figures[4] <= figures[3]);
    assert!(rig.bytes(BUFFER_AT, BUFFER) == bytes_of_none());
}

/// `ib_write_bw` writes here.
pub(crate) fn is_written<P: Nic>(rig: &mut Rig<P>) {
    rig.write(BUFFER_AT - u64::from(BUFFER) / 2, &bytes_of_none());
    rig.write(BUFFER_AT, &bytes_of_none());
    let mut run = Run::new(rig, false, "ib_write_bw");
    run.begin(2);
    let told = run.swap_figures();
    assert_eq!(told[..2], [u64::from(LENGTH), u64::from(ROUNDS)]);
    let (rig, figures) = run.end();
    let figures: Vec<f64> = numbers(&figures);
    assert_eq!(figures[..2], [f64::from(LENGTH), f64::from(ROUNDS)]);
    assert!(figures[3] > 0.0, "{figures:?}");
    // Random bytes, of which one in 256 is what was there.
    let bytes = rig.bytes(BUFFER_AT, BUFFER);
    let changed = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != 0xA5).count();
    let written = changed(&bytes[..LENGTH as usize]);
    assert!(written > LENGTH as usize * 9 / 10, "{written}");
    assert_eq!(changed(&bytes[2 * LENGTH as usize..]), 0);
    let before = rig.bytes(BUFFER_AT - u64::from(BUFFER) / 2, BUFFER / 2);
    assert_eq!(changed(&before), 0);
}

/// This side writes to `ib_write_bw`.
pub(crate) fn writes<P: Nic>(rig: &mut Rig<P>) {
    rig.write(BUFFER_AT, &bytes_of_none());
    let mut run = Run::new(rig, true, "ib_write_bw");
    let peer = run.begin(2);
    for round in 0..ROUNDS {
        let (id, queue_pair) = (u64::from(round), run.queue_pair);
        let write = SendOperation::RdmaWrite(peer.buffer);
        run.rig.post(queue_pair, id, write, (BUFFER_AT, LENGTH));
        assert_eq!(run.rig.await_success(), (id, CompletionKind::RdmaWrite));
    }
    run.swap_figures();
    let (_, figures) = run.end();
    // What this side has said.
    let figures: Vec<f64> = numbers(&figures);
    assert_eq!(figures[..2], [f64::from(LENGTH), f64::from(ROUNDS)]);
    assert_eq!(figures[2..4], [2.0, 1.0]);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ib_read_lat_reads_here() {
    let mut rig = Rig::new();
    is_read(&mut rig);
    // A request each, and no message.
    assert!(rig.nic.received().packets_received >= u64::from(ROUNDS));
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ib_write_bw_writes_here() {
    is_written(&mut Rig::new());
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ib_write_bw_is_written_to() {
    writes(&mut Rig::new());
}

fn numbers(line: &str) -> Vec<f64> {
    let words = line.split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}
