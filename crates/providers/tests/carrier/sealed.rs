//! Streams between those who have a key, and what somebody on the way or without it gets.

use crate::carrier_rig::{Kind, PATIENCE, Side, packet, run, transfer};
use legato_base::secret::{Channel, Initiator, Keyring, MAC_LENGTH, RunId, Secret, SecureRandom};
use legato_base::wire::proof;
use legato_providers::roce::carrier::{Notice, Options, PACKET_MAX, PACKET_MIN, Refusal, Sealing};
use legato_transport::wire::icrc::{self, Envelope, Network};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const HOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];
const ICRC: usize = 4;
/// Bytes of what each side says first, and of the proof.
const ASKING: usize = 104;
const ANSWER: usize = 96;
const PROOF: usize = 18;

fn options(instance: u64) -> Options {
    Options {
        instance,
        ..Options::default()
    }
}

fn sealing(keys: Keyring, seed: u64) -> Sealing {
    Sealing::new(keys, SecureRandom::from_seed([seed as u8; 32]))
}

/// A node's: it knows the secret.
fn node(local: &str, instance: u64) -> Side {
    let keys = Keyring::All(Secret::new([1; 32]));
    Side::sealed(local, &options(instance), sealing(keys, instance))
}

/// That of a run, which knows its own key.
fn client(local: &str, instance: u64) -> Side {
    let key = Secret::new([1; 32]).key_of(RunId([instance as u8; 6]));
    Side::sealed(
        local,
        &options(instance),
        sealing(Keyring::One(key), instance),
    )
}

fn notices(side: &mut Side) -> Vec<Notice> {
    std::iter::from_fn(|| side.carrier.notice()).collect()
}

fn refused_secret(side: &mut Side) -> Option<proof::Refusal> {
    notices(side).into_iter().find_map(|notice| match notice {
        Notice::Refused {
            refusal: Refusal::Secret(reason),
            ..
        } => Some(reason),
        _ => None,
    })
}

#[test]
fn packets_of_every_length_come_as_they_went_in_both_directions() {
    for host in HOSTS {
        let (mut a, mut b) = (client(host, 1), node(host, 2));
        let all: Vec<_> = (PACKET_MIN - ICRC..=PACKET_MAX - ICRC)
            .step_by(37)
            .chain([PACKET_MAX - ICRC])
            .enumerate()
            .map(|(number, length)| packet(number, length))
            .collect();
        transfer(&mut a, &mut b, &all);
        transfer(&mut b, &mut a, &all);
        assert_eq!(a.counters().packets_sent, all.len() as u64);
        assert_eq!((a.counters().garbage, b.counters().garbage), (0, 0));
    }
}

/// A stream that is given up takes packets with it, which the transport above sends again, as here. In
/// the end there is one stream, and it goes both ways.
#[test]
fn of_two_sealed_streams_that_cross_one_stays() {
    for host in HOSTS {
        for order in 0..32 {
            let (mut a, mut b) = (node(host, 1), node(host, 2));
            let (at_a, at_b) = (a.address(), b.address());
            assert!(a.send(at_b, &packet(1, 100)));
            if order & 1 != 0 {
                a.carrier.flush();
                a.receive();
            }
            assert!(b.send(at_a, &packet(2, 200)));
            let mut arrived = [0, 0];
            let end = Instant::now() + PATIENCE;
            let mut step = 1;
            while arrived.contains(&0) {
                assert!(Instant::now() < end, "order {order}: {a:?} {b:?}");
                let side = usize::from(order >> (step % 5) & 1 != 0);
                let turns = if step < 5 { side..side + 1 } else { 0..2 };
                for side in turns {
                    let (turn, from, expected) = match side {
                        0 => (&mut a, at_b, packet(2, 200)),
                        _ => (&mut b, at_a, packet(1, 100)),
                    };
                    turn.carrier.flush();
                    for packet in turn.receive() {
                        assert_eq!(packet, (from, expected.clone()));
                        arrived[side] += 1;
                    }
                }
                if step % 1000 == 0 {
                    assert!(a.send(at_b, &packet(1, 100)));
                    assert!(b.send(at_a, &packet(2, 200)));
                }
                step += 1;
                std::thread::yield_now();
            }
            assert_eq!((a.counters().garbage, b.counters().garbage), (0, 0));
        }
    }
}

