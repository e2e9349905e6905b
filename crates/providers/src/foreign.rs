//! Registering memory that the provider did not allocate.

use legato_verbs::{AccessFlags, MemoryRegion, ProtectionDomain, VerbsError};

/// A provider that can use memory of its own process which somebody else manages, such as the
/// pager's staging frames. Whether a peer may be let in too depends on the provider: with some it
/// would have to reach private memory of another process.
pub trait ForeignMemory {
    /// Registers `length` bytes at `address`. The region's address is the virtual address.
    /// Deregistering forgets the memory and does not free it.
    ///
    /// # Safety
    /// From the call until the region is deregistered the range must stay mapped readable, and
    /// writable too if `access` contains [`AccessFlags::LOCAL_WRITE`]; and whenever a posted
    /// request names the region, no Rust reference to those bytes may be live; with remote access,
    /// never.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`] for an empty or wrapping range or for too many regions,
    /// [`VerbsError::PermissionDenied`] if `access` asks for remote access that cannot be given,
    /// [`VerbsError::UnknownHandle`] for a domain that does not exist.
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError>;
}
