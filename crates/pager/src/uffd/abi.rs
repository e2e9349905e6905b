//! The kernel's interface, as far as it is used here: `include/uapi/linux/userfaultfd.h` and
//! `include/uapi/linux/fs.h` of Linux 6.18. Written out because no crate has MOVE and POISON.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

pub(super) const UFFD_API: u64 = 0xAA;
const UFFDIO: u8 = 0xAA;

pub(super) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
pub(super) const FEATURE_EVENT_FORK: u64 = 1 << 1;
pub(super) const FEATURE_EVENT_REMAP: u64 = 1 << 2;
pub(super) const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
pub(super) const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
pub(super) const FEATURE_THREAD_ID: u64 = 1 << 8;
pub(super) const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
pub(super) const FEATURE_POISON: u64 = 1 << 14;
pub(super) const FEATURE_WP_ASYNC: u64 = 1 << 15;
pub(super) const FEATURE_MOVE: u64 = 1 << 16;

pub(super) const REGISTER_MODE_MISSING: u64 = 1;
pub(super) const REGISTER_MODE_WP: u64 = 1 << 1;
pub(super) const WRITEPROTECT_MODE_WP: u64 = 1;
pub(super) const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;
/// In the flags of a fault message: the page is there, and write-protected.
pub(super) const PAGEFAULT_FLAG_WP: u64 = 1 << 1;
pub(super) const MOVE_MODE_DONTWAKE: u64 = 1;

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Api {
    pub(super) api: u64,
    pub(super) features: u64,
    pub(super) ioctls: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Register {
    pub(super) range: Range,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

/// COPY and MOVE have one layout.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Transfer {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) mode: u64,
    /// Bytes done, or a negative errno.
    pub(super) done: i64,
}

/// ZEROPAGE, CONTINUE and POISON have one layout.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Fill {
    pub(super) range: Range,
    pub(super) mode: u64,
    /// Bytes done, or a negative errno.
    pub(super) done: i64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct WriteProtect {
    pub(super) range: Range,
    pub(super) mode: u64,
}

/// PAGEMAP_SCAN, Linux 6.7.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct PagemapScan {
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) walk_end: u64,
    pub(super) vec: u64,
    pub(super) vec_len: u64,
    pub(super) max_pages: u64,
    pub(super) category_inverted: u64,
    pub(super) category_mask: u64,
    pub(super) category_anyof_mask: u64,
    pub(super) return_mask: u64,
}

/// PROCMAP_QUERY, Linux 6.11.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ProcmapQuery {
    pub(super) size: u64,
    pub(super) query_flags: u64,
    pub(super) query_addr: u64,
    pub(super) vma_start: u64,
    pub(super) vma_end: u64,
    pub(super) vma_flags: u64,
    pub(super) vma_page_size: u64,
    pub(super) vma_offset: u64,
    pub(super) inode: u64,
    pub(super) dev_major: u32,
    pub(super) dev_minor: u32,
    pub(super) vma_name_size: u32,
    pub(super) build_id_size: u32,
    pub(super) vma_name_addr: u64,
    pub(super) build_id_addr: u64,
}

/// One range that PAGEMAP_SCAN found.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct PageRegion {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) categories: u64,
}

pub(super) const PAGE_IS_WRITTEN: u64 = 1 << 1;
pub(super) const PAGE_IS_PRESENT: u64 = 1 << 3;
pub(super) const PAGE_IS_SWAPPED: u64 = 1 << 4;
pub(super) const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// An entry of /proc/PID/pagemap: the page is in memory.
pub(super) const PAGEMAP_PRESENT: u64 = 1 << 63;
/// It is in swap.
pub(super) const PAGEMAP_SWAPPED: u64 = 1 << 62;
/// It is write-protected by userfaultfd (Linux 5.13).
pub(super) const PAGEMAP_PROTECTED: u64 = 1 << 57;
/// It is mapped here and nowhere else (Linux 4.2).
pub(super) const PAGEMAP_EXCLUSIVE: u64 = 1 << 56;

const IOCTL_API: Opcode = opcode::read_write::<Api>(UFFDIO, 0x3F);
const IOCTL_REGISTER: Opcode = opcode::read_write::<Register>(UFFDIO, 0x00);
const IOCTL_UNREGISTER: Opcode = opcode::read::<Range>(UFFDIO, 0x01);
const IOCTL_WAKE: Opcode = opcode::read::<Range>(UFFDIO, 0x02);
const IOCTL_COPY: Opcode = opcode::read_write::<Transfer>(UFFDIO, 0x03);
const IOCTL_ZEROPAGE: Opcode = opcode::read_write::<Fill>(UFFDIO, 0x04);
const IOCTL_MOVE: Opcode = opcode::read_write::<Transfer>(UFFDIO, 0x05);
const IOCTL_WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(UFFDIO, 0x06);
const IOCTL_CONTINUE: Opcode = opcode::read_write::<Fill>(UFFDIO, 0x07);
const IOCTL_POISON: Opcode = opcode::read_write::<Fill>(UFFDIO, 0x08);
const IOCTL_PROCMAP_QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);

const _: () = assert!(size_of::<Transfer>() == 40 && size_of::<Fill>() == 32);
const _: () = assert!(size_of::<Register>() == 32 && size_of::<PagemapScan>() == 96);
const _: () = assert!(size_of::<ProcmapQuery>() == 104);

macro_rules! updating_ioctl {
    ($name:ident, $opcode:ident, $argument:ty) => {
        /// # Safety
        /// The addresses in the argument must be the caller's to change in this way: the kernel
        /// maps, moves or copies pages there.
        pub(super) unsafe fn $name(
            fd: BorrowedFd<'_>,
            argument: &mut $argument,
        ) -> Result<(), Errno> {
            // SAFETY: the opcode takes exactly this structure, which is valid for reads and
            // writes; the caller answers for the addresses inside.
            unsafe { ioctl(fd, Updater::<$opcode, $argument>::new(argument)) }
        }
    };
}

updating_ioctl!(uffdio_api, IOCTL_API, Api);
updating_ioctl!(uffdio_register, IOCTL_REGISTER, Register);
updating_ioctl!(uffdio_unregister, IOCTL_UNREGISTER, Range);
updating_ioctl!(uffdio_wake, IOCTL_WAKE, Range);
updating_ioctl!(uffdio_copy, IOCTL_COPY, Transfer);
updating_ioctl!(uffdio_zeropage, IOCTL_ZEROPAGE, Fill);
updating_ioctl!(uffdio_move, IOCTL_MOVE, Transfer);
updating_ioctl!(uffdio_writeprotect, IOCTL_WRITEPROTECT, WriteProtect);
updating_ioctl!(uffdio_continue, IOCTL_CONTINUE, Fill);
updating_ioctl!(uffdio_poison, IOCTL_POISON, Fill);
updating_ioctl!(procmap_query, IOCTL_PROCMAP_QUERY, ProcmapQuery);
