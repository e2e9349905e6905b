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
//!   it or was read earlier (`uffd::linux_kernel::gather`). So it has one order, but for mappings that grew
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
//! * A fork beside changes of other threads comes where what the child has inherited says that it does
//!   ([`Order::ask_children`]). What was announced as dropped is dropped after that was read, and so after
//!   all forks that were read with it.
//! * Threads that move no memory are not waited for ([`Sequence::AtOnce`]): a fork, or what it concerns,
//!   may have been done earlier and be announced later. So what they unmap, and forks, wait until no event
//!   is missing, or too much waits ([`WAITING_MAX`]).
//! * Only where something had to be read before all was there (a thread that gets no CPU, a move that was
//!   announced after it had been looked for) is what was read put in order, by what is known to be mapped:
//!   nothing is moved from where nothing is, or to where something is ([`put_in_order`]).
//!
//! Not all can be told apart: a mapping that grows to where another was, and is cut again, before that
//! one's thread has announced its move, or before a fork. That is taken as it seems most likely. And what was
//! announced as dropped beside a fork that was done before and read later counts as dropped before the fork.

mod forks;
mod message;
mod repair;

use crate::PageRange;
use crate::RangeSet;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
pub use forks::{Inheritance, was_there};
use forks::{forks_first, place_fork};
use legato_base::{Duration, PageNumber, Time};
pub use message::Message;
use repair::{in_order_of_doing, put_in_order, untangled};

/// So many messages wait at most. Threads that change the address space all the time and never wait
/// for a page would have it never settle.
const WAITING_MAX: usize = 512;

/// So long after a thread has moved memory, others are expected to do so too; and so long after the
/// agent has begun to read events, when nothing is known yet.
const CONTESTED: Duration = Duration::from_secs(1);

/// What is to be kept in mind of the events of one space. Of a forked child they have a `C`.
#[derive(Debug)]
pub struct Order<C> {
    /// Messages that were read and not accepted.
    waiting: VecDeque<Waiting<C>>,
    /// Those that can be accepted, before all that wait.
    ready: VecDeque<Message<C>>,
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
struct Waiting<C> {
    message: Message<C>,
    reading: u64,
    sequence: Sequence,
    /// It waits until no event is missing.
    held: bool,
    /// Of a fork that others were read with, what the child has inherited.
    inheritance: Inheritance,
}

impl<C> Waiting<C> {
    const fn is_in_question(&self) -> bool {
        !self.inheritance.is_empty()
    }
}

/// Messages that were read at once.
#[derive(Debug)]
pub struct Batch<C> {
    pub messages: Vec<Message<C>>,
    pub sequence: Sequence,
    /// Of each fork among them what the child has inherited; none if nothing is in question
    /// ([`Order::ask_children`]).
    pub inheritances: Vec<Inheritance>,
}

/// What the order is worth in which messages were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequence {
    /// It is the order of what they tell of: they are one thread's, or tell of no moves.
    AsDone,
    /// Each is of another thread. What was done before is in them or was read earlier.
    Simultaneous,
    /// Each is of another thread, and none moves memory. What was done before may come later.
    AtOnce,
    /// Something may be missing that was done before, a move too.
    #[default]
    Incomplete,
}

impl Sequence {
    /// What was done before may come later.
    const fn is_open(self) -> bool {
        matches!(self, Self::AtOnce | Self::Incomplete)
    }
}

impl<C> Default for Batch<C> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            sequence: Sequence::default(),
            inheritances: Vec::new(),
        }
    }
}

impl<C> From<Message<C>> for Batch<C> {
    fn from(message: Message<C>) -> Self {
        Self {
            messages: vec![message],
            sequence: Sequence::AsDone,
            inheritances: Vec::new(),
        }
    }
}

impl<C> Default for Order<C> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            readings: 0,
            incomplete: false,
            echoes: Vec::new(),
            contested_until: Time::ZERO,
        }
    }
}

impl<C> Order<C> {
    /// True if threads of the space may be moving memory at the same time.
    pub fn is_contested(&self, now: Time) -> bool {
        now < self.contested_until
    }

