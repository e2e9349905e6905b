//! One side of a measurement between two processes, of software RoCE or of bare sockets, for
//! `scripts/compare-peers`: on one machine, or in two network namespaces.
//!
//!     peer_speed serve KIND PLACE         says "ready", and serves until it is killed
//!     peer_speed ask KIND PLACE SERVER    prints "SIZE VALUE" for each size
//!
//! KIND is `udp` or `stream` (software RoCE), `bare-udp` or `bare-tcp`; a PLACE is `HOST:PORT`. For 64 B
//! and 4 KiB the value is the median of the round trips in microseconds, for 64 KiB and 1 MiB the
//! megabytes in a second, over bare UDP in datagrams of 4 KiB, without those that were lost. Both sides look
//! again and again instead of sleeping.
#![allow(
    clippy::unwrap_used,
    reason = "an example that fails has nothing to print"
)]

mod roce_side;

use legato_verbs::{Address, Provider as _, SendOperation};
use roce_side::Side;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const SHORT: [usize; 2] = [64, 4096];
const LONG: [usize; 2] = [64 << 10, 1 << 20];
/// Of long READs, so many are under way at a time.
const UNDER_WAY: usize = 4;
/// Measures for so long, after a while that does not count.
const WHILE: Duration = Duration::from_millis(400);
const BEFORE: Duration = Duration::from_millis(50);
/// Of bare UDP: bytes of a datagram, bytes that are asked for at a time so that no socket's buffer is too
/// small (212,992 bytes, `net.core.rmem_default`), and after what time what has not come is lost.
const DATAGRAM: usize = 4096;
const PART: usize = 16 << 10;
const SILENCE: Duration = Duration::from_millis(2);
/// Bytes of what asks a bare socket for an answer: the length that is wanted, and padding.
const QUESTION: usize = 32;

#[derive(Clone, Copy)]
enum Kind {
    Roce(fn(SocketAddr) -> Address),
    BareUdp,
    BareTcp,
}

fn kind_of(name: &str) -> Kind {
    match name {
        "udp" => Kind::Roce(Address::Roce),
        "stream" => Kind::Roce(Address::RoceTcp),
        "bare-udp" => Kind::BareUdp,
        "bare-tcp" => Kind::BareTcp,
        other => panic!("{other} is no kind"),
    }
}

