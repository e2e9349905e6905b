//! WRITE, READ and atomics: the initiator's own work on the target's mapped segment.

use super::connection::{Connection, Step};
use super::region::Regions;
use super::ring::Piece;
use crate::memory;
use core::sync::atomic::{AtomicU64, Ordering};
use legato_verbs::{
    AccessFlags, CompletionStatus, Prepared, ProtectionDomain, RemoteAddress, ScatterGatherEntry,
    SendOperation,
};

/// Where a request's bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes<'a> {
    Entries(&'a [ScatterGatherEntry]),
    /// Copied when it was posted.
    Inline(&'a [u8]),
}

/// What is done to the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Write,
    Read,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

/// The one-sided part of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneSided<'a> {
    pub(super) operation: Operation,
    pub(super) remote: RemoteAddress,
    pub(super) bytes: Bytes<'a>,
    pub(super) length: u32,
}

/// Bytes that an atomic changes.
const ATOMIC_BYTES: u32 = 8;

impl Operation {
    /// The one-sided part of an operation, and its target.
    #[inline]
    pub(super) const fn of(operation: SendOperation) -> Option<(Self, RemoteAddress)> {
        Some(match operation {
            SendOperation::RdmaWrite(remote) | SendOperation::RdmaWriteWithImmediate(remote, _) => {
                (Self::Write, remote)
            }
            SendOperation::RdmaRead(remote) => (Self::Read, remote),
            SendOperation::CompareAndSwap {
                target,
                compare,
                swap,
            } => (Self::CompareAndSwap { compare, swap }, target),
            SendOperation::FetchAndAdd { target, add } => (Self::FetchAndAdd { add }, target),
            SendOperation::Send
            | SendOperation::SendWithImmediate(_)
            | SendOperation::SendWithInvalidate(_)
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => return None,
        })
    }

    const fn access(self) -> AccessFlags {
        match self {
            Self::Write => AccessFlags::REMOTE_WRITE,
            Self::Read => AccessFlags::REMOTE_READ,
            Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. } => AccessFlags::REMOTE_ATOMIC,
        }
    }
}

impl OneSided<'_> {
    /// What is wrong with the request as such, whatever the target's memory is.
    #[inline(always)]
    fn fault(&self, allowed: AccessFlags) -> Option<CompletionStatus> {
        let access = self.operation.access();
        let atomic = access == AccessFlags::REMOTE_ATOMIC;
        if atomic && self.length != ATOMIC_BYTES {
            return Some(CompletionStatus::LocalLength);
        }
        let aligned = !atomic || self.remote.address.is_multiple_of(u64::from(ATOMIC_BYTES));
        if !allowed.contains(access) || !aligned {
            return Some(CompletionStatus::RemoteInvalidRequest);
        }
        None
    }

    /// Does it at `place`.
    ///
    /// # Safety
    /// `place` has `length` bytes in a mapping that cannot shrink, writable unless it is a READ,
    /// and 8-aligned for an atomic.
    #[inline(always)]
    unsafe fn execute(
        &self,
        regions: &Regions,
        domain: ProtectionDomain,
        place: *mut u8,
    ) -> Result<(), CompletionStatus> {
        match self.operation {
            // SAFETY: as the caller promises.
            Operation::Write => unsafe { self.copy(regions, domain, place, true) },
            // SAFETY: as the caller promises.
            Operation::Read => unsafe { self.copy(regions, domain, place, false) },
            Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
                // SAFETY: as the caller promises.
                unsafe { self.change(regions, domain, place) }
            }
        }
    }

    /// # Safety
    /// As for [`Self::execute`].
    #[inline(always)]
    unsafe fn copy(
        &self,
        regions: &Regions,
        domain: ProtectionDomain,
        place: *mut u8,
        write: bool,
    ) -> Result<(), CompletionStatus> {
        let entries = match self.bytes {
            Bytes::Entries(entries) => entries,
            Bytes::Inline(bytes) => {
                // SAFETY: `place` has as many bytes as were copied, and they are in a segment, not
                // in the poster's memory. Only a WRITE has such bytes.
                unsafe { memory::copy(bytes.as_ptr(), place, bytes.len()) };
                return Ok(());
            }
        };
        let mut done = 0;
        for entry in entries {
            let piece = locate(regions, domain, entry, !write)?;
            // SAFETY: `place` has the sum of the entries' lengths, which is the request's; the
            // piece is in a registered region, to which nobody holds a reference.
            unsafe {
                let there = place.add(done);
                let (from, to) = match write {
                    true => (piece.pointer, there),
                    false => (there, piece.pointer),
                };
                memory::copy(from, to, piece.length as usize);
            }
            done += piece.length as usize;
        }
        Ok(())
    }

    /// An atomic operation of the processor, so it is one for all processes that have mapped the
    /// segment.
    ///
    /// # Safety
    /// As for [`Self::execute`].
    #[inline(never)]
    unsafe fn change(
        &self,
        regions: &Regions,
        domain: ProtectionDomain,
        place: *mut u8,
    ) -> Result<(), CompletionStatus> {
        let Bytes::Entries(entries) = self.bytes else {
            return Err(CompletionStatus::LocalQueuePairOperation);
        };
        // Before it happens: it cannot be taken back.
        for entry in entries {
            locate(regions, domain, entry, true)?;
        }
        // SAFETY: `place` is 8-aligned and in a writable mapping that outlives this call; other
        // processes reach it with atomics or with copies, of which each byte is one that was there.
        let word = unsafe { AtomicU64::from_ptr(place.cast()) };
        let old = match self.operation {
            Operation::CompareAndSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
            Operation::FetchAndAdd { add } => word.fetch_add(add, Ordering::SeqCst),
            Operation::Write | Operation::Read => {
                return Err(CompletionStatus::LocalQueuePairOperation);
            }
        };
        let old_bytes = (&raw const old).cast::<u8>();
        let mut done = 0;
        for entry in entries {
            let piece = locate(regions, domain, entry, true)?;
            // SAFETY: the entries have the eight bytes of `old` in sum; the piece is in a
            // registered region, to which nobody holds a reference.
            unsafe { memory::copy(old_bytes.add(done), piece.pointer, piece.length as usize) };
            done += piece.length as usize;
        }
        Ok(())
    }
}

