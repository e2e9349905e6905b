//! The copy that a READ consists of, without the queues around it: what READs are measured
//! against.

use super::queue_pair::Phase;
use super::windows::View;
use super::{ShmProvider, completion};
use crate::memory;
use core::fmt;
use legato_verbs::{QueuePair, QueuePairState, RemoteKey, ScatterGatherEntry, VerbsError};

/// Copies out of a peer's region that is mapped already. For measurements: nothing asks whether
/// the key is still valid.
pub struct PlainCopy<'a> {
    from: &'a View,
    /// In a region of the provider that `from` keeps borrowed.
    to: *mut u8,
    length: u32,
}

impl PlainCopy<'_> {
    /// Copies the bytes at `address`; false outside the region.
    pub fn copy(&self, address: u64) -> bool {
        let Some(place) = self.from.at(address, u64::from(self.length)) else {
            return false;
        };
        // SAFETY: both ranges have `length` bytes in mappings that live as long as the provider's
        // borrow; a peer's region and one of this process are different mappings, and
        // nobody holds a reference to either.
        unsafe { memory::copy(place, self.to, self.length as usize) };
        true
    }
}

impl fmt::Debug for PlainCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainCopy")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl ShmProvider {
    /// Finds both ends of the copies once. The peer's region is mapped after a first READ of it.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] without a connection, [`VerbsError::LocalProtection`] as for a
    /// READ, [`VerbsError::UnknownHandle`] for a region that is not mapped.
    pub fn plain_copy(
        &self,
        queue_pair: QueuePair,
        key: RemoteKey,
        to: &ScatterGatherEntry,
    ) -> Result<PlainCopy<'_>, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        let pair = pair.ok_or_else(|| completion::unknown(queue_pair))?;
        let Phase::Established(connection) = &pair.phase else {
            return Err(VerbsError::InvalidState(QueuePairState::Init));
        };
        let piece = self.hub.regions.locate(pair.init.domain, to, true)?;
        let from = connection.region(key.0);
        Ok(PlainCopy {
            from: from.ok_or(VerbsError::UnknownHandle("mapped region"))?,
            to: piece.pointer,
            length: piece.length,
        })
    }
}
