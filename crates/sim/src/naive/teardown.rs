//! How a connection ends.

use super::stack::{NaiveEvent, NaiveStack, Work};
use legato_verbs::{Provider, QueuePair, SendFlags, SendOperation, SendRequest};

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Up,
    /// In the error state, waiting for Last Work Request Reached.
    AwaitsEvent,
    /// Waiting for the request that was posted after it.
    AwaitsDrain,
    /// Waiting until all receives have been flushed.
    AwaitsReceives,
}

impl NaiveStack {
    /// Ends a connection of this side's own accord.
    pub fn close(&mut self, provider: &mut dyn Provider, connection: usize) {
        if let Some(Some(it)) = self.connections.get(connection) {
            // It may be over already.
            let _ = provider.disconnect(it.queue_pair);
        }
        self.take_down(provider, connection);
    }

    /// The connection is over: it was closed, the peer is down, or a request failed.
    pub(super) fn take_down(&mut self, provider: &mut dyn Provider, connection: usize) {
        let Some(Some(it)) = self.connections.get_mut(connection) else {
            return;
        };
        if !matches!(it.phase, Phase::Connecting | Phase::Up) {
            return;
        }
        let (queue_pair, reached_last) = (it.queue_pair, it.reached_last);
        it.phase = if self.habits.waits_for_last_work_request_event {
            Phase::AwaitsEvent
        } else {
            Phase::AwaitsReceives
        };
        // Refused only where nothing is posted.
        let _ = provider.modify_to_error(queue_pair);
        self.end_calls(|of, _| of == connection);
        if self.habits.pulls_descriptors_back {
            // The queue pair is left to give its requests back in its own time.
            self.pull_back(connection);
        } else if self.habits.waits_for_last_work_request_event {
            if reached_last {
                self.last_work_request_reached(provider, connection);
            }
        } else if !self.habits.counts_flushed_receives {
            self.destroy(provider, connection);
        }
    }

    pub(super) fn last_work_request_reached(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
    ) {
        let Some(Some(it)) = self.connections.get_mut(connection) else {
            return;
        };
        it.reached_last = true;
        if it.phase != Phase::AwaitsEvent {
            return;
        }
        it.phase = Phase::AwaitsDrain;
        let request = SendRequest {
            wr_id: Work::Drain { connection }.id(),
            operation: SendOperation::Send,
            entries: Vec::new(),
            flags: SendFlags::SIGNALED,
        };
        // A refusal is one of the ways in which the wait below has no end.
        let _ = provider.post_send(it.queue_pair, &request);
    }

    pub(super) fn drained(&mut self, provider: &mut dyn Provider, connection: usize) {
        if self.phase_of(connection) == Some(Phase::AwaitsDrain) {
            self.destroy(provider, connection);
        }
    }

    pub(super) fn receive_flushed(&mut self, provider: &mut dyn Provider, connection: usize) {
        let Some(Some(it)) = self.connections.get(connection) else {
            return;
        };
        let counts = self.habits.counts_flushed_receives || self.habits.pulls_descriptors_back;
        if counts && it.phase == Phase::AwaitsReceives && it.receives_posted == 0 {
            self.destroy(provider, connection);
        }
    }

    fn destroy(&mut self, provider: &mut dyn Provider, connection: usize) {
        let Some(it) = self.connections.get_mut(connection).and_then(Option::take) else {
            return;
        };
        // Gone either way.
        let _ = provider.destroy_queue_pair(it.queue_pair);
        self.free_sends.extend(it.sends);
        let left: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.connection == connection)
            .map(|(&number, _)| number)
            .collect();
        for number in left {
            self.end_operation(number, false);
        }
        self.events.push_back(NaiveEvent::Ended { connection });
    }

    fn phase_of(&self, connection: usize) -> Option<Phase> {
        let it = self.connections.get(connection)?.as_ref()?;
        Some(it.phase)
    }

    pub(super) fn index_of(&self, queue_pair: QueuePair) -> Option<usize> {
        self.connections.iter().position(|it| {
            it.as_ref()
                .is_some_and(|connection| connection.queue_pair == queue_pair)
        })
    }
}
