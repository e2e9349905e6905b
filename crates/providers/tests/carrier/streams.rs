//! How streams begin and end.

use crate::carrier_rig::{Kind, Side, packet, run, sleep, transfer};
use legato_providers::roce::carrier::{Notice, Options, PACKET_MAX, PACKET_MIN, Refusal};
use legato_verbs::PathMtu;
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SendFlags, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const HOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];
const PREAMBLE: usize = 40;

fn open(local: &str, instance: u64) -> Side {
    let options = Options {
        instance,
        send_slots: 16,
        ..Options::default()
    };
    Side::open(Kind::Stream, local, &options)
}

fn notices(side: &mut Side) -> Vec<Notice> {
    std::iter::from_fn(|| side.carrier.notice()).collect()
}

const fn connected(peer: SocketAddr) -> Notice {
    Notice::Connected {
        peer,
        path_mtu: PathMtu::Bytes4096,
    }
}

const fn lost(peer: SocketAddr, refusal: Refusal) -> Notice {
    Notice::Lost { peer, refusal }
}

/// What a carrier says of itself that listens at `address`.
fn preamble(address: SocketAddr, instance: u64) -> Vec<u8> {
    let gid = match address.ip() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    };
    let mut bytes = b"LegatoRS\x00\x01\x10\x00".to_vec();
    bytes.extend([(address.port() >> 8) as u8, address.port() as u8, 0, 0]);
    bytes.extend((0..8).rev().map(|byte| (instance >> (8 * byte)) as u8));
    bytes.extend(gid);
    assert_eq!(bytes.len(), PREAMBLE);
    bytes
}

/// Runs `side` until `done`, with something else at the other end of its streams.
fn serve(side: &mut Side, mut done: impl FnMut(&mut Side) -> bool) {
    loop {
        side.receive();
        side.carrier.flush();
        if done(side) {
            return;
        }
        sleep(&[side]);
    }
}

#[test]
fn the_first_packet_connects() {
    for host in HOSTS {
        let (mut a, mut b) = (open(host, 1), open(host, 2));
        transfer(&mut a, &mut b, &[packet(1, 100)]);
        transfer(&mut b, &mut a, &[packet(2, 100)]);
        assert_eq!(notices(&mut a), [connected(b.address())]);
        assert_eq!(notices(&mut b), [connected(a.address())]);
    }
}

/// Both connect at once, in either order of their addresses, with any steps in between.
#[test]
fn of_two_streams_that_cross_one_stays() {
    for host in HOSTS {
        for order in 0..32 {
            let (mut a, mut b) = (open(host, 1), open(host, 2));
            let (at_a, at_b) = (a.address(), b.address());
            assert!(a.send(at_b, &packet(1, 100)));
            if order & 1 != 0 {
                a.carrier.flush();
                a.receive();
            }
            assert!(b.send(at_a, &packet(2, 200)));
            let mut arrived = [Vec::new(), Vec::new()];
            for step in 1..5 {
                let side = usize::from(order >> step & 1 != 0);
                let turn = if side == 0 { &mut a } else { &mut b };
                turn.carrier.flush();
                arrived[side].extend(turn.receive());
            }
            run(&mut a, &mut b, |a, b| {
                arrived[0].extend(a.receive());
                arrived[1].extend(b.receive());
                arrived.iter().all(|arrived| !arrived.is_empty())
            });
            assert_eq!(arrived[0], [(at_b, packet(2, 200))]);
            assert_eq!(arrived[1], [(at_a, packet(1, 100))]);
            // And it is the same one for both ends: it goes on.
            transfer(&mut a, &mut b, &[packet(3, 300)]);
            transfer(&mut b, &mut a, &[packet(4, 400)]);
            assert_eq!(notices(&mut a), [connected(at_b)], "order {order}");
            assert_eq!(notices(&mut b), [connected(at_a)], "order {order}");
        }
    }
}

#[test]
fn a_packet_to_oneself_arrives() {
    let mut a = open(HOSTS[0], 1);
    let to = a.address();
    assert!(a.send(to, &packet(1, 100)));
    let mut arrived = Vec::new();
    while arrived.is_empty() {
        a.carrier.flush();
        arrived = a.receive();
        if arrived.is_empty() {
            a.sleep();
        }
    }
    assert_eq!(arrived, [(to, packet(1, 100))]);
}

