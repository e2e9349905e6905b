//! What implementations of the transport do differently.

use crate::wire::NakCode;
use legato_base::Duration;
use legato_verbs::CompletionStatus;

/// Where the specification leaves a choice, or devices deviate from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A retry count that is without end. The specification has none (IB spec 9.7.6.1.3).
    pub retry_count_infinite: Option<u8>,
    /// Timeouts below this one are raised to it.
    pub timeout_min: u8,
    /// How the timeouts that follow each other differ.
    pub backoff: Backoff,
    pub recovery: Recovery,
    /// Timeouts and waits for a receive take multiples of it; zero if timers are exact.
    pub timer_tick: Duration,
    /// How the receive of a message that is longer completes, and what its sender is told.
    pub receive_too_short: (CompletionStatus, NakCode),
    /// The same where the receive's local key does not allow it.
    pub receive_protection: (CompletionStatus, NakCode),
    pub local_failure: LocalFailure,
    pub answer_check: AnswerCheck,
    /// Is an atomic refused when it is posted that no responder could execute?
    pub checks_posted_atomics: bool,
    /// What the sender of a key is told that cannot be ended; `None`: that all is well. The receive
    /// fails in any case.
    pub invalidate_refusal: Option<NakCode>,
    pub write_check: WriteCheck,
    /// Does the last packet of a WRITE with immediate take its receive before its key is looked at?
    /// The receive then fails with the refusal's cause, and one without a receive waits for it.
    pub receive_before_key: bool,
    /// Does a READ that comes again, was answered before and is refused now end the responder's
    /// queue pair? It may be a copy of the network's, of a READ that its sender has long had answered.
    pub refused_repeat_ends: bool,
    /// Does a refused request raise an event at the responder?
    pub refusal_events: bool,
    /// Does the first packet before the connection is established raise one?
    pub established_events: bool,
    pub drain: Drain,
    pub last_work_request: LastWorkRequest,
    pub flush: Flush,
    /// Does a receive of a shared queue complete when an error ends its message half way?
    pub completes_half_received: bool,
    pub slot_reclaim: SlotReclaim,
    /// Request packets that can be without an answer.
    pub window_packets: u32,
    /// A READ whose answer takes so many packets, or fewer, asks for each of them alone, a READ on the wire,
    /// as far as the peer takes so many at a time: the packets of its answer are equally long, and one
    /// message for a system that segments (`UDP_SEGMENT`, udp(7)).
    pub read_pieces: u32,
    /// Packets that are acknowledged at once though no acknowledgement was asked for.
    pub acknowledge_packets: u32,
    /// Fewer are acknowledged so much later.
    pub acknowledge_delay: Duration,
    /// Bytes of an inline request.
    pub inline_max: u32,
}

/// How long each of the timeouts is that follow each other without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// All as the attribute says.
    None,
    /// Two of 0.85 times that, then twice that: a fit to what was published of ConnectX-6 (timeout
    /// 14 and 7 retries take 3.50 to 3.76 s, 20 and 7 take 58.5 to 59.8 s).
    Adaptive,
    /// Each is twice the one before: a lost packet is sent again soon, and a peer that stands still for
    /// a while is not given up.
    Doubling,
}

/// How lost packets are found and sent again, and how many may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// By the timeout of the attributes, and as much as the window of requests allows (IB spec 9.7.6.1.3).
    AsAttributes,
    /// By the measured round trip, with probes, and as much as [`crate::congestion`] allows. The peer is
    /// given up after as long as with [`Self::AsAttributes`].
    Measured,
}

/// When a responder finds that a WRITE of several packets leaves its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCheck {
    /// With the packet that does: those before it are written.
    EachPacket,
    /// With the first packet: nothing is written.
    WholeMessage,
}

/// How often [`crate::QueuePairEvent::LastWorkRequestReached`] is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWorkRequest {
    Never,
    /// Once for each way into the error state (IB spec C11-5.2.5).
    Once,
    /// And again for each change to the error state and each post in it.
    Repeatedly,
}

/// How a request completes that fails for a reason of its own side's, before the peer hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFailure {
    /// With its cause (IB spec 10.10.2).
    Told,
    /// As flushed, and so do at once all that are not answered, before it and behind it.
    Flushed,
}

/// When the memory that an answer goes to is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerCheck {
    /// Before the request is sent: one that fails has not been executed.
    BeforeRequest,
    /// With the answer: an atomic that fails has been executed.
    WithAnswer,
}

/// A send queue that is stopped (SQD), and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The event is for those who ask, and requests that waited start when the state is left (IB
    /// spec 10.3.1.5).
    AsAsked,
    /// The event always comes, with each change to the state. Nothing looks at the requests that waited before one more is posted,
    /// an answer comes or a timer ends.
    Untidy,
}

