//! Packets as values and bytes: nothing is lost on the way, and no bytes are too strange to be read.

use core::convert::Infallible;
use legato_transport::wire::{
    Acknowledgement, AtomicHeader, BaseHeader, Body, DatagramHeader, Extra, HEADERS_MAX, NakCode,
    Opcode, Packet, PacketError, RemoteHeader, Syndrome, encode,
};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};
use legato_verbs::{RemoteKey, RnrTimer};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

fn encoded(base: &BaseHeader, body: &Body, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; HEADERS_MAX + payload.len() + 3];
    let write = |into: &mut [u8]| {
        into.copy_from_slice(payload);
        Ok::<(), Infallible>(())
    };
    let length = encode(base, body, &mut bytes, payload.len(), write).unwrap();
    bytes.truncate(length);
    bytes
}

fn base(destination: u32, sequence: u32) -> BaseHeader {
    BaseHeader {
        destination: QueuePairNumber::new(destination),
        sequence: PacketSequenceNumber::new(sequence),
        acknowledge: false,
        solicited: false,
        forward_congestion: false,
        backward_congestion: false,
    }
}

/// Bytes of the headers of each opcode (IB spec 9.2, table 38), written down a second time.
fn header_length(opcode: Opcode) -> usize {
    12 + match opcode {
        Opcode::SendFirst
        | Opcode::SendMiddle
        | Opcode::SendLast
        | Opcode::SendOnly
        | Opcode::WriteMiddle
        | Opcode::WriteLast
        | Opcode::ReadResponseMiddle => 0,
        Opcode::SendLastImmediate
        | Opcode::SendOnlyImmediate
        | Opcode::SendLastInvalidate
        | Opcode::SendOnlyInvalidate
        | Opcode::WriteLastImmediate
        | Opcode::ReadResponseFirst
        | Opcode::ReadResponseLast
        | Opcode::ReadResponseOnly
        | Opcode::Acknowledge => 4,
        Opcode::DatagramOnly => 8,
        Opcode::AtomicAcknowledge | Opcode::DatagramOnlyImmediate => 12,
        Opcode::WriteFirst
        | Opcode::WriteOnly
        | Opcode::ReadRequest
        | Opcode::CongestionNotification => 16,
        Opcode::WriteOnlyImmediate => 20,
        Opcode::CompareSwap | Opcode::FetchAdd => 28,
    }
}

/// The bytes with all that says nothing as it is sent: migration state, kind of partition member,
/// reserved bits, padding.
fn canonical(mut bytes: Vec<u8>) -> Vec<u8> {
    let opcode = Opcode::from_number(bytes[0]).unwrap();
    let pad = usize::from(bytes[1] >> 4 & 3);
    bytes[1] |= 0x40;
    bytes[2] |= 0x80;
    bytes[4] &= 0xC0;
    bytes[8] &= 0x80;
    match opcode {
        Opcode::DatagramOnly | Opcode::DatagramOnlyImmediate => bytes[16] = 0,
        Opcode::CongestionNotification => bytes[12..28].fill(0),
        _ => {}
    }
    let length = bytes.len();
    bytes[length - pad..].fill(0);
    bytes
}

/// Reads the bytes. What can be read is written as it was read.
fn examine(bytes: &[u8]) -> Option<Opcode> {
    let packet = Packet::parse(bytes).ok()?;
    let again = encoded(&packet.base, &packet.body, packet.payload);
    assert_eq!(again, canonical(bytes.to_vec()));
    Some(packet.body.opcode())
}

#[test]
fn bytes_are_those_that_others_send() {
    let acknowledgement = Acknowledgement::new(1);
    let send = BaseHeader {
        acknowledge: true,
        ..base(0x11, 0xAA00)
    };
    let vectors: [(BaseHeader, Body, &[u8], &[u8]); 2] = [
        (
            base(0x11, 0xAA00),
            Body::Acknowledge(acknowledgement),
            b"",
            b"\x11\x40\xff\xff\0\0\0\x11\0\0\xaa\0\x1f\0\0\x01",
        ),
        (
            send,
            Body::SendOnly(Extra::Nothing),
            b"ABCD",
            b"\x04\x40\xff\xff\0\0\0\x11\x80\0\xaa\0ABCD",
        ),
    ];
    for (base, body, payload, bytes) in vectors {
        assert_eq!(encoded(&base, &body, payload), bytes);
        let packet = Packet {
            base,
            body,
            payload,
        };
        assert_eq!(Packet::parse(bytes), Ok(packet));
    }
}

