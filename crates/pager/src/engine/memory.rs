//! How much is local: frames for faults, frames given back to the system, pages that must leave,
//! memory to take charge of.

use super::evict::is_candidate;
use super::{Pager, PagerEvent, PagerFabric};
use crate::entry::PageEntry;
use crate::entry::{Location, WriteBack};
use crate::replacement::Queued;
use crate::{FrameIndex, Kernel};
use alloc::vec::Vec;
use legato_base::{Bytes, Duration, PageNumber, Time};

/// Pages moved out between two looks at the faults: a batch large enough to pay for its TLB
/// flush, small enough that a fault does not wait for more than about 100 us.
const EVICT_BATCH: u64 = 128;
/// Pages that only map zeros taken out at a time: about a millisecond's work.
const ZERO_MAPPED_BATCH: usize = 8192;
/// Looking through all mappings costs up to a millisecond; when it found nothing, wait.
const CHARGE_AGAIN: Duration = Duration::from_millis(20);
/// A program that waits this long while nothing can leave will wait for ever.
const STARVATION: Duration = Duration::from_secs(2);

impl<K: Kernel> Pager<K> {
    /// Takes up to `count` neighbouring frames with memory for pages that come in; at least one,
    /// or None when the fault must wait.
    pub(super) fn take_frames(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        if self.frames.free() == 0 && !self.reclaim_victim() {
            self.grow_frames(1);
        }
        self.frames.take_free_run(count)
    }

    /// As [`Self::take_frames`], but leaves half of the reserve for faults.
    pub(super) fn take_spare_frames(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let spare = u64::from(self.frames.free()).saturating_sub(self.budget.reserve / 2);
        let count = u64::from(count).min(spare) as u32;
        if count == 0 {
            None
        } else {
            self.frames.take_free_run(count)
        }
    }

    /// Frees the frame of the oldest victim whose far copy is good.
    fn reclaim_victim(&mut self) -> bool {
        while let Some(victim) = self.done.pop_front() {
            let Some(page) = self.victim_queued(victim, WriteBack::Done) else {
                continue;
            };
            self.done_count -= 1;
            if let Some(entry) = self.table.entry_mut(page) {
                entry.location = Location::Far;
            }
            self.release_frame(victim.frame);
            return true;
        }
        false
    }

    /// Gives memory to up to `count` empty frames, within the budget.
    fn grow_frames(&mut self, count: u64) {
        let room = self.budget.target().saturating_sub(self.resident);
        let mut wanted = count.min(room);
        while wanted > 0 {
            let ask = u32::try_from(wanted).unwrap_or(u32::MAX);
            let Some((frame, run)) = self.frames.take_empty_run(ask) else {
                return;
            };
            let added = self.kernel.add_frames(frame, run);
            for step in 0..run {
                if step < added {
                    self.frames.release(frame.plus(step));
                } else {
                    self.frames.emptied(frame.plus(step));
                }
            }
            self.resident += u64::from(added);
            wanted -= u64::from(run);
            if added < run {
                return;
            }
        }
    }

    /// Gives the memory of up to `count` free frames back to the system.
    fn shed_frames(&mut self, count: u64) {
        let mut wanted = count;
        while wanted > 0 {
            let ask = u32::try_from(wanted).unwrap_or(u32::MAX);
            let Some((frame, run)) = self.frames.take_free_run(ask) else {
                return;
            };
            let dropped = self.kernel.drop_frames(frame, run);
            for step in 0..run {
                if step < dropped {
                    self.frames.emptied(frame.plus(step));
                } else {
                    self.frames.release(frame.plus(step));
                }
            }
            self.resident = self.resident.saturating_sub(u64::from(dropped));
            wanted -= u64::from(run);
            if dropped < run {
                return;
            }
        }
    }

    /// Keeps local memory within its budget and the reserve full.
    pub(super) fn balance_memory(&mut self, net: &PagerFabric<'_>) {
        if net.now >= self.measure_at {
            self.measure(net.now);
        }
        let over = self.resident.saturating_sub(self.budget.target());
        while u64::from(self.frames.free()) < over + self.budget.reserve
            && self.victims_to_spare(over)
        {
            if !self.reclaim_victim() {
                break;
            }
        }
        self.shed_frames(over.min(u64::from(self.frames.free())));
        let missing = self
            .budget
            .reserve
            .saturating_sub(u64::from(self.frames.free()));
        self.grow_frames(missing);
        self.evict_ahead();
        self.expel_zero_mapped();
    }

    /// Victims are kept as long as frames are not short and memory is not over its target.
    fn victims_to_spare(&self, over: u64) -> bool {
        over > 0 || self.done_count > 0 && u64::from(self.frames.free()) < self.budget.reserve
    }

