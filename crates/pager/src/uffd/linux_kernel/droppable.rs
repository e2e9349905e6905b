//! Memory that the kernel may drop whenever memory is short, and then reads zeros (MAP_DROPPABLE, from Linux 6.11).
//! It cannot be registered (`vma_can_userfault`), so it stays local, until nothing else can leave.

use super::LinuxKernel;
use crate::PageRange;
use alloc::vec::Vec;
use legato_base::PAGE_SHIFT;
use rustix::mm::Advice;

impl LinuxKernel {
    /// Lets the kernel drop what it may drop of the program's memory.
    pub(super) fn drop_droppable(&self) {
        if self.own.closed || self.own.refused.is_empty() {
            return;
        }
        for range in self.droppable() {
            let (start, length) = (range.start.address(), range.count << PAGE_SHIFT);
            // Not MADV_DONTNEED: by now something else may be mapped there, whose pages this keeps; without
            // swap they even stay where they are.
            // SAFETY: no content changes but what the program has allowed to be dropped.
            let _ = unsafe {
                rustix::mm::madvise(start as *mut _, length as usize, Advice::LinuxPageOut)
            };
        }
    }

    fn droppable(&self) -> Vec<PageRange> {
        let mut found = Vec::new();
        let walked = self.residency.for_each_mapping(|mapping, flags| {
            if flags.has("dp") {
                found.push(mapping);
            }
        });
        walked.map_or_else(Vec::new, |()| found)
    }
}
