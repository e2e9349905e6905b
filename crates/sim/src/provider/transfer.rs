//! What happens to posted requests: they leave, arrive, are executed and answered, or fail.

use super::machine::{Entry, Reclaims};
use super::queue_pair::{Arrived, Phase, QueuePairRecord, RequestBody};
use super::wire::{Inner, Message, Occurrence, Place};
use legato_base::Duration;
use legato_verbs::{
    AccessFlags, AsyncEvent, Completion, CompletionKind, CompletionQueue, CompletionStatus, Event,
    SendOperation, WorkRequestId,
};

/// Bytes of a message beside its payload, for the cost on the link: a RoCEv2 packet's headers.
const HEADER_SIZE: usize = 82;

impl Inner {
    pub(super) fn record(&mut self, at: Place) -> Option<&mut QueuePairRecord> {
        self.machines[at.machine].queue_pair_mut(at.queue_pair)
    }

    /// A request was posted: the NIC looks at it a little later.
    pub(super) fn schedule_transmit(&mut self, from: Place) {
        let delay = self.random.below(self.config.posting_delay.as_nanos() + 1);
        let time = self.now + Duration::from_nanos(delay);
        self.schedule(time, Occurrence::Transmit { from });
    }

    /// The oldest request that has not left yet leaves, with its bytes as they are now.
    pub(super) fn transmit(&mut self, from: Place) {
        let now = self.now;
        let Some(record) = self.record(from) else {
            return;
        };
        let Phase::ReadyToSend { peer } = record.phase else {
            return;
        };
        let domain = record.domain;
        let oldest = record.sends.iter().all(|posted| !posted.sent);
        let Some(posted) = record.sends.iter_mut().find(|posted| !posted.sent) else {
            return;
        };
        posted.sent = true;
        let sequence = posted.sequence;
        let request = posted.request.clone();
        if oldest {
            record.last_progress = now;
        }
        let arm = !std::mem::replace(&mut record.retry_timer_armed, true);
        let length = request_length(&request.entries);
        let (size, body) = match request.operation {
            SendOperation::RdmaRead(at) => (0, RequestBody::Read { at, length }),
            SendOperation::Send | SendOperation::RdmaWrite(_) => {
                let gathered = self.machines[from.machine].gather(domain, &request.entries);
                let Ok(bytes) = gathered else {
                    self.fail(from, CompletionStatus::LocalProtection);
                    return;
                };
                let body = match request.operation {
                    SendOperation::RdmaWrite(at) => RequestBody::Write { at, bytes },
                    _ => RequestBody::Send(bytes),
                };
                (length as usize, body)
            }
        };
        let message = Message::Request {
            to: peer,
            sequence,
            body,
        };
        self.send(from, peer.machine, HEADER_SIZE + size, message);
        if arm {
            let time = now + self.config.retry_timeout;
            self.schedule(time, Occurrence::RetryTimer { of: from });
        }
    }

    /// One timer for each queue pair: it fails the oldest request or waits for the next one.
    pub(super) fn retry_timer(&mut self, of: Place) {
        let (now, timeout) = (self.now, self.config.retry_timeout);
        let Some(record) = self.record(of) else {
            return;
        };
        record.retry_timer_armed = false;
        let in_flight = record.sends.front().is_some_and(|posted| posted.sent);
        if !in_flight {
            return;
        }
        let due = record.last_progress + timeout;
        if due <= now {
            self.fail(of, CompletionStatus::RetryExceeded);
            return;
        }
        record.retry_timer_armed = true;
        self.schedule(due, Occurrence::RetryTimer { of });
    }

    pub(super) fn request_arrived(&mut self, at: Place, sequence: u64, body: RequestBody) {
        let Some(record) = self.record(at) else {
            return;
        };
        // A queue pair that failed is silent; its peer finds out by its own timer.
        if !matches!(
            record.phase,
            Phase::ReadyToReceive { .. } | Phase::ReadyToSend { .. }
        ) {
            return;
        }
        // What follows a message that was given up must not overtake it.
        if record.requests_expected != sequence {
            return;
        }
        record.requests_expected += 1;
        record.stalled.push_back(Arrived { sequence, body });
        if record.stalled.len() == 1 {
            self.execute_arrived(at);
        }
    }

