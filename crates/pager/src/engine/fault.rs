//! A page is missing.

use super::{Fault, Pager, PagerEvent, PagerFabric};
use crate::entry::{Flag, Location, PageEntry};
use crate::frames::FrameState;
use crate::prefetch::Source;
use crate::{FillError, FrameIndex, FrameMemory, Kernel, SpacePage};

/// A page that the table calls resident may fault once for each thread that raced for it. This
/// many times in a row means that the kernel has lost it.
const SPURIOUS_FAULTS_MAX: u32 = 10_000;

/// So many faults are tried in vain in a turn, each other ones: thousands of threads may wait.
const TRIED_IN_VAIN: u32 = 8;

/// Why a fault cannot be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// There is no frame, for anybody.
    Frame,
    /// Its address space is changing, or the node of its page takes no more for now.
    Own,
}

/// Faults in a row on one page that the table says is resident.
#[derive(Debug, Default)]
pub(super) struct SpuriousFaults {
    page: Option<SpacePage>,
    count: u32,
}

impl SpuriousFaults {
    /// One more. True if so many cannot be threads that raced.
    fn is_too_many(&mut self, page: SpacePage) -> bool {
        let before = if self.page == Some(page) {
            self.count
        } else {
            0
        };
        self.page = Some(page);
        self.count = before + 1;
        let is_too_many = self.count > SPURIOUS_FAULTS_MAX;
        if is_too_many {
            self.count = 0;
        }
        is_too_many
    }
}

impl<K: Kernel> Pager<K> {
    /// A thread touched a missing page, and waits.
    pub(super) fn handle_fault(&mut self, fault: Fault, net: &mut PagerFabric<'_>) {
        self.counters.faults += 1;
        let writing = self.frames.writing();
        if self.must_wait_for_reach(fault, net.now) {
            self.counters.faults_stalled += 1;
            self.waiting.out_of_reach.push_back(fault);
        } else if self.serve(fault, net).is_err() {
            self.counters.faults_stalled += 1;
            self.waiting.stalled.push_back(fault);
        }
        self.wrote_in_fault |= self.frames.writing() > writing;
    }

    /// Faults that had to wait, in turn.
    pub(super) fn retry_stalled(&mut self, net: &mut PagerFabric<'_>) {
        for fault in core::mem::take(&mut self.waiting.out_of_reach) {
            if self.must_wait_for_reach(fault, net.now) {
                self.waiting.out_of_reach.push_back(fault);
            } else {
                self.waiting.stalled.push_back(fault);
            }
        }
        let mut in_vain = 0;
        for _ in 0..self.waiting.stalled.len() {
            let Some(fault) = self.waiting.stalled.pop_front() else {
                return;
            };
            match self.serve(fault, net) {
                Ok(()) => {}
                Err(Stall::Frame) => return self.waiting.stalled.push_front(fault),
                // What it waits for is its own: it holds up nobody else.
                Err(Stall::Own) => {
                    self.waiting.stalled.push_back(fault);
                    in_vain += 1;
                    if in_vain == TRIED_IN_VAIN {
                        return;
                    }
                }
            }
        }
    }

    /// Serves a fault, unless that must wait.
    fn serve(&mut self, fault: Fault, net: &mut PagerFabric<'_>) -> Result<(), Stall> {
        let Some(entry) = self.table.entry(fault.page) else {
            return self.serve_untouched(fault);
        };
        match entry.location() {
            Location::Resident if entry.is(Flag::Unseen) => self.serve_dropped(fault.page),
            Location::Resident => {
                self.serve_spurious(fault.page);
                Ok(())
            }
            Location::InFrame(frame) => self.serve_in_frame(fault, frame),
            Location::Far => self.serve_far(fault, net),
            Location::Kept => self.serve_kept(fault),
            Location::Lost => self.serve_lost(fault.page),
        }
    }

    /// Never touched: zeros, and more of them if the program is walking on.
    fn serve_untouched(&mut self, fault: Fault) -> Result<(), Stall> {
        let (frame, _) = self.take_frames(1).ok_or(Stall::Frame)?;
        self.counters.faults_zero_filled += 1;
        self.zero_fill(fault.page, frame, true);
        self.waiting.expect(fault);
        self.follow_stream(fault.page, Source::Untouched);
        self.fill_arrived();
        Ok(())
    }

