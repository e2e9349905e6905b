//! The content of a page: different in every word for every page and version, so that a stale,
//! zeroed, swapped or torn page is seen, and can be told which of these it is.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// 64-bit words in one page.
pub const WORDS: usize = legato_base::PAGE_SIZE / size_of::<u64>();

/// What was found in place of the expected content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Only zeros, where there was data.
    Zeros,
    /// The same page as it was at another time.
    Version(u32),
    /// Another page's content.
    Page { page: u64, version: u32 },
    /// Parts of different contents: `words` are wrong, the first of them at `first`.
    Torn { first: usize, words: usize },
}

/// One page with a wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub page: u64,
    pub expected: u32,
    pub found: Found,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            page,
            expected,
            found,
        } = self;
        write!(f, "page {page}: expected version {expected}, found ")?;
        match found {
            Found::Zeros => write!(f, "zeros"),
            Found::Version(version) => write!(f, "version {version}"),
            Found::Page { page, version } => write!(f, "page {page} version {version}"),
            Found::Torn { first, words } => write!(f, "{words} wrong words from word {first} on"),
        }
    }
}

/// Fills one page with the content of `version`; version 0 is zeros, as a new mapping has.
pub fn fill_page(words: &[AtomicU64], page: u64, version: u32) {
    for (index, word) in words[..WORDS].iter().enumerate() {
        word.store(content(page, version, index), Relaxed);
    }
}

/// Compares one page with the content of `version`.
pub fn check_page(words: &[AtomicU64], page: u64, version: u32) -> Result<(), Wrong> {
    let words = &words[..WORDS];
    let mut differences = 0;
    for (index, word) in words.iter().enumerate() {
        differences |= word.load(Relaxed) ^ content(page, version, index);
    }
    if differences == 0 {
        return Ok(());
    }
    let found = diagnose(words, page, version);
    Err(Wrong {
        page,
        expected: version,
        found,
    })
}

fn diagnose(words: &[AtomicU64], page: u64, version: u32) -> Found {
    let is = |page, version| {
        let same = |(index, word): (usize, &AtomicU64)| {
            word.load(Relaxed) == content(page, version, index)
        };
        words.iter().enumerate().all(same)
    };
    if is(page, 0) {
        return Found::Zeros;
    }
    let named_page = words[0].load(Relaxed);
    if let Ok(named_version) = u32::try_from(words[1].load(Relaxed))
        && is(named_page, named_version)
    {
        return match named_page == page {
            true => Found::Version(named_version),
            false => Found::Page {
                page: named_page,
                version: named_version,
            },
        };
    }
    let wrong = |index: &usize| words[*index].load(Relaxed) != content(page, version, *index);
    Found::Torn {
        first: (0..WORDS).find(wrong).unwrap_or(WORDS),
        words: (0..WORDS).filter(wrong).count(),
    }
}

/// The first two words name the page and the version, for the diagnosis; the others mix both.
fn content(page: u64, version: u32, index: usize) -> u64 {
    if version == 0 {
        return 0;
    }
    match index {
        0 => page,
        1 => u64::from(version),
        _ => {
            let seed = (page << 32) ^ page ^ (u64::from(version) << 16);
            (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index as u64)
                .wrapping_mul(0xBF58_476D_1CE4_E5B9)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(page: u64, version: u32) -> Vec<AtomicU64> {
        let words: Vec<_> = (0..WORDS).map(|_| AtomicU64::new(7)).collect();
        fill_page(&words, page, version);
        words
    }

    #[test]
    fn the_right_content_passes() {
        for version in [0, 1, 9] {
            assert_eq!(check_page(&page_of(3, version), 3, version), Ok(()));
        }
    }

    #[test]
    fn every_kind_of_wrong_content_is_named() {
        let found = |words: &[AtomicU64], version| check_page(words, 3, version).unwrap_err().found;
        assert_eq!(found(&page_of(3, 0), 2), Found::Zeros);
        assert_eq!(found(&page_of(3, 1), 2), Found::Version(1));
        assert_eq!(found(&page_of(3, 1), 0), Found::Version(1));
        assert_eq!(
            found(&page_of(4, 2), 2),
            Found::Page {
                page: 4,
                version: 2
            }
        );
        let torn = page_of(3, 2);
        for (word, older) in torn[256..].iter().zip(&page_of(3, 1)[256..]) {
            word.store(older.load(Relaxed), Relaxed);
        }
        assert_eq!(
            found(&torn, 2),
            Found::Torn {
                first: 256,
                words: 256
            }
        );
        let flipped = page_of(3, 2);
        flipped[511].fetch_xor(1, Relaxed);
        assert_eq!(
            found(&flipped, 2),
            Found::Torn {
                first: 511,
                words: 1
            }
        );
    }
}
