//! A queue pair: its queues, its slots, and how it ends.

use super::completion::WorkQueue;
use super::connect::Connecting;
use super::connection::{Connection, OneSided, Step};
use super::hub::Hub;
use super::region::Regions;
use super::ring::{LinkState, MESSAGE_LENGTH_MAX};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_verbs::{
    AsyncEvent, CompletionKind, CompletionQueue, CompletionStatus, ConnectionEvent, Event,
    ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairState, ReceiveRequest,
    ScatterGatherEntry, SendOperation, SendRequest, VerbsError, WorkRequestId,
};

#[derive(Debug)]
pub(super) struct PostedSend {
    wr_id: WorkRequestId,
    operation: SendOperation,
    pub(super) entries: Vec<ScatterGatherEntry>,
    pub(super) length: u32,
    signaled: bool,
}

#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) wr_id: WorkRequestId,
    pub(super) entries: Vec<ScatterGatherEntry>,
    pub(super) length: u32,
}

impl PostedSend {
    /// The one-sided half of the request, if it has one.
    pub(super) fn one_sided(&self) -> Option<OneSided<'_>> {
        one_sided(self.operation, &self.entries, self.length)
    }
}

/// How far the connection is. The state of the queue pair says the rest.
#[derive(Debug)]
pub(super) enum Phase {
    Unconnected,
    Connecting(Box<Connecting>),
    Established(Box<Connection>),
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) handle: QueuePair,
    pub(super) domain: ProtectionDomain,
    pub(super) queue: CompletionQueue,
    pub(super) capabilities: QueuePairCapabilities,
    pub(super) state: QueuePairState,
    pub(super) phase: Phase,
    /// Not yet completed, oldest first; the first `in_ring` wait for the peer's word.
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) in_ring: usize,
    pub(super) receives: VecDeque<PostedReceive>,
    /// Slots of the send queue in use: posted, silently done, or completed and not polled.
    send_slots: u32,
    receive_slots: u32,
    /// Unsignaled requests done since the last completion, which will free their slots.
    silent: u32,
}

/// What the first request of each queue fails with; the rest is flushed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failure {
    pub(super) send: Option<CompletionStatus>,
    pub(super) receive: Option<CompletionStatus>,
}

const FLUSHED: CompletionStatus = CompletionStatus::WorkRequestFlushed;

fn kind(operation: SendOperation) -> CompletionKind {
    match operation {
        SendOperation::Send => CompletionKind::Send,
        SendOperation::RdmaWrite(_) => CompletionKind::RdmaWrite,
        SendOperation::RdmaRead(_) => CompletionKind::RdmaRead,
    }
}

fn one_sided(
    operation: SendOperation,
    entries: &[ScatterGatherEntry],
    length: u32,
) -> Option<OneSided<'_>> {
    let (write, remote) = match operation {
        SendOperation::Send => return None,
        SendOperation::RdmaWrite(remote) => (true, remote),
        SendOperation::RdmaRead(remote) => (false, remote),
    };
    Some(OneSided {
        write,
        remote,
        entries,
        length,
    })
}

