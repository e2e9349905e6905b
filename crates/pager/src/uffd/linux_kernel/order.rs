//! Events that come in another order than the changes that they tell of.
//!
//! The kernel announces what was moved or unmapped after it has let the address space go
//! (`mremap_userfaultfd_complete` and `userfaultfd_unmap_complete` in fs/userfaultfd.c), and hands an
//! address out again at once. `mremap` announces up to three times, each time waiting until that was
//! read: that its target was unmapped, that memory was moved, and that the old place is unmapped.
//! Meanwhile another thread may have got the old place, have moved memory there, and have announced
//! that. So:
//!
//! * What is read at once of several threads is of different ones, and what came before any of it is in
//!   it or was read earlier ([`super::gather`]). So it has one order, but for mappings that grew
//!   meanwhile, which nobody announces ([`untangled`]). One thread announces in order, and as soon as
//!   it has been read it announces more: that stays as it was read.
//! * That the old place of a move is unmapped says nothing that the move did not say, and is expected
//!   and passed over, once for each move ([`Order::echoes`]). If it is not said by the time that no event
//!   is missing, the old place is still mapped (MREMAP_DONTUNMAP), and may be moved from again.
//! * A move, and all that is read after it, waits until no event is missing. Until all are read the
//!   kernel lets no page in or out (`mmap_changing`), and by that it also tells.
//! * A call that announces several times was done before its first announcement was read, and so before
//!   what came to a place that it says to be given up at the next reading: who has moved memory there has
//!   not even returned from the call by then ([`in_order_of_doing`]).
//! * Only where something had to be read before all was there (a thread that gets no CPU, a move that was
//!   announced after it had been looked for) is what was read put in order, by what is known to be mapped:
//!   nothing is moved from where nothing is, or to where something is ([`put_in_order`]).
//!
//! Not all can be told apart: a mapping that grows to where another was, and is cut again, before that
//! one's thread has announced its move. That is taken as it seems most likely.

mod repair;

use super::LinuxKernel;
use crate::range_set::RangeSet;
use crate::uffd::Userfaultfd;
use crate::uffd::agent::now;
use crate::uffd::message::Message;
use crate::{Incoming, PageRange, SpaceId};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use legato_base::{Duration, Time};
use repair::{in_order_of_doing, is_move, put_in_order, untangled};

/// So many messages wait at most. Threads that change the address space all the time and never wait
/// for a page would have it never settle.
const WAITING_MAX: usize = 512;

/// So long after a thread has moved memory, others are expected to do so too; and so long after the
/// agent has begun to read events, when nothing is known yet.
const CONTESTED: Duration = Duration::from_secs(1);

/// What is to be kept in mind of the events of one space.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Messages that were read and not accepted.
    waiting: VecDeque<Waiting>,
    /// Those that can be accepted, before all that wait.
    ready: VecDeque<Message>,
    /// Counts readings that brought changes.
    readings: u64,
    /// Something was read before all that came before it.
    incomplete: bool,
    /// Ranges that will be announced as unmapped because they were moved.
    echoes: Vec<PageRange>,
    /// Threads may get in each other's way.
    contested_until: Time,
}

/// A message, and which of the readings brought it.
#[derive(Debug)]
struct Waiting {
    message: Message,
    /// None if its order says more than the reading.
    simultaneous: Option<u64>,
}

/// Messages that were read at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) messages: Vec<Message>,
    pub(super) sequence: Sequence,
}

/// What the order is worth in which messages were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sequence {
    /// It is the order of what they tell of: they are one thread's, or tell of no moves.
    AsDone,
    /// Each is of another thread. What was done before is in them or was read earlier.
    Simultaneous,
    /// Something may be missing that was done before.
    #[default]
    Incomplete,
}

impl From<Message> for Batch {
    fn from(message: Message) -> Self {
        Self {
            messages: vec![message],
            sequence: Sequence::AsDone,
        }
    }
}

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
        let is_waited_for = !order.echoes.is_empty() || self.surveys.contains_key(&space);
        if order.waiting.is_empty() && is_waited_for && !self.space_is_changing(space) {
            order.echoes.clear();
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
            order.echoes.clear();
        }
        self.settle_survey(space);
    }

    /// True if threads of the space may be moving memory at the same time.
    pub(super) fn is_contested(&self, space: SpaceId) -> bool {
        let order = self.order.get(&space);
        order.is_some_and(|order| now() < order.contested_until)
    }

    /// The first memory of a space has been registered.
    pub(super) fn expect_events(&mut self, space: SpaceId) {
        let order = self.order.entry(space).or_default();
        order.contested_until = now() + CONTESTED;
    }

    /// True if messages wait until no other is missing.
    pub(super) fn has_waiting(&self) -> bool {
        self.order.values().any(|order| !order.waiting.is_empty())
    }
}

impl Order {
    /// Takes messages that were read at once.
    fn receive(&mut self, batch: Batch, now: Time) {
        let Batch { messages, sequence } = batch;
        let is_change = |message: &Message| !matches!(message, Message::Fault { .. });
        let has_changes = messages.iter().any(is_change);
        self.incomplete |= sequence == Sequence::Incomplete && has_changes;
        self.readings += u64::from(has_changes);
        let simultaneous = (sequence == Sequence::Simultaneous).then_some(self.readings);
        if messages.iter().any(is_move) {
            self.contested_until = self.contested_until.max(now + CONTESTED);
        }
        let messages = match sequence {
            Sequence::Simultaneous => untangled(messages),
            Sequence::AsDone | Sequence::Incomplete => messages,
        };
        for message in messages {
            match message {
                Message::Remapped { from, .. } => self.echoes.push(from),
                Message::Removed {
                    range,
                    unmapped: true,
                } => {
                    if let Some(echo) = self.echoes.iter().position(|&echo| echo == range) {
                        self.echoes.swap_remove(echo);
                        continue;
                    }
                }
                _ => {}
            }
            self.waiting.push_back(Waiting {
                message,
                simultaneous,
            });
        }
    }

    /// The next message to accept, if any can be. `armed` is what is registered as far as the
    /// messages accepted so far tell.
    fn next(&mut self, armed: &RangeSet, is_changing: impl Fn() -> bool) -> Option<Message> {
        if let Some(message) = self.ready.pop_front() {
            return Some(message);
        }
        if !is_move(&self.waiting.front()?.message) {
            return Some(self.waiting.pop_front()?.message);
        }
        let is_settled = !is_changing();
        if !is_settled && self.waiting.len() < WAITING_MAX {
            return None;
        }
        if is_settled {
            self.mark_kept();
        }
        let mut ordered = in_order_of_doing(core::mem::take(&mut self.waiting));
        if self.incomplete {
            put_in_order(&mut ordered, armed);
            self.incomplete = !is_settled;
        }
        self.ready = ordered.into();
        self.ready.pop_front()
    }

    /// No event is missing: moves whose old places were not announced as unmapped have kept them. Of
    /// several from the same place that is all but the last.
    fn mark_kept(&mut self) {
        for waiting in &mut self.waiting {
            if let Message::Remapped { from, kept, .. } = &mut waiting.message
                && let Some(echo) = self.echoes.iter().position(|echo| echo == from)
            {
                self.echoes.swap_remove(echo);
                *kept = true;
            }
        }
        self.echoes.clear();
    }
}

#[cfg(test)]
mod tests;
