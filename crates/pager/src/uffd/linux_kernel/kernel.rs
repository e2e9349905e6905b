//! What the pager asks of Linux ([`Kernel`]).

use super::LinuxKernel;
use super::child::Child;
use super::space::Space;
use super::thread_blocks::leave_before;
use crate::uffd::agent::now;
use crate::uffd::frame_memory::LinuxFrames;
use crate::uffd::transfer::{surely, transfer_across};
use crate::{
    Charge, Departure, EvictError, FillError, FrameIndex, Incoming, Kernel, PageRange, SpaceId,
    SpacePage,
};
use alloc::vec::Vec;
use legato_base::{Duration, PAGE_SIZE, PageNumber};
use rustix::io::Errno;

impl Kernel for LinuxKernel {
    type Frames = LinuxFrames;

    fn frames(&self) -> &LinuxFrames {
        &self.frames
    }

    fn frames_mut(&mut self) -> &mut LinuxFrames {
        &mut self.frames
    }

    fn read(&mut self) -> Incoming {
        self.read_messages()
    }

    fn has_backlog(&self) -> bool {
        self.has_messages()
    }

    fn can_evict(&self, space: SpaceId) -> bool {
        let has_hand = |child: &Child| child.hand.is_some();
        match space {
            SpaceId::OWN => !self.own.closed,
            _ => self.children.get(&space).is_some_and(has_hand),
        }
    }

    fn move_out(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let run = Departure::new(page, frame, count);
        self.look_for_blocks(page.space(), core::iter::once(run.range()));
        self.move_out_looked_at(&run)
    }

    fn move_out_runs(&mut self, runs: &mut [Departure]) {
        let mut rest = runs;
        while let Some(first) = rest.first() {
            let space = first.page.space();
            let own = rest
                .iter()
                .take_while(|run| run.page.space() == space)
                .count();
            let (batch, later) = rest.split_at_mut(own);
            self.look_for_blocks(space, batch.iter().map(Departure::range));
            let copies = space == SpaceId::OWN && !self.features.can_move();
            let stays = |run: &Departure| self.may_leave(space, run.range()) < run.count;
            if copies && !batch.iter().any(stays) {
                self.copy_out_runs(batch);
                for run in batch.iter().filter(|run| run.moved > 0) {
                    self.mark(space, PageRange::new(run.page.page(), run.moved.into()));
                }
            } else {
                Departure::one_by_one(batch, |run| self.move_out_looked_at(run));
            }
            // Once it must settle, nothing more is tried.
            if batch.iter().any(|run| run.error == Some(EvictError::Again)) {
                return;
            }
            rest = later;
        }
    }

    fn moves_memory(&self, space: SpaceId) -> bool {
        space == SpaceId::OWN && self.features.can_move()
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        if self.is_unsettled_in(page.space()) {
            return (0, Err(FillError::Again));
        }
        let (to, from) = (page.page().address(), self.layout.frame(frame.0));
        let (moved, result) = self.move_in_own(to, from, count);
        self.filled(page.space(), frame, moved, result)
    }