#[test]
fn a_node_reaches_a_client_whose_stream_is_gone_by_the_clients_own_key() {
    let (mut a, mut b) = (client(HOSTS[0], 1), node(HOSTS[0], 2));
    transfer(&mut a, &mut b, &[packet(1, 100)]);
    let (at_a, at_b) = (a.address(), b.address());
    a.carrier.disconnect(at_b);
    run(&mut a, &mut b, |_, b| {
        b.receive();
        b.counters().connections_lost == 1
    });
    transfer(&mut b, &mut a, &[packet(2, 100)]);
    assert_eq!(
        notices(&mut b).last(),
        Some(&Notice::Connected {
            peer: at_a,
            path_mtu: legato_verbs::PathMtu::Bytes4096,
        })
    );
}

#[test]
fn who_has_not_the_secret_is_refused_and_told_why() {
    let other = || {
        let keys = Keyring::All(Secret::new([2; 32]));
        Side::sealed(HOSTS[0], &options(3), sealing(keys, 3))
    };
    let plain = || Side::open(Kind::Stream, HOSTS[0], &options(4));
    let cases: [(Side, Side, proof::Refusal); 4] = [
        (other(), node(HOSTS[0], 1), proof::Refusal::Wrong),
        (plain(), node(HOSTS[0], 1), proof::Refusal::Required),
        (client(HOSTS[0], 1), plain(), proof::Refusal::NotExpected),
        // A run reaches nodes, and no other run.
        (
            client(HOSTS[0], 1),
            client(HOSTS[0], 2),
            proof::Refusal::Wrong,
        ),
    ];
    for (mut a, mut b, expected) in cases {
        assert!(a.send(b.address(), &packet(1, 100)));
        let mut reason = None;
        run(&mut a, &mut b, |a, b| {
            a.receive();
            assert_eq!(b.receive(), []);
            reason = reason.or_else(|| refused_secret(a));
            reason.is_some()
        });
        assert_eq!(reason, Some(expected));
        assert_eq!(
            (a.counters().secrets_refused, b.counters().secrets_refused),
            (1, 1)
        );
        assert_eq!(notices(&mut b), []);
    }
}

/// Carries what two sides say to each other, and counts it.
struct Between {
    near: TcpStream,
    far: TcpStream,
    seen: [usize; 2],
}

impl Between {
    fn new(listener: &TcpListener, to: SocketAddr) -> Self {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        for stream in [&near, &far] {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        Self {
            near,
            far,
            seen: [0; 2],
        }
    }

    fn carry(&mut self) {
        for way in 0..2 {
            let (from, to) = match way {
                0 => (&mut self.near, &mut self.far),
                _ => (&mut self.far, &mut self.near),
            };
            let mut bytes = [0; 4096];
            match from.read(&mut bytes) {
                Ok(0) => {
                    let _ = to.shutdown(std::net::Shutdown::Write);
                }
                Ok(count) => {
                    self.seen[way] += count;
                    let _ = to.write_all(&bytes[..count]);
                }
                Err(_) => {}
            }
        }
    }
}

/// A client that takes the relay for the node. The address in the preamble is the client's own, and the
/// relay connects from the same host, as somebody on the way would. But the node's sealed answer says where
/// it listens, which is not where the client has connected to.
#[test]
fn a_stream_through_somebody_who_is_not_the_peer_is_refused() {
    let mut b = node("127.0.0.1:0", 2);
    // The relay listens where the client believes the node to be, and the node's answer must say so.
    let listener = TcpListener::bind(("127.0.0.2", b.address().port())).unwrap();
    let mut a = client("127.0.0.1:0", 1);
    let packets: Vec<_> = (1..4).map(|number| packet(number, 100)).collect();
    for packet in &packets {
        assert!(a.send(listener.local_addr().unwrap(), packet));
    }
    a.carrier.flush();
    let mut between = Between::new(&listener, b.address());
    let mut arrived = Vec::new();
    let end = Instant::now() + PATIENCE;
    while a.counters().garbage == 0 {
        assert!(Instant::now() < end, "{a:?} {b:?}");
        a.carrier.flush();
        between.carry();
        a.receive();
        arrived.extend(b.receive().into_iter().map(|(_, bytes)| bytes));
        b.carrier.flush();
        std::thread::yield_now();
    }
    assert_eq!(arrived, Vec::<Vec<u8>>::new());
    assert_eq!(between.seen, [ASKING, ANSWER]);
    assert_eq!(a.counters().garbage, 1);
}

/// What one side says first is recorded from a client of the test's own making.
fn connect_by_hand(b: &mut Side, asking: &[u8]) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(b.address()).unwrap();
    stream.write_all(asking).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(2)))
        .unwrap();
    let mut answer = vec![0; 4096];
    let mut length = 0;
    for _ in 0..500 {
        b.receive();
        b.carrier.flush();
        if let Ok(count) = stream.read(&mut answer[length..]) {
            length += count;
            if count == 0 || length >= ANSWER {
                break;
            }
        }
    }
    answer.truncate(length);
    (stream, answer)
}