    /// Executes what has arrived, in order, up to a message that finds no receive.
    fn execute_arrived(&mut self, at: Place) {
        loop {
            let Some(record) = self.record(at) else {
                return;
            };
            let Some(arrived) = record.stalled.pop_front() else {
                return;
            };
            let unready =
                matches!(arrived.body, RequestBody::Send(_)) && record.receives.is_empty();
            if unready {
                record.stalled.push_front(arrived);
                let time = self.now + self.config.receiver_not_ready_delay;
                self.schedule(time, Occurrence::RetryReceiver { at });
                return;
            }
            record.stall_tries = 0;
            self.execute(at, arrived);
        }
    }

    pub(super) fn retry_receiver(&mut self, at: Place) {
        let retries_max = self.config.receiver_not_ready_retries;
        let Some(record) = self.record(at) else {
            return;
        };
        let Some(oldest) = record.stalled.front() else {
            return;
        };
        record.stall_tries += 1;
        if !record.receives.is_empty() || record.stall_tries < retries_max {
            self.execute_arrived(at);
            return;
        }
        let sequence = oldest.sequence;
        record.requests_expected = sequence;
        record.stalled.clear();
        record.stall_tries = 0;
        let status = CompletionStatus::ReceiverNotReadyRetryExceeded;
        self.respond(at, sequence, Err(status));
    }

    fn respond(&mut self, from: Place, sequence: u64, result: Result<Vec<u8>, CompletionStatus>) {
        let Some(peer) = self.record(from).and_then(|record| record.peer()) else {
            return;
        };
        let size = HEADER_SIZE + result.as_ref().map_or(0, Vec::len);
        let message = Message::Response {
            to: peer,
            sequence,
            result,
        };
        self.send(from, peer.machine, size, message);
    }

    fn execute(&mut self, at: Place, arrived: Arrived) {
        let Some(record) = self.record(at) else {
            return;
        };
        let domain = record.domain;
        let machine = &self.machines[at.machine];
        let result = match arrived.body {
            RequestBody::Send(bytes) => {
                self.deliver(at, arrived.sequence, &bytes);
                return;
            }
            // Zero length validates neither key nor address.
            RequestBody::Write { bytes, .. } if bytes.is_empty() => Some(Vec::new()),
            RequestBody::Read { length: 0, .. } => Some(Vec::new()),
            RequestBody::Write { at: target, bytes } => machine
                .remote(
                    domain,
                    target,
                    bytes.len() as u64,
                    AccessFlags::REMOTE_WRITE,
                )
                .map(|(region, offset)| {
                    let range = offset..offset + bytes.len();
                    region.memory.borrow_mut()[range].copy_from_slice(&bytes);
                    Vec::new()
                }),
            RequestBody::Read { at: target, length } => machine
                .remote(domain, target, length, AccessFlags::REMOTE_READ)
                .map(|(region, offset)| {
                    region.memory.borrow()[offset..offset + length as usize].to_vec()
                }),
        };
        match result {
            Some(bytes) => self.respond(at, arrived.sequence, Ok(bytes)),
            None => {
                self.respond(at, arrived.sequence, Err(CompletionStatus::RemoteAccess));
                self.fail(at, CompletionStatus::WorkRequestFlushed);
                let queue_pair = at.queue_pair;
                let event = AsyncEvent::QueuePairAccessError { queue_pair };
                self.event(at.machine, Event::Async(event));
            }
        }
    }

