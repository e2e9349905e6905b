//! How two fabrics that share a secret connect: what is in the private data of connection management,
//! and the first message of each side on the connection. What is sealed here is sealed by a
//! [`crate::secret::Channel`].

use super::message::{HELLO_SIZE, Hello, MessageError};
use crate::secret::{MAC_LENGTH, OPENING_LENGTH, RUN_ID_LENGTH, RunId};
use alloc::vec::Vec;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the handshake is for: whoever speaks another version of it has other keys.
pub const PROOF_LABEL: &[u8] = b"legato fabric proof 1";
/// Bytes of the user's own private data, which travels sealed.
pub const PROOF_DATA_MAX: usize = 16;
/// Bytes of a confirmation.
pub const CONFIRMATION_SIZE: usize = size_of::<RawConfirmation>();
/// Bytes of what is sealed in a confirmation.
const SEALED_SIZE: usize = size_of::<RawFacts>();

const MARK_ASKING: [u8; 2] = *b"L?";
const MARK_ANSWER: [u8; 2] = *b"L!";
const MAGIC_REFUSAL: u32 = u32::from_le_bytes(*b"LGno");
const MAGIC_CONFIRMATION: u32 = u32::from_le_bytes(*b"LGcf");
const VERSION: u16 = 1;

/// The private data of a connect: all 56 bytes that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    pub run: RunId,
    /// The first message of the handshake.
    pub opening: [u8; OPENING_LENGTH],
}

/// The private data of an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The second message of the handshake.
    pub opening: [u8; OPENING_LENGTH],
}

/// The private data of a reject: what the one who was asked says, whom nobody can check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Whoever connects must prove that it knows the secret.
    Required,
    /// The proof is of another secret.
    Wrong,
    /// There is no secret on this side.
    NotExpected,
    /// Too many have not proved themselves yet.
    Busy,
    /// The same request was answered before.
    Repeated,
}

/// Which queue pairs a connection joins, as one side sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Numbers of the own queue pair and of the peer's.
    pub own: u32,
    pub peer: u32,
    /// Packet sequence numbers with which each direction begins.
    pub receive_sequence: u32,
    pub send_sequence: u32,
}

/// What each side says when it has the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub hello: Hello,
    pub binding: Binding,
    /// The user's private data.
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFacts {
    hello: [u8; HELLO_SIZE],
    own: U32,
    peer: U32,
    receive_sequence: U32,
    send_sequence: U32,
    data_length: u8,
    reserved: [u8; 7],
    data: [u8; PROOF_DATA_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawConfirmation {
    magic: U32,
    version: U16,
    reserved: U16,
    sealed: [u8; SEALED_SIZE + MAC_LENGTH],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAsking {
    mark: [u8; 2],
    run: [u8; RUN_ID_LENGTH],
    opening: [u8; OPENING_LENGTH],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnswer {
    mark: [u8; 2],
    opening: [u8; OPENING_LENGTH],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRefusal {
    magic: U32,
    version: U16,
    reason: U16,
}

pub const ASKING_SIZE: usize = size_of::<RawAsking>();
pub const ANSWER_SIZE: usize = size_of::<RawAnswer>();
pub const REFUSAL_SIZE: usize = size_of::<RawRefusal>();
/// Bytes of what is sealed.
pub const FACTS_SIZE: usize = SEALED_SIZE;
/// Bytes of what is sealed, with its seal.
pub const SEALED_FACTS_SIZE: usize = SEALED_SIZE + MAC_LENGTH;
const _: () = assert!(ASKING_SIZE == 56 && SEALED_SIZE == 80);

impl Asking {
    pub fn to_bytes(self) -> [u8; ASKING_SIZE] {
        let raw = RawAsking {
            mark: MARK_ASKING,
            run: self.run.0,
            opening: self.opening,
        };
        zerocopy::transmute!(raw)
    }

    /// None if it is something else. Connection management may add zeros.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawAsking::read_from_prefix(bytes).ok()?;
        (raw.mark == MARK_ASKING).then_some(Self {
            run: RunId(raw.run),
            opening: raw.opening,
        })
    }
}

impl Answer {
    pub fn to_bytes(self) -> [u8; ANSWER_SIZE] {
        let raw = RawAnswer {
            mark: MARK_ANSWER,
            opening: self.opening,
        };
        zerocopy::transmute!(raw)
    }

    /// None if it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawAnswer::read_from_prefix(bytes).ok()?;
        let opening = raw.opening;
        (raw.mark == MARK_ANSWER).then_some(Self { opening })
    }
}

impl Refusal {
    pub fn to_bytes(self) -> [u8; REFUSAL_SIZE] {
        let raw = RawRefusal {
            magic: MAGIC_REFUSAL.into(),
            version: VERSION.into(),
            reason: match self {
                Self::Required => 1,
                Self::Wrong => 2,
                Self::NotExpected => 3,
                Self::Busy => 4,
                Self::Repeated => 5,
            }
            .into(),
        };
        zerocopy::transmute!(raw)
    }

    /// None if it says nothing that this version knows.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawRefusal::read_from_prefix(bytes).ok()?;
        if raw.magic.get() != MAGIC_REFUSAL || raw.version.get() != VERSION {
            return None;
        }
        match raw.reason.get() {
            1 => Some(Self::Required),
            2 => Some(Self::Wrong),
            3 => Some(Self::NotExpected),
            4 => Some(Self::Busy),
            5 => Some(Self::Repeated),
            _ => None,
        }
    }
}

impl Binding {
    /// The same connection, seen from the other side.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        Self {
            own: self.peer,
            peer: self.own,
            receive_sequence: self.send_sequence,
            send_sequence: self.receive_sequence,
        }
    }
}

