//! Anonymous memory of one address space, as exactly as it can be told.
//!
//! Linux before 6.16 shows RssAnon without what processors have not added to it yet: up to 32 pages, or two
//! for each processor if that is more, for each processor that a thread ever ran on (Linux 6.2,
//! `percpu_counter`), which is hundreds of MiB on a machine with two hundred; before that, 64 pages for each thread.
//! Newer ones add it all up (`get_mm_counter_sum` in fs/proc/task_mmu.c). So on an older kernel the page tables are
//! walked now and then, and what RssAnon was off by then is taken off.

use crate::uffd::agent::now;
use crate::uffd::features::Mask;
use crate::uffd::probe::version_of;
use crate::uffd::proc::beginning_of;
use crate::uffd::residency::Residency;
use legato_base::{Duration, Time};

/// The first kernel that adds it all up.
const EXACT_SINCE: (u32, u32) = (6, 16);
/// Share of the time that may go into walking page tables: a fiftieth.
const REST: u64 = 49;
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(1);

/// How an address space is counted.
#[derive(Debug)]
pub(super) enum RssCounter {
    Exact,
    Corrected(Correction),
}

/// What RssAnon was off by when it was last compared.
#[derive(Debug)]
pub(super) struct Correction {
    /// In pages; above zero if there are more than it says.
    missing: i64,
    again_at: Time,
}

impl RssCounter {
    pub(super) fn new(mask: Mask) -> Self {
        if is_exact(mask) {
            return Self::Exact;
        }
        Self::Corrected(Correction {
            missing: 0,
            again_at: Time::ZERO,
        })
    }

    /// Pages, or None if they cannot be counted any more.
    pub(super) fn count(&mut self, residency: &Residency) -> Option<u64> {
        let counted = residency.anonymous_pages()?;
        let Self::Corrected(correction) = self else {
            return Some(counted);
        };
        let begin = now();
        if begin < correction.again_at {
            return Some(correction.applied(counted));
        }
        let walked = residency.walked_pages()?;
        let later = residency.anonymous_pages()?;
        let end = now();
        correction.compare(walked, counted, later);
        let rest = Duration::from_nanos(end.since(begin).as_nanos() * REST);
        correction.again_at = end + rest.clamp(REST_MIN, REST_MAX);
        Some(correction.applied(later))
    }
}

impl Correction {
    fn applied(&self, counted: u64) -> u64 {
        counted.saturating_add_signed(self.missing)
    }

    /// So many pages were there, and RssAnon said that before they were counted and this afterwards. What
    /// explains both is as good as before, and what is nearest to it is the least that must be wrong.
    fn compare(&mut self, walked: u64, before: u64, after: u64) {
        let off = |counted: u64| walked.cast_signed() - counted.cast_signed();
        let (one, other) = (off(before), off(after));
        self.missing = self.missing.clamp(one.min(other), one.max(other));
    }
}

/// True if this kernel's RssAnon is all that there is.
pub(in crate::uffd) fn is_exact(mask: Mask) -> bool {
    !mask.exact_rss && kernel_is_exact(&beginning_of("sys/kernel/osrelease").unwrap_or_default())
}

/// Of a kernel whose release says nothing the worst is assumed.
fn kernel_is_exact(release: &str) -> bool {
    version_of(release).is_some_and(|version| version >= EXACT_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_6_16_are_not_exact() {
        for release in ["6.16.0", "6.18.44-generic", "7.0-rc1", "10.1"] {
            assert!(kernel_is_exact(release), "{release}");
        }
        for release in ["6.15.11", "6.1.0-18-amd64", "5.10.0", "4.18", "", "linux"] {
            assert!(!kernel_is_exact(release), "{release}");
        }
    }

    #[test]
    fn what_is_missing_is_told_as_far_as_a_moving_count_tells_it() {
        let mut correction = Correction {
            missing: 0,
            again_at: Time::ZERO,
        };
        // Nothing moved: 30 pages are not in the count.
        correction.compare(1030, 1000, 1000);
        assert_eq!(correction.applied(1100), 1130);
        // 200 pages came while they were counted, of which some were seen: 30 is as good as before.
        correction.compare(1150, 1000, 1200);
        assert_eq!(correction.applied(1200), 1230);
        // Even if none of those was seen, 100 are missing by now; and pages that went make it too many.
        correction.compare(1300, 1000, 1200);
        assert_eq!(correction.applied(1200), 1300);
        correction.compare(900, 1000, 950);
        assert_eq!(correction.applied(950), 900);
        assert_eq!(correction.applied(20), 0);
    }

    #[test]
    fn a_walk_finds_what_is_there() {
        let mut mask = Mask::default();
        let residency = Residency::open(None, true).unwrap();
        let exact = RssCounter::new(mask).count(&residency).unwrap();
        mask.exact_rss = true;
        let mut corrected = RssCounter::new(mask);
        let first = corrected.count(&residency).unwrap();
        let RssCounter::Corrected(correction) = &corrected else {
            panic!("exact, though it is hidden");
        };
        assert!(correction.again_at > now());
        assert!(correction.missing.unsigned_abs() < 64, "{correction:?}");
        assert!(first.abs_diff(exact) < 64, "{first} {exact}");
    }
}
