//! The provider that the agent uses on one machine.

use alloc::vec::Vec;
use legato_pager::uffd::agent::ProviderGlue;
use legato_providers::{ForeignMemory, Pollable, ShmProvider};
use legato_verbs::{AccessFlags, MemoryRegion, ProtectionDomain, VerbsError};
use rustix::fd::BorrowedFd;

/// Shared memory.
#[derive(Debug)]
pub(crate) struct Shm;

impl ProviderGlue for Shm {
    type Provider = ShmProvider;

    fn open() -> Result<ShmProvider, VerbsError> {
        ShmProvider::new()
    }

    unsafe fn register_own(
        provider: &mut ShmProvider,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { provider.register_foreign(domain, address, length, access) }
    }

    fn wait_on<'a>(provider: &'a ShmProvider, into: &mut Vec<BorrowedFd<'a>>) {
        provider.descriptors(into);
    }
}
