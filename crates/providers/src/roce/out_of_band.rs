//! Connections without connection management: two sides tell each other the number of their queue
//! pair, their first packet's number and their GID by some other means, mostly a TCP connection, and
//! each brings its queue pair to ReadyToSend with what it was told.
//!
//! It is for peers that have no connection management, or where its packets (QP1) do not pass. What is
//! told has the form of `ibv_rc_pingpong` and most programs after it (rdma-core,
//! `libibverbs/examples/rc_pingpong.c`). Here is no socket: how the 52 bytes travel is the caller's.
//! A NIC is named by its GID alone, so both are at port 4791, as RoCEv2's are.
//!
//! Nobody says goodbye: the end of such a connection is found when an answer is missing, and the caller
//! tells it, or the reason for it, as it told the beginning.

use legato_verbs::{
    AddressVector, PacketSequenceNumber, PathMtu, Provider, QueuePair, QueuePairAttributes,
    QueuePairNumber, QueuePairState, RetryCount, RnrTimer, VerbsError,
};
use zerocopy::big_endian::U128;

/// Bytes of an introduction: `LID:QPN:PSN:GID` in hexadecimal digits, and a zero.
pub const INTRODUCTION_LENGTH: usize = 52;
/// Digits of each part.
const DIGITS: [usize; 4] = [4, 6, 6, 32];

/// What a side tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    pub queue_pair: QueuePairNumber,
    /// The number of its first packet.
    pub sequence: PacketSequenceNumber,
    /// Of its port: for RoCEv2 the IP address.
    pub gid: [u8; 16],
}

/// The bytes are no introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not LID:QPN:PSN:GID in hexadecimal digits with a zero behind")]
pub struct NoIntroduction;

/// What both sides have to agree on beforehand, because the introduction does not tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub path_mtu: PathMtu,
    /// READs and atomics that can be under way at a time, in each direction.
    pub reads: u8,
    /// 4.096 us * 2^timeout without an answer and packets are sent again.
    pub timeout: u8,
    pub retry_count: RetryCount,
    /// As for `retry_count`, where the peer has no receive; 7: without end.
    pub rnr_retry: u8,
    pub rnr_timer: RnrTimer,
}

impl Introduction {
    /// What a provider has to tell of its queue pair, whose first packet will have number `sequence`.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn of<P: Provider + ?Sized>(
        provider: &P,
        queue_pair: QueuePair,
        sequence: PacketSequenceNumber,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            queue_pair: provider.queue_pair_number(queue_pair)?,
            sequence,
            gid: provider.port_address().destination,
        })
    }

    pub fn to_bytes(&self) -> [u8; INTRODUCTION_LENGTH] {
        let mut bytes = [0; INTRODUCTION_LENGTH];
        let [queue_pair, sequence] = [self.queue_pair.get(), self.sequence.get()];
        let values = [
            // RoCE has no LID (IB spec annex A17.4.1).
            0,
            u128::from(queue_pair),
            u128::from(sequence),
            U128::from_bytes(self.gid).get(),
        ];
        let digits = values.iter().zip(DIGITS).flat_map(|(value, count)| {
            let shifts = (0..count).rev().map(|place| 4 * place);
            let digits = shifts.map(move |shift| digit((value >> shift) as u8 & 0xF));
            // A colon after each, and behind the last one the zero.
            digits.chain([b':'])
        });
        for (byte, digit) in bytes.iter_mut().zip(digits) {
            *byte = digit;
        }
        bytes[INTRODUCTION_LENGTH - 1] = 0;
        bytes
    }

    /// What a peer has told.
    ///
    /// # Errors
    /// [`NoIntroduction`] for what no program writes so.
    pub fn from_bytes(bytes: &[u8; INTRODUCTION_LENGTH]) -> Result<Self, NoIntroduction> {
        let mut values = [0; 4];
        let mut rest = bytes.as_slice();
        for (index, (value, count)) in values.iter_mut().zip(DIGITS).enumerate() {
            let (digits, behind) = rest.split_at_checked(count).ok_or(NoIntroduction)?;
            for &byte in digits {
                let digit = (byte as char).to_digit(16).ok_or(NoIntroduction)?;
                *value = *value << 4 | u128::from(digit);
            }
            let (&end, behind) = behind.split_first().ok_or(NoIntroduction)?;
            if end != if index == 3 { 0 } else { b':' } {
                return Err(NoIntroduction);
            }
            rest = behind;
        }
        let [_, queue_pair, sequence, gid] = values;
        Ok(Self {
            // Six digits are 24 bits.
            queue_pair: QueuePairNumber::new(queue_pair as u32),
            sequence: PacketSequenceNumber::new(sequence as u32),
            gid: U128::new(gid).to_bytes(),
        })
    }
}

