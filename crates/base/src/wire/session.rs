//! Calls of a session: what stands in front of the body of a request and of a reply, so that a
//! request that comes again, over another connection, is not executed again.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module.
pub const SESSION_VERSION: u16 = 1;
/// Bytes in front of the body of a request.
pub const SESSION_REQUEST_SIZE: usize = size_of::<RawRequest>();
/// Bytes in front of the body of a reply.
pub const SESSION_REPLY_SIZE: usize = size_of::<RawReply>();

const MAGIC_REQUEST: u32 = u32::from_le_bytes(*b"LGsq");
const MAGIC_REPLY: u32 = u32::from_le_bytes(*b"LGsr");
const FLAG_IDEMPOTENT: u16 = 1;

/// Who calls: one session of one life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionClient {
    /// That of its fabric's hello. Never zero.
    pub incarnation: u64,
    /// Of the sessions of this life.
    pub session: u32,
}

/// In front of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRequestHeader {
    pub client: SessionClient,
    /// To execute it twice does no harm.
    pub is_idempotent: bool,
    /// Of the call, from 1 on. It stays the same however often the call is sent.
    pub sequence: u64,
    /// No call below this is sent again, and nobody waits for its reply.
    pub oldest: u64,
    /// Calls from this one on were never sent over an earlier connection.
    pub opened: u64,
}

/// In front of a reply's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionReplyHeader {
    pub status: SessionStatus,
    /// Of the call; zero if the request could not be read.
    pub sequence: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Executed once; its result follows.
    Done,
    /// Not executed now. Whether it was executed before is not known any more.
    Forgotten,
    /// Not executed: as many calls of this client are under way as there may be, or there are too
    /// many clients.
    Busy,
    /// Not executed: it is no request of a session.
    Malformed,
    /// Not executed: it is of another version.
    Version,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    magic: U32,
    version: U16,
    flags: U16,
    incarnation: U64,
    session: U32,
    reserved: U32,
    sequence: U64,
    oldest: U64,
    opened: U64,
}

const _: () = assert!(SESSION_REQUEST_SIZE == 48);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReply {
    magic: U32,
    version: U16,
    status: U16,
    sequence: U64,
}

const _: () = assert!(SESSION_REPLY_SIZE == 16);

/// Why bytes are no request or reply of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionWireError {
    #[error("shorter than the header of a session")]
    Short,
    #[error("not of a session")]
    Magic,
    #[error("session version {0}, this side speaks {SESSION_VERSION}")]
    Version(u16),
    #[error("a flag that is not known, or a field that is not used is not zero")]
    Reserved,
    #[error("unknown status {0}")]
    Status(u16),
    #[error("a client without an incarnation")]
    Incarnation,
    #[error("sequence numbers that contradict each other")]
    Sequence,
    #[error("a body behind a status that has none")]
    Body,
}

