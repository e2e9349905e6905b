//! Pages that are resident where the pager is in charge, and that it does not know: they would stay for
//! ever. The program may use pages again that `madvise` left, and the agent may see that or not.
//!
//! A page that was announced as dropped may be there still, and go at any moment: `madvise` drops a
//! moment after its event was read, and nothing says when. If it left before that, what was to be
//! dropped would come back with it. So first it is shown that whoever was dropping something has done
//! so, and of what is announced meanwhile nothing is taken.

use super::Pager;
use crate::RangeSet;
use crate::entry::{Location, PageEntry};
use crate::replacement::Queued;
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use alloc::collections::VecDeque;
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
    /// What was announced in the space since it is being searched.
    announced: RangeSet,
    /// This search has found some.
    has_found: bool,
    rest: Duration,
    /// Pages that were found in use although they were to be dropped, in the order of their time.
    used: VecDeque<Used>,
    /// Those that it is asked for.
    asked: Vec<SpacePage>,
    /// The time of the last turn.
    now: Time,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    at: Time,
    page: SpacePage,
}

#[derive(Clone, Copy, Debug, Default)]
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
    /// From this page on.
    Searching(SpaceId, PageNumber),
}

#[derive(Clone, Copy, Debug)]
enum Sought {
    /// All that is there, in this space and then in the next.
    Everything,
    /// What was found in use.
    Used,
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
        self.announced = RangeSet::new();
    }

    /// A range was dropped, or is gone.
    pub(super) fn leave_out(&mut self, space: SpaceId, range: PageRange) {
        if let State::Waiting {
            space: searched, ..
        }
        | State::Searching(searched, _) = self.state
            && searched == space
        {
            self.announced.insert(range);
        }
        let stays = |page: SpacePage| page.space() != space || !range.contains(page.page());
        self.used.retain(|used| stays(used.page));
        self.asked.retain(|&page| stays(page));
    }

    /// A range's pages have got new addresses.
    pub(super) fn relocate(&mut self, space: SpaceId, from: PageRange, to: PageNumber) {
        let used = self.used.iter_mut().map(|used| &mut used.page);
        for page in used.chain(&mut self.asked) {
            if page.space() == space
                && let Some(moved) = from.moved(page.page(), to)
            {
                *page = SpacePage::new(space, moved);
            }
        }
    }

    /// True if a page will be looked at because it is in use.
    pub(super) fn has_in_use(&self, page: SpacePage) -> bool {
        let used = self.used.iter().map(|used| used.page);
        used.chain(self.asked.iter().copied())
            .any(|used| used == page)
    }

    /// From here on it is asked for all that was found in use in a space.
    fn ask_for_used(&mut self, space: SpaceId) {
        let is_there = |used: &Used| used.page.space() == space;
        let found = self.used.iter().filter(|used| is_there(used));
        self.asked = found.map(|used| used.page).collect();
        self.used.retain(|used| !is_there(used));
    }
}

impl<K: Kernel> Pager<K> {
    /// A page was present when its dropping was announced, and is in use: it was not dropped and will not
    /// be (MADV_FREE), or is being dropped.
    pub(super) fn handle_used(&mut self, page: SpacePage) {
        if self.table.entry(page).is_none() && self.kernel.can_evict(page.space()) {
            let at = self.strays.now;
            self.strays.used.push_back(Used { at, page });
        }
    }

    /// Memory is short, and there is none to take charge of: perhaps there are pages that nobody knows.
    pub(super) fn suspect_strays(&mut self, now: Time) {
        if matches!(self.strays.state, State::Idle) && now >= self.strays.at {
            self.wait_for_drops(SpaceId::OWN, Sought::Everything, now);
        }
    }

    fn wait_for_drops(&mut self, space: SpaceId, sought: Sought, now: Time) {
        self.kernel.note_dropping(space);
        self.strays.announced = RangeSet::new();
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
        match self.strays.state {
            State::Idle => {
                let first = self.strays.used.front();
                if let Some(&Used { at, page }) = first
                    && now >= at + USED_AFTER
                {
                    self.strays.ask_for_used(page.space());
                    self.wait_for_drops(page.space(), Sought::Used, now);
                }
            }
            State::Waiting { ask_at, .. } if now < ask_at => {}
            State::Waiting {
                space,
                sought,
                ref mut patience,
                ref mut ask_at,
            } => {
                let is_reached = self.kernel.can_evict(space);
                *ask_at = now + ASK_AGAIN;
                let is_long = patience.waited(now) >= DROPS;
                if is_reached && self.kernel.has_dropped_all(space) {
                    self.take_strays(space, sought);
                } else if !is_reached || is_long {
                    self.give_up(space, sought, now);
                }
            }
            State::Searching(space, from) => {
                let mut pages = Vec::new();
                let next = self.kernel.residents_from(space, from, &mut pages);
                for page in pages {
                    if !self.strays.announced.contains(page)
                        && self.adopt_again(SpacePage::new(space, page))
                    {
                        self.counters.pages_found_again += 1;
                        self.strays.has_found = true;
                    }
                }
                match next {
                    Some(page) => self.strays.state = State::Searching(space, page),
                    None => self.search_next_space(space, now),
                }
            }
        }
    }

    /// All is dropped that was announced before.
    fn take_strays(&mut self, space: SpaceId, sought: Sought) {
        match sought {
            Sought::Everything => self.strays.state = State::Searching(space, PageNumber(0)),
            Sought::Used => {
                self.strays.state = State::Idle;
                for page in core::mem::take(&mut self.strays.asked) {
                    if self.kernel.is_registered(page) {
                        self.adopt_again(page);
                    }
                }
            }
        }
    }

    /// Nothing can leave a space, or it is not to be told what is being dropped there.
    fn give_up(&mut self, space: SpaceId, sought: Sought, now: Time) {
        match sought {
            Sought::Everything => self.search_next_space(space, now),
            Sought::Used => {
                self.strays.state = State::Idle;
                for page in core::mem::take(&mut self.strays.asked) {
                    self.handle_used(page);
                }
            }
        }
    }

    fn search_next_space(&mut self, space: SpaceId, now: Time) {
        let after = (Bound::Excluded(space), Bound::Unbounded);
        match self.children.alive.range(after).next() {
            Some((&next, _)) => self.wait_for_drops(next, Sought::Everything, now),
            None => self.strays.end(now),
        }
    }

    /// False if the page is known.
    fn adopt_again(&mut self, page: SpacePage) -> bool {
        let queued = self.adopt(page);
        queued.is_some_and(|queued| {
            self.candidates.queues.inserted(queued);
            true
        })
    }

    /// A page that was resident before the pager was in charge of it; None if it is known.
    pub(super) fn adopt(&mut self, page: SpacePage) -> Option<Queued> {
        if self.table.entry(page).is_some() {
            return None;
        }
        let stamp = self.candidates.next_stamp();
        let location = Location::Resident;
        let entry = PageEntry {
            location,
            far: None,
            prefetched: false,
            unseen: true,
            returning: false,
            stamp,
        };
        self.table.insert(page, entry);
        self.candidates.count += 1;
        Some(Queued { page, stamp })
    }
}
