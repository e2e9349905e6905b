//! The provider that the agent uses.

use alloc::vec::Vec;
use legato_base::secret::Keyring;
use legato_pager::uffd::agent::ProviderGlue;
use legato_providers::{AnyProvider, ForeignMemory, Pollable};
use legato_verbs::{AccessFlags, Address, MemoryRegion, ProtectionDomain, VerbsError};
use rustix::fd::{BorrowedFd, OwnedFd};

/// Shared memory on one machine, RoCE between machines, and what the supervisor has opened.
#[derive(Debug)]
pub(crate) struct Nodes;

impl ProviderGlue for Nodes {
    type Provider = AnyProvider;

    fn open(
        nodes: &[Address],
        keys: Option<&Keyring>,
        proxy: Option<OwnedFd>,
    ) -> Result<AnyProvider, VerbsError> {
        match proxy {
            Some(socket) => AnyProvider::proxied(socket),
            None => AnyProvider::reaching(nodes, keys),
        }
    }

    unsafe fn register_own(
        provider: &mut AnyProvider,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { provider.register_foreign(domain, address, length, access) }
    }

    fn wait_on<'a>(provider: &'a AnyProvider, into: &mut Vec<BorrowedFd<'a>>) {
        provider.descriptors(into);
    }
}
