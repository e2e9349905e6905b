//! The agent reads what a simulated address space has to say, and follows it in order.

use super::announcements::Reading;
use super::defect::Defect;
use super::kernel::SimKernel;
use legato_base::{Duration, PageNumber, Time};
use legato_pager::order::{Batch, Inheritance, Message, Sequence, was_there};
use legato_pager::{Incoming, SpaceEvent, SpaceId, SpacePage};

/// A thread that is taken off its processor before it announces something, and one that is not.
const LATE: u64 = 2_000_000;
const SLOW: u64 = 20_000;
/// One reading in so many that finds faults finds nothing else.
const FAULTS_ONLY_EVERY: u64 = 4;

impl SimKernel {
    /// What the agent does from here on is done at this time.
    pub(super) const fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// From a change to its announcement.
    fn announcing_delay(&mut self) -> Duration {
        if let Some(delay) = self.next_delay.take() {
            return delay;
        }
        let nanoseconds = match self.random.below(16) {
            _ if self.steady => 0,
            0 => self.random.below(LATE),
            1..5 => self.random.below(SLOW),
            _ => 0,
        };
        Duration::from_nanos(nanoseconds)
    }

    /// A thread has changed its address space. Returns the number of its call, which waits until all
    /// of this was read.
    pub(super) fn announce(
        &mut self,
        space: SpaceId,
        messages: impl IntoIterator<Item = Message<SpaceId>>,
    ) -> u64 {
        let (now, delay) = (self.now, self.announcing_delay());
        let announcements = &mut self.space_mut(space).announcements;
        announcements.add(messages, now, delay)
    }

    /// As an agent reads that knows that threads are late (`uffd::linux_kernel::gather`).
    fn reading(&self, space: SpaceId) -> Reading {
        let is_contested = self.spaces.get(&space).is_some_and(|place| {
            place.order.is_contested(self.now) || place.announcements.has_moves()
        });
        if is_contested && !self.follows_at_once {
            Reading::Gathered
        } else {
            Reading::AtOnce
        }
    }

    pub(super) fn has_messages(&self, now: Time) -> bool {
        self.spaces.iter().any(|(&space, place)| {
            let waits = place.order.has_waiting() && !place.is_changing(now);
            let is_ready = || place.announcements.is_ready(self.reading(space), now);
            place.known && (!place.faults.is_empty() || waits || is_ready())
        })
    }

    /// When there may be more to read.
    pub(super) fn announced_at(&self, now: Time) -> Time {
        let known = self.spaces.values().filter(|place| place.known);
        let next = known.map(|place| place.announcements.next_at(now));
        next.min().unwrap_or(Time::NEVER)
    }

    /// Reads what waits. A read gives faults before events, so events may stay unread for a while.
    pub(super) fn read_messages(&mut self, incoming: &mut Incoming) {
        let known = self.spaces.iter().filter(|(_, place)| place.known);
        let spaces: Vec<SpaceId> = known.map(|(&space, _)| space).collect();
        for space in spaces {
            let batch = self.read_from(space);
            if self.follows_at_once {
                let messages = batch.messages.into_iter();
                messages.for_each(|message| self.accept(space, message, incoming));
                continue;
            }
            self.receive(space, batch);
            self.accept_in_order(space, incoming);
        }
    }

    fn read_from(&mut self, space: SpaceId) -> Batch<SpaceId> {
        let (now, reading) = (self.now, self.reading(space));
        let place = self.space_mut(space);
        let is_ready = place.announcements.is_ready(reading, now);
        let faults = place.faults.drain(..).map(|page| Message::Fault {
            page: PageNumber(page),
            protected: false,
            thread: 0,
        });
        let mut messages: Vec<_> = faults.collect();
        let faults_only = !messages.is_empty() && self.happens(FAULTS_ONLY_EVERY);
        if is_ready && !faults_only {
            let mut announcements = std::mem::take(&mut self.space_mut(space).announcements);
            messages.extend(announcements.read(now, || self.announcing_delay()));
            self.space_mut(space).announcements = announcements;
        }
        let mut batch = Batch {
            messages,
            sequence: match reading {
                Reading::AtOnce => Sequence::AtOnce,
                Reading::Gathered => Sequence::Simultaneous,
            },
            inheritances: Vec::new(),
        };
        if self.follows_at_once {
            return batch;
        }
        let mut order = std::mem::take(&mut self.space_mut(space).order);
        if let Some(place) = self.spaces.get(&space) {
            let ask =
                |child: &mut SpaceId, pages: &[PageNumber]| Some(self.inherited(*child, pages));
            order.ask_children(&mut batch, &place.armed, || place.mapped(), ask);
        }
        self.space_mut(space).order = order;
        batch
    }

    /// Asks the child of a fork what was registered in it then: what it has changed since it has announced.
    fn inherited(&self, child: SpaceId, pages: &[PageNumber]) -> Inheritance {
        let is_there = |page: &PageNumber| {
            let child = self.spaces.get(&child);
            child.is_some_and(|child| {
                let was_there = was_there(child.announcements.iter(), *page);
                was_there.unwrap_or_else(|| child.registered.contains(&page.0))
            })
        };
        pages.iter().map(|page| (*page, is_there(page))).collect()
    }

    fn receive(&mut self, space: SpaceId, batch: Batch<SpaceId>) {
        let now = self.now;
        let place = self.space_mut(space);
        for message in &batch.messages {
            let places = [message.vacated(), message.arrival()];
            // What was found there may have been what is gone, or not: it is found again.
            let gone = |page: &u64| {
                let mut places = places.iter().flatten();
                places.any(|range| range.contains(PageNumber(*page)))
            };
            place.found.retain(|page, _| !gone(page));
        }
        place.order.receive(batch, now);
    }

    fn accept_in_order(&mut self, space: SpaceId, incoming: &mut Incoming) {
        let now = self.now;
        let mut order = std::mem::take(&mut self.space_mut(space).order);
        loop {
            let place = self.space_mut(space);
            let is_registered = |page: PageNumber| Some(place.registered.contains(&page.0));
            let is_changing = || place.is_changing(now);
            let Some(message) = order.next(&place.armed, is_changing, is_registered) else {
                break;
            };
            self.accept(space, message, incoming);
        }
        let place = self.space_mut(space);
        if !order.has_waiting() && !place.is_changing(now) {
            order.settle();
        }
        place.order = order;
    }

    fn accept(&mut self, space: SpaceId, message: Message<SpaceId>, incoming: &mut Incoming) {
        let ignores_removals = self.defect == Some(Defect::RemovalsIgnored);
        let place = self.space_mut(space);
        message.follow_in_armed(&mut place.armed);
        message.follow_in(&mut place.in_charge);
        match message {
            Message::Fault { page, .. } => incoming.faults.push(SpacePage::new(space, page)),
            Message::Forked { child } => {
                let armed = place.armed.clone();
                // One that was ended before it began may be gone.
                if let Some(copy) = self.spaces.get_mut(&child) {
                    copy.armed = armed;
                    copy.known = true;
                }
                incoming.children.push(child);
                let parent = space;
                incoming.events.push(SpaceEvent::Forked { parent, child });
            }
            Message::Remapped { from, to, .. } => {
                let event = SpaceEvent::Remapped { space, from, to };
                incoming.events.push(event);
            }
            Message::Removed { range, .. } if !ignores_removals => {
                incoming.events.push(SpaceEvent::Removed { space, range });
            }
            Message::Removed { .. } => {}
        }
    }
}