impl SessionRequestHeader {
    pub fn to_bytes(self) -> [u8; SESSION_REQUEST_SIZE] {
        let raw = RawRequest {
            magic: MAGIC_REQUEST.into(),
            version: SESSION_VERSION.into(),
            flags: if self.is_idempotent {
                FLAG_IDEMPOTENT
            } else {
                0
            }
            .into(),
            incarnation: self.client.incarnation.into(),
            session: self.client.session.into(),
            reserved: 0.into(),
            sequence: self.sequence.into(),
            oldest: self.oldest.into(),
            opened: self.opened.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// The header, and the body behind it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), SessionWireError> {
        let (raw, body) =
            RawRequest::read_from_prefix(bytes).map_err(|_| SessionWireError::Short)?;
        check(raw.magic.get(), MAGIC_REQUEST, raw.version.get())?;
        if raw.flags.get() & !FLAG_IDEMPOTENT != 0 || raw.reserved.get() != 0 {
            return Err(SessionWireError::Reserved);
        }
        if raw.incarnation.get() == 0 {
            return Err(SessionWireError::Incarnation);
        }
        let (sequence, oldest, opened) = (raw.sequence.get(), raw.oldest.get(), raw.opened.get());
        // The call itself is not over, and the first number is 1.
        if oldest == 0 || oldest > sequence || opened == 0 {
            return Err(SessionWireError::Sequence);
        }
        let header = Self {
            client: SessionClient {
                incarnation: raw.incarnation.get(),
                session: raw.session.get(),
            },
            is_idempotent: raw.flags.get() & FLAG_IDEMPOTENT != 0,
            sequence,
            oldest,
            opened,
        };
        Ok((header, body))
    }
}

impl SessionReplyHeader {
    pub fn to_bytes(self) -> [u8; SESSION_REPLY_SIZE] {
        let raw = RawReply {
            magic: MAGIC_REPLY.into(),
            version: SESSION_VERSION.into(),
            status: match self.status {
                SessionStatus::Done => 1,
                SessionStatus::Forgotten => 2,
                SessionStatus::Busy => 3,
                SessionStatus::Malformed => 4,
                SessionStatus::Version => 5,
            }
            .into(),
            sequence: self.sequence.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// The header, and the body behind it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), SessionWireError> {
        let (raw, body) = RawReply::read_from_prefix(bytes).map_err(|_| SessionWireError::Short)?;
        check(raw.magic.get(), MAGIC_REPLY, raw.version.get())?;
        let status = match raw.status.get() {
            1 => SessionStatus::Done,
            2 => SessionStatus::Forgotten,
            3 => SessionStatus::Busy,
            4 => SessionStatus::Malformed,
            5 => SessionStatus::Version,
            other => return Err(SessionWireError::Status(other)),
        };
        let sequence = raw.sequence.get();
        let is_unread = matches!(status, SessionStatus::Malformed | SessionStatus::Version);
        if is_unread != (sequence == 0) {
            return Err(SessionWireError::Sequence);
        }
        if status != SessionStatus::Done && !body.is_empty() {
            return Err(SessionWireError::Body);
        }
        Ok((Self { status, sequence }, body))
    }
}

fn check(magic: u32, expected: u32, version: u16) -> Result<(), SessionWireError> {
    if magic != expected {
        return Err(SessionWireError::Magic);
    }
    if version != SESSION_VERSION {
        return Err(SessionWireError::Version(version));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use alloc::vec::Vec;

    const REQUEST: SessionRequestHeader = SessionRequestHeader {
        client: SessionClient {
            incarnation: 0x0123_4567_89AB_CDEF,
            session: 3,
        },
        is_idempotent: true,
        sequence: 0x0102,
        oldest: 0x0101,
        opened: 0x0100,
    };
    const REPLY: SessionReplyHeader = SessionReplyHeader {
        status: SessionStatus::Done,
        sequence: 0x0102,
    };

    fn with_body(header: &[u8]) -> Vec<u8> {
        [header, b"body"].concat()
    }

    #[test]
    fn session_headers_survive_a_round_trip() {
        let bytes = with_body(&REQUEST.to_bytes());
        assert_eq!(
            SessionRequestHeader::parse(&bytes),
            Ok((REQUEST, &b"body"[..]))
        );
        let bytes = with_body(&REPLY.to_bytes());
        assert_eq!(SessionReplyHeader::parse(&bytes), Ok((REPLY, &b"body"[..])));
        for (status, sequence) in [
            (SessionStatus::Forgotten, 1),
            (SessionStatus::Busy, u64::MAX),
            (SessionStatus::Malformed, 0),
            (SessionStatus::Version, 0),
        ] {
            let header = SessionReplyHeader { status, sequence };
            let parsed = SessionReplyHeader::parse(&header.to_bytes()).map(|(header, _)| header);
            assert_eq!(parsed, Ok(header));
        }
    }

    #[test]
    fn the_bytes_of_session_version_one_never_change() {
        let request: [u8; 48] = [
            b'L', b'G', b's', b'q', 1, 0, 1, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01, 3,
            0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
            0, 0,
        ];
        assert_eq!(REQUEST.to_bytes(), request);
        let reply: [u8; 16] = [b'L', b'G', b's', b'r', 1, 0, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(REPLY.to_bytes(), reply);
    }

    #[test]
    fn every_wrong_field_of_a_session_header_is_refused() {
        let request = |at: usize, value: u8| {
            let mut bytes = with_body(&REQUEST.to_bytes());
            bytes[at] = value;
            SessionRequestHeader::parse(&bytes).unwrap_err()
        };
        assert_eq!(request(0, 0), SessionWireError::Magic);
        assert_eq!(request(4, 2), SessionWireError::Version(2));
        assert_eq!(request(6, 2), SessionWireError::Reserved);
        assert_eq!(request(20, 1), SessionWireError::Reserved);
        // The oldest call that is not over is later than this one, or none.
        assert_eq!(request(32, 3), SessionWireError::Sequence);
        let nobody = SessionRequestHeader {
            client: SessionClient {
                incarnation: 0,
                session: 0,
            },
            ..REQUEST
        };
        assert_eq!(
            SessionRequestHeader::parse(&nobody.to_bytes()),
            Err(SessionWireError::Incarnation)
        );
        for wrong in [
            SessionRequestHeader {
                oldest: 0,
                ..REQUEST
            },
            SessionRequestHeader {
                opened: 0,
                ..REQUEST
            },
        ] {
            let bytes = wrong.to_bytes();
            let parsed = SessionRequestHeader::parse(&bytes);
            assert_eq!(parsed, Err(SessionWireError::Sequence));
        }
        let reply = |at: usize, value: u8| {
            let mut bytes = with_body(&REPLY.to_bytes());
            bytes[at] = value;
            SessionReplyHeader::parse(&bytes).unwrap_err()
        };
        assert_eq!(reply(3, 0), SessionWireError::Magic);
        assert_eq!(reply(5, 1), SessionWireError::Version(257));
        assert_eq!(reply(6, 6), SessionWireError::Status(6));
        assert_eq!(reply(6, 2), SessionWireError::Body);
        assert_eq!(reply(6, 4), SessionWireError::Sequence);
    }

    /// What is taken is what was written, whatever else the bytes are.
    #[test]
    fn no_bytes_make_the_session_parsers_panic_and_what_they_take_they_give_back() {
        let mut random = Random::from_seed(2);
        let mut taken = [0; 2];
        for _ in 0..40_000 {
            let mut bytes: Vec<u8> = REQUEST.to_bytes().to_vec();
            if random.ratio(1, 2) {
                bytes = with_body(&REPLY.to_bytes());
            }
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            bytes.truncate(random.below(60) as usize);
            if let Ok((header, body)) = SessionRequestHeader::parse(&bytes) {
                taken[0] += 1;
                assert_eq!([&header.to_bytes(), body].concat(), bytes);
            }
            if let Ok((header, body)) = SessionReplyHeader::parse(&bytes) {
                taken[1] += 1;
                assert_eq!([&header.to_bytes(), body].concat(), bytes);
            }
        }
        assert!(taken.iter().all(|&taken| taken > 100), "{taken:?}");
    }
}
