//! Bytes that no honest peer sends, to each parser: no panic, and what is read can be written and
//! read again.

use crate::amount::Replay;
use crate::harness::hostile::Hostile;
use core::convert::Infallible;
use core::net::Ipv4Addr;
use legato_base::{Random, Time};
use legato_transport::cm::{
    IpHeader, MAD_LENGTH, Mad, Message, Parameters, PrivateData, open_datagram,
};
use legato_transport::wire::icrc::{Envelope, Network, check, solve};
use legato_transport::wire::{HEADERS_MAX, Packet, encode};

/// Changes some bytes, cuts some off or adds some.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        let length = bytes.len() as u64;
        match random.below(6) {
            0 if length > 0 => bytes[random.below(length) as usize] = random.next_u64() as u8,
            1 if length > 0 => bytes[random.below(length) as usize] ^= 1 << random.below(8),
            // The headers.
            2 if length > 12 => bytes[random.below(12) as usize] = random.next_u64() as u8,
            3 => bytes.truncate(random.below(length + 1) as usize),
            4 => bytes.extend_from_slice(&random.next_u64().to_le_bytes()),
            _ if length > 0 => bytes[0] = random.next_u64() as u8,
            _ => {}
        }
    }
}

/// A packet's bytes, in `into`.
fn write(packet: &Packet<'_>, into: &mut Vec<u8>) {
    into.clear();
    into.resize(HEADERS_MAX + packet.payload.len() + 3, 0xEE);
    let payload = packet.payload;
    let copy = |into: &mut [u8]| {
        into.copy_from_slice(payload);
        Ok::<(), Infallible>(())
    };
    let length = encode(&packet.base, &packet.body, into, payload.len(), copy).unwrap();
    into.truncate(length);
}

fn envelope() -> Envelope {
    Envelope {
        network: Network::Ipv4 {
            source: Ipv4Addr::new(192, 0, 2, 1),
            destination: Ipv4Addr::new(192, 0, 2, 2),
            identification: 0,
            do_not_fragment: true,
        },
        source_port: 49_187,
        destination_port: 4_791,
    }
}

#[test]
fn packets_of_any_bytes() {
    let executions = crate::amount::executions(1_000_000);
    let _replay = Replay(crate::amount::first_seed());
    let mut hostile = Hostile::new(crate::amount::first_seed());
    let mut random = hostile.random.fork();
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    let (mut read, mut refused) = (0_u64, 0_u64);
    for done in 0..executions {
        crate::amount::report(done, executions, "packets");
        write(&hostile.short_packet(), &mut bytes);
        mutate(&mut random, &mut bytes);
        match Packet::parse(&bytes) {
            Ok(packet) => {
                read += 1;
                write(&packet, &mut again);
                assert_eq!(Packet::parse(&again), Ok(packet), "{bytes:02x?}");
                let _ = open_datagram(&packet);
            }
            Err(_) => refused += 1,
        }
        if done % 16 == 0 {
            let _ = (check(&envelope(), &bytes), solve(&envelope(), &bytes));
        }
    }
    // Both happen, or this says nothing.
    assert!(
        read > executions / 20 && refused > executions / 20,
        "{read} {refused}"
    );
}

/// Messages that two nodes say to each other, as a mutator's beginning.
fn messages() -> Vec<Mad> {
    let mut asker = crate::cm_wire::manager(0, 3, Parameters::default());
    let mut answerer = crate::cm_wire::manager(1, 4, Parameters::default());
    let now = Time::from_nanos(1);
    let mut heard = Vec::new();
    for number in 0..20 {
        let request = crate::cm_wire::connect_parameters(1, 1_000 + number);
        let id = asker.connect(&request, now).unwrap();
        heard.push(asker.poll_transmit().unwrap().mad);
        answerer.handle_message(crate::cm_wire::gid(0), heard.last().unwrap(), now);
        while let Some(event) = answerer.poll_event() {
            if let legato_transport::cm::Event::Requested { connection, .. } = event {
                let accept = crate::cm_wire::accept_parameters(2_000 + number);
                answerer.accept(connection, &accept, now).unwrap();
            }
        }
        while let Some(transmit) = answerer.poll_transmit() {
            asker.handle_message(crate::cm_wire::gid(1), &transmit.mad, now);
            heard.push(transmit.mad);
        }
        let _ = asker.disconnect(id, now);
        while let Some(transmit) = asker.poll_transmit() {
            heard.push(transmit.mad);
        }
    }
    heard
}

#[test]
fn messages_of_any_bytes() {
    let executions = crate::amount::executions(500_000);
    let _replay = Replay(crate::amount::first_seed());
    let heard = messages();
    let mut random = Random::from_seed(crate::amount::first_seed() ^ 0x3AD);
    let (mut read, mut refused) = (0_u64, 0_u64);
    let mut bytes = Vec::with_capacity(2 * MAD_LENGTH);
    for done in 0..executions {
        crate::amount::report(done, executions, "messages");
        bytes.clear();
        bytes.extend_from_slice(&heard[random.below(heard.len() as u64) as usize]);
        mutate(&mut random, &mut bytes);
        match Message::parse(&bytes) {
            Ok(message) => {
                read += 1;
                let again = message.encode();
                assert_eq!(Message::parse(&again), Ok(message), "{bytes:02x?}");
            }
            Err(_) => refused += 1,
        }
        // Of a request the private data lie at its end.
        if let Some(tail) = bytes.last_chunk::<92>()
            && let Ok((header, rest)) = IpHeader::parse(&PrivateData::new(*tail))
        {
            assert_eq!(IpHeader::parse(&header.before(&rest)), Ok((header, rest)));
        }
    }
    assert!(
        read > executions / 20 && refused > executions / 20,
        "{read} {refused}"
    );
}
