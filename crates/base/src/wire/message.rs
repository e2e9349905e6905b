//! Messages between two fabrics: what each says in the private data of connection management, and
//! the header before the body of every request and reply.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module.
pub const MESSAGE_VERSION: u16 = 1;
/// Bytes of the header of a request or reply.
pub const MESSAGE_HEADER_SIZE: usize = size_of::<RawHeader>();
/// Bytes of a [`Hello`] in front of the private data of a connect or accept.
pub const HELLO_SIZE: usize = size_of::<RawHello>();

const MAGIC_MESSAGE: u32 = u32::from_le_bytes(*b"LGms");
const MAGIC_HELLO: u32 = u32::from_le_bytes(*b"LGhi");

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Request,
    /// Also returns the credit that its request took.
    Reply,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    pub kind: MessageKind,
    /// The caller's name for the call. It means nothing to the replier, who gives it back.
    pub call: u64,
    /// Bytes that follow the header.
    pub length: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: U16,
    call: U64,
    length: U32,
    reserved: U32,
    /// Epoch of the connection, by which late messages of an older one will be told apart when
    /// connections share a receive queue; 0 until then.
    epoch: U64,
}

const _: () = assert!(MESSAGE_HEADER_SIZE == 32);

/// What each side of a connection must know of the other before the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Requests of the peer that this side can hold unanswered.
    pub credits: u32,
    /// Longest body that this side can receive, in bytes.
    pub message_length_max: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: U32,
    version: U16,
    reserved: U16,
    credits: U32,
    message_length_max: U32,
}

const _: () = assert!(HELLO_SIZE == 16);

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("the message is shorter than its header")]
    Short,
    #[error("not a message of this protocol")]
    Magic,
    #[error("message version {0}, this side speaks {MESSAGE_VERSION}")]
    Version(u16),
    #[error("unknown message kind {0}")]
    Kind(u16),
    #[error("the message says {said} bytes and has {found}")]
    Length { said: u32, found: u32 },
    #[error("a reserved field is not zero")]
    Reserved,
}

impl MessageHeader {
    pub fn to_bytes(self) -> [u8; MESSAGE_HEADER_SIZE] {
        let raw = RawHeader {
            magic: MAGIC_MESSAGE.into(),
            version: MESSAGE_VERSION.into(),
            kind: match self.kind {
                MessageKind::Request => 1,
                MessageKind::Reply => 2,
            }
            .into(),
            call: self.call.into(),
            length: self.length.into(),
            reserved: 0.into(),
            epoch: 0.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Checks the header of a message of `received` bytes, header included.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(bytes: &[u8], received: u32) -> Result<Self, MessageError> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).map_err(|_| MessageError::Short)?;
        if raw.magic.get() != MAGIC_MESSAGE {
            return Err(MessageError::Magic);
        }
        if raw.version.get() != MESSAGE_VERSION {
            return Err(MessageError::Version(raw.version.get()));
        }
        let kind = match raw.kind.get() {
            1 => MessageKind::Request,
            2 => MessageKind::Reply,
            other => return Err(MessageError::Kind(other)),
        };
        let found = received
            .checked_sub(MESSAGE_HEADER_SIZE as u32)
            .ok_or(MessageError::Short)?;
        let said = raw.length.get();
        if said != found {
            return Err(MessageError::Length { said, found });
        }
        if raw.reserved.get() != 0 || raw.epoch.get() != 0 {
            return Err(MessageError::Reserved);
        }
        Ok(Self {
            kind,
            call: raw.call.get(),
            length: said,
        })
    }
}

impl Hello {
    pub fn to_bytes(self) -> [u8; HELLO_SIZE] {
        let raw = RawHello {
            magic: MAGIC_HELLO.into(),
            version: MESSAGE_VERSION.into(),
            reserved: 0.into(),
            credits: self.credits.into(),
            message_length_max: self.message_length_max.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// The hello, and what the user of the connection put behind it.
    ///
    /// # Errors
    /// When the private data is not that of a fabric of this version.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), MessageError> {
        let (raw, rest) = RawHello::read_from_prefix(bytes).map_err(|_| MessageError::Short)?;
        if raw.magic.get() != MAGIC_HELLO {
            return Err(MessageError::Magic);
        }
        if raw.version.get() != MESSAGE_VERSION {
            return Err(MessageError::Version(raw.version.get()));
        }
        if raw.reserved.get() != 0 {
            return Err(MessageError::Reserved);
        }
        let hello = Self {
            credits: raw.credits.get(),
            message_length_max: raw.message_length_max.get(),
        };
        Ok((hello, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use alloc::vec::Vec;

    const HEADER: MessageHeader = MessageHeader {
        kind: MessageKind::Reply,
        call: 0x0123_4567_89AB_CDEF,
        length: 5,
    };

    #[test]
    fn headers_and_hellos_survive_a_round_trip() {
        assert_eq!(MessageHeader::parse(&HEADER.to_bytes(), 37), Ok(HEADER));
        let hello = Hello {
            credits: 7,
            message_length_max: 1 << 20,
        };
        let mut bytes = hello.to_bytes().to_vec();
        bytes.extend_from_slice(b"user");
        assert_eq!(Hello::parse(&bytes), Ok((hello, &b"user"[..])));
    }

    #[test]
    fn the_bytes_of_version_one_never_change() {
        let golden: [u8; 32] = [
            b'L', b'G', b'm', b's', 1, 0, 2, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01, 5,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(HEADER.to_bytes(), golden);
    }

    #[test]
    fn every_wrong_field_is_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = HEADER.to_bytes();
            bytes[at] = value;
            MessageHeader::parse(&bytes, 37)
        };
        assert_eq!(with(0, 0), Err(MessageError::Magic));
        assert_eq!(with(4, 9), Err(MessageError::Version(9)));
        assert_eq!(with(6, 3), Err(MessageError::Kind(3)));
        assert_eq!(with(16, 6), Err(MessageError::Length { said: 6, found: 5 }));
        assert_eq!(with(20, 1), Err(MessageError::Reserved));
        assert_eq!(with(31, 1), Err(MessageError::Reserved));
        assert_eq!(
            MessageHeader::parse(&HEADER.to_bytes()[..31], 31),
            Err(MessageError::Short)
        );
        assert_eq!(
            MessageHeader::parse(&HEADER.to_bytes(), 31),
            Err(MessageError::Short)
        );
    }

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let mut random = Random::from_seed(1);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = HEADER.to_bytes().to_vec();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            bytes.truncate(random.below(33) as usize);
            let parsed = MessageHeader::parse(&bytes, bytes.len() as u32);
            // Whole headers announce 5 bytes and none follow, so nothing here is valid unless the
            // length itself was hit.
            if let Ok(header) = parsed {
                assert_eq!(header.length, 0);
            }
            let _ = Hello::parse(&bytes);
        }
    }
}
