//! An established connection: the socket, the rings, and the peer's segments.

use super::hub::Hub;
use super::memory::{self, Mapping, Protection, SegmentError};
use super::region::{PeerKeys, Regions};
use super::ring::{Link, OwnSegment, PeerSegment, Piece};
use super::socket::{self, Packet};
use super::wire::Message;
use alloc::collections::{BTreeMap, BTreeSet};
use core::sync::atomic::{Ordering, fence};
use legato_base::Time;
use legato_verbs::{
    AccessFlags, CompletionStatus, ProtectionDomain, RemoteAddress, ScatterGatherEntry,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// A peer's region, mapped: as many bytes as the region has.
#[derive(Debug)]
struct RemoteSegment {
    mapping: Mapping,
    access: AccessFlags,
    slot: u32,
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
    keys: PeerKeys,
    segments: BTreeMap<u32, RemoteSegment>,
    asked_for: Option<u32>,
    /// Keys whose segments the peer was given.
    granted: BTreeSet<u32>,
}

/// What became of an attempt to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Not now: the peer has to answer, or is gone.
    Wait,
    Fault(CompletionStatus),
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

/// One direction of a one-sided operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneSided<'a> {
    pub(super) write: bool,
    pub(super) remote: RemoteAddress,
    pub(super) entries: &'a [ScatterGatherEntry],
    pub(super) length: u32,
}

/// What a peer sent when it introduced itself.
#[derive(Debug)]
pub(super) struct PeerMemory {
    pub(super) segment: PeerSegment,
    pub(super) keys: PeerKeys,
}

impl PeerMemory {
    pub(super) fn from_packet(packet: Packet) -> Result<Self, SegmentError> {
        let [segment, keys] = packet.into_descriptors().ok_or(SegmentError::Untrusted)?;
        Ok(Self {
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

    /// Executes a READ or WRITE, if the peer's segment is mapped; else asks for it.
    ///
    /// This is the data path: no system call and no allocation once the segment is mapped.
    pub(super) fn one_sided(
        &mut self,
        regions: &Regions,
        domain: ProtectionDomain,
        request: &OneSided<'_>,
    ) -> Step {
        const REFUSED: Step = Step::Fault(CompletionStatus::RemoteAccess);
        if request.length == 0 {
            return Step::Done;
        }
        if !self.link.peer_is_open() {
            return Step::Wait;
        }
        let key = request.remote.key.0;
        let Some(segment) = self.segments.get(&key) else {
            self.ask_for(key);
            return Step::Wait;
        };
        let needed = match request.write {
            true => AccessFlags::REMOTE_WRITE,
            false => AccessFlags::REMOTE_READ,
        };
        let place = segment
            .mapping
            .at(request.remote.address, u64::from(request.length));
        let (Some(place), true) = (place, segment.access.contains(needed)) else {
            return REFUSED;
        };
        if !self.keys.is_valid(segment.slot, key) {
            return REFUSED;
        }
        let mut done = 0;
        for entry in request.entries {
            let Ok(piece) = regions.locate(domain, entry, !request.write) else {
                return Step::Fault(CompletionStatus::LocalProtection);
            };
            // SAFETY: `place` has the sum of the entries' lengths, which is request.length, in a
            // mapping that cannot shrink and is writable where REMOTE_WRITE was granted; the
            // piece is in a registered region, to which nobody holds a reference.
            unsafe {
                let there = place.add(done);
                let (from, to) = match request.write {
                    true => (piece.pointer, there),
                    false => (there, piece.pointer),
                };
                memory::copy(from, to, piece.length as usize);
            }
            done += piece.length as usize;
        }
        // The bytes count only if the key was valid after they were copied, too.
        fence(Ordering::Acquire);
        if !self.keys.is_valid(segment.slot, key) {
            return REFUSED;
        }
        Step::Done
    }

    fn ask_for(&mut self, key: u32) {
        if self.asked_for.is_none() {
            let asked = socket::send(&self.socket, &Message::MapRequest { key }.to_bytes(), &[]);
            // With the socket full the next turn asks again.
            self.asked_for = asked.is_ok().then_some(key);
        }
    }

    /// Puts a message into the ring if there is space.
    pub(super) fn send(
        &mut self,
        regions: &Regions,
        domain: ProtectionDomain,
        entries: &[ScatterGatherEntry],
        length: u32,
    ) -> Result<bool, ControlFault> {
        let fits = self.link.has_space(u64::from(length));
        if !fits.map_err(|_| ControlFault::Malformed)? {
            return Ok(false);
        }
        let pieces = pieces(regions, domain, entries, false);
        // SAFETY: the pieces are in registered regions, checked when the request was posted and
        // kept registered until it completes.
        unsafe { self.link.put(pieces, length) };
        Ok(true)
    }

    /// Moves the peer's next message into a posted receive that is long enough.
    pub(super) fn take(
        &mut self,
        regions: &Regions,
        domain: ProtectionDomain,
        entries: &[ScatterGatherEntry],
        length: u32,
    ) {
        let pieces = pieces(regions, domain, entries, true);
        // SAFETY: as in `send`, and the regions allow local writes.
        unsafe { self.link.take(pieces, length) };
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
        domain: ProtectionDomain,
        packet: Packet,
    ) -> Result<(), ControlFault> {
        match Message::parse(packet.bytes()).map_err(|_| ControlFault::Malformed)? {
            Message::MapRequest { key } => self.grant(regions, domain, key),
            Message::MapReply {
                key,
                slot,
                length,
                access,
            } => {
                if self.asked_for.take() != Some(key) {
                    return Err(ControlFault::Malformed);
                }
                let [segment] = packet.into_descriptors().ok_or(ControlFault::Malformed)?;
                self.map(key, &segment, (slot, length, access))
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
        domain: ProtectionDomain,
        key: u32,
    ) -> Result<(), ControlFault> {
        let grant = regions.grant(domain, key).ok_or(ControlFault::Refused)?;
        let reply = Message::MapReply {
            key,
            slot: grant.slot,
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
        segment: &OwnedFd,
        (slot, length, access): (u32, u64, AccessFlags),
    ) -> Result<(), ControlFault> {
        let protection = match access.contains(AccessFlags::REMOTE_WRITE) {
            true => Protection::ReadWrite,
            false => Protection::ReadOnly,
        };
        let mapping =
            memory::map_segment(segment, length, protection).map_err(|error| match error {
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
    regions: &'a Regions,
    domain: ProtectionDomain,
    entries: &'a [ScatterGatherEntry],
    write: bool,
) -> impl Iterator<Item = Piece> + 'a {
    entries.iter().map(move |entry| {
        let piece = regions.locate(domain, entry, write);
        piece.expect("invariant: a region stays registered while a posted request names it")
    })
}
