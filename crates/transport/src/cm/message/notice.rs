//! The messages that say little more than which connection they mean: MRA, RTU, DREQ, DREP (IB
//! spec 12.6.6, 12.6.9 to 12.6.11).

use super::layout::{AcknowledgmentLayout, DisconnectRequestLayout, IdsLayout};
use super::request::above_byte;
use super::{CommunicationId, MessageError, PrivateData, TimeoutCode};
use crate::QueuePairNumber;

/// MRA: a message has arrived, and its answer takes its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageReceiptAcknowledgment {
    /// The sender's.
    pub communication_id: CommunicationId,
    pub remote_communication_id: CommunicationId,
    pub message: AcknowledgedMessage,
    /// How long the answer takes.
    pub service_timeout: TimeoutCode,
    pub private_data: PrivateData<222>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AcknowledgedMessage {
    Request = 0,
    Reply = 1,
}

/// RTU: the reply has arrived, and the connection is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyToUse {
    /// The sender's.
    pub communication_id: CommunicationId,
    pub remote_communication_id: CommunicationId,
    pub private_data: PrivateData<224>,
}

/// DREQ: the connection shall end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectRequest {
    /// The sender's.
    pub communication_id: CommunicationId,
    pub remote_communication_id: CommunicationId,
    /// That of the receiver.
    pub remote_queue_pair: QueuePairNumber,
    pub private_data: PrivateData<220>,
}

/// DREP: the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectReply {
    /// The sender's.
    pub communication_id: CommunicationId,
    pub remote_communication_id: CommunicationId,
    pub private_data: PrivateData<224>,
}

impl MessageReceiptAcknowledgment {
    pub(super) const fn from_layout(layout: &AcknowledgmentLayout) -> Result<Self, MessageError> {
        let message = match layout.message >> 6 {
            0 => AcknowledgedMessage::Request,
            1 => AcknowledgedMessage::Reply,
            // 2 is about alternate paths.
            code => return Err(MessageError::UnknownMessageCode(code)),
        };
        Ok(Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            message,
            service_timeout: TimeoutCode::from_byte(layout.service_timeout),
            private_data: PrivateData::new(layout.private_data),
        })
    }

    pub(super) fn to_layout(&self) -> AcknowledgmentLayout {
        AcknowledgmentLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            message: (self.message as u8) << 6,
            service_timeout: self.service_timeout.in_byte(),
            private_data: *self.private_data.as_bytes(),
        }
    }
}

impl ReadyToUse {
    pub(super) const fn from_layout(layout: &IdsLayout) -> Self {
        Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            private_data: PrivateData::new(layout.private_data),
        }
    }

    pub(super) fn to_layout(&self) -> IdsLayout {
        IdsLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            private_data: *self.private_data.as_bytes(),
        }
    }
}

impl DisconnectRequest {
    pub(super) const fn from_layout(layout: &DisconnectRequestLayout) -> Self {
        Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            remote_queue_pair: QueuePairNumber::new(layout.queue_pair.get() >> 8),
            private_data: PrivateData::new(layout.private_data),
        }
    }

    pub(super) fn to_layout(&self) -> DisconnectRequestLayout {
        DisconnectRequestLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            queue_pair: above_byte(self.remote_queue_pair.get(), 0),
            private_data: *self.private_data.as_bytes(),
        }
    }
}

impl DisconnectReply {
    pub(super) const fn from_layout(layout: &IdsLayout) -> Self {
        Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            private_data: PrivateData::new(layout.private_data),
        }
    }

    pub(super) fn to_layout(&self) -> IdsLayout {
        IdsLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            private_data: *self.private_data.as_bytes(),
        }
    }
}
