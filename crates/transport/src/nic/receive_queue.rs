//! A receive queue, of one queue pair or shared, with a limit that tells when it runs low.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use legato_verbs::{LocalKey, ReceiveRequest, ScatterGatherEntry, VerbsError};

/// Posted receives, oldest first.
#[derive(Clone, Debug)]
pub struct ReceiveQueue {
    size: ReceiveQueueSize,
    waiting: VecDeque<ReceiveRequest>,
    /// Of receives that have completed, for the next ones.
    spare: Vec<Vec<ScatterGatherEntry>>,
    /// Taken receives whose slots are not free yet.
    held: u32,
    /// The armed limit.
    limit: Option<NonZeroU32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueueSize {
    pub depth: u32,
    /// Scatter/gather entries of one receive.
    pub entries_max: u32,
    pub reclaim: Reclaim,
}

/// When a receive's slot is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// When its completion is polled, or when its queue pair is gone: hardware.
    WhenPolled,
    /// When a message takes it: rxe.
    WhenTaken,
}

/// A receive that a message uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub request: ReceiveRequest,
    /// Fewer receives are posted than the armed limit. The limit's event is due, and the limit is
    /// not armed any more.
    pub limit_reached: bool,
}

impl ReceiveQueue {
    /// An empty queue, all of whose slots are allocated: the caller limits the depth.
    pub fn new(size: ReceiveQueueSize) -> Self {
        Self {
            size,
            waiting: VecDeque::with_capacity(size.depth as usize),
            spare: Vec::new(),
            held: 0,
            limit: None,
        }
    }

    pub const fn size(&self) -> ReceiveQueueSize {
        self.size
    }

    /// Receives that no message has taken: at most the depth.
    pub fn posted(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// # Errors
    /// [`VerbsError::QueueFull`]; [`VerbsError::LimitExceeded`] for too many entries.
    pub fn post(&mut self, request: &ReceiveRequest) -> Result<(), VerbsError> {
        if request.entries.len() > self.size.entries_max as usize {
            return Err(VerbsError::LimitExceeded {
                what: "the number of entries of a receive",
                asked: request.entries.len() as u64,
                limit: u64::from(self.size.entries_max),
            });
        }
        if self.posted().saturating_add(self.held) >= self.size.depth {
            return Err(VerbsError::QueueFull("receive"));
        }
        let mut entries = self.spare.pop().unwrap_or_default();
        entries.clear();
        entries.extend_from_slice(&request.entries);
        self.waiting.push_back(ReceiveRequest {
            wr_id: request.wr_id,
            entries,
        });
        Ok(())
    }

    /// Is a receive that no message has taken to go to memory of this key?
    pub fn uses(&self, key: LocalKey) -> bool {
        let mut entries = self.waiting.iter().flat_map(|receive| &receive.entries);
        entries.any(|entry| entry.local_key == key)
    }

    /// The oldest posted receive.
    pub fn take(&mut self) -> Option<Taken> {
        let request = self.waiting.pop_front()?;
        if self.size.reclaim == Reclaim::WhenPolled {
            self.held += 1;
        }
        let reached = |limit: &mut NonZeroU32| self.waiting.len() < limit.get() as usize;
        let limit_reached = self.limit.take_if(reached).is_some();
        Some(Taken {
            request,
            limit_reached,
        })
    }

    /// A receive that was taken has completed: what it is made of is used again.
    pub fn give_back(&mut self, request: ReceiveRequest) {
        if self.spare.len() < self.size.depth as usize {
            self.spare.push(request.entries);
        }
    }

    /// Frees slots of taken receives: their completions were polled, or will never be. Nothing
    /// happens where they are free already.
    pub const fn release(&mut self, count: u32) {
        self.held = self.held.saturating_sub(count);
    }

    /// Forgets all receives, posted and taken: the queue pair's way to the Reset state. They do
    /// not complete.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.held = 0;
    }

