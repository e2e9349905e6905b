//! What a packet costs on the loopback interface, both sides and the kernel together, in one
//! thread: over UDP packet by packet, over UDP segmented and joined by the kernel, over a TCP
//! stream, and over bare UDP sockets without CRC. And what a small packet to and fro takes.
//!
//!     cargo run --release -p legato-providers --example carrier_speed [ROUNDS]
//!
//! The kinds take turns, so that a noisy machine harms all of them; the medians are printed.
#![allow(
    clippy::unwrap_used,
    reason = "an example that fails has nothing to print"
)]

use legato_base::secret::{Keyring, Secret, SecureRandom};
use legato_providers::roce::carrier::{
    Carrier, DatagramCarrier, Flushed, Inbox, Options, Sealing, StreamCarrier,
};
use std::convert::Infallible;
use std::net::UdpSocket;
use std::time::Instant;

/// Header and payload.
const LONG: usize = 12 + 4096;
const SHORT: usize = 12 + 16;
/// Packets on their way at once; no buffer is too small for them.
const WINDOW: usize = 32;
const BARE_WINDOW: usize = 8;
const WINDOWS: usize = 200;
const TURNS: usize = 4000;

/// Two ends between which packets can be sent.
trait Ends {
    /// Sends so many packets from the one to the other, and reads them there.
    fn move_packets(&mut self, count: usize, length: usize);
    /// A packet to and one fro.
    fn turn(&mut self, length: usize);
}

struct Carriers {
    ends: [(Carrier, Inbox); 2],
    flush_each: bool,
}

impl Carriers {
    fn new(open: impl Fn() -> Carrier, flush_each: bool) -> Self {
        let mut carriers = Self {
            ends: [(); 2].map(|()| (open(), Inbox::new(8))),
            flush_each,
        };
        // Streams connect.
        carriers.turn(SHORT);
        carriers
    }

    fn send(&mut self, from: usize, count: usize, length: usize) {
        let peer = self.ends[1 - from].0.local_address();
        let carrier = &mut self.ends[from].0;
        for _ in 0..count {
            carrier
                .send(peer, 0, |room| {
                    room[..length].fill(7);
                    Ok::<_, Infallible>(length)
                })
                .unwrap();
            if self.flush_each {
                carrier.flush();
            }
        }
        carrier.flush();
    }

    fn receive(&mut self, count: usize, at: usize) {
        let mut received = 0;
        while received < count {
            // The sender's side of a stream has to go on too.
            let (other, inbox) = &mut self.ends[1 - at];
            if other.flush() == Flushed::Blocked {
                other.receive(inbox);
            }
            let (carrier, inbox) = &mut self.ends[at];
            carrier.receive(inbox);
            while let Some(packet) = inbox.next() {
                std::hint::black_box(packet.packet);
                received += 1;
            }
        }
    }
}

impl Ends for Carriers {
    fn move_packets(&mut self, count: usize, length: usize) {
        self.send(0, count, length);
        self.receive(count, 1);
    }

    fn turn(&mut self, length: usize) {
        self.move_packets(1, length);
        self.send(1, 1, length);
        self.receive(1, 0);
    }
}

struct Bare([UdpSocket; 2]);

impl Ends for Bare {
    fn move_packets(&mut self, count: usize, length: usize) {
        let [from, to] = &self.0;
        let mut bytes = [7; LONG];
        let mut left = count;
        while left > 0 {
            // More do not fit the receive buffer that a socket has by itself.
            let some = left.min(BARE_WINDOW);
            for _ in 0..some {
                bytes[..length].fill(7);
                from.send_to(&bytes[..length], to.local_addr().unwrap())
                    .unwrap();
            }
            for _ in 0..some {
                to.recv_from(&mut bytes).unwrap();
            }
            left -= some;
        }
    }

    fn turn(&mut self, length: usize) {
        self.move_packets(1, length);
        self.0.swap(0, 1);
        self.move_packets(1, length);
    }
}

fn datagrams(together: bool) -> Carrier {
    let options = Options {
        segmentation: together,
        joining: together,
        ..Options::default()
    };
    let local = "127.0.0.1:0".parse().unwrap();
    Carrier::Datagram(DatagramCarrier::open(local, &options).unwrap())
}

fn stream() -> Carrier {
    let local = "127.0.0.1:0".parse().unwrap();
    Carrier::Stream(StreamCarrier::open(local, &Options::default()).unwrap())
}

fn sealed() -> Carrier {
    let local = "127.0.0.1:0".parse().unwrap();
    let keys = Keyring::All(Secret::new([7; 32]));
    let sealing = Sealing::new(keys, SecureRandom::from_seed([7; 32]));
    let carrier = StreamCarrier::open_with(local, &Options::default(), Some(sealing));
    Carrier::Stream(carrier.unwrap())
}

fn bare() -> Bare {
    Bare([(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap()))
}

fn nanoseconds(count: usize, run: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_nanos() as f64 / count as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One kind, and what it has taken in each round, in ns.
struct Kind {
    name: &'static str,
    ends: Box<dyn Ends>,
    long: Vec<f64>,
    short: Vec<f64>,
    turn: Vec<f64>,
}

impl Kind {
    fn new(name: &'static str, ends: impl Ends + 'static) -> Self {
        Self {
            name,
            ends: Box::new(ends),
            long: Vec::new(),
            short: Vec::new(),
            turn: Vec::new(),
        }
    }

    fn round(&mut self) {
        let ends = &mut self.ends;
        for (length, times) in [(LONG, &mut self.long), (SHORT, &mut self.short)] {
            times.push(nanoseconds(WINDOW * WINDOWS, || {
                for _ in 0..WINDOWS {
                    ends.move_packets(WINDOW, length);
                }
            }));
        }
        self.turn.push(nanoseconds(TURNS, || {
            for _ in 0..TURNS {
                ends.turn(SHORT);
            }
        }));
    }
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(15, |rounds| rounds.parse().unwrap());
    let mut kinds = [
        Kind::new(
            "UDP, packet by packet",
            Carriers::new(|| datagrams(false), true),
        ),
        Kind::new(
            "UDP, many in a call",
            Carriers::new(|| datagrams(false), false),
        ),
        Kind::new(
            "UDP, segmented and joined",
            Carriers::new(|| datagrams(true), false),
        ),
        Kind::new("TCP stream", Carriers::new(stream, false)),
        Kind::new("TCP stream, sealed", Carriers::new(sealed, false)),
        Kind::new("bare UDP, no CRC", bare()),
    ];
    for _ in 0..rounds {
        kinds.iter_mut().for_each(Kind::round);
    }
    println!("medians of {rounds} rounds      4 KiB packets          16-byte packets   to and fro");
    for kind in &mut kinds {
        let (long, short) = (median(&mut kind.long), median(&mut kind.short));
        println!(
            "{:26} {long:6.0} ns {:9.0}/s  {short:6.0} ns {:9.0}/s  {:6.0} ns",
            kind.name,
            1e9 / long,
            1e9 / short,
            median(&mut kind.turn),
        );
    }
}
