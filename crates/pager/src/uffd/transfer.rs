//! Runs of pages through an ioctl that does a part, is refused for a moment, or is refused whole
//! because the run spans two mappings.

use super::Userfaultfd;
use super::context::is_changing;
use legato_base::{PAGE_SHIFT, PAGE_SIZE};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MlockFlags, MprotectFlags, MremapFlags};

/// Pages done, and why not the next.
pub(super) type Transferred = (u32, Result<(), Errno>);

/// Tries of an ioctl that says EAGAIN without an event to read: a page is locked for a moment.
const RETRIES: u32 = 16;

/// Tries again what finds no mapping, because one refusal proves nothing: since Linux 6.9 the kernel
/// looks whether the address space is changing, then for the mapping, and only then again whether it
/// is changing (`uffd_move_lock`, `uffd_mfill_lock`). Memory that is unmapped or moved in between is
/// ENOENT although nobody has read of it. The change is counted before the mapping goes, and until
/// it is read, so that the second try finds it: EAGAIN. Two in a row mean that there is nothing to
/// read.
pub(super) fn surely<T>(attempt: impl Fn() -> (T, Result<(), Errno>)) -> (T, Result<(), Errno>) {
    match attempt() {
        (_, Err(Errno::NOENT)) => attempt(),
        outcome => outcome,
    }
}

/// Transfers as many pages as possible with `step`, which is given target, source and bytes, and
/// returns the bytes done and why not more.
fn transfer(
    dst: u64,
    src: u64,
    count: u32,
    step: &impl Fn(u64, u64, u64) -> (u64, Result<(), Errno>),
) -> Transferred {
    let total = u64::from(count) << PAGE_SHIFT;
    let mut done = 0;
    let mut tries = 0;
    while done < total {
        let (more, result) = surely(|| step(dst + done, src + done, total - done));
        done += more;
        tries = if more > 0 { 0 } else { tries + 1 };
        if let Err(error) = result
            && (more == 0 && (error != Errno::AGAIN || tries > RETRIES))
        {
            return ((done >> PAGE_SHIFT) as u32, Err(error));
        }
    }
    (count, Ok(()))
}

/// As [`transfer`]; a batch that is refused whole may span two mappings, so its first page is
/// tried alone.
pub(super) fn transfer_across(
    dst: u64,
    src: u64,
    count: u32,
    step: &impl Fn(u64, u64, u64) -> (u64, Result<(), Errno>),
) -> Transferred {
    let mut done = 0;
    while done < count {
        let offset = u64::from(done) << PAGE_SHIFT;
        let (more, result) = transfer(dst + offset, src + offset, count - done, step);
        done += more;
        let Err(error) = result else { break };
        if more > 0 || count - done == 1 || error == Errno::AGAIN {
            return (done, Err(error));
        }
        let (one, alone) = transfer(dst + offset, src + offset, 1, step);
        done += one;
        if alone.is_err() {
            return (done, alone);
        }
    }
    (done, Ok(()))
}

/// Moves pages out of a program within the calling task's address space. EBUSY: the page that did
/// not move is pinned.
///
/// A page that is shared with a forked child or parent refuses to move until it is one process's
/// alone. `unshare` is given the first such page and how many are to move from there on, and returns
/// of how many of them, at least one, that is so now.
///
/// # Safety
/// As for [`Userfaultfd::move_pages`].
pub(super) unsafe fn move_out(
    context: &Userfaultfd,
    dst: u64,
    src: u64,
    count: u32,
    mut unshare: impl FnMut(u64, u32) -> Result<u32, Errno>,
) -> Transferred {
    // SAFETY: the caller's promise.
    let step = |dst, src, bytes| unsafe { context.move_pages(dst, src, bytes, false) };
    by_access(count, |moved, is_executable| {
        let offset = u64::from(moved) << PAGE_SHIFT;
        let (dst, src, left) = (dst + offset, src + offset, count - moved);
        let mut act = || move_with(dst, src, left, &step, &mut unshare);
        match is_executable {
            false => act(),
            true => while_executable(dst, u64::from(left) << PAGE_SHIFT, act),
        }
    })
}

