//! Content of pages: every value makes a page that differs from every other in every word.

use legato_base::PAGE_SIZE;

const WORD: usize = size_of::<u64>();

/// The page of a value. Zero makes the page of zeros.
pub(super) fn page_of(value: u64) -> Box<[u8; PAGE_SIZE]> {
    let mut page = Box::new([0; PAGE_SIZE]);
    for (index, word) in page.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&word_of(value, index).to_le_bytes());
    }
    page
}

/// The value that made a page; `None` if it is no whole page of any.
pub(super) fn value_of(page: &[u8; PAGE_SIZE]) -> Option<u64> {
    let words = || {
        page.chunks_exact(WORD)
            .filter_map(|word| word.try_into().ok())
    };
    let value = words().next().map(u64::from_le_bytes)?;
    words()
        .map(u64::from_le_bytes)
        .enumerate()
        .all(|(index, word)| word == word_of(value, index))
        .then_some(value)
}

/// True if a page seems to be that of a value, by its first and last words: [`value_of`] looks at all.
pub(super) fn is_page_of(page: &[u8; PAGE_SIZE], value: u64) -> bool {
    let last = PAGE_SIZE / WORD - 1;
    page.starts_with(&word_of(value, 0).to_le_bytes())
        && page.ends_with(&word_of(value, last).to_le_bytes())
}

/// Multiplication by an odd number (2^64 divided by the golden ratio) and rotation are one to one:
/// only zero becomes zero.
const fn word_of(value: u64, index: usize) -> u64 {
    match index {
        0 => value,
        _ => value
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(index as u32 % 64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gives_its_value_back_unless_it_is_torn() {
        for value in [0, 1, 77, u64::MAX] {
            let mut page = page_of(value);
            assert_eq!(value_of(&page), Some(value));
            page[PAGE_SIZE - 1] ^= 1;
            assert_eq!(value_of(&page), None);
        }
    }
}
