//! A side's segment: its words, and the bytes of its ring of messages. Only its owner writes it.

use super::envelope::{ENVELOPE_BYTES, Parameters};
use super::words::{Processor, Words};
use crate::memory::{self, Mapping, Protection, SegmentError, Writers};
use core::fmt;
use core::sync::atomic::Ordering;
use legato_verbs::VerbsError;
use rustix::fd::OwnedFd;

/// Longest message, and for one limit on all operations also the longest READ or WRITE.
pub const MESSAGE_LENGTH_MAX: u32 = 64 * 1024;
/// Bytes of messages, with their headers, that one side can have on the way.
pub const RING_BYTES: u64 = 256 * 1024;
/// One page for the words in front of the ring.
pub(crate) const HEADER_BYTES: u64 = 4096;
const SEGMENT_BYTES: u64 = HEADER_BYTES + RING_BYTES;
const _: () = assert!(RING_BYTES.is_power_of_two());
const _: () = assert!(MESSAGE_LENGTH_MAX as u64 + ENVELOPE_BYTES <= RING_BYTES / 2);
const _: () = assert!(size_of::<Header<Processor>>() as u64 <= HEADER_BYTES);

/// The words of a segment, each pair of writer and reader on its own cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header<W: Words> {
    /// Bytes put into this segment's ring.
    pub(crate) produced: Line<W::Word64>,
    /// Bytes taken from the other side's ring.
    pub(crate) consumed: Line<W::Word64>,
    /// Messages of the other side that are in receive buffers.
    pub(crate) delivered: W::Word64,
    /// Why the message after those was refused: a completion status, or 0.
    pub(crate) refusal: W::Word32,
    pub(crate) state: W::Word32,
    /// The owner's [`Parameters`].
    pub(crate) parameters: W::Word32,
    /// Receives that the owner has posted for messages of the other side, and for nobody else's; and the
    /// length of the shortest of them.
    pub(crate) posted: W::Word64,
    pub(crate) shortest: W::Word32,
    /// Odd while the owner sleeps; another odd number each time.
    pub(crate) sleeping: Line<W::Word32>,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// Where a segment's words and bytes are.
pub(crate) trait Segment: fmt::Debug {
    type Words: Words;
    /// A power of two, and a multiple of the alignment of messages.
    const RING_BYTES: u64;

    fn header(&self) -> &Header<Self::Words>;

    /// Copies bytes to a place in the ring.
    ///
    /// # Safety
    /// The place is in the ring whole, the segment is the caller's own, and the peer has released
    /// the place. `from` is readable, and no Rust reference to it is live for writing.
    unsafe fn copy_in(&self, from: *const u8, place: u64, length: u32);

    /// Copies bytes out of the ring.
    ///
    /// # Safety
    /// The place is in the ring whole. `to` is writable, and no Rust reference to it is live.
    unsafe fn copy_out(&self, place: u64, to: *mut u8, length: u32);
}

/// A segment that is mapped: ours, or a peer's for reading only.
#[derive(Debug)]
pub(crate) struct Mapped(pub(crate) Mapping);

impl Mapped {
    fn place(&self, place: u64, length: u32) -> *mut u8 {
        let place = self.0.at(HEADER_BYTES + place, u64::from(length));
        place.expect("invariant: a place in the ring is in the segment")
    }
}

impl Segment for Mapped {
    type Words = Processor;
    const RING_BYTES: u64 = RING_BYTES;

    #[inline(always)]
    fn header(&self) -> &Header<Processor> {
        let base = self.0.at(0, HEADER_BYTES);
        let base = base.expect("invariant: a ring segment has its header");
        // SAFETY: the mapping is page-aligned, longer than the header, and lives as long as the
        // reference; every field is an atomic, for which other writers are allowed, and on
        // read-only mappings we only load words of at most 64 bits, which needs no write access.
        unsafe { &*base.cast::<Header<Processor>>().cast_const() }
    }

    #[inline(always)]
    unsafe fn copy_in(&self, from: *const u8, place: u64, length: u32) {
        // SAFETY: as the caller promises, in a segment of ours, which is mapped for writing.
        unsafe { memory::copy(from, self.place(place, length), length as usize) };
    }

    #[inline(always)]
    unsafe fn copy_out(&self, place: u64, to: *mut u8, length: u32) {
        // SAFETY: as the caller promises, from a segment that cannot shrink.
        unsafe { memory::copy(self.place(place, length), to, length as usize) };
    }
}

/// Our own segment, not yet joined to a peer's.
#[derive(Debug)]
pub(crate) struct OwnSegment(pub(crate) Mapped);

impl OwnSegment {
    pub(crate) fn create(parameters: Parameters) -> Result<(OwnedFd, Self), VerbsError> {
        let length = SEGMENT_BYTES as usize;
        let (segment, mapping) = memory::create_segment("legato-ring", length, Writers::OwnerOnly)?;
        let own = Self(Mapped(mapping));
        own.set_parameters(parameters);
        Ok((segment, own))
    }

    /// Tells the peer what holds for our queue pair.
    pub(crate) fn set_parameters(&self, parameters: Parameters) {
        let word = &self.0.header().parameters;
        word.store(parameters.to_word(), Ordering::Release);
    }
}

/// A peer's segment, mapped and not yet joined to ours.
#[derive(Debug)]
pub(crate) struct PeerSegment(pub(crate) Mapped);

impl PeerSegment {
    pub(crate) fn map(segment: &OwnedFd) -> Result<Self, SegmentError> {
        let mapping = memory::map_segment(segment, (0, SEGMENT_BYTES), Protection::ReadOnly)?;
        Ok(Self(Mapped(mapping)))
    }
}
