//! What is resident: pages of a range (PAGEMAP_SCAN, or `/proc/PID/pagemap` on kernels before
//! 6.7), and the whole process (`/proc/PID/statm`).

use super::abi;
use super::mappings::{FlagReader, Flags, Mappings};
use super::proc;
use crate::{PageRange, RangeSet};
use alloc::string::String;
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PageNumber};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::process::{Pid, Signal};

/// Ranges that one scan returns.
const REGIONS: usize = 256;
/// Entries of pagemap that are read at once: 16 MiB of address space.
const ENTRIES: usize = 4096;
const ENTRY_SIZE: usize = size_of::<u64>();
/// Of a scan.
const NO_LIMIT: u64 = 0;
const PRESENT: Categories = Categories::all(abi::PAGE_IS_PRESENT);
/// Swapped out and write-protected is a marked page, which has no content here
/// (`Userfaultfd::mark`).
const SWAPPED: Categories = Categories::all(abi::PAGE_IS_SWAPPED | abi::PAGE_IS_WRITTEN);
const MARKED: Categories = Categories {
    with: abi::PAGE_IS_SWAPPED,
    without: abi::PAGE_IS_WRITTEN,
};
/// An address that every process has, mapped or not: to see whether the kernel can scan.
const ANY_PAGE: PageRange = PageRange::new(PageNumber(0x100), 1);

/// Pages that PAGEMAP_SCAN is to find: those that are in all of some categories, and in none of others.
#[derive(Clone, Copy, Debug)]
struct Categories {
    with: u64,
    without: u64,
}

impl Categories {
    const fn all(with: u64) -> Self {
        Self { with, without: 0 }
    }
}

/// Descriptors on a process's `/proc` files.
#[derive(Debug)]
pub(super) struct Residency {
    directory: OwnedFd,
    pagemap: OwnedFd,
    /// PAGEMAP_SCAN is there. Otherwise the entries of pagemap are read one by one.
    can_scan: bool,
    statm: OwnedFd,
}

impl Residency {
    /// Of another process, or the agent's own. If not `may_scan`, PAGEMAP_SCAN is not used even
    /// where the kernel has it.
    pub(super) fn open(process: Option<Pid>, may_scan: bool) -> Result<Self, Errno> {
        let directory = Self::open_directory(process)?;
        let mut residency = Self {
            pagemap: open_in(&directory, "pagemap")?,
            can_scan: false,
            statm: open_in(&directory, "statm")?,
            directory,
        };
        residency.can_scan = may_scan && residency.scan(ANY_PAGE, PRESENT).is_ok();
        // Without either, pages that were resident before could never leave.
        residency.pages_in(ANY_PAGE)?;
        Ok(residency)
    }

    pub(super) const fn can_scan(&self) -> bool {
        self.can_scan
    }

    /// The directory in `/proc`. It names the process even after it has ended.
    pub(super) fn open_directory(process: Option<Pid>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match process {
            None => proc::open("self", flags),
            Some(pid) => proc::open(&alloc::format!("{}", pid.as_raw_nonzero()), flags),
        }
    }

    /// The bytes of the address space (proc_pid_mem(5)).
    pub(super) fn open_memory(&self) -> Result<OwnedFd, Errno> {
        open_in(&self.directory, "mem")
    }

    /// Ends the process. (`/proc/PID` is as good as a pidfd: pidfd_send_signal(2).)
    pub(super) fn kill(&self) {
        // Fails only when it has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.directory, Signal::KILL);
    }

    /// For looking at single mappings. None if they cannot be read.
    pub(super) fn mappings(&self) -> Option<Mappings> {
        let file = open_in(&self.directory, "maps").ok()?;
        Some(Mappings::of(file, |show| self.for_each_line(show)))
    }

