//! The control messages on the socket: one fixed layout, one message a packet.
//!
//! They set connections up and ask for segments; data never goes this way. All numbers are
//! little-endian. A message of another size, magic, kind or length is malformed and ends the
//! connection that it came on.

use legato_verbs::{AccessFlags, PRIVATE_DATA_MAX, QueuePairNumber, RejectReason};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "LGTS" in memory order.
const MAGIC: u32 = 0x5354_474C;
/// Changes with [`RawMessage`], the ring header, or the meaning of either.
pub(super) const VERSION: u16 = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMessage {
    magic: U32,
    version: U16,
    kind: U16,
    first: U32,
    second: U32,
    length: U64,
    private_length: U32,
    access: U32,
    private: [u8; PRIVATE_DATA_MAX],
    offset: U64,
}

pub(super) const MESSAGE_SIZE: usize = size_of::<RawMessage>();
const _: () = assert!(MESSAGE_SIZE == 96);
/// Magic and version stay where they are in every version.
const PREFIX_SIZE: usize = 6;

/// Private data of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateData {
    bytes: [u8; PRIVATE_DATA_MAX],
    length: usize,
}

impl PrivateData {
    /// `None` if there are more bytes than [`PRIVATE_DATA_MAX`].
    pub(super) fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; PRIVATE_DATA_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self {
            bytes,
            length: from.len(),
        })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// One side's introduction. Its ring segment and its key table are attached, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) queue_pair: u32,
    pub(super) generation: u32,
    pub(super) private: PrivateData,
}

impl Greeting {
    /// The number of the sender's queue pair.
    pub(super) fn number(&self) -> QueuePairNumber {
        number(self.queue_pair, self.generation)
    }
}

const _: () = assert!(super::QUEUE_PAIRS_MAX == 1 << 14);
/// Generations that the number of a queue pair tells apart.
const GENERATIONS: u32 = 1023;

/// The number of the queue pair with this handle. It has the index in the low 14 bits
/// ([`super::QUEUE_PAIRS_MAX`]) and the generation above, so the next queue pair at an index has
/// another number. None is 0 or 1, which are reserved.
pub(super) fn number(index: u32, generation: u32) -> QueuePairNumber {
    QueuePairNumber::new((generation % GENERATIONS + 1) << 14 | index & 0x3FFF)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Hello(Greeting),
    Accept(Greeting),
    Reject {
        reason: RejectReason,
        private: PrivateData,
    },
    /// Asks for the segment behind a remote key.
    MapRequest {
        key: u32,
    },
    /// The segment is attached.
    MapReply {
        key: u32,
        /// Where in the sender's key table the key stands while it is valid.
        slot: u32,
        /// Where the region begins in the segment.
        offset: u64,
        /// Bytes of the region.
        length: u64,
        access: AccessFlags,
    },
    /// There is something in a ring, for a peer that sleeps.
    Wake,
    /// A key that was mapped is no longer valid: unmap it.
    Revoked {
        key: u32,
    },
}

/// Why a packet is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireError {
    Malformed,
    /// From a provider that speaks another version.
    Version(u16),
}

