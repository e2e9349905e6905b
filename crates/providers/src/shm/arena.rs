//! The memory of regions that peers may change: parts of one segment for each protection domain, so that
//! the number of descriptors does not limit that of regions.
//!
//! A peer that is given a part can map all of its segment. Peers that are to be kept out of each
//! other's memory have a protection domain each.
//!
//! No part is used twice: a peer that was stopped in the middle of a copy ends it whenever it goes on,
//! long after the key was revoked, and that is to hit what belongs to nobody.

use crate::memory::{self, Mapping, Protection};
use alloc::sync::Arc;
use legato_verbs::VerbsError;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};

/// Of a segment, of which only the parts in use take memory.
const ARENA_BYTES: u64 = 1 << 40;

/// Where new parts come from.
#[derive(Debug)]
pub(super) struct Arena {
    segment: Arc<OwnedFd>,
    bytes: u64,
    /// From here on nothing was ever used; what was is not again (P-39).
    next: u64,
}

/// Memory of one region.
#[derive(Debug)]
pub(super) struct Part {
    segment: Arc<OwnedFd>,
    offset: u64,
    pub(super) mapping: Mapping,
}

impl Arena {
    fn create(bytes: u64) -> Result<Self, VerbsError> {
        let segment = memory::create_sparse_segment("legato-regions", bytes)?;
        Ok(Self {
            segment: Arc::new(segment),
            bytes,
            next: 0,
        })
    }

    /// Memory of zeros, which is there.
    pub(super) fn take(arena: &mut Option<Self>, length: usize) -> Result<Part, VerbsError> {
        let bytes = length as u64;
        match arena {
            Some(arena) if arena.bytes - arena.next >= bytes => arena.next_part(length),
            full => {
                let mut fresh = Self::create(arena_bytes().max(bytes))?;
                let part = fresh.next_part(length)?;
                // The old segment stays as long as a region is in it.
                *full = Some(fresh);
                Ok(part)
            }
        }
    }

    fn next_part(&mut self, length: usize) -> Result<Part, VerbsError> {
        let segment = Arc::clone(&self.segment);
        let offset = self.next;
        let mapping = Mapping::shared(&*segment, (offset, length), Protection::ReadWrite)?;
        memory::back(&*segment, offset, length as u64)?;
        // Nobody has heard of a part of which one of these has failed: it is the next one again.
        self.next += length as u64;
        Ok(Part {
            segment,
            offset,
            mapping,
        })
    }
}

impl Part {
    pub(super) fn segment(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Gives the memory back to the system, whoever still maps it: a peer reads zeros from now on, and its
    /// key is not valid (P-39).
    pub(super) fn empty(&self) -> Result<(), VerbsError> {
        memory::unback(&*self.segment, self.offset, self.mapping.length())
    }
}

/// As much as files may have, in whole pages.
fn arena_bytes() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    limit.min(ARENA_BYTES) / legato_base::PAGE_SIZE as u64 * legato_base::PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs;

    /// A huge page, so that the figures hold where shared memory has such.
    const UNIT: usize = 2 << 20;

    /// That a segment has.
    fn units(part: &Part) -> i64 {
        // In blocks of 512 bytes.
        fs::fstat(part.segment()).unwrap().st_blocks * 512 / UNIT as i64
    }

    // P-39
    #[test]
    fn memory_is_there_when_it_is_given_and_gone_when_it_is_given_back() {
        let mut arena = None;
        let first = Arena::take(&mut arena, 2 * UNIT).unwrap();
        assert_eq!(units(&first), 2);
        let second = Arena::take(&mut arena, UNIT).unwrap();
        assert_eq!((first.offset(), second.offset()), (0, 2 * UNIT as u64));
        assert_eq!(units(&second), 3, "one segment");
        // As a peer that is frozen.
        let whole = (first.offset(), first.mapping.length());
        let peer = memory::map_segment(&first.segment, whole, Protection::ReadOnly).unwrap();
        first.empty().unwrap();
        assert_eq!(units(&second), 1);
        drop((first, peer));
        let third = Arena::take(&mut arena, UNIT).unwrap();
        assert_eq!(third.offset(), 3 * UNIT as u64, "used once");
    }

    #[test]
    fn a_full_segment_is_followed_by_another() {
        let mut arena = Some(Arena::create(4 * UNIT as u64).unwrap());
        let first = Arena::take(&mut arena, 3 * UNIT).unwrap();
        let second = Arena::take(&mut arena, 2 * UNIT).unwrap();
        assert_eq!(second.offset(), 0);
        assert_eq!(units(&first), 3, "still there");
    }

    #[test]
    fn what_cannot_be_had_takes_nothing() {
        let mut arena = Some(Arena::create(4 * UNIT as u64).unwrap());
        let first = Arena::take(&mut arena, UNIT).unwrap();
        // No address space has room for it.
        assert!(Arena::take(&mut arena, 1 << 62).is_err());
        let second = Arena::take(&mut arena, UNIT).unwrap();
        assert_eq!((units(&first), units(&second)), (2, 2));
    }
}
