//! Registered memory and memory windows.

use super::abi::{Mr, Mw};
use super::objects::Owned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::NonNull;
use legato_verbs::{
    AccessFlags, LocalKey, MemoryRegion, ProtectionDomain, QueuePair, RemoteKey,
    ScatterGatherEntry, VerbsError,
};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Anonymous memory of this process, page by page as it is touched; a device pins it when it is registered.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, and its bytes are reached through raw copies only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zero bytes.
    pub(super) fn map(length: u64) -> Result<Self, VerbsError> {
        let refused = |errno: rustix::io::Errno| VerbsError::System {
            call: "mmap",
            errno: errno.raw_os_error(),
        };
        let length = usize::try_from(length).map_err(|_| refused(rustix::io::Errno::NOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mm::mmap_anonymous(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let base = NonNull::new(base.map_err(refused)?.cast::<u8>());
        let memory = Self {
            base: base.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?,
            length,
        };
        // A child would share the pages copy-on-write, and the first write here would then go to a page
        // that the device does not know. Nor has a core dump anything to do with a peer's pages.
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made, which no child of ours wants.
            unsafe { mm::madvise(base_of(&memory), length, advice) }.map_err(|errno| {
                VerbsError::System {
                    call: "madvise",
                    errno: errno.raw_os_error(),
                }
            })?;
        }
        Ok(memory)
    }

    pub(super) const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

const fn base_of(memory: &Memory) -> *mut c_void {
    memory.base.as_ptr().cast()
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and no device has it: `Region` gives up what one may have. A failure
        // would leave it mapped, which is safe.
        let _ = unsafe { mm::munmap(base_of(self), self.length) };
    }
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: ProtectionDomain,
    pub(super) mr: Owned<Mr>,
    /// None if somebody else manages it.
    pub(super) memory: Option<Memory>,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) remote_key: RemoteKey,
    /// As asked for; the device may have been told more.
    pub(super) access: AccessFlags,
    /// Outstanding requests that name it, each as often as it does.
    pub(super) uses: u64,
}

impl Region {
    /// Where `length` bytes at `offset` are.
    pub(super) fn at(&self, offset: u64, length: u64) -> Result<*mut u8, VerbsError> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.length) {
            return Err(VerbsError::LocalProtection);
        }
        // An address of this process: the device knows the memory under it.
        Ok(core::ptr::with_exposed_provenance_mut(
            (self.address + offset) as usize,
        ))
    }

    fn covers(&self, address: u64, length: u64) -> bool {
        let offset = address.checked_sub(self.address);
        offset.is_some_and(|offset| self.at(offset, length).is_ok())
    }
}

/// The regions of a provider, by local key.
#[derive(Debug, Default)]
pub(super) struct Regions {
    regions: BTreeMap<u32, Region>,
    /// Every key that a peer was given, of regions and windows, so that none is given twice.
    issued: BTreeSet<u32>,
}

const UNKNOWN: VerbsError = VerbsError::UnknownHandle("memory region");

impl Regions {
    /// True if nobody ever had the key: then it is taken (P-62).
    pub(super) fn issue(&mut self, key: u32) -> bool {
        self.issued.insert(key)
    }

    pub(super) fn was_issued(&self, key: u32) -> bool {
        self.issued.contains(&key)
    }

    pub(super) fn insert(&mut self, key: LocalKey, region: Region) {
        self.regions.insert(key.0, region);
    }

    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.regions.values().map(|region| region.length).sum()
    }

    /// The region that a description is of.
    pub(super) fn of(&self, region: &MemoryRegion) -> Result<&Region, VerbsError> {
        let found = self.regions.get(&region.local_key.0).ok_or(UNKNOWN)?;
        if found.remote_key != region.remote_key || found.address != region.address {
            return Err(UNKNOWN);
        }
        Ok(found)
    }

    pub(super) fn get(&self, key: LocalKey) -> Option<&Region> {
        self.regions.get(&key.0)
    }

    /// Takes out a region that no request names.
    pub(super) fn take(&mut self, region: &MemoryRegion) -> Result<Region, VerbsError> {
        if self.of(region)?.uses > 0 {
            return Err(VerbsError::Busy("memory region"));
        }
        self.regions.remove(&region.local_key.0).ok_or(UNKNOWN)
    }

    /// Ends all of them; the memory of one that does not end is not used again.
    pub(super) fn end_all(&mut self) {
        for Region { mr, memory, .. } in core::mem::take(&mut self.regions).into_values() {
            if mr.end().is_err() {
                core::mem::forget(memory);
            }
        }
    }

    pub(super) fn acquire(&mut self, keys: &[LocalKey]) {
        for key in keys {
            if let Some(region) = self.regions.get_mut(&key.0) {
                region.uses += 1;
            }
        }
    }

    pub(super) fn release(&mut self, keys: &[LocalKey]) {
        for key in keys {
            if let Some(region) = self.regions.get_mut(&key.0) {
                region.uses = region.uses.saturating_sub(1);
            }
        }
    }

    /// An entry must lie in its region, which must be of the domain and writable if it is written.
    pub(super) fn check(
        &self,
        entry: &ScatterGatherEntry,
        domain: ProtectionDomain,
        is_written: bool,
    ) -> Result<(), VerbsError> {
        let region = self.get(entry.local_key);
        let allowed = region.is_some_and(|region| {
            region.domain == domain
                && region.covers(entry.address, u64::from(entry.length))
                && (!is_written || region.access.contains(AccessFlags::LOCAL_WRITE))
        });
        if allowed {
            Ok(())
        } else {
            Err(VerbsError::LocalProtection)
        }
    }

    /// Bytes that the library copies when they are posted must be memory: of whichever region.
    pub(super) fn check_inline(&self, entry: &ScatterGatherEntry) -> Result<(), VerbsError> {
        let length = u64::from(entry.length);
        let covers = |region: &Region| region.covers(entry.address, length);
        if entry.length == 0
            || self.get(entry.local_key).is_some_and(covers)
            || self.regions.values().any(covers)
        {
            return Ok(());
        }
        Err(VerbsError::LocalProtection)
    }
}