#[test]
fn nobody_there_is_told() {
    for host in HOSTS {
        let closed = TcpListener::bind(host).unwrap().local_addr().unwrap();
        let mut a = open(host, 1);
        assert!(a.send(closed, &packet(1, 100)));
        let mut seen = Vec::new();
        serve(&mut a, |a| {
            seen.extend(notices(a));
            !seen.is_empty()
        });
        assert_eq!(seen, [lost(closed, Refusal::Port)]);
        assert_eq!(a.counters().connections, 0);
    }
}

#[test]
fn a_lost_stream_is_told_and_made_again() {
    let (mut a, mut b) = (open(HOSTS[0], 1), open(HOSTS[0], 2));
    transfer(&mut a, &mut b, &[packet(1, 100)]);
    let (at_a, at_b) = (a.address(), b.address());
    drop(b);
    notices(&mut a);
    let mut seen = Vec::new();
    serve(&mut a, |a| {
        seen.extend(notices(a));
        !seen.is_empty()
    });
    assert_eq!(seen, [lost(at_b, Refusal::Closed)]);
    let mut b = open(&at_b.to_string(), 3);
    transfer(&mut a, &mut b, &[packet(2, 100)]);
    b.carrier.disconnect(at_a);
    run(&mut a, &mut b, |a, b| {
        a.receive();
        b.receive();
        notices(a).contains(&lost(at_b, Refusal::Closed))
    });
    transfer(&mut b, &mut a, &[packet(3, 100)]);
    assert_eq!(a.counters().connections_lost, 2);
}

/// The peer has died without a word and come again: what it says now is true.
#[test]
fn a_new_life_of_a_peer_replaces_its_old_stream() {
    for (peer, a_connects) in [("127.0.0.2:0", true), ("127.0.0.2:0", false)] {
        let mut a = open("127.0.0.1:0", 1);
        let listener = TcpListener::bind(peer).unwrap();
        let at = listener.local_addr().unwrap();
        // From 127.0.0.1 it comes, and says to be 127.0.0.2: that is a lie.
        let liar = connect_from(a.address(), a.address(), &preamble(at, 5));
        serve(&mut a, |a| a.counters().garbage == 1);
        drop(liar);
        let mut accepted = None;
        let mut connected_one = None;
        if a_connects {
            assert!(a.send(at, &packet(1, 100)));
            a.carrier.flush();
            a.receive();
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&preamble(at, 5)).unwrap();
            accepted = Some(stream);
        } else {
            connected_one = Some(connect_from(at, a.address(), &preamble(at, 5)));
        }
        serve(&mut a, |a| a.counters().connections == 1);
        assert_eq!(notices(&mut a), [connected(at)]);
        // The same life again, over a connection that crosses ours: ours stays.
        let crossing = connect_from(at, a.address(), &preamble(at, 5));
        if a_connects {
            a.sleep();
            a.receive();
            a.receive();
            assert_eq!(notices(&mut a), []);
        } else {
            serve(&mut a, |a| a.counters().connections == 2);
            assert_eq!(notices(&mut a), [lost(at, Refusal::Closed), connected(at)]);
        }
        let before = a.counters().connections;
        let new = connect_from(at, a.address(), &preamble(at, 6));
        serve(&mut a, |a| a.counters().connections == before + 1);
        assert_eq!(notices(&mut a), [lost(at, Refusal::Closed), connected(at)]);
        drop((accepted, connected_one, crossing, new));
    }
}

/// Connects from the IP address of `from`, and says `bytes`.
fn connect_from(from: SocketAddr, to: SocketAddr, bytes: &[u8]) -> OwnedFd {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::new(from.ip(), 0)).unwrap();
    net::connect(&socket, &to).unwrap();
    assert_eq!(
        net::send(&socket, bytes, SendFlags::empty()).unwrap(),
        bytes.len()
    );
    socket
}

