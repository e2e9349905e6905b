//! SEND and WRITE, packet by packet.

use super::{Executed, Message, Part, Refusal, Responder};
use crate::rc::policy::WriteCheck;
use crate::wire::{Extra, Packet, RemoteHeader};
use crate::{AccessRefused, Host, QueueCompletion, WorkQueue};
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, ReceiveRequest, RemoteAddress, RemoteKey,
};

/// Bytes of the longest message (IB spec 9.7.3).
pub(super) const LENGTH_MAX: u32 = 1 << 31;

impl Responder {
    pub(super) fn send(
        &mut self,
        packet: &Packet<'_>,
        part: Part,
        extra: Extra,
        host: &mut impl Host,
    ) -> Result<Executed, Refusal> {
        self.check_payload(packet, part)?;
        if part.begins() {
            if !matches!(self.message, Message::None) {
                return Err(Refusal::INVALID);
            }
            let Some(receive) = host.take_receive() else {
                return Ok(Executed::NoReceive);
            };
            self.message = Message::Send { receive, length: 0 };
        }
        let Message::Send { receive, length } = &mut self.message else {
            return Err(Refusal::INVALID);
        };
        let (offset, payload) = (*length, packet.payload);
        *length = fill(receive, offset, payload, host).map_err(|fault| match fault {
            Fault::TooShort => {
                let (status, code) = self.policy.receive_too_short;
                Refusal::of_receive(status, Some(code))
            }
            Fault::Protection => {
                let (status, code) = self.policy.receive_protection;
                Refusal::of_receive(status, Some(code))
            }
        })?;
        if part.ends() {
            self.deliver(packet, extra, host)?;
        }
        Ok(Executed::Message(1))
    }

    /// The last packet of a SEND is here: its receive completes.
    fn deliver(
        &mut self,
        packet: &Packet<'_>,
        extra: Extra,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if let Extra::Invalidate(key) = extra
            && host.invalidate(key).is_err()
        {
            return Err(Refusal::of_receive(
                CompletionStatus::RemoteInvalidRequest,
                self.policy.invalidate_refusal,
            ));
        }
        let message = core::mem::replace(&mut self.message, Message::None);
        let Message::Send { receive, length } = message else {
            return Err(Refusal::INVALID);
        };
        let kind = match extra {
            Extra::Nothing => CompletionKind::Receive { length },
            Extra::Immediate(immediate) => {
                CompletionKind::ReceiveWithImmediate { length, immediate }
            }
            Extra::Invalidate(key) => CompletionKind::ReceiveWithInvalidate { length, key },
        };
        self.message_completed();
        complete(receive, kind, packet, host);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        packet: &Packet<'_>,
        part: Part,
        target: Option<RemoteHeader>,
        immediate: Option<u32>,
        host: &mut impl Host,
    ) -> Result<Executed, Refusal> {
        self.check_payload(packet, part)?;
        let place = self.write_place(packet, part, target)?;
        let bytes = packet.payload.len() as u32;
        let here = RemoteAddress {
            key: place.key,
            address: place.address,
        };
        if !self.policy.receive_before_key {
            self.check_write(&place, part, bytes, host)?;
        }
        let receive = match immediate {
            None => None,
            Some(immediate) => match host.take_receive() {
                Some(receive) => Some((receive, immediate)),
                None => return Ok(Executed::NoReceive),
            },
        };
        if self.policy.receive_before_key
            && let Err(refused) = self.check_write(&place, part, bytes, host)
        {
            let mut refusal = Refusal::from(refused);
            if let Some((receive, _)) = receive {
                self.message = Message::Send { receive, length: 0 };
                refusal.receive = Some(CompletionStatus::RemoteAccess);
            }
            return Err(refusal);
        }
        if bytes > 0 && host.write_remote(here, packet.payload).is_err() {
            // The receive is completed by what follows.
            if let Some((receive, _)) = receive {
                self.message = Message::Send { receive, length: 0 };
            }
            return Err(Refusal::ACCESS);
        }
        if part.ends() {
            self.message = Message::None;
            self.message_completed();
        } else {
            self.message = Message::Write {
                key: place.key,
                address: place.address.wrapping_add(u64::from(bytes)),
                length: place.length,
                written: place.written + bytes,
            };
        }
        if let Some((receive, immediate)) = receive {
            let length = place.length;
            let kind = CompletionKind::ReceiveRdmaWithImmediate { length, immediate };
            complete(receive, kind, packet, host);
        }
        Ok(Executed::Message(1))
    }

