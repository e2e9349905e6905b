//! Forked processes: each sees its own writes only, whoever evicts, and whoever ends first.

use crate::forked::{fork, reap};
use crate::ground::{
    Case, Checked, Failure, Ground, Outcome, call, check, ensure, fill, outcome, resident,
};
use crate::transfers::new_pipe;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("fork-own-writes", fork_own_writes),
    ("fork-both-evict", fork_both_evict),
    ("fork-outlives", fork_outlives),
    ("fork-more-than-the-cache", fork_more_than_the_cache),
    ("fork-changes-mappings", fork_changes_mappings),
    ("wipe-on-fork", wipe_on_fork),
    ("not-on-fork", not_on_fork),
    ("fork-many", fork_many),
    ("fork-moves-shared", fork_moves_shared),
];

const PAGES: u64 = 512;

/// Writes `version` to every third page from `first` on.
fn write_thirds(region: &Arena, first: u64, version: u32) {
    (first..region.pages())
        .step_by(3)
        .for_each(|page| region.fill(page, version));
}

/// The version of each page by its remainder of three.
fn check_thirds(region: &Arena, versions: [u32; 3]) -> Checked {
    (0..region.pages()).try_for_each(|page| Ok(region.check(page, versions[page as usize % 3])?))
}

/// Parent, child and grandchild: each writes a third, before and after memory was short.
fn fork_own_writes(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let child = fork("child", || {
        check(&region, 1)?;
        write_thirds(&region, 0, 2);
        ground.press_all();
        check_thirds(&region, [2, 1, 1])?;
        let grandchild = fork("grandchild", || {
            check_thirds(&region, [2, 1, 1])?;
            write_thirds(&region, 1, 3);
            ground.press_all();
            check_thirds(&region, [2, 3, 1])
        })?;
        write_thirds(&region, 2, 4);
        ground.press_all();
        check_thirds(&region, [2, 1, 4])?;
        reap(grandchild)?;
        check_thirds(&region, [2, 1, 4])
    })?;
    write_thirds(&region, 1, 5);
    ground.press_all();
    check_thirds(&region, [1, 5, 1])?;
    reap(child)?;
    ground.evict(&region)?;
    check_thirds(&region, [1, 5, 1])?;
    Ok(Outcome::Passed)
}

/// Both write a page that both had far away; both are pressed until it should be far again, and
/// far pages of the one must never be the other's. Each page is freed by both at the end.
fn fork_both_evict(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    for round in 0..2 {
        let version = 1 + 10 * round;
        let child = fork("child", || {
            // Shared and far, then its own and far, then written once more.
            ground.press_all();
            check(&region, version)?;
            for next in 1..3 {
                fill(&region, version + next);
                ground.press_all();
                check(&region, version + next)?;
            }
            region.advise(0, PAGES / 2, libc::MADV_DONTNEED)?;
            for page in 0..PAGES {
                region.check(page, if page < PAGES / 2 { 0 } else { version + 2 })?;
            }
            Ok(())
        })?;
        ground.press_all();
        check(&region, version)?;
        fill(&region, version + 5);
        ground.evict(&region)?;
        check(&region, version + 5)?;
        fill(&region, version + 10);
        ground.evict(&region)?;
        reap(child)?;
        check(&region, version + 10)?;
        ground.evict(&region)?;
    }
    Ok(Outcome::Passed)
}

fn receive(from: &OwnedFd) -> Result<usize, Failure> {
    let mut byte = 0_u8;
    call!(read(from.as_raw_fd(), (&raw mut byte).cast(), 1))
}

/// The child ends before its own child, and then the program that began does too, while the last
/// one goes on reading far pages. It speaks for the case, so it must see the end of all.
fn fork_outlives(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let (parent_gone, held_by_parent) = new_pipe()?;
    let (child_gone, held_by_child) = new_pipe()?;
    // Numbers: each process closes its copy by itself, and none of them drops.
    let (held_by_parent, held_by_child) =
        (held_by_parent.into_raw_fd(), held_by_child.into_raw_fd());
    let child = fork("child", || {
        call!(close(held_by_parent))?;
        write_thirds(&region, 0, 2);
        fork("grandchild", || {
            call!(close(held_by_child))?;
            write_thirds(&region, 1, 3);
            ensure!(receive(&child_gone)? == 0, "the child spoke");
            ground.press_all();
            check_thirds(&region, [2, 3, 1])?;
            ensure!(receive(&parent_gone)? == 0, "the parent spoke");
            check_thirds(&region, [2, 3, 1])?;
            write_thirds(&region, 2, 4);
            ground.press_all();
            check_thirds(&region, [2, 3, 4])?;
            println!("fork-outlives: ok");
            Ok(())
        })?;
        Ok(())
    })?;
    call!(close(held_by_child))?;
    reap(child)?;
    fill(&region, 7);
    ground.evict(&region)?;
    check(&region, 7)?;
    // Without a word, which the grandchild has; the pipe closes by itself.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) }
}

/// A child that writes more than the cache holds.
fn fork_more_than_the_cache(ground: &Ground) -> Result<Outcome, Failure> {
    let pages = 6 << 10;
    let region = ground.far_region(pages)?;
    let child = fork("child", || {
        fill(&region, 2);
        let own = crate::ground::filled_region(pages)?;
        check(&region, 2)?;
        check(&own, 1)
    })?;
    check(&region, 1)?;
    fill(&region, 3);
    check(&region, 3)?;
    reap(child)?;
    check(&region, 3)?;
    Ok(Outcome::Passed)
}

