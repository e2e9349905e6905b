//! What all connections of a fabric share.

use crate::credits::Sizes;
use crate::id::{Generations, Token};
use crate::one_sided::Operation;
use crate::{
    CallId, Cause, FabricConfig, FabricCounters, FabricEvent, OperationError, OperationId, Proof,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{CompletionQueue, MemoryRegion, ProtectionDomain, Provider};

#[derive(Debug)]
pub(crate) struct Shared<B> {
    pub(crate) config: FabricConfig,
    pub(crate) sizes: Sizes,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    /// Bytes of the longest one-sided transfer.
    pub(crate) transfer_length_max: u64,
    pub(crate) generations: Generations,
    pub(crate) counters: FabricCounters,
    pub(crate) events: VecDeque<FabricEvent<B>>,
    /// Of the last turn.
    pub(crate) now: Time,
    /// No deadline is earlier. It may be too early, never too late: ended operations do not raise
    /// it, so that starting and ending one costs no search.
    pub(crate) earliest: Time,
    /// Connections that drain.
    pub(crate) draining: usize,
    /// Replies that wait for a buffer.
    pub(crate) waiting_replies: usize,
}

impl<B> Shared<B> {
    pub(crate) fn note_deadline(&mut self, deadline: Time) {
        self.earliest = self.earliest.min(deadline);
    }

    pub(crate) fn deregister(&mut self, provider: &mut dyn Provider, region: &MemoryRegion) {
        if provider.deregister_region(region).is_err() {
            self.counters.regions_quarantined += 1;
        }
    }

    /// The one end of a call.
    pub(crate) fn end_call(&mut self, call: Token, outcome: Result<Vec<u8>, OperationError>) {
        match &outcome {
            Ok(_) => self.counters.calls_replied += 1,
            Err(error) if error.cause == Cause::DeadlineExpired => {
                self.counters.calls_expired += 1;
            }
            Err(_) => self.counters.calls_failed += 1,
        }
        let call = CallId(call);
        self.events
            .push_back(FabricEvent::Replied { call, outcome });
    }

    /// What may be concluded about an operation, which is said once.
    pub(crate) fn decide_operation(
        &mut self,
        operation: Token,
        outcome: Result<(), OperationError>,
    ) {
        match &outcome {
            Ok(()) => self.counters.operations_completed += 1,
            Err(error) if error.cause == Cause::DeadlineExpired => {
                self.counters.operations_expired += 1;
            }
            Err(_) => self.counters.operations_failed += 1,
        }
        let operation = OperationId(operation);
        self.events
            .push_back(FabricEvent::Outcome { operation, outcome });
    }

    /// Nothing can touch the operation's memory any more.
    pub(crate) fn end_operation(
        &mut self,
        token: Token,
        operation: Operation<B>,
        outcome: Result<(), OperationError>,
        proof: Proof,
    ) {
        if !operation.decided {
            self.decide_operation(token, outcome);
        }
        self.counters.operations_quiesced += 1;
        self.events.push_back(FabricEvent::Quiesced {
            operation: OperationId(token),
            buffer: operation.buffer,
            proof,
        });
    }
}