/// The median of what `once` takes, in microseconds.
fn typical(mut once: impl FnMut()) -> f64 {
    let begun = Instant::now();
    while begun.elapsed() < BEFORE {
        once();
    }
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < WHILE {
        let begin = Instant::now();
        once();
        times.push(begin.elapsed());
    }
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

/// Megabytes in a second, where `some` moves so many bytes: typical of some milliseconds, so that what
/// other work takes from a processor does not count.
fn bandwidth(bytes: usize, some: impl FnMut()) -> f64 {
    bytes as f64 / typical(some)
}

fn ready() {
    println!("ready");
    std::io::stdout().flush().unwrap();
}

fn serve_roce(place: &Address) {
    let mut side = Side::new(place, None);
    side.provider.listen(place).unwrap();
    ready();
    side.serve(&AtomicBool::new(false));
}

fn ask_roce(place: &Address, server: &Address) {
    let mut side = Side::new(place, None);
    let read = SendOperation::RdmaRead(side.connect(server));
    for length in SHORT {
        println!("{length} {}", typical(|| side.run(read, length, 1, 1)));
    }
    for length in LONG {
        let count = (4 << 20) / length;
        let some = || side.run(read, length, count, UNDER_WAY);
        println!("{length} {}", bandwidth(count * length, some));
    }
}

fn bare_socket(place: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(place).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn serve_datagrams(place: SocketAddr) {
    let socket = bare_socket(place);
    ready();
    let mut bytes = [7; 1 << 16];
    loop {
        if let Ok((_, from)) = socket.recv_from(&mut bytes) {
            let mut left = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            while left > 0 {
                let part = left.min(DATAGRAM);
                match socket.send_to(&bytes[..part], from) {
                    Ok(_) => left -= part,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

fn ask_datagrams(place: SocketAddr, server: SocketAddr) {
    let socket = bare_socket(place);
    socket.connect(server).unwrap();
    for length in SHORT {
        let mut bytes = [0; 1 << 16];
        let time = typical(|| {
            bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
            socket.send(&bytes[..QUESTION]).unwrap();
            while socket.recv(&mut bytes).is_err() {}
        });
        println!("{length} {time}");
    }
    for length in LONG {
        println!("{length} {}", datagrams_in_a_row(&socket, length.min(PART)));
    }
}

/// As READs are: a question each, and as many under way. Megabytes in a second.
fn datagrams_in_a_row(socket: &UdpSocket, length: usize) -> f64 {
    let mut bytes = [0; DATAGRAM];
    let question = {
        let mut question = [0; QUESTION];
        question[..4].copy_from_slice(&(length as u32).to_le_bytes());
        question
    };
    let (mut asked, mut received, mut lost) = (0, 0, 0);
    let begun = Instant::now();
    let mut heard = begun;
    while begun.elapsed() < WHILE {
        while asked < received + lost + UNDER_WAY * length {
            socket.send(&question).unwrap();
            asked += length;
        }
        match socket.recv(&mut bytes) {
            Ok(count) => {
                received += count;
                heard = Instant::now();
            }
            Err(_) if heard.elapsed() > SILENCE => {
                lost = asked - received;
                heard = Instant::now();
            }
            Err(_) => {}
        }
    }
    received as f64 / begun.elapsed().as_micros() as f64
}

/// All of it, without sleeping.
fn receive(stream: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut received = 0;
    while received < bytes.len() {
        match stream.read(&mut bytes[received..]) {
            Ok(0) => return false,
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn bare(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn serve_streams(place: SocketAddr) {
    let listener = TcpListener::bind(place).unwrap();
    ready();
    while let Ok((stream, _)) = listener.accept() {
        let mut stream = bare(stream);
        let mut question = [0; QUESTION];
        let bytes = vec![7; LONG[1]];
        while receive(&mut stream, &mut question) {
            let length = u32::from_le_bytes(question[..4].try_into().unwrap());
            send(&mut stream, &bytes[..length as usize]);
        }
    }
}

/// As READs are: a question each, and as many under way.
fn ask_streams(server: SocketAddr) {
    let mut stream = bare(TcpStream::connect(server).unwrap());
    let mut bytes = vec![0; LONG[1]];
    let mut question = [0; QUESTION];
    for length in SHORT {
        question[..4].copy_from_slice(&(length as u32).to_le_bytes());
        let time = typical(|| {
            send(&mut stream, &question);
            assert!(receive(&mut stream, &mut bytes[..length]));
        });
        println!("{length} {time}");
    }
    for length in LONG {
        question[..4].copy_from_slice(&(length as u32).to_le_bytes());
        let count = (4 << 20) / length;
        let rate = bandwidth(count * length, || {
            for number in 0..count + UNDER_WAY {
                if number < count {
                    send(&mut stream, &question);
                }
                if number >= UNDER_WAY {
                    assert!(receive(&mut stream, &mut bytes[..length]));
                }
            }
        });
        println!("{length} {rate}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let place = |text: &str| -> SocketAddr { text.parse().unwrap() };
    match words[..] {
        ["serve", kind, own] => match kind_of(kind) {
            Kind::Roce(address) => serve_roce(&address(place(own))),
            Kind::BareUdp => serve_datagrams(place(own)),
            Kind::BareTcp => serve_streams(place(own)),
        },
        ["ask", kind, own, server] => match kind_of(kind) {
            Kind::Roce(address) => ask_roce(&address(place(own)), &address(place(server))),
            Kind::BareUdp => ask_datagrams(place(own), place(server)),
            Kind::BareTcp => ask_streams(place(server)),
        },
        _ => panic!("serve KIND PLACE, or ask KIND PLACE SERVER"),
    }
}