#[test]
fn every_header_field_is_at_its_place() {
    let all = BaseHeader {
        destination: QueuePairNumber::new(0x12_3456),
        sequence: PacketSequenceNumber::new(0x78_9ABC),
        acknowledge: true,
        solicited: true,
        forward_congestion: true,
        backward_congestion: true,
    };
    let remote = RemoteHeader {
        address: 0x0102_0304_0506_0708,
        key: RemoteKey(0x090A_0B0C),
        length: 0x0D0E_0F10,
    };
    assert_eq!(
        encoded(&all, &Body::WriteOnly(remote, Some(0x1112_1314)), b"x"),
        b"\x0b\xf0\xff\xff\xc0\x12\x34\x56\x80\x78\x9a\xbc\x01\x02\x03\x04\x05\x06\x07\x08\
          \x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14x\0\0\0"
    );
    let atomic = AtomicHeader {
        address: 0x0102_0304_0506_0708,
        key: RemoteKey(0x090A_0B0C),
        swap_or_add: 0x1112_1314_1516_1718,
        compare: 0x2122_2324_2526_2728,
    };
    assert_eq!(
        encoded(&base(1, 2), &Body::CompareSwap(atomic), b""),
        b"\x13\x40\xff\xff\0\0\0\x01\0\0\0\x02\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\
          \x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\x25\x26\x27\x28"
    );
    let datagram = DatagramHeader {
        queue_key: 0x8001_0000,
        source: QueuePairNumber::new(0xAB_CDEF),
    };
    assert_eq!(
        encoded(&base(1, 2), &Body::Datagram(datagram, None), b""),
        b"\x64\x40\xff\xff\0\0\0\x01\0\0\0\x02\x80\x01\0\0\0\xab\xcd\xef"
    );
    let acknowledgement = Acknowledgement {
        syndrome: Syndrome::ReceiverNotReady(RnrTimer::new(12)),
        messages: 0x01_0203,
    };
    let atomic_answer = Body::AtomicAcknowledge(acknowledgement, 0x1112_1314_1516_1718);
    assert_eq!(
        encoded(&base(1, 2), &atomic_answer, b""),
        b"\x12\x40\xff\xff\0\0\0\x01\0\0\0\x02\x2c\x01\x02\x03\x11\x12\x13\x14\x15\x16\x17\x18"
    );
}

#[test]
fn what_cannot_be_a_packet_says_why() {
    let good = encoded(&base(1, 2), &Body::SendOnly(Extra::Nothing), b"ABCD");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        (good[..11].to_vec(), PacketError::TooShort(11)),
        (with(0, 0x15), PacketError::UnknownOpcode(0x15)),
        (with(1, 0x41), PacketError::UnknownVersion(1)),
        (with(2, 0x12), PacketError::OtherPartition(0x12FF)),
        (
            good[..14].to_vec(),
            PacketError::Padding { payload: 2, pad: 0 },
        ),
        (
            [&good[..1], &[0x50], &good[2..12]].concat(),
            PacketError::Padding { payload: 0, pad: 1 },
        ),
        (
            [&[0x11], &good[1..12], &[0x40, 0, 0, 0]].concat(),
            PacketError::UnknownSyndrome(0x40),
        ),
        (
            [&[0x11], &good[1..12], &[0; 8]].concat(),
            PacketError::UnexpectedPayload(4),
        ),
    ];
    for (bytes, error) in cases {
        assert_eq!(Packet::parse(&bytes), Err(error));
    }
}

fn remote() -> impl Strategy<Value = RemoteHeader> {
    any::<(u64, u32, u32)>().prop_map(|(address, key, length)| RemoteHeader {
        address,
        key: RemoteKey(key),
        length,
    })
}

