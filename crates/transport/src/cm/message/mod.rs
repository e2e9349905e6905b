//! The messages of connection management (IB spec 12.6): management datagrams of 256 bytes, as
//! values and as bytes.
//!
//! Reserved bits are sent as zero and not looked at. Fields of what is not spoken here are treated
//! in the same way: extended end-to-end contexts, alternate paths, local identifiers.

mod field;
mod layout;
mod notice;
mod private_data;
mod reject;
mod reply;
mod request;

pub use field::{Bits, CaGuid, CommunicationId, Gid, ServiceId, TimeoutCode, TransactionId};
pub use notice::{
    AcknowledgedMessage, DisconnectReply, DisconnectRequest, MessageReceiptAcknowledgment,
    ReadyToUse,
};
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use reject::{AdditionalInformation, ConnectReject, RejectReason, RejectedMessage};
pub use reply::ConnectReply;
pub use request::{ConnectRequest, Path};

use layout::{BODY_LENGTH, MadHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a management datagram (IB spec 13.4.2).
pub const MAD_LENGTH: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LENGTH];

/// A message, and the exchange that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The same in a request and in what answers it.
    pub transaction: TransactionId,
    pub body: MessageBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// REQ
    ConnectRequest(ConnectRequest),
    /// MRA
    MessageReceiptAcknowledgment(MessageReceiptAcknowledgment),
    /// REJ
    ConnectReject(ConnectReject),
    /// REP
    ConnectReply(ConnectReply),
    /// RTU
    ReadyToUse(ReadyToUse),
    /// DREQ
    DisconnectRequest(DisconnectRequest),
    /// DREP
    DisconnectReply(DisconnectReply),
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("a management datagram has 256 bytes, not {0}")]
    WrongLength(usize),
    #[error("management class {class} version {version} (base version {base}), method {method}")]
    OtherClass {
        base: u8,
        class: u8,
        version: u8,
        method: u8,
    },
    #[error("attribute {0:#06x} is not spoken here")]
    UnknownAttribute(u16),
    #[error("queue pair {0:#x} cannot be connected")]
    ReservedQueuePair(u32),
    #[error("{0} is no code of a message that can be answered so")]
    UnknownMessageCode(u8),
    #[error("{0} bytes of additional information do not fit")]
    AdditionalInformation(u8),
    /// The request is understood well enough to be refused.
    #[error("a request that cannot be served: {}", .0.reason)]
    Unsupported(UnsupportedRequest),
}

/// Of a request that asks for what is not spoken here: what its refusal needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedRequest {
    pub transaction: TransactionId,
    pub communication_id: CommunicationId,
    pub reason: RejectReason,
}

/// Attributes of the class (IB spec table 105).
mod attribute {
    pub(super) const CONNECT_REQUEST: u16 = 0x10;
    pub(super) const MESSAGE_RECEIPT_ACKNOWLEDGMENT: u16 = 0x11;
    pub(super) const CONNECT_REJECT: u16 = 0x12;
    pub(super) const CONNECT_REPLY: u16 = 0x13;
    pub(super) const READY_TO_USE: u16 = 0x14;
    pub(super) const DISCONNECT_REQUEST: u16 = 0x15;
    pub(super) const DISCONNECT_REPLY: u16 = 0x16;
}

impl Message {
    /// # Errors
    /// If the bytes are no message of connection management, or one that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mad: &Mad = bytes
            .try_into()
            .map_err(|_| MessageError::WrongLength(bytes.len()))?;
        let header: MadHeader = prefix(mad, 0)?;
        header.check()?;
        let transaction = TransactionId(header.transaction.get());
        let body = match header.attribute.get() {
            attribute::CONNECT_REQUEST => {
                MessageBody::ConnectRequest(ConnectRequest::from_layout(&body(mad)?, transaction)?)
            }
            attribute::MESSAGE_RECEIPT_ACKNOWLEDGMENT => MessageBody::MessageReceiptAcknowledgment(
                MessageReceiptAcknowledgment::from_layout(&body(mad)?)?,
            ),
            attribute::CONNECT_REJECT => {
                MessageBody::ConnectReject(ConnectReject::from_layout(&body(mad)?)?)
            }
            attribute::CONNECT_REPLY => {
                MessageBody::ConnectReply(ConnectReply::from_layout(&body(mad)?)?)
            }
            attribute::READY_TO_USE => {
                MessageBody::ReadyToUse(ReadyToUse::from_layout(&body(mad)?))
            }
            attribute::DISCONNECT_REQUEST => {
                MessageBody::DisconnectRequest(DisconnectRequest::from_layout(&body(mad)?))
            }
            attribute::DISCONNECT_REPLY => {
                MessageBody::DisconnectReply(DisconnectReply::from_layout(&body(mad)?))
            }
            other => return Err(MessageError::UnknownAttribute(other)),
        };
        Ok(Self { transaction, body })
    }

    pub fn encode(&self) -> Mad {
        match &self.body {
            MessageBody::ConnectRequest(it) => {
                self.write(attribute::CONNECT_REQUEST, &it.to_layout())
            }
            MessageBody::MessageReceiptAcknowledgment(it) => {
                self.write(attribute::MESSAGE_RECEIPT_ACKNOWLEDGMENT, &it.to_layout())
            }
            MessageBody::ConnectReject(it) => {
                self.write(attribute::CONNECT_REJECT, &it.to_layout())
            }
            MessageBody::ConnectReply(it) => self.write(attribute::CONNECT_REPLY, &it.to_layout()),
            MessageBody::ReadyToUse(it) => self.write(attribute::READY_TO_USE, &it.to_layout()),
            MessageBody::DisconnectRequest(it) => {
                self.write(attribute::DISCONNECT_REQUEST, &it.to_layout())
            }
            MessageBody::DisconnectReply(it) => {
                self.write(attribute::DISCONNECT_REPLY, &it.to_layout())
            }
        }
    }

    fn write<T: IntoBytes + Immutable>(&self, attribute: u16, layout: &T) -> Mad {
        const { assert!(size_of::<T>() == BODY_LENGTH) }
        let mut mad = [0; MAD_LENGTH];
        let (header, rest) = mad.split_at_mut(size_of::<MadHeader>());
        header.copy_from_slice(MadHeader::new(self.transaction, attribute).as_bytes());
        rest.copy_from_slice(layout.as_bytes());
        mad
    }
}

fn body<T: FromBytes + KnownLayout + Immutable>(mad: &Mad) -> Result<T, MessageError> {
    prefix(mad, size_of::<MadHeader>())
}

fn prefix<T: FromBytes + KnownLayout + Immutable>(
    mad: &Mad,
    offset: usize,
) -> Result<T, MessageError> {
    mad.get(offset..)
        .and_then(|bytes| T::read_from_prefix(bytes).ok())
        .map(|(value, _)| value)
        .ok_or(MessageError::WrongLength(mad.len()))
}
