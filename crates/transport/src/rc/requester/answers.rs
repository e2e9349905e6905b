//! What the responder says.

use super::super::send_queue::SendQueue;
use super::{Flow, RNR_RETRY_INFINITE, Requester};
use crate::congestion::Direction;
use crate::wire::{Acknowledgement, Body, NakCode, Packet, Syndrome};
use crate::{Host, PacketSequenceNumber};
use legato_base::Time;
use legato_verbs::{CompletionStatus, RnrTimer};
use zerocopy::IntoBytes;

impl Requester {
    /// Takes an acknowledgement or a response. Others are ignored.
    ///
    /// # Errors
    /// The status with which the oldest request fails.
    pub(in crate::rc) fn input(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let sequence = packet.base.sequence;
        // What is answered already, or was never asked, is a ghost (IB spec 9.7.5.1.1).
        if sequence.is_before(self.unacknowledged) || !sequence.is_before(self.sent) {
            return Ok(());
        }
        match packet.body {
            Body::Acknowledge(acknowledgement) => {
                self.acknowledged(now, sequence, acknowledgement, queue, host)?;
            }
            Body::ReadResponseFirst(acknowledgement)
            | Body::ReadResponseLast(acknowledgement)
            | Body::ReadResponseOnly(acknowledgement)
                if !matches!(acknowledgement.syndrome, Syndrome::Acknowledged { .. }) =>
            {
                return Err(CompletionStatus::BadResponse);
            }
            Body::ReadResponseFirst(_)
            | Body::ReadResponseMiddle
            | Body::ReadResponseLast(_)
            | Body::ReadResponseOnly(_) => {
                self.take_read_response(now, packet, queue, host)?;
            }
            Body::AtomicAcknowledge(_, original) => {
                self.take_atomic_response(now, sequence, original, queue, host)?;
            }
            _ => {}
        }
        self.check_failed(queue)
    }

    fn acknowledged(
        &mut self,
        now: Time,
        sequence: PacketSequenceNumber,
        acknowledgement: Acknowledgement,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let limit = match acknowledgement.syndrome {
            Syndrome::Acknowledged { .. } => sequence.plus(1),
            // All before the refused packet has arrived.
            Syndrome::ReceiverNotReady(_) | Syndrome::Refused(_) => sequence,
        };
        let missing = self.advance(now, limit, queue, host);
        self.check_failed(queue)?;
        if missing {
            return self.send_again_once(now, queue, host);
        }
        match acknowledgement.syndrome {
            Syndrome::Acknowledged { .. } => {
                self.heard_of_probe(now, queue, host);
                Ok(())
            }
            Syndrome::ReceiverNotReady(timer) => self.receiver_not_ready(now, timer, queue),
            Syndrome::Refused(NakCode::SequenceError) => self.heard_of_gap(now, queue, host),
            Syndrome::Refused(NakCode::InvalidRequest) => {
                Err(CompletionStatus::RemoteInvalidRequest)
            }
            Syndrome::Refused(NakCode::RemoteAccess) => Err(CompletionStatus::RemoteAccess),
            Syndrome::Refused(NakCode::RemoteOperation) => Err(CompletionStatus::RemoteOperation),
        }
    }

    /// The peer has no receive for the oldest packet: it is sent again later (IB spec 9.7.5.2.8).
    fn receiver_not_ready(
        &mut self,
        now: Time,
        timer: RnrTimer,
        queue: &SendQueue,
    ) -> Result<(), CompletionStatus> {
        // While it waits nothing is sent that could be refused: the wire doubled a packet.
        if matches!(self.flow, Flow::ReceiverNotReady { .. }) {
            return Ok(());
        }
        if self.settings.rnr_retry != RNR_RETRY_INFINITE {
            self.rnr_retries_left = self
                .rnr_retries_left
                .checked_sub(1)
                .ok_or(CompletionStatus::ReceiverNotReadyRetryExceeded)?;
        }
        // The peer lives.
        self.retries_left = self.settings.retry_count;
        self.silent_since = now;
        self.expired = 0;
        self.rewind(queue);
        self.flow = Flow::ReceiverNotReady {
            until: now + self.policy.wait(timer.duration()),
        };
        Ok(())
    }

    /// Is this response the next of the oldest request? One that comes too early says that those
    /// before it are lost.
    fn reaches(
        &mut self,
        now: Time,
        sequence: PacketSequenceNumber,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<bool, CompletionStatus> {
        let missing = self.advance(now, sequence, queue, host);
        self.check_failed(queue)?;
        if missing {
            self.saw_gap(now, sequence, queue, host)?;
        }
        Ok(!missing)
    }

    fn take_read_response(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        if !self.reaches(now, packet.base.sequence, queue, host)? {
            return Ok(());
        }
        let bad = CompletionStatus::BadResponse;
        let slot = queue.slot(queue.completed()).ok_or(bad)?;
        if !slot.awaits_response() || slot.is_atomic() {
            return Err(bad);
        }
        let mtu = self.path.mtu.bytes();
        let index = packet.base.sequence.minus(slot.first).unsigned_abs();
        let offset = index.saturating_mul(mtu);
        let length = slot.length.saturating_sub(offset).min(mtu);
        let last = index + 1 >= slot.packets;
        let after = packet.base.sequence.plus(1);
        let ends_piece = self.pieces.front() == Some(&after);
        let says_last = matches!(
            packet.body,
            Body::ReadResponseLast(_) | Body::ReadResponseOnly(_)
        );
        if packet.payload.len() != length as usize || says_last != ends_piece {
            return Err(bad);
        }
        if length > 0 {
            host.scatter(&slot.request.entries, offset, packet.payload)
                .map_err(|_| CompletionStatus::LocalProtection)?;
        }
        self.unacknowledged = after;
        self.reading_packets = self.reading_packets.saturating_sub(1);
        self.arrived(Direction::Answers, 1, host);
        if ends_piece {
            self.pieces.pop_front();
        }
        if last {
            self.complete_response(queue, host);
        } else if ends_piece {
            self.reading = self.reading.saturating_sub(1);
        }
        self.progressed(now, queue, host);
        Ok(())
    }

    fn take_atomic_response(
        &mut self,
        now: Time,
        sequence: PacketSequenceNumber,
        original: u64,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        if !self.reaches(now, sequence, queue, host)? {
            return Ok(());
        }
        let bad = CompletionStatus::BadResponse;
        let slot = queue.slot(queue.completed()).ok_or(bad)?;
        if !slot.is_atomic() {
            return Err(bad);
        }
        let end = slot.first.plus(slot.packets);
        // The value comes in the host's byte order, as in the peer's memory (IB spec 9.4.5).
        host.scatter(&slot.request.entries, 0, original.as_bytes())
            .map_err(|_| CompletionStatus::LocalProtection)?;
        self.unacknowledged = end;
        self.reading_packets = self.reading_packets.saturating_sub(1);
        self.arrived(Direction::Requests, 1, host);
        self.complete_response(queue, host);
        self.progressed(now, queue, host);
        Ok(())
    }

    fn complete_response(&mut self, queue: &mut SendQueue, host: &mut impl Host) {
        self.reading = self.reading.saturating_sub(1);
        queue.complete(Ok(()), host);
    }
}
