//! Regions and windows.

use super::ChannelAdapter;
use super::objects::limit;
use super::surroundings::{RegionNumber, Surroundings};
use crate::nic::{KeyError, Region};
use core::ops::Range;
use legato_verbs::{AccessFlags, LocalKey, MemoryRegion, ProtectionDomain, RemoteKey, VerbsError};

#[derive(Clone, Copy, Debug)]
pub(super) struct RegionRecord {
    pub(super) domain: ProtectionDomain,
    pub(super) number: RegionNumber,
    pub(super) length: u64,
}

const NO_REGION: VerbsError = VerbsError::UnknownHandle("region");
/// Bytes of one region.
const REGION_LENGTH_MAX: u64 = 1 << 36;
/// Regions start at multiples of this, with at least as much unused between them, so that running
/// off a region never reaches another.
const REGION_ALIGNMENT: u64 = 1 << 16;

impl ChannelAdapter {
    pub fn allocate_region(
        &mut self,
        surroundings: &mut impl Surroundings,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let address = self.objects.next_address;
        let (region, number) = self.register_memory(domain, address, length, access)?;
        if let Err(error) = surroundings.allocate_memory(number, region.local_key, length) {
            // Nobody has the key yet.
            let _ = self.objects.keys.deregister(region.local_key);
            self.objects.regions.remove(&region.local_key);
            return Err(error);
        }
        let place = length.next_multiple_of(REGION_ALIGNMENT) + REGION_ALIGNMENT;
        self.objects.next_address += place;
        Ok(region)
    }

    /// Registers memory that is there already: the surroundings know it by the number that is
    /// returned.
    ///
    /// # Errors
    /// As [`legato_verbs::Provider::allocate_region`].
    pub fn register_memory(
        &mut self,
        domain: ProtectionDomain,
        address: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<(MemoryRegion, RegionNumber), VerbsError> {
        self.check_present()?;
        self.check_domain(domain)?;
        limit("length of a region", length, REGION_LENGTH_MAX)?;
        let objects = &mut self.objects;
        let number = RegionNumber(objects.next_number);
        let region = Region {
            domain,
            access,
            windows: access.contains(AccessFlags::WINDOW_BIND),
            address,
            length,
            owner: number.0,
        };
        let key = objects.keys.register(region).map_err(key_error)?;
        objects.next_number += 1;
        let record = RegionRecord {
            domain,
            number,
            length,
        };
        objects.regions.insert(key, record);
        let region = MemoryRegion {
            local_key: key,
            remote_key: RemoteKey(key.0),
            address,
            length,
        };
        Ok((region, number))
    }

    pub fn deregister_region(
        &mut self,
        surroundings: &mut impl Surroundings,
        region: &MemoryRegion,
    ) -> Result<(), VerbsError> {
        let key = region.local_key;
        let record = *self.objects.regions.get(&key).ok_or(NO_REGION)?;
        let used = self.objects.shared.uses(key)
            || self
                .queue_pairs
                .iter()
                .any(|(_, queue_pair)| queue_pair.engine.uses(key) || queue_pair.context.uses(key));
        if used {
            return Err(VerbsError::Busy("region"));
        }
        let ended = self.objects.keys.deregister(key);
        ended.map_err(|_| VerbsError::Busy("region"))?;
        self.objects.regions.remove(&key);
        surroundings.release_memory(record.number);
        Ok(())
    }

    /// Which memory a region is.
    pub fn region_number(&self, key: LocalKey) -> Option<RegionNumber> {
        let record = self.objects.regions.get(&key)?;
        Some(record.number)
    }

    /// A region's memory, and the part of it that a program names.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`], [`VerbsError::LocalProtection`] outside the region.
    pub fn region_part(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: usize,
    ) -> Result<(RegionNumber, Range<usize>), VerbsError> {
        let record = self.objects.regions.get(&region.local_key);
        let record = record.ok_or(NO_REGION)?;
        let limit = region.length.min(record.length);
        let end = offset.checked_add(length as u64);
        let end = end.filter(|&end| end <= limit);
        let end = end.ok_or(VerbsError::LocalProtection)?;
        Ok((record.number, offset as usize..end as usize))
    }

    pub fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        self.check_present()?;
        self.check_domain(domain)?;
        let made = self.objects.keys.allocate_window(domain);
        let key = made.map_err(key_error)?;
        self.objects.windows.insert(key.0 >> 8, domain);
        Ok(key)
    }

    pub fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        let next = self.objects.keys.next_window_key(window);
        next.map_err(key_error)
    }

    pub fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        let ended = self.objects.keys.deallocate_window(window);
        ended.map_err(key_error)?;
        self.objects.windows.remove(&(window.0 >> 8));
        Ok(())
    }
}

fn key_error(error: KeyError) -> VerbsError {
    match error {
        KeyError::Unknown => VerbsError::UnknownHandle("key"),
        KeyError::NeedsLocalWrite => VerbsError::System {
            call: "register a region that only peers may write",
            errno: EINVAL,
        },
        KeyError::TooMany(count) => VerbsError::LimitExceeded {
            what: "regions and windows",
            asked: u64::from(count) + 1,
            limit: u64::from(count),
        },
        KeyError::UsedUp => VerbsError::LimitExceeded {
            what: "keys of a window",
            asked: 257,
            limit: 256,
        },
        _ => VerbsError::LocalProtection,
    }
}

const EINVAL: i32 = 22;
