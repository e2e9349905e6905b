//! A queue pair: its queues, its slots, and its completions.

use super::completion::{Entry, WorkQueue};
use super::connect::Connecting;
use super::connection::Connection;
use super::envelope::{Envelope, Kind};
use super::hub::Hub;
use super::one_sided::{Bytes, OneSided, Operation};
use super::shared_receive::{PostedReceive, ReceiveQueue};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    Completion, CompletionKind, CompletionStatus, QueuePair, QueuePairAttributes, QueuePairInit,
    QueuePairState, Receives, ScatterGatherEntry, SendFlags, SendOperation, WorkRequestId,
};

#[derive(Debug)]
pub(super) struct PostedSend {
    pub(super) wr_id: WorkRequestId,
    pub(super) operation: SendOperation,
    pub(super) payload: Payload,
    pub(super) length: u32,
    pub(super) flags: SendFlags,
}

#[derive(Debug)]
pub(super) enum Payload {
    Entries(Vec<ScatterGatherEntry>),
    /// Copied when it was posted.
    Inline(Vec<u8>),
}

impl PostedSend {
    pub(super) fn bytes(&self) -> Bytes<'_> {
        match &self.payload {
            Payload::Entries(entries) => Bytes::Entries(entries),
            Payload::Inline(bytes) => Bytes::Inline(bytes),
        }
    }

    /// The entries that hold on to their regions.
    pub(super) fn entries(&self) -> &[ScatterGatherEntry] {
        match &self.payload {
            Payload::Entries(entries) => entries,
            Payload::Inline(_) => &[],
        }
    }

    /// The one-sided half of the request, if it has one.
    pub(super) fn one_sided(&self) -> Option<OneSided<'_>> {
        let (operation, remote) = Operation::of(self.operation)?;
        Some(OneSided {
            operation,
            remote,
            bytes: self.bytes(),
            length: self.length,
        })
    }

    /// The half of the request that goes through the ring, if it has one.
    pub(super) fn envelope(&self) -> Option<Envelope> {
        let kind = match self.operation {
            SendOperation::Send => Kind::Send,
            SendOperation::SendWithImmediate(immediate) => Kind::SendWithImmediate(immediate),
            SendOperation::RdmaWriteWithImmediate(_, immediate) => {
                Kind::WrittenWithImmediate(immediate)
            }
            _ => return None,
        };
        Some(Envelope {
            kind,
            length: self.length,
            solicited: self.flags.contains(SendFlags::SOLICITED),
        })
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
    pub(super) init: QueuePairInit,
    pub(super) state: QueuePairState,
    pub(super) attributes: QueuePairAttributes,
    pub(super) phase: Phase,
    /// A connect or accept has not been answered with its ending event yet.
    pub(super) ending_owed: bool,
    /// Not yet completed, oldest first; the first `started` wait for the peer's word.
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) started: usize,
    /// The user wants to know when the stopped send queue is at rest.
    pub(super) drained_wanted: bool,
    /// When a request that reaches nobody fails.
    pub(super) overdue: Option<Time>,
    pub(super) receives: ReceiveQueue,
    /// Slots of the send queue in use: posted, silently done, or completed and not polled.
    pub(super) send_slots: u32,
    /// With a shared receive queue: messages received and not polled.
    pub(super) receive_slots: u32,
    /// Unsignaled requests done since the last completion, which will free their slots.
    silent: u32,
}

impl Pair {
    pub(super) fn new(init: QueuePairInit) -> Self {
        Self {
            // The table gives the handle when the pair is put into it.
            handle: QueuePair {
                index: 0,
                generation: 0,
            },
            init,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::NONE,
            phase: Phase::Unconnected,
            ending_owed: false,
            sends: VecDeque::new(),
            started: 0,
            drained_wanted: false,
            overdue: None,
            receives: match init.receives {
                Receives::Own => ReceiveQueue::Own(VecDeque::new()),
                Receives::Shared(queue) => ReceiveQueue::Shared(queue),
            },
            send_slots: 0,
            receive_slots: 0,
            silent: 0,
        }
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

    /// May a message take a receive now? A shared queue's receives are counted when they are
    /// taken, an own one's when they are posted.
    pub(super) fn has_receive_slot(&self) -> bool {
        self.receives.shared().is_none()
            || self.receive_slots < self.init.capabilities.receive_requests_max
    }

    #[inline]
    pub(super) fn finish_send(
        &mut self,
        hub: &mut Hub,
        wr_id: WorkRequestId,
        flags: SendFlags,
        kind: CompletionKind,
    ) {
        if flags.contains(SendFlags::SIGNALED) {
            self.complete_send(hub, wr_id, Ok(kind));
        } else {
            self.silent += 1;
        }
    }

    pub(super) fn complete_send(
        &mut self,
        hub: &mut Hub,
        wr_id: WorkRequestId,
        result: Result<CompletionKind, CompletionStatus>,
    ) {
        let entry = Entry {
            completion: Completion {
                wr_id,
                queue_pair: self.handle,
                result,
                vendor_error: 0,
            },
            work_queue: WorkQueue::Send,
            slots: core::mem::take(&mut self.silent) + 1,
        };
        hub.complete(self.init.send_completions, entry, false);
    }

    pub(super) fn complete_receive(
        &self,
        hub: &mut Hub,
        wr_id: WorkRequestId,
        result: Result<CompletionKind, CompletionStatus>,
        solicited: bool,
    ) {
        let entry = Entry {
            completion: Completion {
                wr_id,
                queue_pair: self.handle,
                result,
                vendor_error: 0,
            },
            work_queue: WorkQueue::Receive,
            slots: 1,
        };
        hub.complete(self.init.receive_completions, entry, solicited);
    }

    /// Completes the oldest send request with success.
    pub(super) fn finish_first_send(&mut self, hub: &mut Hub) {
        if let Some(done) = self.sends.pop_front() {
            hub.regions.count_user(done.entries(), false);
            let kind = done.operation.completion_kind();
            self.finish_send(hub, done.wr_id, done.flags, kind);
        }
    }

    /// Takes the oldest receive request.
    pub(super) fn take_first_receive(&mut self, hub: &mut Hub) -> Option<PostedReceive> {
        let taken = self.receives.take(hub)?;
        if self.receives.shared().is_some() {
            self.receive_slots += 1;
        }
        Some(taken)
    }

    /// Forgets all requests and completions without a trace.
    pub(super) fn forget(&mut self, hub: &mut Hub) {
        for posted in self.sends.drain(..) {
            hub.regions.count_user(posted.entries(), false);
        }
        self.receives.forget(&mut hub.regions);
        for queue in [self.init.send_completions, self.init.receive_completions] {
            if let Some(found) = hub.queues.get_mut(queue) {
                found.forget(self.handle);
            }
        }
        (self.started, self.silent) = (0, 0);
        (self.send_slots, self.receive_slots) = (0, 0);
    }
}
