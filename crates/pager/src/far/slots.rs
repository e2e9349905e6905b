//! The slots of one extent: which are free, and of which a forked child has a share.

use crate::bit_set::BitSet;
use alloc::boxed::Box;
use alloc::vec;

/// The free slots.
#[derive(Debug)]
pub(super) struct FreeSlots {
    slots: BitSet,
    /// None before this one is free.
    from: u32,
}

impl FreeSlots {
    /// All slots are free.
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots: BitSet::full(slots),
            from: 0,
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.slots.count()
    }

    /// The lowest: pages that leave one after the other lie side by side.
    pub(super) fn take_first(&mut self) -> Option<u32> {
        let slot = self.slots.next_in(self.from, self.slots.end())?;
        self.slots.remove(slot);
        self.from = slot + 1;
        Some(slot)
    }

    pub(super) fn put_back(&mut self, slot: u32) {
        debug_assert!(!self.slots.contains(slot), "slot {slot} was free");
        self.slots.insert(slot);
        self.from = self.from.min(slot);
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
