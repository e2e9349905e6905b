//! READs and atomics that the responder has executed: what is sent in answer, and what is kept to
//! answer once more when a duplicate comes (IB spec 9.7.5.1.1, "responder resources").

use crate::wire::{Acknowledgement, Body, RemoteHeader};
use crate::{PacketSequenceNumber, PathMtu};
use alloc::collections::VecDeque;
use legato_verbs::RemoteAddress;

/// In the order of their requests.
#[derive(Debug)]
pub(super) struct Replies {
    kept: VecDeque<Reply>,
    capacity: usize,
    /// Of those before this one nothing is to be sent.
    unsent: usize,
}

/// Where a request is among all that ever came: its sequence number, which comes again after 2^24
/// packets, and how many packets were before it. A saved result belongs to a request, not to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sequence: PacketSequenceNumber,
    pub(super) packets_before: u64,
}

impl Place {
    /// So many packets later.
    pub(super) const fn plus(self, packets: u32) -> Self {
        Self {
            sequence: self.sequence.plus(packets),
            packets_before: self.packets_before + packets as u64,
        }
    }

    /// The place of a packet that lies at most 2^23 before this one; none if there was no such packet.
    pub(super) fn earlier(self, sequence: PacketSequenceNumber) -> Option<Self> {
        let distance = u64::try_from(self.sequence.minus(sequence)).ok()?;
        Some(Self {
            sequence,
            packets_before: self.packets_before.checked_sub(distance)?,
        })
    }
}

#[derive(Debug)]
struct Reply {
    first: Place,
    packets: u32,
    /// Messages completed with it.
    messages: u32,
    kind: ReplyKind,
    pending: Option<Pending>,
    /// It was sent whole at least once.
    answered: bool,
}

#[derive(Clone, Copy, Debug)]
enum ReplyKind {
    Read {
        target: RemoteAddress,
        length: u32,
    },
    /// The saved result: an atomic is executed once.
    Atomic {
        original: u64,
    },
}

/// What is still to be sent, in packets from the reply's first on.
#[derive(Clone, Copy, Debug)]
struct Pending {
    begin: u32,
    next: u32,
    last: u32,
    /// The byte after the last.
    end: u32,
}

/// A packet of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyPacket {
    pub(super) sequence: PacketSequenceNumber,
    pub(super) body: Body,
    /// Where its payload is, and its length. An atomic has none.
    pub(super) source: Option<RemoteAddress>,
    pub(super) length: u32,
    /// All of the reply was sent before.
    pub(super) again: bool,
}