/// Both sides of a move must have the same access (`validate_move_areas` in mm/userfaultfd.c), and a
/// program's writable memory may be executable. `attempt` is given how many pages have moved, and
/// whether the target of the others is to be executable.
fn by_access(count: u32, mut attempt: impl FnMut(u32, bool) -> Transferred) -> Transferred {
    let mut moved = 0;
    let mut in_vain = 0;
    let mut is_executable = false;
    loop {
        let (more, result) = attempt(moved, is_executable);
        moved += more;
        in_vain = if more > 0 { 0 } else { in_vain + 1 };
        if result != Err(Errno::INVAL) || moved == count || in_vain == 2 {
            return (moved, result);
        }
        is_executable = !is_executable;
    }
}

/// Does something while memory of the caller's is executable. EINVAL where that may not be.
fn while_executable(start: u64, length: u64, act: impl FnOnce() -> Transferred) -> Transferred {
    let allow = |access| {
        // SAFETY: the memory stays readable and writable, and nobody executes it.
        unsafe { rustix::mm::mprotect(start as *mut _, length as usize, access) }
    };
    let writable = MprotectFlags::READ.union(MprotectFlags::WRITE);
    if allow(writable.union(MprotectFlags::EXEC)).is_err() {
        return (0, Err(Errno::INVAL));
    }
    let outcome = act();
    // Where it stays executable, for want of the kernel's memory, other memory is refused there (EINVAL),
    // and leaves by copy.
    let _ = allow(writable);
    outcome
}

fn move_with(
    dst: u64,
    src: u64,
    count: u32,
    step: &impl Fn(u64, u64, u64) -> (u64, Result<(), Errno>),
    unshare: &mut impl FnMut(u64, u32) -> Result<u32, Errno>,
) -> Transferred {
    let mut moved = 0;
    // Up to here each page is one process's alone.
    let mut alone = 0;
    while moved < count {
        let offset = u64::from(moved) << PAGE_SHIFT;
        let (more, result) = transfer_across(dst + offset, src + offset, count - moved, step);
        moved += more;
        let Err(error) = result else { break };
        if error != Errno::BUSY || moved < alone {
            return (moved, Err(error));
        }
        let first = src + (u64::from(moved) << PAGE_SHIFT);
        match unshare(first, count - moved) {
            Ok(pages) => alone = moved + pages.max(1),
            Err(error) => return (moved, Err(error)),
        }
    }
    (moved, Ok(()))
}

/// Makes a page that is there one process's alone: populating for writing copies what is shared, as
/// the program's own write would. Where it is missing by now, the calling task waits for whoever
/// serves it.
///
/// # Errors
/// EAGAIN: the address space is changing.
pub(super) fn unshare(context: &Userfaultfd, page: u64) -> Result<u32, Errno> {
    lift_protection(context, page, 1)?;
    // If it fails the page refuses to move still, as one that is pinned does.
    let _ = populate(page, PAGE_SIZE as u64);
    Ok(1)
}

/// Pages that are write-protected would fault, to whoever populates them.
///
/// # Errors
/// EAGAIN: the address space is changing.
pub(super) fn lift_protection(context: &Userfaultfd, first: u64, count: u32) -> Result<(), Errno> {
    unless_changing(context.unprotect(first, u64::from(count) << PAGE_SHIFT))
}

/// Takes the marks of pages that are to be filled away.
///
/// # Errors
/// EAGAIN: the address space is changing.
pub(super) fn lift_marks(context: &Userfaultfd, first: u64, count: u32) -> Result<(), Errno> {
    unless_changing(context.unmark(first, u64::from(count) << PAGE_SHIFT))
}

/// Where protection is not to be had there is none, and where the mapping is gone the next call says so.
fn unless_changing(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::AGAIN) => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// Touches pages as a write of what they hold would. Waits for those that are missing.
pub(super) fn populate(first: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: no content changes.
    unsafe { rustix::mm::madvise(first as *mut _, length as usize, Advice::LinuxPopulateWrite) }
}

