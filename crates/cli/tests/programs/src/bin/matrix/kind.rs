//! Kinds of mappings, and how each is made.

use crate::calls::{Outcome, call, map};
use crate::contents;
use core::ops::Range;
use legato_base::PAGE_SIZE;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ALL: i32 = READ_WRITE | libc::PROT_EXEC;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const SHARED: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
/// Linux 6.11.
const MAP_DROPPABLE: i32 = 8;
/// Pages of most regions.
const PAGES: usize = 16;
/// Pages that a region below 2 GiB has to itself.
pub(crate) const LOW_PAGES: usize = 64;
/// Two huge pages.
const HUGE_PAGES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Private,
    NoReserve,
    Stack,
    GrowsDown,
    Locked,
    Populated,
    Low,
    Droppable,
    Executable,
    WriteOnly,
    ReadOnly,
    NoAccess,
    Sparse,
    Named,
    Huge,
    HugeTables,
    Joined,
    Split,
    Grown,
    Moved,
    BeforeHole,
    Sealed,
    ZeroDevice,
    SharedZeroDevice,
    Shared,
    SharedNoReserve,
    MemfdShared,
    MemfdPrivate,
    MemfdShort,
    FileShared,
    FilePrivate,
    SystemV,
    Secret,
}

impl Kind {
    pub(crate) const ALL: &[Self] = &[
        Self::Private,
        Self::NoReserve,
        Self::Stack,
        Self::GrowsDown,
        Self::Locked,
        Self::Populated,
        Self::Low,
        Self::Droppable,
        Self::Executable,
        Self::WriteOnly,
        Self::ReadOnly,
        Self::NoAccess,
        Self::Sparse,
        Self::Named,
        Self::Huge,
        Self::HugeTables,
        Self::Joined,
        Self::Split,
        Self::Grown,
        Self::Moved,
        Self::BeforeHole,
        Self::Sealed,
        Self::ZeroDevice,
        Self::SharedZeroDevice,
        Self::Shared,
        Self::SharedNoReserve,
        Self::MemfdShared,
        Self::MemfdPrivate,
        Self::MemfdShort,
        Self::FileShared,
        Self::FilePrivate,
        Self::SystemV,
        Self::Secret,
    ];

    pub(crate) fn pages(self) -> usize {
        match self {
            Self::Huge | Self::HugeTables => HUGE_PAGES,
            _ => PAGES,
        }
    }

