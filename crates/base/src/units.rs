//! Sizes: bytes as people write them, and pages.

use core::fmt;
use core::str::FromStr;

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in one page. Legato tracks memory in x86-64 base pages, whatever the kernel maps.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// A virtual address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The page that holds `address`.
    pub const fn containing(address: u64) -> Self {
        Self(address >> PAGE_SHIFT)
    }

    /// The address of the page's first byte.
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The page `pages` further on.
    #[must_use]
    pub const fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }
}

impl fmt::Debug for PageNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.address())
    }
}

/// A number of bytes, read and printed with binary units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    pub const fn pages(n: u64) -> Self {
        Self(n << PAGE_SHIFT)
    }

    /// Whole pages in this many bytes, rounded down.
    pub const fn whole_pages(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in UNITS {
            let whole = self.0 >> shift;
            if whole > 0 {
                let rest = self.0 & ((1 << shift) - 1);
                let tenths = (u128::from(rest) * 10) >> shift;
                return match tenths {
                    0 => write!(f, "{whole} {unit}"),
                    tenths => write!(f, "{whole}.{tenths} {unit}"),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    #[error("a size is a whole number and a unit, such as 64MiB or 1GiB")]
    NotANumber,
    #[error("unknown unit: use B, KiB, MiB, GiB or TiB (K, M, G and T mean the same)")]
    UnknownUnit,
    #[error("the size does not fit in 64 bits")]
    TooLarge,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(ParseBytesError::NotANumber);
        }
        let number: u64 = number.parse().map_err(|_| ParseBytesError::TooLarge)?;
        let shift = match unit.trim() {
            "" | "B" => 0,
            "K" | "KiB" | "k" => 10,
            "M" | "MiB" | "m" => 20,
            "G" | "GiB" | "g" => 30,
            "T" | "TiB" | "t" => 40,
            _ => return Err(ParseBytesError::UnknownUnit),
        };
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or(ParseBytesError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sizes_are_read_and_printed() {
        assert_eq!("64MiB".parse(), Ok(Bytes::mib(64)));
        assert_eq!("1G".parse(), Ok(Bytes::gib(1)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert_eq!(Bytes::mib(1536).to_string(), "1.5 GiB");
        assert_eq!(Bytes(17).to_string(), "17 B");
    }

    #[test]
    fn wrong_sizes_say_why() {
        assert_eq!("".parse::<Bytes>(), Err(ParseBytesError::NotANumber));
        assert_eq!("-1G".parse::<Bytes>(), Err(ParseBytesError::NotANumber));
        assert_eq!("1.5G".parse::<Bytes>(), Err(ParseBytesError::UnknownUnit));
        assert_eq!(
            "99999999999G".parse::<Bytes>(),
            Err(ParseBytesError::TooLarge)
        );
        assert_eq!("1XB".parse::<Bytes>(), Err(ParseBytesError::UnknownUnit));
    }
}
