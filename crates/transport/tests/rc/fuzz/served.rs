//! What a queue pair must make of the peer's requests: a model of the responder that is told which
//! packets were taken.

use super::outcomes::{Outcome, Outcomes};
use super::said::is_read_response;
use crate::harness::TestHost;
use legato_transport::wire::{AtomicHeader, Body, Extra, NakCode, Packet, RemoteHeader, Syndrome};
use legato_transport::{AccessRefused, Host, PacketSequenceNumber, PathMtu};
use legato_verbs::{AccessFlags, CompletionKind, ReceiveRequest, RemoteAddress};
use std::collections::VecDeque;

/// More READs and atomics than any queue pair here keeps.
const KEPT: usize = 8;

pub(super) struct Served {
    mtu: PathMtu,
    /// The number of the next new packet.
    pub(super) expected: PacketSequenceNumber,
    pub(super) message: Message,
    /// READs and atomics, newest first.
    pub(super) kept: VecDeque<Kept>,
    /// Of them those of whose answers some may have to be sent.
    pub(super) unanswered: usize,
    /// Packets that may be sent in answer to what came.
    owed: u64,
    /// The READ or atomic that came once more last.
    again: Option<PacketSequenceNumber>,
    /// A receive that is to complete.
    pub(super) received: Option<(u64, CompletionKind)>,
}

pub(super) enum Message {
    None,
    Send {
        receive: ReceiveRequest,
        length: u32,
    },
    Write {
        place: RemoteAddress,
        length: u32,
        written: u32,
    },
}

pub(super) struct Kept {
    pub(super) first: PacketSequenceNumber,
    packets: u32,
    pub(super) kind: KeptKind,
}

#[derive(Clone, Copy)]
pub(super) enum KeptKind {
    Read(RemoteHeader),
    Atomic {
        request: AtomicHeader,
        original: u64,
    },
}

/// Does a packet need a receive?
pub(super) const fn needs_receive(body: &Body) -> bool {
    matches!(
        body,
        Body::SendFirst
            | Body::SendOnly(_)
            | Body::WriteOnly(_, Some(_))
            | Body::WriteLast(Some(_))
    )
}

pub(super) fn room(receive: &ReceiveRequest) -> u32 {
    receive.entries.iter().map(|entry| entry.length).sum()
}

const fn place(key: legato_verbs::RemoteKey, address: u64) -> RemoteAddress {
    RemoteAddress { key, address }
}

impl Served {
    pub(super) fn new(mtu: PathMtu, first: PacketSequenceNumber) -> Self {
        Self {
            mtu,
            expected: first,
            message: Message::None,
            kept: VecDeque::new(),
            unanswered: 0,
            owed: 0,
            again: None,
            received: None,
        }
    }

    /// A request was given to the queue pair. It is answered with one packet at most, a READ
    /// with all that it asks for.
    pub(super) fn heard(&mut self, packet: &Packet<'_>) {
        let sequence = packet.base.sequence;
        let found = self.find(sequence).map(|kept| kept.packets);
        self.owed += 1;
        match (packet.body, found) {
            (Body::ReadRequest(request), Some(kept)) => {
                self.owed += u64::from(self.mtu.packets(request.length).min(kept) - 1);
                self.again = Some(sequence);
            }
            (Body::CompareSwap(_) | Body::FetchAdd(_), Some(_)) => self.again = Some(sequence),
            _ => {}
        }
    }

    fn find(&self, sequence: PacketSequenceNumber) -> Option<&Kept> {
        self.kept.iter().find(|kept| {
            let index = sequence.minus(kept.first);
            index >= 0 && index < kept.packets.cast_signed()
        })
    }