    /// Makes one at the address, which is reserved; or elsewhere, if it chooses its own. What it holds
    /// is version 1, or where it is a private mapping of a file, version 1 and in every third page version 2.
    pub(crate) fn make(self, case: u64, first: usize, at: usize) -> Result<usize, i32> {
        let length = self.pages() * PAGE_SIZE;
        let fixed = libc::MAP_FIXED;
        let maker = Maker { case, first };
        let anonymous = |protection, flags| map(at, length, protection, flags | fixed, -1);
        let filled = |base: Outcome| maker.fill(base?, self.pages());
        match self {
            Self::Private => filled(anonymous(READ_WRITE, PRIVATE)),
            Self::NoReserve => filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_NORESERVE)),
            Self::Stack => filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_STACK)),
            Self::GrowsDown => {
                // Grows into a hole only.
                call(libc::SYS_munmap, [at - 64 * PAGE_SIZE, 64 * PAGE_SIZE])?;
                filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_GROWSDOWN))
            }
            Self::Locked => filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_LOCKED)),
            Self::Populated => filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_POPULATE)),
            Self::Low => {
                let flags = PRIVATE | libc::MAP_32BIT | libc::MAP_NORESERVE;
                let low = map(0, LOW_PAGES * PAGE_SIZE, libc::PROT_NONE, flags, -1)?;
                filled(map(low, length, READ_WRITE, PRIVATE | fixed, -1))
            }
            Self::Droppable => {
                let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
                filled(anonymous(READ_WRITE, flags))
            }
            Self::Executable => filled(anonymous(ALL, PRIVATE)),
            Self::WriteOnly => filled(anonymous(libc::PROT_WRITE, PRIVATE)),
            Self::ReadOnly => {
                let base = filled(anonymous(READ_WRITE, PRIVATE))?;
                protect(base, length, libc::PROT_READ)
            }
            Self::NoAccess => {
                let base = filled(anonymous(READ_WRITE, PRIVATE))?;
                protect(base, length, libc::PROT_NONE)
            }
            Self::Sparse => {
                let base = anonymous(READ_WRITE, PRIVATE)?;
                maker.fill_each(base, (0..PAGES).step_by(2), 1)
            }
            Self::Named => {
                let base = filled(anonymous(READ_WRITE, PRIVATE))?;
                let name = c"matrix".as_ptr().expose_provenance();
                let set = libc::PR_SET_VMA as usize;
                let field = libc::PR_SET_VMA_ANON_NAME as usize;
                // Not every kernel has names.
                let _ = call(libc::SYS_prctl, [set, field, base, length, name]);
                Ok(base)
            }
            Self::Huge => {
                let base = anonymous(READ_WRITE, PRIVATE)?;
                let advice = libc::MADV_HUGEPAGE as usize;
                call(libc::SYS_madvise, [base, length, advice])?;
                filled(Ok(base))
            }
            Self::HugeTables => {
                let size = 21 << libc::MAP_HUGE_SHIFT;
                filled(anonymous(READ_WRITE, PRIVATE | libc::MAP_HUGETLB | size))
            }
            Self::Joined => {
                let half = length / 2;
                map(at, half, READ_WRITE, PRIVATE | fixed, -1)?;
                let base = maker.fill(at, PAGES / 2)?;
                map(at + half, half, READ_WRITE, PRIVATE | fixed, -1)?;
                filled(Ok(base))
            }
            Self::Split => {
                let base = filled(anonymous(READ_WRITE, PRIVATE))?;
                let middle = base + PAGES / 2 * PAGE_SIZE;
                protect(middle, PAGE_SIZE, libc::PROT_READ)?;
                Ok(base)
            }
            Self::Grown => {
                call(libc::SYS_munmap, [at, length])?;
                map(at, length / 2, READ_WRITE, PRIVATE | fixed, -1)?;
                maker.fill(at, PAGES / 2)?;
                filled(call(libc::SYS_mremap, [at, length / 2, length, 0]))
            }
            Self::Moved => {
                let from = filled(map(0, length, READ_WRITE, PRIVATE, -1))?;
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
                call(libc::SYS_mremap, [from, length, length, flags, at])
            }
            Self::BeforeHole => {
                call(libc::SYS_munmap, [at + length, 64 * PAGE_SIZE])?;
                filled(anonymous(READ_WRITE, PRIVATE))
            }
            Self::Sealed => {
                let base = filled(anonymous(READ_WRITE, PRIVATE))?;
                call(libc::SYS_mseal, [base, length, 0])?;
                Ok(base)
            }
            Self::ZeroDevice => filled(maker.of_device(at, length, libc::MAP_PRIVATE)),
            Self::SharedZeroDevice => filled(maker.of_device(at, length, libc::MAP_SHARED)),
            Self::Shared => filled(anonymous(READ_WRITE, SHARED)),
            Self::SharedNoReserve => filled(anonymous(READ_WRITE, SHARED | libc::MAP_NORESERVE)),
            Self::MemfdShared => maker.of_file(memfd()?, at, PAGES, libc::MAP_SHARED),
            Self::MemfdPrivate => maker.of_file(memfd()?, at, PAGES, libc::MAP_PRIVATE),
            Self::MemfdShort => maker.of_file(memfd()?, at, PAGES - 4, libc::MAP_PRIVATE),
            Self::FileShared => maker.of_file(on_disk()?, at, PAGES, libc::MAP_SHARED),
            Self::FilePrivate => maker.of_file(on_disk()?, at, PAGES, libc::MAP_PRIVATE),
            Self::SystemV => {
                let create = (libc::IPC_CREAT | 0o600) as usize;
                let id = call(
                    libc::SYS_shmget,
                    [libc::IPC_PRIVATE as usize, length, create],
                )?;
                let base = call(libc::SYS_shmat, [id, at, libc::SHM_REMAP as usize]);
                call(libc::SYS_shmctl, [id, libc::IPC_RMID as usize, 0])?;
                filled(base)
            }
            Self::Secret => {
                let file = owned(call(libc::SYS_memfd_secret, [0])?);
                call(libc::SYS_ftruncate, [file.as_raw_fd() as usize, length])?;
                let flags = libc::MAP_SHARED | fixed;
                filled(map(at, length, READ_WRITE, flags, file.as_raw_fd()))
            }
        }
    }
}