impl Message {
    pub(super) fn to_bytes(self) -> [u8; MESSAGE_SIZE] {
        let empty = PrivateData {
            bytes: [0; PRIVATE_DATA_MAX],
            length: 0,
        };
        let greeted = |greeting: Greeting| (greeting.queue_pair, greeting.generation);
        let none = (0, 0, 0);
        let (kind, (first, second), (offset, length, access), private) = match self {
            Self::Hello(greeting) => (1, greeted(greeting), none, greeting.private),
            Self::Accept(greeting) => (2, greeted(greeting), none, greeting.private),
            Self::Reject { reason, private } => (3, (reject_code(reason), 0), none, private),
            Self::MapRequest { key } => (4, (key, 0), none, empty),
            Self::MapReply {
                key,
                slot,
                offset,
                length,
                access,
            } => {
                let memory = (offset, length, u32::from(access.bits()));
                (5, (key, slot), memory, empty)
            }
            Self::Wake => (6, (0, 0), none, empty),
            Self::Revoked { key } => (7, (key, 0), none, empty),
        };
        let raw = RawMessage {
            magic: MAGIC.into(),
            version: VERSION.into(),
            kind: kind.into(),
            first: first.into(),
            second: second.into(),
            length: length.into(),
            private_length: (private.length as u32).into(),
            access: access.into(),
            private: private.bytes,
            offset: offset.into(),
        };
        zerocopy::transmute!(raw)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (prefix, _) = bytes
            .split_at_checked(PREFIX_SIZE)
            .ok_or(WireError::Malformed)?;
        let (magic, version) = U32::read_from_prefix(prefix).map_err(|_| WireError::Malformed)?;
        let version = U16::read_from_bytes(version).map_err(|_| WireError::Malformed)?;
        if magic.get() != MAGIC {
            return Err(WireError::Malformed);
        }
        if version.get() != VERSION {
            return Err(WireError::Version(version.get()));
        }
        let raw = RawMessage::read_from_bytes(bytes).map_err(|_| WireError::Malformed)?;
        let (first, second) = (raw.first.get(), raw.second.get());
        let private = raw
            .private
            .get(..raw.private_length.get() as usize)
            .and_then(PrivateData::new)
            .ok_or(WireError::Malformed)?;
        let greeting = Greeting {
            queue_pair: first,
            generation: second,
            private,
        };
        Ok(match raw.kind.get() {
            1 => Self::Hello(greeting),
            2 => Self::Accept(greeting),
            3 => Self::Reject {
                reason: reject_reason(first).ok_or(WireError::Malformed)?,
                private,
            },
            4 => Self::MapRequest { key: first },
            5 => Self::MapReply {
                key: first,
                slot: second,
                offset: raw.offset.get(),
                length: raw.length.get(),
                access: u8::try_from(raw.access.get())
                    .ok()
                    .map(AccessFlags::from_bits)
                    .ok_or(WireError::Malformed)?,
            },
            6 => Self::Wake,
            7 => Self::Revoked { key: first },
            _ => return Err(WireError::Malformed),
        })
    }
}

/// Numbers of the IB spec's rejection reasons where it has one (volume 1, table 107).
fn reject_code(reason: RejectReason) -> u32 {
    match reason {
        RejectReason::NoResources => 3,
        RejectReason::Timeout => 4,
        RejectReason::InvalidServiceId => 8,
        RejectReason::StaleConnection => 10,
        RejectReason::ConsumerReject => 28,
        RejectReason::IncompatibleVersion => 31,
        RejectReason::Other(code) => u32::from(code),
    }
}

fn reject_reason(code: u32) -> Option<RejectReason> {
    Some(match u16::try_from(code).ok()? {
        1..=3 => RejectReason::NoResources,
        4 => RejectReason::Timeout,
        8 => RejectReason::InvalidServiceId,
        10 => RejectReason::StaleConnection,
        28 => RejectReason::ConsumerReject,
        31 => RejectReason::IncompatibleVersion,
        other => RejectReason::Other(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;

    #[test]
    fn messages_survive_a_round_trip() {
        let private = PrivateData::new(b"client 7").unwrap();
        let greeting = Greeting {
            queue_pair: 3,
            generation: 9,
            private,
        };
        let reason = RejectReason::ConsumerReject;
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        for message in [
            Message::Hello(greeting),
            Message::Accept(greeting),
            Message::Reject { reason, private },
            Message::MapRequest { key: 77 },
            Message::MapReply {
                key: 77,
                slot: 5,
                offset: 1 << 39,
                length: 1 << 33,
                access,
            },
            Message::Wake,
            Message::Revoked { key: 77 },
        ] {
            assert_eq!(Message::parse(&message.to_bytes()), Ok(message));
        }
    }

    #[test]
    fn the_bytes_of_version_4_stay_what_they_are() {
        let bytes = Message::MapRequest { key: 0x0102_0304 }.to_bytes();
        assert_eq!(&bytes[..12], b"LGTS\x04\x00\x04\x00\x04\x03\x02\x01");
        assert!(bytes[12..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn another_version_is_named_and_anything_else_is_malformed() {
        let good = Message::Wake.to_bytes();
        let mut other = good;
        other[4] = 1;
        assert_eq!(Message::parse(&other), Err(WireError::Version(1)));
        assert_eq!(Message::parse(&other[..7]), Err(WireError::Version(1)));
        assert_eq!(Message::parse(&good[..95]), Err(WireError::Malformed));
        assert_eq!(Message::parse(b"LGT"), Err(WireError::Malformed));
        let mut long = good;
        long[24] = PRIVATE_DATA_MAX as u8 + 1;
        assert_eq!(Message::parse(&long), Err(WireError::Malformed));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random::from_seed(11);
        for _ in 0..20_000 {
            let mut bytes = Message::Wake.to_bytes();
            for _ in 0..4 {
                bytes[random.below(32) as usize] = random.next_u64() as u8;
            }
            let _ = Message::parse(&bytes[..random.below(97) as usize]);
        }
    }
}
