//! Receive queues that queue pairs share (IB spec 10.2.9).

use super::receive_queue::{ReceiveQueue, ReceiveQueueSize};
use super::table::{Handle, Table};
use legato_verbs::{LocalKey, ProtectionDomain, SharedReceiveQueue, VerbsError};

/// The shared receive queues of a device.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueues {
    table: Table<Shared>,
}

#[derive(Clone, Debug)]
struct Shared {
    queue: ReceiveQueue,
    domain: ProtectionDomain,
    /// Queue pairs that receive through it.
    attached: u32,
}

impl SharedReceiveQueues {
    /// No queue yet, and at most `limit` at a time.
    pub const fn new(limit: u32) -> Self {
        Self {
            table: Table::new(limit),
        }
    }

    /// Queues alive.
    pub const fn count(&self) -> u32 {
        self.table.count()
    }

    /// Receives of all queues that no message has taken.
    pub fn posted(&self) -> u32 {
        self.table.iter().map(|(_, it)| it.queue.posted()).sum()
    }

    /// A queue whose receives lie in the memory of `domain`.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`].
    pub fn create(
        &mut self,
        domain: ProtectionDomain,
        size: ReceiveQueueSize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let limit = u64::from(self.table.limit());
        let shared = Shared {
            queue: ReceiveQueue::new(size),
            domain,
            attached: 0,
        };
        self.table
            .insert(shared)
            .map(|Handle { index, generation }| SharedReceiveQueue { index, generation })
            .ok_or(VerbsError::LimitExceeded {
                what: "the number of shared receive queues",
                asked: limit + 1,
                limit,
            })
    }

    /// Ends a queue. Its receives do not complete.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a queue pair uses it, [`VerbsError::UnknownHandle`].
    pub fn destroy(&mut self, name: SharedReceiveQueue) -> Result<(), VerbsError> {
        if self.shared(name)?.attached > 0 {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        self.table.remove(handle(name));
        Ok(())
    }

    /// A queue pair receives through it from now on. Its own protection domain may be another one
    /// than the queue's.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn attach(&mut self, name: SharedReceiveQueue) -> Result<(), VerbsError> {
        self.shared_mut(name)?.attached += 1;
        Ok(())
    }

    /// A queue pair that received through it is gone, and with it `held` receives that it had
    /// taken and whose completions nobody will poll.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn detach(&mut self, name: SharedReceiveQueue, held: u32) -> Result<(), VerbsError> {
        let shared = self.shared_mut(name)?;
        shared.attached = shared.attached.saturating_sub(1);
        shared.queue.release(held);
        Ok(())
    }

    /// Is a receive of any of them to go to memory of this key?
    pub fn uses(&self, key: LocalKey) -> bool {
        self.table.iter().any(|(_, shared)| shared.queue.uses(key))
    }

    /// Does one of them have its receives in this domain?
    pub fn has_domain(&self, domain: ProtectionDomain) -> bool {
        self.table.iter().any(|(_, shared)| shared.domain == domain)
    }

    /// The domain that the receives' local keys belong to.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn domain(&self, name: SharedReceiveQueue) -> Result<ProtectionDomain, VerbsError> {
        Ok(self.shared(name)?.domain)
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn queue(&self, name: SharedReceiveQueue) -> Result<&ReceiveQueue, VerbsError> {
        Ok(&self.shared(name)?.queue)
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn queue_mut(&mut self, name: SharedReceiveQueue) -> Result<&mut ReceiveQueue, VerbsError> {
        Ok(&mut self.shared_mut(name)?.queue)
    }

    fn shared(&self, name: SharedReceiveQueue) -> Result<&Shared, VerbsError> {
        self.table.get(handle(name)).ok_or(UNKNOWN)
    }

    fn shared_mut(&mut self, name: SharedReceiveQueue) -> Result<&mut Shared, VerbsError> {
        self.table.get_mut(handle(name)).ok_or(UNKNOWN)
    }
}

const UNKNOWN: VerbsError = VerbsError::UnknownHandle("shared receive queue");

const fn handle(name: SharedReceiveQueue) -> Handle {
    Handle {
        index: name.index,
        generation: name.generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Reclaim;
    use alloc::vec::Vec;
    use legato_verbs::{ReceiveRequest, WorkRequestId};

    const DOMAIN: ProtectionDomain = ProtectionDomain {
        index: 1,
        generation: 1,
    };
    const TEN: ReceiveQueueSize = ReceiveQueueSize {
        depth: 10,
        entries_max: 1,
        reclaim: Reclaim::WhenTaken,
    };

    fn receive(id: u64) -> ReceiveRequest {
        ReceiveRequest {
            wr_id: WorkRequestId(id),
            entries: Vec::new(),
        }
    }

    #[test]
    fn a_shared_queue_lives_while_it_is_used() {
        let mut queues = SharedReceiveQueues::new(1);
        let first = queues.create(DOMAIN, TEN).unwrap();
        assert!(queues.create(DOMAIN, TEN).is_err());
        queues.attach(first).unwrap();
        let busy = Err(VerbsError::Busy("shared receive queue"));
        assert_eq!(queues.destroy(first), busy);
        queues.detach(first, 0).unwrap();
        assert_eq!(queues.domain(first), Ok(DOMAIN));
        assert_eq!(queues.destroy(first), Ok(()));
        assert_eq!(queues.count(), 0);
    }

    #[test]
    fn v31_receives_that_a_queue_pair_held_are_slots_again() {
        let mut queues = SharedReceiveQueues::new(1);
        let size = ReceiveQueueSize {
            reclaim: Reclaim::WhenPolled,
            ..TEN
        };
        let name = queues.create(DOMAIN, size).unwrap();
        queues.attach(name).unwrap();
        let queue = queues.queue_mut(name).unwrap();
        (0..10).for_each(|id| queue.post(&receive(id)).unwrap());
        assert!(queue.take().is_some() && queue.take().is_some());
        assert!(queue.post(&receive(10)).is_err());
        queues.detach(name, 2).unwrap();
        let queue = queues.queue_mut(name).unwrap();
        (10..12).for_each(|id| queue.post(&receive(id)).unwrap());
        assert!(queue.post(&receive(12)).is_err());
    }

    #[test]
    fn v15_what_is_left_of_an_old_shared_queue_does_not_reach_the_new_one() {
        let mut queues = SharedReceiveQueues::new(1);
        let size = ReceiveQueueSize {
            depth: 1,
            reclaim: Reclaim::WhenPolled,
            ..TEN
        };
        let old = queues.create(DOMAIN, size).unwrap();
        queues.destroy(old).unwrap();
        let new = queues.create(DOMAIN, size).unwrap();
        assert_eq!(old.index, new.index);
        let queue = queues.queue_mut(new).unwrap();
        queue.post(&receive(1)).unwrap();
        queue.arm_limit(1).unwrap();
        queue.take().unwrap();
        // A late completion of the old one frees no slot, and its post and its limit go nowhere.
        assert_eq!(queues.detach(old, 1), Err(UNKNOWN));
        assert_eq!(queues.attach(old), Err(UNKNOWN));
        assert_eq!(queues.destroy(old), Err(UNKNOWN));
        assert!(queues.queue_mut(old).is_err() && queues.queue(old).is_err());
        let queue = queues.queue_mut(new).unwrap();
        assert_eq!(
            queue.post(&receive(2)),
            Err(VerbsError::QueueFull("receive"))
        );
    }
}
