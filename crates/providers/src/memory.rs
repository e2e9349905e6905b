//! Memory that two processes share: sealed memfd segments and their mappings.
//!
//! Shared bytes change under our feet, so no Rust reference to them is ever made except to
//! atomics: everything else is copied through raw pointers.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ffi::c_void;
use core::ptr::NonNull;
use legato_verbs::VerbsError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// `f_type` of a memfd without huge pages (linux/magic.h). A hugetlb file could take a page away
/// from under a mapping and kill its reader with SIGBUS, sealed or not.
const TMPFS_MAGIC: u64 = 0x0102_1994;

pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> VerbsError {
    move |errno| VerbsError::System {
        call,
        errno: errno.raw_os_error(),
    }
}

/// Memory of this process that peers or requests name, given back on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    origin: Origin,
}

/// Where the memory is from, and so how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A segment, by `mmap`.
    Segment,
    /// The global allocator. Private memory is from there and never from `mmap`: inside a program
    /// the pager tells its agent's memory from the program's by where the allocator's is.
    Heap,
}

// SAFETY: the mapping belongs to the process, not to the thread that made it, and the bytes are
// only reached through methods that take raw copies or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; through a shared reference there are only raw pointers to be had.
unsafe impl Sync for Mapping {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    ReadOnly,
    ReadWrite,
}

impl Protection {
    fn flags(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

impl Mapping {
    /// Maps `length` bytes of a segment from `offset` on, which is that of a page.
    pub(crate) fn shared(
        segment: impl AsFd,
        (offset, length): (u64, usize),
        protection: Protection,
    ) -> Result<Self, VerbsError> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mm::mmap(
                core::ptr::null_mut(),
                length,
                protection.flags(),
                MapFlags::SHARED,
                segment,
                offset,
            )
        };
        Self::adopt(base.map_err(system("mmap"))?, length)
    }

    /// Zero bytes of this process alone. The standard allocator writes the zeros (its `calloc` knows no
    /// alignment), so the memory is there.
    pub(crate) fn private(length: usize) -> Result<Self, VerbsError> {
        let refused = VerbsError::System {
            call: "alloc",
            errno: Errno::NOMEM.raw_os_error(),
        };
        let layout = private_layout(length).ok_or(refused)?;
        // SAFETY: the layout has a size, because `private_layout` refuses zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(refused)?;
        Ok(Self {
            base,
            length,
            origin: Origin::Heap,
        })
    }

    fn adopt(base: *mut c_void, length: usize) -> Result<Self, VerbsError> {
        let base = NonNull::new(base.cast()).ok_or(VerbsError::System {
            call: "mmap",
            errno: Errno::NOMEM.raw_os_error(),
        })?;
        let mapping = Self {
            base,
            length,
            origin: Origin::Segment,
        };
        // A child that the program forks must not keep a peer's segment alive, nor share ours. A core
        // dump would have all of a peer's memory in it, and would give memory to every page of the
        // segment that has none yet (the kernel dumps shared memory without a name, core(5)).
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made, and no child of ours wants it.
            unsafe { mm::madvise(base.as_ptr().cast(), length, advice) }
                .map_err(system("madvise"))?;
        }
        Ok(mapping)
    }

    pub(crate) fn length(&self) -> u64 {
        self.length as u64
    }

    /// Where `length` bytes at `offset` are, if they are inside.
    pub(crate) fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.length() {
            return None;
        }
        // SAFETY: offset <= length, so the result is in the mapping or one past its end.
        Some(unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match (self.origin, private_layout(self.length)) {
            // SAFETY: allocated by us with this very layout; nobody keeps a pointer longer.
            (Origin::Heap, Some(layout)) => unsafe { dealloc(self.base.as_ptr(), layout) },
            (Origin::Heap, None) => {}
            (Origin::Segment, _) => {
                // SAFETY: the range was mapped by us, and nobody keeps a pointer into it longer
                // than the mapping. A failure would leave it mapped, which is safe.
                let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.length) };
            }
        }
    }
}

/// Page-aligned, because that is what a NIC would ask for. None for no bytes or too many.
fn private_layout(length: usize) -> Option<Layout> {
    Layout::from_size_align(length, legato_base::PAGE_SIZE)
        .ok()
        .filter(|_| length > 0)
}

/// Copies between memory that other processes may write at the same time.
///
/// # Safety
/// Both ranges must be mapped with the rights needed, must not overlap in this address space, and
/// no Rust reference to either may be live.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as demanded of the caller. A concurrent writer in another process is outside of
    // what the compiler sees: each byte copied is one that was there at some moment.
    unsafe { core::ptr::copy_nonoverlapping(from, to, length) }
}

/// Neither the size nor the seals can change.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Who may write a segment besides its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    OwnerOnly,
    Everyone,
}

/// Makes a segment of zero bytes, mapped for writing, whose size can never change again.
pub(crate) fn create_segment(
    name: &'static str,
    length: usize,
    writers: Writers,
) -> Result<(OwnedFd, Mapping), VerbsError> {
    let segment = sized_segment(name, length as u64)?;
    let mapping = Mapping::shared(&segment, (0, length), Protection::ReadWrite)?;
    let mut seals = SIZE_SEALS;
    match writers {
        Writers::Everyone => back(&segment, 0, length as u64)?,
        // P-35: only mappings that exist already may write (Linux 5.1): ours.
        Writers::OwnerOnly => seals |= SealFlags::FUTURE_WRITE,
    }
    fs::fcntl_add_seals(&segment, seals).map_err(system("fcntl F_ADD_SEALS"))?;
    Ok((segment, mapping))
}