    /// Shows every mapping and its flags (VmFlags of proc_pid_smaps(5)). None if they cannot be read.
    /// The kernel walks all page tables for it.
    pub(super) fn for_each_mapping(
        &self,
        mut show: impl FnMut(PageRange, Flags<'_>),
    ) -> Option<()> {
        let mut reader = FlagReader::default();
        self.each_line_of("smaps", |line| {
            if let Some((mapping, flags)) = reader.line(line) {
                show(mapping, flags);
            }
        })
    }

    /// Shows every line about a mapping (proc_pid_maps(5)). None if they cannot be read.
    pub(super) fn for_each_line(&self, show: impl FnMut(&str)) -> Option<()> {
        self.each_line_of("maps", show)
    }

    /// Never all of them at once: a process may have tens of thousands of mappings.
    fn each_line_of(&self, name: &str, mut show: impl FnMut(&str)) -> Option<()> {
        let file = open_in(&self.directory, name).ok()?;
        let mut bytes = Vec::new();
        let mut buffer = alloc::vec![0u8; 64 << 10];
        while let more @ 1.. = read_some(&file, &mut buffer)? {
            bytes.extend_from_slice(&buffer[..more]);
            let whole = bytes
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |end| end + 1);
            // Names of files need not be UTF-8.
            String::from_utf8_lossy(&bytes[..whole])
                .lines()
                .for_each(&mut show);
            bytes.drain(..whole);
        }
        // The last line ends as all others do.
        Some(())
    }

    /// Pages of anonymous memory; of a page that several processes share, a part (Pss_Anon of
    /// proc_pid_smaps(5)). The kernel walks all page tables for it.
    pub(super) fn proportional_pages(&self) -> Option<u64> {
        let file = open_in(&self.directory, "smaps_rollup").ok()?;
        Some(status_field(&file, "Pss_Anon:")? >> (PAGE_SHIFT - 10))
    }

    /// Pages of anonymous memory, those of several processes too. The kernel walks all page tables for it.
    pub(super) fn walked_pages(&self) -> Option<u64> {
        let file = open_in(&self.directory, "smaps_rollup").ok()?;
        Some(status_field(&file, "Anonymous:")? >> (PAGE_SHIFT - 10))
    }

