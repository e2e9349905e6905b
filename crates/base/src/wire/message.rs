//! Messages between two fabrics: what each says in the private data of connection management, and
//! the header before the body of every request and reply.

use crate::Duration;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module (P-2).
pub const MESSAGE_VERSION: u16 = 2;
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
    /// Asks for a pong, to see that the peer's software still runs.
    Ping,
    Pong,
    /// In place of a reply: the request was not executed, because its deadline had passed.
    Expired,
}

/// How long a caller still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLeft(u32);

impl TimeLeft {
    /// For what nobody waits for, and what is waited for without end.
    pub const UNBOUNDED: Self = Self(0);

    /// Rounded down to whole microseconds, of which there is at least one; more than 71 minutes
    /// have no end.
    pub fn of(left: Duration) -> Self {
        Self(u32::try_from((left.as_nanos() / 1000).max(1)).unwrap_or(0))
    }

    /// None if there is no end.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            left => Some(Duration::from_micros(left as u64)),
        }
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    pub kind: MessageKind,
    /// The caller's name for the call. It means nothing to the replier, who gives it back.
    pub call: u64,
    /// Bytes that follow the header.
    pub length: u32,
    /// Of a request: what is left until its caller gives it up. The replier's own calls on its
    /// behalf get no more than that.
    pub time_left: TimeLeft,
    /// Of the connection; a message of another one is dropped.
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: U16,
    call: U64,
    length: U32,
    /// Microseconds.
    time_left: U32,
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
    /// Of the side that says it: differs for each life of a process.
    pub incarnation: u64,
    /// The connecting side's number for this connection. The accepting side repeats it.
    pub epoch: u64,
    /// Of this pair's connections with an epoch below, the side that says it has none any more: nothing
    /// of them can touch any memory through it.
    pub oldest_epoch: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: U32,
    version: U16,
    reserved: U16,
    credits: U32,
    message_length_max: U32,
    incarnation: U64,
    epoch: U64,
    oldest_epoch: U64,
}

const _: () = assert!(HELLO_SIZE == 40);

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
    #[error("a field that is not used is not zero")]
    Reserved,
    #[error("a message with a body whose kind has none")]
    Body,
    /// Found by who knows the connection's.
    #[error("the message is of another epoch of the connection")]
    Epoch,
}

