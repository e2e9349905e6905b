//! What the near half knows of a queue pair: enough to refuse what a NIC would refuse.

use super::bounce::{Carried, Pool};
use super::regions::Regions;
use alloc::collections::VecDeque;
use legato_verbs::{
    CompletionQueue, LocalKey, ProtectionDomain, QueuePairCapabilities, QueuePairNumber,
    QueuePairState, VerbsError, WorkRequestId,
};

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) domain: ProtectionDomain,
    pub(super) send_queue: CompletionQueue,
    pub(super) receive_queue: CompletionQueue,
    pub(super) capabilities: QueuePairCapabilities,
    pub(super) number: QueuePairNumber,
    /// As far as it is known here: what the far half told last.
    pub(super) state: QueuePairState,
    /// It was connected, or is being connected, and has not heard of the end.
    pub(super) has_connection: bool,
    pub(super) pool: Option<Pool>,
    pub(super) sends: Outstanding,
    pub(super) receives: Outstanding,
}

/// The posted requests of a queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    posted: VecDeque<Posted>,
    next: u64,
    /// Entries of the queue in use: those above, and those whose completions are not polled yet.
    held: u32,
}

#[derive(Debug)]
struct Posted {
    number: u64,
    wr_id: WorkRequestId,
    carried: Option<Carried>,
}

/// Requests that a completion has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) wr_id: WorkRequestId,
    /// Entries of the queue that are free when the completion has been polled.
    pub(super) entries: u32,
}

impl Outstanding {
    /// The number of the next request.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) const fn has_room(&self, limit: u32) -> bool {
        self.held < limit
    }

    pub(super) fn push(&mut self, wr_id: WorkRequestId, carried: Option<Carried>) {
        self.posted.push_back(Posted {
            number: self.next,
            wr_id,
            carried,
        });
        self.next += 1;
        self.held += 1;
    }

    pub(super) const fn release(&mut self, entries: u32) {
        self.held = self.held.saturating_sub(entries);
    }

    /// Forgets all without a completion.
    pub(super) fn clear(&mut self) {
        self.posted.clear();
        self.held = 0;
    }

    /// The oldest, ended by force.
    pub(super) fn flush_one(&mut self) -> Option<Ended> {
        let posted = self.posted.pop_front()?;
        Some(Ended {
            wr_id: posted.wr_id,
            entries: 1,
        })
    }

    pub(super) fn names(&self, key: LocalKey) -> bool {
        let carried = self.posted.iter().filter_map(|it| it.carried.as_ref());
        carried.into_iter().any(|carried| carried.names(key))
    }
}

impl Pair {
    /// A send has completed, and those before it that complete in silence with it.
    pub(super) fn end_send(&mut self, number: u64, done: bool, regions: &Regions) -> Option<Ended> {
        let mut entries = 0;
        while let Some(posted) = self.sends.posted.pop_front() {
            entries += 1;
            if let (Some(carried), Some(pool)) = (&posted.carried, &mut self.pool) {
                let done = done || posted.number < number;
                pool.unload(carried, done, self.domain, regions);
            }
            if posted.number >= number {
                let wr_id = posted.wr_id;
                return (posted.number == number).then_some(Ended { wr_id, entries });
            }
        }
        None
    }

    /// Receives complete in their order, each with its own completion.
    pub(super) fn end_receive(&mut self, number: u64) -> Option<Ended> {
        let posted = self.receives.posted.pop_front()?;
        (posted.number == number).then_some(Ended {
            wr_id: posted.wr_id,
            entries: 1,
        })
    }

    pub(super) const fn may_send(&self) -> Result<(), VerbsError> {
        match self.state {
            QueuePairState::ReadyToSend
            | QueuePairState::SendQueueDrain
            | QueuePairState::SendQueueError
            | QueuePairState::Error => Ok(()),
            state => Err(VerbsError::InvalidState(state)),
        }
    }

    pub(super) const fn may_receive(&self) -> Result<(), VerbsError> {
        match self.state {
            QueuePairState::Reset => Err(VerbsError::InvalidState(QueuePairState::Reset)),
            _ => Ok(()),
        }
    }
}
