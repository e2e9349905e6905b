//! A peer that mostly keeps to the rules, so that a connection goes on, and breaks each of them now
//! and then.

use super::asked::{Asked, Posted};
use super::said::{Said, is_request};
use super::served::{Kept, KeptKind, Message, Served, room};
use super::subject::{ENDING, REGION, SHARED, Subject};
use crate::harness::BASE;
use crate::harness::hostile::Hostile;
use legato_base::Random;
use legato_transport::wire::{
    Acknowledgement, AtomicHeader, Body, Extra, NakCode, RemoteHeader, Syndrome,
};
use legato_transport::{PacketSequenceNumber, PathMtu};
use legato_verbs::{RemoteKey, RnrTimer, SendOperation};

/// READs and atomics that it has under way at most.
pub(super) const RESOURCES: u8 = 4;
/// Packets that it may say again.
const SAID: usize = 16;

pub(super) struct Peer {
    pub(super) random: Random,
    hostile: Hostile,
    mtu: PathMtu,
    /// So that no two payloads are the same.
    serial: u64,
    /// Its last requests.
    said: Vec<Said>,
}

impl Peer {
    pub(super) fn new(seed: u64, mtu: PathMtu) -> Self {
        let mut hostile = Hostile::new(seed);
        Self {
            random: hostile.random.fork(),
            hostile,
            mtu,
            serial: 0,
            said: Vec::new(),
        }
    }

    /// What it says next. `is_ready` if the queue pair has said all that it had to.
    pub(super) fn next(&mut self, subject: &mut Subject) -> Said {
        let Subject { served, asked, .. } = subject;
        let keeps_ending = subject.memory.regions.contains_key(&ENDING);
        match self.random.below(200) {
            0..90 => self.request(served, keeps_ending),
            90..160 => self.answer(asked),
            160..172 => self.again(served),
            172..178 => self.early(served, keeps_ending),
            178..184 => self.ghost(asked),
            184..188 => self.with_gap(asked),
            188..194 => self.refusal(asked),
            194..198 => self.mutant(served, asked, keeps_ending),
            _ => self.stranger(served, asked),
        }
    }

    fn payload(&mut self, length: u32) -> Vec<u8> {
        self.serial += 1;
        let mut bytes = vec![self.serial as u8; length as usize];
        let number = self.serial.to_le_bytes();
        let most = bytes.len().min(8);
        bytes[..most].copy_from_slice(&number[..most]);
        bytes
    }

    /// The next packet of the message that is under way, or of a new one.
    fn request(&mut self, served: &Served, keeps_ending: bool) -> Said {
        let mtu = self.mtu.bytes();
        let (body, length) = match &served.message {
            Message::None => self.begin(served, keeps_ending),
            Message::Send { receive, length } => {
                let left = room(receive).saturating_sub(*length);
                if left > mtu && self.random.ratio(1, 2) {
                    (Body::SendMiddle, mtu)
                } else {
                    let extra = self.extra(keeps_ending);
                    (Body::SendLast(extra), 1 + self.below(left.min(mtu)))
                }
            }
            Message::Write {
                length, written, ..
            } => {
                let left = length.saturating_sub(*written);
                if left > mtu {
                    (Body::WriteMiddle, mtu)
                } else {
                    (Body::WriteLast(self.immediate()), left)
                }
            }
        };
        let payload = self.payload(length);
        let mut said = Said::new(served.expected, body, payload);
        said.base.acknowledge = self.random.ratio(1, 2);
        said.base.solicited = self.random.ratio(1, 4);
        self.said.insert(0, said.clone());
        self.said.truncate(SAID);
        said
    }

    /// The first packet of a message, and its length.
    fn begin(&mut self, served: &Served, keeps_ending: bool) -> (Body, u32) {
        let mtu = self.mtu.bytes();
        let may_read = served.unanswered < usize::from(RESOURCES);
        match self.random.below(10) {
            0 | 1 => (Body::SendOnly(self.extra(keeps_ending)), self.below(mtu)),
            2 => (Body::SendFirst, mtu),
            3 => {
                let length = self.below(mtu + 1);
                let to = self.remote(length, keeps_ending);
                (Body::WriteOnly(to, self.immediate()), length)
            }
            6 | 7 if may_read => {
                let length = self.below(REGION + 1);
                (Body::ReadRequest(self.remote(length, keeps_ending)), 0)
            }
            8 if may_read => (Body::CompareSwap(self.atomic(keeps_ending)), 0),
            9 if may_read => (Body::FetchAdd(self.atomic(keeps_ending)), 0),
            _ => {
                let length = mtu + 1 + self.below(REGION - mtu);
                (Body::WriteFirst(self.remote(length, keeps_ending)), mtu)
            }
        }
    }

