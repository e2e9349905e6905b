//! The pool of shared receives, as the fabric looks after it.

use crate::doubts::Kept;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::receive_pool::{ReceivePool, SharedReceives};
use crate::shared::Shared;
use crate::{ConnectError, ResetCause};
use legato_base::Duration;
use legato_verbs::{Provider, QueuePair, SharedReceiveQueue};

impl<B> Shared<B> {
    /// A buffer of the pool is free again, after so long.
    pub(crate) fn give_back_receive(
        &mut self,
        provider: &mut dyn Provider,
        index: u16,
        late: Duration,
    ) {
        let Some(pool) = &mut self.pool else {
            return;
        };
        let posted = pool.give_back(provider, &mut self.generations, index, (self.now, late));
        if posted.is_err() {
            self.counters.posts_refused += 1;
            self.note_deadline(self.now + self.timeouts.retry);
        } else if late > Duration::ZERO {
            self.note_deadline(self.now + late);
        }
    }

    /// A queue pair is destroyed: it takes no more receives.
    pub(crate) fn detach_receives(&mut self, queue_pair: QueuePair, kept: Kept) {
        if let Some(pool) = &mut self.pool {
            pool.detach(queue_pair, kept);
        }
    }
}

impl<B: Buffer> Fabric<B> {
    /// How it is with the receives that connections share, if they do.
    pub fn shared_receives(&self) -> Option<SharedReceives> {
        self.shared.pool.as_ref().map(ReceivePool::describe)
    }

    /// Posts shared receives that were refused, and those that were lost.
    pub(crate) fn look_after_receives(&mut self, provider: &mut dyn Provider) -> bool {
        let shared = &mut self.shared;
        let Some(pool) = &mut shared.pool else {
            return false;
        };
        let (timeouts, late) = (shared.timeouts, shared.config.late_write_bound);
        let intervals = (timeouts.drain, timeouts.retry, late);
        let looked = pool.look(provider, &mut shared.generations, shared.now, intervals);
        shared.counters.receives_reclaimed += looked.reclaimed;
        if let Some(due) = looked.due {
            shared.note_deadline(due);
        }
        if let Some(error) = looked.overdue {
            self.fail_receives(provider, ResetCause::Provider(error));
        }
        looked.reclaimed > 0
    }

    /// Plans to look after the receives, if one may be missing.
    pub(crate) fn watch_receives(&mut self) {
        let shared = &mut self.shared;
        let Some(pool) = &mut shared.pool else {
            return;
        };
        if shared.polled_empty {
            pool.note_polled_empty();
        }
        if let Some(due) = pool.plan_look(shared.now + shared.timeouts.drain) {
            shared.note_deadline(due);
        }
    }

    /// No message finds a receive any more: all connections end. The next one gets another queue (P-94).
    fn fail_receives(&mut self, provider: &mut dyn Provider, cause: ResetCause) {
        if let Some(pool) = &mut self.shared.pool {
            pool.has_failed = true;
        }
        for index in 0..self.slots.len() {
            self.end(provider, index, ConnectError::Disconnected, cause);
        }
    }

    pub(crate) fn note_receives_low(
        &mut self,
        provider: &mut dyn Provider,
        queue: SharedReceiveQueue,
    ) {
        let pool = self.shared.pool.as_mut();
        if let Some(pool) = pool.filter(|pool| pool.queue() == Some(queue)) {
            pool.note_low();
            self.shared.counters.receives_low += 1;
            self.look_after_receives(provider);
        }
    }

    pub(crate) fn note_receives_failed(
        &mut self,
        provider: &mut dyn Provider,
        queue: SharedReceiveQueue,
    ) {
        let pool = self.shared.pool.as_ref();
        if pool.is_some_and(|pool| pool.queue() == Some(queue)) {
            self.fail_receives(provider, ResetCause::ReceiveQueueFailed);
        }
    }

    pub(crate) fn note_last_request(&mut self, provider: &mut dyn Provider, queue_pair: QueuePair) {
        let Some(index) = self.index_of_queue_pair(queue_pair) else {
            return;
        };
        if let Some(connection) = self.slots[index].connection.as_deref_mut() {
            connection.note_last_request(&mut self.shared, provider);
        }
    }
}
