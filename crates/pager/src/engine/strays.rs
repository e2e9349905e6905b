//! Pages that are resident where the pager is in charge, and that it does not know: they would stay for
//! ever. The program may use pages again that `madvise` left, and the agent may see that or not.
//!
//! A page that was announced as dropped may be there still, and go at any moment: `madvise` drops a
//! moment after its event was read, and nothing says when. If it left before that, what was to be
//! dropped would come back with it. So first it is shown that whoever was dropping something has done
//! so, and of what is announced meanwhile nothing is taken.

use super::Pager;
use super::candidates::Origin;
use crate::RangeSet;
use crate::entry::{Flag, Location, PageEntry};
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;
use legato_base::timeouts::{DROPS, Patience};
use legato_base::{Duration, PageNumber, Time};

/// From the end of one search to the beginning of the next; twice as long each time that nothing was
/// found. To look through 100 GiB of far memory takes some 50 ms.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(64);
/// Pages that are in use after they were to be dropped are taken back together, so long after the first
/// one was found.
const USED_AFTER: Duration = Duration::from_secs(1);
/// The agent has a turn within this, if it gets a processor.
const LOOK: Duration = Duration::from_millis(1000);
/// How often it is asked whether what was announced is done.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Looking for pages that the pager does not know.
#[derive(Debug, Default)]
pub(super) struct StraySearch {
    state: State,
    /// All spaces are not searched before that.
    at: Time,
    /// This search has found some.
    has_found: bool,
    rest: Duration,
    /// Pages that were found in use although they were to be dropped. No set is empty.
    used: BTreeMap<SpaceId, RangeSet>,
    /// They are not looked at before that.
    used_at: Time,
    /// The time of the last turn.
    now: Time,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Somebody may be dropping something.
    Waiting {
        space: SpaceId,
        sought: Sought,
        patience: Patience,
        ask_at: Time,
    },
    Searching {
        space: SpaceId,
        /// All before it is found.
        from: PageNumber,
        /// What was announced as dropped since it was asked who is dropping something.
        announced: RangeSet,
    },
}

#[derive(Debug)]
enum Sought {
    /// All that is there, in this space and then in the next, but for what is announced as dropped
    /// meanwhile.
    Everything { announced: RangeSet },
    /// What was found in use.
    Used(RangeSet),
}

impl Sought {
    fn everything() -> Self {
        let announced = RangeSet::new();
        Self::Everything { announced }
    }
}

impl StraySearch {
    fn end(&mut self, now: Time) {
        let longer = Duration::from_nanos(2 * self.rest.as_nanos());
        self.rest = match core::mem::take(&mut self.has_found) {
            true => REST_MIN,
            false => longer.clamp(REST_MIN, REST_MAX),
        };
        self.state = State::Idle;
        self.at = now + self.rest;
    }

    /// A range was dropped, or is gone.
    pub(super) fn leave_out(&mut self, space: SpaceId, range: PageRange) {
        match &mut self.state {
            State::Waiting {
                space: searched,
                sought: Sought::Everything { announced },
                ..
            }
            | State::Searching {
                space: searched,
                announced,
                ..
            } if *searched == space => announced.insert(range),
            State::Waiting {
                space: searched,
                sought: Sought::Used(used),
                ..
            } if *searched == space => used.remove(range),
            _ => {}
        }
        if let Some(used) = self.used.get_mut(&space) {
            used.remove(range);
            if used.is_empty() {
                self.used.remove(&space);
            }
        }
    }

    /// A range's pages have got new addresses, at which nothing is left of what was there before.
    pub(super) fn relocate(&mut self, space: SpaceId, from: PageRange, to: PageNumber) {
        if let State::Waiting {
            space: searched,
            sought: Sought::Used(used),
            ..
        } = &mut self.state
            && *searched == space
        {
            used.relocate(from, to);
        }
        if let Some(used) = self.used.get_mut(&space) {
            used.relocate(from, to);
        }
    }

    /// True if a page will be looked at because it is in use.
    pub(super) fn has_in_use(&self, page: SpacePage) -> bool {
        let is_asked = match &self.state {
            State::Waiting {
                space,
                sought: Sought::Used(used),
                ..
            } => *space == page.space() && used.contains(page.page()),
            _ => false,
        };
        let used = self.used.get(&page.space());
        is_asked || used.is_some_and(|used| used.contains(page.page()))
    }

    fn note_used(&mut self, page: SpacePage) {
        if self.used.is_empty() {
            self.used_at = self.now + USED_AFTER;
        }
        let used = self.used.entry(page.space()).or_default();
        used.insert(PageRange::new(page.page(), 1));
    }
}

impl<K: Kernel> Pager<K> {
    /// A page was present when its dropping was announced, and is in use: it was not dropped and will not
    /// be (MADV_FREE), or is being dropped.
    pub(super) fn handle_used(&mut self, page: SpacePage) {
        if self.table.entry(page).is_none() && self.kernel.can_evict(page.space()) {
            self.strays.note_used(page);
        }
    }

    /// Memory is short, and there is none to take charge of: perhaps there are pages that nobody knows.
    pub(super) fn suspect_strays(&mut self, now: Time) {
        if matches!(self.strays.state, State::Idle) && now >= self.strays.at {
            self.wait_for_drops(SpaceId::OWN, Sought::everything(), now);
        }
    }

