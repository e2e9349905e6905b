//! The requester: sends the requests of the send queue and takes the answers (IB spec 9.7.2 to
//! 9.7.7).

mod admission;
mod answers;
mod recovery;
mod sending;

use super::phase::Path;
use super::policy::{LocalFailure, Policy};
use super::send_queue::SendQueue;
use super::timer::timeout;
use crate::congestion::{Direction, Flight, RoundTrip};
use crate::{Host, PacketSequenceNumber};
use alloc::collections::VecDeque;
use legato_base::{Duration, Time};
use legato_verbs::QueuePairAttributes;
use legato_verbs::{CompletionStatus, RetryCount};

/// The sequence numbers lie so, on their circle:
///
/// ```text
/// unacknowledged <= cursor <= sent <= next
/// ```
#[derive(Debug)]
pub(super) struct Requester {
    path: Path,
    settings: Settings,
    policy: Policy,
    /// All packets before this one have been answered.
    unacknowledged: PacketSequenceNumber,
    /// The next packet to send, for the first time or again.
    cursor: Cursor,
    /// The first that was never sent.
    sent: PacketSequenceNumber,
    /// The first that no request has.
    next: PacketSequenceNumber,
    /// READs and atomics under way.
    reading: u32,
    /// Sequence numbers of their answers that have not come: these are no requests in flight.
    reading_packets: u32,
    /// A READ is asked for in pieces, each a READ on the wire. The ends of those that are under way:
    /// what is asked for again must lie in one of them (IB spec 9.7.5.1.1).
    pieces: VecDeque<PacketSequenceNumber>,
    /// Packets before the cursor without an answer.
    flight: Flight,
    /// Packets since an acknowledgement was asked for.
    unasked: u32,
    /// Nothing that the path counts is sent before.
    paced_until: Time,
    round_trip: RoundTrip,
    timed: Option<Timed>,
    retries_left: u8,
    rnr_retries_left: u8,
    /// The missing packet for which packets were sent again on the peer's word. The peer says it
    /// once for a gap; hearing it twice means that the wire doubled it.
    rewound: Option<PacketSequenceNumber>,
    rewound_at: Time,
    /// The last answer that came too early since then.
    early: Option<PacketSequenceNumber>,
    probe: Probe,
    /// Timeouts in a row.
    expired: u32,
    /// Since when the peer has given no sign that it goes on.
    silent_since: Time,
    failed: Option<Failed>,
    flow: Flow,
    /// When the first request started, or the peer last answered something new.
    progress: Time,
    /// The owner has been told that it waits for a receive.
    warned: bool,
}

/// A packet of a request.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    slot: u64,
    sequence: PacketSequenceNumber,
}

/// A request that cannot go on. It fails when those before it are complete.
#[derive(Clone, Copy, Debug)]
struct Failed {
    slot: u64,
    status: CompletionStatus,
}

#[derive(Clone, Copy, Debug)]
enum Flow {
    /// Nothing is without an answer.
    Idle,
    /// Without an answer until the deadline, packets are sent again.
    Waiting { deadline: Time, then: Then },
    /// The peer had no receive. Nothing is sent until then.
    ReceiverNotReady { until: Time },
}

/// What happens at a deadline.
#[derive(Clone, Copy, Debug)]
enum Then {
    SendAgain,
    /// The oldest packet alone is sent once more.
    Probe,
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    None,
    /// It is sent next.
    Due,
    /// When its answer comes, all before `end` has arrived or is lost.
    Sent {
        at: Time,
        sequence: PacketSequenceNumber,
        end: PacketSequenceNumber,
    },
}

/// A packet that was sent once: when its answer comes there is a round trip.
#[derive(Clone, Copy, Debug)]
struct Timed {
    sequence: PacketSequenceNumber,
    at: Time,
    direction: Direction,
}

/// How patient it is.
#[derive(Clone, Copy, Debug)]
struct Settings {
    timeout: Option<Duration>,
    /// How long a peer may be silent, with measured timeouts.
    patience: Duration,
    retry_count: u8,
    rnr_retry: u8,
    depth: u32,
}

/// The RNR retry count that is without end (IB spec 9.7.5.2.8).
const RNR_RETRY_INFINITE: u8 = 7;
/// Longer than the longest wait that a peer can ask for once (655 ms).
const RECEIVER_NOT_READY_WARNING: Duration = Duration::from_secs(1);

impl Settings {
    fn new(attributes: &QueuePairAttributes, policy: &Policy) -> Self {
        let code = attributes.timeout.unwrap_or(0);
        let code = if code == 0 {
            0
        } else {
            code.max(policy.timeout_min)
        };
        let timeout = timeout(code);
        let retry_count = attributes.retry_count.map_or(0, RetryCount::get);
        Self {
            timeout,
            patience: policy.patience(timeout.unwrap_or(Duration::ZERO), retry_count),
            retry_count,
            rnr_retry: attributes.rnr_retry.unwrap_or(0),
            depth: u32::from(attributes.initiator_depth.unwrap_or(0)),
        }
    }
}

