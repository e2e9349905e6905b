//! What is posted to a shared receive queue, and what queue pairs that are gone have kept of it.
//!
//! A device gives receives out in the order of their posting, and a queue pair completes those that it was given
//! in that order. So when every queue pair that there is has completed a later one, a receive that was given out
//! and has not completed is a destroyed queue pair's, which nobody will complete: that of a message of which half had come.

use super::ledger::Outstanding;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_verbs::QueuePair;

/// The outstanding receives of one shared queue.
#[derive(Debug)]
pub(super) struct SharedLedger {
    depth: usize,
    /// By number, with their place in the order of posting.
    receives: BTreeMap<u64, (u64, Outstanding)>,
    /// Places so far.
    posted: u64,
    /// The last place that is known to be given out.
    given: u64,
    /// By queue pair the last place that it has completed, or that was given out before it was there.
    users: BTreeMap<QueuePair, u64>,
}

impl SharedLedger {
    /// For so many outstanding receives.
    pub(super) const fn new(depth: usize) -> Self {
        Self {
            depth,
            receives: BTreeMap::new(),
            posted: 0,
            given: 0,
            users: BTreeMap::new(),
        }
    }

    pub(super) fn attach(&mut self, queue_pair: QueuePair) {
        self.users.insert(queue_pair, self.given);
    }

    pub(super) fn detach(&mut self, queue_pair: QueuePair) {
        self.users.remove(&queue_pair);
    }

    pub(super) fn users(&self) -> usize {
        self.users.len()
    }

    pub(super) fn len(&self) -> usize {
        self.receives.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    pub(super) fn push(&mut self, request: Outstanding) {
        self.posted += 1;
        self.receives.insert(request.serial, (self.posted, request));
    }

    /// A receive has completed, of a queue pair that is there or of one that is gone.
    pub(super) fn take(&mut self, serial: u64, of: Option<QueuePair>) -> Option<Outstanding> {
        let (place, request) = self.receives.remove(&serial)?;
        self.given = self.given.max(place);
        if let Some(newest) = of.and_then(|of| self.users.get_mut(&of)) {
            *newest = place.max(*newest);
        }
        Some(request)
    }

    /// Takes those that queue pairs which are gone have kept.
    pub(super) fn take_kept(&mut self) -> Vec<Outstanding> {
        let passed = self.users.values().copied().min().unwrap_or(self.given);
        let kept = self
            .receives
            .extract_if(.., |_, (place, _)| *place < passed);
        kept.map(|(_, (_, request))| request).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Outstanding> {
        self.receives.values().map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_verbs::{CompletionKind, WorkRequestId};

    const ONE: QueuePair = QueuePair {
        index: 1,
        generation: 1,
    };
    const OTHER: QueuePair = QueuePair {
        index: 2,
        generation: 1,
    };

    fn with_posted(serials: core::ops::Range<u64>) -> SharedLedger {
        let mut ledger = SharedLedger::new(4);
        for serial in serials {
            post(&mut ledger, serial);
        }
        ledger
    }

    fn post(ledger: &mut SharedLedger, serial: u64) {
        ledger.push(Outstanding {
            serial,
            wr_id: WorkRequestId(serial),
            kind: CompletionKind::Receive { length: 0 },
            signaled: true,
            window: None,
            keys: Vec::new(),
        });
    }

    fn kept(ledger: &mut SharedLedger) -> Vec<u64> {
        let kept = ledger.take_kept();
        kept.iter().map(|it| it.serial).collect()
    }

    #[test]
    fn v31_a_receive_that_a_destroyed_queue_pair_kept_makes_room_again() {
        let mut ledger = with_posted(10..14);
        ledger.attach(ONE);
        ledger.attach(OTHER);
        // OTHER was given the first one, and ends in the middle of its message.
        assert!(ledger.take(11, Some(ONE)).is_some());
        assert_eq!(kept(&mut ledger), []);
        ledger.detach(OTHER);
        post(&mut ledger, 14);
        assert!(ledger.is_full());
        assert_eq!(kept(&mut ledger), [10]);
        assert!(!ledger.is_full());
        assert!(ledger.take(10, None).is_none(), "it does not come twice");
    }

    #[test]
    fn v31_a_receive_that_any_queue_pair_may_have_stays() {
        let mut ledger = with_posted(10..14);
        ledger.attach(ONE);
        ledger.attach(OTHER);
        assert!(ledger.take(12, Some(ONE)).is_some());
        // OTHER may be in the middle of 10 or 11, and who comes now of neither.
        let late = QueuePair {
            index: 3,
            generation: 1,
        };
        ledger.attach(late);
        assert_eq!(kept(&mut ledger), []);
        assert!(ledger.take(11, Some(OTHER)).is_some());
        assert_eq!(kept(&mut ledger), [10]);
    }

    #[test]
    fn v31_without_queue_pairs_all_is_kept_that_was_given_out() {
        let mut ledger = with_posted(10..14);
        ledger.attach(ONE);
        assert!(ledger.take(12, Some(ONE)).is_some());
        ledger.detach(ONE);
        assert_eq!(kept(&mut ledger), [10, 11]);
        assert_eq!(ledger.all().map(|it| it.serial).collect::<Vec<_>>(), [13]);
    }

    /// Numbers go round, the order of posting does not.
    #[test]
    fn v31_numbers_that_begin_again_are_later_ones() {
        let mut ledger = SharedLedger::new(4);
        ledger.attach(ONE);
        for serial in [super::super::ledger::SERIAL_MASK, 0, 1] {
            post(&mut ledger, serial);
        }
        assert!(ledger.take(0, Some(ONE)).is_some());
        assert_eq!(kept(&mut ledger), [super::super::ledger::SERIAL_MASK]);
    }
}