    /// Where the packet's bytes go, if it is the one that its WRITE has next (IB spec 9.7.4.1).
    fn write_place(
        &self,
        packet: &Packet<'_>,
        part: Part,
        target: Option<RemoteHeader>,
    ) -> Result<WritePlace, Refusal> {
        let place = match (&self.message, target) {
            (Message::None, Some(target)) => WritePlace {
                key: target.key,
                address: target.address,
                length: target.length,
                written: 0,
            },
            (
                &Message::Write {
                    key,
                    address,
                    length,
                    written,
                },
                None,
            ) => WritePlace {
                key,
                address,
                length,
                written,
            },
            _ => return Err(Refusal::INVALID),
        };
        // Permission of the queue pair comes before the key.
        if !self.access.contains(AccessFlags::REMOTE_WRITE) || place.length > LENGTH_MAX {
            return Err(Refusal::INVALID);
        }
        let rest = u64::from(place.length - place.written.min(place.length));
        let bytes = packet.payload.len() as u64;
        let fits = if part.ends() {
            bytes == rest
        } else {
            bytes < rest
        };
        if !fits {
            return Err(Refusal::INVALID);
        }
        Ok(place)
    }

    /// Does the key allow what this packet writes?
    fn check_write(
        &self,
        place: &WritePlace,
        part: Part,
        bytes: u32,
        host: &impl Host,
    ) -> Result<(), AccessRefused> {
        let checks_all = self.policy.write_check == WriteCheck::WholeMessage;
        let length = if checks_all && part.begins() {
            place.length
        } else {
            bytes
        };
        if length == 0 {
            return Ok(());
        }
        let here = RemoteAddress {
            key: place.key,
            address: place.address,
        };
        host.check_remote(here, length, AccessFlags::REMOTE_WRITE)
    }

    /// All packets but the last are full (IB spec 9.7.4.1.6).
    const fn check_payload(&self, packet: &Packet<'_>, part: Part) -> Result<(), Refusal> {
        let (length, full) = (packet.payload.len(), self.path.mtu.bytes() as usize);
        let fits = match part {
            Part::First | Part::Middle => length == full,
            Part::Last => length > 0 && length <= full,
            Part::Only => length <= full,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }
}

struct WritePlace {
    key: RemoteKey,
    address: u64,
    length: u32,
    written: u32,
}

/// Why bytes do not go into a receive.
enum Fault {
    TooShort,
    Protection,
}

/// Puts bytes into a receive behind the first `offset`, and returns how many it has then.
fn fill(
    receive: &ReceiveRequest,
    offset: u32,
    payload: &[u8],
    host: &mut impl Host,
) -> Result<u32, Fault> {
    let entries = &receive.entries;
    let room = entries.iter().fold(0, |sum: u64, entry| {
        sum.saturating_add(u64::from(entry.length))
    });
    let end = u64::from(offset).saturating_add(payload.len() as u64);
    let end = u32::try_from(end)
        .ok()
        .filter(|end| u64::from(*end) <= room && *end <= LENGTH_MAX)
        .ok_or(Fault::TooShort)?;
    if payload.is_empty() {
        return Ok(end);
    }
    if offset == 0 {
        host.check_entries(entries, AccessFlags::LOCAL_WRITE)
            .map_err(|_| Fault::Protection)?;
    }
    host.scatter(entries, offset, payload)
        .map_err(|_| Fault::Protection)?;
    Ok(end)
}

fn complete(
    receive: ReceiveRequest,
    kind: CompletionKind,
    packet: &Packet<'_>,
    host: &mut impl Host,
) {
    host.complete(QueueCompletion {
        queue: WorkQueue::Receive,
        wr_id: receive.wr_id,
        result: Ok(kind),
        solicited: packet.base.solicited,
    });
    host.give_receive(receive);
}
