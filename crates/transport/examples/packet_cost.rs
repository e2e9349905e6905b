//! What a packet of 4096 bytes costs a processor: its headers and its copy, and the invariant CRC.
//!
//!     cargo run --release -p legato-transport --example packet_cost

use core::convert::Infallible;
use core::hint::black_box;
use core::net::{Ipv4Addr, Ipv6Addr};
use legato_transport::wire::icrc::{Envelope, ICRC_LENGTH, Network, append, check, solve};
use legato_transport::wire::{BaseHeader, Body, HEADERS_MAX, Packet, RemoteHeader, encode};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};
use legato_verbs::RemoteKey;
use std::time::Instant;

const PAYLOAD: usize = 4096;
const PACKETS: u32 = 200_000;
const RUNS: usize = 7;

type Buffer = [u8; HEADERS_MAX + PAYLOAD + 3 + ICRC_LENGTH];

fn envelope(network: Network) -> Envelope {
    Envelope {
        network,
        source_port: 0xC123,
        destination_port: 4791,
    }
}

fn ipv4(identification: u16) -> Envelope {
    envelope(Network::Ipv4 {
        source: Ipv4Addr::new(192, 0, 2, 1),
        destination: Ipv4Addr::new(192, 0, 2, 2),
        identification,
        do_not_fragment: true,
    })
}

/// Writes the packet of a RDMA WRITE, and returns its bytes.
fn write(sequence: u32, payload: &[u8], buffer: &mut Buffer) -> usize {
    let base = BaseHeader {
        destination: QueuePairNumber::new(17),
        sequence: PacketSequenceNumber::new(sequence),
        acknowledge: true,
        solicited: false,
        forward_congestion: false,
        backward_congestion: false,
    };
    let remote = RemoteHeader {
        address: 0x7F00_0000_0000,
        key: RemoteKey(0x1234_5678),
        length: payload.len() as u32,
    };
    let copy = |into: &mut [u8]| {
        into.copy_from_slice(payload);
        Ok::<(), Infallible>(())
    };
    let body = Body::WriteOnly(remote, None);
    match encode(&base, &body, buffer, payload.len(), copy) {
        Ok(length) => length,
        Err(never) => match never {},
    }
}

/// Nanoseconds of one call: of some runs the best, which others have disturbed least.
fn measure(what: &str, mut call: impl FnMut(u32)) {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        (0..PACKETS).for_each(&mut call);
        let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS);
        best = best.min(nanoseconds);
    }
    let rate = PAYLOAD as f64 * 8.0 / best;
    println!("{what:<44}{best:8.0} ns{rate:8.1} Gbit/s");
}

fn main() {
    let ipv6 = envelope(Network::Ipv6 {
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::LOCALHOST,
    });
    let payload = [0xA5_u8; PAYLOAD];
    let mut buffer: Buffer = [0; _];
    println!("a packet of {PAYLOAD} bytes");
    measure("encode", |sequence| {
        black_box(write(sequence, black_box(&payload), &mut buffer));
    });
    for (name, envelope) in [("IPv4", ipv4(0)), ("IPv6", ipv6)] {
        measure(&format!("encode and CRC, {name}"), |sequence| {
            let length = write(sequence, black_box(&payload), &mut buffer);
            let _ = black_box(append(&envelope, &mut buffer, length));
        });
        let length = write(1, &payload, &mut buffer);
        let Ok(length) = append(&envelope, &mut buffer, length) else {
            return;
        };
        let datagram = &buffer[..length];
        assert!(check(&envelope, datagram).is_ok_and(|packet| Packet::parse(packet).is_ok()));
        measure(&format!("CRC check and parse, {name}"), |_| {
            let packet = check(&envelope, black_box(datagram));
            let _ = black_box(packet.map(Packet::parse));
        });
    }
    let length = write(1, &payload, &mut buffer);
    let Ok(length) = append(&ipv4(44_263), &mut buffer, length) else {
        return;
    };
    let datagram = &buffer[..length];
    let found = solve(&ipv4(0), datagram);
    assert!(found.is_ok_and(|(_, identification)| identification == Some(44_263)));
    measure("CRC check and parse, identification solved", |_| {
        let packet = solve(&ipv4(0), black_box(datagram));
        let _ = black_box(packet.map(|(packet, _)| Packet::parse(packet)));
    });
    let packet = &datagram[..length - ICRC_LENGTH];
    measure("parse", |_| {
        let _ = black_box(Packet::parse(black_box(packet)));
    });
}
