//! Limits of a fabric.

use legato_base::Duration;

/// A limit on everything. The queues are sized by it once, when they are made.
#[derive(Clone, Copy, Debug)]
pub struct FabricConfig {
    pub connections_max: u32,
    /// Requests of a peer held unanswered on one connection, and calls under way to it.
    pub credits: u32,
    /// With a number, all connections take the messages that come to them from one queue with so many
    /// receives, and what is posted does not grow with their number. Each connection has at least one
    /// credit then, and as many of [`Self::credits`] as there are receives for: three more than twice
    /// its credits. At least six for each of [`Self::connections_max`].
    pub shared_receives: Option<u32>,
    /// Longest body of a request or reply, in bytes.
    pub message_length_max: u32,
    /// Reads and writes outstanding on one connection.
    pub one_sided_max: u32,
    /// Of these, grants: buffers that the peer may use at a time ([`crate::Fabric::grant`]).
    pub grants_max: u32,
    /// Scatter/gather entries of one read or write.
    pub entries_max: u32,
    /// How long a request may wait for its reply before its handler is reported.
    pub handler_max: Duration,
    /// How long a peer that says nothing is believed to be alive. All other time limits of a
    /// connection are parts of it: see the list in `timeouts.rs`. At least a millisecond.
    pub liveness: Duration,
    /// How long a port may be down, or the own address missing, before its connections end for it. Zero:
    /// at once.
    pub outage: Duration,
    /// How long this device may go on touching a buffer that it has given back in error: zero for one
    /// that keeps the specification.
    pub late_write_bound: Duration,
    /// Bytes of memory in quarantine beyond which nothing new is started.
    pub quarantine_max: u64,
    /// Every accepted connection has a protection domain for itself ([`crate::Fabric::domain_of`]), so
    /// that no peer can use what another one was given, whatever keys it knows.
    pub separate_peers: bool,
    /// Of this life of the process: differs from that of every other process and of every earlier life.
    /// 0 says nothing: then no peer takes this side's word about connections that it has closed.
    pub incarnation: u64,
    /// Where the generations start: tests start them near their wrap.
    pub first_generation: u32,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            connections_max: 16,
            credits: 16,
            shared_receives: None,
            message_length_max: 1024,
            one_sided_max: 64,
            grants_max: 0,
            entries_max: 4,
            handler_max: Duration::from_secs(5),
            liveness: Duration::from_secs(10),
            outage: Duration::ZERO,
            late_write_bound: Duration::ZERO,
            quarantine_max: 64 << 20,
            separate_peers: false,
            incarnation: 0,
            first_generation: 0,
        }
    }
}