/// A client's first words, and the frames after them, as they went to a node. The recorder knows the
/// client's key, which the test uses for nothing else.
fn recorded() -> (SocketAddr, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let mut a = client("127.0.0.1:0", 1);
    assert!(a.send(listener.local_addr().unwrap(), &packet(1, 100)));
    a.carrier.flush();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut asking, mut length) = (vec![0; ASKING], 0);
    while length < ASKING {
        a.receive();
        a.carrier.flush();
        length += stream.read(&mut asking[length..]).unwrap_or(0);
    }
    (a.address(), asking)
}

// P-84
#[test]
fn a_recording_does_not_take_the_place_of_the_stream_that_there_is() {
    let (from, asking) = recorded();
    let mut b = node("127.0.0.1:0", 2);
    // The real one comes at the same address, and is at work.
    let key = Secret::new([1; 32]).key_of(RunId([1; 6]));
    let sealing = sealing(Keyring::One(key), 9);
    let mut a = Side::sealed(&from.to_string(), &options(1), sealing);
    transfer(&mut a, &mut b, &[packet(1, 100)]);
    for _ in 0..3 {
        let (mut stream, answer) = connect_by_hand(&mut b, &asking);
        assert!(
            answer.len() == ANSWER || answer.is_empty(),
            "{}",
            answer.len()
        );
        // It cannot say what fits the answer.
        let _ = stream.write_all(&[0, 16]);
        let _ = stream.write_all(&[7; 16]);
        assert_eq!(b.receive(), []);
        transfer(&mut a, &mut b, &[packet(2, 100)]);
        transfer(&mut b, &mut a, &[packet(3, 100)]);
    }
    assert_eq!(a.counters().connections_lost, 0);
    assert_eq!(b.counters().connections, 1);
}

#[test]
fn every_changed_byte_of_what_a_client_says_first_is_refused() {
    let (_, asking) = recorded();
    let mut b = node("127.0.0.1:0", 2);
    for place in 0..ASKING {
        let mut changed = asking.clone();
        changed[place] ^= 0x20;
        let refused = b.counters().secrets_refused + b.counters().garbage;
        let (_stream, answer) = connect_by_hand(&mut b, &changed);
        // The version is not looked at before the seal: another one is another handshake.
        let expected = (8..10).contains(&place);
        assert_eq!(
            answer.len() == ANSWER,
            expected,
            "byte {place}: {}",
            answer.len()
        );
        let now = b.counters().secrets_refused + b.counters().garbage;
        assert_eq!(now, refused + u64::from(!expected), "byte {place}");
    }
    assert_eq!(notices(&mut b), []);
}

#[test]
fn random_bytes_get_nothing_and_disturb_nobody() {
    let (mut a, mut b) = (client(HOSTS[0], 1), node(HOSTS[0], 2));
    transfer(&mut a, &mut b, &[packet(1, 100)]);
    let mut random = SecureRandom::from_seed([4; 32]);
    for round in 0..40 {
        let mut bytes = vec![0; 40 + (random.next_u64() % 200) as usize];
        random.fill(&mut bytes);
        if round % 2 == 0 {
            bytes[..10].copy_from_slice(b"LegatoRN\0\x01");
            bytes.resize(ASKING, 7);
        }
        let (_stream, answer) = connect_by_hand(&mut b, &bytes);
        assert_ne!(answer.len(), ANSWER);
    }
    let counters = b.counters();
    assert_eq!(counters.garbage + counters.secrets_refused, 40);
    transfer(&mut a, &mut b, &[packet(2, 100)]);
    assert_eq!(a.counters().connections_lost, 0);
}

/// A client that the test plays itself: its handshake is done, and it can seal what it likes.
struct ByHand {
    stream: TcpStream,
    channel: Channel,
    gid: [u8; 16],
}