impl MessageHeader {
    pub fn to_bytes(self) -> [u8; MESSAGE_HEADER_SIZE] {
        let raw = RawHeader {
            magic: MAGIC_MESSAGE.into(),
            version: MESSAGE_VERSION.into(),
            kind: match self.kind {
                MessageKind::Request => 1,
                MessageKind::Reply => 2,
                MessageKind::Ping => 3,
                MessageKind::Pong => 4,
                MessageKind::Expired => 5,
            }
            .into(),
            call: self.call.into(),
            length: self.length.into(),
            time_left: self.time_left.0.into(),
            epoch: self.epoch.into(),
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
            3 => MessageKind::Ping,
            4 => MessageKind::Pong,
            5 => MessageKind::Expired,
            other => return Err(MessageError::Kind(other)),
        };
        let found = received
            .checked_sub(MESSAGE_HEADER_SIZE as u32)
            .ok_or(MessageError::Short)?;
        let said = raw.length.get();
        if said != found {
            return Err(MessageError::Length { said, found });
        }
        let (call, time_left) = (raw.call.get(), raw.time_left.get());
        let is_bare = matches!(
            kind,
            MessageKind::Ping | MessageKind::Pong | MessageKind::Expired
        );
        let unused = match kind {
            MessageKind::Request => false,
            MessageKind::Reply | MessageKind::Expired => time_left != 0,
            MessageKind::Ping | MessageKind::Pong => time_left != 0 || call != 0,
        };
        // P-3: a later version may give it a meaning.
        if unused {
            return Err(MessageError::Reserved);
        }
        if is_bare && said != 0 {
            return Err(MessageError::Body);
        }
        Ok(Self {
            kind,
            call,
            length: said,
            time_left: TimeLeft(time_left),
            epoch: raw.epoch.get(),
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
            incarnation: self.incarnation.into(),
            epoch: self.epoch.into(),
            oldest_epoch: self.oldest_epoch.into(),
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
        // P-3: a later version may give it a meaning.
        if raw.reserved.get() != 0 {
            return Err(MessageError::Reserved);
        }
        let hello = Self {
            credits: raw.credits.get(),
            message_length_max: raw.message_length_max.get(),
            incarnation: raw.incarnation.get(),
            epoch: raw.epoch.get(),
            oldest_epoch: raw.oldest_epoch.get(),
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
        time_left: TimeLeft::UNBOUNDED,
        epoch: 0x0A0B,
    };

    const HELLO: Hello = Hello {
        credits: 7,
        message_length_max: 1 << 20,
        incarnation: 0x0123_4567_89AB_CDEF,
        epoch: 9,
        oldest_epoch: 8,
    };

    #[test]
    fn headers_and_hellos_survive_a_round_trip() {
        assert_eq!(MessageHeader::parse(&HEADER.to_bytes(), 37), Ok(HEADER));
        let mut bytes = HELLO.to_bytes().to_vec();
        bytes.extend_from_slice(b"user");
        assert_eq!(Hello::parse(&bytes), Ok((HELLO, &b"user"[..])));
    }

    // P-2
    #[test]
    fn the_bytes_of_version_two_never_change() {
        let golden: [u8; 32] = [
            b'L', b'G', b'm', b's', 2, 0, 2, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01, 5,
            0, 0, 0, 0, 0, 0, 0, 0x0B, 0x0A, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(HEADER.to_bytes(), golden);
    }

    // P-2
    #[test]
    fn the_bytes_of_a_hello_never_change() {
        let golden: [u8; 40] = [
            b'L', b'G', b'h', b'i', 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0x10, 0, 0xEF, 0xCD, 0xAB, 0x89,
            0x67, 0x45, 0x23, 0x01, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(HELLO.to_bytes(), golden);
    }

    // P-3
    #[test]
    fn a_hello_has_nothing_in_what_is_not_used() {
        let with = |at: usize, value: u8| {
            let mut bytes = HELLO.to_bytes();
            bytes[at] = value;
            Hello::parse(&bytes).map(|(hello, _)| hello)
        };
        assert_eq!(with(6, 0), Ok(HELLO));
        assert_eq!(with(6, 1), Err(MessageError::Reserved));
        assert_eq!(with(7, 0x80), Err(MessageError::Reserved));
        assert_eq!(with(0, 0), Err(MessageError::Magic));
        assert_eq!(with(4, 1), Err(MessageError::Version(1)));
        assert_eq!(with(5, 1), Err(MessageError::Version(0x0102)));
    }

    // P-3
    #[test]
    fn every_wrong_field_is_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = HEADER.to_bytes();
            bytes[at] = value;
            MessageHeader::parse(&bytes, 37)
        };
        assert_eq!(with(0, 0), Err(MessageError::Magic));
        assert_eq!(with(4, 9), Err(MessageError::Version(9)));
        assert_eq!(with(6, 6), Err(MessageError::Kind(6)));
        // What says that nothing was done says nothing else.
        assert_eq!(with(6, 5), Err(MessageError::Body));
        assert_eq!(with(16, 6), Err(MessageError::Length { said: 6, found: 5 }));
        assert_eq!(with(20, 1), Err(MessageError::Reserved));
        // A probe has no name and no body.
        assert_eq!(with(6, 4), Err(MessageError::Reserved));
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
    fn what_is_left_of_a_deadline_is_never_more_than_it_was() {
        let left = |nanos| TimeLeft::of(Duration::from_nanos(nanos)).duration();
        assert_eq!(left(1_999), Some(Duration::from_micros(1)));
        assert_eq!(left(0), Some(Duration::from_micros(1)));
        assert_eq!(left(u64::MAX), None);
    }

    #[test]
    fn a_probe_has_no_body() {
        let header = MessageHeader {
            kind: MessageKind::Ping,
            call: 0,
            length: 1,
            ..HEADER
        };
        let parsed = MessageHeader::parse(&header.to_bytes(), 33);
        assert_eq!(parsed, Err(MessageError::Body));
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
