//! A software RoCE NIC among packets that no honest peer sends: changed, replayed, forged, random.

use crate::carrier_rig::{Kind, Side};
use crate::rig::town::{Town, pattern};
use crate::rig::{SERVICE, Way};
use legato_base::{Duration, Random};
use legato_providers::roce::carrier::Options;
use legato_verbs::{CompletionKind, Provider, SendOperation};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32};

/// Bytes of a packet before its payload; all, if that is a message of connection management.
fn head(packet: &[u8]) -> usize {
    let length = match packet[0] {
        0x64 => packet.len(),
        // With a RDMA header, an atomic one, an acknowledgement and what was there, one alone.
        0x06 | 0x0A | 0x0C => 28,
        0x13 | 0x14 => 40,
        0x12 => 24,
        0x0D | 0x0F | 0x10 | 0x11 => 16,
        _ => 12,
    };
    length.min(packet.len())
}

/// Each byte before the payload of each packet of a connection is changed, one in a story.
fn changed_one_at_a_time(net: u8, wanted: fn(&[u8]) -> bool, changes: &'static [u8]) {
    let mut town = Town::new(net);
    let packets = town.captured().len();
    let (mut stories, mut well) = (0, 0);
    for index in 0..packets {
        let mut at = 0;
        loop {
            let more = Rc::new(RefCell::new(false));
            for &change in changes {
                let tell = more.clone();
                let mut seen = 0;
                town.rig.rule = Box::new(move |_, bytes| {
                    let mut bytes = bytes.to_vec();
                    if seen == index && wanted(&bytes) && at < head(&bytes) {
                        bytes[at] ^= change;
                        *tell.borrow_mut() = true;
                    }
                    seen += 1;
                    vec![(Duration::ZERO, bytes)]
                });
                well += u32::from(town.story());
                stories += 1;
                town.check(&format!("packet {index}, byte {at} ^ {change:#x}"));
                if !*more.borrow() {
                    break;
                }
            }
            if !*more.borrow() {
                break;
            }
            at += 1;
        }
    }
    println!("{stories} stories of {packets} packets, {well} to a good end");
    town.pass();
    assert!(town.story(), "an honest connection afterwards");
    assert!(stories > 300, "{stories}");
    town.leaves_nothing();
}

#[test]
fn v_13_every_field_of_requests_and_answers_changed() {
    changed_one_at_a_time(1, |packet| packet[0] != 0x64, &[0x01, 0x80, 0xFF]);
}

#[test]
fn v_13_every_field_of_connection_management_changed() {
    changed_one_at_a_time(2, |packet| packet[0] == 0x64, &[0x11]);
}

/// Whoever is not the peer changes nothing, whatever he knows: he sends all that the peers say,
/// from other ports of their address and from another one, a moment before they do.
#[test]
fn v_13_strangers_who_know_everything() {
    let mut town = Town::new(3);
    let places = ["127.31.3.4:4800", "127.31.3.4:50000", "127.31.3.9:4791"];
    for place in places {
        let is_flow = place.ends_with(":50000");
        let stranger = Rc::new(RefCell::new(Side::open(
            Kind::Datagram,
            place,
            &Options::default(),
        )));
        let targets: [SocketAddr; 2] = [
            format!("127.31.3.1:{SERVICE}").parse().unwrap(),
            "127.31.3.2:4791".parse().unwrap(),
        ];
        let (mouth, sent) = (stranger.clone(), Rc::new(RefCell::new((0, 0))));
        let count = sent.clone();
        town.rig.rule = Box::new(move |way, bytes| {
            // A request for a connection would be one of his own.
            if !(bytes[0] == 0x64 && bytes[20 + 16..20 + 18] == [0, 0x10]) {
                let mut mouth = mouth.borrow_mut();
                mouth.send(targets[way as usize], bytes);
                mouth.carrier.flush();
                let mut count = count.borrow_mut();
                *count = (count.0 + 1, count.1 + bytes.len());
            }
            vec![(Duration::ZERO, bytes.to_vec())]
        });
        let before = town.rig.server.provider.packets_discarded();
        assert!(town.story(), "{place}");
        town.check(place);
        let discarded = town.rig.server.provider.packets_discarded();
        // Whose port is of a flow is the peer with all that he says, which the peer says again.
        assert!(
            is_flow || discarded >= before + 8,
            "{before} and then {discarded}"
        );
        let answers = stranger.borrow_mut().receive();
        let bytes: usize = answers.iter().map(|(_, bytes)| bytes.len()).sum();
        let (packets, sent) = *sent.borrow();
        println!(
            "{place}: {packets} packets, {sent} bytes; {} answers",
            answers.len()
        );
        assert!(packets > 15, "{packets}");
        assert!(answers.len() <= packets && bytes <= sent);
        // Only connection management says anything at all to strangers.
        assert!(answers.iter().all(|(_, bytes)| bytes[0] == 0x64));
    }
    town.pass();
    town.leaves_nothing();
}