/// The child moves, discards, protects and unmaps what it shares; the parent notices nothing.
fn fork_changes_mappings(ground: &Ground) -> Result<Outcome, Failure> {
    let mut region = ground.far_region(PAGES)?;
    let mut other = ground.far_region(PAGES)?;
    let child = fork("child", || {
        other.resize(2 * PAGES)?;
        (0..2 * PAGES).try_for_each(|page| other.check(page, u32::from(page < PAGES)))?;
        // In this order: what was unmapped and mapped again is a mapping of its own, and mremap
        // takes only one (mremap(2), EFAULT).
        region.relocate()?;
        region.replace(0, 64)?;
        region.advise(64, 64, libc::MADV_DONTNEED)?;
        let version = |page: u64| u32::from(page >= 128);
        (0..PAGES).try_for_each(|page| region.check(page, version(page)))?;
        region.protect(libc::PROT_READ)?;
        ground.press_all();
        (0..PAGES).try_for_each(|page| region.check(page, version(page)))?;
        region.protect(libc::PROT_READ | libc::PROT_WRITE)?;
        fill(&region, 2);
        ground.press_all();
        check(&region, 2)
    })?;
    ground.press_all();
    check(&region, 1)?;
    check(&other, 1)?;
    reap(child)?;
    ground.evict(&region)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// What is to be wiped in a child is zeros there, far or not (MADV_WIPEONFORK keeps secrets).
fn wipe_on_fork(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    region.advise(0, PAGES / 2, libc::MADV_WIPEONFORK)?;
    // Some of both halves are resident.
    (0..PAGES)
        .step_by(7)
        .try_for_each(|page| region.check(page, 1))?;
    let wiped = |page: u64| u32::from(page >= PAGES / 2);
    let child = fork("child", || {
        (0..PAGES).try_for_each(|page| region.check(page, wiped(page)))?;
        ground.press_all();
        (0..PAGES).try_for_each(|page| region.check(page, wiped(page)))?;
        fill(&region, 2);
        let grandchild = fork("grandchild", || {
            (0..PAGES).try_for_each(|page| region.check(page, 2 * wiped(page)))?;
            Ok(())
        })?;
        reap(grandchild)?;
        check(&region, 2)
    })?;
    reap(child)?;
    check(&region, 1)?;
    ground.evict(&region)?;
    region.advise(0, PAGES / 2, libc::MADV_KEEPONFORK)?;
    reap(fork("kept", || check(&region, 1))?)?;
    Ok(Outcome::Passed)
}

/// What is not to be there in a child is not, and something else can be put in its place.
fn not_on_fork(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    region.advise(0, PAGES / 2, libc::MADV_DONTFORK)?;
    let child = fork("child", || {
        let mut byte = 0_u8;
        let result = outcome!(mincore(region.address(0), 1, &raw mut byte));
        ensure!(
            result == Err(libc::ENOMEM),
            "the range is there: {result:?}"
        );
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let length = PAGES as usize / 2 * PAGE_SIZE;
        call!(mmap(region.address(0), length, both, flags, -1, 0))?;
        (0..PAGES).try_for_each(|page| region.check(page, u32::from(page >= PAGES / 2)))?;
        fill(&region, 2);
        ground.press_all();
        check(&region, 2)
    })?;
    reap(child)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// `--rounds` children, of which one in eight writes.
fn fork_many(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(64)?;
    for round in 0..ground.rounds {
        let child = fork("child", || {
            if round % 8 == 0 {
                let page = round % region.pages();
                region.check(page, 1)?;
                region.fill(page, 2);
                region.check(page, 2)?;
            }
            Ok(())
        })?;
        reap(child)?;
    }
    ground.evict(&region)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// A range that a child shares moves away while pages of it are evicted, and leaves its place
/// (MREMAP_DONTUNMAP): whoever has just found a page shared finds none a moment later.
fn fork_moves_shared(ground: &Ground) -> Result<Outcome, Failure> {
    const LENGTH: usize = PAGES as usize * PAGE_SIZE;
    const FLAGS: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP | libc::MREMAP_FIXED;
    let (region, target) = (ground.region(PAGES)?, ground.region(PAGES)?);
    let (from, to) = (region.address(0), target.address(0));
    for round in 0..ground.rounds {
        let version = 1 + round as u32;
        fill(&region, version);
        let (parent_gone, held) = new_pipe()?;
        let child = fork("child", || {
            call!(close(held.as_raw_fd()))?;
            ensure!(receive(&parent_gone)? == 0, "the parent spoke");
            check(&region, version)
        })?;
        let over = AtomicBool::new(false);
        let moved = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    ground.press(256);
                }
            });
            let move_when_some_left = || {
                while ground.expect_evicted && resident(from, LENGTH)? == PAGES as usize {
                    std::thread::yield_now();
                }
                call!(mremap(from, LENGTH, LENGTH, FLAGS, to))
            };
            let moved = move_when_some_left();
            over.store(true, Relaxed);
            moved
        });
        moved?;
        drop(held);
        check(&region, 0)?;
        check(&target, version)?;
        reap(child)?;
    }
    Ok(Outcome::Passed)
}
