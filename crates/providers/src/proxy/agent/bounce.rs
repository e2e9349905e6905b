//! Slots of registered memory that carry requests on memory that the NIC does not know.
//!
//! A queue pair that needs them has one slot for each request that its send queue can hold, in a region
//! of its own. Bytes to be sent are copied in when the request is posted; bytes that were fetched are
//! copied out when the request has completed well, before anybody hears of it. A slot is free again
//! when its request has completed: the NIC does not touch the memory of completed requests, and with a
//! failure the queue pair is in the error state, in which no later request uses a slot. When the
//! queue pair is reset or destroyed its whole region goes, and the far half keeps the memory until the
//! NIC has let go of it. So what a NIC writes late reaches no frame and no other request.

use super::super::call::RegionId;
use super::super::message::Part;
use super::regions::{Located, Regions};
use crate::memory::{Mapping, copy};
use alloc::vec::Vec;
use legato_base::PAGE_SIZE;
use legato_verbs::{ProtectionDomain, ScatterGatherEntry, VerbsError};

/// Bytes of a slot: a page, and in front of it what a node keeps of it.
pub(super) const SLOT_BYTES: u32 = PAGE_SIZE as u32 + 512;

/// The slots of one queue pair.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) region: RegionId,
    mapping: Mapping,
    free: Vec<u32>,
}

/// A request on its way in a slot.
#[derive(Debug)]
pub(super) struct Carried {
    slot: u32,
    /// What it is about: bytes are fetched into it, or were sent from it.
    entries: Vec<ScatterGatherEntry>,
    fetches: bool,
}

impl Pool {
    pub(super) fn bytes(requests: u32) -> u64 {
        u64::from(requests.max(1)) * u64::from(SLOT_BYTES)
    }

    pub(super) fn new(region: RegionId, mapping: Mapping, requests: u32) -> Self {
        Self {
            region,
            mapping,
            free: (0..requests.max(1)).rev().collect(),
        }
    }

    fn slot(&self, slot: u32) -> (u64, *mut u8) {
        let offset = u64::from(slot) * u64::from(SLOT_BYTES);
        let place = self.mapping.at(offset, SLOT_BYTES.into());
        (offset, place.expect("invariant: slots are in the pool"))
    }

    /// Puts a request into a slot. `located` are its entries, found in their regions, and together no
    /// longer than a slot.
    pub(super) fn load(
        &mut self,
        entries: &[ScatterGatherEntry],
        located: &[Located],
        fetches: bool,
    ) -> Result<(Part, Carried), VerbsError> {
        let length: u64 = located.iter().map(|it| u64::from(it.part.length)).sum();
        if length > u64::from(SLOT_BYTES) {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a request on memory that is copied",
                asked: length,
                limit: SLOT_BYTES.into(),
            });
        }
        let slot = self.free.pop().ok_or(VerbsError::QueueFull("send"))?;
        let (offset, place) = self.slot(slot);
        let mut done = 0;
        for piece in located.iter().filter(|_| !fetches) {
            let bytes = piece.part.length as usize;
            // SAFETY: the piece is inside its region, whose owner has promised that no reference
            // to it is live; the slot has room for the sum, and nobody else uses it while it is not free.
            unsafe { copy(piece.pointer, place.add(done), bytes) };
            done += bytes;
        }
        let part = Part {
            region: self.region,
            offset,
            length: length as u32,
        };
        let carried = Carried {
            slot,
            entries: entries.to_vec(),
            fetches,
        };
        Ok((part, carried))
    }

    /// Takes a request out of its slot. If it was `done`, what it fetched goes where it belongs.
    pub(super) fn unload(
        &mut self,
        carried: &Carried,
        done: bool,
        domain: ProtectionDomain,
        regions: &Regions,
    ) {
        if done && carried.fetches {
            let (_, mut from) = self.slot(carried.slot);
            for entry in &carried.entries {
                let length = entry.length as usize;
                // Found when it was posted, and no region goes that a posted request names.
                if let Ok(to) = regions.locate(domain, entry, true) {
                    // SAFETY: the entry is inside its region, which may be written and to which
                    // no reference is live; the slot has the sum of all entries.
                    unsafe { copy(from, to.pointer, length) };
                }
                // SAFETY: as above, so this is in the slot or at its end.
                from = unsafe { from.add(length) };
            }
        }
        self.free.push(carried.slot);
    }
}

impl Carried {
    pub(super) fn names(&self, key: legato_verbs::LocalKey) -> bool {
        self.entries.iter().any(|entry| entry.local_key == key)
    }
}