    /// Arms the limit: the take after which fewer than `limit` receives are posted says so, once.
    /// 0 disarms it. What is posted now is not looked at.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`] if it is more than the depth.
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        if limit > self.size.depth {
            return Err(VerbsError::LimitExceeded {
                what: "the limit of a shared receive queue",
                asked: u64::from(limit),
                limit: u64::from(self.size.depth),
            });
        }
        self.limit = NonZeroU32::new(limit);
        Ok(())
    }

    /// The armed limit, 0 if there is none.
    pub fn limit(&self) -> u32 {
        self.limit.map_or(0, NonZeroU32::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use legato_verbs::{LocalKey, ScatterGatherEntry, WorkRequestId};

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

    fn filled(size: ReceiveQueueSize) -> ReceiveQueue {
        let mut queue = ReceiveQueue::new(size);
        for id in 0..u64::from(size.depth) {
            queue.post(&receive(id)).unwrap();
        }
        queue
    }

    #[test]
    fn receives_are_taken_in_order_and_a_full_queue_gives_back() {
        let mut queue = filled(TEN);
        let full = Err(VerbsError::QueueFull("receive"));
        assert_eq!(queue.post(&receive(10)), full);
        for id in 0..10 {
            assert_eq!(queue.take().unwrap().request, receive(id));
        }
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn a_receive_with_too_many_entries_is_refused() {
        let entry = ScatterGatherEntry {
            local_key: LocalKey(1),
            address: 0,
            length: 0,
        };
        let request = ReceiveRequest {
            entries: Vec::from([entry; 2]),
            ..receive(1)
        };
        let refused = ReceiveQueue::new(TEN).post(&request);
        assert!(matches!(refused, Err(VerbsError::LimitExceeded { .. })));
    }

    #[test]
    fn slots_are_free_when_the_completion_is_polled() {
        let mut queue = filled(ReceiveQueueSize {
            reclaim: Reclaim::WhenPolled,
            ..TEN
        });
        queue.take();
        queue.take();
        let full = Err(VerbsError::QueueFull("receive"));
        assert_eq!(queue.post(&receive(10)), full);
        queue.release(1);
        assert_eq!(queue.post(&receive(10)), Ok(()));
        assert_eq!(queue.post(&receive(11)), full);
        queue.clear();
        assert_eq!((queue.posted(), queue.take()), (0, None));
        (0..10).for_each(|id| queue.post(&receive(id)).unwrap());
        // More than was taken is no credit.
        queue.release(100);
        assert_eq!(queue.post(&receive(10)), full);
    }

    #[test]
    fn v15_the_limit_fires_once_for_each_time_it_is_armed() {
        let mut queue = filled(TEN);
        queue.arm_limit(7).unwrap();
        let fired: Vec<_> = (0..5)
            .map(|_| queue.take().unwrap().limit_reached)
            .collect();
        assert_eq!(fired, [false, false, false, true, false]);
        assert_eq!(queue.limit(), 0);
        (0..5).for_each(|id| queue.post(&receive(id)).unwrap());
        queue.arm_limit(10).unwrap();
        assert!(queue.take().unwrap().limit_reached);
        // Armed when it is low already: the next take says so.
        queue.arm_limit(10).unwrap();
        assert!(queue.take().unwrap().limit_reached);
        queue.arm_limit(8).unwrap();
        queue.arm_limit(0).unwrap();
        assert!(!queue.take().unwrap().limit_reached);
        assert!(queue.arm_limit(11).is_err());
    }

    #[test]
    fn v15_a_limit_of_the_last_receive_fires_when_there_is_none() {
        let mut queue = ReceiveQueue::new(TEN);
        queue.post(&receive(1)).unwrap();
        queue.arm_limit(1).unwrap();
        assert!(queue.take().unwrap().limit_reached);
        assert_eq!(queue.take(), None);
    }
}
