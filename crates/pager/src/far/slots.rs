//! The slots of one extent: which are free, and of which a forked child has a share.

use alloc::boxed::Box;
use alloc::vec;

/// The free slots: a bit for each.
#[derive(Debug)]
pub(super) struct FreeSlots {
    words: Box<[u64]>,
    count: u32,
    /// No word before this one has a bit.
    from: usize,
}

impl FreeSlots {
    /// All slots are free.
    pub(super) fn new(slots: u32) -> Self {
        let mut words = vec![u64::MAX; slots.div_ceil(u64::BITS) as usize].into_boxed_slice();
        if let (Some(last), rest @ 1..) = (words.last_mut(), slots % u64::BITS) {
            *last = (1 << rest) - 1;
        }
        Self {
            words,
            count: slots,
            from: 0,
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The lowest: pages that leave one after the other lie side by side.
    pub(super) fn take_first(&mut self) -> Option<u32> {
        let words = self.words.iter().enumerate().skip(self.from);
        let (at, bit) = words
            .map(|(at, word)| (at, word.trailing_zeros()))
            .find(|&(_, bit)| bit < u64::BITS)?;
        self.words[at] &= !(1 << bit);
        self.from = at;
        self.count -= 1;
        Some(at as u32 * u64::BITS + bit)
    }

    pub(super) fn put_back(&mut self, slot: u32) {
        let at = (slot / u64::BITS) as usize;
        let bit = 1 << (slot % u64::BITS);
        debug_assert!(self.words[at] & bit == 0, "slot {slot} was free");
        self.words[at] |= bit;
        self.from = self.from.min(at);
        self.count += 1;
    }
}

/// How many more pages than one each slot is the copy of, which is so after a fork. It takes no room
/// while there is no such slot.
#[derive(Debug, Default)]
pub(super) struct Shares {
    more: Box<[u32]>,
    /// Slots with a share.
    shared: u32,
}

impl Shares {
    /// One more page has the slot, which is one of `slots`.
    pub(super) fn add(&mut self, slot: usize, slots: u32) {
        if self.more.is_empty() {
            self.more = vec![0; slots as usize].into_boxed_slice();
        }
        self.shared += u32::from(self.more[slot] == 0);
        self.more[slot] += 1;
    }

    pub(super) fn is_shared(&self, slot: usize) -> bool {
        self.more.get(slot).is_some_and(|&more| more > 0)
    }

    /// One page less has the slot. False if it was the only one.
    pub(super) fn take(&mut self, slot: usize) -> bool {
        if !self.is_shared(slot) {
            return false;
        }
        self.more[slot] -= 1;
        self.shared -= u32::from(self.more[slot] == 0);
        if self.shared == 0 {
            self.more = Box::default();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_slot_is_given_once_the_lowest_first() {
        for slots in [1, 63, 64, 65, 130] {
            let mut free = FreeSlots::new(slots);
            for expected in 0..slots {
                assert_eq!(free.take_first(), Some(expected));
            }
            assert_eq!((free.take_first(), free.count()), (None, 0));
            let some: BTreeSet<u32> = [slots - 1, 0, slots / 2].into();
            some.iter().rev().for_each(|&slot| free.put_back(slot));
            assert_eq!(free.count() as usize, some.len());
            for &expected in &some {
                assert_eq!(free.take_first(), Some(expected));
            }
            assert_eq!(free.take_first(), None);
        }
    }

    #[test]
    fn shares_take_room_while_there_are_any() {
        let mut shares = Shares::default();
        assert!(!shares.take(1));
        shares.add(1, 4);
        shares.add(1, 4);
        shares.add(3, 4);
        assert!(shares.is_shared(1) && shares.is_shared(3) && !shares.is_shared(0));
        assert!(shares.take(1) && shares.take(3) && shares.take(1));
        assert!(!shares.is_shared(1) && !shares.take(1));
        assert!(shares.more.is_empty());
    }
}