/// What was said in a connection of before is said again in the next ones, from the right address.
#[test]
fn v_11_packets_of_an_ended_connection_come_again() {
    let mut town = Town::new(4);
    let tape = Rc::new(town.captured());
    for start in 0..tape.len() {
        let old = tape.clone();
        let mut next = start;
        town.rig.rule = Box::new(move |way, bytes| {
            let mut all = vec![(Duration::ZERO, bytes.to_vec())];
            for _ in 0..3 {
                if let Some((of, packet)) = old.get(next)
                    && *of == way
                    && !(packet[0] == 0x64 && packet[36..38] == [0, 0x10])
                {
                    all.insert(0, (Duration::ZERO, packet.clone()));
                }
                next += 1;
            }
            all
        });
        assert!(town.story(), "from packet {start} on");
        town.check("replayed");
    }
    town.pass();
    town.leaves_nothing();
}

/// Random bytes with a right CRC: as they are, after a header of a known opcode, and as a
/// datagram of connection management.
#[test]
fn v_13_random_packets() {
    let mut town = Town::new(5);
    let mut random = Random::from_seed(17);
    let mut stranger = Side::open(Kind::Datagram, "127.31.5.9:4791", &Options::default());
    let target: SocketAddr = format!("127.31.5.1:{SERVICE}").parse().unwrap();
    let opcodes = legato_transport::wire::Opcode::ALL;
    let (mut sent, mut came) = (0, 0);
    for round in 0..200_u64 {
        for _ in 0..100 {
            let mut packet = pattern(random.next_u64(), 12 + random.below(1000) as usize);
            if random.ratio(3, 4) {
                packet[0] = opcodes[random.below(opcodes.len() as u64) as usize] as u8;
                packet[1] &= 0xF0;
                packet[2..4].fill(0xFF);
                // Queue pairs that there are, and connection management.
                packet[5..7].fill(0);
                packet[7] = random.below(40) as u8;
                packet.truncate(packet.len() & !3);
            }
            if random.ratio(1, 4) {
                packet.resize(12 + 8 + 256, 0);
                packet[0] = 0x64;
                packet[1] = 0x40;
                packet[4..8].copy_from_slice(&[0, 0, 0, 1]);
                packet[12..20].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 1]);
                packet[20..24].copy_from_slice(&[1, 7, 2, 3]);
                packet[36] = 0;
                packet[37] = 0x10 + random.below(8) as u8;
            }
            if random.ratio(1, 2) {
                town.rig.forge(Way::ToServer, &packet);
            } else {
                stranger.send(target, &packet);
                stranger.carrier.flush();
                sent += 1;
            }
        }
        town.rig.server.progress(town.rig.now);
        came += stranger.receive().len();
        town.check(&format!("round {round}"));
    }
    let discarded = town.rig.server.provider.packets_discarded();
    println!("{sent} packets of a stranger, {came} answers, {discarded} discarded in all");
    assert!(discarded > 10_000, "{discarded}");
    assert_eq!(town.rig.server.provider.counters().damaged, 0);
    // Without a CRC at all.
    let socket = std::net::UdpSocket::bind("127.31.5.9:4792").unwrap();
    for length in 0..300_u32 {
        let bytes = pattern(u64::from(length), length as usize);
        socket.send_to(&bytes, target).unwrap();
    }
    while town.rig.server.progress(town.rig.now) <= town.rig.now {}
    let counters = town.rig.server.provider.counters();
    assert_eq!(counters.damaged + counters.malformed, 300, "{counters:?}");
    assert!(came > 0 && came <= sent, "{came} of {sent}");
    assert!(town.story());
    town.leaves_nothing();
}

/// Requests for connections from ever new peers: as many wait as are allowed, each is answered with
/// one message as long as itself at most, and after the longest wait all are forgotten.
#[test]
fn v_13_a_flood_of_connection_requests() {
    const PEERS: u32 = 3_000;
    let mut town = Town::new(7);
    let tape = town.captured();
    let (_, request) = tape
        .into_iter()
        .find(|(_, packet)| packet[0] == 0x64)
        .unwrap();
    let mut stranger = Side::open(Kind::Datagram, "127.31.7.9:4791", &Options::default());
    let target: SocketAddr = format!("127.31.7.1:{SERVICE}").parse().unwrap();
    let (mut answers, mut most) = (0, 0);
    for peer in 0..PEERS {
        let mut packet = request.clone();
        // The transaction, the number of the connection and that of the queue pair.
        packet[20 + 12..20 + 16].copy_from_slice(U32::new(peer).as_bytes());
        packet[20 + 24..20 + 28].copy_from_slice(U32::new(peer + 100).as_bytes());
        packet[20 + 57..20 + 59].copy_from_slice(U16::new(peer as u16 + 100).as_bytes());
        stranger.send(target, &packet);
        stranger.carrier.flush();
        town.rig.server.progress(town.rig.now);
        let came = stranger.receive();
        assert!(came.len() <= 1 && came.iter().all(|(_, bytes)| bytes.len() <= packet.len()));
        answers += came.len();
        most = most.max(town.rig.server.provider.resource_counts().connection_state);
    }
    let waiting = town.rig.server.events.len();
    println!("{PEERS} requests: {waiting} wait, {answers} refused, {most} kept at most");
    assert!(waiting <= 128 && most <= 256, "{waiting} {most}");
    assert_eq!(waiting + answers, PEERS as usize);
    town.check("flooded");
    town.leaves_nothing();
}