    /// The first memory of the space has been registered.
    pub fn expect_events(&mut self, now: Time) {
        self.contested_until = now + CONTESTED;
    }

    /// True if messages wait until no other is missing.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Children whose forks wait.
    pub fn waiting_children(&mut self) -> impl Iterator<Item = &mut C> {
        let waiting = self.waiting.iter_mut();
        waiting.filter_map(|waiting| waiting.message.child_mut())
    }

    /// True if old places of moves are expected to be announced as unmapped.
    pub fn expects_echoes(&self) -> bool {
        !self.echoes.is_empty()
    }

    /// No event is missing.
    pub fn settle(&mut self) {
        self.echoes.clear();
    }

    /// Takes messages that were read at once.
    pub fn receive(&mut self, batch: Batch<C>, now: Time) {
        let Batch {
            messages,
            sequence,
            inheritances,
        } = batch;
        let held = !inheritances.is_empty();
        let mut inheritances = inheritances.into_iter();
        let has_changes = messages.iter().any(Message::is_change);
        self.incomplete |= sequence == Sequence::Incomplete && has_changes;
        self.readings += u64::from(has_changes);
        if messages.iter().any(Message::is_move) {
            self.contested_until = self.contested_until.max(now + CONTESTED);
        }
        let messages = match sequence {
            Sequence::Simultaneous => untangled(messages),
            Sequence::AsDone | Sequence::AtOnce | Sequence::Incomplete => messages,
        };
        for message in forks_first(messages) {
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
            let inheritance = match message {
                Message::Forked { .. } => inheritances.next().unwrap_or_default(),
                _ => Inheritance::new(),
            };
            self.waiting.push_back(Waiting {
                held: held && message.is_change() || sequence.is_open() && message.may_come_late(),
                message,
                reading: self.readings,
                sequence,
                inheritance,
            });
        }
    }

    /// The next message to accept, if any can be. `armed` is what is registered as far as the
    /// messages accepted so far tell. `is_registered` says of a page whether it is so now, and None while
    /// the address space is changing.
    pub fn next(
        &mut self,
        armed: &RangeSet,
        is_changing: impl Fn() -> bool,
        is_registered: impl Fn(PageNumber) -> Option<bool>,
    ) -> Option<Message<C>> {
        if let Some(message) = self.ready.pop_front() {
            return Some(message);
        }
        let front = self.waiting.front()?;
        if !front.message.is_move() && !front.held {
            return Some(self.waiting.pop_front()?.message);
        }
        let is_settled = !is_changing();
        if !is_settled && !self.is_full() {
            return None;
        }
        if is_settled {
            self.mark_kept();
            self.forget_grown(armed, is_registered)?;
        }
        let waiting = core::mem::take(&mut self.waiting).into_iter();
        let (forks, others): (Vec<_>, _) = waiting.partition(Waiting::is_in_question);
        let mut ordered = in_order_of_doing(others.into());
        if self.incomplete {
            put_in_order(&mut ordered, armed);
            self.incomplete = !is_settled;
        }
        for fork in forks {
            place_fork(&mut ordered, fork, armed);
        }
        self.ready = ordered.into_iter().map(|waiting| waiting.message).collect();
        self.ready.pop_front()
    }

    /// Takes a message back that was the next, to give it out again when no event is missing.
    pub fn put_back(&mut self, message: Message<C>) {
        self.ready.push_front(message);
        for message in self.ready.drain(..).rev() {
            self.waiting.push_front(Waiting {
                message,
                reading: self.readings,
                sequence: Sequence::AsDone,
                held: true,
                inheritance: Inheritance::new(),
            });
        }
    }

    /// True if so much waits that nothing waits any longer.
    fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// True if one of the messages that were read and not accepted brings memory to some of these pages.
    pub fn brings_to(&self, range: PageRange) -> bool {
        let waiting = self.waiting.iter().map(|waiting| &waiting.message);
        let mut arrivals = self
            .ready
            .iter()
            .chain(waiting)
            .filter_map(Message::arrival);
        arrivals.any(|place| place.overlaps(range))
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
