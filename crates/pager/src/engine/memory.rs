//! How much is local: frames for faults, frames given back to the system, pages that must leave,
//! memory to take charge of.

use super::activity::Activity;
use super::candidates::Origin;
use super::write_back::FEW_QUEUED;
use super::{Pager, PagerFabric};
use crate::entry::Location;
use crate::{Charge, FrameIndex, Kernel, SpaceId, SpacePage};
use alloc::vec::Vec;
use core::mem::replace;
use legato_base::{Bytes, Duration, Time};

/// Pages moved out between two looks at the faults: a batch large enough to pay for its TLB
/// flush, small enough that a fault does not wait for more than about 100 us.
const EVICT_BATCH: u64 = 128;
/// Pages that are moved out together, if none are brought at the same time:
/// one after the other they find the code and the tables in the processor's caches. With 64 no time is won,
/// and a fault that comes meanwhile waits longer.
const EVICT_TOGETHER: u64 = 32;
/// Pages moved out at the least where each batch has a price of its own: copying and dropping takes
/// two more tasks' turns, however few the pages are.
const EVICT_LEAST_BY_COPY: u64 = 64;
/// Pages that only map zeros taken out at a time: about a millisecond's work.
const ZERO_MAPPED_BATCH: usize = 8192;
/// Looking through all mappings costs up to a millisecond, where a program has not tens of thousands of
/// them; when it found nothing, wait.
const CHARGE_AGAIN: Duration = Duration::from_millis(20);
/// And when the pager is in charge of most of it, so that the rest is a matter of fairness.
const SHARE_AGAIN: Duration = Duration::from_millis(250);
/// Between two looks pass so many times what the first has cost.
const LOOKS_APART: u64 = 10;
/// After so long without traffic victims are given up, since they are no sign of anything any more.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Frames that get new memory while a fault waits for one.
const RENEWED_IN_FAULT: u64 = 8;

/// What is local, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct LocalMemory {
    /// Of all address spaces and the frames, in pages: as measured, and what has changed since.
    pub(super) pages: u64,
    pub(super) measure_at: Time,
    pub(super) activity: Activity,
    /// When to look again for memory to take charge of, after there was none.
    look_again_at: Time,
    /// The least local memory since that time.
    least_since_look: u64,
    /// When to look again where only fairness asks for it.
    share_again_at: Time,
    /// Pages that had come or left on demand by then, and none since.
    traffic: u64,
    quiet_since: Time,
    /// More pages should leave than one batch took out.
    pub(super) owes_eviction: bool,
    /// No more faults get frames in this turn.
    is_receding: bool,
}

impl<K: Kernel> Pager<K> {
    /// Takes up to `count` neighbouring frames with memory for pages that come in; at least one,
    /// or None when the fault must wait.
    pub(super) fn take_frames(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        if self.local.is_receding {
            return None;
        }
        let taken = self.take_any_frames(count);
        self.local.is_receding = self.is_beyond_limit();
        taken
    }

    fn take_any_frames(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        if self.frames.free() == 0 && self.frames.stale() == 0 && !self.reclaim_victim() {
            self.grow_frames(1);
        }
        if self.frames.free() == 0 {
            let dropped = self.drop_stale();
            self.add_memory(dropped.min(RENEWED_IN_FAULT));
        }
        self.frames.take_free_run(count)
    }

    /// As [`Self::take_frames`], but leaves some of the frames, and half of the room, for faults.
    pub(super) fn take_spare_frames(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let frames = u64::from(self.frames.free()).saturating_sub(self.budget.frames_ready() / 4);
        let room = self.room().saturating_sub(self.budget.reserve / 2);
        let count = u64::from(count).min(frames).min(room) as u32;
        if count == 0 {
            None
        } else {
            self.frames.take_free_run(count)
        }
    }

    /// Frees the frame of the oldest victim whose far copy is good.
    fn reclaim_victim(&mut self) -> bool {
        let Some(frame) = self.frames.oldest_done() else {
            return false;
        };
        let page = self.frames.state(frame).page();
        if let Some(entry) = page.and_then(|page| self.table.entry_mut(page)) {
            entry.set_location(Location::Far);
        }
        self.frames.release(frame);
        true
    }

    /// Gives the memory back that was moved out of the program and serves no more. Returns how many
    /// frames are empty now.
    fn drop_stale(&mut self) -> u64 {
        let mut total = 0;
        while let Some((frame, run)) = self.frames.take_stale_run(u32::MAX) {
            let dropped = self.drop_memory(frame, run);
            total += u64::from(dropped);
            if dropped < run {
                break;
            }
        }
        total
    }

