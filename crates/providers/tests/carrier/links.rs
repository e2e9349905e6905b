//! Carriers between two network namespaces, joined by a virtual Ethernet link: what really goes
//! over the wire, and links that are narrow, full or down.
//!
//! Each test runs itself once more in a namespace of its own (`unshare -rn`).

use crate::carrier_rig::{Kind, PATIENCE, Side, packet, packets, run, transfer};
use crate::netns::{HOSTS, Link, in_namespace, ip};
use legato_providers::roce::carrier::{Flushed, Notice, Options, Refusal};
use legato_transport::wire::icrc::{self, Envelope, Network};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};
use std::num::NonZeroU32;
use std::time::Instant;

/// Both ends, and the path MTU that the other end sees. Everything that arrives there is
/// captured.
fn link(mtu: u32, kind: Kind, options: Options) -> [(Side, Side, u32, OwnedFd); 2] {
    let link = Link::new(mtu);
    HOSTS.map(|[near, far]| {
        let place = |host: &str| match host.contains(':') {
            true => format!("[{host}]:0"),
            false => format!("{host}:0"),
        };
        let (near, far) = (place(near), place(far));
        let (side, path, capture) = link.far(|| {
            let side = Side::open(kind, &far, &options);
            let path = side.carrier.path_mtu(near.parse().unwrap()).unwrap();
            (side, path.bytes(), capture())
        });
        (Side::open(kind, &near, &options), side, path, capture)
    })
}

/// A socket that gets every frame of the namespace it is made in (packet(7)).
fn capture() -> OwnedFd {
    // ETH_P_ALL, in the order of the network.
    let all = Protocol::from_raw(NonZeroU32::new(0x0300).unwrap());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)).unwrap()
}

/// A UDP datagram as it was on the wire.
#[derive(Debug)]
struct Captured {
    envelope: Envelope,
    payload: Vec<u8>,
}

impl Captured {
    fn identification(&self) -> Option<u16> {
        match self.envelope.network {
            Network::Ipv4 { identification, .. } => Some(identification),
            Network::Ipv6 { .. } => None,
        }
    }
}

fn word(bytes: &[u8]) -> u16 {
    u16::from(bytes[0]) << 8 | u16::from(bytes[1])
}

/// Reads a frame: None if it is not UDP.
fn read_frame(frame: &[u8]) -> Option<Captured> {
    let (kind, ip) = (word(&frame[12..14]), &frame[14..]);
    let (network, udp) = match kind {
        0x0800 if ip[9] == 17 => {
            assert_eq!(ip[0], 0x45);
            let network = Network::Ipv4 {
                source: <[u8; 4]>::try_from(&ip[12..16]).unwrap().into(),
                destination: <[u8; 4]>::try_from(&ip[16..20]).unwrap().into(),
                identification: word(&ip[4..6]),
                do_not_fragment: word(&ip[6..8]) == 0x4000,
            };
            (network, &ip[20..])
        }
        0x86DD if ip[6] == 17 => {
            let network = Network::Ipv6 {
                source: <[u8; 16]>::try_from(&ip[8..24]).unwrap().into(),
                destination: <[u8; 16]>::try_from(&ip[24..40]).unwrap().into(),
            };
            (network, &ip[40..])
        }
        _ => return None,
    };
    Some(Captured {
        envelope: Envelope {
            network,
            source_port: word(udp),
            destination_port: word(&udp[2..]),
        },
        payload: udp[8..usize::from(word(&udp[4..]))].to_vec(),
    })
}