/// Takes the pages of a range that lies in one mapping to another place of the caller's, and leaves the
/// mapping without them. In one step under the lock of the address space, and announced only afterwards:
/// what is not the caller's to take can be told by what has come along, and nothing of it is destroyed.
/// Waits until the announcement is read.
///
/// # Errors
/// EAGAIN: the address space is changing. EINVAL: something of it is locked. EPERM: it is sealed. EFAULT:
/// it is not one mapping. The range is as it was.
///
/// # Safety
/// The pages must be the caller's to take, and the place too, in which nothing is.
pub(super) unsafe fn take(
    context: BorrowedFd<'_>,
    start: u64,
    length: u64,
    to: u64,
) -> Result<(), Errno> {
    // What is locked stays, and `mremap` would unlock it.
    refuse_locked(start, length)?;
    // Otherwise something else may have come there, or is about to.
    if is_changing(context) {
        return Err(Errno::AGAIN);
    }
    let bytes = length as usize;
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mremap_fixed(start as *mut _, bytes, bytes, flags, to as *mut _) }?;
    if refuse_locked(to, length) == Err(Errno::INVAL) {
        // It was locked in between.
        // SAFETY: locking changes no content, and with ONFAULT waits for no page. Where it fails
        // the mapping is gone.
        let _ = unsafe { rustix::mm::mlock_with(start as *mut _, bytes, MlockFlags::ONFAULT) };
    }
    Ok(())
}

