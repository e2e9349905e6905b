//! The ACK extended transport header, 4 bytes (IB spec 9.3.5, table 45): a syndrome and the number
//! of messages completed.

use super::packet::PacketError;
use legato_verbs::RnrTimer;

/// What a responder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    pub syndrome: Syndrome,
    /// Messages that it has completed: 24 bits, counted on a circle (IB spec 9.7.7.1).
    pub messages: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to the packet's number have arrived. The five bits are the code of the receives that
    /// are posted; 31 says nothing about them.
    Acknowledged {
        credits: u8,
    },
    /// No receive is posted: once more after so long.
    ReceiverNotReady(RnrTimer),
    Refused(NakCode),
}

/// Why a request was not executed (IB spec table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// Packets before this one are missing.
    SequenceError = 0,
    InvalidRequest = 1,
    RemoteAccess = 2,
    RemoteOperation = 3,
}

/// Says nothing about posted receives.
const NO_CREDITS: u8 = 31;

impl Acknowledgement {
    pub const fn new(messages: u32) -> Self {
        Self {
            syndrome: Syndrome::Acknowledged {
                credits: NO_CREDITS,
            },
            messages: messages & 0x00FF_FFFF,
        }
    }

    pub(super) const fn to_word(self) -> u32 {
        let syndrome = match self.syndrome {
            Syndrome::Acknowledged { credits } => credits & 31,
            Syndrome::ReceiverNotReady(timer) => 0x20 | timer.code(),
            Syndrome::Refused(code) => 0x60 | code as u8,
        };
        (syndrome as u32) << 24 | self.messages & 0x00FF_FFFF
    }

    pub(super) fn from_word(word: u32) -> Result<Self, PacketError> {
        let byte = (word >> 24) as u8;
        let syndrome = match (byte >> 5, byte & 31) {
            (0, credits) => Syndrome::Acknowledged { credits },
            (1, code) => Syndrome::ReceiverNotReady(RnrTimer::new(code)),
            (3, 0) => Syndrome::Refused(NakCode::SequenceError),
            (3, 1) => Syndrome::Refused(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Refused(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Refused(NakCode::RemoteOperation),
            _ => return Err(PacketError::UnknownSyndrome(byte)),
        };
        Ok(Self {
            syndrome,
            messages: word & 0x00FF_FFFF,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_survive_a_round_trip() {
        for byte in 0..=u8::MAX {
            let word = u32::from(byte) << 24 | 0x12_3456;
            let known = matches!((byte >> 5, byte & 31), (0 | 1, _) | (3, 0..=3));
            match Acknowledgement::from_word(word) {
                Ok(value) => assert!(known && value.to_word() == word, "{byte:#x}"),
                Err(error) => {
                    assert!(!known);
                    assert_eq!(error, PacketError::UnknownSyndrome(byte));
                }
            }
        }
        assert_eq!(Acknowledgement::new(1).to_word(), 0x1F00_0001);
    }
}
