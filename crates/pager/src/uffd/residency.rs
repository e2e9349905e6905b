//! What is resident: pages of a range (PAGEMAP_SCAN), and the whole process (`/proc/PID/statm`).

use super::abi;
use crate::PageRange;
use alloc::vec::Vec;
use legato_base::PageNumber;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// Ranges that one scan returns.
const REGIONS: usize = 256;

/// Descriptors on the process's own `/proc` files.
#[derive(Debug)]
pub(super) struct Residency {
    pagemap: OwnedFd,
    statm: OwnedFd,
    status: OwnedFd,
}

impl Residency {
    pub(super) fn open() -> Result<Self, Errno> {
        let open =
            |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self {
            pagemap: open("/proc/self/pagemap")?,
            statm: open("/proc/self/statm")?,
            status: open("/proc/self/status")?,
        })
    }

    /// Pages of anonymous memory of the address space: `resident` less `shared` of proc_pid_statm(5),
    /// which is RssAnon. None if the file cannot be read any more.
    pub(super) fn anonymous_pages(&self) -> Option<u64> {
        let mut text = [0u8; 128];
        let length = rustix::io::pread(&self.statm, &mut text, 0).ok()?;
        let text = core::str::from_utf8(&text[..length]).ok()?;
        let mut fields = text.split_ascii_whitespace().skip(1);
        let resident: u64 = fields.next()?.parse().ok()?;
        let shared: u64 = fields.next()?.parse().ok()?;
        Some(resident.saturating_sub(shared))
    }

    /// True if memory of the address space is registered for long: the buffers of io_uring, or of
    /// an RDMA adapter (VmPin of proc_pid_status(5)). Which pages that are is not told. vfio
    /// accounts as mlock does, and cannot be told from it.
    pub(super) fn has_pins(&self) -> bool {
        status_field(&self.status, "VmPin:").is_none_or(|kib| kib > 0)
    }

    /// Threads of the program.
    pub(super) fn program_threads(&self, program: i32) -> u64 {
        let path = alloc::format!("/proc/{program}/status");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(path.as_str(), flags, Mode::empty())
            .ok()
            .and_then(|status| status_field(&status, "Threads:"))
            .unwrap_or(u64::MAX)
    }

    /// The pages of a range that have content, in memory or in swap.
    pub(super) fn pages_in(&self, range: PageRange) -> Result<Vec<PageNumber>, Errno> {
        self.scan(range, abi::PAGE_IS_PRESENT | abi::PAGE_IS_SWAPPED)
    }

    /// The pages of a range that map the kernel's page of zeros.
    pub(super) fn zero_mapped(&self, range: PageRange) -> Result<Vec<PageNumber>, Errno> {
        self.scan(range, abi::PAGE_IS_PFNZERO)
    }

    fn scan(&self, range: PageRange, categories: u64) -> Result<Vec<PageNumber>, Errno> {
        let mut pages = Vec::new();
        let end = range.end().address();
        let mut at = range.start.address();
        let mut regions = [abi::PageRegion::default(); REGIONS];
        while at < end {
            let mut scan = abi::PagemapScan {
                size: size_of::<abi::PagemapScan>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_anyof_mask: categories,
                return_mask: categories,
                ..abi::PagemapScan::default()
            };
            // SAFETY: the kernel writes at most vec_len entries into `regions` and `walk_end`.
            let found = unsafe { rustix::ioctl::ioctl(self.pagemap.as_fd(), Scan(&mut scan)) }?;
            for region in &regions[..found.min(REGIONS)] {
                let first = PageNumber::containing(region.start);
                let last = PageNumber::containing(region.end);
                pages.extend((first.0..last.0).map(PageNumber));
            }
            if scan.walk_end <= at {
                return Err(Errno::INVAL);
            }
            at = scan.walk_end;
        }
        Ok(pages)
    }
}

/// A number in a status file.
fn status_field(status: &OwnedFd, name: &str) -> Option<u64> {
    let mut text = [0u8; 4096];
    let length = rustix::io::pread(status, &mut text, 0).ok()?;
    // Groups and names before the fields are not all UTF-8.
    let text = alloc::string::String::from_utf8_lossy(&text[..length]);
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// PAGEMAP_SCAN: `_IOWR('f', 16, struct pm_scan_arg)`, which returns a count.
struct Scan<'a>(&'a mut abi::PagemapScan);

// SAFETY: the opcode takes exactly this structure.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::read_write::<abi::PagemapScan>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        core::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<usize> {
        Ok(usize::try_from(output).unwrap_or(0))
    }
}
