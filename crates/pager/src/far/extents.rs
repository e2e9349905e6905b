//! Which slots of which extents are free, and who shares a slot after a fork.

use super::slots::{FreeSlots, Shares};
use super::{EXTENT_SLOTS, NodeIndex};
use crate::entry::{FarRecord, SlotRef};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{ExtentId, PageChecksum};
use legato_verbs::{RemoteAddress, RemoteKey};

/// Bits of a [`SlotRef`] that name the slot inside its extent.
const SLOT_BITS: u32 = EXTENT_SLOTS.trailing_zeros();
const _: () = assert!(EXTENT_SLOTS.is_power_of_two());

/// An extent that a node granted.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) node: NodeIndex,
    pub(crate) id: ExtentId,
    pub(crate) key: RemoteKey,
    pub(crate) address: u64,
    pub(crate) slots: u32,
    free: FreeSlots,
    contents: Box<[SlotContent]>,
    shares: Shares,
    /// Operations that are not quiet, on slots that may be free meanwhile.
    in_flight: u32,
}

/// What an operation is on: tells an extent from those that have its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentUse {
    index: usize,
    node: NodeIndex,
    id: ExtentId,
}

/// What a slot must hold. In halves of a word, so that nothing is lost to alignment: there is one for
/// each far page, and it counts as local memory.
#[derive(Clone, Copy, Debug)]
struct SlotContent {
    version: u64,
    checksum: [u64; 2],
}

impl SlotContent {
    /// Version 0 is never written: until the first write is posted it matches no content.
    const NONE: Self = Self {
        version: 0,
        checksum: [0; 2],
    };
}

/// All extents of this client.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// None where an extent was given back or lost with its node.
    extents: Vec<Option<Extent>>,
    free: u64,
    used: u64,
}

impl Extents {
    pub(crate) fn add(&mut self, node: NodeIndex, id: ExtentId, place: RemoteAddress, slots: u32) {
        let slots = slots.min(EXTENT_SLOTS);
        let extent = Extent {
            node,
            id,
            key: place.key,
            address: place.address,
            slots,
            free: FreeSlots::new(slots),
            contents: vec![SlotContent::NONE; slots as usize].into_boxed_slice(),
            shares: Shares::default(),
            in_flight: 0,
        };
        self.free += u64::from(slots);
        match self.extents.iter().position(Option::is_none) {
            Some(vacant) => self.extents[vacant] = Some(extent),
            None => self.extents.push(Some(extent)),
        }
    }

    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// A free slot from the first extent that has one, so that later extents become empty and
    /// can be given back.
    pub(crate) fn allocate(&mut self) -> Option<SlotRef> {
        let (index, extent) = self
            .extents
            .iter_mut()
            .enumerate()
            .find_map(|(index, extent)| {
                Some((index, extent.as_mut().filter(|e| e.free.count() > 0)?))
            })?;
        let slot = extent.free.take_first()?;
        extent.contents[slot as usize] = SlotContent::NONE;
        self.free -= 1;
        self.used += 1;
        SlotRef::new(((index as u32) << SLOT_BITS) | slot)
    }

    /// One more owner of a slot.
    pub(crate) fn share(&mut self, slot: SlotRef) {
        if let Some(extent) = self.extent_mut(slot) {
            extent.shares.add(slot_in_extent(slot), extent.slots);
        }
    }

    pub(crate) fn is_shared(&self, slot: SlotRef) -> bool {
        self.extent(slot)
            .is_some_and(|extent| extent.shares.is_shared(slot_in_extent(slot)))
    }

    /// What a slot must hold; None if it was lost with its node.
    pub(crate) fn record(&self, slot: SlotRef) -> Option<FarRecord> {
        let content = self.content(slot)?;
        let [low, high] = content.checksum;
        Some(FarRecord {
            version: content.version,
            checksum: PageChecksum(u128::from(high) << 64 | u128::from(low)),
        })
    }

    /// What a slot holds from its next write on.
    pub(crate) fn set_record(&mut self, slot: SlotRef, record: FarRecord) {
        if let Some(content) = self.content_mut(slot) {
            let PageChecksum(checksum) = record.checksum;
            content.version = record.version;
            content.checksum = [checksum as u64, (checksum >> 64) as u64];
        }
    }

