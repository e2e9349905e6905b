//! The messages of connection management as bytes: those that the Linux kernel takes, and any.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use legato_transport::cm::{
    AcknowledgedMessage, AdditionalInformation, Bits, CaGuid, CommunicationId, ConnectReject,
    ConnectReply, ConnectRequest, DATAGRAM_BUFFER, DatagramError, DisconnectReply,
    DisconnectRequest, Gid, IpAddresses, IpHeader, IpHeaderError, MAD_LENGTH, Mad, Message,
    MessageBody, MessageError, MessageReceiptAcknowledgment, Path, PrivateData, ReadyToUse,
    RejectReason, RejectedMessage, ServiceId, TimeoutCode, TransactionId, encode_datagram,
    open_datagram,
};
use legato_transport::wire::{Body, Packet};
use legato_transport::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use proptest::prelude::*;

/// A request that Linux 6.12 answers with a reply: `rdma_cm` between 10.77.0.1 and 10.77.0.2.
const REQUEST: &[&str] = &[
    "0107020300000000000000000000100200100000000000000000002200000000",
    "0000000001061c060a0b0c0d0e0f101100000000000000000002010400000004",
    "000000a0000500a7ffff37f0ffffffff00000000000000000000ffff0a4d0001",
    "00000000000000000000ffff0a4d000200000002004008900000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000409c410000000000000000000000000a4d00010000000000000000",
    "000000000a4d0002",
];
const READY: &[&str] = &["01070203000000000000000000001002001400000000000000000022aabbccdd"];
const DISCONNECT: &[&str] = &[
    "01070203000000000000000000001004001500000000000000000022aabbccdd",
    "000013",
];

