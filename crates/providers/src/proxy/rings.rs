//! Both rings between the halves: the two-sided path of the shm provider, without its queue pair.

use super::codec::Malformed;
use crate::shm::envelope::{Envelope, Kind, Parameters};
use crate::shm::ring::{Link, Piece};
use crate::shm::segment::{OwnSegment, PeerSegment};
use alloc::vec::Vec;
use legato_verbs::VerbsError;
use rustix::fd::OwnedFd;

/// Longest message: a request with all its entries.
pub(super) const MESSAGE_BYTES_MAX: u32 = 512;

/// One half's own ring, for which it waits to hear of the other's.
#[derive(Debug)]
pub(super) struct OwnRing(OwnSegment);

impl OwnRing {
    /// The ring, and what the other half maps.
    pub(super) fn create() -> Result<(Self, OwnedFd), VerbsError> {
        let (segment, own) = OwnSegment::create(Parameters::default())?;
        Ok((Self(own), segment))
    }

    /// # Errors
    /// If the descriptor is not what the protocol promises, or cannot be mapped.
    pub(super) fn join(self, peer: &OwnedFd) -> Result<Rings, Malformed> {
        let peer = PeerSegment::map(peer).map_err(|_| Malformed)?;
        Ok(Rings {
            link: Link::new(self.0, peer),
            put: 0,
            taken: 0,
        })
    }
}

/// Messages in both directions, counted: a packet on the socket says how many messages were there
/// before it, so that both ways together keep an order.
#[derive(Debug)]
pub(super) struct Rings {
    link: Link,
    put: u64,
    taken: u64,
}

impl Rings {
    /// Messages put into the own ring so far.
    pub(super) const fn put_count(&self) -> u64 {
        self.put
    }

    /// Messages taken from the other ring so far.
    pub(super) const fn taken_count(&self) -> u64 {
        self.taken
    }

    pub(super) fn has_space(&self, bytes: usize) -> Result<bool, Malformed> {
        Ok(self.link.has_space(bytes as u64)?)
    }

    /// Puts a message if there is space.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<bool, Malformed> {
        if !self.has_space(bytes.len())? {
            return Ok(false);
        }
        let length = bytes.len() as u32;
        let envelope = Envelope {
            kind: Kind::Send,
            length,
            solicited: false,
        };
        let piece = Piece {
            pointer: bytes.as_ptr().cast_mut(),
            length,
        };
        // SAFETY: the piece is the slice, which is only read.
        unsafe { self.link.put(envelope, core::iter::once(piece)) };
        self.put += 1;
        Ok(true)
    }

    /// Takes the next message in place of what `into` has; false if there is none.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Result<bool, Malformed> {
        let Some(envelope) = self.link.next()? else {
            return Ok(false);
        };
        if envelope.kind != Kind::Send || envelope.length > MESSAGE_BYTES_MAX {
            return Err(Malformed);
        }
        into.clear();
        into.resize(envelope.length as usize, 0);
        let piece = Piece {
            pointer: into.as_mut_ptr(),
            length: envelope.length,
        };
        // SAFETY: the piece is the vector's bytes, as long as the message, and nobody else has
        // a reference to them.
        unsafe { self.link.take(envelope, core::iter::once(piece)) };
        self.taken += 1;
        Ok(true)
    }

    pub(super) fn has_message(&self) -> bool {
        self.link.has_message()
    }

    pub(super) fn set_sleeping(&self, sleeping: bool) {
        self.link.set_sleeping(sleeping);
    }

    /// Whether the other half sleeps and was not yet woken. To be called after messages were put.
    pub(super) fn must_wake(&mut self) -> bool {
        self.link.must_wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined() -> (Rings, Rings) {
        let (near, near_segment) = OwnRing::create().unwrap();
        let (far, far_segment) = OwnRing::create().unwrap();
        let near = near.join(&far_segment).unwrap();
        (near, far.join(&near_segment).unwrap())
    }

    #[test]
    fn messages_arrive_in_order_and_are_counted() {
        let (mut near, mut far) = joined();
        let mut bytes = Vec::new();
        let mut sent = 0u32;
        // Until the ring is full, and then again with room made.
        for _ in 0..3 {
            while near.put(&sent.to_le_bytes()).unwrap() {
                sent += 1;
            }
            while far.take(&mut bytes).unwrap() {
                let number = far.taken_count() as u32 - 1;
                assert_eq!(bytes, number.to_le_bytes());
            }
            assert_eq!(
                (near.put_count(), far.taken_count()),
                (sent.into(), sent.into())
            );
        }
        assert!(sent > 3 * 1000);
    }

    #[test]
    fn longer_messages_than_any_are_malformed() {
        let (mut near, mut far) = joined();
        assert!(near.put(&[1; MESSAGE_BYTES_MAX as usize + 1]).unwrap());
        assert_eq!(far.take(&mut Vec::new()), Err(Malformed));
    }
}
