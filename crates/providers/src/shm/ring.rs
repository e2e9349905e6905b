//! The two-sided path: one segment a side, written by its owner only.
//!
//! A side's segment holds the ring of messages that it sends, and how far it has come with the
//! ring of the other side. The peer maps it read-only, so nobody can spoil another's words; what
//! a peer writes into its own is believed only within bounds. Counters count bytes or messages
//! since the connection began and never wrap (2^64 bytes).

use super::memory::{self, Mapping, Protection, SegmentError, Writers};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use legato_verbs::VerbsError;
use rustix::fd::OwnedFd;

/// Longest message, and for one limit on all operations also the longest READ or WRITE.
pub const MESSAGE_LENGTH_MAX: u32 = 64 * 1024;
/// Bytes of messages, with their headers, that one side can have on the way.
pub const RING_BYTES: u64 = 256 * 1024;
/// One page for the words in front of the ring.
const HEADER_BYTES: u64 = 4096;
const SEGMENT_BYTES: u64 = HEADER_BYTES + RING_BYTES;
/// In front of each message: its length in the low half, its number in the high half.
const PREFIX_BYTES: u64 = 8;
const _: () = assert!(RING_BYTES.is_power_of_two());
const _: () = assert!(MESSAGE_LENGTH_MAX as u64 + PREFIX_BYTES <= RING_BYTES / 2);

/// The words of a segment, each pair of writer and reader on its own cache line.
#[derive(Debug)]
#[repr(C)]
struct Header {
    /// Bytes put into this segment's ring.
    produced: Line<AtomicU64>,
    /// Bytes taken from the other side's ring.
    consumed: Line<AtomicU64>,
    /// Messages of the other side that are in receive buffers.
    delivered: AtomicU64,
    /// Why the message after those was refused: a completion status, or 0.
    refusal: AtomicU32,
    state: AtomicU32,
    /// Odd while the owner sleeps; another odd number each time.
    sleeping: Line<AtomicU32>,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Line<T>(T);

const _: () = assert!(size_of::<Header>() as u64 <= HEADER_BYTES);

/// How a side sees the connection. A dead process leaves `Open` behind: its socket tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum LinkState {
    Open = 0,
    Closed = 1,
    /// As initiator, the owner broke the rules of a segment of the reader.
    AccessViolated = 2,
    /// As responder, the owner refused a remote key.
    AccessRefused = 3,
}

/// The peer wrote something that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A piece of local memory, checked by whoever made it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) pointer: *mut u8,
    pub(super) length: u32,
}

/// Our own segment, not yet joined to a peer's.
#[derive(Debug)]
pub(super) struct OwnSegment(Mapping);

impl OwnSegment {
    pub(super) fn create() -> Result<(OwnedFd, Self), VerbsError> {
        let length = SEGMENT_BYTES as usize;
        let (segment, mapping) = memory::create_segment("legato-ring", length, Writers::OwnerOnly)?;
        Ok((segment, Self(mapping)))
    }
}

/// A peer's segment, mapped and not yet joined to ours.
#[derive(Debug)]
pub(super) struct PeerSegment(Mapping);

impl PeerSegment {
    pub(super) fn map(segment: &OwnedFd) -> Result<Self, SegmentError> {
        memory::map_segment(segment, SEGMENT_BYTES, Protection::ReadOnly).map(Self)
    }
}

/// Both rings of a connection, seen from one side.
#[derive(Debug)]
pub(super) struct Link {
    own: OwnSegment,
    peer: PeerSegment,
    produced: u64,
    sent: u64,
    acknowledged: u64,
    consumed: u64,
    delivered: u64,
    woken: u32,
}

fn header(mapping: &Mapping) -> &Header {
    let base = mapping.at(0, HEADER_BYTES);
    let base = base.expect("invariant: a ring segment has its header");
    // SAFETY: the mapping is page-aligned, longer than the header, and lives as long as the
    // reference; every field is an atomic, for which other writers are allowed, and on read-only
    // mappings we only load words of at most 64 bits, which needs no write access.
    unsafe { &*base.cast::<Header>().cast_const() }
}