const fn digit(value: u8) -> u8 {
    match value {
        0..10 => b'0' + value,
        _ => b'a' + value - 10,
    }
}

/// Brings a queue pair in Init to ReadyToSend: the peer may send from now on, and so may this side.
/// `sequence` is what this side told of itself. A side that is told that the other is
/// ready may post; one that is told nothing relies on the repetition of its first packets.
///
/// # Errors
/// [`VerbsError::InvalidState`] for a queue pair that is not in Init, [`VerbsError::Attributes`] for terms
/// that the NIC cannot keep, [`VerbsError::UnknownHandle`].
pub fn connect<P: Provider + ?Sized>(
    provider: &mut P,
    queue_pair: QueuePair,
    sequence: PacketSequenceNumber,
    peer: &Introduction,
    terms: &Terms,
) -> Result<(), VerbsError> {
    let to_receive = QueuePairAttributes {
        address_vector: Some(AddressVector {
            destination: peer.gid,
        }),
        path_mtu: Some(terms.path_mtu),
        destination: Some(peer.queue_pair),
        receive_sequence: Some(peer.sequence),
        responder_resources: Some(terms.reads),
        rnr_timer: Some(terms.rnr_timer),
        ..QueuePairAttributes::NONE
    };
    let to_send = QueuePairAttributes {
        timeout: Some(terms.timeout),
        retry_count: Some(terms.retry_count),
        rnr_retry: Some(terms.rnr_retry),
        send_sequence: Some(sequence),
        initiator_depth: Some(terms.reads),
        ..QueuePairAttributes::NONE
    };
    provider.modify_queue_pair(queue_pair, QueuePairState::ReadyToReceive, &to_receive)?;
    provider.modify_queue_pair(queue_pair, QueuePairState::ReadyToSend, &to_send)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Introduction = Introduction {
        queue_pair: QueuePairNumber::new(0x11),
        sequence: PacketSequenceNumber::new(0x00AB_CDEF),
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 0, 2],
    };
    const LINE: &[u8; INTRODUCTION_LENGTH] =
        b"0000:000011:abcdef:00000000000000000000ffff0a4d0002\0";

    #[test]
    fn an_introduction_is_what_ibv_rc_pingpong_writes() {
        assert_eq!(&GUEST.to_bytes(), LINE);
        assert_eq!(Introduction::from_bytes(LINE), Ok(GUEST));
        let largest = Introduction {
            queue_pair: QueuePairNumber::new(u32::MAX),
            sequence: PacketSequenceNumber::new(u32::MAX),
            gid: [0xFF; 16],
        };
        assert_eq!(Introduction::from_bytes(&largest.to_bytes()), Ok(largest));
    }

    /// A LID, which InfiniBand has, says nothing here. Digits may be capital letters.
    #[test]
    fn a_local_identifier_is_passed_over() {
        let mut line = *LINE;
        line[..4].copy_from_slice(b"12Cd");
        assert_eq!(Introduction::from_bytes(&line), Ok(GUEST));
    }

    #[test]
    fn what_is_no_introduction_is_refused_wherever_it_is_wrong() {
        for place in 0..INTRODUCTION_LENGTH {
            for wrong in [b'g', b' ', b'+', b'-', 0x80, 0xFF] {
                let mut line = *LINE;
                line[place] = wrong;
                assert_eq!(Introduction::from_bytes(&line), Err(NoIntroduction));
            }
        }
        let mut line = *LINE;
        line[INTRODUCTION_LENGTH - 1] = b'0';
        assert_eq!(Introduction::from_bytes(&line), Err(NoIntroduction));
        line = *LINE;
        line[0] = 0;
        assert_eq!(Introduction::from_bytes(&line), Err(NoIntroduction));
    }
}
