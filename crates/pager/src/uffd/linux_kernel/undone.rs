//! Unmappings that are announced and have not happened.
//!
//! The kernel announces what munmap(2), mmap(2) over something, mremap(2) and brk(2) are about to unmap, also when the call
//! fails after that and leaves everything as it is: a part of it is sealed (EPERM), or the new mapping exceeds a limit
//! (ENOMEM). (`userfaultfd_unmap_prep` in mm/vma.c, whose list is worked off whatever the call returns. Before Linux 6.12
//! it looks first whether the call can succeed, so that kernels without marks need none of this.)
//!
//! Where something was unmapped no mark of a far page is left, and what is mapped there since is not
//! registered. Marks may also have come there with a move; that is told of before the address space is
//! settled.

use super::LinuxKernel;
use super::accept::Order;
use crate::uffd::message::Message;
use crate::{PageRange, SpaceId};
use legato_base::PageNumber;

/// Has what a message tells of happened?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Yes,
    No,
    /// It cannot be said while the address space is changing.
    Unknown,
}

impl LinuxKernel {
    /// `order` has what else was read and not accepted.
    pub(super) fn has_happened(&self, id: SpaceId, message: &Message, order: &Order) -> Happened {
        let Message::Removed {
            range,
            unmapped: true,
        } = *message
        else {
            return Happened::Yes;
        };
        let Some(page) = self.far_page_left_in(id, range) else {
            return Happened::Yes;
        };
        let space = self.space(id);
        let page = PageRange::new(page, 1);
        match space.map(|space| space.context.is_registered(page)) {
            Some(Ok(true)) if !order.brings_to(range) => Happened::No,
            Some(Err(_)) => Happened::Unknown,
            _ => Happened::Yes,
        }
    }

    /// A page of a range that looks as if it were far still.
    fn far_page_left_in(&self, id: SpaceId, range: PageRange) -> Option<PageNumber> {
        if !self.features.can_mark() {
            return None;
        }
        let armed = self.space(id)?.ranges.armed.common_with(range);
        let first = armed.first()?.start;
        let mut unmarked = self.unmarked.iter().filter(|(of, _)| *of == id);
        if let Some((_, unmarked)) = unmarked.find(|(_, unmarked)| unmarked.overlaps(range)) {
            return Some(unmarked.start.max(range.start));
        }
        match self.residency_of(id) {
            Some(residency) => armed.iter().find_map(|&part| residency.marked_in(part)),
            // Nobody is there yet who could look.
            None => Some(first),
        }
    }
}