impl Requester {
    pub(super) fn new(
        path: Path,
        first: PacketSequenceNumber,
        attributes: &QueuePairAttributes,
        policy: &Policy,
        queue: &SendQueue,
    ) -> Self {
        let settings = Settings::new(attributes, policy);
        Self {
            path,
            settings,
            policy: Policy {
                window_packets: policy.window_packets.max(1),
                ..*policy
            },
            unacknowledged: first,
            cursor: Cursor {
                slot: queue.started(),
                sequence: first,
            },
            sent: first,
            next: first,
            reading: 0,
            reading_packets: 0,
            pieces: VecDeque::new(),
            flight: Flight::default(),
            unasked: 0,
            paced_until: Time::NEVER,
            round_trip: RoundTrip::default(),
            timed: None,
            retries_left: settings.retry_count,
            rnr_retries_left: settings.rnr_retry,
            rewound: None,
            rewound_at: Time::ZERO,
            early: None,
            probe: Probe::None,
            expired: 0,
            silent_since: Time::ZERO,
            failed: None,
            flow: Flow::Idle,
            progress: Time::ZERO,
            warned: false,
        }
    }

    /// The attributes have changed.
    pub(super) fn configure(&mut self, attributes: &QueuePairAttributes) {
        self.settings = Settings::new(attributes, &self.policy);
        self.retries_left = self.retries_left.min(self.settings.retry_count);
        self.rnr_retries_left = self.rnr_retries_left.min(self.settings.rnr_retry);
    }

    pub(super) fn next_deadline(&self) -> Time {
        let deadline = match self.flow {
            Flow::Idle => Time::NEVER,
            Flow::Waiting { deadline, .. } => deadline,
            Flow::ReceiverNotReady { until } => until.min(self.warning_due()),
        };
        deadline.min(self.paced_until)
    }

    pub(super) const fn flight(&self) -> Flight {
        self.flight
    }

    pub(super) const fn round_trip(&self) -> RoundTrip {
        self.round_trip
    }

    /// Since when nothing new was answered though something is under way.
    pub(super) const fn waiting_since(&self) -> Option<Time> {
        match self.flow {
            Flow::Idle => None,
            Flow::Waiting { .. } | Flow::ReceiverNotReady { .. } => Some(self.progress),
        }
    }

    /// When the owner is told that a request waits for a receive, and may do so for ever.
    fn warning_due(&self) -> Time {
        match self.waits_for_receive() {
            Some(_) if !self.warned => self.progress + RECEIVER_NOT_READY_WARNING,
            _ => Time::NEVER,
        }
    }

    /// Until when the peer, which had no receive, is left alone, if it may be asked without end.
    pub(super) const fn waits_for_receive(&self) -> Option<Time> {
        match self.flow {
            Flow::ReceiverNotReady { until } if self.settings.rnr_retry == RNR_RETRY_INFINITE => {
                Some(until)
            }
            _ => None,
        }
    }

    /// Leaves the peer alone for longer.
    pub(super) const fn wait_for_receive(&mut self, later: Time) {
        if let Flow::ReceiverNotReady { until } = &mut self.flow {
            *until = later;
        }
    }

    /// Everything before `limit` has arrived. Says whether the peer answered a READ or an atomic
    /// before it in a packet that did not arrive (an implied NAK, IB spec 9.7.5.1.3).
    fn advance(
        &mut self,
        now: Time,
        limit: PacketSequenceNumber,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> bool {
        let before = self.unacknowledged;
        let mut missing = false;
        while queue.completed() < queue.started() {
            let Some(slot) = queue.slot(queue.completed()) else {
                break;
            };
            if slot.awaits_response() {
                missing = self.unacknowledged.is_before(limit);
                break;
            }
            let end = slot.first.plus(slot.packets);
            if limit.is_before(end) {
                if self.unacknowledged.is_before(limit) {
                    self.unacknowledged = limit;
                }
                break;
            }
            queue.complete(Ok(()), host);
            self.unacknowledged = end;
        }
        if before != self.unacknowledged {
            let arrived = self.unacknowledged.minus(before).unsigned_abs();
            self.arrived(Direction::Requests, arrived, host);
            self.progressed(now, queue, host);
        }
        missing
    }

    /// Packets were answered.
    fn arrived(&mut self, direction: Direction, packets: u32, host: &mut impl Host) {
        let flight = match direction {
            Direction::Requests => &mut self.flight.requests,
            Direction::Answers => &mut self.flight.answers,
        };
        *flight = flight.saturating_sub(packets);
        if let Some(path) = host.path() {
            path.delivered(direction, packets);
        }
    }

    /// Something new was answered: retries begin anew.
    fn progressed(&mut self, now: Time, queue: &SendQueue, host: &mut impl Host) {
        self.measure(now, host);
        self.retries_left = self.settings.retry_count;
        self.rnr_retries_left = self.settings.rnr_retry;
        self.rewound = None;
        self.early = None;
        self.progress = now;
        self.warned = false;
        self.silent_since = now;
        self.expired = 0;
        if self.cursor.sequence.is_before(self.unacknowledged) {
            self.rewind(queue);
        }
        if self.cursor.sequence == self.unacknowledged {
            self.flight = Flight::default();
        }
        self.flow = if self.unacknowledged == self.sent {
            Flow::Idle
        } else {
            self.waiting(now, true)
        };
    }

    /// The request that cannot go on may be the oldest now.
    fn check_failed(&self, queue: &SendQueue) -> Result<(), CompletionStatus> {
        match (self.failed, self.policy.local_failure) {
            (Some(_), LocalFailure::Flushed) => Err(CompletionStatus::WorkRequestFlushed),
            (Some(failed), LocalFailure::Told) if failed.slot == queue.completed() => {
                Err(failed.status)
            }
            _ => Ok(()),
        }
    }
}
