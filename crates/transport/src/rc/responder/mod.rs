//! The responder: executes the peer's requests in order, each once (IB spec 9.7.4, 9.7.5).

mod message;
mod one_sided;

use super::phase::{Path, header};
use super::policy::Policy;
use super::replies::{Place, Replies};
use super::timer::deadline;
use crate::wire::{self, Acknowledgement, Body, NakCode, Packet, Syndrome};
use crate::{AccessRefused, Host, PacketSequenceNumber, QueuePairEvent};
use legato_base::Time;
use legato_verbs::QueuePairAttributes;
use legato_verbs::{AccessFlags, CompletionStatus, LocalKey, ReceiveRequest, RemoteKey, RnrTimer};

#[derive(Debug)]
pub(super) struct Responder {
    path: Path,
    policy: Policy,
    access: AccessFlags,
    rnr_timer: RnrTimer,
    /// Where the next new packet belongs.
    expected: Place,
    /// Messages completed.
    messages: u32,
    message: Message,
    /// A packet is missing, or was refused for want of a receive, and the peer was told. It is
    /// told once (IB spec 9.7.5.2.4).
    told: bool,
    /// The last packet that came too early. One not after it is of a repetition without its beginning.
    early: PacketSequenceNumber,
    /// The last packet of a SEND or a WRITE: READs and atomics are acknowledged by their answers.
    executed: PacketSequenceNumber,
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    answer: Answer,
    replies: Replies,
}

/// The message of several packets that is arriving.
#[derive(Debug)]
enum Message {
    None,
    Send {
        receive: ReceiveRequest,
        length: u32,
    },
    Write {
        key: RemoteKey,
        /// Where its next bytes go.
        address: u64,
        /// Bytes of the whole.
        length: u32,
        /// Bytes that have come.
        written: u32,
    },
}

/// What is to be said, after the answers to READs and atomics.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Nothing,
    Acknowledge {
        by: Time,
    },
    Refuse {
        sequence: PacketSequenceNumber,
        syndrome: Syndrome,
    },
}

/// A request that ends the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// What the peer is told; `None`: that the request was executed.
    code: Option<NakCode>,
    /// The status of the receive that the message had taken, if the fault lies there.
    pub(super) receive: Option<CompletionStatus>,
    pub(super) event: Option<QueuePairEvent>,
}

impl Refusal {
    const INVALID: Self = Self {
        code: Some(NakCode::InvalidRequest),
        receive: None,
        event: Some(QueuePairEvent::RequestError),
    };
    const ACCESS: Self = Self {
        code: Some(NakCode::RemoteAccess),
        receive: None,
        event: Some(QueuePairEvent::AccessError),
    };

    /// The completion of the receive tells of it, so there is no event.
    const fn of_receive(status: CompletionStatus, code: Option<NakCode>) -> Self {
        Self {
            code,
            receive: Some(status),
            event: None,
        }
    }
}

impl From<AccessRefused> for Refusal {
    fn from(_: AccessRefused) -> Self {
        Self::ACCESS
    }
}

/// What became of a packet.
enum Executed {
    /// It took so many sequence numbers.
    Message(u32),
    /// There was no receive for it: nothing happened.
    NoReceive,
}

/// Which packet of its message one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Part {
    const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

impl Responder {
    pub(super) fn new(
        path: Path,
        first: PacketSequenceNumber,
        attributes: &QueuePairAttributes,
        policy: &Policy,
    ) -> Self {
        Self {
            path,
            policy: *policy,
            access: attributes.access_flags.unwrap_or_default(),
            rnr_timer: attributes.rnr_timer.unwrap_or(RnrTimer::new(0)),
            expected: Place {
                sequence: first,
                packets_before: 0,
            },
            messages: 0,
            message: Message::None,
            told: false,
            early: first,
            executed: first.plus(u32::MAX),
            unacknowledged: 0,
            answer: Answer::Nothing,
            replies: Replies::new(attributes.responder_resources.unwrap_or(0)),
        }
    }

