//! Control messages of an established connection: questions for segments, answers, and keys that are no
//! longer valid.
//!
//! The socket is never waited for. What it does not take is owed, and said when the peer has read: it may
//! be stopped, and that is no reason to take its connection away.

use super::connection::{Connection, RemoteRegion};
use super::ending::Failure;
use super::hub::Hub;
use super::queue_pair::{Pair, Phase};
use super::region::{Regions, is_changed_remotely};
use super::ring::LinkState;
use super::socket::{self, Packet, Received};
use super::wire::Message;
use crate::memory::{Protection, SegmentError};
use alloc::collections::{BTreeSet, VecDeque};
use legato_base::{Duration, Time};
use legato_verbs::{
    AccessFlags, AsyncEvent, Prepared, ProtectionDomain, QueuePairState, VerbsError,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Control messages of one connection handled in a turn; the others keep till the next (P-98).
const PACKETS_PER_TURN: usize = 64;
/// How soon to try again when the system takes no message: it lacks memory, or too many descriptors are
/// on their way (ETOOMANYREFS, unix(7)).
const RETRY_AFTER: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Control {
    /// What is to be said, in order.
    owed: VecDeque<Owed>,
    /// The poller tells when the socket takes more.
    is_watched: bool,
    retry_at: Option<Time>,
    /// Keys that the peer is asked for, one after the other: the first question is open.
    wanted: VecDeque<u32>,
    /// Keys of the peer's whose regions could not be mapped, until that is said.
    unmappable: BTreeSet<u32>,
    /// Keys whose segments the peer was given.
    granted: BTreeSet<u32>,
}

/// A message, by the key that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Question(u32),
    Answer(u32),
    Revocation(u32),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    /// Not before the peer has read.
    Full,
    /// Not now, for want of something on this side.
    Later,
}

/// Why a control message ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlFault {
    /// The peer asked for a key that it may not have.
    Refused,
    Malformed,
}

impl Control {
    /// The key that the peer has not given an answer for.
    pub(super) fn asked_for(&self) -> Option<u32> {
        self.wanted.front().copied()
    }

    /// When a turn is due though nothing happens.
    pub(super) fn next_turn(&self) -> Time {
        self.retry_at.unwrap_or(Time::NEVER)
    }

    /// Asks for a key whose region is not mapped, unless it is known by now that it cannot be.
    #[cold]
    pub(super) fn prepare(&mut self, key: u32) -> Prepared {
        if self.unmappable.remove(&key) {
            return Prepared::Refused;
        }
        if !self.wanted.contains(&key) {
            self.wanted.push_back(key);
            if self.wanted.len() == 1 {
                self.owed.push_back(Owed::Question(key));
            }
        }
        Prepared::NotYet
    }

    /// The peer has answered for a key. Says whether it was asked.
    fn answered(&mut self, key: u32) -> bool {
        if self.asked_for() != Some(key) {
            return false;
        }
        self.wanted.pop_front();
        self.owed.extend(self.asked_for().map(Owed::Question));
        true
    }

    /// A key of ours is no longer valid. The key table says so already; this is for the memory.
    pub(super) fn revoke(&mut self, key: u32) {
        if self.granted.remove(&key) {
            self.owed.push_back(Owed::Revocation(key));
        }
    }

    /// An honest peer has one question open at a time.
    fn answer(&mut self, key: u32) -> Result<(), ControlFault> {
        let is_answer = |owed: &Owed| matches!(owed, Owed::Answer(_));
        if self.owed.iter().any(is_answer) {
            return Err(ControlFault::Malformed);
        }
        self.owed.push_back(Owed::Answer(key));
        Ok(())
    }
}

impl Connection {
    /// Says what is owed, as far as the socket takes it (P-97).
    fn tell(
        &mut self,
        hub: &mut Hub,
        allowed: (ProtectionDomain, AccessFlags),
    ) -> Result<(), ControlFault> {
        if self.control.owed.is_empty() && !self.control.is_watched {
            return Ok(());
        }
        let mut said = Said::Yes;
        while let Some(&owed) = self.control.owed.front() {
            said = self.say(&hub.regions, allowed, owed)?;
            if said != Said::Yes {
                break;
            }
            self.control.owed.pop_front();
        }
        let is_full = said == Said::Full;
        if is_full != self.control.is_watched {
            self.control.is_watched = is_full;
            hub.poller.watch(&self.socket, self.token, is_full);
        }
        self.control.retry_at = (said == Said::Later).then(|| hub.now + RETRY_AFTER);
        Ok(())
    }

    fn say(
        &mut self,
        regions: &Regions,
        (domain, access): (ProtectionDomain, AccessFlags),
        owed: Owed,
    ) -> Result<Said, ControlFault> {
        let socket = &self.socket;
        let sent = match owed {
            Owed::Question(key) => {
                socket::send(socket, &Message::MapRequest { key }.to_bytes(), &[])
            }
            Owed::Revocation(key) => {
                socket::send(socket, &Message::Revoked { key }.to_bytes(), &[])
            }
            Owed::Answer(key) => {
                let grant = regions.grant(domain, access, key);
                let grant = grant.ok_or(ControlFault::Refused)?;
                let reply = Message::MapReply {
                    key,
                    slot: grant.slot,
                    offset: grant.offset,
                    length: grant.length,
                    access: grant.access,
                };
                let sent = socket::send(socket, &reply.to_bytes(), &[grant.segment]);
                if sent.is_ok() {
                    self.control.granted.insert(key);
                }
                sent
            }
        };
        Ok(match sent {
            // Or it is gone, and the end of file says so.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Said::Yes,
            Err(Errno::AGAIN) => Said::Full,
            Err(_) => Said::Later,
        })
    }

