//! What was read of an address space is followed, in the order of what it tells of.

use super::LinuxKernel;
use super::child::Child;
use super::child_ranges::ChildRanges;
use super::events::next_space;
use crate::uffd::Userfaultfd;
use crate::uffd::agent::now;
use crate::uffd::message::{Message, Newborn};
use crate::{Incoming, Kernel, SpaceEvent, SpaceId, SpacePage, order};
use core::cell::Cell;

pub(super) type Batch = order::Batch<Newborn>;
pub(super) type Order = order::Order<Newborn>;

impl LinuxKernel {
    /// Takes messages of a space that were read at once.
    pub(super) fn receive(&mut self, space: SpaceId, batch: Batch) {
        if batch.messages.is_empty() {
            return;
        }
        self.follow_survey(space, &batch.messages);
        self.order.entry(space).or_default().receive(batch, now());
    }

    /// Accepts what was received of a space in the order of what it tells of; some may have to wait.
    pub(super) fn accept_in_order(&mut self, space: SpaceId, incoming: &mut Incoming) {
        let mut order = self.order.remove(&space).unwrap_or_default();
        let settled = Cell::new(false);
        while let Some(armed) = self.armed(space) {
            let is_changing = || {
                let changing = self.space_is_changing(space);
                settled.set(settled.get() || !changing);
                changing
            };
            let Some(message) = order.next(armed, is_changing) else {
                break;
            };
            self.accept(space, message, incoming);
        }
        if settled.get() {
            self.settle_survey(space);
        }
        let is_waited_for = order.expects_echoes() || self.surveys.contains_key(&space);
        if !order.has_waiting() && is_waited_for && !self.space_is_changing(space) {
            order.settle();
            self.settle_survey(space);
        }
        self.order.insert(space, order);
    }

    pub(super) fn space_is_changing(&self, space: SpaceId) -> bool {
        self.space(space).is_some_and(Userfaultfd::is_changing)
    }

    /// Pages came or went, so no event is missing.
    pub(super) fn note_settled(&mut self, space: SpaceId) {
        if let Some(order) = self.order.get_mut(&space) {
            order.settle();
        }
        self.settle_survey(space);
    }

    /// True if threads of the space may be moving memory at the same time.
    pub(super) fn is_contested(&self, space: SpaceId) -> bool {
        let order = self.order.get(&space);
        order.is_some_and(|order| order.is_contested(now()))
    }

    /// The first memory of a space has been registered.
    pub(super) fn expect_events(&mut self, space: SpaceId) {
        self.order.entry(space).or_default().expect_events(now());
    }

    /// True if messages wait until no other is missing.
    pub(in crate::uffd) fn has_waiting(&self) -> bool {
        self.order.values().any(Order::has_waiting)
    }

    pub(super) fn accept(&mut self, space: SpaceId, message: Message, incoming: &mut Incoming) {
        if let Some(child) = self.children.get_mut(&space) {
            child.ranges.follow(&message);
        } else if space == SpaceId::OWN {
            // What the pager is not in charge of yet is found again where it is now.
            message.follow_in(&mut self.registered);
        }
        match message {
            Message::Fault {
                page,
                protected: true,
            } => {
                self.end_protection(space, page);
                incoming.written.push(SpacePage::new(space, page));
            }
            Message::Fault {
                page,
                protected: false,
            } => incoming.faults.push(SpacePage::new(space, page)),
            Message::Forked { child } => {
                let left_out = self.left_out_by_fork(space);
                let armed = self.armed(space).cloned().unwrap_or_default();
                self.last_space = next_space(self.last_space, &self.children);
                let id = SpaceId(self.last_space);
                let ranges = ChildRanges::inherited(armed, left_out.wiped);
                let Newborn { context, changes } = child;
                let changes = changes.into_iter().map(|message| (id, message));
                self.backlog.extend(changes);
                self.children.insert(id, Child::new(context, ranges));
                incoming.children.push(id);
                incoming.events.push(SpaceEvent::Forked {
                    parent: space,
                    child: id,
                });
                let removed = |range| SpaceEvent::Removed { space: id, range };
                incoming
                    .events
                    .extend(left_out.ranges.into_iter().map(removed));
            }
            Message::Remapped { from, to, .. } => {
                let event = SpaceEvent::Remapped { space, from, to };
                incoming.events.push(event);
            }
            Message::Removed { range, unmapped } => {
                if !unmapped && self.can_evict(space) {
                    self.unwatched.push((space, range));
                }
                incoming.events.push(SpaceEvent::Removed { space, range });
            }
        }
    }
}