/// Which requests complete in the error state though they are not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// All (IB spec 10.3.1.7).
    Everything,
    /// All; but a receive that is posted in it, only with the next send that is posted, or change to
    /// the error state: to post it is to write into memory that nobody looks at.
    LaterReceivesWait,
    /// Those that were posted before it.
    NotLaterPosts,
    /// None but the one that failed.
    Nothing,
}

/// When a slot of the send queue is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotReclaim {
    /// When the completion of its request, or of a later one, was polled (IB spec 10.8.5.1).
    Polled,
    /// When its request is complete.
    Completed,
}

impl Policy {
    /// As the specification says.
    pub const IDEAL: Self = Self {
        retry_count_infinite: None,
        timeout_min: 0,
        backoff: Backoff::None,
        recovery: Recovery::AsAttributes,
        timer_tick: Duration::ZERO,
        receive_too_short: (CompletionStatus::LocalLength, NakCode::InvalidRequest),
        receive_protection: (CompletionStatus::LocalProtection, NakCode::RemoteOperation),
        local_failure: LocalFailure::Told,
        answer_check: AnswerCheck::BeforeRequest,
        checks_posted_atomics: false,
        invalidate_refusal: Some(NakCode::RemoteAccess),
        write_check: WriteCheck::EachPacket,
        receive_before_key: false,
        refused_repeat_ends: false,
        refusal_events: true,
        established_events: true,
        drain: Drain::AsAsked,
        last_work_request: LastWorkRequest::Once,
        flush: Flush::Everything,
        completes_half_received: true,
        slot_reclaim: SlotReclaim::Polled,
        window_packets: 256,
        read_pieces: 0,
        acknowledge_packets: 16,
        acknowledge_delay: Duration::from_micros(100),
        inline_max: 512,
    };

    /// `rdma_rxe` of Linux 6.12.
    pub const RXE: Self = Self {
        retry_count_infinite: Some(7),
        // Its timers count jiffies, 250 a second.
        timer_tick: Duration::from_millis(4),
        receive_too_short: (
            CompletionStatus::LocalQueuePairOperation,
            NakCode::RemoteOperation,
        ),
        receive_protection: (
            CompletionStatus::LocalQueuePairOperation,
            NakCode::RemoteOperation,
        ),
        local_failure: LocalFailure::Flushed,
        answer_check: AnswerCheck::WithAnswer,
        checks_posted_atomics: true,
        invalidate_refusal: None,
        write_check: WriteCheck::WholeMessage,
        receive_before_key: true,
        refused_repeat_ends: true,
        refusal_events: false,
        established_events: false,
        drain: Drain::Untidy,
        last_work_request: LastWorkRequest::Repeatedly,
        flush: Flush::LaterReceivesWait,
        completes_half_received: false,
        slot_reclaim: SlotReclaim::Completed,
        ..Self::IDEAL
    };

    /// ConnectX: short timeouts are raised, and later ones are longer.
    pub const MLX5: Self = Self {
        timeout_min: 16,
        backoff: Backoff::Adaptive,
        ..Self::IDEAL
    };

    /// What several iWARP devices do.
    pub const IWARP: Self = Self {
        last_work_request: LastWorkRequest::Never,
        flush: Flush::NotLaterPosts,
        ..Self::IDEAL
    };

    /// The ehca driver of 2008.
    pub const EHCA: Self = Self {
        flush: Flush::Nothing,
        ..Self::IDEAL
    };
}

impl Policy {
    /// How long a timeout really is, after `used` others in a row.
    pub(super) const fn stretch(&self, timeout: Duration, used: u8) -> Duration {
        let nanos = timeout.as_nanos();
        let nanos = match (self.backoff, used) {
            (Backoff::None, _) => nanos,
            (Backoff::Adaptive, 0 | 1) => nanos / 20 * 17,
            (Backoff::Adaptive, _) => nanos.saturating_mul(2),
            (Backoff::Doubling, _) => nanos.saturating_mul(1 << if used < 16 { used } else { 16 }),
        };
        self.ticks(Duration::from_nanos(nanos), 0)
    }

    /// How long a peer may be silent: all timeouts together, the first one and one for each retry.
    pub(super) fn patience(&self, timeout: Duration, retry_count: u8) -> Duration {
        (0..=retry_count).fold(Duration::ZERO, |sum, used| {
            sum + self.stretch(timeout, used)
        })
    }

    pub(super) const fn is_measured(&self) -> bool {
        matches!(self.recovery, Recovery::Measured)
    }

    /// How long it really waits for a receive. The time is whole ticks already when the timer
    /// starts, and as that does not end early it takes one more (Linux 6.12, measured: six waits of
    /// 0.64 ms take 46 ms).
    pub const fn wait(&self, time: Duration) -> Duration {
        self.ticks(time, 1)
    }

    const fn ticks(&self, time: Duration, more: u64) -> Duration {
        match self.timer_tick.as_nanos() {
            0 => time,
            tick => {
                let ticks = time.as_nanos().div_ceil(tick).saturating_add(more);
                Duration::from_nanos(ticks.saturating_mul(tick))
            }
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::IDEAL
    }
}
