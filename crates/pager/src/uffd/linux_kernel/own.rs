//! Pages leave and enter the program itself.

use super::LinuxKernel;
use super::kernel::evict_error;
use crate::uffd::Userfaultfd;
use crate::uffd::dropper::{Dropper, PATIENCE};
use crate::uffd::transfer::{self, Transferred, transfer_across};
use crate::{Departure, EvictError, FrameIndex, PageRange, SpaceId, SpacePage};
use legato_base::PageNumber;
use rustix::io::Errno;

impl LinuxKernel {
    /// The task that drops pages, if there can be one. The caller puts it back.
    pub(in crate::uffd) fn take_dropper(&mut self) -> Option<Dropper> {
        let context = &self.own.context;
        Dropper::running(&mut self.dropper, &self.layout, context, self.start_task)?;
        self.dropper.take()
    }

    /// Ends the task that drops pages; it is started again when it is needed. False while it has not
    /// ended.
    pub(in crate::uffd) fn end_dropper(&mut self) -> bool {
        let has_ended = self.dropper.as_ref().is_none_or(Dropper::end);
        if has_ended {
            self.dropper = None;
        }
        has_ended
    }

    /// As `move_out`, for pages that cannot be moved.
    fn copy_out(
        &mut self,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let page = SpacePage::new(SpaceId::OWN, page);
        let mut runs = [Departure::new(page, frame, count)];
        self.copy_out_runs(&mut runs);
        let [run] = runs;
        (run.moved, run.error.map_or(Ok(()), Err))
    }

    /// As `move_out`, for the program's own pages.
    pub(in crate::uffd) fn move_out_own(
        &mut self,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let mut moved = 0;
        while moved < count {
            if self.is_unsettled_in(SpaceId::OWN) {
                return (moved, Err(EvictError::Again));
            }
            let at = page.plus(u64::from(moved));
            if !self.features.can_move() {
                let (more, result) = self.copy_out(at, FrameIndex(frame.0 + moved), count - moved);
                moved += more;
                match result {
                    Ok(()) => continue,
                    error => return (moved, error),
                }
            }
            let (more, result) = self.move_writable(at, FrameIndex(frame.0 + moved), count - moved);
            moved += more;
            let Err(error) = result else { break };
            let at = page.plus(u64::from(moved));
            // A mapping that is not writable, or locked.
            if error == Errno::INVAL {
                let (more, result) = self.copy_out(at, FrameIndex(frame.0 + moved), count - moved);
                moved += more;
                match result {
                    Ok(()) => continue,
                    error => return (moved, error),
                }
            }
            return (moved, Err(evict_error(error)));
        }
        (moved, Ok(()))
    }

    /// Moves pages out of mappings that are writable.
    fn move_writable(&mut self, page: PageNumber, frame: FrameIndex, count: u32) -> Transferred {
        let Self {
            own,
            layout,
            dropper,
            start_task,
            ..
        } = self;
        let unshare = |first, count| {
            let dropper = Dropper::running(dropper, layout, &own.context, *start_task);
            unshare(&own.context, dropper.ok_or(Errno::NOMEM)?, first, count)
        };
        let to = layout.frame(frame.0);
        // SAFETY: the frames are empty, and nothing else uses them; the pages are program memory
        // that the agent has taken charge of, and whose content it keeps.
        unsafe { transfer::move_out(&own.context, to, page.address(), count, unshare) }
    }

    /// Takes the marks of pages that are to be filled away, if there are any.
    ///
    /// # Errors
    /// EAGAIN: the address space is changing.
    pub(super) fn lift_marks(
        &self,
        context: &Userfaultfd,
        first: u64,
        count: u32,
    ) -> Result<(), Errno> {
        match self.features.can_mark() {
            true => transfer::lift_marks(context, first, count),
            false => Ok(()),
        }
    }

    /// Moves frames into the program.
    pub(super) fn move_in_own(&self, dst: u64, src: u64, count: u32) -> Transferred {
        let context = &self.own.context;
        if let Err(error) = self.lift_marks(context, dst, count) {
            return (0, Err(error));
        }
        // SAFETY: the frames are the agent's, with the pages' content; at the target pages are
        // missing that the pager has taken charge of.
        let move_in = |dst, src, bytes| unsafe { context.move_pages(dst, src, bytes, true) };
        transfer_across(dst, src, count, &move_in)
    }
}

/// As [`transfer::unshare`], for as many pages as can be. The task that drops does it: a thread may
/// have moved or dropped a page since it was found shared, and only the agent can give it one.
///
/// # Errors
/// EAGAIN: such a page's fault must be served first, or the address space is changing. EDEADLK: the task
/// waits for one still.
fn unshare(context: &Userfaultfd, dropper: &Dropper, first: u64, count: u32) -> Result<u32, Errno> {
    if !dropper.is_idle() {
        return Err(Errno::DEADLK);
    }
    transfer::lift_protection(context, first, count)?;
    let range = PageRange::new(PageNumber::containing(first), u64::from(count));
    match dropper.populate(range, PATIENCE) {
        None => Err(Errno::AGAIN),
        Some(Ok(())) => Ok(count),
        // What of it was done is not known: the next page that refuses asks again.
        Some(Err(_)) => Ok(1),
    }
}
