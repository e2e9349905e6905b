//! An established connection: the socket, the rings, and the peer's segments.

use super::envelope::Envelope;
use super::hub::Hub;
use super::keys::PeerKeys;
use super::one_sided::Bytes;
use super::region::{Regions, is_changed_remotely};
use super::ring::{Link, Malformed, Piece};
use super::segment::{OwnSegment, PeerSegment};
use super::shared_receive::PostedReceive;
use super::socket::{self, Packet};
use super::wire::{Greeting, Message};
use crate::memory::{self, Mapping, Protection, SegmentError};
use alloc::collections::{BTreeMap, BTreeSet};
use legato_base::Time;
use legato_verbs::{
    AccessFlags, CompletionStatus, ProtectionDomain, QueuePairNumber, ScatterGatherEntry,
    VerbsError,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// A peer's region, mapped: as many bytes as the region has.
#[derive(Debug)]
pub(super) struct RemoteSegment {
    pub(super) mapping: Mapping,
    pub(super) access: AccessFlags,
    pub(super) slot: u32,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) token: u64,
    pub(super) link: Link,
    /// Since when the peer's next message waits for a receive.
    pub(super) not_ready_since: Option<Time>,
    /// We refused the peer's next message: nothing more is delivered.
    pub(super) refused: bool,
    /// The peer's queue pair.
    pub(super) peer: QueuePairNumber,
    pub(super) keys: PeerKeys,
    pub(super) segments: BTreeMap<u32, RemoteSegment>,
    asked_for: Option<u32>,
    /// Keys whose segments the peer was given.
    granted: BTreeSet<u32>,
}

/// What became of an attempt to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// The peer's provider has to do the rest.
    Started,
    /// Not now: the peer has to answer, or is gone.
    Wait,
    Fault(CompletionStatus),
    /// The peer's segment holds what cannot be.
    Malformed,
}

/// Why a peer's control message ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFault {
    /// It asked for a key that it may not have.
    Refused,
    Malformed,
    /// This side lacks the memory to map what came.
    Unmappable,
}

/// What a peer sent when it introduced itself.
#[derive(Debug)]
pub(super) struct PeerMemory {
    segment: PeerSegment,
    keys: PeerKeys,
    queue_pair: QueuePairNumber,
}

impl PeerMemory {
    pub(super) fn from_packet(greeting: &Greeting, packet: Packet) -> Result<Self, SegmentError> {
        let [segment, keys] = packet.into_descriptors().ok_or(SegmentError::Untrusted)?;
        Ok(Self {
            queue_pair: greeting.number(),
            segment: PeerSegment::map(&segment)?,
            keys: PeerKeys::map(&keys)?,
        })
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, token: u64, own: OwnSegment, peer: PeerMemory) -> Self {
        Self {
            socket,
            token,
            link: Link::new(own, peer.segment),
            not_ready_since: None,
            refused: false,
            peer: peer.queue_pair,
            keys: peer.keys,
            segments: BTreeMap::new(),
            asked_for: None,
            granted: BTreeSet::new(),
        }
    }

    /// Objects for the leak oracle: the connection and each segment mapped.
    pub(super) fn count(&self) -> usize {
        1 + self.segments.len()
    }

    /// A peer's segment, if it is mapped.
    pub(super) fn segment(&self, key: u32) -> Option<&Mapping> {
        self.segments.get(&key).map(|segment| &segment.mapping)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asked_for.is_some()
    }

    pub(super) fn ask_for(&mut self, key: u32) {
        if self.asked_for.is_none() {
            let asked = socket::send(&self.socket, &Message::MapRequest { key }.to_bytes(), &[]);
            // With the socket full the next turn asks again.
            self.asked_for = asked.is_ok().then_some(key);
        }
    }

