//! REJ (IB spec 12.6.7).

use super::layout::RejectLayout;
use super::{CommunicationId, MessageError, PrivateData};
use core::fmt;

/// Says no, or that it is over before it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectReject {
    /// The sender's; [`CommunicationId::UNKNOWN`] if it never gave one to the connection.
    pub communication_id: CommunicationId,
    /// The receiver's; [`CommunicationId::UNKNOWN`] if the sender never learned it.
    pub remote_communication_id: CommunicationId,
    pub message: RejectedMessage,
    pub reason: RejectReason,
    pub information: AdditionalInformation,
    pub private_data: PrivateData<148>,
}

/// What is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectedMessage {
    Request = 0,
    Reply = 1,
    /// No message: the sender has given up by itself.
    Other = 2,
}

impl RejectedMessage {
    const fn from_code(code: u8) -> Result<Self, MessageError> {
        match code {
            0 => Ok(Self::Request),
            1 => Ok(Self::Reply),
            2 => Ok(Self::Other),
            _ => Err(MessageError::UnknownMessageCode(code)),
        }
    }
}

/// Why (IB spec table 109). A peer may use numbers that have no name here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RejectReason(pub u16);

macro_rules! reasons {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl RejectReason {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            const fn text(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown reason",
                }
            }
        }
    };
}

reasons! {
    NO_QUEUE_PAIR = 1, "no queue pair available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "timeout";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMMUNICATION_ID = 6, "invalid communication ID";
    INVALID_SERVICE_ID = 8, "invalid service ID";
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    STALE_CONNECTION = 10, "stale connection";
    INVALID_GID = 12, "primary port GID rejected";
    INVALID_LID = 13, "primary port LID rejected";
    PORT_REDIRECT = 24, "port and CM redirection";
    INVALID_MTU = 26, "path MTU rejected";
    RESPONDER_RESOURCES = 27, "insufficient responder resources";
    CONSUMER = 28, "consumer reject";
    RNR_RETRY = 29, "RNR retry count rejected";
    DUPLICATE_COMMUNICATION_ID = 30, "duplicate local communication ID";
    INVALID_FLOW_LABEL = 32, "primary flow label rejected";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.0)
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What goes with a reason: the identifier that would be accepted, or who it is that gave up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdditionalInformation {
    length: u8,
    /// Zero from `length` on.
    bytes: [u8; Self::ROOM],
}

impl AdditionalInformation {
    /// Most bytes.
    pub const ROOM: usize = 72;
    pub const NONE: Self = Self {
        length: 0,
        bytes: [0; Self::ROOM],
    };

    /// # Errors
    /// [`MessageError::AdditionalInformation`] for more than [`Self::ROOM`] bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, MessageError> {
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        let mut room = [0; Self::ROOM];
        room.get_mut(..bytes.len())
            .ok_or(MessageError::AdditionalInformation(length))?
            .copy_from_slice(bytes);
        Ok(Self {
            length,
            bytes: room,
        })
    }

    /// Those of a whole array, which is known to fit.
    pub(in crate::cm) fn from_array<const LENGTH: usize>(array: [u8; LENGTH]) -> Self {
        const { assert!(LENGTH <= Self::ROOM) }
        let mut bytes = [0; Self::ROOM];
        bytes[..LENGTH].copy_from_slice(&array);
        Self {
            length: LENGTH as u8,
            bytes,
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

impl fmt::Debug for AdditionalInformation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

impl ConnectReject {
    pub(super) fn from_layout(layout: &RejectLayout) -> Result<Self, MessageError> {
        let length = layout.information_length >> 1;
        let information = layout
            .information
            .get(..usize::from(length))
            .ok_or(MessageError::AdditionalInformation(length))?;
        Ok(Self {
            communication_id: CommunicationId(layout.local_id.get()),
            remote_communication_id: CommunicationId(layout.remote_id.get()),
            message: RejectedMessage::from_code(layout.message >> 6)?,
            reason: RejectReason(layout.reason.get()),
            information: AdditionalInformation::from_slice(information)?,
            private_data: PrivateData::new(layout.private_data),
        })
    }

    pub(super) fn to_layout(&self) -> RejectLayout {
        RejectLayout {
            local_id: self.communication_id.0.into(),
            remote_id: self.remote_communication_id.0.into(),
            message: (self.message as u8) << 6,
            information_length: self.information.length << 1,
            reason: self.reason.0.into(),
            information: self.information.bytes,
            private_data: *self.private_data.as_bytes(),
        }
    }
}