const ME: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The bytes, and zeros behind them.
fn mad(lines: &[&str]) -> Mad {
    let text: String = lines.concat();
    let mut mad = [0; MAD_LENGTH];
    for (index, byte) in mad.iter_mut().enumerate().take(text.len() / 2) {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    mad
}

fn request() -> ConnectRequest {
    let header = IpHeader {
        source_port: 40_001,
        addresses: IpAddresses::V4 {
            source: ME,
            destination: PEER,
        },
    };
    ConnectRequest {
        communication_id: CommunicationId(0x22),
        service: ServiceId::tcp(7174),
        ca_guid: CaGuid(0x0A0B_0C0D_0E0F_1011),
        queue_pair: QueuePairNumber::new(0x201),
        responder_resources: 4,
        initiator_depth: 4,
        remote_response_timeout: TimeoutCode::new(20),
        end_to_end_flow_control: false,
        starting_sequence: PacketSequenceNumber::new(0x500),
        local_response_timeout: TimeoutCode::new(20),
        retry_count: Bits::new(7),
        partition_key: 0xFFFF,
        path_mtu: PathMtu::Bytes1024,
        rnr_retry_count: Bits::new(7),
        retries_max: Bits::new(15),
        shared_receive_queue: false,
        primary: Path {
            local: Gid::from_ipv4(ME),
            remote: Gid::from_ipv4(PEER),
            flow_label: Bits::new(0),
            packet_rate: Bits::new(2),
            traffic_class: 0,
            hop_limit: 64,
            service_level: Bits::new(0),
            subnet_local: true,
            ack_timeout: TimeoutCode::new(18),
        },
        private_data: header.before(&PrivateData::EMPTY),
    }
}

fn message(transaction: u64, body: MessageBody) -> Message {
    Message {
        transaction: TransactionId(transaction),
        body,
    }
}

#[test]
fn v_22_a_request_is_what_the_kernel_takes() {
    let value = message(0x1002, MessageBody::ConnectRequest(request()));
    assert_eq!(value.encode(), mad(REQUEST));
    assert_eq!(Message::parse(&mad(REQUEST)), Ok(value));
}

#[test]
fn v_22_ready_and_disconnect_are_what_the_kernel_takes() {
    let (ours, theirs) = (CommunicationId(0x22), CommunicationId(0xAABB_CCDD));
    let ready = MessageBody::ReadyToUse(ReadyToUse {
        communication_id: ours,
        remote_communication_id: theirs,
        private_data: PrivateData::EMPTY,
    });
    assert_eq!(message(0x1002, ready).encode(), mad(READY));
    let disconnect = MessageBody::DisconnectRequest(DisconnectRequest {
        communication_id: ours,
        remote_communication_id: theirs,
        remote_queue_pair: QueuePairNumber::new(0x13),
        private_data: PrivateData::EMPTY,
    });
    assert_eq!(message(0x1004, disconnect).encode(), mad(DISCONNECT));
}

/// Where the fields of the messages of the other side lie: those that a client of the kernel's
/// replies and rejections reads.
#[test]
fn v_22_fields_of_replies_and_rejections_lie_where_a_client_reads_them() {
    let mut reply = mad(&["0107020300000000000000000000100200130000"]);
    reply[24..28].copy_from_slice(&[0xAA, 0xBB, 0xCC, 0xDD]);
    reply[31] = 0x22;
    reply[36..39].copy_from_slice(&[0, 0, 0x13]);
    reply[44..47].copy_from_slice(&[0x12, 0x34, 0x56]);
    reply[48..52].copy_from_slice(&[3, 2, 15 << 3 | 1 << 1, 7 << 5 | 0x10]);
    reply[59] = 9;
    let Ok(MessageBody::ConnectReply(parsed)) = Message::parse(&reply).map(|it| it.body) else {
        panic!("not a reply");
    };
    assert_eq!(parsed.communication_id, CommunicationId(0xAABB_CCDD));
    assert_eq!(parsed.remote_communication_id, CommunicationId(0x22));
    assert_eq!(parsed.queue_pair, QueuePairNumber::new(0x13));
    assert_eq!(parsed.starting_sequence.get(), 0x12_3456);
    assert_eq!((parsed.responder_resources, parsed.initiator_depth), (3, 2));
    assert_eq!(parsed.target_ack_delay, TimeoutCode::new(15));
    assert_eq!(parsed.failover, ConnectReply::FAILOVER_NOT_SUPPORTED);
    assert!(parsed.shared_receive_queue && !parsed.end_to_end_flow_control);
    assert_eq!(
        (parsed.rnr_retry_count, parsed.ca_guid),
        (Bits::new(7), CaGuid(9))
    );

    let mut reject = mad(&["0107020300000000000000000000100200120000"]);
    reject[31] = 0x22;
    reject[32..36].copy_from_slice(&[1 << 6, 2 << 1, 0, 8]);
    reject[36..38].copy_from_slice(&[0xAB, 0xCD]);
    let Ok(MessageBody::ConnectReject(parsed)) = Message::parse(&reject).map(|it| it.body) else {
        panic!("not a rejection");
    };
    assert_eq!(parsed.communication_id, CommunicationId::UNKNOWN);
    assert_eq!(parsed.remote_communication_id, CommunicationId(0x22));
    assert_eq!(parsed.message, RejectedMessage::Reply);
    assert_eq!(parsed.reason, RejectReason::INVALID_SERVICE_ID);
    assert_eq!(parsed.information.as_bytes(), [0xAB, 0xCD]);
}

#[test]
fn the_ip_header_is_read_and_refused() {
    let Ok(MessageBody::ConnectRequest(parsed)) = Message::parse(&mad(REQUEST)).map(|it| it.body)
    else {
        panic!("not a request");
    };
    assert!(parsed.service.is_ip());
    let (header, rest) = IpHeader::parse(&parsed.private_data).unwrap();
    assert_eq!(header.source_port, 40_001);
    assert_eq!(header.source(), IpAddr::V4(ME));
    assert_eq!(header.destination(), IpAddr::V4(PEER));
    assert_eq!(rest, PrivateData::EMPTY);

    let v6 = IpHeader {
        source_port: 1,
        addresses: IpAddresses::V6 {
            source: Ipv6Addr::LOCALHOST,
            destination: Ipv6Addr::UNSPECIFIED,
        },
    };
    let user = PrivateData::from_slice(b"hello").unwrap();
    assert_eq!(IpHeader::parse(&v6.before(&user)), Ok((v6, user)));

    let with = |index: usize, byte| {
        let mut bytes = *parsed.private_data.as_bytes();
        bytes[index] = byte;
        IpHeader::parse(&PrivateData::new(bytes))
    };
    assert_eq!(with(0, 1), Err(IpHeaderError::UnknownVersion(1)));
    assert_eq!(with(1, 0x50), Err(IpHeaderError::UnknownIpVersion(5)));
}

#[test]
fn what_is_no_message_says_why() {
    let changed = |index: usize, byte: u8| {
        let mut bytes = mad(REQUEST);
        bytes[index] = byte;
        Message::parse(&bytes).unwrap_err()
    };
    assert_eq!(
        Message::parse(&[0; 255]),
        Err(MessageError::WrongLength(255))
    );
    assert_eq!(
        Message::parse(&[0; 257]),
        Err(MessageError::WrongLength(257))
    );
    for index in 0..4 {
        assert!(matches!(changed(index, 9), MessageError::OtherClass { .. }));
    }
    assert_eq!(changed(17, 0x19), MessageError::UnknownAttribute(0x19));
    // Queue pair 1.
    assert_eq!(changed(57, 0), MessageError::ReservedQueuePair(1));
    for (index, byte, reason) in [
        // An unreliable connection.
        (67, 20 << 3 | 1 << 1, RejectReason::INVALID_TRANSPORT_TYPE),
        (74, 6 << 4, RejectReason::INVALID_MTU),
        (74, 0, RejectReason::INVALID_MTU),
    ] {
        let MessageError::Unsupported(refused) = changed(index, byte) else {
            panic!("{index}");
        };
        assert_eq!(refused.reason, reason);
        assert_eq!(refused.communication_id, CommunicationId(0x22));
        assert_eq!(refused.transaction, TransactionId(0x1002));
    }
}

#[test]
fn messages_travel_as_datagrams_of_the_general_service_queue_pair() {
    let (mad, mut buffer) = (mad(REQUEST), [0; DATAGRAM_BUFFER]);
    let length = encode_datagram(PacketSequenceNumber::new(7), &mad, &mut buffer);
    let bytes = &mut buffer[..length];
    assert_eq!(length, 12 + 8 + 256);
    let headers = [
        0x64, 0x40, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 7, 0x80, 0x01, 0, 0, 0, 0, 0, 1,
    ];
    assert_eq!(bytes[..20], headers);
    assert_eq!(open_datagram(&Packet::parse(bytes).unwrap()), Ok(&mad));

    let open = |bytes: &[u8]| open_datagram(&Packet::parse(bytes).unwrap()).map(|_| ());
    assert_eq!(
        open(&bytes[..length - 4]),
        Err(DatagramError::WrongLength(252))
    );
    bytes[15] = 1;
    assert_eq!(open(bytes), Err(DatagramError::WrongQueueKey(0x8001_0001)));
    bytes[0] = 0x04;
    assert_eq!(open(bytes), Err(DatagramError::NotADatagram));
    bytes[7] = 2;
    assert_eq!(open(bytes), Err(DatagramError::OtherQueuePair));
    let packet = Packet::parse(bytes).unwrap();
    assert!(matches!(packet.body, Body::SendOnly(_)));
}

fn private<const LENGTH: usize>() -> impl Strategy<Value = PrivateData<LENGTH>> {
    prop::collection::vec(any::<u8>(), 0..=LENGTH)
        .prop_map(|bytes| PrivateData::from_slice(&bytes).unwrap())
}

fn queue_pair() -> impl Strategy<Value = QueuePairNumber> {
    (2_u32..0x00FF_FFFF).prop_map(QueuePairNumber::new)
}

fn ids() -> impl Strategy<Value = (CommunicationId, CommunicationId)> {
    any::<(u32, u32)>()
        .prop_map(|(local, remote)| (CommunicationId(local), CommunicationId(remote)))
}

fn any_path() -> impl Strategy<Value = Path> {
    any::<([u8; 16], [u8; 16], u32, u32, u8, u8, u32, bool, u8)>().prop_map(|it| Path {
        local: Gid(it.0),
        remote: Gid(it.1),
        flow_label: Bits::new(it.2),
        packet_rate: Bits::new(it.3),
        traffic_class: it.4,
        hop_limit: it.5,
        service_level: Bits::new(it.6),
        subnet_local: it.7,
        ack_timeout: TimeoutCode::new(it.8),
    })
}

fn any_request() -> impl Strategy<Value = MessageBody> {
    let numbers = any::<(u32, u64, u64, u8, u8, u8, u32, u8)>();
    let counts = any::<(u32, u16, u32, u32, bool, bool)>();
    let mtu = (1_u8..=5).prop_map(|code| PathMtu::from_code(code).unwrap());
    (numbers, counts, mtu, queue_pair(), any_path(), private()).prop_map(
        |(a, b, path_mtu, queue_pair, primary, private_data)| {
            MessageBody::ConnectRequest(ConnectRequest {
                communication_id: CommunicationId(a.0),
                service: ServiceId(a.1),
                ca_guid: CaGuid(a.2),
                queue_pair,
                responder_resources: a.3,
                initiator_depth: a.4,
                remote_response_timeout: TimeoutCode::new(a.5),
                end_to_end_flow_control: b.4,
                starting_sequence: PacketSequenceNumber::new(a.6),
                local_response_timeout: TimeoutCode::new(a.7),
                retry_count: Bits::new(b.0),
                partition_key: b.1,
                path_mtu,
                rnr_retry_count: Bits::new(b.2),
                retries_max: Bits::new(b.3),
                shared_receive_queue: b.5,
                primary,
                private_data,
            })
        },
    )
}

fn any_reply() -> impl Strategy<Value = MessageBody> {
    let numbers = any::<(u32, u8, u8, u8, u32, bool, u32, bool, u64)>();
    (ids(), numbers, queue_pair(), private()).prop_map(|(ids, it, queue_pair, private_data)| {
        MessageBody::ConnectReply(ConnectReply {
            communication_id: ids.0,
            remote_communication_id: ids.1,
            queue_pair,
            starting_sequence: PacketSequenceNumber::new(it.0),
            responder_resources: it.1,
            initiator_depth: it.2,
            target_ack_delay: TimeoutCode::new(it.3),
            failover: Bits::new(it.4),
            end_to_end_flow_control: it.5,
            rnr_retry_count: Bits::new(it.6),
            shared_receive_queue: it.7,
            ca_guid: CaGuid(it.8),
            private_data,
        })
    })
}

fn any_reject() -> impl Strategy<Value = MessageBody> {
    let message = prop_oneof![
        Just(RejectedMessage::Request),
        Just(RejectedMessage::Reply),
        Just(RejectedMessage::Other)
    ];
    let information = prop::collection::vec(any::<u8>(), 0..=AdditionalInformation::ROOM)
        .prop_map(|bytes| AdditionalInformation::from_slice(&bytes).unwrap());
    (ids(), message, any::<u16>(), information, private()).prop_map(
        |(ids, message, reason, information, private_data)| {
            MessageBody::ConnectReject(ConnectReject {
                communication_id: ids.0,
                remote_communication_id: ids.1,
                message,
                reason: RejectReason(reason),
                information,
                private_data,
            })
        },
    )
}

fn any_notice() -> impl Strategy<Value = MessageBody> {
    let acknowledged = prop_oneof![
        Just(AcknowledgedMessage::Request),
        Just(AcknowledgedMessage::Reply)
    ];
    let acknowledgment = (ids(), acknowledged, any::<u8>(), private()).prop_map(
        |(ids, message, timeout, private_data)| {
            MessageBody::MessageReceiptAcknowledgment(MessageReceiptAcknowledgment {
                communication_id: ids.0,
                remote_communication_id: ids.1,
                message,
                service_timeout: TimeoutCode::new(timeout),
                private_data,
            })
        },
    );
    let ready = (ids(), private()).prop_map(|(ids, private_data)| {
        MessageBody::ReadyToUse(ReadyToUse {
            communication_id: ids.0,
            remote_communication_id: ids.1,
            private_data,
        })
    });
    let disconnect = (ids(), any::<u32>(), private()).prop_map(|(ids, number, private_data)| {
        MessageBody::DisconnectRequest(DisconnectRequest {
            communication_id: ids.0,
            remote_communication_id: ids.1,
            remote_queue_pair: QueuePairNumber::new(number),
            private_data,
        })
    });
    let disconnected = (ids(), private()).prop_map(|(ids, private_data)| {
        MessageBody::DisconnectReply(DisconnectReply {
            communication_id: ids.0,
            remote_communication_id: ids.1,
            private_data,
        })
    });
    prop_oneof![acknowledgment, ready, disconnect, disconnected]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn messages_survive_a_round_trip(
        transaction: u64,
        body in prop_oneof![any_request(), any_reply(), any_reject(), any_notice()],
    ) {
        let value = message(transaction, body);
        prop_assert_eq!(Message::parse(&value.encode()), Ok(value));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::parse(&bytes);
    }

    /// Behind a good header everything is parsed; what is taken says the same when it is sent on.
    #[test]
    fn no_fields_panic(attribute in 0x0F_u8..0x18, body in prop::collection::vec(any::<u8>(), 232)) {
        let mut bytes = mad(REQUEST);
        bytes[17] = attribute;
        bytes[24..].copy_from_slice(&body);
        if let Ok(value) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&value.encode()), Ok(value));
        }
    }
}
