//! What threads have done to an address space and the pager has not read yet.
//!
//! A change is announced after it was made, when its thread gets to it; and as soon as one announcement
//! of a call was read, the thread is on its way to the next. So what is read of several threads may be in
//! another order than it was done (`mremap_userfaultfd_complete` in fs/userfaultfd.c).

use legato_base::{Duration, Time};
use legato_pager::SpaceId;
use legato_pager::order::Message;
use std::collections::VecDeque;

/// Announcements of all threads of a space.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    calls: Vec<Call>,
    /// Calls of which all was read, and until when their threads are on their way.
    read: Vec<(u64, Time)>,
    last: u64,
}

/// One of a call, whose thread goes on when all was read.
#[derive(Debug)]
struct Call {
    id: u64,
    done_at: Time,
    /// From then on the next one can be read.
    queued_at: Time,
    messages: VecDeque<Message<SpaceId>>,
    moves: bool,
}

/// What the agent reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// What there is.
    AtOnce,
    /// Nothing as long as somebody is late who has done something before.
    Gathered,
}

impl Announcements {
    /// Returns the number of the call.
    pub(super) fn add(
        &mut self,
        messages: impl IntoIterator<Item = Message<SpaceId>>,
        done_at: Time,
        delay: Duration,
    ) -> u64 {
        self.last += 1;
        let messages = VecDeque::from_iter(messages);
        self.calls.push(Call {
            id: self.last,
            done_at,
            queued_at: done_at + delay,
            moves: messages.iter().any(Message::is_move),
            messages,
        });
        self.last
    }

    /// True once all of a call was read.
    pub(super) fn is_over(&self, id: u64) -> bool {
        self.calls.iter().all(|call| call.id != id)
    }

    /// True until the thread of every call has gone on (`mmap_changing` in fs/userfaultfd.c).
    pub(super) fn is_changing(&self, now: Time) -> bool {
        !self.calls.is_empty() || self.read.iter().any(|&(_, until)| until > now)
    }

    /// The thread of a call of which all was read goes on.
    pub(super) fn go_on(&mut self, id: u64) {
        self.read.retain(|&(read, _)| read != id);
    }

    /// All that was not read. Of one thread it is in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Message<SpaceId>> {
        self.calls.iter().flat_map(|call| &call.messages)
    }

    /// The threads are gone.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.read.clear();
    }

    /// True while a thread is in `mremap`.
    pub(super) fn has_moves(&self) -> bool {
        self.calls.iter().any(|call| call.moves)
    }

    /// True if something can be read.
    pub(super) fn is_ready(&self, reading: Reading, now: Time) -> bool {
        let queued = self.calls.iter().map(|call| call.queued_at);
        let last = queued.filter(|&at| at <= now).max();
        let is_late = |call: &Call, last| call.queued_at > now && call.done_at <= last;
        last.is_some_and(|last| {
            reading == Reading::AtOnce || !self.calls.iter().any(|call| is_late(call, last))
        })
    }

    /// When the next thread announces something, or goes on.
    pub(super) fn next_at(&self, now: Time) -> Time {
        let queued = self.calls.iter().map(|call| call.queued_at);
        let going_on = self.read.iter().map(|&(_, until)| until);
        queued
            .chain(going_on)
            .filter(|&at| at > now)
            .min()
            .unwrap_or(Time::NEVER)
    }

    /// Reads what there is, in the order in which it was announced. Whoever has more to announce does so
    /// after a delay.
    pub(super) fn read(
        &mut self,
        now: Time,
        mut delay: impl FnMut() -> Duration,
    ) -> Vec<Message<SpaceId>> {
        self.calls.sort_by_key(|call| (call.queued_at, call.id));
        let mut read = Vec::new();
        for call in &mut self.calls {
            if call.queued_at <= now {
                read.extend(call.messages.pop_front());
                call.queued_at = now + delay();
            }
        }
        let over = self.calls.extract_if(.., |call| call.messages.is_empty());
        // When it goes on is when it would have announced more.
        self.read.retain(|&(_, until)| until > now);
        self.read.extend(over.map(|call| (call.id, call.queued_at)));
        read
    }
}
