//! The invariant CRC: vectors of other implementations, and what it does not let through.

use core::net::{Ipv4Addr, Ipv6Addr};
use legato_base::Random;
use legato_transport::wire::icrc::{
    Envelope, ICRC_LENGTH, IcrcError, Network, append, check, solve,
};

const BASE_LENGTH: usize = 12;
/// FECN, BECN and reserved bits: not covered, because switches set them.
const UNCOVERED: usize = 4;

fn ipv4(identification: u16) -> Envelope {
    Envelope {
        network: Network::Ipv4 {
            source: Ipv4Addr::new(10, 77, 0, 1),
            destination: Ipv4Addr::new(10, 77, 0, 2),
            identification,
            do_not_fragment: true,
        },
        source_port: 4791,
        destination_port: 4791,
    }
}

fn ipv6() -> Envelope {
    Envelope {
        network: Network::Ipv6 {
            source: Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 1),
            destination: Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2),
        },
        source_port: 0xC123,
        destination_port: 4791,
    }
}

fn fragmentable() -> Envelope {
    Envelope {
        network: Network::Ipv4 {
            source: Ipv4Addr::new(192, 0, 2, 1),
            destination: Ipv4Addr::new(198, 51, 100, 77),
            identification: 0xBEEF,
            do_not_fragment: false,
        },
        source_port: 0xFFFF,
        destination_port: 4791,
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

const SEND_ONLY: &str = "0440ffff000000118000aa0041424344";

/// SEND_ONLY with `payload` bytes, and its CRC.
fn sent(envelope: &Envelope, payload: usize) -> Vec<u8> {
    let mut datagram = bytes(SEND_ONLY);
    datagram.resize(BASE_LENGTH, 0);
    datagram.extend((0..payload).map(|at| (at * 7) as u8));
    let length = datagram.len();
    datagram.resize(length + ICRC_LENGTH, 0);
    assert_eq!(
        append(envelope, &mut datagram, length),
        Ok(length + ICRC_LENGTH)
    );
    datagram
}

/// Those over IPv4 with "do not fragment" were accepted by the kernel's rxe; all were computed by
/// Scapy 2.8.0 as well (`scapy.contrib.roce`).
#[test]
fn vectors_of_others_are_reproduced() {
    let first = "0040ffff80abcdef00fffff0".to_string()
        + &(0..1024)
            .map(|at| format!("{:02x}", at % 256))
            .collect::<String>();
    let vectors = [
        (ipv4(0), "1140ffff000000110000aa001f000001", "d1e11ed3"),
        (ipv4(0), SEND_ONLY, "650f7599"),
        (ipv4(7), SEND_ONLY, "7b3bbbab"),
        (ipv6(), SEND_ONLY, "633e075a"),
        (ipv6(), "1140ffff000000110000aa001f000001", "d7d06c10"),
        (ipv6(), &first, "208c0fdd"),
        (fragmentable(), SEND_ONLY, "1c041ba4"),
    ];
    for (envelope, packet, crc) in vectors {
        let packet = bytes(packet);
        let mut datagram = packet.clone();
        datagram.extend([0; ICRC_LENGTH + 3]);
        let length = append(&envelope, &mut datagram, packet.len()).unwrap();
        datagram.truncate(length);
        assert_eq!(datagram[packet.len()..], bytes(crc));
        assert_eq!(check(&envelope, &datagram), Ok(&packet[..]));
    }
}

#[test]
fn the_identification_is_solved() {
    for payload in [0, 1, 2, 3, 4, 1024, 4096] {
        for identification in (0..=u16::MAX).step_by(251).chain([1, 44_263, u16::MAX]) {
            let datagram = sent(&ipv4(identification), payload);
            let packet = &datagram[..datagram.len() - ICRC_LENGTH];
            for guess in [0, identification, 0xA5A5] {
                let solved = solve(&ipv4(guess), &datagram);
                assert_eq!(solved, Ok((packet, Some(identification))), "{guess}");
            }
            assert!(identification == 0 || check(&ipv4(0), &datagram).is_err());
        }
    }
    let datagram = sent(&ipv6(), 9);
    let packet = &datagram[..datagram.len() - ICRC_LENGTH];
    assert_eq!(solve(&ipv6(), &datagram), Ok((packet, None)));
}

/// Flips each bit that the CRC covers, and its own, and counts those that `accept` takes.
fn accepted_flips(datagram: &[u8], accept: impl Fn(&[u8]) -> bool) -> usize {
    let mut accepted = 0;
    for byte in (0..datagram.len()).filter(|&byte| byte != UNCOVERED) {
        for bit in 0..8 {
            let mut flipped = datagram.to_vec();
            flipped[byte] ^= 1 << bit;
            accepted += usize::from(accept(&flipped));
        }
    }
    accepted
}

#[test]
fn v13_no_flipped_bit_is_accepted_where_all_headers_are_known() {
    for payload in [0, 4, 64, 1024, 4096] {
        for envelope in [ipv4(7), ipv6(), fragmentable()] {
            let datagram = sent(&envelope, payload);
            let accepts = |flipped: &[u8]| check(&envelope, flipped).is_ok();
            assert_eq!(accepted_flips(&datagram, accepts), 0, "{payload}");
        }
        let datagram = sent(&ipv6(), payload);
        let solves = |flipped: &[u8]| solve(&ipv6(), flipped).is_ok();
        assert_eq!(accepted_flips(&datagram, solves), 0, "{payload}");
    }
}

/// Whether a flipped bit can be taken for another identification depends only on how far behind the
/// identification it is. So a full packet of 4096 bytes stands for all: no flipped bit of it, or of
/// a shorter one, is accepted.
#[test]
fn v13_no_flipped_bit_is_accepted_where_the_identification_is_solved() {
    for payload in [0, 4, 64, 1024, 4096] {
        let datagram = sent(&ipv4(7), payload);
        let solves = |flipped: &[u8]| solve(&ipv4(0), flipped).is_ok();
        assert_eq!(accepted_flips(&datagram, solves), 0, "{payload}");
    }
}

/// Each identification has its CRC, and what is accepted has its identification: so of the 2^32 CRCs
/// of a packet exactly 2^16 are accepted.
#[test]
fn v13_garbage_is_accepted_as_rarely_as_the_solved_bits_say() {
    for identification in 0..=u16::MAX {
        let datagram = sent(&ipv4(identification), 4);
        let solved = solve(&ipv4(0), &datagram).map(|(_, solved)| solved);
        assert_eq!(solved, Ok(Some(identification)));
    }
    let mut random = Random::from_seed(1);
    let mut datagram = sent(&ipv4(7), 64);
    let mut accepted = 0;
    for _ in 0..4_000_000 {
        let crc = datagram.last_chunk_mut::<ICRC_LENGTH>().unwrap();
        *crc = (random.next_u64() as u32).to_le_bytes();
        if let Ok((packet, Some(identification))) = solve(&ipv4(0), &datagram) {
            assert_eq!(check(&ipv4(identification), &datagram), Ok(packet));
            accepted += 1;
        }
    }
    // 61 are expected, with a deviation of 8.
    assert!((30..=92).contains(&accepted), "{accepted}");
}

#[test]
fn headers_that_differ_are_noticed() {
    let envelope = ipv6();
    let datagram = sent(&envelope, 4);
    let other_ports = Envelope {
        source_port: 0xC124,
        ..envelope
    };
    let other_source = Envelope {
        network: Network::Ipv6 {
            source: Ipv6Addr::LOCALHOST,
            destination: Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2),
        },
        ..envelope
    };
    for other in [other_ports, other_source, ipv4(0)] {
        assert!(check(&other, &datagram).is_err());
    }
    let mut congested = datagram.clone();
    congested[UNCOVERED] = 0xC0;
    assert!(check(&envelope, &congested).is_ok());
}

#[test]
fn lengths_that_are_no_packets_are_errors() {
    let full = vec![0_u8; 70_000];
    for envelope in [ipv4(0), ipv6()] {
        for length in 0..BASE_LENGTH + ICRC_LENGTH {
            let short = &full[..length];
            assert_eq!(check(&envelope, short), Err(IcrcError::TooShort(length)));
            assert_eq!(solve(&envelope, short), Err(IcrcError::TooShort(length)));
        }
        // The longest that an IP header can describe, and one more.
        let most = match envelope.network {
            Network::Ipv4 { .. } => 65_535 - 20 - 8,
            Network::Ipv6 { .. } => 65_535 - 8,
        };
        for length in [most - 1, most, most + 1, 70_000] {
            let long = matches!(
                check(&envelope, &full[..length]),
                Err(IcrcError::TooLong(_))
            );
            assert_eq!(long, length > most, "{length}");
            assert!(solve(&envelope, &full[..length]).is_err());
        }
        let mut buffer = [0; BASE_LENGTH + ICRC_LENGTH];
        assert_eq!(append(&envelope, &mut buffer, BASE_LENGTH), Ok(16));
        for length in [BASE_LENGTH + 1, 16, 17, usize::MAX] {
            let refused = append(&envelope, &mut buffer, length);
            assert_eq!(refused, Err(IcrcError::NoRoom(length)));
        }
        assert_eq!(
            append(&envelope, &mut buffer, BASE_LENGTH - 1),
            Err(IcrcError::TooShort(BASE_LENGTH - 1 + ICRC_LENGTH))
        );
    }
}
