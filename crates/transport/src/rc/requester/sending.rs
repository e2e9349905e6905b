//! Requests as packets: first transmissions and later ones.

use super::super::phase::header;
use super::super::policy::AnswerCheck;
use super::super::send_queue::{SendQueue, Slot};
use super::{Cursor, Failed, Flow, Probe, Requester};
use crate::congestion::Direction;
use crate::wire::{self, AtomicHeader, Body, Extra, RemoteHeader};
use crate::{AccessRefused, Host, PacketSequenceNumber};
use legato_base::Time;
use legato_verbs::{AccessFlags, CompletionStatus, RemoteAddress, SendFlags, SendOperation};

/// Sequence numbers that may be in use at a time, for duplicates to be told from new packets.
const SPAN_MAX: u32 = (1 << 23) - 1;

/// A packet of a request, but for its payload.
pub(super) struct Outgoing {
    body: Body,
    /// Where in the message its payload begins, and its length.
    offset: u32,
    length: u32,
    /// Sequence numbers that it stands for: those of its answer, for a READ.
    packets: u32,
    /// Is it the request's last?
    last: bool,
}

impl Requester {
    /// Writes the next packet, if there is one to send now. New requests start only if they may.
    ///
    /// # Errors
    /// The status with which the oldest request fails.
    pub(in crate::rc) fn transmit(
        &mut self,
        now: Time,
        may_start: bool,
        queue: &mut SendQueue,
        host: &mut impl Host,
        into: &mut [u8],
    ) -> Result<Option<usize>, CompletionStatus> {
        if let Flow::ReceiverNotReady { until } = self.flow {
            if now < until {
                return Ok(None);
            }
            self.resume(now);
        }
        if let Probe::Due = self.probe {
            self.probe = Probe::None;
            let written = self.send_probe(now, queue, host, into)?;
            if written.is_some() {
                return Ok(written);
            }
        }
        loop {
            if self
                .failed
                .is_some_and(|failed| failed.slot == self.cursor.slot)
            {
                self.check_failed(queue)?;
                return Ok(None);
            }
            if self.cursor.slot == queue.started() && !(may_start && self.start(queue, host)) {
                self.check_failed(queue)?;
                return Ok(None);
            }
            // A request for this host alone is complete already.
            if self.cursor.slot >= queue.completed() {
                break;
            }
            self.cursor.slot = queue.completed();
        }
        self.send(now, queue, host, into)
    }

    /// Starts the next request, if it may start. One that cannot is marked as failed.
    fn start(&mut self, queue: &mut SendQueue, host: &mut impl Host) -> bool {
        let number = queue.started();
        let under_way = queue.completed() < number;
        let Some(slot) = queue.slot(number) else {
            return false;
        };
        if slot.is_local() {
            // Requests before it may still need the key.
            if under_way {
                return false;
            }
            if execute_locally(slot.request.operation, host).is_err() {
                return self.fail(number, CompletionStatus::LocalQueuePairOperation);
            }
            queue.complete(Ok(()), host);
            return true;
        }
        if slot.request.flags.contains(SendFlags::FENCE) && self.reading > 0 {
            return false;
        }
        if let Err(status) = self.check(slot, host) {
            return self.fail(number, status);
        }
        let packets = self.path.mtu.packets(slot.length);
        let span = self.next.minus(self.unacknowledged).unsigned_abs();
        let no_resource = slot.awaits_response() && self.reading >= self.settings.depth;
        if no_resource || span + packets > SPAN_MAX || !self.window_is_open() {
            return false;
        }
        if slot.awaits_response() {
            self.reading += 1;
        }
        let (first, mtu) = (self.next, self.path.mtu);
        if let Some(slot) = queue.slot_mut(number) {
            self.next = slot.number(first, mtu);
        }
        queue.start();
        true
    }