    fn handle_packet(&mut self, packet: Packet) -> Result<(), ControlFault> {
        match Message::parse(packet.bytes()).map_err(|_| ControlFault::Malformed)? {
            Message::MapRequest { key } => self.control.answer(key),
            Message::MapReply {
                key,
                slot,
                offset,
                length,
                access,
            } => {
                if !self.control.answered(key) {
                    return Err(ControlFault::Malformed);
                }
                let [segment] = packet.into_descriptors().ok_or(ControlFault::Malformed)?;
                self.map(key, (&segment, offset, length), (slot, access))
            }
            Message::Revoked { key } => {
                self.regions.remove(&key);
                self.control.unmappable.remove(&key);
                Ok(())
            }
            Message::Wake => Ok(()),
            // P-37: they belong before this.
            Message::Hello(_) | Message::Accept(_) | Message::Reject { .. } => {
                Err(ControlFault::Malformed)
            }
        }
    }

    fn map(
        &mut self,
        key: u32,
        (segment, offset, length): (&OwnedFd, u64, u64),
        (slot, access): (u32, AccessFlags),
    ) -> Result<(), ControlFault> {
        let protection = match is_changed_remotely(access) {
            true => Protection::ReadWrite,
            false => Protection::ReadOnly,
        };
        match self.windows.show(segment, (offset, length), protection) {
            Ok(bytes) => {
                let region = RemoteRegion {
                    bytes,
                    access,
                    slot,
                };
                self.regions.insert(key, region);
            }
            // P-101: who asked for it is told, and nobody else has to do with it.
            Err(SegmentError::Unmappable) => {
                self.control.unmappable.insert(key);
            }
            Err(SegmentError::Untrusted) => return Err(ControlFault::Malformed),
        }
        Ok(())
    }
}

impl Pair {
    /// Says what the peer is to be told, as far as its socket takes it.
    pub(super) fn tell(&mut self, hub: &mut Hub) {
        let access = self.attributes.access_flags.unwrap_or_default();
        let allowed = (self.init.domain, access);
        let told = self
            .connection()
            .map(|connection| connection.tell(hub, allowed));
        if let Some(Err(fault)) = told {
            self.end_by(hub, fault);
        }
    }

    /// Has the region behind a key of the peer's mapped.
    pub(super) fn prepare(&mut self, hub: &mut Hub, key: u32) -> Result<Prepared, VerbsError> {
        let state = self.state;
        let connection = self.connection().filter(|_| state != QueuePairState::Error);
        let connection = connection.ok_or(VerbsError::InvalidState(state))?;
        if connection.region(key).is_some() {
            return Ok(Prepared::Yes);
        }
        let prepared = connection.control.prepare(key);
        self.tell(hub);
        Ok(prepared)
    }

    /// A key of ours is no longer valid.
    pub(super) fn revoke(&mut self, hub: &mut Hub, key: u32) {
        if let Some(connection) = self.connection() {
            connection.control.revoke(key);
            self.tell(hub);
        }
    }

    /// Tries again what the system did not take.
    pub(super) fn progress_control(&mut self, hub: &mut Hub) {
        let retry_at = self
            .connection()
            .and_then(|connection| connection.control.retry_at);
        if retry_at.is_some_and(|at| hub.now >= at) {
            self.tell(hub);
        }
    }

    /// Handles what came on the socket of an established connection, and that it takes more.
    pub(super) fn handle_socket(&mut self, hub: &mut Hub) {
        self.tell(hub);
        for _ in 0..PACKETS_PER_TURN {
            let Some(connection) = self.connection() else {
                return;
            };
            let packet = match socket::receive(&connection.socket) {
                Received::Packet(packet) => packet,
                Received::Nothing => return,
                Received::TooMuch => return self.malformed(hub),
                Received::Closed => return self.handle_end(hub),
            };
            match connection.handle_packet(packet) {
                Ok(()) => {
                    self.tell(hub);
                    self.execute(hub);
                }
                Err(fault) => self.end_by(hub, fault),
            }
        }
    }

    fn end_by(&mut self, hub: &mut Hub, fault: ControlFault) {
        match fault {
            ControlFault::Malformed => self.malformed(hub),
            ControlFault::Refused => {
                let failure = Failure {
                    link: LinkState::AccessRefused,
                    ..Failure::with(AsyncEvent::QueuePairAccessError)
                };
                self.enter_error(hub, failure);
            }
        }
    }

    /// The socket is at its end: the peer closed it, or died (P-41).
    fn handle_end(&mut self, hub: &mut Hub) {
        let Phase::Established(connection) = &self.phase else {
            return;
        };
        let state = connection.link.peer_state().unwrap_or(LinkState::Closed);
        // What it had acknowledged before is still true.
        if self.collect_answers(hub).is_err() {
            return self.malformed(hub);
        }
        if self.state != QueuePairState::Error {
            self.peer_gone(hub, state);
        }
    }
}
