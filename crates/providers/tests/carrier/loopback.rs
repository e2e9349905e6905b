//! Carriers between addresses of this machine.

use crate::carrier_rig::{Kind, PATIENCE, Side, packet, packets, run, transfer};
use legato_providers::roce::carrier::{
    CarrierError, Congestion, DatagramCarrier, Flushed, Notice, Options, PACKET_MAX, PACKET_MIN,
    Refusal, SendError, gid_of,
};
use legato_transport::wire::icrc::{self, Envelope, Network};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

const HOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn pair(kind: Kind, local: &str, options: &Options) -> (Side, Side) {
    (
        Side::open(kind, local, options),
        Side::open(kind, local, options),
    )
}

#[test]
fn packets_come_as_they_went() {
    for kind in [Kind::Datagram, Kind::Stream] {
        for host in HOSTS {
            for (segmentation, joining) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let options = Options {
                    segmentation,
                    joining,
                    ..Options::default()
                };
                let (mut a, mut b) = pair(kind, host, &options);
                let all = packets(4096);
                transfer(&mut a, &mut b, &all);
                transfer(&mut b, &mut a, &all);
                for side in [&a, &b] {
                    let counters = side.counters();
                    assert_eq!(counters.packets_sent, all.len() as u64);
                    assert_eq!(counters.packets_received, all.len() as u64);
                    assert_eq!(counters.damaged + counters.malformed, 0, "{counters:?}");
                    assert_eq!(counters.identifications_solved, 0, "{counters:?}");
                    let joined = kind == Kind::Datagram && segmentation;
                    assert_eq!(counters.segmented_messages > 0, joined, "{counters:?}");
                    assert_eq!(
                        counters.joined_messages > 0,
                        joined && joining,
                        "{counters:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_length_of_payload_comes_through() {
    for kind in [Kind::Datagram, Kind::Stream] {
        let (mut a, mut b) = pair(kind, HOSTS[0], &Options::default());
        let all: Vec<_> = (1..=4096)
            .map(|payload| packet(payload, 12 + payload))
            .collect();
        transfer(&mut a, &mut b, &all);
    }
}

/// The source ports of packets of these flows, in the order of the flows.
fn source_ports(a: &mut Side, b: &mut Side, flows: &[u32]) -> Vec<u16> {
    let to = b.address();
    for (number, &flow) in flows.iter().enumerate() {
        let sent = a.carrier.send(to, flow, |room| {
            room[..20].fill(number as u8);
            Ok::<_, ()>(20)
        });
        sent.unwrap();
    }
    a.carrier.flush();
    let mut received = b.receive_until(flows.len());
    received.sort_by_key(|(_, bytes)| bytes[0]);
    assert_eq!(b.counters().damaged, 0);
    received.iter().map(|(source, _)| source.port()).collect()
}

#[test]
fn source_ports_differ_by_flow_between_ports_of_devices() {
    let options = Options {
        source_ports: 3,
        instance: 77,
        ..Options::default()
    };
    let open = |place: &str| Side::open(Kind::Datagram, place, &options);
    let taken = UdpSocket::bind("127.31.40.1:49230").unwrap();
    let mut a = open("127.31.40.1:4791");
    let mut b = open("127.31.40.2:4791");
    let ports = source_ports(&mut a, &mut b, &[0, 1, 2, 3, 3, 0]);
    // From 0xC000 and the instance on, as far as they are free.
    assert_eq!(taken.local_addr().unwrap().port(), 0xC000 + 78);
    let expected = [0, 2, 3].map(|n| 0xC000 + 77 + n);
    let [first, second, third] = expected;
    assert_eq!(ports, [first, second, third, first, first, first]);
    // At any other port the source says who it is, and who is at another is talked to as before.
    let mut c = open("127.31.40.3:4792");
    assert_eq!(source_ports(&mut a, &mut c, &[0, 1]), [4791, 4791]);
    assert_eq!(source_ports(&mut c, &mut a, &[0, 1]), [4792, 4792]);
}

/// What the network answers to a flow is told, and wakes.
#[test]
fn nobody_at_the_port_of_devices_is_told_whatever_the_flow() {
    let mut a = Side::open(Kind::Datagram, "127.31.41.1:4791", &Options::default());
    let nobody = "127.31.41.2:4791".parse().unwrap();
    for flow in [5, 6] {
        let sent = a.carrier.send(nobody, flow, |room| {
            room[..20].fill(1);
            Ok::<_, ()>(20)
        });
        sent.unwrap();
        a.carrier.flush();
        a.sleep();
        a.carrier.before_sleep();
        let notice = a.carrier.notice();
        let refusal = Refusal::Port;
        let peer = nobody;
        assert_eq!(notice, Some(Notice::Refused { peer, refusal }));
        assert_eq!(a.carrier.notice(), None);
    }
}

#[test]
fn marks_of_congestion_come_with_the_packet() {
    let seen = [
        (0, Congestion::NotTold),
        (1, Congestion::None),
        (2, Congestion::None),
        (3, Congestion::Experienced),
    ];
    for host in HOSTS {
        for (traffic_class, congestion) in seen {
            let options = Options {
                traffic_class,
                ..Options::default()
            };
            let (mut a, mut b) = pair(Kind::Datagram, host, &options);
            assert!(a.send(b.address(), &packet(1, 100)));
            a.carrier.flush();
            b.sleep();
            b.carrier.receive(&mut b.inbox);
            let received = b.inbox.next().unwrap();
            assert_eq!(received.congestion, congestion, "{host} {traffic_class}");
            assert_eq!(received.source_gid(), gid_of(a.address()));
        }
    }
}

/// A datagram whose CRC says that it comes from `from` with this identification.
fn forge(from: SocketAddr, to: SocketAddr, identification: u16, length: usize) -> Vec<u8> {
    let network = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Network::Ipv4 {
            source,
            destination,
            identification,
            do_not_fragment: true,
        },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Network::Ipv6 {
            source,
            destination,
        },
        _ => panic!("two families"),
    };
    let envelope = Envelope {
        network,
        source_port: from.port(),
        destination_port: to.port(),
    };
    let mut bytes = packet(1, length);
    bytes.resize(length + icrc::ICRC_LENGTH, 0);
    icrc::append(&envelope, &mut bytes, length).unwrap();
    bytes
}

#[test]
fn what_a_stranger_sends_is_counted_and_dropped() {
    for host in HOSTS {
        let mut b = Side::open(Kind::Datagram, host, &Options::default());
        let stranger = UdpSocket::bind(host).unwrap();
        let from = stranger.local_addr().unwrap();
        let to = b.address();
        let send = |bytes: &[u8]| assert_eq!(stranger.send_to(bytes, to).unwrap(), bytes.len());
        for length in [0, 1, PACKET_MIN - 1, PACKET_MAX + 1, 9000, 60_000] {
            send(&vec![7; length]);
        }
        // The CRC of what another address and another port sent.
        let mut other = from;
        other.set_port(from.port() ^ 1);
        send(&forge(other, to, 0, 100));
        let mut right = forge(from, to, 0, 100);
        send(&right);
        right[50] ^= 1;
        send(&right);
        let received = b.receive_until(1);
        assert_eq!(received, [(from, packet(1, 100))]);
        let end = Instant::now() + PATIENCE;
        while b.counters().malformed + b.counters().damaged < 8 && Instant::now() < end {
            assert_eq!(b.receive(), []);
            b.sleep();
        }
        let counters = b.counters();
        assert_eq!(
            (counters.malformed, counters.damaged),
            (6, 2),
            "{counters:?}"
        );
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for host in HOSTS {
        let mut b = Side::open(Kind::Datagram, host, &Options::default());
        let sender = UdpSocket::bind(host).unwrap();
        let (from, to) = (sender.local_addr().unwrap(), b.address());
        let right = forge(from, to, 0, 64);
        let mut damaged = 0;
        for bit in 0..right.len() * 8 {
            // Routers may change this byte, and the CRC leaves it out.
            if bit / 8 == 4 {
                continue;
            }
            let mut wrong = right.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            sender.send_to(&wrong, to).unwrap();
            sender.send_to(&right, to).unwrap();
            damaged += 1;
            assert_eq!(b.receive_until(1), [(from, packet(1, 64))]);
        }
        assert_eq!(b.counters().damaged, damaged);
    }
}

/// A sender that counts identifications on its own, as hardware does.
#[test]
fn other_identifications_are_found_from_the_crc() {
    let mut b = Side::open(Kind::Datagram, HOSTS[0], &Options::default());
    let sender = UdpSocket::bind(HOSTS[0]).unwrap();
    let (from, to) = (sender.local_addr().unwrap(), b.address());
    for identification in [0, 1, 2, 0x1234, 0x1235, 0xFFFF, 0, 9] {
        sender
            .send_to(&forge(from, to, identification, 48), to)
            .unwrap();
        assert_eq!(b.receive_until(1), [(from, packet(1, 48))]);
    }
    let counters = b.counters();
    // 0, 1, 2, 0x1235, 0xFFFF + 1 are what follows, and what begins.
    assert_eq!(counters.identifications_expected, 5, "{counters:?}");
    assert_eq!(counters.identifications_solved, 3, "{counters:?}");
}

#[test]
fn a_closed_port_is_told_and_harms_no_other_peer() {
    for host in HOSTS {
        let (mut a, mut b) = pair(Kind::Datagram, host, &Options::default());
        let closed = UdpSocket::bind(host).unwrap().local_addr().unwrap();
        for number in 0..20 {
            assert!(a.send(closed, &packet(number, 100)));
            a.carrier.flush();
            assert!(a.send(b.address(), &packet(number, 200)));
            a.carrier.flush();
        }
        assert_eq!(b.receive_until(20).len(), 20);
        a.receive();
        let told = Notice::Refused {
            peer: closed,
            refusal: Refusal::Port,
        };
        let mut count = 0;
        while let Some(notice) = a.carrier.notice() {
            assert_eq!(notice, told);
            count += 1;
        }
        assert!(count > 0);
        assert_eq!(a.counters().refused, 0);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let options = Options::default();
    for local in ["0.0.0.0:0", "[::]:0", "224.0.0.1:0"] {
        let opened = DatagramCarrier::open(local.parse().unwrap(), &options);
        assert!(matches!(opened, Err(CarrierError::NoUnicastAddress(_))));
    }
    for kind in [Kind::Datagram, Kind::Stream] {
        let mut a = Side::open(kind, HOSTS[0], &options);
        let ipv6 = "[::1]:4791".parse().unwrap();
        let write = |length: usize| move |_: &mut [u8]| Ok::<_, ()>(length);
        assert_eq!(
            a.carrier.send(ipv6, 0, write(20)),
            Err(SendError::OtherFamily)
        );
        assert!(a.carrier.path_mtu(ipv6).is_err());
        let to = a.address();
        for length in [0, PACKET_MIN - 5, PACKET_MAX - 3, usize::MAX / 2] {
            assert_eq!(
                a.carrier.send(to, 0, write(length)),
                Err(SendError::Length(length))
            );
        }
        let failed = a.carrier.send(to, 0, |_| Err::<usize, _>("no memory"));
        assert_eq!(failed, Err(SendError::Write("no memory")));
        assert_eq!(a.carrier.local_gid(), gid_of(a.address()));
        assert_eq!(a.carrier.path_mtu(to).unwrap().bytes(), 4096);
    }
}

/// Nobody reads at the other end, so the buffers fill; nothing of what was taken is lost.
#[test]
fn a_stream_that_is_not_read_pushes_back() {
    let options = Options {
        send_slots: 64,
        ..Options::default()
    };
    let (mut a, mut b) = pair(Kind::Stream, HOSTS[0], &options);
    let to = b.address();
    let mut sent = 0;
    let mut number = 0;
    let mut check = |received: Vec<(SocketAddr, Vec<u8>)>| {
        for (_, bytes) in received {
            assert!(bytes == packet(number, 4096));
            number += 1;
        }
        number
    };
    run(&mut a, &mut b, |a, b| {
        a.receive();
        while a.send(to, &packet(sent, 4096)) {
            sent += 1;
        }
        // B reads until there is a connection, and then no more.
        if a.counters().connections == 0 {
            check(b.receive());
        }
        a.carrier.flush();
        a.counters().would_block > 0 && a.carrier.flush() == Flushed::Blocked
    });
    assert!(a.counters().bytes_sent > 64 * 4096);
    run(&mut a, &mut b, |a, b| {
        a.receive();
        check(b.receive()) == sent
    });
    assert!(a.send(to, &packet(0, 100)));
}
