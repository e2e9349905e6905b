//! What all connections of a fabric share.

use crate::credits::Sizes;
use crate::fence::Fence;
use crate::id::{Generations, Token};
use crate::proof::Prover;
use crate::receive_pool::ReceivePool;
use crate::timeouts::Timeouts;
use crate::{
    CallId, Cause, FabricConfig, FabricCounters, FabricEvent, OperationError, OperationId,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{CompletionQueue, ProtectionDomain, Provider, VerbsError};

#[derive(Debug)]
pub(crate) struct Shared<B> {
    pub(crate) config: FabricConfig,
    pub(crate) sizes: Sizes,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    /// It was overrun: another one takes its place as soon as no queue pair uses it.
    pub(crate) queue_failed: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) fence: Fence<B>,
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
    /// When the last turn wanted the next one.
    pub(crate) due: Time,
    /// Of the next connection that this side asks for.
    pub(crate) next_epoch: u64,
    /// Connections that drain.
    pub(crate) draining: usize,
    /// Replies that wait for a buffer.
    pub(crate) waiting_replies: usize,
    /// With a secret every peer must prove that it knows it.
    pub(crate) prover: Option<Prover>,
    /// Of connections that are gone. A region of the owner, which learns of the end by an event, may be
    /// in one.
    pub(crate) retired_domains: Vec<ProtectionDomain>,
    /// Where connections share their receives.
    pub(crate) pool: Option<ReceivePool>,
    /// Nothing was left in the completion queue when it was last polled.
    pub(crate) polled_empty: bool,
}

impl<B> Shared<B> {
    /// Gives protection domains back in which nothing is left.
    pub(crate) fn destroy_retired(&mut self, provider: &mut dyn Provider) {
        self.retired_domains.retain(|&domain| {
            let destroyed = provider.destroy_protection_domain(domain);
            matches!(
                destroyed,
                Err(VerbsError::Busy(_) | VerbsError::System { .. })
            )
        });
    }

    /// The credits of one more connection.
    ///
    /// # Errors
    /// When there are no receives for it.
    pub(crate) fn grant(&mut self, provider: &mut dyn Provider) -> Result<u32, VerbsError> {
        let (wanted, places) = (self.config.credits, self.config.connections_max);
        let Some(pool) = &mut self.pool else {
            return Ok(wanted);
        };
        let granted = pool.grant(provider, &mut self.generations, (wanted, places));
        if pool.has_unposted() {
            self.note_deadline(self.now + self.timeouts.retry);
        }
        granted
    }

    /// Gives the shared receives back.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while there is a queue pair that may take them.
    pub(crate) fn end_receives(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        if let Some(pool) = &mut self.pool {
            pool.end(provider)?;
        }
        self.pool = None;
        Ok(())
    }

    pub(crate) fn note_deadline(&mut self, deadline: Time) {
        self.earliest = self.earliest.min(deadline);
    }

    /// The one end of a call.
    pub(crate) fn end_call(&mut self, call: Token, outcome: Result<Vec<u8>, OperationError>) {
        match &outcome {
            Ok(_) => self.counters.calls_replied += 1,
            Err(error) if error.cause == Cause::DeadlineExpired => {
                self.counters.calls_expired += 1;
            }
            Err(error) if error.cause == Cause::Canceled => self.counters.calls_canceled += 1,
            Err(_) => self.counters.calls_failed += 1,
        }
        let call = CallId(call);
        self.events
            .push_back(FabricEvent::Replied { call, outcome });
    }

    /// What may be concluded about an operation, which is said once (P-13).
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
            Err(error) if error.cause == Cause::Canceled => {
                self.counters.operations_canceled += 1;
            }
            Err(_) => self.counters.operations_failed += 1,
        }
        let operation = OperationId(operation);
        self.events
            .push_back(FabricEvent::Outcome { operation, outcome });
    }
}
