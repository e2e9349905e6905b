//! What the simulated hardware is like.

use super::personality::Personality;
use legato_base::Duration;
use legato_transport::PathMtu;
use legato_transport::cm::Parameters;
use legato_verbs::{RetryCount, RnrTimer};

/// The wire, the NICs on it, and what a connect or accept gives its queue pair.
#[derive(Clone, Copy, Debug)]
pub struct SimNetworkConfig {
    /// Time that every packet takes at least.
    pub latency: Duration,
    /// Up to this much more, drawn anew for each packet. Packets of one queue pair keep their order.
    pub jitter: Duration,
    /// Up to this long a NIC takes to look at a posted request.
    pub posting_delay: Duration,
    /// Of each machine's link, in one direction; `None` if the size of a packet costs nothing.
    pub bytes_per_second: Option<u64>,
    /// Local ACK timeout: 4.096 us * 2^timeout without an answer and packets are sent again.
    pub timeout: u8,
    /// Transmissions again without an answer.
    pub retry_count: RetryCount,
    /// Transmissions again to a peer without a receive.
    pub rnr_retry: u8,
    /// How long a peer waits that found no receive here.
    pub rnr_timer: RnrTimer,
    pub path_mtu: PathMtu,
    /// READs and atomics that a queue pair has under way at a time, in each direction.
    pub reads_max: u8,
    /// Times and limits of connection management.
    pub connection_management: Parameters,
    /// So long after a machine was killed its peers' connection managers say `Disconnected`: a
    /// stand-in for a membership service that finds dead machines. No NIC has such a thing; with
    /// `None` silence is all that a peer learns.
    pub detection_time: Option<Duration>,
    pub message_length_max: u32,
    /// Of machines that are started without another one.
    pub personality: Personality,
}

impl Default for SimNetworkConfig {
    /// A rack: 2 to 3 us and 100 Gbit/s, and the defaults of `rdma_cm`.
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(2),
            jitter: Duration::from_micros(1),
            posting_delay: Duration::from_nanos(300),
            bytes_per_second: Some(12_500_000_000),
            timeout: 14,
            retry_count: RetryCount::from_bits(3),
            rnr_retry: 2,
            rnr_timer: RnrTimer::new(12),
            path_mtu: PathMtu::Bytes4096,
            reads_max: 16,
            connection_management: Parameters::default(),
            detection_time: Some(Duration::from_millis(500)),
            message_length_max: 1 << 20,
            personality: Personality::IDEAL,
        }
    }
}