    /// One owner less; the slot is free when it was the last (P-24). Slots of lost nodes are gone anyway.
    pub(crate) fn release(&mut self, slot: SlotRef) {
        let Some(extent) = self.extent_mut(slot) else {
            return;
        };
        let place = slot_in_extent(slot);
        if extent.shares.take(place) {
            return;
        }
        extent.free.put_back(place as u32);
        self.free += 1;
        self.used -= 1;
    }

    fn extent(&self, slot: SlotRef) -> Option<&Extent> {
        self.extents.get(index_of(slot))?.as_ref()
    }

    fn extent_mut(&mut self, slot: SlotRef) -> Option<&mut Extent> {
        self.extents.get_mut(index_of(slot))?.as_mut()
    }

    fn content(&self, slot: SlotRef) -> Option<&SlotContent> {
        let extent = self.extent(slot)?;
        extent.contents.get(slot_in_extent(slot))
    }

    fn content_mut(&mut self, slot: SlotRef) -> Option<&mut SlotContent> {
        let extent = self.extent_mut(slot)?;
        extent.contents.get_mut(slot_in_extent(slot))
    }

    /// Where a slot is; None if it was lost with its node.
    pub(crate) fn locate(&self, slot: SlotRef) -> Option<(NodeIndex, RemoteAddress)> {
        let extent = self.extent(slot)?;
        let offset = slot_in_extent(slot) as u64 * SLOT_STRIDE as u64;
        Some((
            extent.node,
            RemoteAddress {
                key: extent.key,
                address: extent.address + offset,
            },
        ))
    }

    /// An operation on a slot begins. Its extent stays until [`Self::end_use`]: a node that has taken an
    /// extent back refuses what comes, or comes again, for it (P-11).
    pub(crate) fn begin_use(&mut self, slot: SlotRef) -> Option<ExtentUse> {
        let index = index_of(slot);
        let extent = self.extent_mut(slot)?;
        extent.in_flight += 1;
        let (node, id) = (extent.node, extent.id);
        Some(ExtentUse { index, node, id })
    }

    /// The operation is quiet. Its extent may be lost with its node.
    pub(crate) fn end_use(&mut self, operation: ExtentUse) {
        let extent = self.extents.get_mut(operation.index);
        let of_it = |it: &&mut Extent| it.node == operation.node && it.id == operation.id;
        if let Some(extent) = extent.and_then(Option::as_mut).filter(of_it) {
            extent.in_flight -= 1;
        }
    }

    /// Forgets every extent of a node. References to their slots must be dropped by the caller
    /// before new extents are added.
    pub(crate) fn lose_node(&mut self, node: NodeIndex) {
        for place in &mut self.extents {
            if let Some(extent) = place.take_if(|extent| extent.node == node) {
                let free = u64::from(extent.free.count());
                self.free -= free;
                self.used -= u64::from(extent.slots) - free;
            }
        }
    }

    /// Takes out an extent that is wholly free and on which no operation is in flight, if enough free slots
    /// remain without it.
    pub(crate) fn take_spare(&mut self, keep_free: u64) -> Option<Extent> {
        if self.free < keep_free + u64::from(EXTENT_SLOTS) {
            return None;
        }
        let place = self
            .extents
            .iter_mut()
            .rev()
            .find(|place| place.as_ref().is_some_and(Extent::is_idle))?;
        let extent = place.take()?;
        self.free -= u64::from(extent.slots);
        Some(extent)
    }

    /// Extents on a node, for spreading new ones.
    pub(crate) fn count_on(&self, node: NodeIndex) -> usize {
        self.extents
            .iter()
            .flatten()
            .filter(|extent| extent.node == node)
            .count()
    }
}

impl Extent {
    fn is_idle(&self) -> bool {
        self.free.count() == self.slots && self.in_flight == 0
    }
}

const fn slot_in_extent(slot: SlotRef) -> usize {
    (slot.number() & (EXTENT_SLOTS - 1)) as usize
}

