//! What was read of an address space is followed, in the order of what it tells of.

use super::LinuxKernel;
use super::child::Child;
use super::events::next_space;
use super::ranges::Ranges;
use super::space::Space;
use super::undone::Happened;
use crate::uffd::agent::now;
use crate::uffd::message::{Message, Newborn};
use crate::{Incoming, Kernel, PageRange, SpaceEvent, SpaceId, SpacePage, order};
use core::cell::Cell;

pub(super) type Batch = order::Batch<Newborn>;
pub(super) type Order = order::Order<Newborn>;

impl LinuxKernel {
    /// Takes messages of a space that were read at once.
    pub(super) fn receive(&mut self, id: SpaceId, batch: Batch) {
        if let Some(space) = self.space_mut(id) {
            space.receive(batch, now());
        }
    }

    /// Accepts what was received of a space in the order of what it tells of; some may have to wait.
    pub(super) fn accept_in_order(&mut self, id: SpaceId, incoming: &mut Incoming) {
        let order = self.space_mut(id).map(|space| &mut space.order);
        let Some(mut order) = order.map(core::mem::take) else {
            return;
        };
        let settled = Cell::new(false);
        while let Some(space) = self.space(id) {
            let is_changing = || {
                let changing = space.context.is_changing();
                settled.set(settled.get() || !changing);
                changing
            };
            let is_registered = |page| {
                let page = PageRange::new(page, 1);
                space.context.is_registered(page).ok()
            };
            let Some(message) = order.next(&space.ranges.armed, is_changing, is_registered) else {
                break;
            };
            match self.has_happened(id, &message, &order) {
                Happened::Yes => self.accept(id, message, incoming),
                Happened::No => {}
                Happened::Unknown => {
                    order.put_back(message);
                    break;
                }
            }
        }
        if let Some(space) = self.space_mut(id) {
            let is_waited_for = order.expects_echoes() || space.survey.is_some();
            let is_all = !order.has_waiting() && is_waited_for && !space.context.is_changing();
            if is_all {
                order.settle();
            }
            if is_all || settled.get() {
                space.settle_survey();
            }
            space.order = order;
        }
    }

    /// Pages came or went, so no event is missing.
    pub(super) fn note_settled(&mut self, id: SpaceId) {
        if let Some(space) = self.space_mut(id) {
            space.note_settled();
        }
    }

    /// True if messages wait until no other is missing.
    pub(in crate::uffd) fn has_waiting(&self) -> bool {
        self.spaces().any(|space| space.order.has_waiting())
    }

    pub(super) fn accept(&mut self, space: SpaceId, message: Message, incoming: &mut Incoming) {
        if let Some(Space { ranges, .. }) = self.space_mut(space) {
            ranges.follow(&message);
        }
        match message {
            Message::Fault {
                page,
                protected: true,
                ..
            } => {
                self.end_protection(space, page);
                incoming.written.push(SpacePage::new(space, page));
            }
            Message::Fault {
                page,
                protected: false,
                ..
            } => incoming.faults.push(SpacePage::new(space, page)),
            Message::Forked { child } => {
                let Newborn {
                    context,
                    changes,
                    left_out,
                    handed_over,
                } = child;
                let left_out = self.left_out_by_fork(space, left_out);
                let parent = self.space(space);
                let armed = parent.map(|parent| parent.ranges.armed.clone());
                self.last_space = next_space(self.last_space, &self.children);
                let id = SpaceId(self.last_space);
                let ranges = Ranges::inherited(armed.unwrap_or_default(), left_out.wiped);
                let changes = changes.into_iter().map(|message| (id, message));
                self.backlog.extend(changes);
                self.children.insert(id, Child::new(context, ranges));
                if !handed_over {
                    incoming.children.push(id);
                }
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