    /// Puts a message into the ring if there is space. Of one that was written elsewhere, `bytes`
    /// are not looked at.
    pub(super) fn send(
        &mut self,
        regions: &Regions,
        domain: ProtectionDomain,
        envelope: Envelope,
        bytes: Bytes<'_>,
    ) -> Result<bool, Malformed> {
        if !self.link.has_space(u64::from(envelope.payload()))? {
            return Ok(false);
        }
        match bytes {
            _ if envelope.payload() == 0 => {
                // SAFETY: there are no pieces.
                unsafe { self.link.put(envelope, core::iter::empty()) };
            }
            Bytes::Entries(entries) => {
                let located = pieces(entries, move |entry| regions.locate(domain, entry, false));
                // SAFETY: the pieces are in registered regions, checked when the request was
                // posted and kept registered until it completes.
                unsafe { self.link.put(envelope, located) };
            }
            Bytes::Inline(bytes) => {
                let piece = Piece {
                    pointer: bytes.as_ptr().cast_mut(),
                    length: bytes.len() as u32,
                };
                // SAFETY: the piece is the slice, which is only read.
                unsafe { self.link.put(envelope, core::iter::once(piece)) };
            }
        }
        Ok(true)
    }

    /// Moves the peer's next message into a receive that is long enough.
    pub(super) fn take(&mut self, regions: &Regions, receive: &PostedReceive, envelope: Envelope) {
        let located = pieces(&receive.entries, move |entry| {
            regions.locate(receive.domain, entry, true)
        });
        // SAFETY: as in `send`, and the regions allow local writes.
        unsafe { self.link.take(envelope, located) };
    }

    /// Wakes the peer if it sleeps. To be called after something was published.
    pub(super) fn wake(&mut self, hub: &mut Hub) {
        if self.link.must_wake() {
            hub.counters.wake_ups += 1;
            // If the socket is full the peer has something to read, and wakes from that.
            let _ = socket::send(&self.socket, &Message::Wake.to_bytes(), &[]);
        }
    }

    /// A key of ours is no longer valid. The key table says so already; this is for the memory.
    pub(super) fn revoke(&mut self, key: u32) {
        if self.granted.remove(&key) {
            let _ = socket::send(&self.socket, &Message::Revoked { key }.to_bytes(), &[]);
        }
    }

    pub(super) fn handle_packet(
        &mut self,
        regions: &Regions,
        (domain, access): (ProtectionDomain, AccessFlags),
        packet: Packet,
    ) -> Result<(), ControlFault> {
        match Message::parse(packet.bytes()).map_err(|_| ControlFault::Malformed)? {
            Message::MapRequest { key } => self.grant(regions, (domain, access), key),
            Message::MapReply {
                key,
                slot,
                offset,
                length,
                access,
            } => {
                if self.asked_for.take() != Some(key) {
                    return Err(ControlFault::Malformed);
                }
                let [segment] = packet.into_descriptors().ok_or(ControlFault::Malformed)?;
                self.map(key, (&segment, offset, length), (slot, access))
            }
            Message::Revoked { key } => {
                self.segments.remove(&key);
                Ok(())
            }
            Message::Wake => Ok(()),
            Message::Hello(_) | Message::Accept(_) | Message::Reject { .. } => {
                Err(ControlFault::Malformed)
            }
        }
    }

    fn grant(
        &mut self,
        regions: &Regions,
        (domain, access): (ProtectionDomain, AccessFlags),
        key: u32,
    ) -> Result<(), ControlFault> {
        let grant = regions.grant(domain, access, key);
        let grant = grant.ok_or(ControlFault::Refused)?;
        let reply = Message::MapReply {
            key,
            slot: grant.slot,
            offset: grant.offset,
            length: grant.length,
            access: grant.access,
        };
        match socket::send(&self.socket, &reply.to_bytes(), &[grant.segment]) {
            Ok(()) => {
                self.granted.insert(key);
                Ok(())
            }
            // It is gone; the end of file says so.
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            // It asks and does not read: an honest peer has one question open at a time.
            Err(_) => Err(ControlFault::Malformed),
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
        let mapping = memory::map_segment(segment, (offset, length), protection);
        let mapping = mapping.map_err(|error| match error {
            SegmentError::Untrusted => ControlFault::Malformed,
            SegmentError::Unmappable => ControlFault::Unmappable,
        })?;
        let segment = RemoteSegment {
            mapping,
            access,
            slot,
        };
        self.segments.insert(key, segment);
        Ok(())
    }
}

fn pieces<'a>(
    entries: &'a [ScatterGatherEntry],
    locate: impl Fn(&ScatterGatherEntry) -> Result<Piece, VerbsError> + 'a,
) -> impl Iterator<Item = Piece> + 'a {
    entries.iter().map(move |entry| {
        locate(entry).expect("invariant: a region stays registered while a posted request names it")
    })
}