impl Pair {
    pub(super) fn new(
        domain: ProtectionDomain,
        queue: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Self {
        Self {
            // The table gives the handle when the pair is put into it.
            handle: QueuePair {
                index: 0,
                generation: 0,
            },
            domain,
            queue,
            capabilities,
            state: QueuePairState::Reset,
            phase: Phase::Unconnected,
            sends: VecDeque::new(),
            in_ring: 0,
            receives: VecDeque::new(),
            send_slots: 0,
            receive_slots: 0,
            silent: 0,
        }
    }

    /// Entries of the completion queue that belong to this pair.
    pub(super) fn ledger(capabilities: &QueuePairCapabilities) -> u32 {
        capabilities.send_requests_max + capabilities.receive_requests_max
    }

    pub(super) fn count(&self) -> usize {
        match &self.phase {
            Phase::Unconnected => 0,
            Phase::Connecting(_) => 1,
            Phase::Established(connection) => connection.count(),
        }
    }

    pub(super) fn release_slots(&mut self, work_queue: WorkQueue, slots: u32) {
        match work_queue {
            WorkQueue::Send => self.send_slots -= slots,
            WorkQueue::Receive => self.receive_slots -= slots,
        }
    }

    /// The sum of the entries' lengths, if this pair may use them so.
    fn check(
        &self,
        regions: &Regions,
        entries: &[ScatterGatherEntry],
        write: bool,
        length_max: u32,
    ) -> Result<u32, VerbsError> {
        let limit = |what, asked, limit| VerbsError::LimitExceeded { what, asked, limit };
        let (count, entries_max) = (entries.len() as u64, self.capabilities.entries_max);
        if count > u64::from(entries_max) {
            return Err(limit("entries of a request", count, u64::from(entries_max)));
        }
        let length: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if length > u64::from(length_max) {
            return Err(limit("message length", length, u64::from(length_max)));
        }
        for entry in entries {
            regions.locate(self.domain, entry, write)?;
        }
        Ok(length as u32)
    }

    pub(super) fn post_send(
        &mut self,
        hub: &mut Hub,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        use QueuePairState::{Error, ReadyToSend};
        if !matches!(self.state, ReadyToSend | Error) {
            return Err(VerbsError::InvalidState(self.state));
        }
        let writes_locally = matches!(request.operation, SendOperation::RdmaRead(_));
        let entries = &request.entries;
        let length = self.check(&hub.regions, entries, writes_locally, MESSAGE_LENGTH_MAX)?;
        if self.send_slots >= self.capabilities.send_requests_max {
            return Err(VerbsError::QueueFull("send"));
        }
        self.send_slots += 1;
        if self.state == Error {
            self.fail_send(hub, request.wr_id, FLUSHED);
            return Ok(());
        }
        // Most one-sided requests find nothing before them and are over here, without a copy of
        // the request.
        if self.sends.is_empty()
            && let Some(one_sided) = one_sided(request.operation, entries, length)
            && let Phase::Established(connection) = &mut self.phase
            && connection.one_sided(&hub.regions, self.domain, &one_sided) == Step::Done
        {
            self.finish_send(
                hub,
                request.wr_id,
                request.signaled,
                kind(request.operation),
            );
            return Ok(());
        }
        hub.regions.count_user(entries, true);
        self.sends.push_back(PostedSend {
            wr_id: request.wr_id,
            operation: request.operation,
            entries: entries.clone(),
            length,
            signaled: request.signaled,
        });
        self.execute(hub);
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        hub: &mut Hub,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        if self.state == QueuePairState::Reset {
            return Err(VerbsError::InvalidState(self.state));
        }
        let entries = &request.entries;
        let length = self.check(&hub.regions, entries, true, u32::MAX)?;
        if self.receive_slots >= self.capabilities.receive_requests_max {
            return Err(VerbsError::QueueFull("receive"));
        }
        self.receive_slots += 1;
        if self.state == QueuePairState::Error {
            self.complete_receive(hub, request.wr_id, Err(FLUSHED));
            return Ok(());
        }
        hub.regions.count_user(entries, true);
        self.receives.push_back(PostedReceive {
            wr_id: request.wr_id,
            entries: entries.clone(),
            length,
        });
        Ok(())
    }

    fn finish_send(
        &mut self,
        hub: &mut Hub,
        wr_id: WorkRequestId,
        signaled: bool,
        kind: CompletionKind,
    ) {
        if signaled {
            let slots = core::mem::take(&mut self.silent) + 1;
            let freed = (WorkQueue::Send, slots);
            hub.complete(self.queue, self.handle, wr_id, Ok(kind), freed);
        } else {
            self.silent += 1;
        }
    }

    fn fail_send(&mut self, hub: &mut Hub, wr_id: WorkRequestId, status: CompletionStatus) {
        let slots = core::mem::take(&mut self.silent) + 1;
        let freed = (WorkQueue::Send, slots);
        hub.complete(self.queue, self.handle, wr_id, Err(status), freed);
    }

    pub(super) fn complete_receive(
        &mut self,
        hub: &mut Hub,
        wr_id: WorkRequestId,
        result: Result<CompletionKind, CompletionStatus>,
    ) {
        let freed = (WorkQueue::Receive, 1);
        hub.complete(self.queue, self.handle, wr_id, result, freed);
    }

    /// Completes the oldest send request with success.
    pub(super) fn finish_first_send(&mut self, hub: &mut Hub) {
        if let Some(done) = self.sends.pop_front() {
            hub.regions.count_user(&done.entries, false);
            self.finish_send(hub, done.wr_id, done.signaled, kind(done.operation));
        }
    }

    /// Takes the oldest receive request off the queue.
    pub(super) fn take_first_receive(&mut self, hub: &mut Hub) -> Option<PostedReceive> {
        let taken = self.receives.pop_front()?;
        hub.regions.count_user(&taken.entries, false);
        Some(taken)
    }

    /// Ends whatever connection there is and flushes both queues: the only way into Error.
    pub(super) fn enter_error(&mut self, hub: &mut Hub, failure: Failure, state: LinkState) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        self.close(hub, state);
        self.in_ring = 0;
        let (mut send, mut receive) = (failure.send, failure.receive);
        while let Some(flushed) = self.sends.pop_front() {
            hub.regions.count_user(&flushed.entries, false);
            self.fail_send(hub, flushed.wr_id, send.take().unwrap_or(FLUSHED));
        }
        while let Some(flushed) = self.take_first_receive(hub) {
            let status = receive.take().unwrap_or(FLUSHED);
            self.complete_receive(hub, flushed.wr_id, Err(status));
        }
    }

