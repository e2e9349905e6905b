//! What a queue pair asks of its peer, and what it may make of the answers: a model of the requester.

use super::outcomes::{Outcome, Outcomes};
use super::said::is_read_response;
use crate::harness::TestHost;
use legato_transport::wire::{Body, Packet, Syndrome};
use legato_transport::{Host, PacketSequenceNumber, PathMtu, QueueCompletion};
use legato_verbs::{SendFlags, SendOperation, SendRequest, WorkRequestId};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Pieces of READs that are remembered: more than are under way at a time.
const PIECES: usize = 64;

pub(super) struct Asked {
    mtu: PathMtu,
    /// Requests of which nobody knows that they are complete, oldest first.
    posted: VecDeque<Posted>,
    pub(super) next_id: u64,
    /// The first number that no request has.
    next: PacketSequenceNumber,
    /// The first that was never sent.
    pub(super) sent: PacketSequenceNumber,
    /// The number after the last packet that was sent.
    reached: PacketSequenceNumber,
    /// The peer has said that all before this one have arrived.
    told: PacketSequenceNumber,
    /// What the peer answers next: what it heard again it answers again.
    pub(super) answer: PacketSequenceNumber,
    /// Since packets were sent again something has happened that may have packets sent again.
    pub(super) may_go_back: bool,
    /// Where the READs on the wire end.
    pieces: VecDeque<PacketSequenceNumber>,
}

#[derive(Debug)]
pub(super) struct Posted {
    pub(super) request: SendRequest,
    pub(super) length: u32,
    pub(super) first: PacketSequenceNumber,
    packets: u32,
    /// Bytes of its answer that came.
    taken: u32,
}

/// Bytes that an answer brings.
pub(super) struct Brought {
    id: u64,
    offset: u32,
    bytes: Vec<u8>,
}

impl Posted {
    const fn is_local(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::LocalInvalidate(_) | SendOperation::BindWindow(_)
        )
    }

    pub(super) const fn is_atomic(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. }
        )
    }

    pub(super) const fn end(&self) -> PacketSequenceNumber {
        self.first.plus(self.packets)
    }

    fn has(&self, sequence: PacketSequenceNumber) -> bool {
        let index = sequence.minus(self.first);
        index >= 0 && index < self.packets.cast_signed()
    }
}

impl Asked {
    pub(super) fn new(mtu: PathMtu, first: PacketSequenceNumber) -> Self {
        Self {
            mtu,
            posted: VecDeque::new(),
            next_id: 0,
            next: first,
            sent: first,
            reached: first,
            told: first,
            answer: first,
            may_go_back: false,
            pieces: VecDeque::new(),
        }
    }

    pub(super) fn posted(&mut self, request: SendRequest) {
        let length = request.entries.iter().map(|entry| entry.length).sum();
        let mut posted = Posted {
            request,
            length,
            first: self.next,
            packets: self.mtu.packets(length),
            taken: 0,
        };
        if posted.is_local() {
            posted.packets = 0;
        }
        self.next_id += 1;
        self.next = posted.end();
        self.posted.push_back(posted);
    }

    pub(super) fn count(&self) -> usize {
        self.posted.len()
    }

    /// Packets that were sent and, for all that is known, not answered.
    pub(super) fn unanswered(&self) -> u32 {
        let oldest = self.posted.front().map_or(self.sent, |posted| posted.first);
        self.sent.minus(oldest).max(0).unsigned_abs()
    }

    pub(super) fn find(&self, sequence: PacketSequenceNumber) -> Option<&Posted> {
        self.posted.iter().find(|posted| posted.has(sequence))
    }

    /// Where the READ on the wire ends in which a number is.
    pub(super) fn piece_end(&self, sequence: PacketSequenceNumber) -> PacketSequenceNumber {
        let mut ends = self.pieces.iter();
        let end = ends.find(|&&end| sequence.is_before(end));
        end.copied().unwrap_or(self.sent)
    }

    /// The queue pair sends a request: what was posted, in order, and again only if it may.
    pub(super) fn heard(&mut self, packet: &Packet<'_>, memory: &TestHost, reached: &mut Outcomes) {
        let sequence = packet.base.sequence;
        let posted = self.find(sequence).expect("a packet of a request");
        let offset = sequence.minus(posted.first).unsigned_abs() * self.mtu.bytes();
        let entries = &posted.request.entries;
        let mut bytes = vec![0; packet.payload.len()];
        let mut packets = 1;
        if let Body::ReadRequest(read) = packet.body {
            packets = self.mtu.packets(read.length);
            let SendOperation::RdmaRead(target) = posted.request.operation else {
                panic!("{packet:?} for {:?}", posted.request);
            };
            assert_eq!(read.key, target.key);
            assert_eq!(read.address, target.address + u64::from(offset));
            assert!(offset + read.length <= posted.length);
        } else if !bytes.is_empty() {
            memory.gather(entries, offset, &mut bytes).unwrap();
        }
        assert_eq!(packet.payload, bytes);
        assert!(!self.sent.is_before(sequence), "numbers without a packet");
        if sequence.is_before(self.reached) {
            assert!(self.may_go_back, "sent again twice for one reason");
            self.may_go_back = false;
            reached.add(Outcome::SentAgain);
        }
        self.reached = sequence.plus(packets);
        if self.sent.is_before(self.reached) {
            self.sent = self.reached;
            if let Body::ReadRequest(_) = packet.body {
                self.pieces.push_back(self.reached);
                if self.pieces.len() > PIECES {
                    self.pieces.pop_front();
                }
            }
        }
        if sequence.is_before(self.answer) {
            self.answer = sequence;
        }
    }

