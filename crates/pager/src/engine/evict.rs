//! Pages leave the program: moved out first, judged and written back later, so that nothing can
//! change between the copy and the unmapping.

use super::Pager;
use crate::entry::{Flag, Location};
use crate::replacement::Queued;
use crate::{Departure, EvictError, FrameIndex, FrameMemory, Kernel, PageRange, SpacePage};
use alloc::vec::Vec;
use legato_base::PageChecksum;
use legato_base::checksum::is_zero;

/// Pages that stay for each address space, however short memory is: a program that loses a page for
/// each one that it gets never finishes an instruction that needs both.
const WORKING_SET_MIN: u64 = 64;
/// Pages that most instructions need at the most: one that is copied to another, each across a boundary.
const NEEDED_TO_GO_ON: u64 = 4;

impl<K: Kernel> Pager<K> {
    /// Moves up to `count` pages out. Returns how many left, or None if the address space must
    /// settle first.
    pub(super) fn evict(&mut self, count: u64) -> Option<u64> {
        let room = u64::from(self.frames.empty());
        let count = count.min(room).min(self.pages_to_spare());
        let victims = self.candidates.choose(count, &self.table);
        self.evict_pages(victims)
    }

    /// Pages that may leave, as far as it is known.
    pub(super) fn pages_to_spare(&self) -> u64 {
        let working_set = WORKING_SET_MIN * (1 + self.children.alive.len() as u64);
        let working_set = working_set.min(self.budget.limit / 8);
        // Some of it may make room for others while threads wait, but not what they all need to go on.
        let kept = match self.waiting.stalled.len() as u64 {
            0 => working_set,
            threads => (threads * NEEDED_TO_GO_ON).clamp(working_set / 2, working_set),
        };
        self.candidates
            .count()
            .saturating_sub(kept)
            .saturating_sub(self.candidates.unmovable())
    }

    /// As [`Self::evict`], for pages that are chosen already and in no queue.
    pub(super) fn evict_pages(&mut self, mut victims: Vec<Queued>) -> Option<u64> {
        victims.sort_unstable_by_key(|victim| victim.page);
        let mut evicted = 0;
        loop {
            let mut runs = self.take_runs(&victims);
            self.kernel.move_out_runs(&mut runs);
            let mut stayed = Vec::new();
            let mut unsettled = false;
            let mut rest = victims.as_slice();
            let mut tried = 0;
            for run in &runs {
                let (batch, later) = rest.split_at(run.count as usize);
                rest = later;
                evicted += u64::from(run.moved);
                tried += self.handle_departure(run, batch, &mut stayed);
                unsettled |= run.error == Some(EvictError::Again);
            }
            stayed.extend(rest);
            if unsettled || tried == 0 {
                self.candidates.queue_again(&stayed);
                return (!unsettled).then_some(evicted);
            }
            victims = stayed;
        }
    }

    /// Frames for the victims, which are in order of address, as far as there are frames.
    fn take_runs(&mut self, victims: &[Queued]) -> Vec<Departure> {
        let mut runs = Vec::new();
        let mut rest = victims;
        while let Some(first) = rest.first() {
            let run = rest
                .windows(2)
                .take_while(|pair| pair[1].page.follows(pair[0].page))
                .count() as u32
                + 1;
            let Some((frame, room)) = self.frames.take_empty_run(run) else {
                break;
            };
            let (taken, later) = rest.split_at(room as usize);
            let filled = taken.iter().all(|victim| !self.is_unseen(victim.page));
            runs.push(Departure::new(first.page, frame, room).of_filled(filled));
            rest = later;
        }
        runs
    }

    /// Books what has left, and collects what may be tried again. Returns how many pages have
    /// left or failed.
    fn handle_departure(
        &mut self,
        run: &Departure,
        batch: &[Queued],
        stayed: &mut Vec<Queued>,
    ) -> u32 {
        for step in 0..run.moved {
            self.handle_moved_out(run.page.plus(u64::from(step)), run.frame.plus(step));
        }
        for step in run.moved..run.count {
            self.frames.emptied(run.frame.plus(step));
        }
        let left = &batch[run.moved as usize..];
        let failed = match run.error {
            None | Some(EvictError::Again) => 0,
            Some(EvictError::Locked { more }) => 1 + more as usize,
            Some(_) => 1,
        };
        let (failed, others) = left.split_at(failed.min(left.len()));
        for &queued in failed {
            self.handle_evict_error(queued, run.error);
        }
        stayed.extend(others);
        run.moved + failed.len() as u32
    }

    fn handle_evict_error(&mut self, failed: Queued, error: Option<EvictError>) {
        match error {
            Some(EvictError::Pinned) => self.counters.pages_pinned += 1,
            // The kernel has dropped it: after `madvise`, a moment after its announcement was read,
            // or after MADV_FREE at any time. It is as if it was never touched.
            Some(EvictError::Absent) if self.is_unseen(failed.page) => {
                self.remove(failed.page.space(), PageRange::new(failed.page.page(), 1));
                return;
            }
            _ => {}
        }
        // Later, when the device, the lock or the protection may be gone. Not at once: each try
        // costs as much as moving a page, and a queue of such pages would take all of the time.
        self.set_aside(failed);
    }

    /// True if only the kernel knows the page's content.
    fn is_unseen(&self, page: SpacePage) -> bool {
        self.table
            .entry(page)
            .is_some_and(|entry| entry.is(Flag::Unseen))
    }

    /// The page is in a frame now; what must happen to its content?
    fn handle_moved_out(&mut self, page: SpacePage, frame: FrameIndex) {
        self.counters.pages_evicted += 1;
        self.candidates.leave();
        if self.kernel.moves_memory(page.space()) {
            self.frames.mark_foreign(frame);
        }
        self.eviction_clock = self.eviction_clock.wrapping_add(1);
        let Some(entry) = self.table.entry_mut(page) else {
            // `Candidates::choose` took it from the table in this very call.
            unreachable!("invariant: a victim is in the table");
        };
        entry.set_location(Location::InFrame(frame));
        entry.stamp = self.eviction_clock;
        entry.set(Flag::Unseen, false);
        let prefetched = entry.take(Flag::Prefetched);
        let far = entry.far;
        if self.kernel.frames().page(frame, is_zero) {
            self.counters.pages_zero_dropped += 1;
            self.count_unused(prefetched);
            self.table.remove(page);
            self.release_far(far);
            self.frames.release(frame);
            return;
        }
        let checksum = self.kernel.frames().page(frame, PageChecksum::of);
        // P-25: the same content, and no write of it under way.
        let clean = far.is_some_and(|slot| self.is_written(slot, checksum));
        if clean {
            self.counters.pages_clean_dropped += 1;
            self.count_unused(prefetched);
            self.frames.finish(frame, page);
        } else if !self.share_copy(page, frame, checksum) {
            self.frames.queue(frame, page, checksum);
        }
    }

    /// A prefetched page leaves as it came.
    fn count_unused(&mut self, prefetched: bool) {
        if prefetched {
            self.counters.pages_prefetched_unused += 1;
            self.prefetcher.handle_unused(1);
        }
    }
}
