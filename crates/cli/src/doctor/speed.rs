//! How fast a fault is served here in each way, and how fast a page comes from a memory node.

use super::check::Speed;
use crate::bench::read;
use legato_base::Duration;
use legato_pager::uffd::probe::{Offered, Scratch, Way};
use legato_pager::uffd::{Mask, OpenError};
use std::sync::atomic::{AtomicBool, Ordering};

/// Faults of each kind: enough for a median, and a few hundredths of a second.
const PAGES: u64 = 1024;
/// Pages that are prefetched in one go.
const BATCH: u64 = 64;

/// `offered` is None if this user may not use userfaultfd.
pub(super) fn measure(offered: Option<&Offered>, mask: Mask) -> Vec<Speed> {
    let without = |missing: &str| Err(missing.to_owned());
    let faults = |has: fn(&Offered) -> bool, way| match offered {
        None => without("no right to use userfaultfd"),
        Some(offered) if !has(offered) => without("this kernel cannot"),
        Some(_) => served(way, mask),
    };
    let batched = match offered {
        Some(offered) if offered.moves => moved_in_batches(mask),
        Some(_) => without("this kernel cannot"),
        None => without("no right to use userfaultfd"),
    };
    let speed = |name, what, p50_ns| Speed { name, what, p50_ns };
    vec![
        speed(
            "kernel",
            "a first touch that the kernel serves itself",
            served(Way::Kernel, mask),
        ),
        speed(
            "copy",
            "a fault served by another thread, UFFDIO_COPY",
            faults(|_| true, Way::Copy),
        ),
        speed(
            "move",
            "a fault served by another thread, UFFDIO_MOVE",
            faults(|offered| offered.moves, Way::Move),
        ),
        speed(
            "move-batch",
            "one page of 64 that are moved together",
            batched,
        ),
        speed(
            "protected",
            "a write to a protected page, let through",
            faults(|offered| offered.protects, Way::Protected),
        ),
        speed(
            "read",
            "a read of 4 KiB from a memory node on this machine",
            read::quick().map_err(|failure| failure.text),
        ),
    ]
}

fn served(way: Way, mask: Mask) -> Result<u64, String> {
    let scratch = Scratch::open(way, PAGES, mask).map_err(said)?;
    if way == Way::Kernel {
        return median(scratch.touch_all());
    }
    let stop = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| scratch.serve(&stop));
        let times = scratch.touch_all();
        stop.store(true, Ordering::Release);
        times
    });
    median(times)
}

fn moved_in_batches(mask: Mask) -> Result<u64, String> {
    let scratch = Scratch::open(Way::Move, PAGES, mask).map_err(said)?;
    median(scratch.move_in(BATCH)).map(|batch| batch / BATCH)
}

fn said(error: OpenError) -> String {
    error.to_string()
}

fn median(mut times: Vec<Duration>) -> Result<u64, String> {
    times.sort_unstable();
    let middle = times.get(times.len() / 2);
    middle
        .map(|time| time.as_nanos())
        .ok_or_else(|| "nothing was served".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        let times = [5, 1, 9].map(Duration::from_nanos).to_vec();
        assert_eq!(median(times), Ok(5));
        assert!(median(Vec::new()).is_err());
    }

    #[test]
    fn every_first_touch_is_timed() {
        let scratch = Scratch::open(Way::Kernel, 100, Mask::default()).unwrap();
        assert_eq!(scratch.touch_all().len(), 100);
        assert!(scratch.move_in(4).is_empty());
    }
}