    /// An answer is given to the queue pair. Returns the bytes that it may put into memory.
    pub(super) fn said(&mut self, packet: &Packet<'_>) -> Option<Brought> {
        self.may_go_back = true;
        let sequence = packet.base.sequence;
        if !sequence.is_before(self.sent) {
            return None;
        }
        let arrived = match packet.body {
            Body::Acknowledge(acknowledgement) => match acknowledgement.syndrome {
                Syndrome::Acknowledged { .. } => sequence.plus(1),
                Syndrome::ReceiverNotReady(_) | Syndrome::Refused(_) => sequence,
            },
            body if is_read_response(&body) => sequence.plus(1),
            Body::AtomicAcknowledge(..) => sequence.plus(1),
            _ => return None,
        };
        // A number half a circle away lies before every other.
        if (0..=self.sent.minus(self.told)).contains(&arrived.minus(self.told)) {
            self.told = arrived;
        }
        let mtu = self.mtu.bytes();
        let posted = self.find(sequence)?;
        let offset = sequence.minus(posted.first).unsigned_abs() * mtu;
        // In order, and each once.
        if offset != posted.taken {
            return None;
        }
        let is_read = matches!(posted.request.operation, SendOperation::RdmaRead(_));
        let bytes = match packet.body {
            Body::AtomicAcknowledge(_, original) if posted.is_atomic() => {
                original.as_bytes().to_vec()
            }
            body if is_read_response(&body) && is_read => packet.payload.to_vec(),
            _ => return None,
        };
        let fits = bytes.len() as u32 == (posted.length - offset).min(mtu);
        fits.then_some(Brought {
            id: posted.request.wr_id.0,
            offset,
            bytes,
        })
    }

    /// The bytes of an answer were put into memory.
    pub(super) fn took(&mut self, brought: &Brought, memory: &mut TestHost) {
        let mut all = self.posted.iter_mut();
        let posted = all.find(|posted| posted.request.wr_id.0 == brought.id);
        let posted = posted.expect("it was there before");
        posted.taken += brought.bytes.len() as u32;
        let entries = &posted.request.entries;
        memory
            .scatter(entries, brought.offset, &brought.bytes)
            .unwrap();
    }

    /// A request completes: once, after those before it, and well only if the peer has answered.
    pub(super) fn completed(
        &mut self,
        completion: &QueueCompletion,
        memory: &mut TestHost,
        reached: &mut Outcomes,
    ) {
        while self.next_is_silent(completion.wr_id) {
            self.succeeded(memory);
            reached.add(Outcome::Completed);
        }
        match completion.result {
            Ok(kind) => {
                let posted = self.succeeded(memory);
                assert_eq!(kind, posted.request.operation.completion_kind());
                reached.add(Outcome::Completed);
            }
            Err(_) => {
                self.posted.pop_front();
            }
        }
    }

    /// Is another request the oldest, which then has completed well and without a completion?
    fn next_is_silent(&self, other: WorkRequestId) -> bool {
        let oldest = self.posted.front().expect("its request is not complete");
        let is_silent = !oldest.request.flags.contains(SendFlags::SIGNALED);
        assert!(is_silent || oldest.request.wr_id == other, "{oldest:?}");
        oldest.request.wr_id != other
    }

    /// Nothing completes any more.
    pub(super) fn finish(&mut self, memory: &mut TestHost) {
        while let Some(oldest) = self.posted.front() {
            assert!(!oldest.request.flags.contains(SendFlags::SIGNALED));
            self.succeeded(memory);
        }
    }

    /// The oldest request was executed.
    fn succeeded(&mut self, memory: &mut TestHost) -> Posted {
        let posted = self.posted.pop_front().expect("it was looked at");
        if let SendOperation::LocalInvalidate(key) = posted.request.operation {
            memory.invalidate(key).unwrap();
        }
        if posted.request.operation.writes_locally() {
            assert_eq!(posted.taken, posted.length, "{posted:?}");
        }
        assert!(!self.told.is_before(posted.end()), "{posted:?}");
        if self.answer.is_before(posted.end()) {
            self.answer = posted.end();
        }
        posted
    }
}
