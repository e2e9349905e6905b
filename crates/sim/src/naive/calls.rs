//! Requests and replies.

use super::header::{HEADER, Header, Kind, MESSAGE};
use super::stack::{NaiveEvent, NaiveStack, Work};
use legato_base::Time;
use legato_verbs::{
    Provider, RemoteAddress, ScatterGatherEntry, SendFlags, SendOperation, SendRequest,
};

/// The place of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    Free,
    Waiting {
        call: u64,
        connection: usize,
        generation: u32,
        deadline: Time,
    },
    /// Its call timed out, and nobody gave it back.
    Lost,
}

/// A request that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub connection: usize,
    slot: u32,
    generation: u32,
    into: Option<RemoteAddress>,
}

impl NaiveStack {
    /// Asks the peer; `into` is where in the caller's memory a reply is to be written by a peer
    /// with that habit. None if there is no slot, no buffer, or the stack is stuck.
    pub fn call(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        body: &[u8],
        into: Option<RemoteAddress>,
        deadline: Time,
    ) -> Option<u64> {
        if self.is_stuck() {
            return None;
        }
        let slot = self
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Free))?;
        self.generation = self.generation.wrapping_add(1);
        let header = Header {
            kind: Kind::Request,
            slot: slot as u32,
            generation: self.generation,
            length: body.len() as u32,
            into,
        };
        self.send(provider, connection, &header, body)?;
        let call = self.next_number();
        self.slots[slot] = Slot::Waiting {
            call,
            connection,
            generation: self.generation,
            deadline,
        };
        Some(call)
    }

    /// Answers. None if the connection is gone, or the stack is stuck.
    pub fn reply(&mut self, provider: &mut dyn Provider, asked: Asked, body: &[u8]) -> Option<()> {
        if self.is_stuck() {
            return None;
        }
        let mut header = Header {
            kind: Kind::Reply,
            slot: asked.slot,
            generation: asked.generation,
            length: body.len() as u32,
            into: None,
        };
        match asked.into {
            Some(into) if self.habits.replies_by_remote_write => {
                // The message behind it says only that it is there.
                self.write_reply(provider, asked.connection, into, body)?;
                header.length = 0;
                self.send(provider, asked.connection, &header, &[])
            }
            _ => self.send(provider, asked.connection, &header, body),
        }
    }

    fn write_reply(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        into: RemoteAddress,
        body: &[u8],
    ) -> Option<()> {
        let entry = self.fill_send_buffer(provider, body)?;
        let operation = SendOperation::RdmaWrite(into);
        self.post(provider, connection, entry, operation)
    }

    fn send(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        header: &Header,
        body: &[u8],
    ) -> Option<()> {
        let bytes = header.with_body(body);
        let entry = self.fill_send_buffer(provider, &bytes)?;
        self.post(provider, connection, entry, SendOperation::Send)
    }

    fn fill_send_buffer(
        &mut self,
        provider: &mut dyn Provider,
        bytes: &[u8],
    ) -> Option<(u32, ScatterGatherEntry)> {
        let length = u32::try_from(bytes.len()).ok()?;
        if length > MESSAGE {
            return None;
        }
        let buffer = self.free_sends.pop()?;
        let offset = self.send_offset(buffer);
        provider.write_region(&self.region, offset, bytes).ok()?;
        Some((buffer, self.region.entry(offset, length)))
    }

    fn post(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        (buffer, entry): (u32, ScatterGatherEntry),
        operation: SendOperation,
    ) -> Option<()> {
        let work = Work::Send { connection, buffer };
        let request = SendRequest {
            wr_id: work.id(),
            operation,
            entries: vec![entry],
            flags: SendFlags::SIGNALED,
        };
        match self.connections.get_mut(connection) {
            Some(Some(it)) if provider.post_send(it.queue_pair, &request).is_ok() => {
                it.sends.push(buffer);
            }
            _ => {
                self.free_sends.push(buffer);
                return None;
            }
        }
        if self.habits.waits_for_completion_for_ever {
            self.waiting_for = Some(work.id());
        }
        Some(())
    }

    /// What is in a receive buffer.
    pub(super) fn handle_message(&mut self, connection: usize, bytes: &[u8]) {
        let Some((header, body)) = Header::parse(bytes) else {
            self.counters.unintelligible += 1;
            return;
        };
        match header.kind {
            Kind::Request => self.events.push_back(NaiveEvent::Request {
                asked: Asked {
                    connection,
                    slot: header.slot,
                    generation: header.generation,
                    into: header.into,
                },
                body: body.to_vec(),
            }),
            Kind::Reply => self.handle_reply(&header, body),
        }
    }

    fn handle_reply(&mut self, header: &Header, body: &[u8]) {
        let any_generation = self.habits.slots_without_generation;
        match self.slots.get(header.slot as usize) {
            Some(&Slot::Waiting {
                call, generation, ..
            }) if any_generation || generation == header.generation => {
                self.slots[header.slot as usize] = Slot::Free;
                let body = Some(body.to_vec());
                self.events.push_back(NaiveEvent::Replied { call, body });
            }
            _ => self.counters.replies_dropped += 1,
        }
    }

    /// Ends calls whose time is over, or whose connection is.
    pub(super) fn end_calls(&mut self, over: impl Fn(usize, Time) -> bool) {
        for slot in &mut self.slots {
            if let Slot::Waiting {
                call,
                connection,
                deadline,
                ..
            } = *slot
                && over(connection, deadline)
            {
                *slot = match self.habits.leaks_slot_at_timeout {
                    true => Slot::Lost,
                    false => Slot::Free,
                };
                self.events
                    .push_back(NaiveEvent::Replied { call, body: None });
            }
        }
    }

    /// Slots that no call can ever have again.
    pub fn slots_lost(&self) -> usize {
        let lost = |slot: &&Slot| matches!(slot, Slot::Lost);
        self.slots.iter().filter(lost).count()
    }
}

/// Longest body of a message.
pub(super) const BODY_MAX: u32 = MESSAGE - HEADER as u32;
