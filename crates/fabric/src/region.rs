//! Registered memory whose pieces the compiler keeps track of.
//!
//! A [`Region`] is cut into [`RegionSlice`]s, which share no byte and exist once. A slice moves
//! into an operation and comes back from it, so nobody has it meanwhile: nobody can read, write or
//! post its bytes. It borrows its region, so the region can be neither deregistered nor dropped
//! before every slice is gone, and every fabric that may still hold one. What must not compile is
//! in `tests/contract`. What the compiler does not see is counted: a slice that was left in an
//! operation, by a fabric that was dropped or forgotten, is not given out again.

use crate::event::Buffer;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};
use legato_verbs::{
    AccessFlags, MemoryRegion, ProtectionDomain, Provider, RemoteAddress, ScatterGatherEntry,
    VerbsError,
};

/// A registered region of memory that its provider allocated.
///
/// Declare its variable before the fabric's, so that it is dropped after it whatever happens:
/// `tests/contract/use/deregister_under_operations.rs` shows how.
///
/// It ends with [`Self::deregister`]. One that is dropped stays registered, which is safe and a
/// leak: it counts in [`legato_verbs::ResourceCounts::memory_regions`], and with debug assertions
/// it panics.
#[derive(Debug)]
#[must_use = "a region stays registered until it is deregistered"]
pub struct Region {
    memory: MemoryRegion,
    /// Bytes that no slice has. Atomic because slices may be dropped in any thread.
    free: AtomicU64,
}

impl Region {
    /// Allocates and registers `length` zero bytes.
    ///
    /// # Errors
    /// As [`Provider::allocate_region`].
    pub fn allocate(
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<Self, VerbsError> {
        let memory = provider.allocate_region(domain, length, access)?;
        Ok(Self {
            memory,
            free: AtomicU64::new(memory.length),
        })
    }

    pub const fn length(&self) -> u64 {
        self.memory.length
    }

    /// All of it, to be cut into pieces. Not a second time while a piece exists (P-73).
    ///
    /// # Errors
    /// [`VerbsError::Busy`], for ever, if a slice was left in an operation: nobody will say when its
    /// bytes are quiet.
    pub fn slice(&mut self) -> Result<RegionSlice<'_>, VerbsError> {
        let length = self.memory.length;
        if *self.free.get_mut() != length {
            return Err(VerbsError::Busy("region"));
        }
        *self.free.get_mut() = 0;
        Ok(RegionSlice {
            region: self,
            offset: 0,
            length,
        })
    }

    /// Revokes the region's keys and frees its memory.
    ///
    /// # Errors
    /// As [`Provider::deregister_region`], with the region, which is registered still:
    /// [`VerbsError::Busy`] if a slice was left in an operation that is under way.
    pub fn deregister(self, provider: &mut dyn Provider) -> Result<(), (VerbsError, Self)> {
        match provider.deregister_region(&self.memory) {
            Ok(()) => {
                let _ = ManuallyDrop::new(self);
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        debug_assert!(
            false,
            "a region of {} bytes was dropped and is registered still",
            self.memory.length
        );
    }
}

/// Bytes of a [`Region`] that nobody else has: no other slice, and no operation (P-72).
#[derive(Debug)]
#[must_use = "the bytes of a slice that is dropped are not used until all others are gone too"]
pub struct RegionSlice<'region> {
    region: &'region Region,
    offset: u64,
    length: u64,
}

impl RegionSlice<'_> {
    /// Bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Where a peer finds the slice, if its region's access lets it. A peer is not bound by the
    /// compiler: it may reach the bytes at any time until the region is deregistered.
    pub const fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            key: self.region.memory.remote_key,
            address: self.region.memory.address + self.offset,
        }
    }

    /// The first `length` bytes, and the others.
    ///
    /// # Errors
    /// The slice, if it is shorter.
    pub fn split_at(self, length: u64) -> Result<(Self, Self), Self> {
        let Some(rest) = self.length.checked_sub(length) else {
            return Err(self);
        };
        // Its bytes go to the pieces.
        let whole = ManuallyDrop::new(self);
        let piece = |offset, length| Self {
            region: whole.region,
            offset,
            length,
        };
        let end = whole.offset + length;
        Ok((piece(whole.offset, length), piece(end, rest)))
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside of the slice.
    pub fn read(
        &self,
        provider: &dyn Provider,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let offset = self.place(offset, into.len())?;
        provider.read_region(&self.region.memory, offset, into)
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside of the slice.
    pub fn write(
        &mut self,
        provider: &mut dyn Provider,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let offset = self.place(offset, from.len())?;
        provider.write_region(&self.region.memory, offset, from)
    }

    fn place(&self, offset: u64, length: usize) -> Result<u64, VerbsError> {
        let end = offset.checked_add(length as u64);
        match end {
            Some(end) if end <= self.length => Ok(self.offset + offset),
            _ => Err(VerbsError::LocalProtection),
        }
    }
}

impl Buffer for RegionSlice<'_> {
    /// One entry, or as many as it takes: an entry has less than 4 GiB.
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        let mut entries = Vec::with_capacity(1);
        let mut done = 0;
        while done < self.length {
            let length = u32::try_from(self.length - done).unwrap_or(u32::MAX);
            entries.push(self.region.memory.entry(self.offset + done, length));
            done += u64::from(length);
        }
        entries
    }
}

impl Drop for RegionSlice<'_> {
    /// That it has a destructor also keeps a region from being let go before a fabric that holds
    /// its slices, though nobody names the fabric any more.
    fn drop(&mut self) {
        self.region.free.fetch_add(self.length, Ordering::Relaxed);
    }
}
