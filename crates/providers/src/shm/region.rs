//! Memory regions of this provider.

use super::arena::{Arena, Part};
use super::keys::{KeyTable, REGIONS_MAX};
use super::ring::Piece;
use crate::memory::{self, Mapping, Writers};
use alloc::collections::BTreeMap;
use legato_verbs::{
    AccessFlags, LocalKey, MemoryRegion, ProtectionDomain, RemoteKey, ScatterGatherEntry,
    VerbsError,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest region, in bytes: as much as half an address space of 47 bits can hold.
pub const REGION_LENGTH_MAX: u64 = 1 << 46;
#[derive(Debug)]
enum Memory {
    /// Only this process can reach it.
    Private(Mapping),
    /// Peers can be given the segment, to read.
    Read { segment: OwnedFd, mapping: Mapping },
    /// Peers can be given the segment, to read and to change.
    Changed(Part),
    /// Managed by somebody else in this process, from this virtual address on.
    Foreign(u64),
}

#[derive(Debug)]
struct Region {
    domain: ProtectionDomain,
    length: u64,
    access: AccessFlags,
    slot: u32,
    memory: Memory,
    /// Posted requests that name the region.
    users: u32,
}

impl Region {
    /// Owned regions are zero-based (as with `IBV_ACCESS_ZERO_BASED`), because nothing on a wire
    /// is a pointer.
    fn base(&self) -> u64 {
        match self.memory {
            Memory::Foreign(address) => address,
            Memory::Private(_) | Memory::Read { .. } | Memory::Changed(_) => 0,
        }
    }

    fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        match &self.memory {
            Memory::Private(mapping)
            | Memory::Read { mapping, .. }
            | Memory::Changed(Part { mapping, .. }) => mapping.at(offset, length),
            Memory::Foreign(address) => {
                let address = usize::try_from(address + offset).ok()?;
                Some(core::ptr::with_exposed_provenance_mut(address))
            }
        }
    }
}

/// What a peer is given for a remote key.
#[derive(Debug)]
pub(super) struct Grant<'a> {
    pub(super) segment: BorrowedFd<'a>,
    pub(super) slot: u32,
    /// Where the region begins in the segment.
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
}

/// All regions of a provider, by key. A local key and the remote key of a region are one number.
#[derive(Debug)]
pub(super) struct Regions {
    regions: BTreeMap<u32, Region>,
    keys: KeyTable,
    /// Counts up and never repeats; 0 is no key.
    key_last: u32,
}

fn any(access: AccessFlags, of: AccessFlags) -> bool {
    access.bits() & of.bits() != 0
}

/// Can peers do anything with it?
fn is_remote(access: AccessFlags) -> bool {
    let changed = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    any(access, changed | AccessFlags::REMOTE_READ)
}

/// Can peers change the bytes, so that they must map it for writing?
pub(super) fn is_changed_remotely(access: AccessFlags) -> bool {
    any(
        access,
        AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
    )
}

fn limit(what: &'static str, asked: u64, limit: u64) -> VerbsError {
    VerbsError::LimitExceeded { what, asked, limit }
}

impl Regions {
    pub(super) fn new() -> Result<Self, VerbsError> {
        Ok(Self {
            regions: BTreeMap::new(),
            keys: KeyTable::create()?,
            key_last: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.regions.values().map(|region| region.length).sum()
    }

    pub(super) fn key_segment(&self) -> BorrowedFd<'_> {
        self.keys.segment()
    }

    /// The arena is the domain's.
    pub(super) fn allocate(
        &mut self,
        domain: ProtectionDomain,
        arena: &mut Option<Arena>,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        check_length(length)?;
        let bytes = usize::try_from(length.next_multiple_of(legato_base::PAGE_SIZE as u64))
            .map_err(|_| limit("region length", length, REGION_LENGTH_MAX))?;
        let memory = if is_changed_remotely(access) {
            Memory::Changed(Arena::take(arena, bytes)?)
        } else if is_remote(access) {
            let writers = Writers::OwnerOnly;
            let (segment, mapping) = memory::create_segment("legato-region", bytes, writers)?;
            Memory::Read { segment, mapping }
        } else {
            Memory::Private(Mapping::private(bytes)?)
        };
        self.add(domain, length, access, memory)
    }

    pub(super) fn add_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        check_length(length)?;
        if is_remote(access) {
            return Err(VerbsError::PermissionDenied);
        }
        let address = address.expose_provenance() as u64;
        if address == 0 || address.checked_add(length).is_none() {
            return Err(limit("region length", length, u64::MAX - address));
        }
        self.add(domain, length, access, Memory::Foreign(address))
    }