/// What a capture has seen of what was sent to `port`.
fn read_capture(capture: &OwnedFd, port: u16, mtu: usize) -> Vec<Captured> {
    let mut frame = vec![0; 1 << 17];
    let mut all = Vec::new();
    loop {
        match net::recv(capture, &mut frame[..], RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                assert!(count <= 14 + mtu, "{count} bytes are no frame of this link");
                all.extend(read_frame(&frame[..count]));
            }
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    all.retain(|captured| captured.envelope.destination_port == port);
    all
}

/// The CRC of every datagram is that of the headers that it has on the wire.
fn check_wire(mtu: u32, segmentation: bool) {
    let options = Options {
        segmentation,
        ..Options::default()
    };
    for (mut a, mut b, path, capture) in link(mtu, Kind::Datagram, options) {
        assert_eq!(a.carrier.path_mtu(b.address()).unwrap().bytes(), path);
        assert_eq!(path, if mtu > 4200 { 4096 } else { 1024 });
        let all = packets(path as usize);
        let mut highest = None;
        let mut seen = 0;
        // The traffic before has filled the capture's buffer, which is small: hence the groups.
        read_capture(&capture, 0, mtu as usize);
        for group in all.chunks(32) {
            transfer(&mut a, &mut b, group);
            for captured in read_capture(&capture, b.address().port(), mtu as usize) {
                let bytes = icrc::check(&captured.envelope, &captured.payload).unwrap();
                assert!(
                    bytes == all[seen],
                    "packet {seen}: {} bytes, and not {}",
                    bytes.len(),
                    all[seen].len()
                );
                highest = highest.max(captured.identification());
                seen += 1;
            }
        }
        assert_eq!(seen, all.len());
        if a.address().is_ipv4() {
            // Up to 32 packets of a length are one message.
            let segments = 10..32;
            let highest = highest.unwrap();
            assert!(
                if segmentation {
                    segments.contains(&highest)
                } else {
                    highest == 0
                },
                "{highest}"
            );
        }
        let counters = b.counters();
        assert_eq!(
            counters.damaged + counters.identifications_solved,
            0,
            "{counters:?}"
        );
    }
}

#[test]
fn on_the_wire_with_segments_of_1500() {
    in_namespace("links::on_the_wire_with_segments_of_1500", || {
        check_wire(1500, true)
    });
}

#[test]
fn on_the_wire_with_segments_of_9000() {
    in_namespace("links::on_the_wire_with_segments_of_9000", || {
        check_wire(9000, true)
    });
}

#[test]
fn on_the_wire_packet_by_packet() {
    in_namespace("links::on_the_wire_packet_by_packet", || {
        check_wire(1500, false)
    });
}

#[test]
fn streams_between_machines() {
    in_namespace("links::streams_between_machines", || {
        for (mut a, mut b, path, _) in link(1500, Kind::Stream, Options::default()) {
            assert_eq!(path, 4096);
            transfer(&mut a, &mut b, &packets(4096));
            transfer(&mut b, &mut a, &packets(4096));
        }
    });
}

#[test]
fn a_packet_too_long_for_the_link_is_told() {
    in_namespace("links::a_packet_too_long_for_the_link_is_told", || {
        for (mut a, mut b, ..) in link(1500, Kind::Datagram, Options::default()) {
            let to = b.address();
            for number in 0..3 {
                assert!(a.send(to, &packet(number, 4000)));
            }
            assert!(a.send(to, &packet(9, 1000)));
            assert_eq!(a.carrier.flush(), Flushed::All);
            assert_eq!(b.receive_until(1), [(a.address(), packet(9, 1000))]);
            let Some(Notice::Refused { peer, refusal }) = a.carrier.notice() else {
                panic!("no notice");
            };
            assert_eq!(peer, to);
            assert_eq!(refusal, Refusal::TooLong { mtu: Some(1500) });
            assert_eq!(a.counters().refused, 3);
            // They were one message, which had to be taken apart: the last packet has gone alone,
            // and its CRC says so.
            assert_eq!(a.counters().segmentation_refused, 1);
            let expected = u64::from(to.is_ipv4());
            assert_eq!(b.counters().identifications_expected, expected);
        }
    });
}

/// Packets wait for a neighbour's Ethernet address that nobody answers for: the socket's buffer
/// fills, and after some time the kernel says that there is nobody.
#[test]
fn a_full_socket_pushes_back_and_a_missing_host_is_told() {
    in_namespace(
        "links::a_full_socket_pushes_back_and_a_missing_host_is_told",
        || {
            let options = Options {
                socket_buffer: 16 << 10,
                segmentation: false,
                send_slots: 32,
                ..Options::default()
            };
            let [(mut a, mut b, ..), _] = link(9000, Kind::Datagram, options);
            // Not seconds, but tenths.
            ip("ntable change name arp_cache dev va retrans 50");
            let nobody = "10.9.0.77:4791".parse().unwrap();
            let mut queued = 0;
            while a.send(nobody, &packet(queued, 4096)) {
                queued += 1;
                a.carrier.flush();
                assert!(queued < 1000, "{:?}", a.counters());
            }
            assert_eq!(a.carrier.flush(), Flushed::Blocked);
            assert!(a.counters().would_block > 0);
            assert_eq!(a.counters().refused, 0);
            // What waits for the first host stays in order before it.
            let end = Instant::now() + PATIENCE;
            let told = Notice::Refused {
                peer: nobody,
                refusal: Refusal::Host,
            };
            while a.carrier.notice() != Some(told) {
                assert!(Instant::now() < end, "{a:?}");
                a.sleep();
                a.receive();
                a.carrier.flush();
            }
            let to = b.address();
            let mut sent = false;
            run(&mut a, &mut b, |a, b| {
                a.receive();
                sent = sent || a.send(to, &packet(5, 500));
                b.receive()
                    .iter()
                    .any(|(_, bytes)| *bytes == packet(5, 500))
            });
        },
    );
}
