//! REQ (IB spec 12.6.5).

use super::layout::{PathLayout, RequestLayout};
use super::{
    Bits, CaGuid, CommunicationId, Gid, MessageError, PrivateData, RejectReason, ServiceId,
    TimeoutCode, TransactionId, UnsupportedRequest,
};
use crate::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use zerocopy::big_endian::{U16, U32};

/// Asks for a reliable connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The sender's.
    pub communication_id: CommunicationId,
    pub service: ServiceId,
    pub ca_guid: CaGuid,
    pub queue_pair: QueuePairNumber,
    /// READs and atomics that the sender's queue pair takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// How long the receiver is given to answer.
    pub remote_response_timeout: TimeoutCode,
    pub end_to_end_flow_control: bool,
    /// With which the *receiver* of this message begins to send.
    pub starting_sequence: PacketSequenceNumber,
    /// How long the sender takes to answer.
    pub local_response_timeout: TimeoutCode,
    pub retry_count: Bits<3>,
    pub partition_key: u16,
    pub path_mtu: PathMtu,
    pub rnr_retry_count: Bits<3>,
    /// How often the receiver may repeat an answer.
    pub retries_max: Bits<4>,
    pub shared_receive_queue: bool,
    pub primary: Path,
    /// For an IP service it begins with an [`IpHeader`](crate::cm::IpHeader).
    pub private_data: PrivateData<92>,
}

/// The way of a connection's packets, as the sender of the request sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub local: Gid,
    pub remote: Gid,
    pub flow_label: Bits<20>,
    /// An encoding of IB spec 10.6.2.1: 2 is 2.5 Gb/s.
    pub packet_rate: Bits<6>,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub service_level: Bits<4>,
    pub subnet_local: bool,
    pub ack_timeout: TimeoutCode,
}

/// What stands for a local identifier on Ethernet: the permissive one (IB spec 4.1.3).
const NO_LID: U16 = U16::new(0xFFFF);
const RELIABLE_CONNECTION: u8 = 0;
const END_TO_END_FLOW_CONTROL: u8 = 1;
const SHARED_RECEIVE_QUEUE: u8 = 8;
const SUBNET_LOCAL: u8 = 8;

impl ConnectRequest {
    pub(super) fn from_layout(
        layout: &RequestLayout,
        transaction: TransactionId,
    ) -> Result<Self, MessageError> {
        let communication_id = CommunicationId(layout.local_id.get());
        let unsupported = |reason| {
            MessageError::Unsupported(UnsupportedRequest {
                transaction,
                communication_id,
                reason,
            })
        };
        let (remote_timeout, sequence) = (layout.remote_timeout.get(), layout.sequence.get());
        let remote_timeout = low_byte(remote_timeout);
        if remote_timeout >> 1 & 3 != RELIABLE_CONNECTION {
            return Err(unsupported(RejectReason::INVALID_TRANSPORT_TYPE));
        }
        let path_mtu = PathMtu::from_code(layout.mtu >> 4)
            .ok_or_else(|| unsupported(RejectReason::INVALID_MTU))?;
        Ok(Self {
            communication_id,
            service: ServiceId(layout.service.get()),
            ca_guid: CaGuid(layout.ca_guid.get()),
            queue_pair: connectable(layout.queue_pair.get() >> 8)?,
            responder_resources: low_byte(layout.queue_pair.get()),
            initiator_depth: low_byte(layout.initiator_depth.get()),
            remote_response_timeout: TimeoutCode::from_byte(remote_timeout),
            end_to_end_flow_control: remote_timeout & END_TO_END_FLOW_CONTROL != 0,
            starting_sequence: PacketSequenceNumber::new(sequence >> 8),
            local_response_timeout: TimeoutCode::from_byte(low_byte(sequence)),
            retry_count: Bits::new(sequence),
            partition_key: layout.partition_key.get(),
            path_mtu,
            rnr_retry_count: Bits::from_byte(layout.mtu, 0),
            retries_max: Bits::from_byte(layout.retries, 4),
            shared_receive_queue: layout.retries & SHARED_RECEIVE_QUEUE != 0,
            primary: Path::from_layout(&layout.primary),
            private_data: PrivateData::new(layout.private_data),
        })
    }

    pub(super) fn to_layout(&self) -> RequestLayout {
        let flow_control = if self.end_to_end_flow_control {
            END_TO_END_FLOW_CONTROL
        } else {
            0
        };
        let shared = if self.shared_receive_queue {
            SHARED_RECEIVE_QUEUE
        } else {
            0
        };
        RequestLayout {
            local_id: self.communication_id.0.into(),
            reserved_1: U32::ZERO,
            service: self.service.0.into(),
            ca_guid: self.ca_guid.0.into(),
            reserved_2: U32::ZERO,
            queue_key: U32::ZERO,
            queue_pair: above_byte(self.queue_pair.get(), self.responder_resources),
            initiator_depth: above_byte(0, self.initiator_depth),
            remote_timeout: above_byte(0, self.remote_response_timeout.in_byte() | flow_control),
            sequence: above_byte(
                self.starting_sequence.get(),
                self.local_response_timeout.in_byte() | self.retry_count.in_byte(0),
            ),
            partition_key: self.partition_key.into(),
            mtu: self.path_mtu.code() << 4 | self.rnr_retry_count.in_byte(0),
            retries: self.retries_max.in_byte(4) | shared,
            primary: self.primary.to_layout(),
            alternate: PathLayout::NONE,
            private_data: *self.private_data.as_bytes(),
        }
    }
}

impl Path {
    fn from_layout(layout: &PathLayout) -> Self {
        let flow = layout.flow.get();
        Self {
            local: Gid(layout.local_gid),
            remote: Gid(layout.remote_gid),
            flow_label: Bits::new(flow >> 12),
            packet_rate: Bits::new(flow),
            traffic_class: layout.traffic_class,
            hop_limit: layout.hop_limit,
            service_level: Bits::from_byte(layout.service_level, 4),
            subnet_local: layout.service_level & SUBNET_LOCAL != 0,
            ack_timeout: TimeoutCode::from_byte(layout.ack_timeout),
        }
    }

    fn to_layout(self) -> PathLayout {
        let local = if self.subnet_local { SUBNET_LOCAL } else { 0 };
        PathLayout {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: self.local.0,
            remote_gid: self.remote.0,
            flow: U32::new(self.flow_label.get() << 12 | self.packet_rate.get()),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            service_level: self.service_level.in_byte(4) | local,
            ack_timeout: self.ack_timeout.in_byte(),
        }
    }
}

pub(super) const fn low_byte(word: u32) -> u8 {
    (word & 0xFF) as u8
}

/// 24 bits, and a byte below them.
pub(super) const fn above_byte(value: u32, byte: u8) -> U32 {
    U32::new(value << 8 | byte as u32)
}

/// 0 and 1 are the management queue pairs, and the last number stands for multicast (IB spec
/// 9.2.5).
pub(super) const fn connectable(number: u32) -> Result<QueuePairNumber, MessageError> {
    match number & 0x00FF_FFFF {
        0 | 1 | 0x00FF_FFFF => Err(MessageError::ReservedQueuePair(number)),
        number => Ok(QueuePairNumber::new(number)),
    }
}