    /// Can it be executed at all?
    fn check(&self, slot: &Slot, host: &impl Host) -> Result<(), CompletionStatus> {
        if slot.awaits_response() && self.settings.depth == 0 {
            return Err(CompletionStatus::LocalQueuePairOperation);
        }
        if slot.is_atomic() && slot.length != 8 {
            return Err(CompletionStatus::LocalLength);
        }
        let access = if slot.awaits_response() {
            AccessFlags::LOCAL_WRITE
        } else {
            AccessFlags::NONE
        };
        if slot.is_inline() || slot.length == 0 {
            return Ok(());
        }
        if slot.awaits_response() && self.policy.answer_check == AnswerCheck::WithAnswer {
            return Ok(());
        }
        host.check_entries(&slot.request.entries, access)
            .map_err(|AccessRefused| CompletionStatus::LocalProtection)
    }

    /// Marks a request as failed; returns false because it does not start.
    pub(super) const fn fail(&mut self, slot: u64, status: CompletionStatus) -> bool {
        self.failed = Some(Failed { slot, status });
        false
    }

    /// Packets in flight that are requests.
    const fn in_flight(&self) -> u32 {
        let unanswered = self.sent.minus(self.unacknowledged).unsigned_abs();
        unanswered.saturating_sub(self.reading_packets)
    }

    const fn window_is_open(&self) -> bool {
        self.in_flight() < self.policy.window_packets
    }

    /// Writes the packet under the cursor.
    fn send(
        &mut self,
        now: Time,
        queue: &SendQueue,
        host: &mut impl Host,
        into: &mut [u8],
    ) -> Result<Option<usize>, CompletionStatus> {
        let Some(slot) = queue.slot(self.cursor.slot) else {
            return Ok(None);
        };
        let sequence = self.cursor.sequence;
        let is_new = sequence == self.sent;
        if is_new && !slot.awaits_response() && !self.window_is_open() {
            return Ok(None);
        }
        let Some(admitted) = self.admit(now, slot, host) else {
            return Ok(None);
        };
        let index = sequence.minus(slot.first).unsigned_abs();
        let packet = self.outgoing(slot, index, admitted.packets);
        let direction = slot.direction();
        let asks = direction == Direction::Answers
            || packet.last
            || self.wants_acknowledgement(index, is_new);
        let asks = self.asks_often(admitted, host) || asks;
        let Some(length) = self.write(slot, sequence, &packet, asks, host, into) else {
            self.fail(self.cursor.slot, CompletionStatus::LocalProtection);
            self.check_failed(queue)?;
            return Ok(None);
        };
        if asks {
            self.unasked = 0;
        }
        if is_new && asks {
            self.time_packet(now, sequence, direction);
        }
        if is_new && slot.awaits_response() {
            self.asked(slot, index, &packet);
        }
        self.count_packet(now, direction, packet.packets, is_new, host);
        self.cursor = Cursor {
            slot: self.cursor.slot + u64::from(packet.last),
            sequence: sequence.plus(packet.packets),
        };
        self.sent_packet(now);
        Ok(Some(length))
    }

    /// A READ, a piece of one or an atomic goes to the peer for the first time.
    fn asked(&mut self, slot: &Slot, index: u32, packet: &Outgoing) {
        self.reading_packets += packet.packets;
        // The first piece was counted when the request started.
        self.reading += u32::from(index > 0);
        if !slot.is_atomic() {
            let end = slot.first.plus(index).plus(packet.packets);
            self.pieces.push_back(end);
        }
    }

    /// Writes a packet. None if its bytes are not to be had.
    pub(super) fn write(
        &self,
        slot: &Slot,
        sequence: PacketSequenceNumber,
        packet: &Outgoing,
        asks: bool,
        host: &impl Host,
        into: &mut [u8],
    ) -> Option<usize> {
        let flags = slot.request.flags;
        let mut base = header(self.path, sequence);
        base.acknowledge = asks;
        base.solicited =
            packet.last && flags.contains(SendFlags::SOLICITED) && takes_receive(&packet.body);
        let length = packet.length as usize;
        let written = wire::encode(&base, &packet.body, into, length, |payload| {
            slot.read(host, packet.offset, payload)
        });
        written.ok()
    }

    /// A long message asks several times in a window, and when the window ends.
    const fn wants_acknowledgement(&self, index: u32, is_new: bool) -> bool {
        let interval = if self.policy.window_packets < 4 {
            1
        } else {
            self.policy.window_packets / 4
        };
        let window_ends = is_new && self.in_flight() + 1 >= self.policy.window_packets;
        window_ends || index % interval == interval - 1
    }

