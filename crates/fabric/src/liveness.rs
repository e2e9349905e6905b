//! Is the peer's software alive? A peer that says nothing for a while is asked; one that is silent
//! for long is given up. A responder has no timer (IB spec volume 1, 9.7.5.1), so without this a
//! connection that only receives would never learn that its peer is gone.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::id::{Key, Kind};
use crate::lifecycle::State;
use crate::rpc::Call;
use crate::shared::Shared;
use crate::{CONTRACT, FabricEvent, ResetCause};
use alloc::vec;
use legato_base::wire::message::{MessageHeader, MessageKind, TimeLeft};
use legato_base::{Duration, Time};
use legato_verbs::{Provider, SendFlags, SendOperation, SendRequest, VerbsError, WorkRequestId};

/// Of an established connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// When the peer last said anything.
    heard: Time,
    /// When it was last asked to.
    asked: Option<Time>,
    suspected: bool,
}

/// A ping or pong of this side whose completion has not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeSend {
    generation: u32,
    pub(crate) posted: Time,
}

/// Which of the two send buffers for probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Ping = 0,
    Pong = 1,
}

impl Liveness {
    pub(crate) const fn starting_at(now: Time) -> Self {
        Self {
            heard: now,
            asked: None,
            suspected: false,
        }
    }
}

impl<B: Buffer> Connection<B> {
    /// This side did not look for so long: what the peer said meanwhile is not read yet, and if it was
    /// stopped as well, it has said nothing. The peer is not late for that (P-47), and what waits for
    /// it has the time that it had and some grace, once (P-13): it may be what this side should have
    /// looked for. A queue pair that drains waits for nobody.
    pub(crate) fn forgive(&mut self, time: Duration, grace: Duration) {
        let later = |at: &mut Time| *at = *at + time;
        let put_off = time + grace;
        match &mut self.state {
            State::Connecting { deadline }
            | State::Accepting { deadline }
            | State::Confirming { deadline } => deadline.put_off(put_off),
            State::Established(liveness) => later(&mut liveness.heard),
            State::Draining(_) => {}
        }
        if let Some(outage) = &mut self.outage {
            later(&mut outage.ends);
        }
        for (_, call) in self.calls.iter_mut() {
            match call {
                Call::Waiting { deadline } => deadline.put_off(put_off),
                Call::Abandoned { since } => later(since),
            }
        }
        for (_, operation) in self.operations.iter_mut() {
            operation.deadline.put_off(put_off);
        }
        for (_, send) in self.request_sends.iter_mut() {
            later(&mut send.posted);
        }
        for (_, posted) in self.reply_sends.iter_mut() {
            later(posted);
        }
        for send in self.probe_sends.iter_mut().flatten() {
            later(&mut send.posted);
        }
    }

    /// The peer has said something.
    pub(crate) fn note_heard(&mut self, shared: &mut Shared<B>) {
        let State::Established(liveness) = &mut self.state else {
            return;
        };
        if !CONTRACT {
            return;
        }
        liveness.heard = shared.now;
        if liveness.suspected {
            liveness.suspected = false;
            let connection = self.id;
            shared.events.push_back(FabricEvent::Heard { connection });
        }
    }

    /// Asks, suspects or gives up a peer that has been silent too long (P-46). True if anything was done.
    pub(crate) fn check_liveness(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> bool {
        let State::Established(liveness) = &mut self.state else {
            return false;
        };
        if !CONTRACT {
            return false;
        }
        let (now, timeouts) = (shared.now, shared.timeouts);
        let silent = now.since(liveness.heard);
        if silent >= timeouts.silence {
            self.reset(shared, provider, ResetCause::PeerSilent);
            return true;
        }
        let mut progressed = false;
        if silent >= timeouts.suspicion && !liveness.suspected {
            liveness.suspected = true;
            progressed = true;
            shared.counters.peers_suspected += 1;
            let connection = self.id;
            shared
                .events
                .push_back(FabricEvent::Suspected { connection });
        }
        let mut due = liveness.heard + timeouts.ping;
        if let Some(asked) = liveness.asked {
            due = due.max(asked + timeouts.ping);
        }
        if due <= now {
            liveness.asked = Some(now);
            due = now + timeouts.ping;
            progressed = true;
            self.send_probe(shared, provider, Probe::Ping);
        }
        shared.note_deadline(due);
        progressed
    }

    /// A peer that asks twice before it was answered is answered once.
    pub(crate) fn handle_ping(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        self.send_probe(shared, provider, Probe::Pong);
    }

    /// One of a kind is under way at a time; another one would say nothing new, but a pong that could
    /// not be sent is owed.
    fn send_probe(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider, probe: Probe) {
        if !self.is_established() {
            return;
        }
        let place = probe as usize;
        if self.probe_sends[place].is_some() {
            self.pong_owed |= probe == Probe::Pong;
            return;
        }
        if let Err(error) = self.post_probe(shared, provider, probe) {
            shared.counters.posts_refused += 1;
            match error {
                // It is tried again with the next tick.
                VerbsError::QueueFull(_) | VerbsError::System { .. } => {
                    self.pong_owed |= probe == Probe::Pong;
                }
                error => self.reset(shared, provider, ResetCause::Provider(error)),
            }
        }
    }

    fn post_probe(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        probe: Probe,
    ) -> Result<(), VerbsError> {
        let generation = shared.generations.next();
        let index = probe as u16;
        let token = self.token(Kind::Probe, Key { index, generation });
        let header = MessageHeader {
            kind: match probe {
                Probe::Ping => MessageKind::Ping,
                Probe::Pong => MessageKind::Pong,
            },
            call: 0,
            length: 0,
            time_left: TimeLeft::UNBOUNDED,
            epoch: self.epoch,
        };
        let first = self.layout.first_probe();
        self.post_message(shared, provider, first, token, header, &[])?;
        let posted = shared.now;
        self.probe_sends[usize::from(index)] = Some(ProbeSend { generation, posted });
        Ok(())
    }

    /// Sends the confirmation, before there is any probe, out of the buffer of pings.
    pub(crate) fn post_confirmation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        bytes: &[u8],
    ) -> Result<(), VerbsError> {
        let generation = shared.generations.next();
        let index = Probe::Ping as u16;
        let token = self.token(Kind::Probe, Key { index, generation });
        let offset = u64::from(self.layout.first_probe()) * shared.sizes.stride;
        provider.write_region(&self.region, offset, bytes)?;
        let request = SendRequest {
            wr_id: WorkRequestId(token.bits()),
            operation: SendOperation::Send,
            entries: vec![self.region.entry(offset, bytes.len() as u32)],
            flags: SendFlags::SIGNALED,
        };
        provider.post_send(self.queue_pair, &request)?;
        let posted = shared.now;
        self.probe_sends[usize::from(index)] = Some(ProbeSend { generation, posted });
        Ok(())
    }

    pub(crate) fn complete_probe(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
    ) -> bool {
        let place = self.probe_sends.get_mut(usize::from(key.index));
        let matches =
            |sent: &Option<ProbeSend>| sent.is_some_and(|sent| sent.generation == key.generation);
        let Some(place) = place.filter(|sent| matches(sent)) else {
            return false;
        };
        *place = None;
        self.send_owed_pong(shared, provider);
        true
    }

    pub(crate) fn send_owed_pong(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        if core::mem::take(&mut self.pong_owed) {
            self.send_probe(shared, provider, Probe::Pong);
        }
    }
}
