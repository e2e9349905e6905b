//! The lower 8 bits of keys: which of them an index has issued.

use legato_base::Random;

pub(super) const TAG_BITS: u32 = u8::BITS;
const WORDS: usize = 1 << (TAG_BITS - u64::BITS.trailing_zeros());

/// The tags of one index.
#[derive(Clone, Debug, Default)]
pub(super) struct Tags {
    /// Of the last key issued.
    last: u8,
    /// A bit for each tag.
    issued: [u64; WORDS],
}

impl Tags {
    /// Is this the last key of the index?
    pub(super) fn is_last(&self, key: u32) -> bool {
        key & 0xFF == u32::from(self.last)
    }

    pub(super) fn are_used_up(&self) -> bool {
        self.issued == [u64::MAX; WORDS]
    }

    /// Issues some tag that was not issued before, which does not follow from those that were (P-82);
    /// `None` if there is none.
    pub(super) fn draw(&mut self, random: &mut Random) -> Option<u8> {
        let left: u32 = self.issued.iter().map(|word| word.count_zeros()).sum();
        let skipped = random.below(u64::from(left.max(1))) as usize;
        let tag = self.unissued(u8::MAX).nth(skipped)?;
        self.issue(tag);
        Some(tag)
    }

    /// The next tag in order that was not issued before.
    pub(super) fn next(&self) -> Option<u8> {
        self.unissued(self.last).next()
    }

    pub(super) fn issue(&mut self, tag: u8) {
        let (word, bit) = place(tag);
        if let Some(word) = self.issued.get_mut(word) {
            *word |= bit;
        }
        self.last = tag;
    }

    /// Those that were not issued, from the one after this on.
    fn unissued(&self, from: u8) -> impl Iterator<Item = u8> {
        (1..=1_u16 << TAG_BITS)
            .map(move |step| from.wrapping_add(step as u8))
            .filter(|tag| {
                let (word, bit) = place(*tag);
                self.issued.get(word).is_some_and(|word| word & bit == 0)
            })
    }
}

const fn place(tag: u8) -> (usize, u64) {
    let tag = tag as usize;
    (tag / u64::BITS as usize, 1 << (tag % u64::BITS as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_tag_is_issued_once() {
        let mut random = Random::from_seed(1);
        let (mut tags, mut seen) = (Tags::default(), BTreeSet::new());
        for count in 0..256 {
            assert!(!tags.are_used_up());
            let tag = if count % 3 == 0 {
                let next = tags.next().unwrap();
                tags.issue(next);
                next
            } else {
                tags.draw(&mut random).unwrap()
            };
            assert!(seen.insert(tag));
            assert!(tags.is_last(0xAB00 | u32::from(tag)));
        }
        assert!(tags.are_used_up());
        assert_eq!((tags.next(), tags.draw(&mut random)), (None, None));
    }

    /// P-82: the tag that follows is any of those that are left.
    #[test]
    fn no_tag_follows_from_the_one_before() {
        let mut random = Random::from_seed(2);
        let mut steps = BTreeSet::new();
        for _ in 0..4000 {
            let mut tags = Tags::default();
            let first = tags.draw(&mut random).unwrap();
            let second = tags.draw(&mut random).unwrap();
            steps.insert(second.wrapping_sub(first));
        }
        assert_eq!(steps.len(), 255);
    }
}
