//! Limits of a fabric.

use legato_base::Duration;

/// A limit on everything. The queues are sized by it once, when they are made.
#[derive(Clone, Copy, Debug)]
pub struct FabricConfig {
    pub connections_max: u32,
    /// Requests of a peer held unanswered on one connection, and calls under way to it.
    pub credits: u32,
    /// Longest body of a request or reply, in bytes.
    pub message_length_max: u32,
    /// Reads and writes outstanding on one connection.
    pub one_sided_max: u32,
    /// Scatter/gather entries of one read or write.
    pub entries_max: u32,
    /// How long a queue pair in the error state may take to give its requests back before it is
    /// destroyed.
    pub drain: Duration,
    /// How long an accepted peer may take to finish connecting.
    pub handshake: Duration,
    /// Where the generations start: tests start them near their wrap.
    pub first_generation: u32,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            connections_max: 16,
            credits: 16,
            message_length_max: 1024,
            one_sided_max: 64,
            entries_max: 4,
            drain: Duration::from_secs(1),
            handshake: Duration::from_secs(5),
            first_generation: 0,
        }
    }
}
