//! Counters, and the invariants that they must satisfy when nothing is under way.

/// Counts since the fabric was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FabricCounters {
    /// `calls_started = calls_replied + calls_failed + calls_expired` when all have ended.
    pub calls_started: u64,
    pub calls_replied: u64,
    pub calls_failed: u64,
    pub calls_expired: u64,
    /// Replies to calls whose deadline had passed: dropped.
    pub replies_late: u64,
    /// Replies to no call of this connection, or to one that had its reply: dropped.
    pub replies_stale: u64,
    /// `requests_received = requests_replied + requests_dropped` when all have ended.
    pub requests_received: u64,
    pub requests_replied: u64,
    /// Requests whose connection ended before their reply.
    pub requests_dropped: u64,
    /// `operations_started = operations_completed + operations_failed + operations_expired`, and
    /// `= operations_quiesced`, when all have ended.
    pub operations_started: u64,
    pub operations_completed: u64,
    pub operations_failed: u64,
    pub operations_expired: u64,
    pub operations_quiesced: u64,
    /// Completions of work requests that are not outstanding: dropped.
    pub completions_stale: u64,
    /// Posts that the provider refused.
    pub posts_refused: u64,
    pub connections_established: u64,
    /// Established connections that ended otherwise than by [`crate::Fabric::close`].
    pub connections_reset: u64,
    /// Queue pairs destroyed because they did not drain in time.
    pub drains_overdue: u64,
    pub messages_malformed: u64,
    /// Peers sent away: no place, or not of this protocol.
    pub peers_rejected: u64,
    /// Events about what does not exist, or not in that state.
    pub events_unexpected: u64,
    /// Message regions that the provider would not take back: never used again.
    pub regions_quarantined: u64,
}