fn atomic() -> impl Strategy<Value = AtomicHeader> {
    any::<(u64, u32, u64, u64)>().prop_map(|(address, key, swap_or_add, compare)| AtomicHeader {
        address,
        key: RemoteKey(key),
        swap_or_add,
        compare,
    })
}

fn acknowledgement() -> impl Strategy<Value = Acknowledgement> {
    let syndrome = prop_oneof![
        (0_u8..32).prop_map(|credits| Syndrome::Acknowledged { credits }),
        (0_u8..32).prop_map(|code| Syndrome::ReceiverNotReady(RnrTimer::new(code))),
        prop_oneof![
            Just(NakCode::SequenceError),
            Just(NakCode::InvalidRequest),
            Just(NakCode::RemoteAccess),
            Just(NakCode::RemoteOperation),
        ]
        .prop_map(Syndrome::Refused),
    ];
    (syndrome, 0_u32..1 << 24)
        .prop_map(|(syndrome, messages)| Acknowledgement { syndrome, messages })
}

/// A body of the opcode, with any headers.
fn body_of(opcode: Opcode) -> BoxedStrategy<Body> {
    let key = || any::<u32>().prop_map(RemoteKey);
    let fixed = |body: Body| Just(body).boxed();
    match opcode {
        Opcode::SendFirst => fixed(Body::SendFirst),
        Opcode::SendMiddle => fixed(Body::SendMiddle),
        Opcode::SendLast => fixed(Body::SendLast(Extra::Nothing)),
        Opcode::SendLastImmediate => any::<u32>()
            .prop_map(|value| Body::SendLast(Extra::Immediate(value)))
            .boxed(),
        Opcode::SendLastInvalidate => key()
            .prop_map(|key| Body::SendLast(Extra::Invalidate(key)))
            .boxed(),
        Opcode::SendOnly => fixed(Body::SendOnly(Extra::Nothing)),
        Opcode::SendOnlyImmediate => any::<u32>()
            .prop_map(|value| Body::SendOnly(Extra::Immediate(value)))
            .boxed(),
        Opcode::SendOnlyInvalidate => key()
            .prop_map(|key| Body::SendOnly(Extra::Invalidate(key)))
            .boxed(),
        Opcode::WriteFirst => remote().prop_map(Body::WriteFirst).boxed(),
        Opcode::WriteMiddle => fixed(Body::WriteMiddle),
        Opcode::WriteLast => fixed(Body::WriteLast(None)),
        Opcode::WriteLastImmediate => any::<u32>()
            .prop_map(|value| Body::WriteLast(Some(value)))
            .boxed(),
        Opcode::WriteOnly => remote()
            .prop_map(|remote| Body::WriteOnly(remote, None))
            .boxed(),
        Opcode::WriteOnlyImmediate => (remote(), any::<u32>())
            .prop_map(|(remote, value)| Body::WriteOnly(remote, Some(value)))
            .boxed(),
        Opcode::ReadRequest => remote().prop_map(Body::ReadRequest).boxed(),
        Opcode::ReadResponseFirst => acknowledgement().prop_map(Body::ReadResponseFirst).boxed(),
        Opcode::ReadResponseMiddle => fixed(Body::ReadResponseMiddle),
        Opcode::ReadResponseLast => acknowledgement().prop_map(Body::ReadResponseLast).boxed(),
        Opcode::ReadResponseOnly => acknowledgement().prop_map(Body::ReadResponseOnly).boxed(),
        Opcode::Acknowledge => acknowledgement().prop_map(Body::Acknowledge).boxed(),
        Opcode::AtomicAcknowledge => (acknowledgement(), any::<u64>())
            .prop_map(|(acknowledgement, value)| Body::AtomicAcknowledge(acknowledgement, value))
            .boxed(),
        Opcode::CompareSwap => atomic().prop_map(Body::CompareSwap).boxed(),
        Opcode::FetchAdd => atomic().prop_map(Body::FetchAdd).boxed(),
        Opcode::DatagramOnly | Opcode::DatagramOnlyImmediate => {
            let with = opcode == Opcode::DatagramOnlyImmediate;
            (any::<u32>(), any::<u32>(), any::<u32>())
                .prop_map(move |(queue_key, source, value)| {
                    let source = QueuePairNumber::new(source);
                    Body::Datagram(DatagramHeader { queue_key, source }, with.then_some(value))
                })
                .boxed()
        }
        Opcode::CongestionNotification => fixed(Body::CongestionNotification),
    }
}

