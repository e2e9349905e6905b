//! Where the copies of pages are: only what has none is lost, and no node is given up that can be reached.

use super::content::{is_page_of, value_of};
use super::failure::FailureKind;
use super::state::World;
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Duration, PageNumber, Time};
use legato_pager::{Incoming, Newest, NodeIndex, SpaceEvent, SpacePage};
use std::collections::BTreeMap;

/// So long after a node was given up, fetches of its pages may still end.
const ENDS: Duration = Duration::from_secs(1);

/// The newest content of all pages before a turn of the agent, and what it will hear in it of the address space.
pub(super) struct Copies {
    newest: BTreeMap<SpacePage, Newest>,
    events: Vec<SpaceEvent>,
}

impl Copies {
    /// The newest content of a page, which may have got its address in this turn.
    fn of(&self, page: SpacePage) -> Option<Newest> {
        let moved = self.events.iter().rev().find_map(|event| match *event {
            SpaceEvent::Remapped { space, from, to }
                if space == page.space() && (to.0..to.0 + from.count).contains(&page.page().0) =>
            {
                let from = PageNumber(from.start.0 + (page.page().0 - to.0));
                self.newest.get(&SpacePage::new(space, from))
            }
            SpaceEvent::Forked { parent, child } if child == page.space() => {
                self.newest.get(&SpacePage::new(parent, page.page()))
            }
            _ => None,
        });
        moved.or_else(|| self.newest.get(&page)).copied()
    }
}

impl World {
    /// Returns the copies before a turn, if pages may be lost in it.
    pub(super) fn copies_before(&self, incoming: &Incoming, now: Time) -> Option<Copies> {
        // Only so the fabric learns something.
        let hears = self.provider.has_work() || self.pager_deadline <= now;
        if !hears || self.pages_may_be_lost {
            return None;
        }
        let may_lose = self.nodes.iter().any(|node| {
            node.may_be_given_up(now)
                && node
                    .given_up_at
                    .is_none_or(|given_up_at| now.since(given_up_at) < ENDS)
        });
        may_lose.then(|| Copies {
            newest: self.pager.newest().collect(),
            events: incoming.events.clone(),
        })
    }

    /// The pager has given a node up.
    pub(super) fn note_given_up(&mut self, index: NodeIndex, now: Time) -> Result<(), FailureKind> {
        let index = index.0 as usize;
        let node = &mut self.nodes[index];
        if !node.may_be_given_up(now) {
            return Err(FailureKind::GivenUp { node: index });
        }
        node.given_up_at = Some(now);
        Ok(())
    }

    /// Checks that pages lost in a turn were at a node that may be given up, and nowhere else.
    pub(super) fn check_losses(&mut self, before: Option<Copies>) -> Result<(), FailureKind> {
        let lost = self.pager.stats().counters.pages_lost;
        let count = lost - std::mem::replace(&mut self.pages_lost, lost);
        if count == 0 || self.pages_may_be_lost {
            return Ok(());
        }
        let Some(before) = before else {
            return Err(FailureKind::LostWithoutReason { count });
        };
        let lost = self.pager.newest().filter(|(_, it)| *it == Newest::Lost);
        for (page, _) in lost {
            let copy = match before.of(page) {
                Some(Newest::Here) => Some("in the program's machine"),
                Some(Newest::Far(Some((node, _)))) => {
                    let node = &self.nodes[node.0 as usize];
                    let is_gone = node.may_be_given_up(self.now());
                    (!is_gone).then_some("at a node that can be reached")
                }
                Some(Newest::Far(None) | Newest::Lost) => None,
                None => Some("never made"),
            };
            let space = self.pager.kernel().spaces.get(&page.space());
            let is_present = space.is_some_and(|space| space.present.contains_key(&page.page().0));
            if let Some(place) = copy.or(is_present.then_some("in the program")) {
                return Err(FailureKind::LostWithCopy {
                    space: page.space(),
                    page: page.page(),
                    place,
                });
            }
        }
        Ok(())
    }

    /// The touch of a page may end in SIGBUS. Where the pager has yet to follow the address space, or to hear of
    /// it, what it knows is somewhere else; and of what is announced as dropped it knows nothing any more.
    pub(super) fn may_be_lost(&self, page: SpacePage) -> bool {
        let place = self.pager.kernel().spaces.get(&page.space());
        let is_settled = place.is_some_and(|place| {
            let is_dropped = place.is_being_dropped(page.page().0);
            place.known && place.is_followed(self.now()) && !is_dropped
        });
        self.pages_may_be_lost || self.pager.is_lost(page) || !is_settled
    }

    /// The slot in which alone a page is has its content, at every node that has not lost it.
    pub(super) fn check_slots(&self) -> Result<(), FailureKind> {
        let (kernel, now) = (self.pager.kernel(), self.now());
        let mut slot = [0; SLOT_STRIDE];
        for (page, newest) in self.pager.newest() {
            let Newest::Far(Some((node, place))) = newest else {
                continue;
            };
            let Some(space) = kernel.spaces.get(&page.space()) else {
                continue;
            };
            let index = node.0 as usize;
            let node = &self.nodes[index];
            let is_settled = space.is_followed(now) && !space.ended;
            if node.may_be_given_up(now) || self.pages_may_be_lost || !is_settled {
                continue;
            }
            let allowed = self.model.allowed(page.space(), page.page().0);
            let is_there = node.peek(place, &mut slot);
            let found = slot.last_chunk().filter(|_| is_there);
            let is_right = |content| allowed.iter().any(|&value| is_page_of(content, value));
            if !found.is_some_and(is_right) {
                return Err(FailureKind::WrongCopy {
                    space: page.space(),
                    page: page.page(),
                    node: index,
                    found: found.and_then(value_of),
                    allowed: allowed.to_vec(),
                });
            }
        }
        Ok(())
    }
}
