//! The memory of regions.

use crate::memory::{Mapping, copy};
use legato_verbs::VerbsError;

/// Bytes that packets are read from and written into.
#[derive(Debug)]
pub(super) enum Memory {
    Own(Mapping),
    /// Somebody else's, who has promised that it stays (`ForeignMemory`).
    Foreign {
        address: *mut u8,
        length: u64,
    },
}

impl Memory {
    pub(super) fn allocate(length: u64) -> Result<Self, VerbsError> {
        let bytes = usize::try_from(length).map_err(|_| TOO_LONG)?;
        // A region may have no bytes.
        Mapping::private(bytes.max(1)).map(Self::Own)
    }

    fn at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        match self {
            Self::Own(mapping) => mapping.at(offset, length as u64),
            Self::Foreign {
                address,
                length: all,
            } => {
                let end = offset.checked_add(length as u64)?;
                (end <= *all).then(|| address.wrapping_add(offset as usize))
            }
        }
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, into.len()) else {
            return false;
        };
        // SAFETY: the place is inside memory that stays as long as the region, nobody holds a
        // reference to it, and `into` is a buffer of the caller's.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
        true
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()) else {
            return false;
        };
        // SAFETY: as above; the adapter has checked that the region may be written to.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        true
    }
}

const TOO_LONG: VerbsError = VerbsError::LimitExceeded {
    what: "length of a region",
    asked: u64::MAX,
    limit: usize::MAX as u64,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_touched() {
        let mut bytes = [1u8; 16];
        let address = bytes.as_mut_ptr();
        let foreign = Memory::Foreign { address, length: 8 };
        let own = Memory::allocate(8).unwrap();
        for memory in [&foreign, &own] {
            assert!(memory.write(4, &[7; 4]) && !memory.write(5, &[8; 4]));
            assert!(!memory.write(u64::MAX, &[8; 4]));
            let mut read = [0; 4];
            assert!(memory.read(4, &mut read) && !memory.read(6, &mut read));
            assert_eq!(read, [7; 4]);
        }
        assert_eq!(bytes[8..], [1; 8]);
    }

    /// Pages of this process that are in memory.
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident = statm.split(' ').nth(1).unwrap();
        resident.parse().unwrap()
    }

    /// Peers write it when nobody here can say that there is none. And an allocator may keep what is freed
    /// between other things.
    #[test]
    fn memory_is_there_at_once_and_the_systems_when_it_is_released() {
        const PAGES: u64 = 4096;
        const OTHERS: u64 = 256;
        let allocate = || Memory::allocate(PAGES * 4096).unwrap();
        drop(allocate());
        for _ in 0..3 {
            let before = resident();
            let (first, second) = (allocate(), allocate());
            assert!(resident() + OTHERS > before + 2 * PAGES, "it is there");
            drop(first);
            assert!(resident() < before + PAGES + OTHERS, "it is gone");
            drop(second);
        }
    }
}
