//! Reads and writes of the peer's memory.
//!
//! An operation stays in its table, and its buffer with it, until its completion has been seen or
//! its queue pair is destroyed. Its deadline only decides its outcome.

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::grant::Window;
use crate::id::{Key, Kind};
use crate::shared::Shared;
use crate::{OperationError, OperationId, Proof, Refused, ResetCause};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    CompletionKind, CompletionStatus, Provider, ScatterGatherEntry, SendFlags, SendOperation,
    SendRequest, VerbsError, WorkRequestId,
};

#[derive(Debug)]
pub(crate) struct Operation<B> {
    pub(crate) buffer: B,
    pub(crate) deadline: Deadline,
    phase: Phase,
    /// Of a grant: the operations are the peer's.
    pub(crate) window: Option<Window>,
}

/// What is still to come of an operation, beside its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its outcome.
    Open,
    /// It has its outcome. At the deadline it is called back, as every other.
    Canceled,
    /// It is a grant: the peer may use the buffer.
    Granted,
    /// It has its outcome and was called back.
    Expired,
}

impl<B> Operation<B> {
    pub(crate) const fn granting(buffer: B, deadline: Time, window: Window) -> Self {
        Self {
            buffer,
            deadline: Deadline::at(deadline),
            phase: Phase::Open,
            window: Some(window),
        }
    }

    /// Requests of it that have not completed.
    pub(crate) fn posted(&self) -> usize {
        self.window.map_or(1, |window| window.posted())
    }

    /// The outcome has not been said.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }
}

impl<B: Buffer> Connection<B> {
    pub(crate) fn start_operation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        operation: SendOperation,
        buffer: B,
        deadline: Time,
    ) -> Result<OperationId, (Refused, B)> {
        let entries = buffer.entries();
        if let Err(refused) = self.may_start(shared, &entries, deadline) {
            return Err((refused, buffer));
        }
        let slot = Operation {
            buffer,
            deadline: Deadline::at(deadline),
            phase: Phase::Open,
            window: None,
        };
        let key = match self.operations.insert(&mut shared.generations, slot) {
            Ok(key) => key,
            Err(slot) => return Err((Refused::WouldBlock, slot.buffer)),
        };
        let token = self.token(Kind::OneSided, key);
        let request = SendRequest {
            wr_id: WorkRequestId(token.bits()),
            operation,
            entries,
            flags: SendFlags::SIGNALED,
        };
        if let Err(error) = provider.post_send(self.queue_pair, &request) {
            let refused = self.refuse_post(shared, provider, error);
            let slot = self.operations.remove(key);
            let slot = slot.expect("invariant: it was put in above");
            return Err((refused, slot.buffer));
        }
        shared.note_deadline(deadline);
        shared.counters.operations_started += 1;
        Ok(OperationId(token))
    }

    pub(crate) fn may_start(
        &self,
        shared: &Shared<B>,
        entries: &[ScatterGatherEntry],
        deadline: Time,
    ) -> Result<(), Refused> {
        let length: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if !self.is_established() {
            Err(Refused::NotConnected)
        } else if shared.is_quarantine_full() {
            // P-60: nothing new is started.
            Err(Refused::QuarantineFull)
        } else if length > shared.transfer_length_max {
            Err(Refused::TooLong)
        } else if deadline <= shared.now {
            // Its expiry would cost the whole connection.
            Err(Refused::DeadlinePassed)
        } else {
            Ok(())
        }
    }

    /// What the caller of a refused post is told. The queues are large enough by construction, so
    /// a full one is the provider's doing and passes.
    pub(crate) fn refuse_post(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        error: VerbsError,
    ) -> Refused {
        shared.counters.posts_refused += 1;
        match error {
            VerbsError::QueueFull(_) => Refused::WouldBlock,
            VerbsError::InvalidState(_) | VerbsError::UnknownHandle(_) => {
                self.reset(shared, provider, ResetCause::Provider(error));
                Refused::NotConnected
            }
            error => Refused::Provider(error),
        }
    }

    pub(crate) fn complete_operation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        match self.operations.get(key).map(|it| it.window) {
            Some(Some(window)) if window.is_bound => return false,
            Some(Some(_)) if result.is_ok() => {
                self.begin_grant(shared, key);
                return true;
            }
            _ => {}
        }
        // P-14: it leaves the table once, and its buffer with it.
        let Some(operation) = self.operations.remove(key) else {
            return false;
        };
        if let Some(window) = operation.window {
            self.drop_window(provider, window);
        }
        let (outcome, proof) = match result {
            Ok(_) => (Ok(()), Proof::Completion),
            Err(CompletionStatus::WorkRequestFlushed) => {
                (Err(self.flush_error()), Proof::QueuePairDrained)
            }
            Err(status) => (Err(OperationError::completion(status)), Proof::Completion),
        };
        let token = self.token(Kind::OneSided, key);
        shared.end_operation(provider, token, operation, outcome, proof);
        true
    }

    /// The window is bound: the peer can begin.
    fn begin_grant(&mut self, shared: &mut Shared<B>, key: Key) {
        let token = self.token(Kind::OneSided, key);
        let Some(operation) = self.operations.get_mut(key) else {
            return;
        };
        if let Some(window) = &mut operation.window {
            window.is_bound = true;
            if !window.is_revoked() {
                operation.deadline = Deadline::NEVER;
            }
        }
        if operation.phase == Phase::Open {
            operation.phase = Phase::Granted;
            shared.decide_operation(token, Ok(()));
        }
    }

    /// Gives an outcome to what has not ended in time (P-13). True if anything was: then the queue pair
    /// must go to the error state, because nothing else calls a posted operation back.
    pub(crate) fn expire_operations(&mut self, shared: &mut Shared<B>) -> bool {
        let now = shared.now;
        let mut expired: Vec<(Key, bool)> = Vec::new();
        for (key, operation) in self.operations.iter_mut() {
            if operation.phase == Phase::Expired {
                continue;
            }
            if operation.deadline.has_passed(now) {
                let was_open = operation.is_open();
                operation.phase = Phase::Expired;
                expired.push((key, was_open));
            } else {
                shared.note_deadline(operation.deadline.time());
            }
        }
        for &(key, _) in expired.iter().filter(|(_, was_open)| *was_open) {
            let token = self.token(Kind::OneSided, key);
            shared.decide_operation(token, Err(OperationError::EXPIRED));
        }
        !expired.is_empty()
    }

    /// Gives this outcome to everything that has none. True if there was anything.
    pub(crate) fn decide_operations(
        &mut self,
        shared: &mut Shared<B>,
        error: OperationError,
    ) -> bool {
        let mut open: Vec<Key> = Vec::new();
        for (key, operation) in self.operations.iter_mut() {
            if operation.is_open() {
                operation.phase = Phase::Expired;
                open.push(key);
            }
        }
        for &key in &open {
            let token = self.token(Kind::OneSided, key);
            shared.decide_operation(token, Err(error));
        }
        !open.is_empty()
    }

    /// Gives an operation up: its outcome is said at once, its buffer comes when it is quiet (P-61). False
    /// if it has its outcome already.
    pub(crate) fn cancel_operation(&mut self, shared: &mut Shared<B>, key: Key) -> bool {
        let token = self.token(Kind::OneSided, key);
        let operation = self.operations.get_mut(key);
        // A grant is taken back instead.
        let may_cancel = |it: &&mut Operation<B>| it.is_open() && it.window.is_none();
        let Some(operation) = operation.filter(may_cancel) else {
            return false;
        };
        operation.phase = Phase::Canceled;
        shared.decide_operation(token, Err(OperationError::CANCELED));
        true
    }
}