impl Link {
    pub(super) fn new(own: OwnSegment, peer: PeerSegment) -> Self {
        Self {
            own,
            peer,
            produced: 0,
            sent: 0,
            acknowledged: 0,
            consumed: 0,
            delivered: 0,
            woken: 0,
        }
    }

    fn own(&self) -> &Header {
        header(&self.own.0)
    }

    fn peer(&self) -> &Header {
        header(&self.peer.0)
    }

    /// Whether a message of `length` bytes fits now.
    pub(super) fn has_space(&self, length: u64) -> Result<bool, Malformed> {
        let consumed = self.peer().consumed.0.load(Ordering::Acquire);
        let used = self.produced.checked_sub(consumed).ok_or(Malformed)?;
        if used > RING_BYTES {
            return Err(Malformed);
        }
        Ok(footprint(length) <= RING_BYTES - used)
    }

    /// Puts a message into our ring; the caller has made sure that there is space.
    ///
    /// # Safety
    /// The pieces must be readable, and no Rust reference to them may be live for writing.
    pub(super) unsafe fn put(&mut self, pieces: impl Iterator<Item = Piece>, length: u32) {
        let prefix = u64::from(length) | (self.sent & 0xFFFF_FFFF) << 32;
        let mut prefix_bytes = prefix.to_le_bytes();
        let prefix = Piece {
            pointer: prefix_bytes.as_mut_ptr(),
            length: PREFIX_BYTES as u32,
        };
        let mut at = self.produced;
        for piece in core::iter::once(prefix).chain(pieces) {
            let mut done = 0;
            for (place, part) in parts(at, piece.length) {
                let to = self.own.0.at(HEADER_BYTES + place, u64::from(part));
                let to = to.expect("invariant: a place in the ring is in the segment");
                // SAFETY: `to` is in our own segment, in space that the peer has released; the
                // piece is the caller's promise and has `done + part` bytes.
                unsafe { memory::copy(piece.pointer.add(done), to, part as usize) };
                done += part as usize;
            }
            at += u64::from(piece.length);
        }
        self.produced += footprint(u64::from(length));
        self.sent += 1;
        self.own()
            .produced
            .0
            .store(self.produced, Ordering::Release);
    }

    /// The length of the peer's next message.
    pub(super) fn next_length(&self) -> Result<Option<u32>, Malformed> {
        let produced = self.peer().produced.0.load(Ordering::Acquire);
        if produced == self.consumed {
            return Ok(None);
        }
        let there = produced.checked_sub(self.consumed).ok_or(Malformed)?;
        if !(PREFIX_BYTES..=RING_BYTES).contains(&there) {
            return Err(Malformed);
        }
        let mut prefix = [0; PREFIX_BYTES as usize];
        let piece = Piece {
            pointer: prefix.as_mut_ptr(),
            length: PREFIX_BYTES as u32,
        };
        // SAFETY: the piece is the array above.
        unsafe { self.copy_out(self.consumed, core::iter::once(piece), PREFIX_BYTES) };
        let prefix = u64::from_le_bytes(prefix);
        let (length, number) = (prefix as u32, prefix >> 32);
        let expected = self.delivered & 0xFFFF_FFFF;
        if length > MESSAGE_LENGTH_MAX || footprint(u64::from(length)) > there || number != expected
        {
            return Err(Malformed);
        }
        Ok(Some(length))
    }

    /// Moves the peer's next message, of the `length` that [`Self::next_length`] gave, into the
    /// pieces, which are at least as long in sum.
    ///
    /// # Safety
    /// The pieces must be writable, and no Rust reference to them may be live.
    pub(super) unsafe fn take(&mut self, pieces: impl Iterator<Item = Piece>, length: u32) {
        // SAFETY: as the caller promises.
        unsafe { self.copy_out(self.consumed + PREFIX_BYTES, pieces, u64::from(length)) };
        self.consumed += footprint(u64::from(length));
        self.delivered += 1;
        let own = self.own();
        own.consumed.0.store(self.consumed, Ordering::Release);
        own.delivered.store(self.delivered, Ordering::Release);
    }