    fn wait_for_drops(&mut self, space: SpaceId, sought: Sought, now: Time) {
        self.kernel.note_dropping(space);
        self.strays.state = State::Waiting {
            space,
            sought,
            patience: Patience::new(LOOK, now),
            ask_at: now,
        };
    }

    /// Goes on with a search.
    pub(super) fn search_strays(&mut self, now: Time) {
        self.strays.now = now;
        match core::mem::take(&mut self.strays.state) {
            State::Idle => {
                if now >= self.strays.used_at
                    && let Some((space, used)) = self.strays.used.pop_first()
                {
                    self.wait_for_drops(space, Sought::Used(used), now);
                }
            }
            State::Waiting {
                space,
                sought,
                mut patience,
                ask_at,
            } if now >= ask_at => {
                let is_reached = self.kernel.can_evict(space);
                let is_long = patience.waited(now) >= DROPS;
                if is_reached && self.kernel.has_dropped_all(space) {
                    self.take_strays(space, sought);
                } else if !is_reached || is_long {
                    self.give_up(space, sought, now);
                } else {
                    self.strays.state = State::Waiting {
                        space,
                        sought,
                        patience,
                        ask_at: now + ASK_AGAIN,
                    };
                }
            }
            State::Searching {
                space,
                from,
                announced,
            } => {
                let mut pages = Vec::new();
                let next = self.kernel.residents_from(space, from, &mut pages);
                for page in pages {
                    if !announced.contains(page)
                        && self.adopt(SpacePage::new(space, page), Origin::New)
                    {
                        self.counters.pages_found_again += 1;
                        self.strays.has_found = true;
                    }
                }
                match next {
                    Some(from) => {
                        self.strays.state = State::Searching {
                            space,
                            from,
                            announced,
                        };
                    }
                    None => self.search_next_space(space, now),
                }
            }
            waiting @ State::Waiting { .. } => self.strays.state = waiting,
        }
    }

    /// All is dropped that was announced before.
    fn take_strays(&mut self, space: SpaceId, sought: Sought) {
        match sought {
            Sought::Everything { announced } => {
                self.strays.state = State::Searching {
                    space,
                    from: PageNumber(0),
                    announced,
                };
            }
            Sought::Used(used) => {
                for page in pages_of(space, &used) {
                    if self.kernel.is_registered(page) {
                        self.adopt(page, Origin::New);
                    }
                }
            }
        }
    }

    /// Nothing can leave a space, or it is not to be told what is being dropped there.
    fn give_up(&mut self, space: SpaceId, sought: Sought, now: Time) {
        match sought {
            Sought::Everything { .. } => self.search_next_space(space, now),
            Sought::Used(used) => {
                for page in pages_of(space, &used) {
                    self.handle_used(page);
                }
            }
        }
    }

    fn search_next_space(&mut self, space: SpaceId, now: Time) {
        let after = (Bound::Excluded(space), Bound::Unbounded);
        match self.children.alive.range(after).next() {
            Some((&next, _)) => self.wait_for_drops(next, Sought::everything(), now),
            None => self.strays.end(now),
        }
    }

    /// A page was resident before the pager was in charge of it. False if it is known.
    pub(super) fn adopt(&mut self, page: SpacePage, origin: Origin) -> bool {
        if self.table.entry(page).is_some() {
            return false;
        }
        let stamp = self.candidates.enter(page, origin);
        let entry = PageEntry::new(Location::Resident, None, stamp);
        self.table.insert(page, entry.with(Flag::Unseen));
        true
    }
}

fn pages_of(space: SpaceId, set: &RangeSet) -> impl Iterator<Item = SpacePage> {
    set.ranges().flat_map(move |range| {
        let first = SpacePage::new(space, range.start);
        (0..range.count).map(move |step| first.plus(step))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn pages_in_use(strays: &StraySearch, space: SpaceId) -> Vec<u64> {
        let in_use = |page: &u64| strays.has_in_use(SpacePage::new(space, PageNumber(*page)));
        (0..300).filter(in_use).collect()
    }

    /// In the way of zeros that are brought ahead of faults a page is found once per window.
    #[test]
    fn a_page_that_is_in_use_is_noted_once_and_goes_where_its_range_goes() {
        let (space, other) = (SpaceId::OWN, SpaceId(7));
        let mut strays = StraySearch::default();
        for page in [10, 11, 10, 20, 10] {
            strays.note_used(SpacePage::new(space, PageNumber(page)));
        }
        strays.note_used(SpacePage::new(other, PageNumber(10)));
        strays.leave_out(space, range(11, 5));
        strays.relocate(space, range(5, 10), PageNumber(200));
        assert_eq!(pages_in_use(&strays, space), [20, 205]);
        assert_eq!(pages_in_use(&strays, other), [10]);

        // Asked for, they are in use still.
        let (asked, used) = strays.used.pop_first().unwrap();
        assert_eq!(pages_of(asked, &used).count(), 2);
        strays.state = State::Waiting {
            space: asked,
            sought: Sought::Used(used),
            patience: Patience::new(LOOK, Time::ZERO),
            ask_at: Time::ZERO,
        };
        strays.relocate(space, range(200, 10), PageNumber(100));
        strays.leave_out(space, range(0, 50));
        assert_eq!(pages_in_use(&strays, space), [105]);
        strays.leave_out(other, PageRange::ALL);
        assert_eq!(pages_in_use(&strays, other), [0; 0]);
        assert!(strays.used.is_empty());
    }
}