    /// Pages of anonymous memory of the address space: `resident` less `shared` of proc_pid_statm(5),
    /// which is RssAnon, and not exact on every kernel. None if the file cannot be read any more.
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
        open_in(&self.directory, "status")
            .ok()
            .and_then(|status| status_field(&status, "VmPin:"))
            .is_none_or(|kib| kib > 0)
    }

    /// The pages of a range that have content, in memory or in swap; not those that are marked.
    pub(super) fn pages_in(&self, range: PageRange) -> Result<Vec<PageNumber>, Errno> {
        if self.can_scan {
            let mut pages = self.scan(range, PRESENT)?;
            return self.with_swapped(range, 0, &mut pages).map(|()| pages);
        }
        self.read_entries(range, has_content)
    }

    /// The parts of a range that are in memory.
    pub(super) fn present_in(&self, range: PageRange) -> Result<Vec<PageRange>, Errno> {
        if self.can_scan {
            return self.scan_ranges(range, PRESENT);
        }
        let pages = self.read_entries(range, |entry| entry & abi::PAGEMAP_PRESENT != 0)?;
        let mut ranges = RangeSet::new();
        for page in pages {
            ranges.insert(PageRange::new(page, 1));
        }
        Ok(ranges.ranges().collect())
    }

    /// A page of a range that has no content here and a mark.
    pub(super) fn marked_in(&self, range: PageRange) -> Option<PageNumber> {
        if !self.can_scan {
            let is_marked = |entry| entry & abi::PAGEMAP_SWAPPED != 0 && !has_content(entry);
            return self.read_entries(range, is_marked).ok()?.first().copied();
        }
        let mut found = Vec::new();
        self.scan_some(range, MARKED, 1, &mut found).ok()?;
        found.first().map(|marked| marked.start)
    }

    /// Adds pages of a range that are in swap to those from `first` on, which are in order.
    fn with_swapped(
        &self,
        range: PageRange,
        first: usize,
        pages: &mut Vec<PageNumber>,
    ) -> Result<(), Errno> {
        let present = pages.len();
        pages.extend(self.scan(range, SWAPPED)?);
        if pages.len() > present {
            pages[first..].sort_unstable();
            pages.dedup();
        }
        Ok(())
    }

    /// The pages of a range that have content and are not write-protected by userfaultfd; before
    /// Linux 5.13 all that have content.
    pub(super) fn unprotected_in(&self, range: PageRange) -> Result<Vec<PageNumber>, Errno> {
        let somewhere = abi::PAGEMAP_PRESENT | abi::PAGEMAP_SWAPPED;
        self.read_entries(range, |entry| {
            entry & somewhere != 0 && entry & abi::PAGEMAP_PROTECTED == 0
        })
    }

    /// As [`Self::pages_in`], of the beginning of a range: some thousand pages at most. Returns where it
    /// came to.
    pub(super) fn first_pages_in(
        &self,
        range: PageRange,
        into: &mut Vec<PageNumber>,
    ) -> Result<PageNumber, Errno> {
        if self.can_scan {
            let (first, mut found) = (into.len(), Vec::new());
            let end = self.scan_some(range, PRESENT, ENTRIES as u64, &mut found)?;
            into.extend(found.into_iter().flat_map(pages_of));
            let looked_at = PageRange::new(range.start, end.0 - range.start.0);
            return self.with_swapped(looked_at, first, into).map(|()| end);
        }
        let part = PageRange::new(range.start, range.count.min(ENTRIES as u64));
        into.extend(self.pages_in(part)?);
        Ok(part.end())
    }

    /// The pages of a private anonymous range that map the kernel's page of zeros. Without
    /// PAGEMAP_SCAN also those that another process maps too.
    ///
    /// The entries of pagemap do not name the page of zeros to a process without privilege. But
    /// that page is never mapped exclusively, so none is missed; what is taken for it besides is
    /// anonymous memory shared after a fork or merged by KSM. Nothing is assumed of the content of
    /// these pages: they only leave first, as any page may, and come back as they were.
    pub(super) fn zero_mapped(&self, range: PageRange) -> Result<Vec<PageNumber>, Errno> {
        if self.can_scan {
            return self.scan(range, Categories::all(abi::PAGE_IS_PFNZERO));
        }
        let mask = abi::PAGEMAP_PRESENT | abi::PAGEMAP_EXCLUSIVE;
        self.read_entries(range, |entry| entry & mask == abi::PAGEMAP_PRESENT)
    }

    /// The pages of a range whose entry in pagemap fits (Documentation/admin-guide/mm/pagemap.rst).
    fn read_entries(
        &self,
        range: PageRange,
        fits: impl Fn(u64) -> bool,
    ) -> Result<Vec<PageNumber>, Errno> {
        let mut found = Vec::new();
        let mut bytes = alloc::vec![0_u8; ENTRIES * ENTRY_SIZE];
        let mut at = range.start;
        while at < range.end() {
            let wanted = (range.end().0 - at.0).min(ENTRIES as u64) as usize * ENTRY_SIZE;
            let offset = at.0 * ENTRY_SIZE as u64;
            let length = match rustix::io::pread(&self.pagemap, &mut bytes[..wanted], offset) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            let (entries, _) = bytes[..length].as_chunks::<ENTRY_SIZE>();
            if entries.is_empty() {
                // The end of what a process can have.
                break;
            }
            let pages = (at.0..).map(PageNumber).zip(entries);
            let fitting = pages.filter(|(_, entry)| fits(u64::from_le_bytes(**entry)));
            found.extend(fitting.map(|(page, _)| page));
            at = at.plus(entries.len() as u64);
        }
        Ok(found)
    }

    fn scan(&self, range: PageRange, categories: Categories) -> Result<Vec<PageNumber>, Errno> {
        let found = self.scan_ranges(range, categories)?;
        Ok(found.into_iter().flat_map(pages_of).collect())
    }

    fn scan_ranges(
        &self,
        range: PageRange,
        categories: Categories,
    ) -> Result<Vec<PageRange>, Errno> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end() {
            let rest = PageRange::new(at, range.end().0 - at.0);
            at = self.scan_some(rest, categories, NO_LIMIT, &mut found)?;
        }
        Ok(found)
    }

    /// Scans a range for at most so many pages. Returns where it came to.
    fn scan_some(
        &self,
        range: PageRange,
        Categories { with, without }: Categories,
        max_pages: u64,
        into: &mut Vec<PageRange>,
    ) -> Result<PageNumber, Errno> {
        let mut regions = [abi::PageRegion::default(); REGIONS];
        let mut scan = abi::PagemapScan {
            size: size_of::<abi::PagemapScan>() as u64,
            start: range.start.address(),
            end: range.end().address(),
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            max_pages,
            category_mask: with | without,
            category_inverted: without,
            return_mask: with,
            ..abi::PagemapScan::default()
        };
        // SAFETY: the kernel writes at most vec_len entries into `regions` and `walk_end`.
        let found = unsafe { rustix::ioctl::ioctl(self.pagemap.as_fd(), Scan(&mut scan)) }?;
        let found = regions[..found.min(REGIONS)].iter();
        into.extend(found.map(|region| PageRange::of_bytes(region.start, region.end)));
        let end = PageNumber::containing(scan.walk_end);
        if end <= range.start {
            return Err(Errno::INVAL);
        }
        Ok(end)
    }
}

