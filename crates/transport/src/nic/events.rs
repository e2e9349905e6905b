//! Asynchronous events that wait for their owner.

use alloc::collections::VecDeque;
use legato_verbs::{AsyncEvent, Subject};

/// Events that nobody has polled yet, oldest first. One that is polled is the poller's: there is
/// nothing to acknowledge, and no destruction waits for it.
#[derive(Clone, Debug)]
pub struct EventQueue {
    waiting: VecDeque<AsyncEvent>,
    depth: usize,
    lost: u64,
}

/// The queue was full. The poller learns of it by [`EventQueue::lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event queue is full: {0:?} is lost")]
pub struct EventLost(pub AsyncEvent);

impl EventQueue {
    /// A queue of `depth` events, all allocated; and of one more, kept for the end of the device.
    pub fn new(depth: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(depth.saturating_add(1)),
            depth,
            lost: 0,
        }
    }

    /// Adds an event. [`AsyncEvent::DeviceFatal`] always finds room, and waits only once.
    ///
    /// # Errors
    /// [`EventLost`] if there is no room.
    pub fn raise(&mut self, event: AsyncEvent) -> Result<(), EventLost> {
        let room = if event == AsyncEvent::DeviceFatal {
            if self.waiting.contains(&event) {
                return Ok(());
            }
            true
        } else {
            let kept = usize::from(self.waiting.contains(&AsyncEvent::DeviceFatal));
            self.waiting.len() - kept < self.depth
        };
        if !room {
            self.lost = self.lost.saturating_add(1);
            return Err(EventLost(event));
        }
        self.waiting.push_back(event);
        Ok(())
    }

    pub fn poll(&mut self) -> Option<AsyncEvent> {
        self.waiting.pop_front()
    }

    /// Events that found no room.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Drops the events of an object that is destroyed.
    pub fn forget(&mut self, subject: Subject) {
        self.waiting.retain(|event| event.subject() != subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueuePairEvent;
    use alloc::vec::Vec;
    use legato_verbs::{CompletionQueue, QueuePair, SharedReceiveQueue};

    const QUEUE_PAIR: QueuePair = QueuePair {
        index: 3,
        generation: 1,
    };
    const SUCCESSOR: QueuePair = QueuePair {
        index: 3,
        generation: 2,
    };
    const QUEUE: CompletionQueue = CompletionQueue {
        index: 3,
        generation: 1,
    };
    const SHARED: SharedReceiveQueue = SharedReceiveQueue {
        index: 3,
        generation: 1,
    };

    const ALL: [AsyncEvent; 20] = [
        AsyncEvent::CompletionQueueError(QUEUE),
        AsyncEvent::QueuePairFatal(QUEUE_PAIR),
        AsyncEvent::QueuePairRequestError(QUEUE_PAIR),
        AsyncEvent::QueuePairAccessError(QUEUE_PAIR),
        AsyncEvent::CommunicationEstablished(QUEUE_PAIR),
        AsyncEvent::SendQueueDrained(QUEUE_PAIR),
        AsyncEvent::PathMigrated(QUEUE_PAIR),
        AsyncEvent::PathMigrationError(QUEUE_PAIR),
        AsyncEvent::DeviceFatal,
        AsyncEvent::PortActive(1),
        AsyncEvent::PortError(1),
        AsyncEvent::LocalIdentifierChange(1),
        AsyncEvent::PartitionKeyChange(1),
        AsyncEvent::SubnetManagerChange(1),
        AsyncEvent::SharedReceiveQueueError(SHARED),
        AsyncEvent::SharedReceiveQueueLimit(SHARED),
        AsyncEvent::LastWorkRequestReached(QUEUE_PAIR),
        AsyncEvent::ClientReregister(1),
        AsyncEvent::AddressChange(1),
        AsyncEvent::ReceiverNotReady(QUEUE_PAIR),
    ];

    fn drain(queue: &mut EventQueue) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| queue.poll()).collect()
    }

    #[test]
    fn events_have_the_numbers_of_the_verbs() {
        let (own, known) = ALL.split_last().unwrap();
        assert!((0..).zip(known).all(|(code, event)| event.code() == code));
        assert_eq!(own.code(), 128);
    }

    #[test]
    fn events_of_a_destroyed_object_are_dropped_and_no_others() {
        for (subject, left) in [
            (Subject::QueuePair(QUEUE_PAIR), 11),
            (Subject::QueuePair(SUCCESSOR), 20),
            (Subject::CompletionQueue(QUEUE), 19),
            (Subject::SharedReceiveQueue(SHARED), 18),
        ] {
            let mut queue = EventQueue::new(ALL.len());
            ALL.into_iter()
                .for_each(|event| queue.raise(event).unwrap());
            queue.forget(subject);
            let events = drain(&mut queue);
            assert_eq!(events.len(), left, "{subject:?}");
            assert!(events.iter().all(|event| event.subject() != subject));
            let order: Vec<_> = ALL
                .into_iter()
                .filter(|event| event.subject() != subject)
                .collect();
            assert_eq!(events, order);
        }
    }

    #[test]
    fn the_same_event_can_come_again() {
        let mut queue = EventQueue::new(5);
        let event = QueuePairEvent::LastWorkRequestReached.of(QUEUE_PAIR);
        (0..5).for_each(|_| queue.raise(event).unwrap());
        assert_eq!(drain(&mut queue), [event; 5]);
    }

    #[test]
    fn a_full_queue_counts_what_it_loses_but_not_the_end_of_the_device() {
        let mut queue = EventQueue::new(1);
        let event = AsyncEvent::PortError(1);
        queue.raise(event).unwrap();
        assert_eq!(queue.raise(event), Err(EventLost(event)));
        assert_eq!(queue.raise(AsyncEvent::DeviceFatal), Ok(()));
        assert_eq!(queue.raise(AsyncEvent::DeviceFatal), Ok(()));
        assert_eq!(queue.raise(event), Err(EventLost(event)));
        assert_eq!(queue.lost(), 2);
        assert_eq!(queue.poll(), Some(event));
        assert_eq!(queue.raise(event), Ok(()));
        assert_eq!(drain(&mut queue), [AsyncEvent::DeviceFatal, event]);
    }
}
