//! The bytes of the messages (IB spec tables 99 and 106 to 113), big-endian.

use super::{MAD_LENGTH, MessageError, TransactionId};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
/// Send(): all messages of the class, answers too (IB spec 12.6.4).
const METHOD: u8 = 3;

/// What every management datagram begins with (IB spec 13.4.3).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct MadHeader {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    pub(super) transaction: U64,
    pub(super) attribute: U16,
    reserved: U16,
    attribute_modifier: U32,
}

/// What comes after it.
pub(super) const BODY_LENGTH: usize = MAD_LENGTH - size_of::<MadHeader>();

impl MadHeader {
    pub(super) fn new(transaction: TransactionId, attribute: u16) -> Self {
        Self {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction: transaction.0.into(),
            attribute: attribute.into(),
            reserved: U16::ZERO,
            attribute_modifier: U32::ZERO,
        }
    }

    pub(super) const fn check(&self) -> Result<(), MessageError> {
        match (
            self.base_version,
            self.class,
            self.class_version,
            self.method,
        ) {
            (BASE_VERSION, CLASS, CLASS_VERSION, METHOD) => Ok(()),
            (base, class, version, method) => Err(MessageError::OtherClass {
                base,
                class,
                version,
                method,
            }),
        }
    }
}

/// Table 106.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestLayout {
    pub(super) local_id: U32,
    pub(super) reserved_1: U32,
    pub(super) service: U64,
    pub(super) ca_guid: U64,
    pub(super) reserved_2: U32,
    pub(super) queue_key: U32,
    /// 24 bits, and responder resources.
    pub(super) queue_pair: U32,
    /// 24 bits of an end-to-end context, and initiator depth.
    pub(super) initiator_depth: U32,
    /// 24 bits of an end-to-end context; 5 of remote response timeout, 2 of transport service
    /// type, 1 of end-to-end flow control.
    pub(super) remote_timeout: U32,
    /// 24 bits of packet sequence number; 5 of local response timeout, 3 of retry count.
    pub(super) sequence: U32,
    pub(super) partition_key: U16,
    /// 4 bits of path MTU, 1 of a reliable datagram channel, 3 of RNR retry count.
    pub(super) mtu: u8,
    /// 4 bits of retries, 1 of a shared receive queue, 3 of extended transport type.
    pub(super) retries: u8,
    pub(super) primary: PathLayout,
    pub(super) alternate: PathLayout,
    pub(super) private_data: [u8; 92],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct PathLayout {
    pub(super) local_lid: U16,
    pub(super) remote_lid: U16,
    pub(super) local_gid: [u8; 16],
    pub(super) remote_gid: [u8; 16],
    /// 20 bits of flow label, 6 reserved, 6 of packet rate.
    pub(super) flow: U32,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// 4 bits of service level, 1 of being local to the subnet.
    pub(super) service_level: u8,
    /// 5 bits.
    pub(super) ack_timeout: u8,
}

impl PathLayout {
    pub(super) const NONE: Self = Self {
        local_lid: U16::ZERO,
        remote_lid: U16::ZERO,
        local_gid: [0; 16],
        remote_gid: [0; 16],
        flow: U32::ZERO,
        traffic_class: 0,
        hop_limit: 0,
        service_level: 0,
        ack_timeout: 0,
    };
}

/// Table 107.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AcknowledgmentLayout {
    pub(super) local_id: U32,
    pub(super) remote_id: U32,
    /// 2 bits.
    pub(super) message: u8,
    /// 5 bits.
    pub(super) service_timeout: u8,
    pub(super) private_data: [u8; 222],
}

/// Table 108.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RejectLayout {
    pub(super) local_id: U32,
    pub(super) remote_id: U32,
    /// 2 bits.
    pub(super) message: u8,
    /// 7 bits.
    pub(super) information_length: u8,
    pub(super) reason: U16,
    pub(super) information: [u8; 72],
    pub(super) private_data: [u8; 148],
}

/// Table 110.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ReplyLayout {
    pub(super) local_id: U32,
    pub(super) remote_id: U32,
    pub(super) queue_key: U32,
    /// 24 bits.
    pub(super) queue_pair: U32,
    /// 24 bits.
    pub(super) end_to_end_context: U32,
    /// 24 bits.
    pub(super) sequence: U32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// 5 bits of target ACK delay, 2 of failover, 1 of end-to-end flow control.
    pub(super) ack_delay: u8,
    /// 3 bits of RNR retry count, 1 of a shared receive queue.
    pub(super) rnr_retry: u8,
    pub(super) ca_guid: U64,
    pub(super) private_data: [u8; 196],
}

/// Table 111, and 113: RTU and DREP have the same.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct IdsLayout {
    pub(super) local_id: U32,
    pub(super) remote_id: U32,
    pub(super) private_data: [u8; 224],
}

/// Table 112.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DisconnectRequestLayout {
    pub(super) local_id: U32,
    pub(super) remote_id: U32,
    /// 24 bits.
    pub(super) queue_pair: U32,
    pub(super) private_data: [u8; 220],
}