const fn index_of(slot: SlotRef) -> usize {
    (slot.number() >> SLOT_BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(sizes: &[(u32, u32)]) -> Extents {
        let mut extents = Extents::default();
        for (index, &(node, slots)) in sizes.iter().enumerate() {
            let place = RemoteAddress {
                key: RemoteKey(index as u32),
                address: 0,
            };
            extents.add(NodeIndex(node), ExtentId(index as u64), place, slots);
        }
        extents
    }

    // P-24
    #[test]
    fn a_shared_slot_is_free_after_its_last_owner() {
        let mut extents = extents(&[(0, 2)]);
        let slot = extents.allocate().unwrap();
        extents.share(slot);
        extents.release(slot);
        assert_eq!((extents.free(), extents.used()), (1, 1));
        assert!(!extents.is_shared(slot));
        extents.release(slot);
        assert_eq!((extents.free(), extents.used()), (2, 0));
    }

    #[test]
    fn slots_do_not_overlap_and_lost_nodes_have_none() {
        let mut extents = extents(&[(0, 3), (1, 3)]);
        let slots: Vec<_> = (0..6).map(|_| extents.allocate().unwrap()).collect();
        let mut places: Vec<_> = slots
            .iter()
            .map(|&slot| {
                extents
                    .locate(slot)
                    .map(|(node, at)| (node.0, at.address))
                    .unwrap()
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 6);
        assert!(extents.allocate().is_none());
        extents.lose_node(NodeIndex(0));
        assert_eq!((extents.free(), extents.used()), (0, 3));
    }

    #[test]
    fn an_empty_extent_is_given_back_when_enough_remains() {
        let mut extents = extents(&[(0, EXTENT_SLOTS), (0, EXTENT_SLOTS)]);
        assert!(extents.take_spare(2 * u64::from(EXTENT_SLOTS)).is_none());
        let spare = extents.take_spare(u64::from(EXTENT_SLOTS)).unwrap();
        assert_eq!(spare.id, ExtentId(1));
        assert_eq!(extents.free(), u64::from(EXTENT_SLOTS));
    }

    #[test]
    fn an_extent_with_a_page_in_it_is_not_given_back() {
        let mut extents = extents(&[(0, EXTENT_SLOTS), (0, EXTENT_SLOTS)]);
        let slots: Vec<_> = (0..2 * EXTENT_SLOTS)
            .map(|_| extents.allocate().unwrap())
            .collect();
        let [first, .., last] = slots[..] else {
            unreachable!()
        };
        for &slot in &slots[1..slots.len() - 1] {
            extents.release(slot);
        }
        assert!(extents.take_spare(0).is_none());
        extents.release(last);
        assert_eq!(extents.take_spare(0).unwrap().id, ExtentId(1));
        assert!(extents.take_spare(0).is_none());
        assert!(extents.locate(first).is_some());
    }

    // P-11
    #[test]
    fn an_extent_with_an_operation_in_flight_is_not_given_back() {
        let mut extents = extents(&[(0, EXTENT_SLOTS)]);
        let slot = extents.allocate().unwrap();
        let [read, write] = [slot; 2].map(|slot| extents.begin_use(slot).unwrap());
        extents.release(slot);
        extents.end_use(write);
        assert!(extents.take_spare(0).is_none());
        extents.end_use(read);
        assert_eq!(extents.take_spare(0).unwrap().id, ExtentId(0));
    }

    #[test]
    fn what_ends_on_a_lost_node_is_not_counted_on_the_extent_that_has_its_place() {
        let mut extents = extents(&[(0, EXTENT_SLOTS)]);
        let lost = extents.allocate().unwrap();
        let lost = extents.begin_use(lost).unwrap();
        extents.lose_node(NodeIndex(0));
        let place = RemoteAddress {
            key: RemoteKey(9),
            address: 0,
        };
        extents.add(NodeIndex(1), ExtentId(0), place, EXTENT_SLOTS);
        let slot = extents.allocate().unwrap();
        let current = extents.begin_use(slot).unwrap();
        extents.release(slot);
        extents.end_use(lost);
        assert!(extents.take_spare(0).is_none());
        extents.end_use(current);
        assert!(extents.take_spare(0).is_some());
    }
}