/// The peer has more READs and atomics under way than was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Replies {
    pub(super) fn new(capacity: u8) -> Self {
        let capacity = usize::from(capacity);
        Self {
            kept: VecDeque::with_capacity(capacity),
            capacity,
            unsent: 0,
        }
    }

    /// Keeps so many from now on.
    pub(super) fn set_capacity(&mut self, capacity: u8) {
        self.capacity = usize::from(capacity);
        while self.kept.len() > self.capacity {
            self.forget_oldest();
        }
        self.kept.reserve(self.capacity - self.kept.len());
    }

    /// Makes room for one more: the oldest goes, which the peer must have if it keeps to what was
    /// agreed.
    pub(super) fn make_room(&mut self) -> Result<(), TooMany> {
        if self.kept.len() < self.capacity {
            return Ok(());
        }
        match self.kept.front() {
            Some(oldest) if oldest.answered => {
                self.forget_oldest();
                Ok(())
            }
            _ => Err(TooMany),
        }
    }

    fn forget_oldest(&mut self) {
        self.kept.pop_front();
        self.unsent = self.unsent.saturating_sub(1);
    }

    pub(super) fn add_read(
        &mut self,
        first: Place,
        packets: u32,
        messages: u32,
        request: RemoteHeader,
    ) {
        let target = RemoteAddress {
            key: request.key,
            address: request.address,
        };
        let length = request.length;
        self.add(first, packets, messages, ReplyKind::Read { target, length });
    }

    pub(super) fn add_atomic(&mut self, first: Place, messages: u32, original: u64) {
        self.add(first, 1, messages, ReplyKind::Atomic { original });
    }

    fn add(&mut self, first: Place, packets: u32, messages: u32, kind: ReplyKind) {
        let end = match kind {
            ReplyKind::Read { length, .. } => length,
            ReplyKind::Atomic { .. } => 0,
        };
        self.kept.push_back(Reply {
            first,
            packets,
            messages,
            kind,
            pending: Some(Pending {
                begin: 0,
                next: 0,
                last: packets.saturating_sub(1),
                end,
            }),
            answered: false,
        });
    }

    /// A READ came again, perhaps for the later part only. It is answered again if it is kept.
    pub(super) fn repeat_read(&mut self, place: Place, request: RemoteHeader, mtu: PathMtu) {
        let Some((reply, index)) = self.find(place) else {
            return;
        };
        let ReplyKind::Read { target, length } = reply.kind else {
            return;
        };
        let skipped = index.saturating_mul(mtu.bytes());
        let same_place = request.key == target.key
            && request.address == target.address.wrapping_add(u64::from(skipped));
        let end = skipped
            .checked_add(request.length)
            .filter(|end| *end <= length);
        let (Some(end), true) = (end, same_place) else {
            return;
        };
        let pending = Pending {
            begin: index,
            next: index,
            last: index + mtu.packets(request.length) - 1,
            end,
        };
        // What has not been sent so far is sent in any case.
        if reply
            .pending
            .is_none_or(|old| old.next >= index || old.end < end)
        {
            reply.pending = Some(pending);
        }
    }

    /// An atomic came again. Its saved result is sent again if it is kept.
    pub(super) fn repeat_atomic(&mut self, place: Place) {
        if let Some((reply, 0)) = self.find(place)
            && let ReplyKind::Atomic { .. } = reply.kind
        {
            reply.pending = Some(Pending {
                begin: 0,
                next: 0,
                last: 0,
                end: 0,
            });
        }
    }

    /// The reply that a packet is of, which may be sent again, and which of its packets.
    fn find(&mut self, place: Place) -> Option<(&mut Reply, u32)> {
        let mut kept = self.kept.iter().enumerate();
        let (at, index) = kept.find_map(|(at, reply)| {
            let distance = place
                .packets_before
                .checked_sub(reply.first.packets_before)?;
            let index = u32::try_from(distance).ok()?;
            (index < reply.packets).then_some((at, index))
        })?;
        self.unsent = self.unsent.min(at);
        Some((self.kept.get_mut(at)?, index))
    }

    /// The next packet to send.
    pub(super) fn peek(&self, mtu: PathMtu) -> Option<ReplyPacket> {
        let (reply, pending) = self
            .kept
            .range(self.unsent..)
            .find_map(|reply| Some((reply, reply.pending?)))?;
        let acknowledgement = Acknowledgement::new(reply.messages);
        let sequence = reply.first.plus(pending.next).sequence;
        match reply.kind {
            ReplyKind::Atomic { original } => Some(ReplyPacket {
                sequence,
                body: Body::AtomicAcknowledge(acknowledgement, original),
                source: None,
                length: 0,
                again: reply.answered,
            }),
            ReplyKind::Read { target, .. } => {
                let offset = pending.next.saturating_mul(mtu.bytes());
                Some(ReplyPacket {
                    sequence,
                    body: read_body(&pending, acknowledgement),
                    source: Some(RemoteAddress {
                        key: target.key,
                        address: target.address.wrapping_add(u64::from(offset)),
                    }),
                    length: pending.end.saturating_sub(offset).min(mtu.bytes()),
                    again: reply.answered,
                })
            }
        }
    }

    /// The reply of [`Self::peek`] is not sent this time.
    pub(super) fn skip(&mut self) {
        if let Some(reply) = self.front_pending() {
            reply.pending = None;
        }
    }

    fn front_pending(&mut self) -> Option<&mut Reply> {
        while self.kept.get(self.unsent)?.pending.is_none() {
            self.unsent += 1;
        }
        self.kept.get_mut(self.unsent)
    }

    /// The packet of [`Self::peek`] was sent.
    pub(super) fn sent(&mut self) {
        let Some(reply) = self.front_pending() else {
            return;
        };
        reply.pending = reply.pending.filter(|pending| pending.next < pending.last);
        match &mut reply.pending {
            Some(pending) => pending.next += 1,
            None => reply.answered = true,
        }
    }

    /// Sends nothing more.
    pub(super) fn stop(&mut self) {
        self.kept.clear();
        self.unsent = 0;
    }
}

const fn read_body(pending: &Pending, acknowledgement: Acknowledgement) -> Body {
    match (pending.next == pending.begin, pending.next == pending.last) {
        (true, true) => Body::ReadResponseOnly(acknowledgement),
        (true, false) => Body::ReadResponseFirst(acknowledgement),
        (false, true) => Body::ReadResponseLast(acknowledgement),
        (false, false) => Body::ReadResponseMiddle,
    }
}