    /// The expected packet was taken: does to memory what it says. `receive` is the oldest that was
    /// posted.
    ///
    /// # Errors
    /// It may not do that.
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        receive: Option<ReceiveRequest>,
        memory: &mut TestHost,
    ) -> Result<(), AccessRefused> {
        let taken = || receive.clone().ok_or(AccessRefused);
        let immediate = match packet.body {
            Body::WriteLast(immediate) | Body::WriteOnly(_, immediate) => immediate,
            _ => None,
        };
        let mut packets = 1;
        match packet.body {
            Body::SendFirst => self.send(taken()?, 0, packet.payload, None, memory)?,
            Body::SendOnly(extra) => self.send(taken()?, 0, packet.payload, Some(extra), memory)?,
            Body::SendMiddle | Body::SendLast(_) => {
                let Message::Send { receive, length } = self.take_message() else {
                    return Err(AccessRefused);
                };
                let extra = match packet.body {
                    Body::SendLast(extra) => Some(extra),
                    _ => None,
                };
                self.send(receive, length, packet.payload, extra, memory)?;
            }
            Body::WriteFirst(to) | Body::WriteOnly(to, _) => {
                let Message::None = self.message else {
                    return Err(AccessRefused);
                };
                self.message = Message::Write {
                    place: place(to.key, to.address),
                    length: to.length,
                    written: 0,
                };
                self.write(packet, memory)?;
            }
            Body::WriteMiddle | Body::WriteLast(_) => self.write(packet, memory)?,
            Body::ReadRequest(request) => {
                if request.length > 0 {
                    let target = place(request.key, request.address);
                    memory.check_remote(target, request.length, AccessFlags::REMOTE_READ)?;
                }
                packets = self.mtu.packets(request.length);
                self.owed += u64::from(packets - 1);
                self.keep(packets, KeptKind::Read(request));
            }
            Body::CompareSwap(request) => {
                let (compare, swap) = (request.compare, request.swap_or_add);
                let change = |old| if old == compare { swap } else { old };
                self.atomic(request, memory, change)?;
            }
            Body::FetchAdd(request) => {
                let add = request.swap_or_add;
                self.atomic(request, memory, |old| old.wrapping_add(add))?;
            }
            _ => return Err(AccessRefused),
        }
        if let (Some(immediate), Message::Write { length, .. }) = (immediate, &self.message) {
            let length = *length;
            let kind = CompletionKind::ReceiveRdmaWithImmediate { length, immediate };
            self.received = Some((taken()?.wr_id.0, kind));
        }
        if let Body::WriteLast(_) | Body::WriteOnly(..) = packet.body {
            self.message = Message::None;
        }
        self.expected = self.expected.plus(packets);
        Ok(())
    }

    const fn take_message(&mut self) -> Message {
        core::mem::replace(&mut self.message, Message::None)
    }

    /// Bytes of a SEND; with `extra` they are its last.
    fn send(
        &mut self,
        receive: ReceiveRequest,
        offset: u32,
        payload: &[u8],
        extra: Option<Extra>,
        memory: &mut TestHost,
    ) -> Result<(), AccessRefused> {
        let Message::None = self.message else {
            return Err(AccessRefused);
        };
        let length = offset + payload.len() as u32;
        if length > room(&receive) {
            return Err(AccessRefused);
        }
        memory.scatter(&receive.entries, offset, payload)?;
        let kind = match extra {
            None => {
                self.message = Message::Send { receive, length };
                return Ok(());
            }
            Some(Extra::Nothing) => CompletionKind::Receive { length },
            Some(Extra::Immediate(immediate)) => {
                CompletionKind::ReceiveWithImmediate { length, immediate }
            }
            Some(Extra::Invalidate(key)) => {
                memory.invalidate(key)?;
                CompletionKind::ReceiveWithInvalidate { length, key }
            }
        };
        self.received = Some((receive.wr_id.0, kind));
        Ok(())
    }

    fn write(&mut self, packet: &Packet<'_>, memory: &mut TestHost) -> Result<(), AccessRefused> {
        let ends = matches!(packet.body, Body::WriteLast(_) | Body::WriteOnly(..));
        let Message::Write {
            place,
            length,
            written,
        } = &mut self.message
        else {
            return Err(AccessRefused);
        };
        if !packet.payload.is_empty() {
            memory.write_remote(*place, packet.payload)?;
        }
        place.address = place.address.wrapping_add(packet.payload.len() as u64);
        *written += packet.payload.len() as u32;
        // The length was said at the beginning, and is what comes.
        if (*written == *length) == ends {
            Ok(())
        } else {
            Err(AccessRefused)
        }
    }

    fn atomic(
        &mut self,
        request: AtomicHeader,
        memory: &mut TestHost,
        mut change: impl FnMut(u64) -> u64,
    ) -> Result<(), AccessRefused> {
        let target = place(request.key, request.address);
        let original = memory.update_remote(target, &mut change)?;
        self.keep(1, KeptKind::Atomic { request, original });
        Ok(())
    }

    fn keep(&mut self, packets: u32, kind: KeptKind) {
        self.unanswered += 1;
        self.kept.truncate(KEPT - 1);
        self.kept.push_front(Kept {
            first: self.expected,
            packets,
            kind,
        });
    }

    /// The queue pair answers: only what was asked for, and only with what is in memory.
    pub(super) fn said(&mut self, packet: &Packet<'_>, memory: &TestHost, reached: &mut Outcomes) {
        assert!(self.owed > 0, "nobody asked for {packet:?}");
        self.owed -= 1;
        let sequence = packet.base.sequence;
        if let Body::Acknowledge(acknowledgement) = packet.body {
            match acknowledgement.syndrome {
                Syndrome::Acknowledged { .. } => assert!(!self.expected.is_before(sequence)),
                Syndrome::ReceiverNotReady(_) => {
                    assert_eq!(sequence, self.expected);
                    reached.add(Outcome::NoReceiveTold);
                }
                Syndrome::Refused(NakCode::SequenceError) => {
                    assert_eq!(sequence, self.expected);
                    reached.add(Outcome::OutOfSequenceTold);
                }
                Syndrome::Refused(_) => {}
            }
            return;
        }
        let kept = self.find(sequence).expect("an answer to what was asked");
        match (kept.kind, packet.body) {
            (KeptKind::Atomic { original, .. }, Body::AtomicAcknowledge(_, said)) => {
                assert_eq!(said, original);
                reached.add(Outcome::AtomicAnswered);
            }
            (KeptKind::Read(request), body) if is_read_response(&body) => {
                let offset = sequence.minus(kept.first).unsigned_abs() * self.mtu.bytes();
                assert!(offset + packet.payload.len() as u32 <= request.length);
                let from = place(request.key, request.address + u64::from(offset));
                let mut bytes = vec![0; packet.payload.len()];
                if !bytes.is_empty() {
                    memory.read_remote(from, &mut bytes).unwrap();
                }
                assert_eq!(packet.payload, bytes);
                reached.add(Outcome::ReadAnswered);
            }
            _ => panic!("{packet:?} answers something else"),
        }
        if self.again == Some(sequence) {
            self.again = None;
            reached.add(Outcome::AnsweredAgain);
        }
    }

    /// All that was to be said now is said: one acknowledgement may come later.
    pub(super) fn drained(&mut self) {
        self.owed = self.owed.min(1);
        self.unanswered = 0;
    }
}
