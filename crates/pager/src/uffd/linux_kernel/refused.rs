//! Memory that cannot be registered for the moment.

use crate::PageRange;
use crate::RangeSet;
use alloc::vec::Vec;
use legato_base::{Duration, Time};

/// After so long it is tried again, or after twice as long: somebody else's userfaultfd may be gone,
/// or another mapping be where the one was that refused. A program that waits for memory to leave is
/// given up after two seconds.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Refused {
    now: RangeSet,
    before: RangeSet,
    next: Time,
}

impl Refused {
    pub(super) fn insert(&mut self, range: PageRange) {
        self.now.insert(range);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.now.is_empty() && self.before.is_empty()
    }

    pub(super) fn forget_old(&mut self, now: Time) {
        if now < self.next {
            return;
        }
        let was_long_ago = now.since(self.next) >= AGAIN;
        let recent = core::mem::take(&mut self.now);
        self.before = if was_long_ago {
            RangeSet::new()
        } else {
            recent
        };
        self.next = now + AGAIN;
    }

    /// The parts of a range that may be tried.
    pub(super) fn missing_from(&self, range: PageRange) -> Vec<PageRange> {
        let parts = self.now.missing_from(range).into_iter();
        parts
            .flat_map(|part| self.before.missing_from(part))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::PageNumber;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_was_refused_is_left_out_and_no_more() {
        let mut refused = Refused::default();
        refused.forget_old(at(1));
        refused.insert(range(10, 2));
        assert_eq!(
            refused.missing_from(range(8, 8)),
            [range(8, 2), range(12, 4)]
        );
        refused.forget_old(at(501));
        refused.insert(range(14, 1));
        assert_eq!(
            refused.missing_from(range(8, 8)),
            [range(8, 2), range(12, 2), range(15, 1)]
        );
    }

    #[test]
    fn it_is_tried_again_after_half_a_second_or_twice_as_long() {
        let mut refused = Refused::default();
        refused.forget_old(at(1));
        refused.insert(range(10, 2));
        for (now, parts) in [(500, 0), (501, 0), (1000, 0), (1001, 1)] {
            refused.forget_old(at(now));
            assert_eq!(
                refused.missing_from(range(10, 2)).len(),
                parts,
                "{now} ms after"
            );
        }
    }

    #[test]
    fn nothing_is_kept_over_a_time_in_which_nobody_looked() {
        let mut refused = Refused::default();
        refused.forget_old(at(1));
        refused.insert(range(10, 2));
        refused.forget_old(at(5000));
        assert_eq!(refused.missing_from(range(10, 2)), [range(10, 2)]);
    }
}