impl ByHand {
    fn connect(b: &mut Side, port: u16) -> Self {
        let key = Secret::new([1; 32]).key_of(RunId([5; 6]));
        let mut random = SecureRandom::from_seed([5; 32]);
        let mut initiator = Initiator::new(&key, b"legato stream 1", &mut random).unwrap();
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xFF, 0xFF, 127, 0, 0, 1]);
        let mut preamble = b"LegatoRS\x00\x01\x10\x00".to_vec();
        preamble.extend([(port >> 8) as u8, port as u8, 0, 0]);
        preamble.extend([9; 8]);
        preamble.extend(gid);
        let mut asking = b"LegatoRN\x00\x01".to_vec();
        asking.extend(key.id().0);
        asking.resize(ASKING, 0);
        initiator.write(&preamble, &mut asking[16..]).unwrap();
        let (stream, answer) = connect_by_hand(b, &asking);
        let (_, channel) = initiator.finish(&answer[8..], &mut [0; 128]).unwrap();
        Self {
            stream,
            channel,
            gid,
        }
    }

    fn frame(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; 2 + plain.len() + MAC_LENGTH];
        let length = self.channel.seal(plain, &mut sealed[2..]).unwrap();
        sealed[..2].copy_from_slice(&[(length >> 8) as u8, length as u8]);
        sealed
    }

    /// With its invariant CRC.
    fn packet(&self, bytes: &[u8]) -> Vec<u8> {
        let envelope = Envelope {
            network: Network::Ipv6 {
                source: self.gid.into(),
                destination: self.gid.into(),
            },
            source_port: 4791,
            destination_port: 4791,
        };
        let mut packet = bytes.to_vec();
        packet.extend([0; 8]);
        icrc::append(&envelope, &mut packet, bytes.len()).unwrap();
        packet.truncate(bytes.len() + ICRC);
        packet
    }

    /// The proof, and two packets.
    fn saying(&mut self) -> Vec<u8> {
        let packets = [packet(1, 100), packet(2, 100)].map(|bytes| self.packet(&bytes));
        let mut all = self.frame(&[]);
        for packet in packets {
            all.extend(self.frame(&packet));
        }
        all
    }
}

/// What comes until there is as much as expected and as much garbage, which a loaded machine delivers late.
fn arrives(b: &mut Side, expected: usize, garbage: u64) -> Vec<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    while Instant::now() < end {
        all.extend(b.receive().into_iter().map(|(_, bytes)| bytes));
        b.carrier.flush();
        if all.len() >= expected && b.counters().garbage >= garbage {
            break;
        }
        std::thread::yield_now();
    }
    // Nothing more than that.
    all.extend(b.receive().into_iter().map(|(_, bytes)| bytes));
    all
}

// P-83
#[test]
fn every_changed_byte_of_a_sealed_stream_ends_it() {
    let mut b = node("127.0.0.1:0", 2);
    let frame = 2 + 100 + ICRC + MAC_LENGTH;
    let mut ended = 0;
    for place in 0..PROOF + 2 * frame {
        let mut hand = ByHand::connect(&mut b, 20_000 + place as u16);
        let mut bytes = hand.saying();
        bytes[place] ^= 1;
        let garbage = b.counters().garbage;
        hand.stream.write_all(&bytes).unwrap();
        // A frame that says it is longer is awaited; anything else is noticed at once.
        let at = match place {
            0..PROOF => place,
            _ => (place - PROOF) % frame,
        };
        // What was sealed before the change is taken, and nothing after it.
        let expected = usize::from(place >= PROOF + frame);
        let arrived = arrives(&mut b, expected, garbage + u64::from(at >= 2));
        assert_eq!(arrived.len(), expected, "byte {place}");
        assert!(arrived.iter().all(|bytes| *bytes == packet(1, 100)));
        let is_noticed = b.counters().garbage == garbage + 1;
        assert!(is_noticed || at < 2, "byte {place}");
        ended += usize::from(is_noticed);
    }
    assert!(ended > 2 * frame, "{ended}");
}

// P-83
#[test]
fn sealed_frames_that_are_left_out_repeated_or_swapped_end_the_stream() {
    let mut b = node("127.0.0.1:0", 2);
    let orders: [(&[usize], usize); 6] = [
        (&[0, 1, 2], 2),
        (&[0, 2, 1], 0),
        (&[0, 1, 1], 1),
        (&[0, 2], 0),
        (&[1, 2], 0),
        (&[0, 0, 1], 0),
    ];
    for (number, (order, expected)) in orders.into_iter().enumerate() {
        let mut hand = ByHand::connect(&mut b, 21_000 + number as u16);
        let one = hand.packet(&packet(1, 100));
        let two = hand.packet(&packet(2, 100));
        let frames = [hand.frame(&[]), hand.frame(&one), hand.frame(&two)];
        let garbage = b.counters().garbage;
        for &index in order {
            hand.stream.write_all(&frames[index]).unwrap();
        }
        let noticed = u64::from(expected < 2);
        let arrived = arrives(&mut b, expected, garbage + noticed);
        assert_eq!(arrived.len(), expected, "{order:?}");
        assert_eq!(b.counters().garbage - garbage, noticed, "{order:?}");
    }
}
