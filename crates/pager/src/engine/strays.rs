//! Pages that are resident where the pager is in charge, and that it does not know: they would stay for
//! ever. The program may use pages again that `madvise` left, before the agent can see it.
//!
//! A page that was announced as dropped may be there still, and go at any moment: `madvise` drops a
//! moment after its event was read, and nothing says when. If it left before that, what was to be
//! dropped would come back with it. So first it is shown that whoever was dropping something has done
//! so, and of what is announced meanwhile nothing is taken.

use super::Pager;
use crate::RangeSet;
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use alloc::vec::Vec;
use core::ops::Bound;
use legato_base::{Duration, PageNumber, Time};

/// From the end of one search to the beginning of the next; twice as long each time that nothing was
/// found. To look through 100 GiB of far memory takes some 50 ms.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(64);
/// How often it is asked whether what was announced is done.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Looking for pages that the pager does not know.
#[derive(Debug, Default)]
pub(super) struct StraySearch {
    state: State,
    /// Not before that.
    at: Time,
    /// What was announced in the space since it is being searched.
    announced: RangeSet,
    /// This search has found some.
    has_found: bool,
    rest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Somebody may be dropping something.
    Waiting(SpaceId),
    /// From this page on.
    Searching(SpaceId, PageNumber),
}

impl StraySearch {
    fn begin(&mut self, space: SpaceId, now: Time) {
        self.state = State::Waiting(space);
        self.at = now;
        self.announced = RangeSet::new();
    }

    fn end(&mut self, now: Time) {
        let longer = Duration::from_nanos(2 * self.rest.as_nanos());
        self.rest = match core::mem::take(&mut self.has_found) {
            true => REST_MIN,
            false => longer.clamp(REST_MIN, REST_MAX),
        };
        self.state = State::Idle;
        self.at = now + self.rest;
        self.announced = RangeSet::new();
    }

    /// A range was dropped, or is gone.
    pub(super) fn leave_out(&mut self, space: SpaceId, range: PageRange) {
        if let State::Waiting(searched) | State::Searching(searched, _) = self.state
            && searched == space
        {
            self.announced.insert(range);
        }
    }
}

impl<K: Kernel> Pager<K> {
    /// Memory is short, and there is none to take charge of: perhaps there are pages that nobody knows.
    pub(super) fn suspect_strays(&mut self, now: Time) {
        if matches!(self.strays.state, State::Idle) && now >= self.strays.at {
            self.strays.begin(SpaceId::OWN, now);
        }
    }

    /// Goes on with a search.
    pub(super) fn search_strays(&mut self, now: Time) {
        match self.strays.state {
            State::Idle => {}
            State::Waiting(_) if now < self.strays.at => {}
            State::Waiting(space) => {
                if !self.kernel.can_evict(space) {
                    self.search_next_space(space, now);
                } else if self.kernel.has_dropped_all(space) {
                    self.strays.state = State::Searching(space, PageNumber(0));
                } else {
                    self.strays.at = now + ASK_AGAIN;
                }
            }
            State::Searching(space, from) => {
                let mut pages = Vec::new();
                let next = self.kernel.residents_from(space, from, &mut pages);
                for page in pages {
                    if !self.strays.announced.contains(page)
                        && let Some(queued) = self.adopt(SpacePage::new(space, page))
                    {
                        self.counters.pages_found_again += 1;
                        self.strays.has_found = true;
                        self.candidates.queues.inserted(queued);
                    }
                }
                match next {
                    Some(page) => self.strays.state = State::Searching(space, page),
                    None => self.search_next_space(space, now),
                }
            }
        }
    }

    fn search_next_space(&mut self, space: SpaceId, now: Time) {
        let after = (Bound::Excluded(space), Bound::Unbounded);
        match self.children.alive.range(after).next() {
            Some((&next, _)) => self.strays.begin(next, now),
            None => self.strays.end(now),
        }
    }
}