/// 10^4 messages and as many WRITEs, READs and FETCH_ADDs through a relay that loses, doubles and reorders.
#[test]
fn v_11_ten_thousand_messages_through_a_bad_relay() {
    const MESSAGES: u64 = 10_000;
    const SLOT: u64 = 1024;
    /// Where all add one, and where what was there comes to.
    const SUM: u64 = 60_000;
    let mut town = Town::new(6);
    let rig = &mut town.rig;
    let (client, server, connected) = rig.connect();
    let server = server.filter(|_| connected).unwrap();
    let mut random = Random::from_seed(3);
    let lost = Rc::new(RefCell::new(0));
    let count = lost.clone();
    rig.rule = Box::new(move |_, bytes| {
        let mut times = 1;
        if random.ratio(1, 50) {
            *count.borrow_mut() += 1;
            times = 0;
        } else if random.ratio(1, 20) {
            times = 2;
        }
        let delays = (0..times).map(|_| match random.ratio(1, 20) {
            true => Duration::from_micros(random.below(3000)),
            false => Duration::ZERO,
        });
        delays.map(|after| (after, bytes.to_vec())).collect()
    });
    let place = |number: u64| (number % 16) * SLOT;
    let bytes_of = |number: u64| {
        let length = 1 + Random::from_seed(number).below(SLOT) as usize;
        pattern(number, length)
    };
    for number in 0..16 {
        rig.server
            .post_receive(server, number, (place(number), SLOT as u32));
    }
    let (mut sent, mut received, mut read, mut added, mut completed) = (0, 0, 0, 0, 0);
    let whole = rig.run(Duration::from_secs(36_000), |rig| {
        for done in std::mem::take(&mut rig.server.done) {
            let Ok(CompletionKind::Receive { length }) = done.result else {
                panic!("{done:?}");
            };
            let expected = bytes_of(received);
            assert_eq!(done.wr_id.0, received % 16);
            assert_eq!(length as usize, expected.len(), "message {received}");
            let came = rig.server.bytes(place(received), expected.len());
            assert!(came == expected, "message {received}");
            let again = (place(received), SLOT as u32);
            rig.server.post_receive(server, received % 16, again);
            received += 1;
        }
        for done in std::mem::take(&mut rig.client.done) {
            assert!(done.result.is_ok(), "{done:?}");
            completed += 1;
            if done.result == Ok(CompletionKind::RdmaRead) {
                let expected = bytes_of(read);
                let came = rig.client.bytes(32_768 + place(read), expected.len());
                assert!(came == expected, "READ {read}");
                read += 1;
            }
            if done.result == Ok(CompletionKind::FetchAndAdd) {
                let before = rig.client.bytes(SUM + 8 * (added % 16), 8);
                assert_eq!(before, added.to_le_bytes(), "FETCH_ADD {added}");
                added += 1;
            }
        }
        // Eight of them under way at most: each has a SEND, a WRITE, a READ of what was written, and
        // a FETCH_ADD.
        while sent < MESSAGES && 4 * sent < completed + 32 {
            let bytes = bytes_of(sent);
            let length = bytes.len() as u32;
            rig.client.fill(place(sent), &bytes);
            let there = rig.server.at(32_768 + place(sent));
            let near = (place(sent), length);
            let far = (32_768 + place(sent), length);
            assert!(rig.client.post(client, 0, SendOperation::Send, near));
            assert!(
                rig.client
                    .post(client, 1, SendOperation::RdmaWrite(there), near)
            );
            assert!(
                rig.client
                    .post(client, 2, SendOperation::RdmaRead(there), far)
            );
            let add = SendOperation::FetchAndAdd {
                target: rig.server.at(SUM),
                add: 1,
            };
            let before = (SUM + 8 * (sent % 16), 8);
            assert!(rig.client.post(client, 3, add, before));
            sent += 1;
        }
        received == MESSAGES && completed == 4 * MESSAGES
    });
    assert!(
        whole,
        "{received} received, {read} read, {completed} completed"
    );
    assert_eq!((read, added), (MESSAGES, MESSAGES));
    assert_eq!(rig.server.bytes(SUM, 8), MESSAGES.to_le_bytes());
    println!(
        "{} packets lost, {} ms",
        lost.borrow(),
        rig.now.as_nanos() / 1_000_000
    );
    assert!(*lost.borrow() > 100);
}
