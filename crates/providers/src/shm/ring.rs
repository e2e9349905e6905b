//! The two-sided path: one segment a side, written by its owner only.
//!
//! A side's segment holds the ring of messages that it sends, and how far it has come with the
//! ring of the other side. The peer maps it read-only, so nobody can spoil another's words; what
//! a peer writes into its own is believed only within bounds. Counters count bytes or messages
//! since the connection began and never wrap (2^64 bytes).

use super::envelope::{ENVELOPE_BYTES, Envelope, Parameters};
use super::segment::{Header, Mapped, OwnSegment, PeerSegment, Segment};
use super::words::{Word as _, Words as _};
use core::sync::atomic::Ordering;

/// How a side sees the connection. A dead process leaves `Open` behind: its socket tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LinkState {
    Open = 0,
    Closed = 1,
    /// As initiator, the owner broke the rules of a segment of the reader.
    AccessViolated = 2,
    /// As responder, the owner refused a remote key.
    AccessRefused = 3,
    /// As initiator, the owner asked for what the reader's queue pair does not allow.
    RequestViolated = 4,
}

/// The peer wrote something that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A piece of local memory, checked by whoever made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) pointer: *mut u8,
    pub(crate) length: u32,
}

/// Both rings of a connection, seen from one side.
#[derive(Debug)]
pub(crate) struct Link<S = Mapped> {
    own: S,
    peer: S,
    produced: u64,
    sent: u64,
    acknowledged: u64,
    consumed: u64,
    delivered: u64,
    /// Of our messages, those that are certain to be delivered and that the peer has not acknowledged.
    certain: u64,
    posted: u64,
    shortest: u32,
    woken: u32,
}

impl Link {
    pub(crate) fn new(own: OwnSegment, peer: PeerSegment) -> Self {
        Self::join(own.0, peer.0)
    }
}

impl<S: Segment> Link<S> {
    fn join(own: S, peer: S) -> Self {
        Self {
            own,
            peer,
            produced: 0,
            sent: 0,
            acknowledged: 0,
            consumed: 0,
            delivered: 0,
            certain: 0,
            posted: 0,
            shortest: u32::MAX,
            woken: 0,
        }
    }

    fn own(&self) -> &Header<S::Words> {
        self.own.header()
    }

    fn peer(&self) -> &Header<S::Words> {
        self.peer.header()
    }

    /// Whether a message with `length` bytes of payload fits now.
    pub(crate) fn has_space(&self, length: u64) -> Result<bool, Malformed> {
        let consumed = self.peer().consumed.0.load(Ordering::Acquire);
        let used = self.produced.checked_sub(consumed).ok_or(Malformed)?;
        if used > S::RING_BYTES {
            return Err(Malformed);
        }
        // P-75: only what the peer has released is written.
        Ok(footprint(length) <= S::RING_BYTES - used)
    }

    /// Puts a message into our ring; the caller has made sure that there is space.
    ///
    /// # Safety
    /// The pieces must be readable, and no Rust reference to them may be live for writing. They
    /// have as many bytes in sum as the envelope says.
    pub(crate) unsafe fn put(&mut self, envelope: Envelope, pieces: impl Iterator<Item = Piece>) {
        let mut head = envelope.to_bytes(self.sent);
        let head = Piece {
            pointer: head.as_mut_ptr(),
            length: ENVELOPE_BYTES as u32,
        };
        let mut at = self.produced;
        for piece in core::iter::once(head).chain(pieces) {
            let mut done = 0;
            for (place, part) in parts::<S>(at, piece.length) {
                // SAFETY: the place is in our own ring, in space that the peer has released; the
                // piece is the caller's promise and has `done + part` bytes.
                unsafe { self.own.copy_in(piece.pointer.add(done), place, part) };
                done += part as usize;
            }
            at += u64::from(piece.length);
        }
        self.produced += footprint(u64::from(envelope.payload()));
        self.sent += 1;
        self.own()
            .produced
            .0
            .store(self.produced, Ordering::Release);
    }

    /// The peer's next message.
    pub(crate) fn next(&self) -> Result<Option<Envelope>, Malformed> {
        let produced = self.peer().produced.0.load(Ordering::Acquire);
        if produced == self.consumed {
            return Ok(None);
        }
        let there = produced.checked_sub(self.consumed).ok_or(Malformed)?;
        // P-36: nothing that the peer wrote is believed beyond these bounds.
        if !(ENVELOPE_BYTES..=S::RING_BYTES).contains(&there) {
            return Err(Malformed);
        }
        let mut head = [0; ENVELOPE_BYTES as usize];
        let piece = Piece {
            pointer: head.as_mut_ptr(),
            length: ENVELOPE_BYTES as u32,
        };
        // SAFETY: the piece is the array above.
        unsafe { self.copy_out(self.consumed, core::iter::once(piece), ENVELOPE_BYTES) };
        let envelope = Envelope::parse(head, self.delivered)?;
        if footprint(u64::from(envelope.payload())) > there {
            return Err(Malformed);
        }
        Ok(Some(envelope))
    }

