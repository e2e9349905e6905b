//! The bytes of a region, with guards around them, and who has touched them.

use legato_base::Random;
use legato_transport::adapter::RegionNumber;
use legato_verbs::VerbsError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;

/// Guard bytes on each side of a region.
const GUARD: usize = 256;
const CANARY: u8 = 0xC5;

/// A region's bytes: a slice of them is all that its owner sees.
pub struct RegionMemory {
    /// With a guard on each side.
    bytes: Vec<u8>,
}

impl RegionMemory {
    /// That many zero bytes.
    pub fn new(length: usize) -> Self {
        let mut bytes = vec![0; length + 2 * GUARD];
        bytes[..GUARD].fill(CANARY);
        bytes[GUARD + length..].fill(CANARY);
        Self { bytes }
    }

    /// Where a guard byte has changed, counted from the region's first byte.
    fn damage(&self) -> Option<i64> {
        let end = self.bytes.len() - GUARD;
        let guards = (0..GUARD).chain(end..self.bytes.len());
        let mut hit = guards.filter(|&place| self.bytes[place] != CANARY);
        hit.next().map(|place| place as i64 - GUARD as i64)
    }

    /// What the NIC reads at an offset that its keys have allowed: the guards do not stop it.
    pub(super) fn device_read(&self, offset: u64, into: &mut [u8]) -> bool {
        let place = device_range(offset, into.len());
        match place.and_then(|place| self.bytes.get(place)) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// The same for writing.
    pub(super) fn device_write(&mut self, offset: u64, from: &[u8]) -> bool {
        let place = device_range(offset, from.len());
        match place.and_then(|place| self.bytes.get_mut(place)) {
            Some(bytes) => {
                bytes.copy_from_slice(from);
                true
            }
            None => false,
        }
    }
}

const NO_MEMORY: VerbsError = VerbsError::System {
    call: "mmap",
    // ENOMEM.
    errno: 12,
};

fn device_range(offset: u64, length: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?.checked_add(GUARD)?;
    Some(start..start.checked_add(length)?)
}

impl Deref for RegionMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[GUARD..self.bytes.len() - GUARD]
    }
}

impl DerefMut for RegionMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - GUARD;
        &mut self.bytes[GUARD..end]
    }
}

impl std::fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// A NIC has written outside a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("on {machine}, the byte at offset {offset} of the region with key {key:#x} was written")]
pub struct CanaryHit {
    pub machine: String,
    /// The region's key.
    pub key: u32,
    /// From the region's first byte on: negative, or behind its end.
    pub offset: i64,
}

/// Names a watched range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(pub(super) u64);

#[derive(Debug)]
struct Watch {
    region: RegionNumber,
    range: Range<u64>,
    touched: bool,
}

/// The regions of a NIC.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: BTreeMap<RegionNumber, (u32, Rc<RefCell<RegionMemory>>)>,
    watches: BTreeMap<WatchId, Watch>,
    /// Guards of regions that are gone and were damaged.
    damaged: Vec<(u32, i64)>,
    /// Bytes that all regions together can have.
    limit: Option<u64>,
}

impl Memory {
    /// # Errors
    /// As of a system that has no memory left.
    pub(super) fn add(
        &mut self,
        number: RegionNumber,
        key: u32,
        length: usize,
    ) -> Result<(), VerbsError> {
        if self
            .limit
            .is_some_and(|limit| self.length() + length as u64 > limit)
        {
            return Err(NO_MEMORY);
        }
        let memory = Rc::new(RefCell::new(RegionMemory::new(length)));
        self.regions.insert(number, (key, memory));
        Ok(())
    }

    /// The system gives so much more to all regions together, or as much as is asked for.
    pub(super) fn set_limit(&mut self, more: Option<u64>) {
        self.limit = more.map(|more| self.length() + more);
    }

    fn length(&self) -> u64 {
        let regions = self.regions.values();
        regions
            .map(|(_, memory)| memory.borrow().len() as u64)
            .sum()
    }

    pub(super) fn remove(&mut self, number: RegionNumber) {
        if let Some((key, memory)) = self.regions.remove(&number)
            && let Some(offset) = memory.borrow().damage()
        {
            self.damaged.push((key, offset));
        }
    }

    pub(super) fn shared(&self, number: RegionNumber) -> Option<Rc<RefCell<RegionMemory>>> {
        self.regions
            .get(&number)
            .map(|(_, memory)| Rc::clone(memory))
    }

    pub(super) fn all(&self) -> Vec<Rc<RefCell<RegionMemory>>> {
        let regions = self.regions.values();
        regions.map(|(_, memory)| Rc::clone(memory)).collect()
    }

    pub(super) fn read(&self, number: RegionNumber, offset: u64, into: &mut [u8]) -> bool {
        let found = self.regions.get(&number);
        found.is_some_and(|(_, memory)| memory.borrow().device_read(offset, into))
    }

    /// The NIC writes.
    pub(super) fn write(&mut self, number: RegionNumber, offset: u64, from: &[u8]) -> bool {
        let Some((_, memory)) = self.regions.get(&number) else {
            return false;
        };
        let end = offset.saturating_add(from.len() as u64);
        for watch in self.watches.values_mut() {
            let overlaps = watch.range.start < end && offset < watch.range.end;
            watch.touched |= watch.region == number && overlaps;
        }
        memory.borrow_mut().device_write(offset, from)
    }

    /// Writes junk.
    pub(super) fn scribble(
        &mut self,
        number: RegionNumber,
        offset: u64,
        length: u32,
        random: &mut Random,
    ) {
        let junk: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        self.write(number, offset, &junk);
    }

    pub(super) fn watch(&mut self, id: WatchId, region: RegionNumber, range: Range<u64>) {
        let touched = false;
        self.watches.insert(
            id,
            Watch {
                region,
                range,
                touched,
            },
        );
    }

    pub(super) fn touched(&self, id: WatchId) -> Option<bool> {
        self.watches.get(&id).map(|watch| watch.touched)
    }

    pub(super) fn unwatch(&mut self, id: WatchId) {
        self.watches.remove(&id);
    }

    /// The first damaged guard: the key of its region, and where.
    pub(super) fn damage(&self) -> Option<(u32, i64)> {
        let alive = self.regions.values().find_map(|(key, memory)| {
            let offset = memory.borrow().damage()?;
            Some((*key, offset))
        });
        alive.or_else(|| self.damaged.first().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionNumber = RegionNumber(0);

    #[test]
    fn a_byte_outside_is_found_and_stays_found() {
        for offset in [u64::from(u32::MAX), 16] {
            let mut memory = Memory::default();
            memory.add(REGION, 7, 16).unwrap();
            assert_eq!(memory.damage(), None);
            let written = memory.write(REGION, offset, &[1]);
            let expected = written.then_some((7, 16));
            assert_eq!(memory.damage(), expected);
            memory.remove(REGION);
            assert_eq!(memory.damage(), expected);
        }
    }

    #[test]
    fn watches_see_what_the_nic_writes() {
        let mut memory = Memory::default();
        memory.add(REGION, 7, 16).unwrap();
        memory.watch(WatchId(1), REGION, 4..8);
        memory.write(REGION, 0, &[1; 4]);
        memory.write(REGION, 8, &[1; 4]);
        assert_eq!(memory.touched(WatchId(1)), Some(false));
        memory.write(REGION, 7, &[1; 4]);
        assert_eq!(memory.touched(WatchId(1)), Some(true));
        memory.unwatch(WatchId(1));
        assert_eq!(memory.touched(WatchId(1)), None);
    }
}