    fn copy_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        if self.is_unsettled_in(page.space()) {
            return (0, Err(FillError::Again));
        }
        let Some(Space { context, .. }) = self.space(page.space()) else {
            return (0, Err(FillError::SpaceGone));
        };
        let (to, from) = (page.page().address(), self.layout.frame(frame.0));
        // SAFETY: the frames have memory, and the pager has put the pages' content there.
        let copy = |dst, src, bytes| unsafe { context.copy(dst, src, bytes) };
        let (copied, result) = transfer_across(to, from, count, &copy);
        self.filled(page.space(), frame, copied, result)
    }

    fn zero_in(&mut self, page: SpacePage) -> Result<(), FillError> {
        if self.is_unsettled_in(page.space()) {
            return Err(FillError::Again);
        }
        let space = self.space(page.space()).ok_or(FillError::SpaceGone)?;
        let context = &space.context;
        // SAFETY: the pager knows that the page was never written.
        let zero = || ((), unsafe { context.zero(page.page()) });
        let mut result = surely(zero).1;
        if result == Err(Errno::EXIST) {
            // Or it is marked: it was zeros when it left.
            self.lift_marks(context, page.page().address(), 1)
                .map_err(fill_error)?;
            result = surely(zero).1;
        }
        result.map_err(fill_error)?;
        self.note_settled(page.space());
        Ok(())
    }

    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        self.give_memory(frame, count)
    }

    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        self.take_memory(frame, count)
    }

    fn wake_range(&mut self, space: SpaceId, range: PageRange) {
        if let Some(Space { context, .. }) = self.space(space) {
            // Fails only for a space that is gone: then nobody waits.
            let _ = context.wake_range(range.start.address(), range.count * PAGE_SIZE as u64);
        }
    }

    fn poison(&mut self, page: SpacePage) -> Result<(), FillError> {
        if self.is_unsettled_in(page.space()) {
            return Err(FillError::Again);
        }
        let space = self.space(page.space()).ok_or(FillError::SpaceGone)?;
        let context = &space.context;
        if self.features.can_poison() {
            self.lift_marks(context, page.page().address(), 1)
                .map_err(fill_error)?;
            let poison = || ((), context.poison(page.page()));
            return surely(poison).1.map_err(fill_error);
        }
        self.lost_touched = Some(page);
        Err(FillError::Again)
    }

    fn resident_pages(&mut self) -> u64 {
        self.count_resident()
    }

    fn processor_time(&self) -> Option<Duration> {
        self.count_processor_time()
    }

    fn wake_when_run(&mut self, wanted: bool) -> bool {
        let clock = self.processor_clock.as_mut();
        clock.is_some_and(|clock| clock.set_alarm(wanted))
    }

    fn register_more(&mut self, pages: u64, into: &mut Vec<Charge>) -> Duration {
        let begin = now();
        self.take_charge(pages, into);
        now().since(begin)
    }

    fn drop_droppable(&mut self) {
        Self::drop_droppable(self);
    }

    fn finish_registering(&mut self, into: &mut Vec<Charge>) {
        self.finish_surveys(into);
    }

    fn zero_mapped(&mut self, space: SpaceId, range: PageRange) -> Vec<PageNumber> {
        self.residency_of(space)
            .and_then(|residency| residency.zero_mapped(range).ok())
            .unwrap_or_default()
    }

    fn is_changing(&self) -> bool {
        self.is_unsettled() || self.spaces().any(|space| space.context.is_changing())
    }

    fn is_registered(&self, page: SpacePage) -> bool {
        let space = self.space(page.space());
        space.is_some_and(|space| space.ranges.charged.contains(page.page()))
    }

    fn note_dropping(&mut self, space: SpaceId) {
        self.note_threads_that_drop(space);
    }

    fn has_dropped_all(&mut self, space: SpaceId) -> bool {
        self.all_is_dropped(space)
    }

    fn residents_from(
        &mut self,
        space: SpaceId,
        from: PageNumber,
        into: &mut Vec<PageNumber>,
    ) -> Option<PageNumber> {
        self.residents_in_charge(space, from, into)
    }

    fn space_alive(&mut self, space: SpaceId) -> bool {
        if space == SpaceId::OWN {
            self.own.context.is_alive()
        } else {
            self.child_alive(space)
        }
    }

    fn close_space(&mut self, space: SpaceId) {
        if space == SpaceId::OWN {
            self.close_own();
        } else if self.children.remove(&space).is_some() {
            self.shared.forget();
        }
    }
}

impl LinuxKernel {
    /// As `move_out`, of pages among which it is known who must stay.
    fn move_out_looked_at(&mut self, run: &Departure) -> (u32, Result<(), EvictError>) {
        let space = run.page.space();
        // What a child has got of a mapping that was registered is told by the child alone.
        let registered = match run.filled && space == SpaceId::OWN {
            true => Ok(run.range()),
            false => self.still_registered(space, run.range()),
        };
        let free = match registered {
            Ok(registered) => self.may_leave(space, registered),
            Err(error) => return (0, Err(error)),
        };
        let (moved, result) = leave_before(free, run.count, || {
            if space == SpaceId::OWN {
                self.move_out_own(run.page.page(), run.frame, free)
            } else {
                self.move_out_child(space, run.page.page(), run.frame, free)
            }
        });
        if moved > 0 {
            self.note_settled(space);
            self.mark(space, PageRange::new(run.page.page(), moved.into()));
        }
        (moved, result)
    }

    /// What became of pages that were to enter a space from `frame` on.
    fn filled(
        &mut self,
        space: SpaceId,
        frame: FrameIndex,
        done: u32,
        result: Result<(), Errno>,
    ) -> (u32, Result<(), FillError>) {
        if done > 0 {
            self.note_settled(space);
        }
        let failed = FrameIndex(frame.0 + done);
        let result = result.map_err(|error| self.fill_error(error, failed));
        (done, result)
    }

    /// MOVE says ENOENT for a frame without memory too, which must not be looked into: nobody would
    /// answer the fault.
    fn fill_error(&self, error: Errno, frame: FrameIndex) -> FillError {
        let memory = PageNumber::containing(self.layout.frame(frame.0));
        match fill_error(error) {
            FillError::Gone => match self.residency.pages_in(PageRange::new(memory, 1)) {
                Ok(found) if found.is_empty() => FillError::Empty,
                _ => FillError::Gone,
            },
            error => error,
        }
    }
}

pub(super) const fn evict_error(error: Errno) -> EvictError {
    match error {
        Errno::AGAIN => EvictError::Again,
        Errno::BUSY => EvictError::Pinned,
        // FAULT: it is missing, and marked.
        Errno::NOENT | Errno::FAULT => EvictError::Absent,
        _ => EvictError::Fixed,
    }
}

const fn fill_error(error: Errno) -> FillError {
    match error {
        Errno::AGAIN => FillError::Again,
        Errno::EXIST => FillError::Present,
        Errno::NOENT => FillError::Gone,
        Errno::SRCH => FillError::SpaceGone,
        Errno::NOMEM => FillError::NoMemory,
        _ => FillError::CopyOnly,
    }
}