/// EINVAL if anything of a range is locked (`can_madv_lru_vma` in mm/madvise.c), EFAULT if not all of
/// it is mapped. The kernel reclaims first what was asked about, and nothing else of it changes.
fn refuse_locked(start: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: no content changes.
    let asked = unsafe { rustix::mm::madvise(start as *mut _, length as usize, Advice::LinuxCold) };
    asked.map_err(|error| match error {
        // As `mremap` says it.
        Errno::NOMEM => Errno::FAULT,
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::context::moved_uncounted;
    use crate::uffd::opening::Opener;
    use crate::uffd::{Mask, abi};
    use core::cell::{Cell, RefCell};
    use rustix::mm::{MapFlags, ProtFlags};
    use std::vec;
    use std::vec::Vec;

    const PAGE: u64 = PAGE_SIZE as u64;

    /// What a transfer of one page says when the kernel answers so, and then the answers left.
    fn answered(answers: &[Errno]) -> (Transferred, usize) {
        let answers: RefCell<Vec<Errno>> = RefCell::new(answers.iter().rev().copied().collect());
        let step = |_, _, bytes| match answers.borrow_mut().pop() {
            Some(error) => (0, Err(error)),
            None => (bytes, Ok(())),
        };
        let outcome = transfer_across(0, 0, 1, &step);
        (outcome, answers.into_inner().len())
    }

    #[test]
    fn one_enoent_is_no_proof_that_a_mapping_is_gone() {
        assert_eq!(answered(&[Errno::NOENT]), ((1, Ok(())), 0));
        let changing = vec![Errno::AGAIN; RETRIES as usize + 2];
        let answers = [&[Errno::NOENT], changing.as_slice()].concat();
        assert_eq!(answered(&answers).0, (0, Err(Errno::AGAIN)));
        let twice = [Errno::NOENT, Errno::NOENT, Errno::BUSY];
        assert_eq!(answered(&twice), ((0, Err(Errno::NOENT)), 1));
    }

    /// Moves four pages of which the kernel refuses those from `shared` on until they are unshared, and
    /// `pinned` always. Returns the outcome, and what was to be unshared.
    fn moved_out(
        shared: u64,
        pinned: u64,
        unshared: Result<u32, Errno>,
    ) -> (Transferred, Vec<(u64, u32)>) {
        let shared_from = Cell::new(shared * PAGE);
        let step = |_, src: u64, bytes: u64| {
            let end = shared_from.get().min(pinned * PAGE);
            match end.saturating_sub(src).min(bytes) {
                0 => (0, Err(Errno::BUSY)),
                done if done < bytes => (done, Err(Errno::BUSY)),
                all => (all, Ok(())),
            }
        };
        let mut asked = Vec::new();
        let outcome = move_with(0, 0, 4, &step, &mut |first, count| {
            asked.push((first / PAGE, count));
            let pages = unshared?;
            shared_from.set(first + u64::from(pages) * PAGE);
            Ok(pages)
        });
        (outcome, asked)
    }

    #[test]
    fn shared_pages_are_unshared_as_many_at_a_time_as_can_be() {
        assert_eq!(moved_out(4, 4, Ok(1)), ((4, Ok(())), vec![]));
        assert_eq!(moved_out(1, 4, Ok(3)), ((4, Ok(())), vec![(1, 3)]));
        let (outcome, asked) = moved_out(2, 4, Ok(1));
        assert_eq!((outcome, asked), ((4, Ok(())), vec![(2, 2), (3, 1)]));
    }

    #[test]
    fn a_page_that_refuses_though_it_is_not_shared_is_pinned() {
        let (outcome, asked) = moved_out(0, 2, Ok(4));
        assert_eq!((outcome, asked), ((2, Err(Errno::BUSY)), vec![(0, 4)]));
        let (outcome, asked) = moved_out(0, 0, Ok(1));
        assert_eq!((outcome, asked), ((0, Err(Errno::BUSY)), vec![(0, 4)]));
    }

    #[test]
    fn what_cannot_be_unshared_says_why() {
        for error in [Errno::AGAIN, Errno::NOMEM] {
            assert_eq!(moved_out(3, 4, Err(error)).0, (3, Err(error)));
        }
    }

    /// Moves pages of which some are executable. Returns the outcome and how often the kernel was asked.
    fn moved_by_access(executable: &[bool]) -> (Transferred, u32) {
        let mut asked = 0;
        let outcome = by_access(executable.len() as u32, |moved, is_executable| {
            asked += 1;
            let rest = &executable[moved as usize..];
            let same = rest.iter().take_while(|of| **of == is_executable).count();
            let is_all = same == rest.len();
            (same as u32, if is_all { Ok(()) } else { Err(Errno::INVAL) })
        });
        (outcome, asked)
    }

    #[test]
    fn executable_and_other_memory_move_in_one_run() {
        assert_eq!(moved_by_access(&[false, false]), ((2, Ok(())), 1));
        assert_eq!(moved_by_access(&[true, true]), ((2, Ok(())), 2));
        let mixed = [false, true, true, false];
        assert_eq!(moved_by_access(&mixed), ((4, Ok(())), 3));
        let mut asked = 0;
        let refused = by_access(3, |_, _| {
            asked += 1;
            (0, Err(Errno::INVAL))
        });
        assert_eq!((refused, asked), ((0, Err(Errno::INVAL)), 2), "neither");
    }

    fn map(pages: u64) -> u64 {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                (pages * PAGE) as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        address.unwrap() as u64
    }

    /// Lost: pages of which the kernel had said that it had not moved them.
    #[test]
    fn what_has_gone_from_here_and_is_there_has_been_moved() {
        let (source, target) = (map(4), map(4));
        let write = |address: u64| {
            // SAFETY: a page of this test's own mappings.
            unsafe { (address as *mut u8).write(1) }
        };
        assert_eq!(moved_uncounted(target, source, 4 * PAGE), 0, "neither");
        (0..3).for_each(|page| write(target + page * PAGE));
        write(source + 2 * PAGE);
        let moved = moved_uncounted(target, source, 4 * PAGE);
        assert_eq!(moved, 2 * PAGE, "the third is in both");
        assert_eq!(moved_uncounted(target, 0, 4 * PAGE), 0, "no mapping");
    }

    /// A thread unmaps a page while another one fills it. Until its announcement is read the answer
    /// is never that the mapping is gone. A single ioctl says so once in some thousand rounds: a soak
    /// has as many.
    #[test]
    fn what_is_being_unmapped_is_changing_and_not_gone() {
        let features = abi::FEATURE_EVENT_UNMAP;
        let context = Opener::new(Mask::default()).open(features).unwrap();
        let source = map(1);
        let is_soak = std::env::var("LEGATO_TEST_SOAK").is_ok_and(|value| value == "1");
        for round in 0..if is_soak { 10_000u32 } else { 1_000 } {
            let target = map(1);
            // SAFETY: nothing is missing in the page after the next call.
            unsafe { context.register(target, PAGE, false) }.unwrap();
            // SAFETY: the source is a page of zeros, which is right for the target.
            unsafe { context.copy(target, source, PAGE) }.1.unwrap();
            let unmapping = std::thread::spawn(move || {
                // SAFETY: the page is this round's, and never touched.
                unsafe { rustix::mm::munmap(target as *mut _, PAGE_SIZE) }
            });
            let step = |dst, src, bytes| {
                // SAFETY: as above; while it is mapped the page is there and nothing changes.
                unsafe { context.copy(dst, src, bytes) }
            };
            let end = loop {
                match transfer_across(target, source, 1, &step) {
                    (0, Err(Errno::EXIST)) => {}
                    (_, end) => break end,
                }
            };
            assert_eq!(end, Err(Errno::AGAIN), "in round {round}");
            while context.read_one().is_none() {
                std::thread::yield_now();
            }
            unmapping.join().unwrap().unwrap();
            let gone = transfer_across(target, source, 1, &step);
            assert_eq!(gone, (0, Err(Errno::NOENT)));
        }
    }
}
