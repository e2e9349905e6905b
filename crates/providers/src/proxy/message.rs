//! What goes through the rings: requests one way, completions and events the other.

use super::call::RegionId;
use super::codec::{Decoder, Encoder, Malformed};
use alloc::vec::Vec;
use legato_verbs::{
    CompletionKind, CompletionQueue, CompletionStatus, Event, QueuePair, QueuePairState,
    RemoteAddress, RemoteKey, SendFlags, SendOperation, VerbsError,
};

/// A piece of a region, in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) region: RegionId,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

/// A request. Requests of a queue have numbers that go up by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Post {
    pub(super) pair: QueuePair,
    pub(super) number: u64,
    pub(super) work: Work,
    pub(super) parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Send(SendOperation, SendFlags),
    Receive,
}

/// Entries of one request that a proxy hands on.
pub(super) const ENTRIES_MAX: usize = 16;

impl Post {
    /// # Errors
    /// [`VerbsError::Unsupported`] for what concerns windows, which a proxy has not.
    pub(super) fn encode(
        (pair, number): (QueuePair, u64),
        work: Work,
        parts: &[Part],
        out: &mut Encoder<'_>,
    ) -> Result<(), VerbsError> {
        match work {
            Work::Receive => out.u8(0),
            Work::Send(operation, flags) => {
                out.operation(operation)?;
                out.u8(flags.bits());
            }
        }
        out.pair(pair);
        out.u64(number);
        out.u8(parts.len() as u8);
        for part in parts {
            out.u32(part.region.0);
            out.u64(part.offset);
            out.u32(part.length);
        }
        Ok(())
    }

    pub(super) fn decode(mut bytes: Decoder<'_>) -> Result<Self, Malformed> {
        let from = &mut bytes;
        let work = match from.u8()? {
            0 => Work::Receive,
            code => {
                let operation = from.operation(code)?;
                let bits = from.u8()?;
                let flags = SendFlags::from_bits(bits);
                if flags.bits() != bits {
                    return Err(Malformed);
                }
                Work::Send(operation, flags)
            }
        };
        let (pair, number) = (from.pair()?, from.u64()?);
        let count = usize::from(from.u8()?);
        if count > ENTRIES_MAX {
            return Err(Malformed);
        }
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(Part {
                region: RegionId(from.u32()?),
                offset: from.u64()?,
                length: from.u32()?,
            });
        }
        bytes.finish()?;
        Ok(Self {
            pair,
            number,
            work,
            parts,
        })
    }
}

impl Encoder<'_> {
    fn target(&mut self, code: u8, target: RemoteAddress) {
        self.u8(code);
        self.u32(target.key.0);
        self.u64(target.address);
    }

    fn operation(&mut self, operation: SendOperation) -> Result<(), VerbsError> {
        match operation {
            SendOperation::Send => self.u8(1),
            SendOperation::RdmaWrite(target) => self.target(2, target),
            SendOperation::RdmaRead(target) => self.target(3, target),
            SendOperation::SendWithImmediate(immediate) => {
                self.u8(4);
                self.u32(immediate);
            }
            SendOperation::SendWithInvalidate(key) => {
                self.u8(5);
                self.u32(key.0);
            }
            SendOperation::RdmaWriteWithImmediate(target, immediate) => {
                self.target(6, target);
                self.u32(immediate);
            }
            SendOperation::CompareAndSwap {
                target,
                compare,
                swap,
            } => {
                self.target(7, target);
                self.u64(compare);
                self.u64(swap);
            }
            SendOperation::FetchAndAdd { target, add } => {
                self.target(8, target);
                self.u64(add);
            }
            SendOperation::LocalInvalidate(_) | SendOperation::BindWindow(_) => {
                return Err(VerbsError::Unsupported("memory windows"));
            }
        }
        Ok(())
    }
}

impl Decoder<'_> {
    fn target(&mut self) -> Result<RemoteAddress, Malformed> {
        Ok(RemoteAddress {
            key: RemoteKey(self.u32()?),
            address: self.u64()?,
        })
    }

    fn operation(&mut self, code: u8) -> Result<SendOperation, Malformed> {
        Ok(match code {
            1 => SendOperation::Send,
            2 => SendOperation::RdmaWrite(self.target()?),
            3 => SendOperation::RdmaRead(self.target()?),
            4 => SendOperation::SendWithImmediate(self.u32()?),
            5 => SendOperation::SendWithInvalidate(RemoteKey(self.u32()?)),
            6 => SendOperation::RdmaWriteWithImmediate(self.target()?, self.u32()?),
            7 => SendOperation::CompareAndSwap {
                target: self.target()?,
                compare: self.u64()?,
                swap: self.u64()?,
            },
            8 => SendOperation::FetchAndAdd {
                target: self.target()?,
                add: self.u64()?,
            },
            _ => return Err(Malformed),
        })
    }
}