    /// Below `bound`; 0 if that is 0.
    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(u64::from(bound.max(1))) as u32
    }

    fn extra(&mut self, keeps_ending: bool) -> Extra {
        match self.random.below(8) {
            0 if keeps_ending => Extra::Invalidate(RemoteKey(ENDING)),
            1..4 => Extra::Immediate(self.below(u32::MAX)),
            _ => Extra::Nothing,
        }
    }

    fn immediate(&mut self) -> Option<u32> {
        self.random.ratio(1, 4).then(|| self.below(u32::MAX))
    }

    fn key(&mut self, keeps_ending: bool) -> RemoteKey {
        let ends = keeps_ending && self.random.ratio(1, 20);
        RemoteKey(if ends { ENDING } else { SHARED })
    }

    fn remote(&mut self, length: u32, keeps_ending: bool) -> RemoteHeader {
        RemoteHeader {
            address: BASE + u64::from(self.below(REGION - length + 1)),
            key: self.key(keeps_ending),
            length,
        }
    }

    fn atomic(&mut self, keeps_ending: bool) -> AtomicHeader {
        AtomicHeader {
            address: BASE + 8 * self.random.below(u64::from(REGION) / 8),
            key: self.key(keeps_ending),
            swap_or_add: self.random.next_u64(),
            compare: self.random.below(2),
        }
    }

    /// The answer to the oldest request that has none, or one to none.
    fn answer(&mut self, asked: &mut Asked) -> Said {
        self.honest_answer(asked)
            .unwrap_or_else(|| self.ghost(asked))
    }

    pub(super) fn honest_answer(&mut self, asked: &mut Asked) -> Option<Said> {
        let at = asked.answer;
        let posted = asked.find(at).filter(|_| at.is_before(asked.sent))?;
        let acknowledgement = Acknowledgement::new(self.serial as u32);
        let (body, length, after) = match posted.request.operation {
            SendOperation::RdmaRead(_) => self.read_response(asked, posted),
            _ if posted.is_atomic() => (self.atomic_acknowledge(), 0, at.plus(1)),
            _ => {
                // One of the packets up to the next READ or atomic.
                let unanswered = asked.sent.minus(at).unsigned_abs();
                let is_plain = |&index: &u32| {
                    let posted = asked.find(at.plus(index));
                    posted.is_some_and(|posted| !posted.request.operation.writes_locally())
                };
                let run = (0..unanswered).take_while(is_plain).count();
                let last = at.plus(self.below(run as u32));
                let said = Said::new(last, Body::Acknowledge(acknowledgement), Vec::new());
                asked.answer = last.plus(1);
                return Some(said);
            }
        };
        asked.answer = after;
        let payload = self.payload(length);
        Some(Said::new(at, body, payload))
    }

    fn atomic_acknowledge(&mut self) -> Body {
        self.serial += 1;
        let original = self.serial << 32 | 1;
        Body::AtomicAcknowledge(Acknowledgement::new(0), original)
    }

    fn read_response(
        &mut self,
        asked: &Asked,
        posted: &Posted,
    ) -> (Body, u32, PacketSequenceNumber) {
        let at = asked.answer;
        let after = at.plus(1);
        let mtu = self.mtu.bytes();
        let offset = at.minus(posted.first).unsigned_abs() * mtu;
        let acknowledgement = Acknowledgement::new(self.serial as u32);
        let begins = at == posted.first;
        let body = match (begins, asked.piece_end(at) == after) {
            (true, true) => Body::ReadResponseOnly(acknowledgement),
            (true, false) => Body::ReadResponseFirst(acknowledgement),
            (false, true) => Body::ReadResponseLast(acknowledgement),
            (false, false) => Body::ReadResponseMiddle,
        };
        (body, (posted.length - offset).min(mtu), after)
    }

    /// Something once more: as it was, or a later part of a READ.
    fn again(&mut self, served: &Served) -> Said {
        let is_kept = !served.kept.is_empty() && self.random.ratio(1, 2);
        if is_kept {
            let newest = served.kept.len().min(usize::from(RESOURCES)) as u32;
            let kept = &served.kept[self.below(newest) as usize];
            return self.kept_again(kept);
        }
        if self.said.is_empty() {
            return self.early(served, false);
        }
        let index = self.below(self.said.len() as u32);
        self.said[index as usize].clone()
    }

    fn kept_again(&mut self, kept: &Kept) -> Said {
        let (body, skipped) = match kept.kind {
            KeptKind::Read(mut read) => {
                let packets = self.mtu.packets(read.length);
                let skipped = self.below(packets);
                let bytes = skipped * self.mtu.bytes();
                read.address += u64::from(bytes);
                read.length -= bytes;
                if self.random.ratio(1, 4) {
                    read.length = self.below(read.length + 1);
                }
                (Body::ReadRequest(read), skipped)
            }
            KeptKind::Atomic { request, .. } => (Body::CompareSwap(request), 0),
        };
        Said::new(kept.first.plus(skipped), body, Vec::new())
    }

    /// A request that comes before one that is missing.
    fn early(&mut self, served: &Served, keeps_ending: bool) -> Said {
        let mut said = self.request(served, keeps_ending);
        said.base.sequence = said.base.sequence.plus(1 + self.below(4));
        said
    }

    /// An answer to what was answered before, or was never asked.
    fn ghost(&mut self, asked: &Asked) -> Said {
        let sequence = if self.random.ratio(1, 2) {
            asked.sent.plus(self.below(4))
        } else {
            let back = 1 + self.below(8);
            PacketSequenceNumber::new(asked.answer.get().wrapping_sub(back))
        };
        let acknowledgement = Acknowledgement::new(0);
        let (body, length) = match self.random.below(3) {
            0 => (Body::Acknowledge(acknowledgement), 0),
            1 => (self.atomic_acknowledge(), 0),
            _ => (
                Body::ReadResponseOnly(acknowledgement),
                self.below(self.mtu.bytes()),
            ),
        };
        let payload = self.payload(length);
        Said::new(sequence, body, payload)
    }

    /// The answer to a request that is not the oldest.
    fn with_gap(&mut self, asked: &mut Asked) -> Said {
        let later = asked.answer.plus(1 + self.below(3));
        if later.is_before(asked.sent) {
            asked.answer = later;
        }
        self.answer(asked)
    }

    /// A packet is missing, or there is no receive; or, seldom, one that ends the connection.
    fn refusal(&mut self, asked: &Asked) -> Said {
        let syndrome = match self.random.below(40) {
            0..18 => Syndrome::ReceiverNotReady(RnrTimer::new(1 + self.below(12) as u8)),
            18..39 => Syndrome::Refused(NakCode::SequenceError),
            _ => Syndrome::Refused(NakCode::RemoteAccess),
        };
        let body = Body::Acknowledge(Acknowledgement {
            syndrome,
            messages: 0,
        });
        Said::new(asked.answer, body, Vec::new())
    }

    /// What could be right, but for one thing.
    fn mutant(&mut self, served: &Served, asked: &mut Asked, keeps_ending: bool) -> Said {
        let mut said = if self.random.ratio(1, 2) {
            self.request(served, keeps_ending)
        } else {
            self.answer(asked)
        };
        let other = self.hostile.packet();
        let (base, body, length) = (other.base, other.body, other.payload.len());
        match self.random.below(4) {
            0 => said.body = body,
            1 => said.payload = self.payload(length as u32),
            2 => said.base.sequence = base.sequence,
            _ => match (&mut said.body, body) {
                (Body::WriteFirst(to) | Body::WriteOnly(to, _) | Body::ReadRequest(to), _) => {
                    match self.random.below(3) {
                        0 => to.address = to.address.wrapping_add(u64::from(REGION)),
                        1 => to.key = RemoteKey(self.random.below(6) as u32),
                        _ => to.length = self.random.next_u64() as u32,
                    }
                }
                (Body::CompareSwap(to) | Body::FetchAdd(to), _) => {
                    to.address += 1 + self.random.below(8);
                }
                (body, other) => *body = other,
            },
        }
        if !said.body.opcode().has_payload() {
            said.payload.clear();
        }
        said
    }

    /// Anything, at a number that matters.
    fn stranger(&mut self, served: &Served, asked: &Asked) -> Said {
        let packet = self.hostile.packet();
        let near = if is_request(&packet.body) {
            served.expected
        } else {
            asked.answer
        };
        let (base, body, length) = (packet.base, packet.body, packet.payload.len());
        let payload = self.payload(length as u32);
        let mut said = Said {
            base,
            body,
            payload,
        };
        if self.random.ratio(3, 4) {
            said.base.sequence = near;
        }
        said
    }
}
