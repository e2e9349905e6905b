//! Counters, and the invariants that they must satisfy when nothing is under way.

use crate::{ConnectError, FenceCounters, ProofError};
use legato_base::wire::proof::Refusal;

/// Counts since the fabric was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FabricCounters {
    /// `calls_started = calls_replied + calls_failed + calls_expired + calls_canceled` when all have
    /// ended.
    pub calls_started: u64,
    pub calls_replied: u64,
    pub calls_failed: u64,
    pub calls_expired: u64,
    pub calls_canceled: u64,
    /// Replies to calls whose deadline had passed: dropped.
    pub replies_late: u64,
    /// Replies to no call of this connection, or to one that had its reply: dropped.
    pub replies_stale: u64,
    /// `requests_received = requests_replied + requests_dropped` when all have ended.
    pub requests_received: u64,
    pub requests_replied: u64,
    /// Requests whose connection ended before their reply.
    pub requests_dropped: u64,
    /// Of those replied: not executed, because their deadline had passed.
    pub requests_expired: u64,
    /// Requests that waited for their reply longer than they should.
    pub handlers_overdue: u64,
    /// `operations_started = operations_completed + operations_failed + operations_expired +
    /// operations_canceled`, and `= operations_quiesced + operations_quarantined`, when all have
    /// ended.
    pub operations_started: u64,
    pub operations_completed: u64,
    pub operations_failed: u64,
    pub operations_expired: u64,
    pub operations_canceled: u64,
    pub operations_quiesced: u64,
    /// In quarantine now.
    pub operations_quarantined: u64,
    /// On which rungs operations were quiesced; the sum is `operations_quiesced`.
    pub fences: FenceCounters,
    /// Completions of work requests that are not outstanding: dropped.
    pub completions_stale: u64,
    /// Posts that the provider refused.
    pub posts_refused: u64,
    pub connections_established: u64,
    /// Established connections that ended otherwise than by [`crate::Fabric::close`].
    pub connections_reset: u64,
    /// Queue pairs destroyed because they did not drain in time.
    pub drains_overdue: u64,
    /// Requests that a queue pair had not given back when it had given back what was posted last.
    pub completions_missing: u64,
    /// Queue pairs with shared receives that were given up without Last Work Request Reached.
    pub drain_events_missing: u64,
    /// Shared receives that nobody gave back and that are posted again.
    pub receives_reclaimed: u64,
    /// Shared receives that came back for a connection that is gone.
    pub receives_orphaned: u64,
    /// Events that said that few shared receives are left.
    pub receives_low: u64,
    /// Changes to the error state that the provider refused.
    pub error_changes_refused: u64,
    /// Markers of a drain that the provider refused: it waits for all requests, or its time limit.
    pub markers_refused: u64,
    /// Peers that were silent for long; some were heard again.
    pub peers_suspected: u64,
    /// Completion queues that were overrun and replaced.
    pub completion_queues_replaced: u64,
    pub messages_malformed: u64,
    /// Peers sent away: no place, or not of this protocol.
    pub peers_rejected: u64,
    /// Of these: no proof, where one is asked for.
    pub secrets_missing: u64,
    /// Of these: a proof of another secret, or a damaged one.
    pub secrets_wrong: u64,
    /// Of these: a proof, where there is no secret.
    pub secrets_unexpected: u64,
    /// Of these: too many others had not proved themselves yet.
    pub secrets_busy: u64,
    /// Of these: a request that was answered before: a recording.
    pub secrets_repeated: u64,
    /// Connections whose peer did not confirm in time that it knows the secret, or ended before: a
    /// recording, say.
    pub proofs_missing: u64,
    /// Connections whose peer confirmed something else.
    pub proofs_wrong: u64,
    /// Hints that an interface's hardware address, or a port's table of addresses, has changed.
    pub address_changes: u64,
    /// What the NIC's maker calls the last failure of a request that was not merely flushed; 0 if nothing.
    pub vendor_error: u32,
    /// Events about what does not exist, or not in that state.
    pub events_unexpected: u64,
}

impl FabricCounters {
    /// A peer was sent away because of the secret.
    pub(crate) const fn note_refusal(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Required => self.secrets_missing += 1,
            Refusal::Wrong => self.secrets_wrong += 1,
            Refusal::NotExpected => self.secrets_unexpected += 1,
            Refusal::Busy => self.secrets_busy += 1,
            Refusal::Repeated => self.secrets_repeated += 1,
        }
    }

    /// A connection ends before its peer has proved itself.
    pub(crate) const fn note_unproved(&mut self, error: ConnectError) {
        match error {
            ConnectError::DeadlineExpired | ConnectError::Proof(ProofError::Ended) => {
                self.proofs_missing += 1;
            }
            ConnectError::Proof(_) | ConnectError::Incompatible(_) => self.proofs_wrong += 1,
            _ => {}
        }
    }
}
