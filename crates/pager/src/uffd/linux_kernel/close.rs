//! The program is gone, and forked children of it go on: its memory is given back.

use super::LinuxKernel;
use crate::PageRange;
use crate::RangeSet;
use crate::uffd::mappings::mapping_of;
use alloc::vec::Vec;
use legato_base::PAGE_SHIFT;

/// First page of the kernel's half of the address space: the vsyscall page is in it.
const KERNEL_HALF: u64 = 1 << (63 - PAGE_SHIFT);

impl LinuxKernel {
    /// Unmaps all private memory in the agent's address space that is not its own. Nobody else uses
    /// it. Shared mappings stay: some are the provider's, to reach the memory nodes.
    pub(super) fn close_own(&mut self) {
        self.own.close();
        let mut mappings: Vec<PageRange> = Vec::new();
        let all = self.residency.for_each_line(|line| {
            if is_private(line) && !is_of_the_kernel(line) {
                mappings.extend(mapping_of(line));
            }
        });
        if all.is_none() {
            return;
        }
        for mapping in mappings {
            let mut rest = RangeSet::default();
            rest.insert(self.layout.range());
            rest.insert(self.object);
            for part in rest.missing_from(mapping) {
                self.unmap(part);
            }
        }
    }

    fn unmap(&self, range: PageRange) {
        if range.start.0 >= KERNEL_HALF {
            return;
        }
        let (start, length) = (range.start.address(), range.count << PAGE_SHIFT);
        // Otherwise unmapping would announce itself and wait for the agent. Refused only for what
        // cannot be registered, and so is not.
        // SAFETY: nobody uses the range any more, and its pages are forgotten.
        let _ = unsafe { self.own.context.unregister(start, length) };
        // SAFETY: nobody uses the range: the program is gone, and the agent's reservation and
        // object are not in it. If it fails the memory stays.
        let _ = unsafe { rustix::mm::munmap(start as *mut _, length as usize) };
    }
}

fn is_private(line: &str) -> bool {
    line.split_ascii_whitespace()
        .nth(1)
        .is_some_and(|permissions| permissions.ends_with('p'))
}

/// Code and data that the kernel maps into every process, to read the clock, say.
fn is_of_the_kernel(line: &str) -> bool {
    line.split_ascii_whitespace()
        .nth(5)
        .is_some_and(|name| name.starts_with("[v"))
}