fn pages_of(range: PageRange) -> impl Iterator<Item = PageNumber> {
    (range.start.0..range.end().0).map(PageNumber)
}

/// Reads on. 0 at the end.
fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    rustix::io::retry_on_intr(|| rustix::io::read(file, &mut *buffer)).ok()
}

fn open_in(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Does an entry of pagemap stand for a page that has content?
const fn has_content(entry: u64) -> bool {
    let is_marked = entry & abi::PAGEMAP_PROTECTED != 0;
    entry & abi::PAGEMAP_PRESENT != 0 || entry & abi::PAGEMAP_SWAPPED != 0 && !is_marked
}

/// A number in a status file.
fn status_field(status: &OwnedFd, name: &str) -> Option<u64> {
    let mut text = [0u8; 4096];
    let length = rustix::io::pread(status, &mut text, 0).ok()?;
    // Groups and names before the fields are not all UTF-8.
    let text = String::from_utf8_lossy(&text[..length]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    const PAGES: usize = 6 * ENTRIES;

    /// Both ways of asking agree on memory of which every kind of page is a part.
    #[test]
    fn pagemap_tells_what_the_scan_tells() {
        let length = PAGES << PAGE_SHIFT;
        // SAFETY: a fresh mapping of this test's own.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .unwrap();
        // SAFETY: as above. Huge pages would make neighbours resident.
        unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxNoHugepage) }.unwrap();
        let at = |page: usize| start.cast::<u8>().wrapping_add(page << PAGE_SHIFT);
        let (written, read) = (
            [0, 5, ENTRIES - 1, ENTRIES, PAGES - 1],
            [3, 2 * ENTRIES + 1],
        );
        for page in written {
            // SAFETY: inside the mapping.
            unsafe { at(page).write_volatile(7) };
        }
        for page in read {
            // SAFETY: inside the mapping.
            assert_eq!(unsafe { at(page).read_volatile() }, 0);
        }
        let first = PageNumber::containing(start as u64);
        let range = PageRange::new(first, PAGES as u64);
        let numbers = |pages: &[usize]| {
            let mut all: Vec<_> = pages.iter().map(|&page| first.plus(page as u64)).collect();
            all.sort_unstable();
            all
        };
        for may_scan in [true, false] {
            let residency = Residency::open(None, may_scan).unwrap();
            assert!(may_scan || !residency.can_scan);
            let resident = residency.pages_in(range).unwrap();
            assert_eq!(resident, numbers(&[&written[..], &read].concat()));
            let (mut at, mut bit_by_bit) = (range.start, Vec::new());
            while at < range.end() {
                let rest = PageRange::new(at, range.end().0 - at.0);
                at = residency.first_pages_in(rest, &mut bit_by_bit).unwrap();
            }
            assert_eq!(bit_by_bit, resident);
            assert_eq!(residency.zero_mapped(range).unwrap(), numbers(&read));
        }
        // SAFETY: nothing uses it any more.
        unsafe { rustix::mm::munmap(start, length) }.unwrap();
    }
}