    /// The attributes have changed.
    pub(super) fn configure(&mut self, attributes: &QueuePairAttributes) {
        self.access = attributes.access_flags.unwrap_or_default();
        self.rnr_timer = attributes.rnr_timer.unwrap_or(self.rnr_timer);
        if let Some(resources) = attributes.responder_resources {
            self.replies.set_capacity(resources);
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// What ends the connection. The answer to the peer is ready for [`Self::transmit`].
    pub(super) fn input(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let sequence = packet.base.sequence;
        match sequence.minus(self.expected.sequence) {
            0 => self.request(now, packet, host),
            1.. => {
                self.missing(sequence);
                Ok(())
            }
            _ => {
                self.duplicate(now, packet);
                Ok(())
            }
        }
    }

    /// A packet came too early. The peer hears of a gap once, or once for each vain repetition.
    fn missing(&mut self, sequence: PacketSequenceNumber) {
        let again = self.policy.is_measured() && !self.early.is_before(sequence);
        if !self.told || again {
            self.told = true;
            self.refuse(Syndrome::Refused(NakCode::SequenceError));
        }
        self.early = sequence;
    }

    /// A packet came again (IB spec 9.7.5.1.1). Nothing is executed.
    fn duplicate(&mut self, now: Time, packet: &Packet<'_>) {
        let sequence = packet.base.sequence;
        let place = self.expected.earlier(sequence);
        match (packet.body, place) {
            (Body::ReadRequest(request), Some(place)) => {
                self.replies.repeat_read(place, request, self.path.mtu);
            }
            (Body::CompareSwap(_) | Body::FetchAdd(_), Some(place)) => {
                self.replies.repeat_atomic(place);
            }
            // It was never sent.
            (Body::ReadRequest(_) | Body::CompareSwap(_) | Body::FetchAdd(_), None) => {}
            // A refusal that waits says the same and more.
            _ if matches!(self.answer, Answer::Refuse { .. }) => {}
            _ => self.answer = Answer::Acknowledge { by: now },
        }
    }

    /// Executes the packet that is expected.
    fn request(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        match self.execute(packet, host) {
            Ok(Executed::Message(packets)) => {
                self.told = false;
                self.expected = self.expected.plus(packets);
                self.schedule(now, packet);
                Ok(())
            }
            Ok(Executed::NoReceive) => {
                self.told = true;
                self.early = self.expected.sequence;
                self.refuse(Syndrome::ReceiverNotReady(self.rnr_timer));
                Ok(())
            }
            Err(refusal) => {
                match refusal.code {
                    Some(code) => self.refuse(Syndrome::Refused(code)),
                    None => {
                        self.executed = self.expected.sequence;
                        self.message_completed();
                        self.answer = Answer::Acknowledge { by: now };
                    }
                }
                Err(refusal)
            }
        }
    }

    fn execute(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<Executed, Refusal> {
        use wire::Extra::Nothing;
        match packet.body {
            Body::SendFirst => self.send(packet, Part::First, Nothing, host),
            Body::SendMiddle => self.send(packet, Part::Middle, Nothing, host),
            Body::SendLast(extra) => self.send(packet, Part::Last, extra, host),
            Body::SendOnly(extra) => self.send(packet, Part::Only, extra, host),
            Body::WriteFirst(target) => self.write(packet, Part::First, Some(target), None, host),
            Body::WriteMiddle => self.write(packet, Part::Middle, None, None, host),
            Body::WriteLast(immediate) => self.write(packet, Part::Last, None, immediate, host),
            Body::WriteOnly(target, immediate) => {
                self.write(packet, Part::Only, Some(target), immediate, host)
            }
            Body::ReadRequest(request) => self.read(request, host),
            Body::CompareSwap(request) => {
                let (compare, swap) = (request.compare, request.swap_or_add);
                self.atomic(request, host, &mut |old| {
                    if old == compare { swap } else { old }
                })
            }
            Body::FetchAdd(request) => self.atomic(request, host, &mut |old| {
                old.wrapping_add(request.swap_or_add)
            }),
            // Not requests of a connection: the queue pair keeps them away.
            _ => Err(Refusal::INVALID),
        }
    }

    /// Decides when the packet that was executed is acknowledged.
    fn schedule(&mut self, now: Time, packet: &Packet<'_>) {
        if matches!(
            packet.body,
            Body::ReadRequest(_) | Body::CompareSwap(_) | Body::FetchAdd(_)
        ) {
            // The answer acknowledges all before it.
            self.unacknowledged = 0;
            self.answer = Answer::Nothing;
            return;
        }
        self.executed = packet.base.sequence;
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        let at_once =
            packet.base.acknowledge || self.unacknowledged >= self.policy.acknowledge_packets;
        let by = if at_once {
            now
        } else {
            deadline(now, Some(self.policy.acknowledge_delay))
        };
        self.answer = match self.answer {
            Answer::Acknowledge { by: earlier } => Answer::Acknowledge {
                by: earlier.min(by),
            },
            Answer::Nothing | Answer::Refuse { .. } => Answer::Acknowledge { by },
        };
    }

    /// Refuses the expected packet. That acknowledges all before it.
    const fn refuse(&mut self, syndrome: Syndrome) {
        self.answer = Answer::Refuse {
            sequence: self.expected.sequence,
            syndrome,
        };
    }

    /// When an acknowledgement is due that nobody asked for.
    pub(super) const fn next_deadline(&self) -> Time {
        match self.answer {
            Answer::Acknowledge { by } => by,
            Answer::Nothing | Answer::Refuse { .. } => Time::NEVER,
        }
    }

    /// Writes the next packet: the answers to READs and atomics, then the acknowledgement.
    ///
    /// # Errors
    /// A READ lost its region before it was answered. The answer to the peer is ready.
    pub(super) fn transmit(
        &mut self,
        now: Time,
        host: &impl Host,
        into: &mut [u8],
    ) -> Result<Option<usize>, Refusal> {
        if let Some(packet) = self.replies.peek(self.path.mtu) {
            let base = header(self.path, packet.sequence);
            let length = packet.length as usize;
            let written = wire::encode(&base, &packet.body, into, length, |payload| {
                match packet.source {
                    Some(source) if length > 0 => host.read_remote(source, payload),
                    _ => Ok(()),
                }
            });
            if let Ok(length) = written {
                self.replies.sent();
                return Ok(Some(length));
            }
            let syndrome = Syndrome::Refused(NakCode::RemoteAccess);
            // Who still waits for it fails by the refusal; to who does not it is a ghost.
            if packet.again && !self.policy.refused_repeat_ends {
                self.replies.skip();
                return Ok(self.say(packet.sequence, syndrome, into));
            }
            self.replies.stop();
            self.answer = Answer::Refuse {
                sequence: packet.sequence,
                syndrome,
            };
            return Err(Refusal::ACCESS);
        }
        let (sequence, syndrome) = match self.answer {
            Answer::Acknowledge { by } if by <= now => {
                (self.executed, Acknowledgement::new(0).syndrome)
            }
            Answer::Refuse { sequence, syndrome } => (sequence, syndrome),
            _ => return Ok(None),
        };
        self.answer = Answer::Nothing;
        self.unacknowledged = 0;
        Ok(self.say(sequence, syndrome, into))
    }

    fn say(
        &self,
        sequence: PacketSequenceNumber,
        syndrome: Syndrome,
        into: &mut [u8],
    ) -> Option<usize> {
        let body = Body::Acknowledge(Acknowledgement {
            syndrome,
            messages: self.messages,
        });
        let base = header(self.path, sequence);
        wire::encode(&base, &body, into, 0, |_| Ok::<_, AccessRefused>(())).ok()
    }

    /// The receive of the message that is arriving, which ends here.
    pub(super) fn take_half_received(&mut self) -> Option<ReceiveRequest> {
        match core::mem::replace(&mut self.message, Message::None) {
            Message::Send { receive, .. } => Some(receive),
            Message::None | Message::Write { .. } => None,
        }
    }

    /// Does the message that is arriving go to memory of this key?
    pub(super) fn uses(&self, key: LocalKey) -> bool {
        match &self.message {
            Message::Send { receive, .. } => {
                receive.entries.iter().any(|entry| entry.local_key == key)
            }
            Message::None | Message::Write { .. } => false,
        }
    }

    /// The error state: of this responder only what it was about to say is left.
    pub(super) const fn has_last_words(&self) -> bool {
        !matches!(self.answer, Answer::Nothing)
    }

    const fn message_completed(&mut self) {
        self.messages = self.messages.wrapping_add(1) & 0x00FF_FFFF;
    }
}