fn bases() -> impl Strategy<Value = BaseHeader> {
    any::<(u32, u32, [bool; 4])>().prop_map(|(destination, sequence, flags)| BaseHeader {
        acknowledge: flags[0],
        solicited: flags[1],
        forward_congestion: flags[2],
        backward_congestion: flags[3],
        ..base(destination, sequence)
    })
}

/// A packet of any opcode: payloads of all lengths to 4096, the short ones more often.
fn packets() -> impl Strategy<Value = (BaseHeader, Body, Vec<u8>)> {
    prop::sample::select(Opcode::ALL).prop_flat_map(|opcode| {
        let payload = if opcode.has_payload() {
            let any_length = prop_oneof![0_usize..=8, 0_usize..=4096, 4093_usize..=4096];
            any_length
                .prop_flat_map(|length| prop::collection::vec(any::<u8>(), length))
                .boxed()
        } else {
            Just(Vec::new()).boxed()
        };
        (bases(), body_of(opcode), payload)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn packets_survive_a_round_trip((base, body, payload) in packets()) {
        let bytes = encoded(&base, &body, &payload);
        let headers = header_length(body.opcode());
        prop_assert_eq!(bytes.len(), headers + payload.len().next_multiple_of(4));
        prop_assert!(headers <= HEADERS_MAX);
        prop_assert_eq!(usize::from(bytes[1] >> 4 & 3), bytes.len() - headers - payload.len());
        prop_assert!(bytes[headers + payload.len()..].iter().all(|&byte| byte == 0));
        let packet = Packet { base, body, payload: &payload };
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(
        number in prop::sample::select(Opcode::ALL),
        mut bytes in prop::collection::vec(any::<u8>(), 1..80),
    ) {
        examine(&bytes);
        // Most are refused early; past the opcode and the partition there is more to get wrong.
        bytes[0] = number as u8;
        if let [_, flags, high, low, ..] = &mut bytes[..] {
            *flags &= 0xF0;
            [*high, *low] = [0xFF; 2];
        }
        examine(&bytes);
    }
}

/// For each opcode a packet with each pad count: each shorter one, and each with another byte.
#[test]
fn truncated_and_mutated_packets_are_packets_or_errors() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut opcodes_read = std::collections::BTreeSet::new();
    for &opcode in Opcode::ALL {
        let payloads: &[&[u8]] = if opcode.has_payload() {
            &[b"", b"A", b"AB", b"ABC", b"ABCD", b"ABCDEFGHI"]
        } else {
            &[b""]
        };
        for payload in payloads {
            let body = body_of(opcode).new_tree(&mut runner).unwrap().current();
            let bytes = encoded(&base(0x12_3456, 0xFF_FFFF), &body, payload);
            for length in 0..bytes.len() {
                let read = examine(&bytes[..length]);
                // What is cut off in the headers cannot go unnoticed.
                assert!(read.is_none() || length >= header_length(opcode));
            }
            for at in 0..bytes.len() {
                for value in 0..=u8::MAX {
                    let mut mutated = bytes.clone();
                    mutated[at] = value;
                    opcodes_read.extend(examine(&mutated).map(|opcode| opcode as u8));
                }
            }
        }
    }
    assert_eq!(opcodes_read.len(), Opcode::ALL.len());
}

#[test]
fn opcodes_have_the_numbers_of_the_specification() {
    for number in 0..=u8::MAX {
        let spoken = matches!(number, 0..=0x14 | 0x16 | 0x17 | 0x64 | 0x65 | 0x81);
        let opcode = Opcode::from_number(number);
        assert_eq!(opcode.is_some(), spoken, "{number:#x}");
        assert!(opcode.is_none_or(|opcode| opcode as u8 == number));
    }
}
