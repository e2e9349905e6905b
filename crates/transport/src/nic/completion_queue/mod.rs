//! A completion queue: entries of a fixed number, one-shot arming, and what happens when an entry
//! finds no room (IB spec 11.2.8, 11.4.2, 11.6.3).

#[cfg(test)]
mod tests;

use crate::WorkQueue;
use alloc::collections::VecDeque;
use legato_verbs::{Arm, Completion, QueuePair, VerbsError};

/// A queue of completions.
///
/// Its ledger reserves an entry for each request of each queue pair, so that an overrun cannot
/// happen. Who does not use the ledger can overrun the queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    depth: u32,
    policy: CompletionQueuePolicy,
    state: State,
    armed: Option<Arm>,
    reserved: u32,
    /// Entries of queue pairs that were destroyed or reset. Nothing is reserved for them any more.
    orphans: u32,
    lost: u64,
}

/// Where devices differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueuePolicy {
    pub overrun: Overrun,
    pub destroyed: Destroyed,
}

/// What an entry without room does to the queue. In both cases it is lost; the first one that is can
/// be told from those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The queue is over, with all that is in it, as `IBV_EVENT_CQ_ERR` says in
    /// `ibv_get_async_event(3)`; mlx4 and mlx5 do so.
    Ends,
    /// What is in it can be polled, and then there is room again; rxe does so.
    Drops,
}

/// What becomes of the entries of a queue pair that is destroyed or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// They are taken out; mlx4 and mlx5 do so.
    Removed,
    /// They are polled like others, with the queue pair's old generation; rxe does so.
    Stay,
}

/// An entry, with what the device knows about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedCompletion {
    pub completion: Completion,
    /// The queue that has a free slot again when this is polled, if it is still there.
    pub queue: WorkQueue,
    orphan: bool,
}

impl QueuedCompletion {
    /// Has its queue pair been destroyed or reset since? Then it frees no slot.
    pub const fn is_orphan(&self) -> bool {
        self.orphan
    }
}

/// What happened to a completion. A queue pair that lost one cannot go on if the queue is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    Stored,
    /// It is stored, and the waiter who armed the queue is to be woken.
    Wake,
    /// It is lost, and the queue's error event is due.
    Overrun,
    /// It is lost, and the error event has been raised before.
    Lost,
}

/// Completions that a queue pair took away with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Removed {
    pub sends: u32,
    pub receives: u32,
}

/// An overrun has ended the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an overrun has ended the completion queue")]
pub struct QueueDead;

#[derive(Clone, Debug)]
enum State {
    Open(VecDeque<QueuedCompletion>),
    /// As `Open`, after entries were lost.
    Leaky(VecDeque<QueuedCompletion>),
    Dead,
}

impl CompletionQueue {
    /// A queue of exactly `depth` entries, all allocated: the caller limits the depth.
    pub fn new(depth: u32, policy: CompletionQueuePolicy) -> Self {
        Self {
            depth,
            policy,
            state: State::Open(VecDeque::with_capacity(depth as usize)),
            armed: None,
            reserved: 0,
            orphans: 0,
            lost: 0,
        }
    }

    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Completions that found no room.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Has it nothing to poll? So it is when an overrun has ended it.
    pub fn is_empty(&self) -> bool {
        match &self.state {
            State::Open(entries) | State::Leaky(entries) => entries.is_empty(),
            State::Dead => true,
        }
    }

    /// Has an overrun ended it?
    pub const fn is_dead(&self) -> bool {
        matches!(self.state, State::Dead)
    }

    /// Adds a completion. `solicited`: it is that of a received message whose sender asked to wake
    /// the receiver.
    pub fn post(&mut self, completion: Completion, queue: WorkQueue, solicited: bool) -> Posted {
        let entry = QueuedCompletion {
            completion,
            queue,
            orphan: false,
        };
        match &mut self.state {
            State::Open(entries) | State::Leaky(entries) if entries.len() < self.depth as usize => {
                entries.push_back(entry);
                self.wake(solicited || completion.result.is_err())
            }
            _ => self.lose(),
        }
    }