#[test]
fn garbage_ends_the_stream_and_harms_no_other() {
    let (mut a, mut b) = (open(HOSTS[0], 1), open(HOSTS[0], 2));
    transfer(&mut a, &mut b, &[packet(1, 100)]);
    let at = TcpListener::bind(HOSTS[0]).unwrap().local_addr().unwrap();
    let length = |length: usize| vec![(length >> 8) as u8, length as u8];
    let behind = |bytes: Vec<u8>| [preamble(at, 9), bytes].concat();
    let cases = [
        b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: */*\r\n\r\n".to_vec(),
        vec![0; 64],
        behind(length(0)),
        behind(length(PACKET_MIN - 1)),
        behind(length(PACKET_MAX + 1)),
        behind(vec![0xFF; 100]),
    ];
    for (number, bytes) in cases.iter().enumerate() {
        let mut stranger = TcpStream::connect(a.address()).unwrap();
        stranger.write_all(bytes).unwrap();
        serve(&mut a, |a| a.counters().garbage == number as u64 + 1);
        // What it had said before may be unread, then the end is a reset.
        let mut rest = Vec::new();
        match stranger.read_to_end(&mut rest) {
            Ok(count) => assert!(count <= PREAMBLE),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        transfer(&mut a, &mut b, &[packet(number, 100)]);
    }
    assert_eq!(b.counters().damaged, 0);
}

/// A packet whose CRC is wrong is left out; the stream goes on behind it.
#[test]
fn damage_in_a_stream_is_counted() {
    let mut a = open(HOSTS[0], 1);
    let at = TcpListener::bind(HOSTS[0]).unwrap().local_addr().unwrap();
    let mut stranger = TcpStream::connect(a.address()).unwrap();
    stranger.write_all(&preamble(at, 9)).unwrap();
    for _ in 0..3 {
        stranger.write_all(&[0, 100]).unwrap();
        stranger.write_all(&packet(1, 100)).unwrap();
    }
    serve(&mut a, |a| a.counters().damaged == 3);
    assert_eq!(a.counters().garbage, 0);
    assert_eq!(a.counters().connections, 1);
}

#[test]
fn a_stream_may_come_byte_by_byte() {
    let (mut a, mut b) = (open(HOSTS[0], 1), open(HOSTS[0], 2));
    let listener = TcpListener::bind(HOSTS[0]).unwrap();
    // What A sends to somebody is what a proxy in between would have: its bytes are kept.
    let at = listener.local_addr().unwrap();
    assert!(a.send(at, &packet(1, 100)));
    assert!(a.send(at, &packet(2, 300)));
    a.carrier.flush();
    a.receive();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = vec![0; PREAMBLE];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, preamble(a.address(), 1));
    for byte in preamble(at, 4) {
        stream.write_all(&[byte]).unwrap();
        a.sleep();
        a.receive();
    }
    a.carrier.flush();
    let mut frames = vec![0; 2 + 104 + 2 + 304];
    stream.read_exact(&mut frames).unwrap();
    assert_eq!(frames[..2], [0, 104]);
    assert!(frames[2..102] == packet(1, 100));
    // B takes them for packets of whoever says to be A, and of the same GIDs.
    let mut feeder = TcpStream::connect(b.address()).unwrap();
    feeder.write_all(&preamble(a.address(), 1)).unwrap();
    let mut arrived = Vec::new();
    for byte in frames {
        feeder.write_all(&[byte]).unwrap();
        b.sleep();
        arrived.extend(b.receive());
    }
    serve(&mut b, |b| b.inbox.is_empty());
    let from = a.address();
    assert_eq!(arrived, [(from, packet(1, 100)), (from, packet(2, 300))]);
}

/// Whoever connects and says nothing makes room for those who do.
#[test]
fn silent_strangers_do_not_lock_peers_out() {
    let options = Options {
        connections: 4,
        ..Options::default()
    };
    let mut a = Side::open(Kind::Stream, HOSTS[0], &options);
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(a.address()).unwrap())
        .collect();
    let mut b = open(HOSTS[0], 2);
    transfer(&mut b, &mut a, &[packet(1, 100)]);
    assert_eq!(a.counters().connections, 1);
    drop(silent);
}
