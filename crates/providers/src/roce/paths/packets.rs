//! Packets that are between two providers of this kind, and that no queue pair sees.
//!
//! Their opcodes are of those that are each manufacturer's own (IB spec table 38), and they go to queue pair 0,
//! which RoCE does not have: any other NIC drops them.

use super::LONGEST;
use legato_transport::wire::icrc::ICRC_LENGTH;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Numbers of tries and of packets are below this: 24 bits, where others have their sequence numbers.
pub(super) const NUMBERS: u32 = 1 << 24;

/// Opcodes, the first of which no standard names.
const OWN: u8 = 0xC0;
const TRY: u8 = OWN;
const ANSWER: u8 = OWN + 1;
const PART: u8 = OWN + 2;
/// As in all packets: the primary path is in use.
const MIGRATED: u8 = 0x40;
const DEFAULT_PARTITION: u16 = 0xFFFF;

/// A packet of the paths, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own<'a> {
    /// Is as long as it is to find out whether so much gets through.
    Try {
        number: u32,
        /// The receiver's packets do not get through, perhaps for their length.
        misses: bool,
    },
    /// A try of so many bytes has come.
    Answer { number: u32, length: usize },
    /// A part of a packet of `total` bytes, its invariant CRC included.
    Part {
        packet: u32,
        total: usize,
        start: usize,
        bytes: &'a [u8],
    },
}

/// A base transport header, and two numbers.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    opcode: u8,
    flags: u8,
    partition: U16,
    destination: U32,
    number: U32,
    first: U16,
    second: U16,
}

/// Bytes before those of a part.
pub(super) const HEAD: usize = size_of::<Head>();

/// Is it one, if perhaps a damaged one?
pub(in crate::roce) fn is_own(packet: &[u8]) -> bool {
    packet.first().is_some_and(|&opcode| opcode >= OWN)
}

impl<'a> Own<'a> {
    /// None if it says nothing that can be.
    pub(super) fn parse(packet: &'a [u8]) -> Option<Self> {
        let (head, bytes) = Head::read_from_prefix(packet).ok()?;
        let number = head.number.get();
        let [first, second] = [head.first, head.second].map(|it| usize::from(it.get()));
        if head.destination.get() != 0 || number >= NUMBERS {
            return None;
        }
        match head.opcode {
            TRY => Some(Self::Try {
                number,
                misses: first != 0,
            }),
            ANSWER => Some(Self::Answer {
                number,
                length: first,
            }),
            PART => {
                let end = second + bytes.len();
                let is_one = !bytes.is_empty() && end <= first && first <= LONGEST + ICRC_LENGTH;
                is_one.then_some(Self::Part {
                    packet: number,
                    total: first,
                    start: second,
                    bytes,
                })
            }
            _ => None,
        }
    }

    /// Writes it to the beginning of `into`, a try with the bytes that make it `length` long. Returns how many
    /// bytes it has.
    pub(super) fn write(&self, into: &mut [u8], length: usize) -> usize {
        let (opcode, number, first, second, bytes): (_, _, usize, usize, &[u8]) = match *self {
            Self::Try { number, misses } => (TRY, number, misses.into(), 0, &[]),
            Self::Answer { number, length } => (ANSWER, number, length, 0, &[]),
            Self::Part {
                packet,
                total,
                start,
                bytes,
            } => (PART, packet, total, start, bytes),
        };
        let head = Head {
            opcode,
            flags: MIGRATED,
            partition: DEFAULT_PARTITION.into(),
            destination: 0.into(),
            number: number.into(),
            first: (first as u16).into(),
            second: (second as u16).into(),
        };
        let end = (HEAD + bytes.len()).max(length);
        into[..HEAD].copy_from_slice(head.as_bytes());
        into[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
        into[HEAD + bytes.len()..end].fill(0);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = [7; 100];
        for (own, length) in [
            (
                Own::Try {
                    number: 5,
                    misses: true,
                },
                1196,
            ),
            (
                Own::Answer {
                    number: NUMBERS - 1,
                    length: 1196,
                },
                0,
            ),
            (
                Own::Part {
                    packet: 9,
                    total: 4140,
                    start: 4040,
                    bytes: &bytes,
                },
                0,
            ),
        ] {
            let mut packet = [0xFF; 2000];
            let end = own.write(&mut packet, length);
            assert!(end >= length && is_own(&packet));
            assert_eq!(Own::parse(&packet[..end]), Some(own));
        }
    }

    #[test]
    fn what_cannot_be_says_nothing() {
        let mut packet = [0; 200];
        let part = |total, start| Own::Part {
            packet: 1,
            total,
            start,
            bytes: &[1; 64],
        };
        for (total, start) in [
            (63, 0),
            (100, 37),
            (LONGEST + ICRC_LENGTH + 1, 0),
            (usize::from(u16::MAX), 8),
        ] {
            let end = part(total, start).write(&mut packet, 0);
            assert_eq!(Own::parse(&packet[..end]), None, "{total} {start}");
        }
        let end = part(64, 0).write(&mut packet, 0);
        for length in 0..=HEAD {
            assert_eq!(Own::parse(&packet[..length]), None, "{length}");
        }
        for (at, value) in [(0, 0xFF), (7, 1), (8, 1)] {
            let mut wrong = packet;
            wrong[at] = value;
            assert_eq!(Own::parse(&wrong[..end]), None, "{at}");
        }
    }
}
