//! Packets are sent again: when a timer ends, or the peer says that some are missing.

use super::super::policy::Recovery;
use super::super::send_queue::SendQueue;
use super::super::timer::deadline;
use super::{Cursor, Flow, Probe, Requester, Then, Timed};
use crate::congestion::{Direction, Flight};
use crate::{Host, PacketSequenceNumber, QueuePairEvent};
use legato_base::{Duration, Time};
use legato_verbs::CompletionStatus;

/// A timeout attribute up to this one, 4.096 us * 2^15, leaves it to measurement when packets are sent again.
const LONGEST_MEASURED: Duration = Duration::from_nanos(4096 << 15);

impl Requester {
    /// # Errors
    /// The status with which the oldest request fails: nothing was answered for too long.
    pub(in crate::rc) fn expire(
        &mut self,
        now: Time,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        if self.paced_until <= now {
            self.paced_until = Time::NEVER;
        }
        if self.warning_due() <= now {
            self.warned = true;
            host.raise(QueuePairEvent::ReceiverNotReady);
        }
        match (self.flow, self.policy.recovery) {
            (Flow::Waiting { deadline, then }, Recovery::Measured) if deadline <= now => {
                // Nobody looked for so long: nothing was sent again meanwhile, and no answer was seen.
                self.silent_since = self.silent_since + now.since(deadline);
                self.expire_measured(now, then, queue, host)
            }
            (Flow::Waiting { deadline, .. }, Recovery::AsAttributes) if deadline <= now => {
                self.rewound = None;
                self.send_again(now, queue)
            }
            (Flow::ReceiverNotReady { until }, _) if until <= now => {
                self.resume(now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn expire_measured(
        &mut self,
        now: Time,
        then: Then,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        if now >= self.silent_since + self.settings.patience {
            return Err(CompletionStatus::RetryExceeded);
        }
        match then {
            Then::Probe => self.probe = Probe::Due,
            Then::SendAgain => {
                self.rewound = None;
                self.early = None;
                self.expired = self.expired.saturating_add(1);
                let direction = oldest(queue);
                if let Some(path) = host.path() {
                    path.timed_out(now, direction);
                }
                self.rewind(queue);
            }
        }
        self.flow = self.waiting(now, false);
        Ok(())
    }

    /// The peer has been given its time to post a receive.
    pub(super) fn resume(&mut self, now: Time) {
        self.flow = self.waiting(now, false);
    }

    /// Waits from now on: for a probe first, if there may be one.
    pub(super) fn waiting(&self, now: Time, may_probe: bool) -> Flow {
        let Some(first) = self.settings.timeout else {
            return Flow::Waiting {
                deadline: Time::NEVER,
                then: Then::SendAgain,
            };
        };
        if !self.policy.is_measured() {
            let used = self.settings.retry_count.saturating_sub(self.retries_left);
            return Flow::Waiting {
                deadline: deadline(now, Some(self.policy.stretch(first, used))),
                then: Then::SendAgain,
            };
        }
        let given_up = self.silent_since + self.settings.patience;
        let timeout = self.round_trip.timeout(first, self.expired);
        // Whoever wants to wait for longer has a reason, such as a peer that does not bear repetitions; the
        // attribute is the least time (IB spec 9.7.6.1.3).
        let is_patient = first > LONGEST_MEASURED;
        let timeout = if is_patient {
            timeout.max(first)
        } else {
            timeout
        };
        let probe = self.round_trip.probe().filter(|_| !is_patient);
        let (time, then) = match probe.filter(|&probe| may_probe && probe < timeout) {
            Some(probe) => (probe, Then::Probe),
            None => (timeout, Then::SendAgain),
        };
        Flow::Waiting {
            deadline: (now + time).min(given_up),
            then,
        }
    }

    /// Goes back to the oldest packet without an answer, if there are retries left (IB spec
    /// 9.7.6.1.3).
    fn send_again(&mut self, now: Time, queue: &SendQueue) -> Result<(), CompletionStatus> {
        if self.policy.retry_count_infinite != Some(self.settings.retry_count) {
            self.retries_left = self
                .retries_left
                .checked_sub(1)
                .ok_or(CompletionStatus::RetryExceeded)?;
        }
        self.rewind(queue);
        self.resume(now);
        Ok(())
    }

    /// The same because the peer said, or implied, that packets are missing.
    pub(super) fn send_again_once(
        &mut self,
        now: Time,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let waits = matches!(self.flow, Flow::ReceiverNotReady { .. });
        if waits || self.rewound == Some(self.unacknowledged) {
            return Ok(());
        }
        if self.policy.is_measured() {
            self.lost(now, queue, host);
            self.flow = self.waiting(now, true);
        } else {
            self.send_again(now, queue)?;
        }
        self.rewound = Some(self.unacknowledged);
        self.rewound_at = now;
        Ok(())
    }

    /// The peer says that a packet is missing. If it says so again later than an answer to what was
    /// sent again could come, that was lost too.
    pub(super) fn heard_of_gap(
        &mut self,
        now: Time,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let shortest = self.round_trip.shortest();
        let is_late = shortest > Duration::ZERO && now.since(self.rewound_at) >= shortest;
        if self.policy.is_measured() && is_late {
            self.rewound = None;
        }
        self.send_again_once(now, queue, host)
    }

    /// An answer came too early. What was on its way already when the missing one was asked for again
    /// comes in its order; when the numbers begin anew and it still is not there, it was lost again.
    pub(super) fn saw_gap(
        &mut self,
        now: Time,
        sequence: PacketSequenceNumber,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let begins_anew = self.early.is_some_and(|early| !early.is_before(sequence));
        if self.policy.is_measured() && begins_anew {
            self.rewound = None;
        }
        self.send_again_once(now, queue, host)?;
        self.early = Some(sequence);
        Ok(())
    }

    /// Writes the oldest packet without an answer once more, and goes on as if it had not.
    pub(super) fn send_probe(
        &mut self,
        now: Time,
        queue: &SendQueue,
        host: &mut impl Host,
        into: &mut [u8],
    ) -> Result<Option<usize>, CompletionStatus> {
        let sequence = self.unacknowledged;
        let under_way = sequence.is_before(self.cursor.sequence);
        let Some(slot) = queue.slot(queue.completed()).filter(|_| under_way) else {
            return Ok(None);
        };
        let index = sequence.minus(slot.first).unsigned_abs();
        let packet = self.outgoing(slot, index, self.piece_from(slot, sequence));
        let Some(length) = self.write(slot, sequence, &packet, true, host, into) else {
            self.fail(queue.completed(), CompletionStatus::LocalProtection);
            self.check_failed(queue)?;
            return Ok(None);
        };
        if let Some(path) = host.path() {
            path.counters.tail_probes += 1;
            path.counters.resends += 1;
        }
        self.timed = None;
        if slot.direction() == Direction::Requests {
            self.probe = Probe::Sent {
                at: now,
                sequence,
                end: self.cursor.sequence,
            };
        }
        Ok(Some(length))
    }

    /// An acknowledgement came. If it answers the probe and says that this packet is the last that has
    /// arrived, what was sent after it is lost: it was sent before the probe.
    pub(super) fn heard_of_probe(&mut self, now: Time, queue: &SendQueue, host: &mut impl Host) {
        let Probe::Sent { at, sequence, end } = self.probe else {
            return;
        };
        if !sequence.is_before(self.unacknowledged) {
            return;
        }
        self.probe = Probe::None;
        let is_answer = now.since(at) >= self.round_trip.shortest();
        let is_last = self.unacknowledged == sequence.plus(1) && self.unacknowledged.is_before(end);
        if is_answer && is_last && oldest(queue) == Direction::Requests {
            self.lost(now, queue, host);
        }
    }

    fn lost(&mut self, now: Time, queue: &SendQueue, host: &mut impl Host) {
        if let Some(path) = host.path() {
            path.lost(now, oldest(queue));
        }
        self.rewind(queue);
    }

    pub(super) fn rewind(&mut self, queue: &SendQueue) {
        self.cursor = Cursor {
            slot: queue.completed(),
            sequence: self.unacknowledged,
        };
        self.flight = Flight::default();
        self.unasked = 0;
        self.probe = Probe::None;
        // Whose answer comes then, nobody knows (Karn's algorithm).
        self.timed = None;
    }

    /// Something was answered: it may be what the time is taken of.
    pub(super) fn measure(&mut self, now: Time, host: &mut impl Host) {
        let Some(Timed {
            sequence,
            at,
            direction,
        }) = self.timed
        else {
            return;
        };
        if !sequence.is_before(self.unacknowledged) {
            return;
        }
        self.timed = None;
        self.round_trip.sample(now.since(at));
        if let Some(path) = host.path() {
            path.sample(now, direction, now.since(at));
        }
    }
}

/// Which way what is waited for goes.
fn oldest(queue: &SendQueue) -> Direction {
    match queue.slot(queue.completed()) {
        Some(slot) => slot.direction(),
        None => Direction::Requests,
    }
}
