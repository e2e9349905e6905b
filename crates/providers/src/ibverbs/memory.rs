//! Registering memory, and windows on it.

use super::IbverbsProvider;
use super::abi::Mw;
use super::create::{limit, unknown};
use super::device::positive;
use super::objects::Owned;
use super::region::{Memory, Region, Window};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use legato_verbs::{AccessFlags, LocalKey, MemoryRegion, ProtectionDomain, RemoteKey, VerbsError};
use rustix::io::Errno;

/// How often a device may give out a key that a peer had before, until that is an error.
const REPEATED_KEYS_MAX: usize = 64;

const REPEATED: VerbsError = VerbsError::LimitExceeded {
    what: "keys that no peer had before",
    asked: 1,
    limit: 0,
};

impl IbverbsProvider {
    pub(super) fn allocate(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        self.check_length(length)?;
        self.domain_ptr(domain)?;
        let memory = Memory::map(length)?;
        let address = memory.as_ptr().expose_provenance() as u64;
        self.register(domain, address, length, access, Some(memory))
    }

    pub(super) fn check_length(&self, length: u64) -> Result<(), VerbsError> {
        let most = self.device.attributes.max_mr_size.min(isize::MAX as u64);
        limit("bytes of a region", length, most)?;
        if length == 0 {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a region",
                asked: 0,
                limit: most,
            });
        }
        Ok(())
    }

    /// Registers memory that stays where it is until the region has ended.
    pub(super) fn register(
        &mut self,
        domain: ProtectionDomain,
        address: u64,
        length: u64,
        access: AccessFlags,
        memory: Option<Memory>,
    ) -> Result<MemoryRegion, VerbsError> {
        let pd = self.domain_ptr(domain)?;
        let is_for_peers = is_remote(access);
        // Registrations whose keys a peer has had, ended when there is another.
        let mut repeated = Vec::new();
        let (mr, keys) = loop {
            // SAFETY: the domain is alive; the memory is mapped and stays so, by the caller; what is made
            // is ours.
            let mr = unsafe {
                let made = (self.base.functions.ibv_reg_mr)(
                    pd,
                    core::ptr::with_exposed_provenance_mut::<c_void>(address as usize),
                    length as usize,
                    for_device(access),
                );
                Owned::adopt(&self.base, made, "ibv_reg_mr").map_err(explained)?
            };
            // SAFETY: alive.
            let keys = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
            if !is_for_peers || self.regions.issue(keys.1) {
                break (mr, keys);
            }
            repeated.push(mr);
            if repeated.len() > REPEATED_KEYS_MAX {
                return Err(REPEATED);
            }
        };
        drop(repeated);
        let region = MemoryRegion {
            local_key: LocalKey(keys.0),
            remote_key: RemoteKey(keys.1),
            address,
            length,
        };
        self.regions.insert(
            region.local_key,
            Region {
                domain,
                mr,
                memory,
                address,
                length,
                remote_key: region.remote_key,
                access,
                uses: 0,
            },
        );
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.users += 1;
        }
        Ok(region)
    }

    /// A registration that does not end leaves the region as it was: a device may still reach it.
    pub(super) fn deregister(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let mut found = self.regions.take(region)?;
        let domain = found.domain;
        if let Err(error) = found.mr.destroy() {
            self.regions.insert(region.local_key, found);
            return Err(match error {
                // Windows are bound to it.
                VerbsError::System { errno, .. } if is_in_use(errno) => {
                    VerbsError::Busy("memory region")
                }
                other => other,
            });
        }
        self.leave_domain(domain);
        Ok(())
    }

    pub(super) fn add_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        let pd = self.domain_ptr(domain)?;
        // SAFETY: the device is open.
        let make = unsafe { self.base.context.as_ref().ops.alloc_mw };
        let Some(make) = make.filter(|_| self.device.has_windows()) else {
            return Err(VerbsError::Unsupported("memory windows"));
        };
        let most = positive(self.device.attributes.max_mw);
        limit(
            "memory windows",
            self.windows.len() as u64 + 1,
            u64::from(most),
        )?;
        let mut repeated = Vec::new();
        let (mw, key) = loop {
            // SAFETY: the domain is alive; what is made is ours.
            let mw = unsafe { Owned::adopt(&self.base, make(pd, Mw::TYPE_2), "ibv_alloc_mw")? };
            // SAFETY: alive.
            let key = unsafe { (*mw.as_ptr()).rkey };
            if self.regions.issue(key) {
                break (mw, key);
            }
            repeated.push(mw);
            if repeated.len() > REPEATED_KEYS_MAX {
                return Err(REPEATED);
            }
        };
        drop(repeated);
        let keys = Vec::from([key]);
        let window = Window {
            mw: Some(mw),
            domain,
            bound_by: None,
            keys,
        };
        self.windows.insert(key, window);
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.users += 1;
        }
        Ok(RemoteKey(key))
    }

    /// Keys of a window differ in their last 8 bits (`ibv_inc_rkey`).
    pub(super) fn next_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        let has_ended = self.windows.get(window)?.mw.is_none();
        let key = |step: u32| window.0 & !0xFF | window.0.wrapping_add(step) & 0xFF;
        let unused = (1..256).map(key).find(|&key| !self.regions.was_issued(key));
        unused
            .filter(|_| !has_ended)
            .map(RemoteKey)
            .ok_or(VerbsError::LimitExceeded {
                what: "keys of a window",
                asked: 257,
                limit: 256,
            })
    }

    pub(super) fn remove_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        let domain = self.windows.end(window)?;
        self.leave_domain(domain);
        Ok(())
    }

    /// The domain of a registration, for memory that somebody else manages.
    pub(super) fn may_register(&self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.domains
            .get(domain)
            .map(|_| ())
            .ok_or_else(|| unknown(domain))
    }
}

pub(super) const fn is_remote(access: AccessFlags) -> bool {
    access.contains(AccessFlags::REMOTE_READ)
        || access.contains(AccessFlags::REMOTE_WRITE)
        || access.contains(AccessFlags::REMOTE_ATOMIC)
}

/// A device lets a peer write only where this side may (`ibv_reg_mr(3)`); what this side's requests may do
/// is checked by what was asked for.
fn for_device(access: AccessFlags) -> c_int {
    let is_written =
        access.contains(AccessFlags::REMOTE_WRITE) || access.contains(AccessFlags::REMOTE_ATOMIC);
    let all = if is_written {
        access | AccessFlags::LOCAL_WRITE
    } else {
        access
    };
    c_int::from(all.bits())
}

fn is_in_use(errno: i32) -> bool {
    // The specification's answer, and that of rxe.
    [Errno::BUSY, Errno::INVAL]
        .map(Errno::raw_os_error)
        .contains(&errno)
}

/// Says so where the limit of locked memory is the likely cause.
fn explained(error: VerbsError) -> VerbsError {
    match error {
        VerbsError::System { errno, .. }
            if errno == Errno::NOMEM.raw_os_error()
                && super::devices::locked_memory_kib().is_some() =>
        {
            VerbsError::System {
                call: "ibv_reg_mr: RLIMIT_MEMLOCK is too small (ulimit -l), or memory is short",
                errno,
            }
        }
        other => other,
    }
}
