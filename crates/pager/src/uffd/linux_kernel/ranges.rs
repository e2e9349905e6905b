//! Ranges of an address space, as far as its messages tell.

use crate::PageRange;
use crate::RangeSet;
use crate::uffd::message::Message;
use alloc::vec::Vec;

/// What is where.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// What is registered.
    pub(super) armed: RangeSet,
    /// What the pager is in charge of. Ranges that a child has inherited are registered from the
    /// start, and become part of this when their resident pages are known; what is moved before that is
    /// found again where it is then.
    pub(super) charged: RangeSet,
    /// What a child wipes when it forks, as far as that is known while pages cannot leave it.
    pub(super) wiped: RangeSet,
    /// What was dropped and is not charged. `madvise` drops a moment after its event was read, and
    /// nothing says when: a page that is still there, and left before it is dropped, would come back
    /// with what was to be dropped.
    dropped: RangeSet,
}

impl Ranges {
    /// Of a child at its fork.
    pub(super) fn inherited(armed: RangeSet, wiped: RangeSet) -> Self {
        Self {
            armed,
            wiped,
            ..Self::default()
        }
    }

    /// A message is accepted.
    pub(super) fn follow(&mut self, message: &Message) {
        message.follow_in_armed(&mut self.armed);
        message.follow_in(&mut self.charged);
        match *message {
            Message::Remapped { from, to, .. } => {
                self.wiped.relocate(from, to);
                self.dropped.relocate(from, to);
            }
            Message::Removed {
                range,
                unmapped: true,
            } => {
                self.wiped.remove(range);
                self.dropped.remove(range);
            }
            Message::Removed {
                range,
                unmapped: false,
            } => {
                for part in self.charged.missing_from(range) {
                    self.dropped.insert(part);
                }
            }
            Message::Fault { .. } | Message::Forked { .. } => {}
        }
    }

    /// The range is not registered any more.
    pub(super) fn forget(&mut self, range: PageRange) {
        self.armed.remove(range);
        self.charged.remove(range);
        self.wiped.remove(range);
        self.dropped.remove(range);
    }

    /// What must not be taken for resident when the pager takes charge of it.
    pub(super) const fn dropped(&self) -> &RangeSet {
        &self.dropped
    }

    /// The pager takes charge of a range. Returns the parts of it in which it knows of no page that
    /// is there, because they were dropped.
    pub(super) fn hold(&mut self, range: PageRange) -> Vec<PageRange> {
        let dropped = self.dropped.common_with(range);
        self.dropped.remove(range);
        self.charged.insert(range);
        self.armed.insert(range);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::PageNumber;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn discarded(start: u64, count: u64) -> Message {
        Message::Removed {
            range: range(start, count),
            unmapped: false,
        }
    }

    /// Registered, and not in the pager's charge.
    fn ranges() -> Ranges {
        let mut armed = RangeSet::new();
        armed.insert(range(10, 90));
        Ranges::inherited(armed, RangeSet::new())
    }

    fn dropped(ranges: &Ranges) -> Vec<PageRange> {
        ranges.dropped().ranges().collect()
    }

    /// Its thread was read and has got no CPU since: the pages may be there when the hand has come.
    #[test]
    fn what_is_dropped_before_its_pages_are_known_is_remembered() {
        let mut ranges = ranges();
        ranges.follow(&discarded(20, 10));
        assert_eq!(dropped(&ranges), [range(20, 10)]);
        assert_eq!(ranges.hold(range(10, 15)), [range(20, 5)]);
        assert_eq!(dropped(&ranges), [range(25, 5)]);
        // What the pager knows it knows to be gone.
        ranges.follow(&discarded(10, 20));
        assert_eq!(dropped(&ranges), [range(25, 5)]);
        assert_eq!(ranges.hold(range(25, 75)), [range(25, 5)]);
        assert_eq!(dropped(&ranges), []);
    }

    #[test]
    fn what_was_dropped_goes_where_its_range_goes() {
        let mut ranges = ranges();
        ranges.follow(&discarded(20, 10));
        ranges.follow(&Message::Remapped {
            from: range(25, 20),
            to: PageNumber(200),
            kept: false,
        });
        assert_eq!(dropped(&ranges), [range(20, 5), range(200, 5)]);
        ranges.follow(&Message::Removed {
            range: range(15, 8),
            unmapped: true,
        });
        assert_eq!(dropped(&ranges), [range(23, 2), range(200, 5)]);
        assert!(ranges.armed.contains(PageNumber(23)) && !ranges.armed.contains(PageNumber(25)));
    }

    /// MREMAP_DONTUNMAP: the old place is registered, and empty.
    #[test]
    fn what_has_kept_its_place_is_in_charge_at_both() {
        let mut ranges = ranges();
        ranges.hold(range(10, 10));
        ranges.follow(&Message::Remapped {
            from: range(10, 10),
            to: PageNumber(200),
            kept: true,
        });
        let charged: Vec<PageRange> = ranges.charged.ranges().collect();
        assert_eq!(charged, [range(10, 10), range(200, 10)]);
        let armed: Vec<PageRange> = ranges.armed.ranges().collect();
        assert_eq!(armed, [range(10, 90), range(200, 10)]);
    }

    #[test]
    fn what_moves_before_its_pages_are_known_is_registered_and_not_in_charge() {
        let mut ranges = ranges();
        ranges.hold(range(10, 4));
        ranges.follow(&Message::Remapped {
            from: range(12, 4),
            to: PageNumber(200),
            kept: false,
        });
        let charged: Vec<PageRange> = ranges.charged.ranges().collect();
        assert_eq!(charged, [range(10, 2), range(200, 2)]);
        assert!(ranges.armed.contains(PageNumber(203)) && !ranges.armed.contains(PageNumber(15)));
    }
}