    /// Moves the peer's next message, which [`Self::next`] gave, into the pieces, which are at
    /// least as long in sum as its payload.
    ///
    /// # Safety
    /// The pieces must be writable, and no Rust reference to them may be live.
    pub(crate) unsafe fn take(&mut self, envelope: Envelope, pieces: impl Iterator<Item = Piece>) {
        let length = u64::from(envelope.payload());
        // SAFETY: as the caller promises.
        unsafe { self.copy_out(self.consumed + ENVELOPE_BYTES, pieces, length) };
        self.consumed += footprint(length);
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
            for (place, part) in parts::<S>(at, wanted) {
                // SAFETY: the place is in the peer's ring; the piece is the caller's promise and
                // has at least `done + part` bytes.
                unsafe { self.peer.copy_out(place, piece.pointer.add(done), part) };
                done += part as usize;
            }
            at += u64::from(wanted);
            left -= u64::from(wanted);
        }
    }

    /// There is one more receive for the peer's messages, of so many bytes. It stays until a message
    /// takes it, or the link is closed.
    pub(crate) fn note_receive(&mut self, length: u32) {
        self.posted += 1;
        self.shortest = self.shortest.min(length);
        let own = self.own();
        own.shortest.store(self.shortest, Ordering::Relaxed);
        own.posted.store(self.posted, Ordering::Release);
    }

    /// Whether the message that was put last is certain to be delivered, which the peer does not have to
    /// say then: there is a receive for it (P-99). It is the peer's before it is looked whether the peer's
    /// link is open, and [`Self::close`] has the order the other way round: who finds it open is found.
    pub(crate) fn is_certain(&mut self, length: u32) -> bool {
        let peer = self.peer();
        // In this order: each length is there before its receive is counted.
        let posted = peer.posted.load(Ordering::Acquire);
        if self.sent > posted || length > peer.shortest.load(Ordering::Relaxed) {
            return false;
        }
        S::Words::fence(Ordering::SeqCst);
        let is_certain = self.peer_is_open();
        self.certain += u64::from(is_certain);
        is_certain
    }

    /// How many of our messages the peer has delivered since the last call, besides those that were
    /// certain to be.
    pub(crate) fn take_acknowledged(&mut self) -> Result<u64, Malformed> {
        let delivered = self.peer().delivered.load(Ordering::Acquire);
        // P-36: nothing that the peer wrote is believed beyond these bounds.
        if delivered < self.acknowledged || delivered > self.sent {
            return Err(Malformed);
        }
        let new = delivered - self.acknowledged;
        self.acknowledged = delivered;
        let certain = new.min(self.certain);
        self.certain -= certain;
        Ok(new - certain)
    }

    /// Refuses the peer's next message, for ever.
    pub(crate) fn refuse(&self, status: u8) {
        let refusal = &self.own().refusal;
        refusal.store(u32::from(status), Ordering::Release);
    }

    /// Why the peer refused the message after those it acknowledged; 0 if it did not.
    pub(crate) fn peer_refusal(&self) -> u32 {
        self.peer().refusal.load(Ordering::Acquire)
    }

    pub(crate) fn set_parameters(&self, parameters: Parameters) {
        let word = &self.own().parameters;
        word.store(parameters.to_word(), Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn peer_parameters(&self) -> Result<Parameters, Malformed> {
        Parameters::parse(self.peer().parameters.load(Ordering::Acquire))
    }

    /// The peer's messages that are there now are still to be delivered, as far as there are receives:
    /// see [`Self::is_certain`] (P-99).
    pub(crate) fn close(&self, state: LinkState) {
        self.own().state.store(state as u32, Ordering::Release);
        S::Words::fence(Ordering::SeqCst);
    }

    pub(crate) fn peer_is_open(&self) -> bool {
        self.peer().state.load(Ordering::Acquire) == LinkState::Open as u32
    }

    pub(crate) fn peer_state(&self) -> Result<LinkState, Malformed> {
        match self.peer().state.load(Ordering::Acquire) {
            0 => Ok(LinkState::Open),
            1 => Ok(LinkState::Closed),
            2 => Ok(LinkState::AccessViolated),
            3 => Ok(LinkState::AccessRefused),
            4 => Ok(LinkState::RequestViolated),
            _ => Err(Malformed),
        }
    }

    /// Says whether we sleep. To lose no wake-up the sleeper looks at the rings again after this,
    /// and the peer looks at this word after it has published: the fences order both (P-40).
    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        let word = &self.own().sleeping.0;
        let now = word.load(Ordering::Relaxed);
        if (now & 1 == 1) != sleeping {
            word.store(now.wrapping_add(1), Ordering::Relaxed);
        }
        S::Words::fence(Ordering::SeqCst);
    }

    /// Whether the peer sleeps and was not yet woken from this sleep. To be called after
    /// publishing.
    pub(crate) fn must_wake(&mut self) -> bool {
        S::Words::fence(Ordering::SeqCst);
        let sleeping = self.peer().sleeping.0.load(Ordering::Relaxed);
        if sleeping & 1 == 0 || sleeping == self.woken {
            return false;
        }
        self.woken = sleeping;
        true
    }

    /// Whether the peer has acknowledged or refused something that was not handled yet.
    pub(crate) fn has_answer(&self) -> bool {
        self.peer().delivered.load(Ordering::Acquire) != self.acknowledged
            || self.peer_refusal() != 0
    }

    /// Whether the peer has put a message that was not taken yet.
    pub(crate) fn has_message(&self) -> bool {
        self.peer().produced.0.load(Ordering::Acquire) != self.consumed
    }
}

/// Bytes that a message with so much payload takes in a ring: envelopes stay 8-aligned.
fn footprint(payload: u64) -> u64 {
    ENVELOPE_BYTES + payload.next_multiple_of(8)
}

/// The one or two places in the ring that `length` bytes at counter `at` take.
fn parts<S: Segment>(at: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    let place = at & (S::RING_BYTES - 1);
    let first = u64::from(length).min(S::RING_BYTES - place) as u32;
    [(place, first), (0, length - first)]
        .into_iter()
        .filter(|&(_, part)| part > 0)
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "ring_orders.rs"]
mod orders;
