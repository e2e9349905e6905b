//! What the path to the peer allows.

use super::super::send_queue::Slot;
use super::{Requester, Timed};
use crate::congestion::{Admission, Direction};
use crate::{Host, PacketSequenceNumber};
use legato_base::Time;

/// What may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    /// Packets of the answer that are asked for.
    pub(super) packets: u32,
    /// After it nothing goes before something has arrived.
    pub(super) is_last: bool,
}

impl Requester {
    /// May the packet under the cursor be sent?
    pub(super) fn admit(
        &mut self,
        now: Time,
        slot: &Slot,
        host: &mut impl Host,
    ) -> Option<Admitted> {
        let sequence = self.cursor.sequence;
        let rest = slot.first.plus(slot.packets).minus(sequence).unsigned_abs();
        let direction = slot.direction();
        let is_new = sequence == self.sent;
        let asked = if !is_new {
            self.piece_from(slot, sequence)
        } else if self.asks_one_by_one(slot, rest) {
            1
        } else {
            rest
        };
        let Some(path) = host.path() else {
            return Some(Admitted {
                packets: asked,
                is_last: false,
            });
        };
        if self.paced_until != Time::NEVER && now < self.paced_until {
            return None;
        }
        self.paced_until = Time::NEVER;
        let own = self.flight.of(direction);
        let room = match path.admits(now, direction, own) {
            Admission::Room(room) => room,
            Admission::Full => return None,
            Admission::Later(until) => {
                self.paced_until = until;
                return None;
            }
        };
        if direction == Direction::Requests || !is_new {
            return Some(Admitted {
                packets: asked,
                is_last: room == 1,
            });
        }
        let has_begun = sequence != slot.first;
        if has_begun && self.reading >= self.settings.depth {
            return None;
        }
        // Pieces are not as small as the room that a single packet leaves.
        let (most, least) = path.piece();
        if room < rest.min(least) && own > 0 {
            path.full(direction);
            return None;
        }
        Some(Admitted {
            packets: asked.min(room).min(most),
            is_last: false,
        })
    }

    /// Is each packet of this READ's answer, of which so many are left, asked for alone?
    fn asks_one_by_one(&self, slot: &Slot, rest: u32) -> bool {
        // The first piece was counted when the request started.
        let counted = u32::from(rest == slot.packets);
        let pieces = (self.reading + rest).saturating_sub(counted);
        slot.packets <= self.policy.read_pieces && pieces <= self.settings.depth
    }

    /// How much of a READ that was asked for is in the piece under a sequence number, from there on.
    pub(super) fn piece_from(&self, slot: &Slot, sequence: PacketSequenceNumber) -> u32 {
        let mut ends = self.pieces.iter();
        let end = ends.find(|&&end| sequence.is_before(end)).copied();
        let end = end.unwrap_or_else(|| slot.first.plus(slot.packets));
        end.minus(sequence).unsigned_abs()
    }

    /// Does a packet that goes to the peer ask for an acknowledgement, so that the window moves on?
    pub(super) fn asks_often(&mut self, admitted: Admitted, host: &mut impl Host) -> bool {
        let Some(path) = host.path() else {
            return false;
        };
        self.unasked += 1;
        let interval = path.interval();
        admitted.is_last || self.unasked >= interval
    }

    /// A packet was sent, for the first time or again; its answer takes so many.
    pub(super) fn count_packet(
        &mut self,
        now: Time,
        direction: Direction,
        packets: u32,
        is_new: bool,
        host: &mut impl Host,
    ) {
        match direction {
            Direction::Requests => self.flight.requests += 1,
            Direction::Answers => self.flight.answers = self.flight.answers.saturating_add(packets),
        }
        if let Some(path) = host.path() {
            path.sent(now, direction, packets);
            path.counters.resends += u64::from(!is_new);
        }
    }

    /// Takes the time of a packet that asks for an answer, if none is under way.
    pub(super) fn time_packet(
        &mut self,
        now: Time,
        sequence: PacketSequenceNumber,
        direction: Direction,
    ) {
        if self.policy.is_measured() && self.timed.is_none() {
            self.timed = Some(Timed {
                sequence,
                at: now,
                direction,
            });
        }
    }
}
