//! Futexes on far words (futex(2)).

use crate::ground::{Case, Checked, Failure, Ground, Outcome, ensure, outcome};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use legato_test_programs::Arena;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("futex-compares", futex_compares),
    ("futex-wakes", futex_wakes),
    ("futex-requeues", futex_requeues),
];

/// A sleeper is there after this long, or never. Shorter than what a case may take, so that a
/// case in which none comes says so.
const LIMIT: Duration = Duration::from_secs(60);

fn word(region: &Arena, page: u64) -> &AtomicU32 {
    // SAFETY: the word is inside the region and aligned; the cases reach it in this size only.
    unsafe { &*region.address(page).cast::<AtomicU32>() }
}

fn futex(
    word: &AtomicU32,
    operation: i32,
    value: u32,
    more: usize,
    other: usize,
    compare: u32,
) -> Result<usize, i32> {
    outcome!(syscall(
        libc::SYS_futex,
        word.as_ptr(),
        operation,
        value,
        more,
        other,
        compare
    ))
}

/// Sleeps until it is woken.
fn wait(word: &AtomicU32, flags: i32, value: u32) -> Result<usize, i32> {
    futex(word, libc::FUTEX_WAIT | flags, value, 0, 0, 0)
}

/// Does the steps of a case that has others sleep on its words. If they fail the sleepers are let
/// go, and those who are about to sleep: their threads are waited for before the case can say why.
fn letting_go(words: &[&AtomicU32], steps: impl FnOnce() -> Checked) -> Checked {
    let result = steps();
    if result.is_err() {
        for word in words {
            word.fetch_xor(u32::MAX, Release);
            for flags in [0, libc::FUTEX_PRIVATE_FLAG] {
                let everybody = i32::MAX as u32;
                let _ = futex(word, libc::FUTEX_WAKE | flags, everybody, 0, 0, 0);
            }
        }
    }
    result
}

/// The kernel reads the far word, and does not sleep because it is another.
fn futex_compares(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(8)?;
    ground.evict(&region)?;
    for flags in [0, libc::FUTEX_PRIVATE_FLAG] {
        let found = wait(word(&region, 3), flags, 12345);
        ensure!(
            found == Err(libc::EAGAIN),
            "a wait for another value gives {found:?}"
        );
        let found = futex(word(&region, 5), libc::FUTEX_WAKE | flags, 1, 0, 0, 0);
        ensure!(found == Ok(0), "waking nobody gives {found:?}");
    }
    crate::ground::check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// Asks until the answers add up to `count`.
fn until(
    what: &str,
    count: usize,
    mut ask: impl FnMut() -> Result<Result<usize, i32>, Failure>,
) -> Checked {
    let begin = Instant::now();
    let mut seen = 0;
    while seen < count {
        seen += ask()?.map_err(|errno| Failure(format!("{what}: errno {errno}")))?;
        let elapsed = begin.elapsed();
        ensure!(
            seen >= count || elapsed < LIMIT,
            "{what}: {seen} of {count} after {elapsed:?}"
        );
        std::thread::yield_now();
    }
    Ok(())
}

/// The word leaves while a thread sleeps on it.
fn futex_wakes(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(8)?;
    for (page, flags) in [(2, 0), (3, libc::FUTEX_PRIVATE_FLAG)] {
        let word = word(&region, page);
        let value = word.load(Acquire);
        ground.evict(&region)?;
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || wait(word, flags, value));
            letting_go(&[word], || {
                until("wake", 1, || {
                    ground.evict(&region)?;
                    Ok(futex(word, libc::FUTEX_WAKE | flags, 1, 0, 0, 0))
                })
            })?;
            let woken = sleeper.join().expect("no thread panics");
            ensure!(woken == Ok(0), "the sleeper's call gives {woken:?}");
            Ok(())
        })?;
    }
    crate::ground::check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// Two sleepers are moved from one far word to another, which must be compared first.
fn futex_requeues(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(8)?;
    let (first, second) = (word(&region, 1), word(&region, 6));
    first.store(41, Release);
    std::thread::scope(|scope| {
        let sleepers: Vec<_> = (0..2)
            .map(|_| scope.spawn(move || wait(first, libc::FUTEX_PRIVATE_FLAG, 41)))
            .collect();
        letting_go(&[first, second], || {
            requeue_and_wake(ground, &region, first, second)
        })?;
        for sleeper in sleepers {
            let result = sleeper.join().expect("no thread panics");
            ensure!(result == Ok(0), "a sleeper's call gives {result:?}");
        }
        Ok(())
    })?;
    Ok(Outcome::Passed)
}

fn requeue_and_wake(
    ground: &Ground,
    region: &Arena,
    first: &AtomicU32,
    second: &AtomicU32,
) -> Checked {
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    let target = second.as_ptr() as usize;
    until("requeue", 2, || {
        ground.evict(region)?;
        let other = futex(first, operation, 0, 2, target, 42);
        ensure!(
            other == Err(libc::EAGAIN),
            "a requeue for another value gives {other:?}"
        );
        ground.evict(region)?;
        Ok(futex(first, operation, 0, 2, target, 41))
    })?;
    ground.evict(region)?;
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let woken = futex(second, wake, 2, 0, 0, 0);
    ensure!(woken == Ok(2), "waking both gives {woken:?}");
    Ok(())
}