    fn measure(&mut self, now: Time) {
        self.resident = self.kernel.resident_pages();
        self.counters.cache_bytes_peak = self
            .counters
            .cache_bytes_peak
            .max(Bytes::pages(self.resident).0);
        self.measure_at = now + self.budget.measure_after(self.resident);
        // What the pager is not in charge of grows faster than pages leave. Once it is in charge
        // of everything, growth waits for frames.
        if self.resident > self.budget.target() + self.budget.headroom / 2 {
            self.take_charge(u64::MAX);
        } else if self.is_pressed() && now >= self.charge_again_at {
            self.share_the_load(now);
        }
    }

    /// Takes charge of more when most local memory is none of the pager's: otherwise the few pages
    /// that it may evict leave and come back without end, while the rest stays for ever.
    fn share_the_load(&mut self, now: Time) {
        let program = self
            .resident
            .saturating_sub(u64::from(self.frames.with_memory()));
        if self.tracked * 2 < program {
            let before = self.tracked;
            self.take_charge(program / 4);
            if self.tracked == before {
                self.charge_again_at = now + CHARGE_AGAIN;
            }
        }
    }

    const fn is_pressed(&self) -> bool {
        self.resident + self.budget.reserve >= self.budget.target()
    }

    /// Evicts before the reserve is empty, so that no fault has to wait for it.
    fn evict_ahead(&mut self) {
        self.eviction_owed = false;
        if !self.is_pressed() {
            return;
        }
        let over = self.resident.saturating_sub(self.budget.target());
        let wanted = over + self.budget.reserve + self.budget.victims_kept();
        let ready = u64::from(self.frames.free())
            + self.done_count
            + self.write_queue.len() as u64
            + u64::from(self.writes_in_flight);
        let Some(missing) = wanted.checked_sub(ready).filter(|&missing| missing > 0) else {
            return;
        };
        let batch = missing.min(EVICT_BATCH);
        let evicted = self.evict(batch);
        self.eviction_owed = evicted.is_some_and(|evicted| evicted > 0) && batch < missing;
        if evicted.is_some_and(|evicted| evicted < batch) {
            self.take_charge(batch);
        }
    }

    /// Takes charge of more of the program's memory; its resident pages become candidates.
    fn take_charge(&mut self, pages: u64) {
        let mut ranges = Vec::new();
        self.kernel.register_more(pages, &mut ranges);
        for (range, resident) in ranges {
            self.counters.registered_bytes += Bytes::pages(range.count).0;
            let zeros = self.kernel.zero_mapped(range);
            for page in resident {
                let is_zero = zeros.binary_search(&page).is_ok();
                let Some(queued) = self.adopt(page) else {
                    continue;
                };
                if is_zero {
                    self.zero_mapped.push(queued);
                } else {
                    self.replacement.inserted(queued);
                }
            }
        }
    }

    /// A page that was resident before the pager was in charge of it; None if it is known.
    fn adopt(&mut self, page: PageNumber) -> Option<Queued> {
        if self.table.entry(page).is_some() {
            return None;
        }
        let stamp = self.next_stamp();
        let location = Location::Resident;
        let entry = PageEntry {
            location,
            far: None,
            prefetched: false,
            unseen: true,
            returning: false,
            stamp,
        };
        self.table.insert(page, entry);
        self.tracked += 1;
        Some(Queued { page, stamp })
    }

    /// Takes pages out that only map zeros. They free nothing, but writing them would grow local
    /// memory without a fault, as fast as the kernel can copy; once out, the write faults and
    /// waits its turn.
    fn expel_zero_mapped(&mut self) {
        if self.zero_mapped.is_empty() {
            return;
        }
        let room = (self.frames.empty() as usize).min(ZERO_MAPPED_BATCH);
        let rest = self.zero_mapped.split_off(room.min(self.zero_mapped.len()));
        let batch = core::mem::replace(&mut self.zero_mapped, rest);
        let table = &self.table;
        let valid = |queued: &Queued| is_candidate(table, *queued);
        let batch: Vec<Queued> = batch.into_iter().filter(valid).collect();
        // Pages that cannot leave now are queued like any others.
        let _ = self.evict_pages(batch);
        let surplus = u64::from(self.frames.free()).saturating_sub(self.budget.reserve);
        self.shed_frames(surplus);
        // The frames that were shed may have held no memory.
        self.resident = self.kernel.resident_pages();
    }

    /// Says so, once, when the program cannot go on for want of memory anywhere.
    pub(super) fn report_starvation(&mut self, now: Time) {
        let blocked = self.writes_in_flight == 0 && !self.write_queue.is_empty();
        let full = blocked && self.store.is_full();
        let idle =
            self.operations.is_empty() && self.write_queue.is_empty() && self.done_count == 0;
        if self.stalled.is_empty() || self.end_reported || !(full || idle) {
            self.starved_since = None;
            return;
        }
        let since = *self.starved_since.get_or_insert(now);
        if now.since(since) <= STARVATION {
            return;
        }
        self.end_reported = true;
        self.events.push_back(if full {
            PagerEvent::FarMemoryFull {
                held: self.store.held(),
            }
        } else {
            PagerEvent::NothingToEvict
        });
    }
}