/// Makes a segment without memory, which everybody may change and whose size can never change.
pub(crate) fn create_sparse_segment(
    name: &'static str,
    length: u64,
) -> Result<OwnedFd, VerbsError> {
    let segment = sized_segment(name, length)?;
    fs::fcntl_add_seals(&segment, SIZE_SEALS).map_err(system("fcntl F_ADD_SEALS"))?;
    Ok(segment)
}

fn sized_segment(name: &'static str, length: u64) -> Result<OwnedFd, VerbsError> {
    let segment = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(system("memfd_create"))?;
    fs::ftruncate(&segment, length).map_err(system("ftruncate"))?;
    Ok(segment)
}

/// Gives a part of a segment its memory. A page is charged to whoever touches it first: memory that peers
/// write would count as theirs, against a limit that their control group has. And want of memory is
/// better told now than by a signal at some later touch.
pub(crate) fn back(segment: impl AsFd, offset: u64, length: u64) -> Result<(), VerbsError> {
    fs::fallocate(segment, FallocateFlags::empty(), offset, length).map_err(system("fallocate"))
}

/// Takes a part's memory away again, whoever maps it: it is zeros from then on.
pub(crate) fn unback(segment: impl AsFd, offset: u64, length: u64) -> Result<(), VerbsError> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fs::fallocate(segment, hole, offset, length).map_err(system("fallocate"))
}

/// Tells a segment from all others, as long as a part of it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentIdentity {
    device: u64,
    inode: u64,
    length: u64,
}

impl SegmentIdentity {
    /// Bytes of the segment, which become no fewer.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }
}

/// Looks whether a part of a segment that a peer sent can be mapped: the segment must never shrink below the
/// part's end (P-35), as touching a page past the end of a file raises SIGBUS.
pub(crate) fn inspect_segment(
    segment: &OwnedFd,
    (offset, length): (u64, u64),
) -> Result<SegmentIdentity, SegmentError> {
    let seals = fs::fcntl_get_seals(segment).map_err(|_| SegmentError::Untrusted)?;
    let status = fs::fstat(segment).map_err(|_| SegmentError::Untrusted)?;
    let system = fs::fstatfs(segment).map_err(|_| SegmentError::Untrusted)?;
    let size = u64::try_from(status.st_size).map_err(|_| SegmentError::Untrusted)?;
    let end = offset.checked_add(length);
    if !seals.contains(SealFlags::SHRINK)
        || end.is_none_or(|end| size < end)
        || length == 0
        || !offset.is_multiple_of(legato_base::PAGE_SIZE as u64)
        || system.f_type as u64 != TMPFS_MAGIC
    {
        return Err(SegmentError::Untrusted);
    }
    Ok(SegmentIdentity {
        device: status.st_dev,
        inode: status.st_ino,
        length: size,
    })
}

/// Maps a part of a segment that a peer sent, if it is as [`inspect_segment`] wants it.
pub(crate) fn map_segment(
    segment: &OwnedFd,
    (offset, length): (u64, u64),
    protection: Protection,
) -> Result<Mapping, SegmentError> {
    inspect_segment(segment, (offset, length))?;
    let length = usize::try_from(length).map_err(|_| SegmentError::Untrusted)?;
    Mapping::shared(segment, (offset, length), protection).map_err(|_| SegmentError::Unmappable)
}

/// Why a peer's segment was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentError {
    /// It is not what the protocol promises.
    Untrusted,
    /// The local system refused, for lack of memory or of address space.
    Unmappable,
}

#[cfg(test)]
mod tests {
    use super::*;

    // P-35
    #[test]
    fn a_segment_that_could_shrink_is_not_mapped() {
        let open = fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&open, 4096).unwrap();
        assert_eq!(
            map_segment(&open, (0, 4096), Protection::ReadOnly).unwrap_err(),
            SegmentError::Untrusted
        );
        fs::fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert!(map_segment(&open, (0, 4096), Protection::ReadOnly).is_ok());
        for beyond in [(0, 4097), (4096, 1), (1, 4095), (u64::MAX - 4095, 4096)] {
            let refused = map_segment(&open, beyond, Protection::ReadOnly).unwrap_err();
            assert_eq!(refused, SegmentError::Untrusted, "{beyond:?}");
        }
    }

    // P-35
    #[test]
    fn a_segment_of_its_owner_cannot_be_mapped_for_writing() {
        let (segment, _mapping) = create_segment("test", 4096, Writers::OwnerOnly).unwrap();
        assert!(map_segment(&segment, (0, 4096), Protection::ReadOnly).is_ok());
        assert_eq!(
            map_segment(&segment, (0, 4096), Protection::ReadWrite).unwrap_err(),
            SegmentError::Unmappable
        );
    }

    #[test]
    fn places_are_checked_against_the_mapping() {
        let mapping = Mapping::private(4096).unwrap();
        assert!(mapping.at(4000, 96).is_some());
        assert!(mapping.at(4000, 97).is_none());
        assert!(mapping.at(u64::MAX, 2).is_none());
    }
}
