//! Reads and writes of the peer's memory.
//!
//! An operation stays in its table, and its buffer with it, until its completion has been seen or
//! its queue pair is destroyed. Its deadline only decides its outcome.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::id::{Key, Kind};
use crate::shared::Shared;
use crate::{OperationError, OperationId, Proof, Refused, ResetCause};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    CompletionKind, CompletionStatus, Provider, ScatterGatherEntry, SendOperation, SendRequest,
    VerbsError, WorkRequestId,
};

#[derive(Debug)]
pub(crate) struct Operation<B> {
    pub(crate) buffer: B,
    pub(crate) deadline: Time,
    /// The outcome has been given.
    pub(crate) decided: bool,
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
            deadline,
            decided: false,
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
            signaled: true,
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

    fn may_start(
        &self,
        shared: &Shared<B>,
        entries: &[ScatterGatherEntry],
        deadline: Time,
    ) -> Result<(), Refused> {
        let length: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if !self.is_established() {
            Err(Refused::NotConnected)
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
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        let Some(operation) = self.operations.remove(key) else {
            return false;
        };
        let (outcome, proof) = match result {
            Ok(_) => (Ok(()), Proof::Completion),
            Err(CompletionStatus::WorkRequestFlushed) => {
                (Err(self.flush_error()), Proof::QueuePairDrained)
            }
            Err(status) => (Err(OperationError::completion(status)), Proof::Completion),
        };
        let token = self.token(Kind::OneSided, key);
        shared.end_operation(token, operation, outcome, proof);
        true
    }

    /// Gives an outcome to what has not ended in time. True if anything was: then the queue pair
    /// must go to the error state, because nothing else calls a posted operation back.
    pub(crate) fn expire_operations(&mut self, shared: &mut Shared<B>) -> bool {
        let now = shared.now;
        let mut expired: Vec<Key> = Vec::new();
        for (key, operation) in self.operations.iter_mut() {
            if operation.decided {
                continue;
            }
            if operation.deadline <= now {
                operation.decided = true;
                expired.push(key);
            } else {
                shared.note_deadline(operation.deadline);
            }
        }
        for &key in &expired {
            let token = self.token(Kind::OneSided, key);
            shared.decide_operation(token, Err(OperationError::EXPIRED));
        }
        !expired.is_empty()
    }
}
