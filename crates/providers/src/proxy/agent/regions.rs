//! The near half's regions: memory that both halves map, and memory of its own.

use super::super::call::RegionId;
use super::super::message::Part;
use crate::memory::{Mapping, copy};
use alloc::collections::BTreeMap;
use legato_verbs::{
    AccessFlags, LocalKey, MemoryRegion, ProtectionDomain, RemoteKey, ScatterGatherEntry,
    VerbsError,
};

#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: ProtectionDomain,
    access: AccessFlags,
    address: u64,
    length: u64,
    memory: Memory,
}

/// Where the bytes are.
#[derive(Debug)]
enum Memory {
    /// Registered with the NIC by the far half.
    Shared(Mapping),
    /// The caller's ([`crate::ForeignMemory`]), of which the NIC knows nothing.
    Own(*mut u8),
}

/// An entry of a request, found and checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) part: Part,
    pub(super) pointer: *mut u8,
    /// The NIC does not know this memory.
    pub(super) is_own: bool,
}

#[derive(Debug, Default)]
pub(super) struct Regions {
    regions: BTreeMap<LocalKey, Region>,
    last: u32,
}

const NO_REGION: VerbsError = VerbsError::UnknownHandle("region");

impl Regions {
    /// A name that no region has had.
    pub(super) fn next_id(&mut self) -> Result<RegionId, VerbsError> {
        let next = self.last.checked_add(1);
        self.last = next.ok_or(VerbsError::LimitExceeded {
            what: "regions in the life of a proxy",
            asked: 1 << 32,
            limit: u64::from(u32::MAX),
        })?;
        Ok(RegionId(self.last))
    }

    pub(super) fn add_shared(
        &mut self,
        id: RegionId,
        domain: ProtectionDomain,
        access: AccessFlags,
        (remote_key, address): (RemoteKey, u64),
        mapping: Mapping,
    ) -> MemoryRegion {
        let length = mapping.length();
        let region = Region {
            domain,
            access,
            address,
            length,
            memory: Memory::Shared(mapping),
        };
        self.regions.insert(LocalKey(id.0), region);
        MemoryRegion {
            local_key: LocalKey(id.0),
            remote_key,
            address,
            length,
        }
    }

    /// The range does not wrap, which the caller has checked.
    pub(super) fn add_own(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let id = self.next_id()?;
        let region = Region {
            domain,
            access,
            address: address as u64,
            length,
            memory: Memory::Own(address),
        };
        self.regions.insert(LocalKey(id.0), region);
        Ok(MemoryRegion {
            local_key: LocalKey(id.0),
            // No peer can use it: the access rights say so.
            remote_key: RemoteKey(id.0),
            address: address as u64,
            length,
        })
    }

    /// Whether the NIC knows the region.
    pub(super) fn is_shared(&self, key: LocalKey) -> Result<bool, VerbsError> {
        let region = self.regions.get(&key).ok_or(NO_REGION)?;
        Ok(matches!(region.memory, Memory::Shared(_)))
    }

    pub(super) fn remove(&mut self, key: LocalKey) {
        self.regions.remove(&key);
    }

    /// Of all regions.
    pub(super) fn bytes(&self) -> u64 {
        self.regions.values().map(|region| region.length).sum()
    }

    /// Regions that the NIC does not know, of one domain or of all.
    pub(super) fn own_count(&self, domain: Option<ProtectionDomain>) -> usize {
        let is_one = |region: &&Region| {
            matches!(region.memory, Memory::Own(_))
                && domain.is_none_or(|domain| domain == region.domain)
        };
        self.regions.values().filter(is_one).count()
    }

    /// Where an entry is, if a request in that domain may use it.
    pub(super) fn locate(
        &self,
        domain: ProtectionDomain,
        entry: &ScatterGatherEntry,
        writes: bool,
    ) -> Result<Located, VerbsError> {
        let region = self.regions.get(&entry.local_key);
        let region = region.filter(|region| {
            let may = !writes || region.access.contains(AccessFlags::LOCAL_WRITE);
            region.domain == domain && may
        });
        let region = region.ok_or(VerbsError::LocalProtection)?;
        let offset = entry.address.checked_sub(region.address);
        let offset = offset.ok_or(VerbsError::LocalProtection)?;
        let pointer = region.at(offset, u64::from(entry.length));
        Ok(Located {
            part: Part {
                region: RegionId(entry.local_key.0),
                offset,
                length: entry.length,
            },
            pointer: pointer.ok_or(VerbsError::LocalProtection)?,
            is_own: matches!(region.memory, Memory::Own(_)),
        })
    }

    pub(super) fn read(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let from = self.part(region, offset, into.len())?;
        // SAFETY: the place is inside memory that stays as long as the region, nobody holds a
        // reference to it, and `into` is a buffer of the caller's.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let to = self.part(region, offset, from.len())?;
        // SAFETY: as above. Shared memory is mapped for writing, and whoever registered memory of
        // its own lets its owner write it.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn part(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: usize,
    ) -> Result<*mut u8, VerbsError> {
        let region = self.regions.get(&region.local_key).ok_or(NO_REGION)?;
        let place = region.at(offset, length as u64);
        place.ok_or(VerbsError::LocalProtection)
    }
}

impl Region {
    fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        match &self.memory {
            Memory::Shared(mapping) => mapping.at(offset, length),
            Memory::Own(base) => {
                let end = offset.checked_add(length)?;
                (end <= self.length).then(|| base.wrapping_add(offset as usize))
            }
        }
    }
}