    /// Closes the socket and unmaps the peer's segments. The peer learns why from our segment,
    /// which it keeps mapped.
    fn close(&mut self, hub: &mut Hub, state: LinkState) {
        match core::mem::replace(&mut self.phase, Phase::Unconnected) {
            Phase::Unconnected => {}
            Phase::Connecting(connecting) => connecting.close(hub),
            Phase::Established(connection) => {
                connection.link.set_state(state);
                hub.poller.remove(&connection.socket, connection.token);
            }
        }
    }

    /// Ends the pair without a trace in the completion queue.
    pub(super) fn destroy(mut self, hub: &mut Hub) {
        self.close(hub, LinkState::Closed);
        for posted in &self.sends {
            hub.regions.count_user(&posted.entries, false);
        }
        for posted in &self.receives {
            hub.regions.count_user(&posted.entries, false);
        }
        if let Some(queue) = hub.queues.get_mut(self.queue) {
            queue.release(self.handle, Self::ledger(&self.capabilities));
        }
    }

    /// The peer broke the protocol.
    pub(super) fn malformed(&mut self, hub: &mut Hub) {
        hub.counters.peers_malformed += 1;
        self.enter_error(hub, Failure::default(), LinkState::Closed);
        let queue_pair = self.handle;
        hub.events
            .push_back(Event::Async(AsyncEvent::QueuePairFatal { queue_pair }));
    }

    /// The peer closed the connection in `state`, or died.
    pub(super) fn peer_gone(&mut self, hub: &mut Hub, state: LinkState) {
        let queue_pair = self.handle;
        let asking = match &self.phase {
            Phase::Established(connection) => connection.is_asking(),
            Phase::Unconnected | Phase::Connecting(_) => false,
        };
        let refused = state == LinkState::AccessRefused && asking && self.in_ring == 0;
        let failure = Failure {
            send: refused.then_some(CompletionStatus::RemoteAccess),
            receive: None,
        };
        self.enter_error(hub, failure, LinkState::Closed);
        if state == LinkState::AccessViolated {
            let violated = AsyncEvent::QueuePairAccessError { queue_pair };
            hub.events.push_back(Event::Async(violated));
        }
        let over = ConnectionEvent::Disconnected { queue_pair };
        hub.events.push_back(Event::Connection(over));
    }
}
