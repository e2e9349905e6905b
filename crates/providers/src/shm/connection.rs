//! An established connection: the socket, the rings, and the peer's segments.

use super::control::Control;
use super::envelope::Envelope;
use super::hub::Hub;
use super::keys::PeerKeys;
use super::one_sided::Bytes;
use super::region::Regions;
use super::ring::{Link, Malformed, Piece};
use super::segment::{OwnSegment, PeerSegment};
use super::shared_receive::PostedReceive;
use super::socket::{self, Packet};
use super::windows::{View, Windows};
use super::wire::{Greeting, Message};
use crate::memory::SegmentError;
use alloc::collections::BTreeMap;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, CompletionStatus, ProtectionDomain, QueuePairNumber, ScatterGatherEntry,
    VerbsError,
};
use rustix::fd::OwnedFd;

/// A peer's region, mapped.
#[derive(Debug)]
pub(super) struct RemoteRegion {
    pub(super) bytes: View,
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
    /// The peer's regions that are mapped, by key.
    pub(super) regions: BTreeMap<u32, RemoteRegion>,
    pub(super) windows: Windows,
    pub(super) control: Control,
}

/// What became of an attempt to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Its message is certain to be delivered.
    Sent,
    /// The peer's provider has to do the rest.
    Started,
    /// Not now: the peer has to answer, or is gone.
    Wait,
    Fault(CompletionStatus),
    /// The peer's segment holds what cannot be.
    Malformed,
}

/// What a peer sent when it introduced itself.
#[derive(Debug)]
pub(super) struct PeerMemory {
    segment: PeerSegment,
    keys: PeerKeys,
    windows: Windows,
    queue_pair: QueuePairNumber,
}

impl PeerMemory {
    pub(super) fn from_packet(greeting: &Greeting, packet: Packet) -> Result<Self, SegmentError> {
        let [segment, keys] = packet.into_descriptors().ok_or(SegmentError::Untrusted)?;
        Ok(Self {
            queue_pair: greeting.number(),
            segment: PeerSegment::map(&segment)?,
            keys: PeerKeys::map(&keys)?,
            windows: Windows::new(&keys),
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
            regions: BTreeMap::new(),
            windows: peer.windows,
            control: Control::default(),
        }
    }

    /// Objects for the leak oracle: the connection and each region mapped.
    pub(super) fn count(&self) -> usize {
        1 + self.regions.len()
    }

    /// A peer's region, if it is mapped.
    pub(super) fn region(&self, key: u32) -> Option<&View> {
        self.regions.get(&key).map(|region| &region.bytes)
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
}

fn pieces<'a>(
    entries: &'a [ScatterGatherEntry],
    locate: impl Fn(&ScatterGatherEntry) -> Result<Piece, VerbsError> + 'a,
) -> impl Iterator<Item = Piece> + 'a {
    entries.iter().map(move |entry| {
        locate(entry).expect("invariant: a region stays registered while a posted request names it")
    })
}