impl Facts {
    /// What is to be sealed. Data beyond [`PROOF_DATA_MAX`] is cut off.
    pub fn to_bytes(&self) -> [u8; FACTS_SIZE] {
        let length = self.data.len().min(PROOF_DATA_MAX);
        let mut raw = RawFacts {
            hello: self.hello.to_bytes(),
            own: self.binding.own.into(),
            peer: self.binding.peer.into(),
            receive_sequence: self.binding.receive_sequence.into(),
            send_sequence: self.binding.send_sequence.into(),
            data_length: length as u8,
            reserved: [0; 7],
            data: [0; PROOF_DATA_MAX],
        };
        raw.data[..length].copy_from_slice(&self.data[..length]);
        zerocopy::transmute!(raw)
    }

    /// # Errors
    /// The first thing that is wrong with what was sealed: the peer is of another version.
    pub fn parse(bytes: &[u8; FACTS_SIZE]) -> Result<Self, MessageError> {
        let raw: RawFacts = zerocopy::transmute!(*bytes);
        let (hello, _) = Hello::parse(&raw.hello)?;
        let (data, rest) = raw
            .data
            .split_at_checked(usize::from(raw.data_length))
            .ok_or(MessageError::Reserved)?;
        if raw.reserved != [0; 7] || rest.iter().any(|&byte| byte != 0) {
            return Err(MessageError::Reserved);
        }
        Ok(Self {
            hello,
            binding: Binding {
                own: raw.own.get(),
                peer: raw.peer.get(),
                receive_sequence: raw.receive_sequence.get(),
                send_sequence: raw.send_sequence.get(),
            },
            data: data.to_vec(),
        })
    }
}

/// A confirmation from what was sealed.
pub fn confirmation(sealed: [u8; SEALED_FACTS_SIZE]) -> [u8; CONFIRMATION_SIZE] {
    let raw = RawConfirmation {
        magic: MAGIC_CONFIRMATION.into(),
        version: VERSION.into(),
        reserved: 0.into(),
        sealed,
    };
    zerocopy::transmute!(raw)
}

/// What is sealed in a confirmation; None if it is something else.
pub fn sealed_in(bytes: &[u8]) -> Option<[u8; SEALED_FACTS_SIZE]> {
    let raw = RawConfirmation::read_from_bytes(bytes).ok()?;
    let is_one = raw.magic.get() == MAGIC_CONFIRMATION
        && raw.version.get() == VERSION
        && raw.reserved.get() == 0;
    is_one.then_some(raw.sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn facts() -> Facts {
        Facts {
            hello: Hello {
                credits: 16,
                message_length_max: 1024,
                incarnation: 3,
                epoch: 7,
                oldest_epoch: 5,
            },
            binding: Binding {
                own: 0x11,
                peer: 0x22,
                receive_sequence: 0x33,
                send_sequence: 0x44,
            },
            data: vec![1, 2, 3],
        }
    }

    #[test]
    fn what_connections_with_a_secret_say_survives_a_round_trip() {
        let asking = Asking {
            run: RunId([9; 6]),
            opening: [7; OPENING_LENGTH],
        };
        assert_eq!(Asking::parse(&asking.to_bytes()), Some(asking));
        assert_eq!(Asking::parse(&asking.to_bytes()[..55]), None);
        let answer = Answer {
            opening: [8; OPENING_LENGTH],
        };
        let mut padded = answer.to_bytes().to_vec();
        padded.extend([0; 6]);
        assert_eq!(Answer::parse(&padded), Some(answer));
        assert_eq!(Asking::parse(&padded), None);
        for refusal in [
            Refusal::Required,
            Refusal::Wrong,
            Refusal::NotExpected,
            Refusal::Busy,
            Refusal::Repeated,
        ] {
            assert_eq!(Refusal::parse(&refusal.to_bytes()), Some(refusal));
        }
        assert_eq!(Facts::parse(&facts().to_bytes()), Ok(facts()));
        let sealed = [5; SEALED_FACTS_SIZE];
        assert_eq!(sealed_in(&confirmation(sealed)), Some(sealed));
    }

    #[test]
    fn a_binding_is_its_mirror_images_mirror_image() {
        let binding = facts().binding;
        assert_ne!(binding.mirrored(), binding);
        assert_eq!(binding.mirrored().mirrored(), binding);
    }

    #[test]
    fn what_is_none_of_it_is_refused() {
        for bytes in [&[0; 56][..], &[0xFF; 56], b"", b"L?", b"LGno"] {
            assert_eq!(Asking::parse(bytes), None);
            assert_eq!(Answer::parse(bytes), None);
            assert_eq!(Refusal::parse(bytes), None);
            assert_eq!(sealed_in(bytes), None);
        }
        let mut bytes = Refusal::Busy.to_bytes();
        bytes[6] = 9;
        assert_eq!(Refusal::parse(&bytes), None);
        for place in 0..8 {
            let mut bytes = confirmation([1; SEALED_FACTS_SIZE]);
            bytes[place] ^= 0x10;
            assert_eq!(sealed_in(&bytes), None, "byte {place}");
        }
        // The length of the data, what is reserved, and data behind its end.
        for (place, value) in [(56, 17), (57, 1), (63, 1), (67, 1)] {
            let mut bytes = facts().to_bytes();
            bytes[place] = value;
            assert_eq!(Facts::parse(&bytes), Err(MessageError::Reserved));
        }
    }
}