/// A memory window of type 2.
#[derive(Debug)]
pub(super) struct Window {
    /// None when the queue pair that it was bound by has ended, and with it the window.
    pub(super) mw: Option<Owned<Mw>>,
    pub(super) domain: ProtectionDomain,
    /// Whose requests its peer is allowed to answer.
    pub(super) bound_by: Option<QueuePair>,
    /// Its key of now, and all it had before, oldest first.
    pub(super) keys: Vec<u32>,
}

impl Window {
    fn destroy(&mut self) -> Result<(), VerbsError> {
        if let Some(mw) = &mut self.mw {
            mw.destroy()?;
            self.mw = None;
        }
        Ok(())
    }

    /// The library reads the key of now when a binding is posted.
    fn tell_key(&self, key: u32) {
        if let Some(mw) = &self.mw {
            // SAFETY: alive, and nobody else has a pointer to it now.
            unsafe { (*mw.as_ptr()).rkey = key };
        }
    }
}

/// Windows by the part of their keys that stays, the upper 24 bits (`ibv_inc_rkey`).
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<u32, Window>);

const NO_WINDOW: VerbsError = VerbsError::UnknownHandle("memory window");

impl Windows {
    pub(super) fn insert(&mut self, key: u32, window: Window) {
        self.0.insert(key >> 8, window);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// By its key of now.
    pub(super) fn get(&self, key: RemoteKey) -> Result<&Window, VerbsError> {
        let window = self.0.get(&(key.0 >> 8)).ok_or(NO_WINDOW)?;
        match window.keys.last() {
            Some(&now) if now == key.0 => Ok(window),
            _ => Err(NO_WINDOW),
        }
    }

    /// Ends a window, of the domain that is returned. One that does not end stays.
    pub(super) fn end(&mut self, key: RemoteKey) -> Result<ProtectionDomain, VerbsError> {
        self.get(key)?;
        let window = self.0.get_mut(&(key.0 >> 8)).ok_or(NO_WINDOW)?;
        window.destroy()?;
        let domain = window.domain;
        self.0.remove(&(key.0 >> 8));
        Ok(domain)
    }

    /// The window has its next key, by a queue pair's binding.
    pub(super) fn advance(&mut self, now: RemoteKey, next: RemoteKey, by: QueuePair) {
        if let Some(window) = self.0.get_mut(&(now.0 >> 8)) {
            window.keys.push(next.0);
            window.bound_by = Some(by);
            window.tell_key(next.0);
        }
    }

    /// The key has ended: it is bound no more.
    pub(super) fn unbind(&mut self, key: RemoteKey) {
        if let Some(window) = self.0.get_mut(&(key.0 >> 8))
            && window.keys.last() == Some(&key.0)
        {
            window.bound_by = None;
        }
    }

    /// Ends the windows that a queue pair has bound. Its end would end them; but rxe waits for theirs, for 50
    /// seconds.
    pub(super) fn end_of(&mut self, queue_pair: QueuePair) {
        for window in self.0.values_mut() {
            // One that does not end is tried again by its owner.
            if window.bound_by == Some(queue_pair) && window.destroy().is_ok() {
                window.bound_by = None;
            }
        }
    }

    /// The binding to this key did not come to be.
    pub(super) fn revert(&mut self, next: RemoteKey) {
        if let Some(window) = self.0.get_mut(&(next.0 >> 8))
            && window.keys.len() > 1
            && window.keys.last() == Some(&next.0)
        {
            window.keys.pop();
            if let Some(&before) = window.keys.last() {
                window.tell_key(before);
            }
        }
    }
}