    /// A message meets the oldest posted receive.
    fn deliver(&mut self, at: Place, sequence: u64, bytes: &[u8]) {
        let Some(record) = self.record(at) else {
            return;
        };
        let Some(receive) = record.receives.pop_front() else {
            return;
        };
        let (domain, queue) = (record.domain, record.queue);
        let room = request_length(&receive.entries);
        let placed = if bytes.len() as u64 > room {
            Err(CompletionStatus::LocalLength)
        } else {
            self.machines[at.machine]
                .scatter(domain, &receive.entries, bytes)
                .map_err(|_| CompletionStatus::LocalProtection)
        };
        let length = bytes.len() as u32;
        let result = placed.map(|()| CompletionKind::Receive { length });
        self.complete(at, queue, receive.wr_id, result, Reclaims::OneReceive);
        let Err(status) = placed else {
            self.respond(at, sequence, Ok(Vec::new()));
            return;
        };
        let answer = match status {
            CompletionStatus::LocalLength => CompletionStatus::RemoteInvalidRequest,
            _ => CompletionStatus::RemoteOperation,
        };
        self.respond(at, sequence, Err(answer));
        self.fail(at, CompletionStatus::WorkRequestFlushed);
        let queue_pair = at.queue_pair;
        let event = AsyncEvent::QueuePairRequestError { queue_pair };
        self.event(at.machine, Event::Async(event));
    }

    pub(super) fn response_arrived(
        &mut self,
        at: Place,
        sequence: u64,
        result: Result<Vec<u8>, CompletionStatus>,
    ) {
        let now = self.now;
        let Some(record) = self.record(at) else {
            return;
        };
        // After a failure the queue is empty: a late answer finds nothing to complete or to touch.
        if record
            .sends
            .front()
            .is_none_or(|posted| posted.sequence != sequence)
        {
            return;
        }
        record.last_progress = now;
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(status) => {
                self.fail(at, status);
                return;
            }
        };
        let (domain, queue) = (record.domain, record.queue);
        let Some(posted) = record.sends.pop_front() else {
            return;
        };
        let kind = match posted.request.operation {
            SendOperation::Send => CompletionKind::Send,
            SendOperation::RdmaWrite(_) => CompletionKind::RdmaWrite,
            SendOperation::RdmaRead(_) => CompletionKind::RdmaRead,
        };
        if kind == CompletionKind::RdmaRead {
            let placed = self.machines[at.machine].scatter(domain, &posted.request.entries, &bytes);
            debug_assert!(placed.is_ok(), "posting checked the entries");
        }
        if posted.request.signaled {
            let reclaims = Reclaims::SendsUpTo(sequence + 1);
            self.complete(at, queue, posted.request.wr_id, Ok(kind), reclaims);
        }
    }

    /// To the error state: the oldest send completes with `cause`, everything else as flushed. In
    /// the error state nothing is left to complete, so failing twice is harmless.
    pub(super) fn fail(&mut self, at: Place, cause: CompletionStatus) {
        let Some(record) = self.record(at) else {
            return;
        };
        let peer = record.peer();
        record.phase = Phase::Error { peer };
        record.stalled.clear();
        let queue = record.queue;
        let sends = std::mem::take(&mut record.sends);
        let receives = std::mem::take(&mut record.receives);
        let mut status = cause;
        for posted in sends {
            let reclaims = Reclaims::SendsUpTo(posted.sequence + 1);
            self.complete(at, queue, posted.request.wr_id, Err(status), reclaims);
            status = CompletionStatus::WorkRequestFlushed;
        }
        for receive in receives {
            let flushed = Err(CompletionStatus::WorkRequestFlushed);
            self.complete(at, queue, receive.wr_id, flushed, Reclaims::OneReceive);
        }
    }

    /// The ledger has an entry for each request that can be outstanding, so the queue has room.
    pub(super) fn complete(
        &mut self,
        at: Place,
        queue: CompletionQueue,
        wr_id: WorkRequestId,
        result: Result<CompletionKind, CompletionStatus>,
        reclaims: Reclaims,
    ) {
        self.trace.at(self.now, 8, at.machine);
        self.trace.word(wr_id.0);
        self.trace
            .word(result.err().map_or(0, |status| u64::from(status.code())));
        let queues = &mut self.machines[at.machine].queues;
        let Some(queue) = queues.get_mut(queue.index, queue.generation) else {
            return;
        };
        assert!(
            queue.entries.len() < queue.capacity as usize,
            "the ledger keeps completion queues from overflowing"
        );
        let completion = Completion {
            wr_id,
            queue_pair: at.queue_pair,
            result,
        };
        queue.entries.push_back(Entry {
            completion,
            reclaims,
        });
    }
}

pub(super) fn request_length(entries: &[legato_verbs::ScatterGatherEntry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.length)).sum()
}
