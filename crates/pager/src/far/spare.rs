//! When room that is not needed goes back to its node.
//!
//! Not at once: a program that gives memory back often wants as much again, and each extent costs the
//! agent a request and, on shared memory, an unmapping in the program's address space, of some
//! milliseconds while the program maps and touches memory itself.

use super::EXTENT_SLOTS;
use legato_base::{Duration, Time};

/// Room must have been spare for so long.
const REST: Duration = Duration::from_millis(500);
/// From one extent to the next when there are few.
const PACE: Duration = Duration::from_millis(20);
/// With so many more that are spare it goes twice as fast: 64 GiB are given back in about 6 s.
const EXTENTS_AT_PACE: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Spare {
    /// When an extent may go; None while there is none to spare.
    at: Option<Time>,
}

impl Spare {
    /// True if an extent may go now, when there are `slots` that are not needed. Must be followed by
    /// [`Self::gone`] or [`Self::kept`] then.
    pub(super) fn is_due(&mut self, slots: u64, now: Time) -> bool {
        if slots < u64::from(EXTENT_SLOTS) {
            self.at = None;
            return false;
        }
        *self.at.get_or_insert(now + REST) <= now
    }

    /// One has gone, of `slots` that were not needed.
    pub(super) fn gone(&mut self, slots: u64, now: Time) {
        let faster = 1 + slots / u64::from(EXTENT_SLOTS) / EXTENTS_AT_PACE;
        self.at = Some(now + Duration::from_nanos(PACE.as_nanos() / faster));
    }

    /// None was wholly free.
    pub(super) fn kept(&mut self, now: Time) {
        self.at = Some(now + REST);
    }

    /// When the next one may go.
    pub(super) fn at(&self) -> Time {
        self.at.unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// When the extents of so many slots are given back, if nothing else happens.
    fn given_back(mut slots: u64) -> Vec<Time> {
        let (mut spare, mut now, mut times) = (Spare::default(), Time::ZERO, Vec::new());
        while slots >= u64::from(EXTENT_SLOTS) {
            if spare.is_due(slots, now) {
                times.push(now);
                spare.gone(slots, now);
                slots -= u64::from(EXTENT_SLOTS);
            }
            now = spare.at();
        }
        times
    }

    #[test]
    fn a_few_extents_go_one_by_one_after_a_rest() {
        let times = given_back(3 * u64::from(EXTENT_SLOTS) + 1);
        assert_eq!(times, [at(500), at(520), at(540)]);
    }

    #[test]
    fn many_go_in_seconds() {
        let times = given_back(8192 * u64::from(EXTENT_SLOTS));
        assert_eq!(times.len(), 8192);
        assert!(times.last() < Some(&at(8000)), "{:?}", times.last());
    }

    #[test]
    fn what_is_wanted_again_is_kept() {
        let extent = u64::from(EXTENT_SLOTS);
        let mut spare = Spare::default();
        assert!(!spare.is_due(extent, at(0)));
        assert!(!spare.is_due(extent - 1, at(499)));
        assert_eq!(spare.at(), Time::NEVER);
        assert!(!spare.is_due(extent, at(500)));
        assert!(spare.is_due(extent, at(1000)));
        spare.kept(at(1000));
        assert!(!spare.is_due(extent, at(1499)));
        assert!(spare.is_due(extent, at(1500)));
    }
}
