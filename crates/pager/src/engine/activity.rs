//! Does the program run? While nobody does, and nobody waits for the pager either, memory need not be
//! measured at the pace at which a program can fill it.

use super::Pager;
use crate::Kernel;
use crate::budget::MEASURE_INTERVAL_MAX;
use legato_base::{Duration, Time};

/// Without having run for so long a program rests. One that sleeps for a moment between two pieces of
/// work is not worth the system calls that a rest begins and ends with.
const REST_AFTER: Duration = Duration::from_millis(10);

/// What the program's processor time has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nobody can tell, or it was not asked for yet.
    #[default]
    Unknown,
    /// It was `spent` when it was last asked for, and had grown until `since`, or memory had.
    Runs { spent: Duration, since: Time },
    /// It is `spent`; the kernel tells when it grows.
    Rests { spent: Duration },
}

impl<K: Kernel> Pager<K> {
    /// True if the program rested and has begun to run, or somebody needs a page of it.
    pub(super) fn stirs(&mut self) -> bool {
        let Activity::Rests { spent } = self.local.activity else {
            return false;
        };
        if !self.is_busy() && self.kernel.processor_time() == Some(spent) {
            return false;
        }
        self.stop_resting();
        true
    }

    /// When to measure again, after local memory was found to be what it is now, and to have been
    /// `before`. Memory can grow though nobody runs: others may write into it.
    pub(super) fn measure_next(&mut self, before: u64, now: Time) -> Time {
        let is_enough = self.local.pages <= self.budget.target() && !self.is_busy();
        let is_still = is_enough && self.local.pages == before;
        match (self.kernel.processor_time(), self.local.activity) {
            (Some(now_spent), Activity::Rests { spent }) if now_spent == spent && is_still => {}
            (Some(now_spent), Activity::Runs { spent, since })
                if now_spent == spent && is_still =>
            {
                if now.since(since) >= REST_AFTER && self.kernel.wake_when_run(true) {
                    self.local.activity = Activity::Rests { spent };
                    // Somebody may have run before that was in effect.
                    self.stirs();
                }
            }
            (Some(spent), _) => {
                self.stop_resting();
                self.local.activity = Activity::Runs { spent, since: now };
            }
            (None, _) => self.stop_resting(),
        }
        match self.local.activity {
            Activity::Rests { .. } => now + MEASURE_INTERVAL_MAX,
            _ => now + self.budget.measure_after(self.local.pages),
        }
    }

    pub(super) const fn rests(&self) -> bool {
        matches!(self.local.activity, Activity::Rests { .. })
    }

    /// Back to the pace of a program that runs.
    pub(super) fn stop_resting(&mut self) {
        if self.rests() {
            self.kernel.wake_when_run(false);
        }
        self.local.activity = Activity::Unknown;
    }
}