    fn sent_packet(&mut self, now: Time) {
        if self.sent.is_before(self.cursor.sequence) {
            self.sent = self.cursor.sequence;
        }
        if matches!(self.flow, Flow::Idle) {
            self.progress = now;
            self.warned = false;
            self.silent_since = now;
            self.expired = 0;
            self.flow = self.waiting(now, true);
        }
    }

    /// The packet of a request that is `index` sequence numbers after its first. A READ asks for
    /// `packets`.
    pub(super) fn outgoing(&self, slot: &Slot, index: u32, packets: u32) -> Outgoing {
        let mtu = self.path.mtu.bytes();
        let offset = index.saturating_mul(mtu);
        let rest = slot.length.saturating_sub(offset);
        let whole = |body, packets| Outgoing {
            body,
            offset: 0,
            length: 0,
            packets,
            last: true,
        };
        match slot.request.operation {
            SendOperation::RdmaRead(target) => {
                let bytes = rest.min(packets.saturating_mul(mtu));
                let read = whole(Body::ReadRequest(remote(target, offset, bytes)), packets);
                Outgoing {
                    last: index.saturating_add(packets) >= slot.packets,
                    ..read
                }
            }
            SendOperation::CompareAndSwap {
                target,
                compare,
                swap,
            } => whole(Body::CompareSwap(atomic(target, swap, compare)), 1),
            SendOperation::FetchAndAdd { target, add } => {
                whole(Body::FetchAdd(atomic(target, add, 0)), 1)
            }
            operation => {
                let last = index + 1 >= slot.packets;
                Outgoing {
                    body: message_body(operation, slot.length, index == 0, last),
                    offset,
                    length: rest.min(mtu),
                    packets: 1,
                    last,
                }
            }
        }
    }
}

/// What a packet of a SEND or a WRITE is.
const fn message_body(operation: SendOperation, length: u32, first: bool, last: bool) -> Body {
    let (target, immediate) = match operation {
        SendOperation::RdmaWrite(target) => (target, None),
        SendOperation::RdmaWriteWithImmediate(target, value) => (target, Some(value)),
        SendOperation::SendWithImmediate(value) => {
            return send_body(Extra::Immediate(value), first, last);
        }
        SendOperation::SendWithInvalidate(key) => {
            return send_body(Extra::Invalidate(key), first, last);
        }
        _ => return send_body(Extra::Nothing, first, last),
    };
    match (first, last) {
        (true, true) => Body::WriteOnly(remote(target, 0, length), immediate),
        (true, false) => Body::WriteFirst(remote(target, 0, length)),
        (false, true) => Body::WriteLast(immediate),
        (false, false) => Body::WriteMiddle,
    }
}

const fn send_body(extra: Extra, first: bool, last: bool) -> Body {
    match (first, last) {
        (true, true) => Body::SendOnly(extra),
        (true, false) => Body::SendFirst,
        (false, true) => Body::SendLast(extra),
        (false, false) => Body::SendMiddle,
    }
}

/// The peer checks the addresses: here one past the end of all is as good as another.
const fn remote(target: RemoteAddress, offset: u32, length: u32) -> RemoteHeader {
    RemoteHeader {
        address: target.address.wrapping_add(offset as u64),
        key: target.key,
        length,
    }
}

const fn atomic(target: RemoteAddress, swap_or_add: u64, compare: u64) -> AtomicHeader {
    AtomicHeader {
        address: target.address,
        key: target.key,
        swap_or_add,
        compare,
    }
}

/// Only the end of a message that takes a receive can be solicited (IB spec 9.2.3).
const fn takes_receive(body: &Body) -> bool {
    matches!(
        body,
        Body::SendOnly(_)
            | Body::SendLast(_)
            | Body::WriteOnly(_, Some(_))
            | Body::WriteLast(Some(_))
    )
}

/// Executes a request that has no packets.
fn execute_locally(operation: SendOperation, host: &mut impl Host) -> Result<(), AccessRefused> {
    match operation {
        SendOperation::LocalInvalidate(key) => host.invalidate(key),
        SendOperation::BindWindow(binding) => host.bind_window(&binding),
        _ => Ok(()),
    }
}
