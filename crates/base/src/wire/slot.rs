//! One page slot in a memory node's extent: a header and the page, written by one RDMA WRITE.
//!
//! The node never parses it on the data path; it is there for the process that reads the slot
//! back (is this the page, and the version, that my record names?) and for recovery.

use crate::{ClientId, PAGE_SIZE, PageChecksum, PageNumber};
use zerocopy::byteorder::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const SLOT_HEADER_SIZE: usize = 64;
/// Bytes from one slot to the next.
pub const SLOT_STRIDE: usize = SLOT_HEADER_SIZE + PAGE_SIZE;
const MAGIC: u32 = u32::from_le_bytes(*b"LGsl");

/// Whether a slot, from its header on, was ever written.
pub fn is_written(slot: &[u8; SLOT_STRIDE]) -> bool {
    slot.starts_with(&MAGIC.to_le_bytes())
}

/// The header as bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SlotHeader {
    magic: U32,
    /// Which copy of the page this is: 0 for the first. The second comes with replication.
    copy: U32,
    client: U64,
    page: U64,
    version: U64,
    /// Epoch of the owner, by which nodes will fence a dead one's writes; 0 until then.
    epoch: U64,
    checksum: U128,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<SlotHeader>() == SLOT_HEADER_SIZE);

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    pub client: ClientId,
    /// Where the page was when it was written. For people and for recovery: `mremap` and `fork`
    /// give a page other addresses without writing it again, so it is not compared.
    pub page: PageNumber,
    /// Counts the client's writes, over all its pages: no two writes have the same.
    pub version: u64,
    pub checksum: PageChecksum,
}

/// Why a fetched slot is not the page that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotMismatch {
    #[error("the slot holds no page")]
    NotASlot,
    #[error("the slot belongs to another client")]
    WrongOwner,
    #[error("the slot holds version {found}, the newest is {expected}")]
    WrongVersion { expected: u64, found: u64 },
    #[error("the slot's content does not match its checksum")]
    WrongChecksum,
}

impl SlotRecord {
    pub fn to_header(self) -> SlotHeader {
        SlotHeader {
            magic: MAGIC.into(),
            copy: 0.into(),
            client: self.client.0.into(),
            page: self.page.0.into(),
            version: self.version.into(),
            epoch: 0.into(),
            checksum: self.checksum.0.into(),
            reserved: [0; 8],
        }
    }

    /// Checks a fetched header and page against this record: the process's own word (P-21).
    ///
    /// # Errors
    /// The first thing that does not match.
    pub fn verify(
        &self,
        header: &[u8; SLOT_HEADER_SIZE],
        content: &[u8; PAGE_SIZE],
    ) -> Result<(), SlotMismatch> {
        // Every 64-byte pattern is a SlotHeader (FromBytes) and the size is equal.
        let Ok(header) = SlotHeader::read_from_bytes(header) else {
            return Err(SlotMismatch::NotASlot);
        };
        if header.magic.get() != MAGIC {
            return Err(SlotMismatch::NotASlot);
        }
        if header.client.get() != self.client.0 {
            return Err(SlotMismatch::WrongOwner);
        }
        let found = header.version.get();
        if found != self.version {
            return Err(SlotMismatch::WrongVersion {
                expected: self.version,
                found,
            });
        }
        if header.checksum.get() != self.checksum.0 || PageChecksum::of(content) != self.checksum {
            return Err(SlotMismatch::WrongChecksum);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // P-21
    #[test]
    fn every_kind_of_wrong_slot_is_told_apart() {
        let page = [7u8; PAGE_SIZE];
        let record = SlotRecord {
            client: ClientId(9),
            page: PageNumber(0x1234),
            version: 3,
            checksum: PageChecksum::of(&page),
        };
        let bytes = |record: SlotRecord| -> [u8; SLOT_HEADER_SIZE] {
            record.to_header().as_bytes().try_into().unwrap()
        };
        assert_eq!(record.verify(&bytes(record), &page), Ok(()));
        assert_eq!(
            record.verify(&[0; SLOT_HEADER_SIZE], &page),
            Err(SlotMismatch::NotASlot)
        );
        let other = SlotRecord {
            client: ClientId(8),
            ..record
        };
        assert_eq!(
            record.verify(&bytes(other), &page),
            Err(SlotMismatch::WrongOwner)
        );
        let older = SlotRecord {
            version: 2,
            ..record
        };
        assert_eq!(
            record.verify(&bytes(older), &page),
            Err(SlotMismatch::WrongVersion {
                expected: 3,
                found: 2
            })
        );
        let mut torn = page;
        torn[4095] ^= 1;
        assert_eq!(
            record.verify(&bytes(record), &torn),
            Err(SlotMismatch::WrongChecksum)
        );
    }
}
