//! Where channel adapters differ.

use crate::cm::{LocalPort, Parameters};
use crate::nic::{CompletionQueuePolicy, Destroyed, Overrun, Reclaim};
use crate::rc;
use legato_base::Random;
use legato_verbs::{CompletionStatus, PathMtu, RetryCount, RnrTimer};

/// What the specification leaves to an adapter, and what some do in spite of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub transport: rc::Policy,
    pub completion_queue: CompletionQueuePolicy,
    /// When the slot of a receive is free again. If that is before its completion is polled, the
    /// ledger of a completion queue does not keep it from being overrun.
    pub receive_reclaim: Reclaim,
    pub last_work_request: LastWorkRequestEvents,
    pub overrun_ends: OverrunEnds,
    pub overrun_events: OverrunEvents,
    /// A send that is refused before the queue pair is ready to send is executed all the same, with
    /// the next one that is posted, or is flushed.
    pub refused_sends_stay: bool,
    /// A queue pair number is used again at once.
    pub reuses_numbers: bool,
    /// A disconnect leaves the queue pair's state as it is.
    pub disconnect_keeps_state: bool,
    pub vendor_errors: VendorErrors,
}

/// What the device's maker calls failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorErrors {
    None,
    /// ConnectX-5 and later.
    Mlx5,
}

impl VendorErrors {
    /// 0 where nothing is known.
    pub(super) const fn of(self, status: CompletionStatus) -> u32 {
        match (self, status) {
            (Self::None, _) => 0,
            (Self::Mlx5, CompletionStatus::LocalProtection) => 0x52,
            (Self::Mlx5, CompletionStatus::WorkRequestFlushed) => 0xF5,
            (Self::Mlx5, CompletionStatus::RemoteInvalidRequest) => 0x8A,
            (Self::Mlx5, CompletionStatus::RemoteAccess) => 0x88,
            (Self::Mlx5, CompletionStatus::RetryExceeded) => 0x81,
            (Self::Mlx5, CompletionStatus::ReceiverNotReadyRetryExceeded) => 0x87,
            (Self::Mlx5, _) => 0,
        }
    }
}

impl Policy {
    /// As the specification says.
    pub const IDEAL: Self = Self {
        transport: rc::Policy::IDEAL,
        completion_queue: CompletionQueuePolicy {
            overrun: Overrun::Ends,
            destroyed: Destroyed::Removed,
        },
        receive_reclaim: Reclaim::WhenPolled,
        last_work_request: LastWorkRequestEvents::AsTransport,
        overrun_ends: OverrunEnds::Attached,
        overrun_events: OverrunEvents::Once,
        refused_sends_stay: false,
        reuses_numbers: false,
        disconnect_keeps_state: false,
        vendor_errors: VendorErrors::None,
    };
}

/// When Last Work Request Reached is raised, of the times when the transport does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWorkRequestEvents {
    AsTransport,
    /// Only after a receive was flushed (the first condition of IB spec C11-5.2.5 alone).
    AfterFlush,
    Times(u32),
}

/// Which queue pairs a lost completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrunEnds {
    /// All that use the queue, each with an event.
    Attached,
    /// The one whose receive completed, without an event and before it has acknowledged the
    /// message.
    Receiver,
}

/// How often a lost completion is said, where the queue goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrunEvents {
    Once,
    /// Each one that is lost; but with the first that finds no room the rest of a flush is given up
    /// in silence.
    Each,
}

/// What an adapter is like, and what a connect or accept gives its queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub name: &'static str,
    pub port: LocalPort,
    pub policy: Policy,
    pub message_length_max: u32,
    /// Local ACK timeout: 4.096 us * 2^timeout without an answer and packets are sent again.
    pub timeout: u8,
    /// Transmissions again without an answer.
    pub retry_count: RetryCount,
    /// Transmissions again to a peer without a receive.
    pub rnr_retry: u8,
    /// How long a peer waits that found no receive here.
    pub rnr_timer: RnrTimer,
    /// Of the connections that are asked for here, and the longest of those that peers ask for.
    pub path_mtu: PathMtu,
    /// READs and atomics that a queue pair has under way at a time, in each direction.
    pub reads_max: u8,
    /// Times and limits of connection management.
    pub connection_management: Parameters,
}

/// An adapter's randomness: a stream for each of its uses.
#[derive(Debug)]
pub struct Chance {
    /// Keys of regions and windows.
    pub keys: Random,
    pub connection_management: Random,
    /// Packet sequence numbers with which connections begin.
    pub sequences: Random,
    pub numbers: NumberOrder,
}

/// The order of the numbers of queue pairs.
#[derive(Debug)]
pub enum NumberOrder {
    /// They count up from here.
    From(u32),
    /// None follows from another (P-82).
    Drawn(Random),
}

impl Chance {
    pub fn from_seed(seed: u64) -> Self {
        Self::from_random(Random::from_seed(seed))
    }

    /// Where strangers must not guess what is drawn, the source is one that they cannot compute.
    pub fn from_random(mut random: Random) -> Self {
        Self {
            keys: random.fork(),
            connection_management: random.fork(),
            sequences: random.fork(),
            numbers: NumberOrder::Drawn(random.fork()),
        }
    }
}
