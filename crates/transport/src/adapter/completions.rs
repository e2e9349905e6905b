//! Completions: on their way into a queue, and out of it.

use super::policy::{OverrunEnds, OverrunEvents};
use super::queue_pair::Receives;
use super::surroundings::Surroundings;
use super::{ChannelAdapter, Deferred, Objects, handle, queue_handle};
use crate::WorkQueue;
use crate::nic::{Overrun, Posted, QueueDead, QueuedCompletion};
use alloc::vec::Vec;
use legato_verbs::{Arm, AsyncEvent, Completion, CompletionQueue, Event, VerbsError};

const NO_QUEUE: VerbsError = VerbsError::UnknownHandle("completion queue");

/// A completion before it is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionToCome {
    pub into: CompletionQueue,
    pub completion: Completion,
    pub queue: WorkQueue,
    pub solicited: bool,
}

impl Objects {
    pub(super) fn complete(
        &mut self,
        surroundings: &mut impl Surroundings,
        to_come: &CompletionToCome,
    ) {
        if surroundings.completion_due(to_come) {
            self.store(surroundings, to_come);
        }
    }

    /// Puts a completion into its queue, if that is still there.
    fn store(
        &mut self,
        surroundings: &mut impl Surroundings,
        to_come: &CompletionToCome,
    ) -> Option<Posted> {
        let into = to_come.into;
        let record = self.queues.get_mut(queue_handle(into))?;
        let posted = record
            .queue
            .post(to_come.completion, to_come.queue, to_come.solicited);
        surroundings.completion_stored(to_come, posted);
        match posted {
            Posted::Stored => {}
            Posted::Wake => self.raise(surroundings, Event::CompletionQueueReady(into)),
            Posted::Overrun | Posted::Lost => self.overrun(surroundings, to_come, posted),
        }
        Some(posted)
    }

    fn overrun(
        &mut self,
        surroundings: &mut impl Surroundings,
        to_come: &CompletionToCome,
        posted: Posted,
    ) {
        let each = self.policy.overrun_events == OverrunEvents::Each;
        if posted == Posted::Overrun || each {
            let event = AsyncEvent::CompletionQueueError(to_come.into);
            self.raise(surroundings, Event::Async(event));
        }
        match self.policy.overrun_ends {
            OverrunEnds::Attached => {
                let dead = self.policy.completion_queue.overrun == Overrun::Ends;
                if dead && posted == Posted::Overrun {
                    self.deferred.push(Deferred::EndAttached(to_come.into));
                }
            }
            OverrunEnds::Receiver => {
                if to_come.queue == WorkQueue::Receive {
                    let queue_pair = to_come.completion.queue_pair;
                    self.deferred.push(Deferred::EndReceiver(queue_pair));
                }
            }
        }
    }
}

impl ChannelAdapter {
    /// A completion that [`Surroundings::completion_due`] held back, or one that comes again: what
    /// became of it, if its queue is still there.
    pub fn store(
        &mut self,
        surroundings: &mut impl Surroundings,
        completion: &CompletionToCome,
    ) -> Option<Posted> {
        let posted = self.objects.store(surroundings, completion);
        self.settle(surroundings);
        posted
    }

    pub fn poll_completion_queue(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let mut count = 0;
        while count < max {
            let record = self.objects.queues.get_mut(queue_handle(name));
            let entry = record.ok_or(NO_QUEUE)?.queue.poll();
            let Some(entry) = entry.map_err(|QueueDead| VerbsError::CompletionQueueOverrun)? else {
                break;
            };
            into.push(entry.completion);
            count += 1;
            if surroundings.frees_slot(name, &entry) {
                self.reclaim(&entry);
            }
        }
        Ok(count)
    }

    /// The slot of a polled completion is free, unless its queue pair is gone.
    fn reclaim(&mut self, entry: &QueuedCompletion) {
        if entry.is_orphan() {
            return;
        }
        let queue_pair = entry.completion.queue_pair;
        let Some(record) = self.queue_pairs.get_mut(handle(queue_pair)) else {
            return;
        };
        match (entry.queue, &mut record.context.receives) {
            (WorkQueue::Send, _) => record.engine.send_polled(),
            (WorkQueue::Receive, Receives::Own(queue)) => queue.release(1),
            (WorkQueue::Receive, Receives::Shared(shared)) => {
                record.context.held = record.context.held.saturating_sub(1);
                if let Ok(queue) = self.objects.shared.queue_mut(*shared) {
                    queue.release(1);
                }
            }
        }
    }

    pub fn arm_completion_queue(
        &mut self,
        name: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        let record = self.objects.queues.get_mut(queue_handle(name));
        let armed = record.ok_or(NO_QUEUE)?.queue.arm(arm);
        armed.map_err(|QueueDead| VerbsError::CompletionQueueOverrun)
    }
}
