//! What stands in front of each message in a ring, and the word by which a side says what holds
//! for its queue pair. Both are the peer's to write, so both are parsed.

use super::ring::Malformed;
use super::segment::MESSAGE_LENGTH_MAX;
use legato_verbs::AccessFlags;

/// Bytes of an [`Envelope`] in a ring.
pub(crate) const ENVELOPE_BYTES: u64 = 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendWithImmediate(u32),
    /// The sender has written into a segment of the reader. No bytes follow.
    WrittenWithImmediate(u32),
}

/// A message's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// Bytes that follow, or that were written.
    pub(crate) length: u32,
    /// Wakes a receiver who waits for solicited completions only.
    pub(crate) solicited: bool,
}

const SOLICITED: u64 = 1 << 8;

impl Envelope {
    /// Bytes that follow in the ring.
    pub(crate) const fn payload(&self) -> u32 {
        match self.kind {
            Kind::Send | Kind::SendWithImmediate(_) => self.length,
            Kind::WrittenWithImmediate(_) => 0,
        }
    }

    /// As it stands in the ring. `number` counts the connection's messages.
    pub(crate) fn to_bytes(self, number: u64) -> [u8; ENVELOPE_BYTES as usize] {
        let (code, immediate) = match self.kind {
            Kind::Send => (0, 0),
            Kind::SendWithImmediate(immediate) => (1, immediate),
            Kind::WrittenWithImmediate(immediate) => (2, immediate),
        };
        let solicited = if self.solicited { SOLICITED } else { 0 };
        let first = u64::from(self.length) | (number & 0xFFFF_FFFF) << 32;
        let second = code | solicited | u64::from(immediate) << 32;
        let mut bytes = [0; ENVELOPE_BYTES as usize];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(
        bytes: [u8; ENVELOPE_BYTES as usize],
        number: u64,
    ) -> Result<Self, Malformed> {
        let bits = u128::from_le_bytes(bytes);
        let (first, second) = (bits as u64, (bits >> 64) as u64);
        let immediate = (second >> 32) as u32;
        let kind = match (second & 0xFF, immediate) {
            (0, 0) => Kind::Send,
            (1, immediate) => Kind::SendWithImmediate(immediate),
            (2, immediate) => Kind::WrittenWithImmediate(immediate),
            _ => return Err(Malformed),
        };
        let length = first as u32;
        let known = second & 0xFFFF_FE00 == 0;
        if !known || first >> 32 != number & 0xFFFF_FFFF || length > MESSAGE_LENGTH_MAX {
            return Err(Malformed);
        }
        Ok(Self {
            kind,
            length,
            solicited: second & SOLICITED != 0,
        })
    }
}

/// What a queue pair's attributes are to its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// What the peer's requests may do at all.
    pub(crate) access: AccessFlags,
    /// How often its own messages are tried at a peer without a receive; 7: without end.
    pub(crate) rnr_retry: u8,
}

/// Five bits of access, and three of the retry count in the next byte.
const PARAMETER_BITS: u32 = 0x071F;

impl Parameters {
    pub(crate) fn to_word(self) -> u32 {
        u32::from(self.access.bits()) | u32::from(self.rnr_retry) << 8
    }

    #[inline(always)]
    pub(crate) fn parse(word: u32) -> Result<Self, Malformed> {
        if word & !PARAMETER_BITS != 0 {
            return Err(Malformed);
        }
        Ok(Self {
            access: AccessFlags::from_bits(word as u8),
            rnr_retry: (word >> 8) as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_survive_a_round_trip() {
        let kinds = [
            Kind::Send,
            Kind::SendWithImmediate(u32::MAX),
            Kind::WrittenWithImmediate(0),
        ];
        for kind in kinds {
            for (length, solicited) in [(0, true), (MESSAGE_LENGTH_MAX, false)] {
                let envelope = Envelope {
                    kind,
                    length,
                    solicited,
                };
                let bytes = envelope.to_bytes(7 << 32 | 5);
                assert_eq!(Envelope::parse(bytes, 5), Ok(envelope));
                assert_eq!(Envelope::parse(bytes, 6), Err(Malformed));
            }
        }
    }

    #[test]
    fn what_is_no_envelope_is_malformed() {
        let good = Envelope {
            kind: Kind::Send,
            length: 8,
            solicited: true,
        };
        // Length, number, kind, flags, reserved, and a number that a plain SEND does not have.
        for (place, value) in [(2, 2), (4, 1), (8, 3), (9, 2), (10, 1), (11, 1), (12, 1)] {
            let mut bytes = good.to_bytes(0);
            assert!(Envelope::parse(bytes, 0).is_ok());
            bytes[place] = value;
            assert_eq!(Envelope::parse(bytes, 0), Err(Malformed), "byte {place}");
        }
    }

    #[test]
    fn parameters_have_no_unknown_bits() {
        let parameters = Parameters {
            access: AccessFlags::REMOTE_ATOMIC,
            rnr_retry: 7,
        };
        assert_eq!(Parameters::parse(parameters.to_word()), Ok(parameters));
        for word in [0x80, 8 << 8, 1 << 16, u32::MAX] {
            assert_eq!(Parameters::parse(word), Err(Malformed));
        }
    }
}
