//! The checksum of a page: XXH3-128 over its bytes.
//!
//! It serves twice: a fetched page must match the process's own record before the program sees
//! it, and an evicted page that still matches need not be sent again. 128 bits make an accidental
//! match (2^-64 after 2^64 pages) less likely than the memory itself failing.

use crate::PAGE_SIZE;
use core::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// Content of a page in 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageChecksum(pub u128);

impl PageChecksum {
    pub fn of(page: &[u8; PAGE_SIZE]) -> Self {
        Self(xxh3_128(page))
    }
}

impl fmt::Debug for PageChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// True if every byte of the page is zero: such a page needs no copy anywhere.
pub fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    // Most pages that are not zero say so in their first words; the rest compiles to wide ORs.
    page[..64].iter().all(|&byte| byte == 0)
        && page
            .chunks_exact(64)
            .all(|chunk| chunk.iter().fold(0, |seen, &byte| seen | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_bit_anywhere_changes_the_checksum() {
        let mut page = [0u8; PAGE_SIZE];
        let zero = PageChecksum::of(&page);
        for byte in 0..PAGE_SIZE {
            page[byte] ^= 1 << (byte % 8);
            assert_ne!(PageChecksum::of(&page), zero, "byte {byte}");
            assert!(!is_zero(&page), "byte {byte}");
            page[byte] = 0;
        }
        assert!(is_zero(&page));
    }
}
