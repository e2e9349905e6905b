//! What the far half tells: completions and events, and its end.

use super::super::codec::Decoder;
use super::super::event::pair_of;
use super::super::message::{Completed, Direction, Notice, Told};
use super::ProxyProvider;
use super::pair::Ended;
use legato_verbs::{
    AsyncEvent, Completion, CompletionQueue, CompletionStatus, ConnectionEvent, Event, QueuePair,
    QueuePairState, VerbsError,
};

/// A completion that nobody has polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) completion: Completion,
    direction: Direction,
    /// Entries of its queue that are free when it has been polled.
    entries: u32,
}

impl ProxyProvider {
    /// Takes all that was told.
    pub(super) fn pump(&mut self) {
        if self.line.get_mut().has_waiting() {
            // Why it failed is kept by the line, and looked at below.
            let _ = self.line.get_mut().put_waiting();
        }
        while let Ok(true) = self.take_one() {}
        self.flush_if_lost();
    }

    /// Takes one message; false if there is none.
    pub(super) fn take_one(&mut self) -> Result<bool, VerbsError> {
        let mut bytes = core::mem::take(&mut self.message);
        let taken = self.line.get_mut().take(&mut bytes);
        let told = matches!(taken, Ok(true)).then(|| Told::decode(Decoder(&bytes)));
        self.message = bytes;
        let handled = match told {
            None => return taken,
            Some(Ok(told)) => self.handle(told),
            Some(Err(_)) => false,
        };
        match handled {
            true => Ok(true),
            false => Err(self.misspoke()),
        }
    }

    /// False if it cannot be.
    fn handle(&mut self, told: Told) -> bool {
        match told.notice {
            Notice::Completed(completed) => self.complete(completed, told.state),
            Notice::Event(event) => {
                self.hear(event, told.state);
                true
            }
        }
    }

    fn complete(&mut self, completed: Completed, state: Option<QueuePairState>) -> bool {
        // Of a queue pair that is gone nothing is to be heard.
        let Some(pair) = self.pairs.get_mut(&completed.pair) else {
            return true;
        };
        pair.state = state.unwrap_or(pair.state);
        let done = completed.result.is_ok();
        let ended = match completed.direction {
            Direction::Send => pair.end_send(completed.number, done, &self.regions),
            Direction::Receive => pair.end_receive(completed.number),
        };
        let Some(Ended { wr_id, entries }) = ended else {
            return false;
        };
        let ready = Ready {
            completion: Completion {
                wr_id,
                queue_pair: completed.pair,
                result: completed.result,
                vendor_error: completed.vendor_error,
            },
            direction: completed.direction,
            entries,
        };
        self.make_ready(completed.queue, ready)
    }

    /// False if there is no such queue.
    fn make_ready(&mut self, queue: CompletionQueue, ready: Ready) -> bool {
        let Some(queue) = self.queues.get_mut(&queue) else {
            return false;
        };
        queue.push_back(ready);
        self.ready += 1;
        true
    }

    fn hear(&mut self, event: Event, state: Option<QueuePairState>) {
        let pair = pair_of(&event);
        // What is told of a queue pair that is gone was undelivered when it went.
        if let Some(pair) = pair.and_then(|pair| self.pairs.get_mut(&pair)) {
            pair.state = state.unwrap_or(pair.state);
            let ends = matches!(
                event,
                Event::Connection(
                    ConnectionEvent::Rejected { .. }
                        | ConnectionEvent::Unreachable { .. }
                        | ConnectionEvent::Disconnected { .. }
                        | ConnectionEvent::DeviceRemoved { .. }
                )
            );
            pair.has_connection &= !ends;
        }
        if matches!(event, Event::CompletionQueueReady(queue) if !self.queues.contains_key(&queue))
        {
            return;
        }
        self.events.push_back(event);
    }

    /// Hands out completions, whose entries are free then.
    pub(super) fn poll_queue(
        &mut self,
        handle: CompletionQueue,
        max: usize,
        mut give: impl FnMut(Completion),
    ) -> Result<usize, VerbsError> {
        self.pump();
        let queue = self.queues.get_mut(&handle);
        let queue = queue.ok_or(VerbsError::UnknownHandle("completion queue"))?;
        let count = max.min(queue.len());
        for ready in queue.drain(..count) {
            if let Some(pair) = self.pairs.get_mut(&ready.completion.queue_pair) {
                match ready.direction {
                    Direction::Send => pair.sends.release(ready.entries),
                    Direction::Receive => pair.receives.release(ready.entries),
                }
            }
            give(ready.completion);
        }
        self.ready -= count;
        Ok(count)
    }

    /// Forgets the completions of a queue pair.
    pub(super) fn forget_ready(&mut self, handle: QueuePair) {
        for queue in self.queues.values_mut() {
            queue.retain(|ready| ready.completion.queue_pair != handle);
        }
        self.ready = self.queues.values().map(|queue| queue.len()).sum();
    }

    /// The far half is gone, and with it the NIC: all that is outstanding ends here, once. What the NIC
    /// still writes comes into slots and regions that stay mapped as long as this provider.
    pub(super) fn flush_if_lost(&mut self) {
        if self.is_gone || !self.line.get_mut().is_lost() {
            return;
        }
        self.is_gone = true;
        self.events.push_back(Event::Async(AsyncEvent::DeviceFatal));
        let handles: alloc::vec::Vec<QueuePair> = self.pairs.keys().copied().collect();
        for handle in handles {
            self.flush(handle);
        }
    }

    fn flush(&mut self, handle: QueuePair) {
        loop {
            let Some(pair) = self.pairs.get_mut(&handle) else {
                return;
            };
            pair.state = QueuePairState::Error;
            let sends = pair.sends.flush_one();
            let sends = sends.map(|ended| (pair.send_queue, Direction::Send, ended));
            let next = sends.or_else(|| {
                let ended = pair.receives.flush_one()?;
                Some((pair.receive_queue, Direction::Receive, ended))
            });
            let Some((queue, direction, Ended { wr_id, entries })) = next else {
                break;
            };
            let completion = Completion {
                wr_id,
                queue_pair: handle,
                result: Err(CompletionStatus::WorkRequestFlushed),
                vendor_error: 0,
            };
            // A queue is there as long as a queue pair uses it.
            self.make_ready(
                queue,
                Ready {
                    completion,
                    direction,
                    entries,
                },
            );
        }
        let ended = self.pairs.get_mut(&handle);
        if ended.is_some_and(|pair| core::mem::take(&mut pair.has_connection)) {
            let removed = ConnectionEvent::DeviceRemoved { queue_pair: handle };
            self.events.push_back(Event::Connection(removed));
        }
    }
}