    /// A page was missing, and perhaps those behind it will be. What that shows to be used is marked so.
    fn follow_stream(&mut self, page: SpacePage, source: Source) {
        let (first, count) = self.prefetcher.handle_fault(page, source);
        for step in 0..u64::from(count) {
            if let Some(entry) = self.table.entry_mut(first.plus(step)) {
                entry.set(Flag::Prefetched, false);
            }
        }
    }

    pub(super) fn zero_fill(&mut self, page: SpacePage, frame: FrameIndex, demanded: bool) {
        self.kernel
            .frames_mut()
            .page_mut(frame, |page| page.fill(0));
        let mut entry = PageEntry::new(Location::InFrame(frame), None, 0).with(Flag::Unseen);
        entry.set(Flag::Prefetched, !demanded);
        self.table.insert(page, entry);
        self.frames.arrive(frame, page, demanded);
    }

    fn serve_in_frame(&mut self, fault: Fault, frame: FrameIndex) -> Result<(), Stall> {
        match self.frames.state(frame) {
            FrameState::Queued(_) | FrameState::Done(_) => self.serve_victim(fault, frame),
            FrameState::Writing(_) => {
                // The frame is the fabric's until the write is quiet; its bytes may be read.
                let (copy, _) = self.take_frames(1).ok_or(Stall::Frame)?;
                self.kernel.frames_mut().copy_page(frame, copy);
                self.frames.disown(frame);
                self.serve_victim(fault, copy);
            }
            _ => self.demand(fault, frame),
        }
        Ok(())
    }

    /// Moved out a moment ago and still here: it goes back, newest content and no fetch.
    fn serve_victim(&mut self, fault: Fault, frame: FrameIndex) {
        self.counters.faults_victim_hit += 1;
        self.frames.arrive(frame, fault.page, true);
        if let Some(entry) = self.table.entry_mut(fault.page) {
            entry.set_location(Location::InFrame(frame));
            entry.set(Flag::Prefetched, false);
            entry.set(Flag::Returning, true);
        }
        self.waiting.expect(fault);
        self.fill_arrived();
    }

    fn serve_far(&mut self, fault: Fault, net: &mut PagerFabric<'_>) -> Result<(), Stall> {
        let (frame, _) = self.take_frames(1).ok_or(Stall::Frame)?;
        if !self.fetch_into(fault.page, frame, true, net) {
            return Err(Stall::Own);
        }
        let entry = self.table.entry(fault.page);
        if entry.is_some_and(|entry| entry.location() == Location::Lost) {
            return self.serve_lost(fault.page);
        }
        self.waiting.expect(fault);
        self.follow_stream(fault.page, Source::Far);
        self.look_at_requests(net);
        self.fill_arrived();
        Ok(())
    }

    /// A page that is on its way has been asked for.
    fn demand(&mut self, fault: Fault, frame: FrameIndex) {
        self.waiting.expect(fault);
        self.frames.demand(frame);
        if let Some(entry) = self.table.entry_mut(fault.page) {
            entry.set(Flag::Prefetched, false);
        }
    }

    /// `madvise` drops its range only after its event was read, so it can take away what entered
    /// in between. The page has had no other content than what was dropped: it is zeros again. If
    /// it is still there the fault was only late.
    fn serve_dropped(&mut self, page: SpacePage) -> Result<(), Stall> {
        match self.kernel.zero_in(page) {
            Ok(()) => self.local.pages += 1,
            Err(FillError::Again | FillError::NoMemory) => return Err(Stall::Own),
            Err(_) => self.kernel.wake(page),
        }
        Ok(())
    }

    fn serve_spurious(&mut self, page: SpacePage) {
        if self.spurious.is_too_many(page) {
            self.events.push_back(PagerEvent::PageVanished { page });
            return;
        }
        self.kernel.wake(page);
    }

    /// While the kernel cannot poison the thread goes on waiting.
    fn serve_lost(&mut self, page: SpacePage) -> Result<(), Stall> {
        self.waiting.forget(page);
        match self.poison(page) {
            true => Ok(()),
            false => Err(Stall::Own),
        }
    }
}