    /// Takes the memory of `run` used frames away. What cannot be dropped now is released.
    fn drop_memory(&mut self, frame: FrameIndex, run: u32) -> u32 {
        let dropped = self.kernel.drop_frames(frame, run);
        for step in 0..run {
            if step < dropped {
                self.frames.emptied(frame.plus(step));
            } else {
                self.frames.release(frame.plus(step));
            }
        }
        self.local.pages = self.local.pages.saturating_sub(u64::from(dropped));
        dropped
    }

    /// Gives memory to up to `count` empty frames, within the budget.
    fn grow_frames(&mut self, count: u64) {
        self.add_memory(count.min(self.room()));
    }

    /// Gives memory to up to `count` empty frames.
    fn add_memory(&mut self, count: u64) {
        let mut wanted = count;
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
            self.local.pages += u64::from(added);
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
            let dropped = self.drop_memory(frame, run);
            wanted -= u64::from(run);
            if dropped < run {
                return;
            }
        }
    }

    /// Keeps local memory within its budget and the reserve full.
    pub(super) fn balance_memory(&mut self, net: &PagerFabric<'_>) {
        // In every turn: with pages that came by faults there is enough to evict, and nobody looks for
        // more.
        self.charge(Kernel::finish_registering);
        if net.now >= self.local.measure_at || self.stirs() {
            self.measure(net.now);
        }
        let lacking = self.lacking_room();
        while self.frames_to_spare() < lacking && self.reclaim_victim() {}
        if self.room() < self.budget.reserve / 2
            || self.frames_to_spare() >= self.budget.drop_batch()
        {
            self.drop_stale();
            self.shed_frames(self.surplus_frames());
        }
        let over = self.local.pages.saturating_sub(self.budget.target());
        self.shed_frames(over.min(u64::from(self.frames.free())));
        // Nothing of a small program ever leaves: it needs no frames.
        if self.candidates.count() > 0 || self.is_pressed() {
            let ready = u64::from(self.frames.incoming());
            self.grow_frames(self.budget.frames_ready().saturating_sub(ready));
        }
        // One fault in each turn, so that whoever holds up the others goes on too.
        self.local.is_receding = false;
        self.retry_unmovable(net.now);
        self.search_strays(net.now);
        self.evict_ahead(net.now);
        self.expel_zero_mapped(net.now);
    }

    /// True if there is more memory than there may be, and it is becoming less. A page that leaves
    /// makes room for another only if it leaves nothing behind: where forked children share it, it
    /// is in memory until it has left them all.
    fn is_beyond_limit(&self) -> bool {
        let leaving =
            self.local.owes_eviction || self.frames.done() > 0 || self.frames.writing() > 0;
        leaving && self.local.pages > self.budget.limit
    }

    /// Pages that may come until memory is at its target.
    const fn room(&self) -> u64 {
        self.budget.target().saturating_sub(self.local.pages)
    }

    /// Pages that must go for the reserve to be whole.
    const fn lacking_room(&self) -> u64 {
        (self.local.pages + self.budget.reserve).saturating_sub(self.budget.target())
    }

    /// Free frames beyond those that are to be ready.
    fn surplus_frames(&self) -> u64 {
        let surplus = u64::from(self.frames.incoming()).saturating_sub(self.budget.frames_ready());
        surplus.min(u64::from(self.frames.free()))
    }

    /// Frames whose memory can be dropped.
    fn frames_to_spare(&self) -> u64 {
        u64::from(self.frames.stale()) + self.surplus_frames()
    }

    fn measure(&mut self, now: Time) {
        let before = self.local.pages;
        self.local.pages = self.count_resident(now);
        self.local.least_since_look = self.local.least_since_look.min(self.local.pages);
        self.counters.cache_bytes_peak = self
            .counters
            .cache_bytes_peak
            .max(Bytes::pages(self.local.pages).0);
        self.give_up_victims(now);
        self.local.measure_at = self.measure_next(before, now);
        // What the pager is not in charge of grows faster than pages leave. Once it is in charge
        // of everything, growth waits for frames.
        if self.local.pages > self.budget.target() + self.budget.headroom / 2 {
            self.look_for_more(u64::MAX, now);
        } else if self.is_pressed() && !self.rests() {
            self.share_the_load(now);
        }
    }

    /// A program that computes on what is local needs no victims. Their room is one in which memory may grow
    /// unseen, so that it need not be measured as often.
    fn give_up_victims(&mut self, now: Time) {
        let traffic = self.traffic();
        if replace(&mut self.local.traffic, traffic) != traffic {
            self.local.quiet_since = now;
        } else if now.since(self.local.quiet_since) >= QUIET_AFTER {
            let given_up = (0..EVICT_BATCH).take_while(|_| self.reclaim_victim());
            let count = given_up.count() as u64;
            self.shed_frames(count);
        }
    }

    /// Takes charge of more when much local memory is none of the pager's: otherwise the pages that it may
    /// evict leave and come back without end, while the rest stays for ever. An eighth may be what can never
    /// leave: stacks, the agent's heap.
    fn share_the_load(&mut self, now: Time) {
        let program = self
            .local
            .pages
            .saturating_sub(u64::from(self.frames.with_memory()));
        let others = program.saturating_sub(self.candidates.count());
        let is_most = others * 2 > program;
        if is_most || others * 8 > program && now >= self.local.share_again_at {
            let took = self.look_for_more(program / 4, now);
            self.local.share_again_at = now + SHARE_AGAIN.max(apart(took));
        }
    }

    /// Takes charge of more, unless there was no more a moment ago, or nobody has run since. What has come
    /// since then shows as growth. To look in every turn would take all of the time, of which the program needs some.
    /// Returns how long it has looked.
    fn look_for_more(&mut self, pages: u64, now: Time) -> Duration {
        let grown = self.local.pages.saturating_sub(self.local.least_since_look);
        let is_early = now < self.local.look_again_at || self.rests();
        // As much comes and goes in the use of the reserve.
        if is_early && grown <= self.budget.headroom / 32 + self.budget.reserve {
            return Duration::ZERO;
        }
        let before = self.candidates.count();
        let mut took = Duration::ZERO;
        self.charge(|kernel, charges| took = kernel.register_more(pages, charges));
        if self.candidates.count() == before {
            self.suspect_strays(now);
            self.local.look_again_at = now + CHARGE_AGAIN.max(apart(took));
            self.local.least_since_look = self.local.pages;
        }
        took
    }

    pub(super) const fn is_pressed(&self) -> bool {
        self.local.pages + self.budget.reserve >= self.budget.target()
    }

    /// Evicts before the reserve is empty, so that no fault has to wait for it.
    fn evict_ahead(&mut self, now: Time) {
        self.local.owes_eviction = false;
        if !self.is_pressed() {
            return;
        }
        let wanted = self.lacking_room() + self.budget.victims_kept();
        let ready = self.frames_to_spare()
            + u64::from(self.frames.done() + self.frames.queued() + self.frames.writing());
        let missing = wanted.saturating_sub(ready);
        if missing < self.evicted_together() {
            return;
        }
        // A page that forked children share frees nothing until it has left them all, but leaves a copy in a
        // frame each time.
        let is_over = self.local.pages > self.budget.target();
        let may_grow = is_over && !self.children.alive.is_empty();
        if may_grow && self.frames.queued() >= FEW_QUEUED {
            return;
        }
        let least = if self.kernel.moves_memory(SpaceId::OWN) {
            1
        } else {
            EVICT_LEAST_BY_COPY
        };
        let batch = missing.clamp(least, EVICT_BATCH);
        let evicted = self.evict(batch);
        self.local.owes_eviction = evicted.is_some_and(|evicted| evicted > 0) && batch < missing;
        if evicted.is_some_and(|evicted| evicted < batch) {
            self.look_for_more(batch, now);
        }
    }

    /// Pages that must be missing in the reserve before any are moved out. While a window is brought it is not
    /// held up more often than it must be: the other half of the reserve is for faults.
    fn evicted_together(&self) -> u64 {
        if self.brought_ahead {
            EVICT_BATCH.min(self.budget.reserve * 3 / 8)
        } else {
            EVICT_TOGETHER.min(self.budget.drop_batch())
        }
    }

    /// Takes charge of more of the program's memory; its resident pages become candidates.
    fn charge(&mut self, find: impl FnOnce(&mut K, &mut Vec<Charge>)) {
        let mut charges = Vec::new();
        find(&mut self.kernel, &mut charges);
        for Charge {
            space,
            range,
            resident,
        } in charges
        {
            self.counters.registered_bytes += Bytes::pages(range.count).0;
            let zeros = self.kernel.zero_mapped(space, range);
            for page in resident {
                let origin = match zeros.binary_search(&page) {
                    Ok(_) => Origin::Zeros,
                    Err(_) => Origin::New,
                };
                self.adopt(SpacePage::new(space, page), origin);
            }
        }
    }

    /// Takes pages out that only map zeros. They free nothing, but writing them would grow local
    /// memory without a fault, as fast as the kernel can copy; once out, the write faults and
    /// waits its turn.
    fn expel_zero_mapped(&mut self, now: Time) {
        if !self.candidates.has_zero_mapped() {
            return;
        }
        let room = (self.frames.empty() as usize).min(ZERO_MAPPED_BATCH);
        let batch = self.candidates.take_zero_mapped(room, &self.table);
        // Pages that cannot leave now are queued like any others.
        let _ = self.evict_pages(batch);
        self.drop_stale();
        self.shed_frames(self.surplus_frames());
        // The frames that were shed may have held no memory.
        self.local.pages = self.count_resident(now);
    }
}

/// How long after the begin of a look that took so long there may be another.
const fn apart(took: Duration) -> Duration {
    Duration::from_nanos(took.as_nanos().saturating_mul(LOOKS_APART))
}
