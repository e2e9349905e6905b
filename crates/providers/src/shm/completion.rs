//! Completion queues with a ledger: an entry is reserved for each request that a queue pair can
//! have outstanding, so an overrun cannot happen. One-shot arming (`ibv_req_notify_cq(3)`).

use crate::table::{Handle, Table};
use alloc::collections::VecDeque;
use legato_verbs::{Arm, Completion, CompletionQueue, QueuePair, VerbsError};

/// Most entries of a completion queue.
pub const COMPLETION_QUEUE_ENTRIES_MAX: u32 = 1 << 18;

/// Which of a queue pair's queues a completion frees slots of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkQueue {
    Send,
    Receive,
}

/// An unpolled completion. Its slots are free again when it is polled and not before: until then
/// it occupies its reserved entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) work_queue: WorkQueue,
    /// More than one for a signaled request after unsignaled ones.
    pub(super) slots: u32,
}

#[derive(Debug)]
pub(super) struct Queue {
    entries_max: u32,
    reserved: u32,
    armed: Option<Arm>,
    pub(super) entries: VecDeque<Entry>,
    /// Work queues that complete into it.
    pub(super) users: u32,
}

pub(super) type Queues = Table<CompletionQueue, Queue>;

impl Queue {
    pub(super) fn new(entries_max: u32) -> Result<Self, VerbsError> {
        if entries_max > COMPLETION_QUEUE_ENTRIES_MAX {
            return Err(VerbsError::LimitExceeded {
                what: "completion queue entries",
                asked: u64::from(entries_max),
                limit: u64::from(COMPLETION_QUEUE_ENTRIES_MAX),
            });
        }
        Ok(Self {
            entries_max,
            reserved: 0,
            armed: None,
            entries: VecDeque::with_capacity(entries_max as usize),
            users: 0,
        })
    }

    pub(super) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Are so many entries free?
    pub(super) fn check(&self, needed: u32) -> Result<(), VerbsError> {
        let free = self.entries_max - self.reserved;
        if needed > free {
            return Err(VerbsError::CompletionQueueTooSmall { needed, free });
        }
        Ok(())
    }

    /// Reserves the entries of one work queue.
    pub(super) fn reserve(&mut self, needed: u32) -> Result<(), VerbsError> {
        self.check(needed)?;
        self.reserved += needed;
        self.users += 1;
        Ok(())
    }

    /// Undoes [`Self::reserve`].
    pub(super) fn release(&mut self, reserved: u32) {
        self.reserved -= reserved;
        self.users -= 1;
    }

    /// Drops the completions of a queue pair that is destroyed or reset.
    pub(super) fn forget(&mut self, queue_pair: QueuePair) {
        self.entries
            .retain(|entry| entry.completion.queue_pair != queue_pair);
    }

    /// Adds a completion, and says whether somebody is to be told. `solicited`: by a message whose
    /// sender asked for it.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: Entry, solicited: bool) -> bool {
        let wakes = match self.armed {
            None => false,
            Some(Arm::Next) => true,
            Some(Arm::Solicited) => solicited || entry.completion.result.is_err(),
        };
        if wakes {
            self.armed = None;
        }
        self.entries.push_back(entry);
        wakes
    }

    /// Arms for the next completion, and says whether some wait already.
    pub(super) fn arm(&mut self, arm: Arm) -> bool {
        if self.armed != Some(Arm::Next) {
            self.armed = Some(arm);
        }
        !self.entries.is_empty()
    }
}

pub(super) fn unknown<H: Handle>(_: H) -> VerbsError {
    VerbsError::UnknownHandle(H::NAME)
}
