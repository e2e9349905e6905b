//! Ranges of a forked child, as far as its messages tell.

use crate::PageRange;
use crate::RangeSet;
use crate::uffd::message::Message;
use alloc::vec::Vec;

/// What is where in a forked child.
#[derive(Debug, Default)]
pub(super) struct ChildRanges {
    /// What is registered.
    pub(super) armed: RangeSet,
    /// What the pager is in charge of. Ranges that the child has inherited are registered from the
    /// start, and become part of this when their resident pages are known.
    pub(super) charged: RangeSet,
    /// What the child wipes when it forks, as far as that is known while pages cannot leave it.
    pub(super) wiped: RangeSet,
    /// What was dropped and is not charged. `madvise` drops a moment after its event was read, and
    /// nothing says when: a page that is still there, and left before it is dropped, would come back
    /// with what was to be dropped.
    dropped: RangeSet,
}

impl ChildRanges {
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
        match *message {
            Message::Remapped { from, to, kept } => {
                if !kept {
                    self.armed.remove(from);
                }
                self.armed.insert(PageRange::new(to, from.count));
                self.charged.relocate(from, to);
                self.wiped.relocate(from, to);
                self.dropped.relocate(from, to);
            }
            Message::Removed {
                range,
                unmapped: true,
            } => self.forget(range),
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
        let mut kept = RangeSet::new();
        for part in self.dropped.missing_from(range) {
            kept.insert(part);
        }
        self.dropped.remove(range);
        self.charged.insert(range);
        self.armed.insert(range);
        kept.missing_from(range)
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

    fn child() -> ChildRanges {
        let mut armed = RangeSet::new();
        armed.insert(range(10, 90));
        ChildRanges::inherited(armed, RangeSet::new())
    }

    fn dropped(child: &ChildRanges) -> Vec<PageRange> {
        child.dropped().ranges().collect()
    }

    /// Its thread was read and has got no CPU since: the pages may be there when the hand has come.
    #[test]
    fn what_a_child_drops_before_its_pages_are_known_is_remembered() {
        let mut child = child();
        child.follow(&discarded(20, 10));
        assert_eq!(dropped(&child), [range(20, 10)]);
        assert_eq!(child.hold(range(10, 15)), [range(20, 5)]);
        assert_eq!(dropped(&child), [range(25, 5)]);
        // What the pager knows it knows to be gone.
        child.follow(&discarded(10, 20));
        assert_eq!(dropped(&child), [range(25, 5)]);
        assert_eq!(child.hold(range(25, 75)), [range(25, 5)]);
        assert_eq!(dropped(&child), []);
    }

    #[test]
    fn what_was_dropped_goes_where_its_range_goes() {
        let mut child = child();
        child.follow(&discarded(20, 10));
        child.follow(&Message::Remapped {
            from: range(25, 20),
            to: PageNumber(200),
            kept: false,
        });
        assert_eq!(dropped(&child), [range(20, 5), range(200, 5)]);
        child.follow(&Message::Removed {
            range: range(15, 8),
            unmapped: true,
        });
        assert_eq!(dropped(&child), [range(23, 2), range(200, 5)]);
        assert!(child.armed.contains(PageNumber(23)) && !child.armed.contains(PageNumber(25)));
    }
}
