//! Local memory that cannot leave: it is tried again, and whoever could help is told.

use super::{Pager, PagerEvent, Stuck};
use crate::replacement::Queued;
use crate::{FarShortage, Kernel};
use legato_base::timeouts::{FAR_MEMORY, Patience, STARVATION, STARVATION_SHARED};
use legato_base::{Bytes, Duration, Time};
use legato_fabric::Refused;

/// Pages that could not leave are tried again so often.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// And so many of them take their turn again among the others, unless threads wait and there are no
/// others.
const TRIED_MAX: usize = 1024;
/// As many at least, so that it shows when they can leave again.
const TRIED_MIN: usize = 16;
/// Memory is stuck if nothing can leave so many times in a row. Devices hold pages for less.
const TIMES_IN_VAIN: u32 = 5;

/// How many pages that could not leave are tried again at a time. A try in vain costs up to a tenth of a
/// millisecond: whoever has much locked memory shall not spend all of its time on it.
#[derive(Debug)]
struct Tries {
    next: usize,
    /// Pages that could not leave since the last time.
    failed: usize,
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            next: TRIED_MAX,
            failed: 0,
        }
    }
}

impl Tries {
    /// Half as many as the last time if most were in vain, and otherwise twice as many.
    fn next(&mut self) -> usize {
        let is_in_vain = core::mem::take(&mut self.failed) > self.next / 2;
        let next = if is_in_vain {
            self.next / 2
        } else {
            self.next * 2
        };
        self.next = next.clamp(TRIED_MIN, TRIED_MAX);
        self.next
    }
}

/// What cannot leave, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// When pages are tried again that could not leave.
    retry_at: Time,
    tries: Tries,
    /// How often in a row nothing could leave, although more was local than there may be.
    times_in_vain: u32,
    /// Threads have waited since then.
    since: Option<Patience>,
    pub(super) is_starving: bool,
    /// Too much is in quarantine for anything to be started.
    nic_holds: bool,
    /// The program's end.
    is_told: bool,
}

impl<K: Kernel> Pager<K> {
    /// A page that was chosen could not leave.
    pub(super) fn set_aside(&mut self, failed: Queued) {
        self.shortage.tries.failed += 1;
        self.candidates.set_aside(failed);
    }

    /// Takes note of whether an operation that was to be started was refused, and why.
    pub(super) fn note_started(&mut self, refused: Option<Refused>) {
        self.shortage.nic_holds = refused == Some(Refused::QuarantineFull);
    }

    /// What could not leave a while ago may be able to now.
    pub(super) fn retry_unmovable(&mut self, now: Time) {
        if now < self.shortage.retry_at {
            return;
        }
        self.shortage.retry_at = now + TRY_AGAIN;
        self.shortage.times_in_vain = if self.may_be_stuck() {
            self.kernel.drop_droppable();
            self.local.measure_at = now;
            self.shortage.times_in_vain.saturating_add(1)
        } else {
            0
        };
        if self.waiting.stalled.is_empty() || self.pages_to_spare() > 0 {
            self.candidates.take_back(self.shortage.tries.next());
            return;
        }
        // Themselves, and not what else would be chosen in their place: that is the rest of the working set.
        let room = self.frames.empty() as usize;
        let again = self.candidates.take_unmovable(room, &self.table);
        let _ = self.evict_pages(again);
    }

    /// More is local than there may be, and that has not changed for a while.
    pub(super) const fn is_stuck(&self) -> bool {
        self.shortage.times_in_vain >= TIMES_IN_VAIN && self.local.pages > self.budget.limit
    }

    /// Everything that could leave has been tried.
    fn may_be_stuck(&self) -> bool {
        self.local.pages > self.budget.limit
            && self.pages_to_spare() == 0
            && self.is_nothing_leaving()
            && self.children.kept.is_empty()
            && !self.kernel.is_changing()
    }

    fn is_nothing_leaving(&self) -> bool {
        self.operations.is_empty() && self.frames.queued() == 0 && self.frames.done() == 0
    }

    fn stuck_memory(&self) -> Stuck {
        Stuck {
            local: Bytes::pages(self.local.pages),
            limit: Bytes::pages(self.budget.limit),
            frames: Bytes::pages(u64::from(self.frames.with_memory())),
            charged: Bytes::pages(self.candidates.count()),
            stayed: Bytes::pages(self.candidates.unmovable()),
        }
    }

    fn far_shortage(&self) -> FarShortage {
        if self.shortage.nic_holds {
            let held = Bytes(self.counters.quarantined_bytes_current);
            return FarShortage::NicHolds { held };
        }
        self.store.shortage()
    }

    /// Says so, once, when the program cannot go on for want of memory anywhere.
    pub(super) fn report_starvation(&mut self, now: Time) {
        let blocked = self.frames.writing() == 0 && self.frames.queued() > 0;
        let full = blocked && self.store.is_full() || self.shortage.nic_holds;
        let may_starve = !self.waiting.stalled.is_empty()
            && !self.shortage.is_told
            && (full || self.is_nothing_leaving());
        if !may_starve || self.kernel.is_changing() {
            self.shortage.since = None;
            self.shortage.is_starving = false;
            return;
        }
        let starved = self
            .shortage
            .since
            .get_or_insert(Patience::new(TRY_AGAIN, now));
        let waited = starved.waited(now);
        // In its first turn a thread may wait for what that turn has made room for.
        self.shortage.is_starving = waited > Duration::ZERO;
        let patience = match full {
            true => FAR_MEMORY,
            false if self.may_get_more() => STARVATION_SHARED,
            false => STARVATION,
        };
        if waited <= patience {
            return;
        }
        self.shortage.is_told = true;
        self.events.push_back(if full {
            PagerEvent::FarMemoryFull(self.far_shortage())
        } else {
            PagerEvent::NothingToEvict(self.stuck_memory())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_are_tried_while_they_fail_and_more_when_they_leave() {
        let mut tries = Tries::default();
        let mut next = |failed| {
            tries.failed = failed;
            tries.next()
        };
        assert_eq!(
            [next(0), next(1024), next(512), next(512)],
            [1024, 512, 256, 128]
        );
        assert_eq!([next(128), next(64), next(32), next(16)], [64, 32, 16, 16]);
        assert_eq!([next(8), next(0), next(2)], [32, 64, 128]);
    }
}