    /// The oldest completion.
    ///
    /// # Errors
    /// [`QueueDead`].
    pub fn poll(&mut self) -> Result<Option<QueuedCompletion>, QueueDead> {
        let entry = self.entries_mut()?.pop_front();
        if entry.is_some_and(|entry| entry.orphan) {
            self.orphans = self.orphans.saturating_sub(1);
        }
        Ok(entry)
    }

    /// Asks for [`Posted::Wake`] once. It is not said for what is in the queue already: returns
    /// whether there is anything, and then the waiter polls before it sleeps.
    ///
    /// Who waits for any completion goes on to do so when solicited ones are asked for.
    ///
    /// # Errors
    /// [`QueueDead`]: nothing will come.
    pub fn arm(&mut self, arm: Arm) -> Result<bool, QueueDead> {
        let waiting = !self.entries_mut()?.is_empty();
        if self.armed != Some(Arm::Next) {
            self.armed = Some(arm);
        }
        Ok(waiting)
    }

    /// Entries that are reserved.
    pub const fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Entries that can be reserved.
    pub const fn free(&self) -> u32 {
        self.depth
            .saturating_sub(self.reserved)
            .saturating_sub(self.orphans)
    }

    /// Reserves the entries that a queue pair needs.
    ///
    /// # Errors
    /// [`VerbsError::CompletionQueueTooSmall`], with the numbers; then nothing is reserved.
    pub const fn reserve(&mut self, needed: u32) -> Result<(), VerbsError> {
        let free = self.free();
        if needed > free {
            return Err(VerbsError::CompletionQueueTooSmall { needed, free });
        }
        self.reserved += needed;
        Ok(())
    }

    /// Ends a queue pair's use of the queue: `reserved` entries are free, except for those of it
    /// that stay until they are polled. On its way to the Reset state they are 0: it goes on
    /// to use the queue, and until its old entries are polled it may fill more than it reserved.
    pub fn detach(&mut self, queue_pair: QueuePair, reserved: u32) -> Removed {
        self.reserved = self.reserved.saturating_sub(reserved);
        match self.policy.destroyed {
            Destroyed::Removed => self.remove_completions(queue_pair),
            Destroyed::Stay => {
                self.orphan_completions(queue_pair);
                Removed::default()
            }
        }
    }

    fn remove_completions(&mut self, queue_pair: QueuePair) -> Removed {
        let mut removed = Removed::default();
        let Ok(entries) = self.entries_mut() else {
            return removed;
        };
        entries.retain(|entry| {
            let stays = entry.completion.queue_pair != queue_pair;
            match entry.queue {
                _ if stays => {}
                WorkQueue::Send => removed.sends += 1,
                WorkQueue::Receive => removed.receives += 1,
            }
            stays
        });
        removed
    }

    fn orphan_completions(&mut self, queue_pair: QueuePair) {
        let mut orphans = 0;
        for entry in self.entries_mut().into_iter().flatten() {
            if entry.completion.queue_pair == queue_pair && !entry.orphan {
                entry.orphan = true;
                orphans += 1;
            }
        }
        self.orphans += orphans;
    }

    fn wake(&mut self, solicited: bool) -> Posted {
        match self.armed {
            Some(Arm::Next) => {}
            Some(Arm::Solicited) if solicited => {}
            _ => return Posted::Stored,
        }
        self.armed = None;
        Posted::Wake
    }

    fn lose(&mut self) -> Posted {
        self.lost = self.lost.saturating_add(1);
        let State::Open(entries) = &mut self.state else {
            return Posted::Lost;
        };
        let entries = core::mem::take(entries);
        self.state = match self.policy.overrun {
            Overrun::Drops => State::Leaky(entries),
            Overrun::Ends => {
                self.orphans = 0;
                self.armed = None;
                State::Dead
            }
        };
        Posted::Overrun
    }

    const fn entries_mut(&mut self) -> Result<&mut VecDeque<QueuedCompletion>, QueueDead> {
        match &mut self.state {
            State::Open(entries) | State::Leaky(entries) => Ok(entries),
            State::Dead => Err(QueueDead),
        }
    }
}
