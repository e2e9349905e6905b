//! The table that tells peers which remote keys are valid.

use super::words::{Processor, Word as _, Words};
use crate::memory::{self, Mapping, Protection, SegmentError, Writers};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use legato_verbs::VerbsError;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Regions that one provider can have at a time: the entries of the key table.
pub const REGIONS_MAX: u32 = 16_384;
const KEY_TABLE_BYTES: u64 = REGIONS_MAX as u64 * 4;

/// Which remote keys are valid: entry `slot` holds the key or 0. Every peer maps it read-only and
/// looks before and after each one-sided operation, so a revoked key fails without this side's
/// help and without a message. A slot has many keys in its life, and no key twice (P-38).
#[derive(Debug)]
pub(super) struct KeyTable {
    segment: OwnedFd,
    mapping: Mapping,
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
}

fn key_slot(mapping: &Mapping, slot: u32) -> Option<&AtomicU32> {
    let place = mapping.at(u64::from(slot) * 4, 4)?;
    // SAFETY: the place is inside the mapping, 4-aligned, and lives as long as the reference; it
    // is only ever reached as an atomic, and readers of a read-only mapping only load.
    Some(unsafe { &*place.cast::<AtomicU32>().cast_const() })
}

impl KeyTable {
    pub(super) fn create() -> Result<Self, VerbsError> {
        let length = KEY_TABLE_BYTES as usize;
        let (segment, mapping) = memory::create_segment("legato-keys", length, Writers::OwnerOnly)?;
        Ok(Self {
            segment,
            mapping,
            free: Vec::new(),
            fresh: 0,
        })
    }

    pub(super) fn segment(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    pub(super) fn claim(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.fresh;
            (slot < REGIONS_MAX).then(|| self.fresh += 1)?;
            Some(slot)
        })
    }

    pub(super) fn publish(&self, slot: u32, key: u32) {
        if let Some(place) = key_slot(&self.mapping, slot) {
            publish::<Processor>(place, key);
        }
    }

    /// Revokes the slot's key, if it has one.
    pub(super) fn revoke(&self, slot: u32) {
        if let Some(place) = key_slot(&self.mapping, slot) {
            revoke::<Processor>(place);
        }
    }

    /// Takes a slot back whose key was revoked.
    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }
}

/// A peer's [`KeyTable`].
#[derive(Debug)]
pub(super) struct PeerKeys(Mapping);

impl PeerKeys {
    pub(super) fn map(segment: &OwnedFd) -> Result<Self, SegmentError> {
        memory::map_segment(segment, (0, KEY_TABLE_BYTES), Protection::ReadOnly).map(Self)
    }

    /// The look before an operation. None for a slot out of range, too.
    #[inline(always)]
    pub(super) fn look(&self, slot: u32, key: u32) -> Option<Look<'_>> {
        Look::first(key_slot(&self.0, slot)?, key)
    }
}

/// Makes `key` valid. What the owner wrote before is seen by who finds it valid.
fn publish<W: Words>(word: &W::Word32, key: u32) {
    word.store(key, Ordering::Release);
}

/// Makes the word's key invalid. Who sees anything that is written after this, sees that too.
fn revoke<W: Words>(word: &W::Word32) {
    word.store(0, Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
}

/// A key that was valid when it was looked at.
#[derive(Debug)]
#[must_use = "what was done under a key counts only after the second look"]
pub(super) struct Look<'a, W: Words = Processor> {
    word: &'a W::Word32,
    key: u32,
}

impl<'a, W: Words> Look<'a, W> {
    #[inline(always)]
    fn first(word: &'a W::Word32, key: u32) -> Option<Self> {
        (word.load(Ordering::Acquire) == key).then_some(Self { word, key })
    }

    /// The look after the operation: whether the key is valid still. If so, what was read is from
    /// before the revocation.
    #[inline(always)]
    pub(super) fn again(self) -> bool {
        // As in the reader of a sequence lock: the second look comes after the bytes.
        W::fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == self.key
    }
}

#[cfg(test)]
#[path = "key_orders.rs"]
mod orders;