/// A request has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completed {
    pub(super) queue: CompletionQueue,
    pub(super) pair: QueuePair,
    pub(super) direction: Direction,
    pub(super) number: u64,
    pub(super) result: Result<CompletionKind, CompletionStatus>,
    pub(super) vendor_error: u32,
}

/// What the far half tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Completed(Completed),
    Event(Event),
}

/// A notice, and the state of its queue pair when it was written: it may have changed without the
/// near half's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) notice: Notice,
    pub(super) state: Option<QueuePairState>,
}

/// Bytes of a completion, and of any notice, at most.
pub(super) const COMPLETED_BYTES_MAX: usize = 48;
pub(super) const NOTICE_BYTES_MAX: usize = 320;

const COMPLETED: u8 = 1;
const EVENT: u8 = 2;

impl Told {
    pub(super) fn encode(&self, out: &mut Encoder<'_>) {
        match &self.notice {
            Notice::Completed(completed) => {
                out.u8(COMPLETED);
                self.encode_state(out);
                out.queue(completed.queue);
                out.pair(completed.pair);
                out.u8(u8::from(completed.direction == Direction::Receive));
                out.u64(completed.number);
                out.result(completed.result);
                out.u32(completed.vendor_error);
            }
            Notice::Event(event) => {
                out.u8(EVENT);
                self.encode_state(out);
                out.event(event);
            }
        }
    }

    fn encode_state(&self, out: &mut Encoder<'_>) {
        match self.state {
            Some(state) => out.state(state),
            None => out.u8(0),
        }
    }

    pub(super) fn decode(mut bytes: Decoder<'_>) -> Result<Self, Malformed> {
        let from = &mut bytes;
        let kind = from.u8()?;
        let state = match from.0.first() {
            Some(0) => from.u8().map(|_| None)?,
            _ => Some(from.state()?),
        };
        let notice = match kind {
            COMPLETED => Notice::Completed(Completed {
                queue: from.queue()?,
                pair: from.pair()?,
                direction: match from.flag()? {
                    false => Direction::Send,
                    true => Direction::Receive,
                },
                number: from.u64()?,
                result: from.result()?,
                vendor_error: from.u32()?,
            }),
            EVENT => Notice::Event(from.event()?),
            _ => return Err(Malformed),
        };
        bytes.finish()?;
        Ok(Self { notice, state })
    }
}

impl Encoder<'_> {
    /// The status of a failure, or 0 and what was done.
    fn result(&mut self, result: Result<CompletionKind, CompletionStatus>) {
        let kind = match result {
            Ok(kind) => kind,
            Err(status) => return self.u8(status.code()),
        };
        self.u8(0);
        let (code, length, second) = match kind {
            CompletionKind::Send => (1, 0, 0),
            CompletionKind::Receive { length } => (2, length, 0),
            CompletionKind::RdmaWrite => (3, 0, 0),
            CompletionKind::RdmaRead => (4, 0, 0),
            CompletionKind::CompareAndSwap => (5, 0, 0),
            CompletionKind::FetchAndAdd => (6, 0, 0),
            CompletionKind::LocalInvalidate => (7, 0, 0),
            CompletionKind::BindWindow => (8, 0, 0),
            CompletionKind::ReceiveWithImmediate { length, immediate } => (9, length, immediate),
            CompletionKind::ReceiveWithInvalidate { length, key } => (10, length, key.0),
            CompletionKind::ReceiveRdmaWithImmediate { length, immediate } => {
                (11, length, immediate)
            }
        };
        self.u8(code);
        self.u32(length);
        self.u32(second);
    }
}

impl Decoder<'_> {
    fn result(&mut self) -> Result<Result<CompletionKind, CompletionStatus>, Malformed> {
        match self.u8()? {
            0 => {}
            code => return CompletionStatus::from_code(code).map(Err).ok_or(Malformed),
        }
        let (code, length, second) = (self.u8()?, self.u32()?, self.u32()?);
        Ok(Ok(match code {
            1 => CompletionKind::Send,
            2 => CompletionKind::Receive { length },
            3 => CompletionKind::RdmaWrite,
            4 => CompletionKind::RdmaRead,
            5 => CompletionKind::CompareAndSwap,
            6 => CompletionKind::FetchAndAdd,
            7 => CompletionKind::LocalInvalidate,
            8 => CompletionKind::BindWindow,
            9 => CompletionKind::ReceiveWithImmediate {
                length,
                immediate: second,
            },
            10 => CompletionKind::ReceiveWithInvalidate {
                length,
                key: RemoteKey(second),
            },
            11 => CompletionKind::ReceiveRdmaWithImmediate {
                length,
                immediate: second,
            },
            _ => return Err(Malformed),
        }))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
