//! What WRITEs and READs cost a processor on both sides, from post to completion: the engine alone,
//! with its copies and without the invariant CRC (`packet_cost` measures that).
//!
//!     cargo run --release -p legato-transport --example pair_cost [-- write|read BYTES OPERATIONS]
//!
//! With arguments it does so many operations and prints nothing, for a counter of instructions:
//! `scripts/transport-cost`.

mod side;

use legato_base::{Duration, Time};
use legato_transport::PathMtu;
use side::{Side, entries};
use std::time::Instant;

/// Operations under way at a time.
const DEPTH: u64 = 8;
const RUNS: usize = 7;

/// Does operations of `length` bytes each, and returns how many packets went either way.
fn operate(read: bool, length: u32, operations: u64) -> u64 {
    let mut left = Side::connected(2, 3, PathMtu::Bytes4096);
    let mut right = Side::connected(3, 2, PathMtu::Bytes4096);
    let mut buffer = vec![0; left.queue_pair.packet_max()];
    let (mut now, mut posted, mut polled, mut packets) = (Time::ZERO, 0, 0, 0);
    while left.memory.completed < operations {
        while posted < operations && posted - left.memory.completed < DEPTH {
            assert_eq!(left.post(read, entries(length)), Ok(()));
            posted += 1;
        }
        packets += left.send_to(&mut right, now, &mut buffer);
        packets += right.send_to(&mut left, now, &mut buffer);
        while polled < left.memory.completed {
            left.queue_pair.send_polled();
            polled += 1;
        }
        now = now + Duration::from_micros(1);
        for side in [&mut left, &mut right] {
            if side.queue_pair.next_deadline() <= now {
                side.queue_pair.expire(now, &mut side.memory);
            }
        }
    }
    packets
}

fn measure(read: bool, length: u32) {
    const OPERATIONS: u64 = 100_000;
    let mut best = f64::INFINITY;
    let mut packets = 0;
    for _ in 0..RUNS {
        let start = Instant::now();
        packets = operate(read, length, OPERATIONS);
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / OPERATIONS as f64);
    }
    println!(
        "{:<6}{length:>7} bytes{best:>9.0} ns, {:.2} packets, {:.1} Gbit/s",
        if read { "READ" } else { "WRITE" },
        packets as f64 / OPERATIONS as f64,
        f64::from(length) * 8.0 / best,
    );
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, length, operations] = &arguments[..] {
        let read = match what.as_str() {
            "read" => true,
            "write" => false,
            other => return Err(format!("neither read nor write: {other}")),
        };
        let length = length.parse().map_err(|_| "BYTES is no number")?;
        let operations = operations.parse().map_err(|_| "OPERATIONS is no number")?;
        operate(read, length, operations);
        return Ok(());
    }
    println!("an operation, both sides, {DEPTH} under way, path MTU 4096");
    for length in [0, 64, 4096, 65_536] {
        measure(false, length);
        measure(true, length);
    }
    Ok(())
}