    fn add(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
        memory: Memory,
    ) -> Result<MemoryRegion, VerbsError> {
        let regions_max = u64::from(REGIONS_MAX);
        // P-62: when all have been issued there is no other.
        let key = self.key_last.checked_add(1);
        let key = key.ok_or(limit("keys issued", 1 << 32, u64::from(u32::MAX)))?;
        let slot = self.keys.claim();
        let slot = slot.ok_or(limit("memory regions", regions_max + 1, regions_max))?;
        self.key_last = key;
        if is_remote(access) {
            self.keys.publish(slot, key);
        }
        let region = Region {
            domain,
            length,
            access,
            slot,
            memory,
            users: 0,
        };
        let address = region.base();
        self.regions.insert(key, region);
        Ok(MemoryRegion {
            local_key: LocalKey(key),
            remote_key: RemoteKey(key),
            address,
            length,
        })
    }

    /// Revokes the key and gives the memory back to the system (P-39). Returns the region's domain.
    ///
    /// # Errors
    /// If the system does not take it, the region stays, without a key for peers.
    pub(super) fn remove(&mut self, key: LocalKey) -> Result<ProtectionDomain, VerbsError> {
        let region = self.regions.get(&key.0);
        let region = region.ok_or(VerbsError::UnknownHandle("memory region"))?;
        if region.users > 0 {
            return Err(VerbsError::Busy("memory region"));
        }
        let (domain, slot) = (region.domain, region.slot);
        // Before the memory goes: whoever copies now looks again afterwards.
        self.keys.revoke(slot);
        if let Memory::Changed(part) = &region.memory {
            part.empty()?;
        }
        self.keys.give_back(slot);
        self.regions.remove(&key.0);
        Ok(domain)
    }

    /// What `entry` names, if a queue pair of `domain` may use it so.
    #[inline(always)]
    pub(super) fn locate(
        &self,
        domain: ProtectionDomain,
        entry: &ScatterGatherEntry,
        write: bool,
    ) -> Result<Piece, VerbsError> {
        let region = self.regions.get(&entry.local_key.0);
        let region = region.filter(|region| region.domain == domain);
        let region = region.ok_or(VerbsError::LocalProtection)?;
        if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(VerbsError::LocalProtection);
        }
        let pointer = entry
            .address
            .checked_sub(region.base())
            .and_then(|offset| region.at(offset, u64::from(entry.length)))
            .ok_or(VerbsError::LocalProtection)?;
        Ok(Piece {
            pointer,
            length: entry.length,
        })
    }

    /// The sum of the entries' lengths, if a queue pair of `domain` may use them so: to write or
    /// not, how many, and how long at most.
    #[inline(always)]
    pub(super) fn check(
        &self,
        domain: ProtectionDomain,
        entries: &[ScatterGatherEntry],
        (write, entries_max, length_max): (bool, u32, u32),
    ) -> Result<u32, VerbsError> {
        let (count, entries_max) = (entries.len() as u64, u64::from(entries_max));
        if count > entries_max {
            return Err(limit("entries of a request", count, entries_max));
        }
        let length: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if length > u64::from(length_max) {
            return Err(limit("message length", length, u64::from(length_max)));
        }
        for entry in entries {
            self.locate(domain, entry, write)?;
        }
        Ok(length as u32)
    }

    /// The place of `length` bytes for the owner's own copies.
    pub(super) fn locate_owned(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: u64,
    ) -> Result<*mut u8, VerbsError> {
        let found = self.regions.get(&region.local_key.0);
        found
            .and_then(|found| found.at(offset, length))
            .ok_or(VerbsError::LocalProtection)
    }

    /// Counts a posted request in (true) or out (false) of the regions that it names.
    pub(super) fn count_user(&mut self, entries: &[ScatterGatherEntry], posted: bool) {
        for entry in entries {
            if let Some(region) = self.regions.get_mut(&entry.local_key.0) {
                region.users = match posted {
                    true => region.users + 1,
                    false => region.users - 1,
                };
            }
        }
    }

    /// The segment behind a remote key, if a queue pair of `domain` that allows its peer `access`
    /// may give it away.
    pub(super) fn grant(
        &self,
        domain: ProtectionDomain,
        access: AccessFlags,
        key: u32,
    ) -> Option<Grant<'_>> {
        let region = self.regions.get(&key)?;
        let (segment, offset) = match &region.memory {
            Memory::Read { segment, .. } => (segment.as_fd(), 0),
            Memory::Changed(part) => (part.segment(), part.offset()),
            Memory::Private(_) | Memory::Foreign(_) => return None,
        };
        let both = AccessFlags::from_bits(access.bits() & region.access.bits());
        (region.domain == domain && is_remote(both)).then_some(Grant {
            segment,
            slot: region.slot,
            offset,
            length: region.length,
            access: region.access,
        })
    }
}

fn check_length(length: u64) -> Result<(), VerbsError> {
    if length == 0 || length > REGION_LENGTH_MAX {
        return Err(limit("region length", length, REGION_LENGTH_MAX));
    }
    Ok(())
}