fn protect(base: usize, length: usize, protection: i32) -> Outcome {
    call(libc::SYS_mprotect, [base, length, protection as usize])?;
    Ok(base)
}

fn owned(descriptor: usize) -> OwnedFd {
    // SAFETY: the descriptor is new, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

pub(crate) fn memfd() -> Result<OwnedFd, i32> {
    let name = c"matrix".as_ptr().expose_provenance();
    call(libc::SYS_memfd_create, [name, libc::MFD_CLOEXEC as usize]).map(owned)
}

/// In the working directory, without a name.
fn on_disk() -> Result<OwnedFd, i32> {
    let directory = c".".as_ptr().expose_provenance();
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    let at = libc::AT_FDCWD as usize;
    call(libc::SYS_openat, [at, directory, flags as usize, 0o600]).map(owned)
}

struct Maker {
    case: u64,
    /// The number of the region's first page.
    first: usize,
}

impl Maker {
    fn fill(&self, base: usize, pages: usize) -> Outcome {
        self.fill_each(base, 0..pages, 1)
    }

    fn fill_each(&self, base: usize, pages: impl Iterator<Item = usize>, version: u32) -> Outcome {
        for page in pages {
            let id = contents::page_id(self.case, self.first + page);
            contents::fill(base + page * PAGE_SIZE, id, version).map_err(|_| libc::EFAULT)?;
        }
        Ok(base)
    }

    fn of_device(&self, at: usize, length: usize, sharing: i32) -> Outcome {
        let path = c"/dev/zero".as_ptr().expose_provenance();
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
        let file = owned(call(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path, flags],
        )?);
        let flags = sharing | libc::MAP_FIXED;
        map(at, length, READ_WRITE, flags, file.as_raw_fd())
    }

    /// The file may be shorter than what is mapped.
    fn of_file(&self, file: OwnedFd, at: usize, pages: usize, sharing: i32) -> Outcome {
        write_file(&file, self.case, self.first..self.first + pages, 1)?;
        let flags = sharing | libc::MAP_FIXED;
        let base = map(at, PAGES * PAGE_SIZE, READ_WRITE, flags, file.as_raw_fd())?;
        if sharing == libc::MAP_PRIVATE {
            self.fill_each(base, (0..pages).step_by(3), 2)?;
        }
        Ok(base)
    }
}

/// The pages with these numbers, one after the other from the beginning of the file on.
pub(crate) fn write_file(
    file: &OwnedFd,
    case: u64,
    numbers: Range<usize>,
    version: u32,
) -> Result<(), i32> {
    let mut bytes = vec![0; numbers.len() * PAGE_SIZE];
    for (number, page) in numbers.zip(bytes.chunks_exact_mut(PAGE_SIZE)) {
        contents::filled(contents::page_id(case, number), version, page);
    }
    let address = bytes.as_ptr().expose_provenance();
    let file = file.as_raw_fd() as usize;
    match call(libc::SYS_pwrite64, [file, address, bytes.len(), 0])? {
        written if written == bytes.len() => Ok(()),
        _ => Err(libc::EIO),
    }
}
