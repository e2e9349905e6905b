//! REP (IB spec 12.6.8).

use super::layout::ReplyLayout;
use super::request::{above_byte, connectable};
use super::{Bits, CaGuid, CommunicationId, MessageError, PrivateData, TimeoutCode};
use crate::{PacketSequenceNumber, QueuePairNumber};
use zerocopy::big_endian::U32;

/// Accepts a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectReply {
    /// The sender's.
    pub communication_id: CommunicationId,
    /// That of the request.
    pub remote_communication_id: CommunicationId,
    pub queue_pair: QueuePairNumber,
    /// With which the *receiver* of this message begins to send.
    pub starting_sequence: PacketSequenceNumber,
    /// READs and atomics that the sender's queue pair takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge a packet.
    pub target_ack_delay: TimeoutCode,
    /// What became of the request's alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover: Bits<2>,
    pub end_to_end_flow_control: bool,
    pub rnr_retry_count: Bits<3>,
    pub shared_receive_queue: bool,
    pub ca_guid: CaGuid,
    pub private_data: PrivateData<196>,
}

impl ConnectReply {
    /// Paths are not migrated here.
    pub const FAILOVER_NOT_SUPPORTED: Bits<2> = Bits::new(1);

    pub(super) fn from_layout(layout: &ReplyLayout) -> Result<Self, MessageError> {
        Ok(Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            queue_pair: connectable(layout.queue_pair.get() >> 8)?,
            starting_sequence: PacketSequenceNumber::new(layout.sequence.get() >> 8),
            responder_resources: layout.responder_resources,
            initiator_depth: layout.initiator_depth,
            target_ack_delay: TimeoutCode::from_byte(layout.ack_delay),
            failover: Bits::from_byte(layout.ack_delay, 1),
            end_to_end_flow_control: layout.ack_delay & 1 != 0,
            rnr_retry_count: Bits::from_byte(layout.rnr_retry, 5),
            shared_receive_queue: layout.rnr_retry & 0x10 != 0,
            ca_guid: CaGuid(layout.ca_guid.get()),
            private_data: PrivateData::new(layout.private_data),
        })
    }

    pub(super) fn to_layout(&self) -> ReplyLayout {
        let shared = if self.shared_receive_queue { 0x10 } else { 0 };
        ReplyLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            queue_key: U32::ZERO,
            queue_pair: above_byte(self.queue_pair.get(), 0),
            end_to_end_context: U32::ZERO,
            sequence: above_byte(self.starting_sequence.get(), 0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            ack_delay: self.target_ack_delay.in_byte()
                | self.failover.in_byte(1)
                | u8::from(self.end_to_end_flow_control),
            rnr_retry: self.rnr_retry_count.in_byte(5) | shared,
            ca_guid: self.ca_guid.0.into(),
            private_data: *self.private_data.as_bytes(),
        }
    }
}