    /// # Safety
    /// As for [`Self::take`].
    unsafe fn copy_out(&self, mut at: u64, pieces: impl Iterator<Item = Piece>, length: u64) {
        let mut left = length;
        for piece in pieces {
            let wanted = left.min(u64::from(piece.length)) as u32;
            let mut done = 0;
            for (place, part) in parts(at, wanted) {
                let from = self.peer.0.at(HEADER_BYTES + place, u64::from(part));
                let from = from.expect("invariant: a place in the ring is in the segment");
                // SAFETY: `from` is inside the peer's segment, which cannot shrink; the piece is
                // the caller's promise and has at least `done + part` bytes.
                unsafe { memory::copy(from, piece.pointer.add(done), part as usize) };
                done += part as usize;
            }
            at += u64::from(wanted);
            left -= u64::from(wanted);
        }
    }

    /// How many of our messages the peer has delivered since the last call.
    pub(super) fn take_acknowledged(&mut self) -> Result<u64, Malformed> {
        let delivered = self.peer().delivered.load(Ordering::Acquire);
        if delivered < self.acknowledged || delivered > self.sent {
            return Err(Malformed);
        }
        let new = delivered - self.acknowledged;
        self.acknowledged = delivered;
        Ok(new)
    }

    /// Refuses the peer's next message, for ever.
    pub(super) fn refuse(&self, status: u8) {
        let refusal = &self.own().refusal;
        refusal.store(u32::from(status), Ordering::Release);
    }

    /// Why the peer refused the message after those it acknowledged; 0 if it did not.
    pub(super) fn peer_refusal(&self) -> u32 {
        self.peer().refusal.load(Ordering::Acquire)
    }

    pub(super) fn set_state(&self, state: LinkState) {
        self.own().state.store(state as u32, Ordering::Release);
    }

    pub(super) fn peer_is_open(&self) -> bool {
        self.peer().state.load(Ordering::Acquire) == LinkState::Open as u32
    }

    pub(super) fn peer_state(&self) -> Result<LinkState, Malformed> {
        match self.peer().state.load(Ordering::Acquire) {
            0 => Ok(LinkState::Open),
            1 => Ok(LinkState::Closed),
            2 => Ok(LinkState::AccessViolated),
            3 => Ok(LinkState::AccessRefused),
            _ => Err(Malformed),
        }
    }

    /// Says whether we sleep. To lose no wake-up the sleeper looks at the rings again after this,
    /// and the peer looks at this word after it has published: the fences order both.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        let word = &self.own().sleeping.0;
        let now = word.load(Ordering::Relaxed);
        if (now & 1 == 1) != sleeping {
            word.store(now.wrapping_add(1), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the peer sleeps and was not yet woken from this sleep. To be called after
    /// publishing.
    pub(super) fn must_wake(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let sleeping = self.peer().sleeping.0.load(Ordering::Relaxed);
        if sleeping & 1 == 0 || sleeping == self.woken {
            return false;
        }
        self.woken = sleeping;
        true
    }

    /// Whether the peer has acknowledged or refused something that was not handled yet.
    pub(super) fn has_answer(&self) -> bool {
        self.peer().delivered.load(Ordering::Acquire) != self.acknowledged
            || self.peer_refusal() != 0
    }

    /// Whether the peer has put a message that was not taken yet.
    pub(super) fn has_message(&self) -> bool {
        self.peer().produced.0.load(Ordering::Acquire) != self.consumed
    }
}

/// Bytes that a message takes in a ring: prefixes stay 8-aligned.
fn footprint(length: u64) -> u64 {
    PREFIX_BYTES + length.next_multiple_of(8)
}

/// The one or two places in the ring that `length` bytes at counter `at` take.
fn parts(at: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    let place = at & (RING_BYTES - 1);
    let first = u64::from(length).min(RING_BYTES - place) as u32;
    [(place, first), (0, length - first)]
        .into_iter()
        .filter(|&(_, part)| part > 0)
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
