//! What a software RoCE NIC costs over the loopback interface, next to bare sockets: the round trip
//! of READs, and how many bytes READs and WRITEs move in a second.
//!
//!     cargo run --release -p legato-providers --example roce_speed [ROUNDS]
//!
//! The other side is a thread, each on a processor of its own, and both look again and again instead of
//! sleeping. The kinds take turns, so that a noisy machine harms all of them; medians are printed.
#![allow(
    clippy::unwrap_used,
    reason = "an example that fails has nothing to print"
)]

mod roce_side;

use legato_base::secret::{Keyring, Secret};
use legato_verbs::{Address, Provider as _, SendOperation};
use roce_side::Side;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const TURNS: usize = 1500;
/// Bytes that are moved to measure how many there are in a second, and requests under way.
const BULK: usize = 32 << 20;
const UNDER_WAY: usize = 4;
/// Bytes of what asks a bare socket for an answer.
const QUESTION: usize = 32;
const SHORT: usize = 64;
const PAGE: usize = 4096;

fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // Without a second processor all is slower, and still told.
    let _ = sched_setaffinity(None, &set);
}

/// Nanoseconds of each.
struct Measured {
    name: String,
    times: Vec<f64>,
}

type Run = Box<dyn FnMut()>;

struct Kind {
    measured: Measured,
    /// Round trips in a run, or bytes.
    count: usize,
    run: Run,
}

fn kind(name: String, count: usize, run: impl FnMut() + 'static) -> Kind {
    Kind {
        measured: Measured {
            name,
            times: Vec::new(),
        },
        count,
        run: Box::new(run),
    }
}

/// Over streams that are sealed if there are keys.
fn roce_kinds(
    name: &str,
    left: &str,
    right: &str,
    keys: Option<Keyring>,
    over: &Arc<AtomicBool>,
) -> Vec<Kind> {
    let server_at: Address = right.parse().unwrap();
    let (there, end) = (server_at.clone(), over.clone());
    let theirs = keys.clone();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pin(1);
        let mut side = Side::new(&there, theirs.as_ref());
        side.provider.listen(&there).unwrap();
        tell.send(()).unwrap();
        side.serve(&end);
    });
    told.recv().unwrap();
    let mut side = Side::new(&left.parse().unwrap(), keys.as_ref());
    let far = side.connect(&server_at);
    let side = std::rc::Rc::new(std::cell::RefCell::new(side));
    let read = SendOperation::RdmaRead(far);
    let write = SendOperation::RdmaWrite(far);
    let mut kinds = Vec::new();
    for length in [SHORT, PAGE] {
        let side = side.clone();
        let run = move || side.borrow_mut().run(read, length, TURNS, 1);
        kinds.push(kind(format!("{name} READ {length}"), TURNS, run));
    }
    for (verb, operation) in [("READ", read), ("WRITE", write)] {
        for length in [64 << 10, 1 << 20] {
            let side = side.clone();
            let run = move || {
                let mut side = side.borrow_mut();
                side.run(operation, length, BULK / length, UNDER_WAY);
            };
            kinds.push(kind(format!("{name} {verb} {length}"), BULK, run));
        }
    }
    kinds
}

/// A question of 32 bytes, and an answer of so many.
fn bare_datagrams(length: usize, over: &Arc<AtomicBool>) -> Kind {
    let ends = [(); 2].map(|()| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let [near, far] = ends;
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    let end = over.clone();
    std::thread::spawn(move || {
        pin(1);
        let mut bytes = [7; PAGE];
        while !end.load(Ordering::Relaxed) {
            if far.recv(&mut bytes).is_ok() {
                far.send(&bytes[..length]).unwrap();
            }
        }
    });
    kind(format!("bare UDP {length}"), TURNS, move || {
        let mut bytes = [7; PAGE];
        for _ in 0..TURNS {
            near.send(&bytes[..QUESTION]).unwrap();
            while near.recv(&mut bytes).is_err() {}
        }
    })
}

/// A stream of bytes to the other side, which says when it has them all.
fn bare_stream() -> Kind {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    std::thread::spawn(move || {
        pin(1);
        let mut bytes = vec![0; 64 << 10];
        let mut received = 0;
        while let Ok(count @ 1..) = far.read(&mut bytes) {
            received += count;
            if received == BULK {
                received = 0;
                far.write_all(&[1]).unwrap();
            }
        }
    });
    let bytes = vec![7; 64 << 10];
    kind("bare TCP".to_owned(), BULK, move || {
        for _ in 0..BULK / bytes.len() {
            near.write_all(&bytes).unwrap();
        }
        near.read_exact(&mut [0]).unwrap();
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// All threads look all the time, so only those of one kind may live at a time.
fn round(which: &str) -> Vec<Kind> {
    let over = Arc::new(AtomicBool::new(false));
    let mut kinds = match which {
        "udp" => roce_kinds(
            "RoCE UDP",
            "roce://127.33.0.1:4791",
            "roce://127.33.0.2:4791",
            None,
            &over,
        ),
        "stream" => roce_kinds(
            "RoCE stream",
            "roce+tcp://127.33.0.3:4791",
            "roce+tcp://127.33.0.4:4791",
            None,
            &over,
        ),
        "sealed" => roce_kinds(
            "RoCE sealed stream",
            "roce+tcp://127.33.0.5:4791",
            "roce+tcp://127.33.0.6:4791",
            Some(Keyring::All(Secret::new([7; 32]))),
            &over,
        ),
        "tcp" => vec![bare_stream()],
        "64" => vec![bare_datagrams(SHORT, &over)],
        _ => vec![bare_datagrams(PAGE, &over)],
    };
    for kind in &mut kinds {
        let begin = Instant::now();
        (kind.run)();
        let time = begin.elapsed().as_nanos() as f64 / kind.count as f64;
        kind.measured.times.push(time);
    }
    over.store(true, Ordering::Relaxed);
    kinds
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(11, |rounds| rounds.parse().unwrap());
    pin(0);
    let mut all: Vec<Measured> = Vec::new();
    for _ in 0..rounds {
        for which in ["64", "4096", "tcp", "udp", "stream", "sealed"] {
            for Kind { measured, .. } in round(which) {
                match all.iter_mut().find(|known| known.name == measured.name) {
                    Some(known) => known.times.extend(measured.times),
                    None => all.push(measured),
                }
            }
            // Its threads have seen that it is over, and its ports are free.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let of = |name: &str, all: &mut [Measured]| {
        let found = all.iter_mut().find(|known| known.name == name);
        median(&mut found.unwrap().times)
    };
    let bare = ["bare UDP 64", "bare UDP 4096", "bare TCP"].map(|name| of(name, &mut all));
    println!("medians of {rounds} rounds");
    for measured in &mut all {
        let (name, time) = (measured.name.clone(), median(&mut measured.times));
        if name.ends_with(" 64") || name.ends_with(" 4096") {
            let beside = bare[usize::from(name.ends_with(" 4096"))];
            let (us, ratio) = (time / 1e3, time / beside);
            println!("{name:26} {us:7.2} us  {ratio:5.2} of a bare round trip");
        } else {
            let (rate, share) = (1e3 / time, bare[2] / time * 100.0);
            println!("{name:26} {rate:7.0} MB/s  {share:4.0} % of a bare stream");
        }
    }
}