#[inline]
fn locate(
    regions: &Regions,
    domain: ProtectionDomain,
    entry: &ScatterGatherEntry,
    write: bool,
) -> Result<Piece, CompletionStatus> {
    let piece = regions.locate(domain, entry, write);
    piece.map_err(|_| CompletionStatus::LocalProtection)
}

impl Connection {
    /// Executes a one-sided request, if the peer's region is mapped; else asks for it. The
    /// permissions are looked at in the order of IB spec 9.7.4: those of the queue pair, then
    /// those of the key.
    ///
    /// This is the data path: no system call and no allocation once the region is mapped. Inlined
    /// so that of a plain READ or WRITE nothing else is left.
    #[inline(always)]
    pub(super) fn one_sided(
        &mut self,
        regions: &Regions,
        domain: ProtectionDomain,
        request: &OneSided<'_>,
    ) -> Step {
        const REFUSED: Step = Step::Fault(CompletionStatus::RemoteAccess);
        if !self.link.peer_is_open() {
            return Step::Wait;
        }
        let Ok(parameters) = self.link.peer_parameters() else {
            return Step::Malformed;
        };
        if let Some(status) = request.fault(parameters.access) {
            return Step::Fault(status);
        }
        if request.length == 0 {
            return Step::Done;
        }
        let key = request.remote.key.0;
        let Some(region) = self.regions.get(&key) else {
            return match self.control.prepare(key) {
                Prepared::Refused => Step::Fault(CompletionStatus::LocalQueuePairOperation),
                Prepared::Yes | Prepared::NotYet => Step::Wait,
            };
        };
        let length = u64::from(request.length);
        let place = region.bytes.at(request.remote.address, length);
        let allowed = region.access.contains(request.operation.access());
        let (Some(place), true) = (place, allowed) else {
            return REFUSED;
        };
        // P-38: before the copy, and once more after it.
        let Some(look) = self.keys.look(region.slot, key) else {
            return REFUSED;
        };
        // SAFETY: `place` has `length` bytes in a mapping that cannot shrink and that is writable
        // where the region's access allows to change it; mappings begin at a page, and the address
        // of an atomic was found to be a multiple of 8.
        if let Err(status) = unsafe { request.execute(regions, domain, place) } {
            return Step::Fault(status);
        }
        match look.again() {
            true => Step::Done,
            false => REFUSED,
        }
    }
}
