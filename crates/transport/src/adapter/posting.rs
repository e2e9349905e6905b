//! Posting requests.

use super::host::QueuePairHost;
use super::objects::{NO_QUEUE_PAIR, limit};
use super::queue_pair::Receives;
use super::surroundings::Surroundings;
use super::{ChannelAdapter, handle};
use crate::{Host as _, QueueCompletion, WorkQueue, rc};
use legato_verbs::{
    CompletionStatus, QueuePair, QueuePairState, ReceiveRequest, ScatterGatherEntry, SendRequest,
    SharedReceiveQueue, VerbsError,
};

/// Executes what was refused before, as far as the queue takes it.
fn post_refused<S: Surroundings>(engine: &mut rc::QueuePair, host: &mut QueuePairHost<'_, S>) {
    while let Some(request) = host.context.refused.pop_front() {
        if engine.post_send(&request, host).is_err() {
            host.context.refused.push_front(request);
            return;
        }
    }
}

impl ChannelAdapter {
    fn may_post(
        &self,
        surroundings: &mut impl Surroundings,
        queue: WorkQueue,
    ) -> Result<(), VerbsError> {
        self.check_present()?;
        surroundings.may_post(queue)
    }

    fn check_length(&self, entries: &[ScatterGatherEntry]) -> Result<(), VerbsError> {
        let length = entries.iter().map(|entry| u64::from(entry.length)).sum();
        let most = u64::from(self.configuration.message_length_max);
        limit("length of a message", length, most)
    }

    pub fn post_send(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        let state = self.record(name).ok_or(NO_QUEUE_PAIR)?.engine.state();
        self.may_post(surroundings, WorkQueue::Send)?;
        let posted = self.check_length(&request.entries).and_then(|()| {
            self.with(surroundings, name, |engine, host| {
                let ready = matches!(
                    engine.state(),
                    QueuePairState::ReadyToSend | QueuePairState::SendQueueDrain
                );
                if ready {
                    post_refused(engine, host);
                }
                engine.post_send(request, host)
            })
            .ok_or(NO_QUEUE_PAIR)?
        });
        let refused_early = matches!(
            state,
            QueuePairState::Reset | QueuePairState::Init | QueuePairState::ReadyToReceive
        );
        match posted {
            Ok(()) => {}
            Err(error) => {
                if refused_early && self.objects.policy.refused_sends_stay {
                    self.note_refused(name, request);
                }
                return Err(error);
            }
        }
        if state != QueuePairState::Error && request.operation.writes_locally() {
            surroundings.buffers_lent(name, request.wr_id, &request.entries);
        }
        if state == QueuePairState::Error {
            self.run(surroundings, name);
        } else {
            let later = surroundings.doorbell_delay();
            let at = surroundings.now() + later;
            self.kick(surroundings, name, at);
        }
        Ok(())
    }

    /// The library of rxe puts a request into the queue before the kernel refuses it.
    fn note_refused(&mut self, name: QueuePair, request: &SendRequest) {
        if let Some(record) = self.record_mut(name) {
            let context = &mut record.context;
            if (context.refused.len() as u32) < context.capabilities.send_requests_max {
                context.refused.push_back(request.clone());
            }
        }
    }

    /// The error state flushes what was refused before it.
    pub(super) fn flush_refused(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let in_error = self
            .record(name)
            .is_some_and(|record| record.engine.state() == QueuePairState::Error);
        if !in_error {
            return;
        }
        self.with(surroundings, name, |_, host| {
            for request in core::mem::take(&mut host.context.refused) {
                host.complete(QueueCompletion {
                    queue: WorkQueue::Send,
                    wr_id: request.wr_id,
                    result: Err(CompletionStatus::WorkRequestFlushed),
                    solicited: true,
                });
            }
        });
    }

    pub fn post_receive(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let record = self.record(name).ok_or(NO_QUEUE_PAIR)?;
        record.engine.check_post_receive()?;
        self.may_post(surroundings, WorkQueue::Receive)?;
        self.check_length(&request.entries)?;
        let record = self.queue_pairs.get_mut(handle(name));
        match &mut record.ok_or(NO_QUEUE_PAIR)?.context.receives {
            Receives::Own(queue) => queue.post(request)?,
            Receives::Shared(_) => {
                return Err(VerbsError::Unsupported(
                    "receives of its own beside a shared receive queue",
                ));
            }
        }
        let in_error = self.with(surroundings, name, |engine, host| {
            engine.receive_posted(host);
            engine.state() == QueuePairState::Error
        });
        if in_error == Some(true) {
            self.run(surroundings, name);
        }
        Ok(())
    }

    pub fn post_shared_receive(
        &mut self,
        surroundings: &mut impl Surroundings,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.objects.shared.queue(queue)?;
        self.may_post(surroundings, WorkQueue::Receive)?;
        self.check_length(&request.entries)?;
        let queue = self.objects.shared.queue_mut(queue)?;
        queue.post(request)
    }
}
