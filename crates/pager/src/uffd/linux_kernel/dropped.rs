//! Has everybody dropped what was announced?
//!
//! `madvise` announces, waits until that was read, and then drops; nothing says when it has. But a thread
//! that waits in another call, or outside of one, is through; and so is one that has run for longer than
//! dropping takes.

use super::LinuxKernel;
use crate::SpaceId;
use crate::uffd::program::{Thread, threads_of_all};
use alloc::vec::Vec;
use rustix::process::Pid;

/// No dropping takes a processor for so long, in nanoseconds, but for its pages.
const RUN: u64 = 100_000_000;
/// And for each page that is local ten times what freeing one takes.
const RUN_FOR_A_PAGE: u64 = 1_000;

/// `madvise` and `process_madvise`, in proc_pid_syscall(5).
const CALLS: [&str; 2] = ["28", "440"];

/// Threads that may be dropping something, and how long each had run when they were noted.
#[derive(Debug)]
pub(super) struct Dropping {
    threads: Vec<(Thread, u64)>,
    /// So long a thread has to run, in nanoseconds.
    enough: u64,
}

impl Dropping {
    /// Of threads that are there now. `local` pages are the most that can be dropped. None if the
    /// threads cannot be listed.
    fn begin(processes: &[Pid], local: u64) -> Option<Self> {
        let threads = threads_of_all(processes);
        let run = |&thread: &Thread| Some((thread, thread.run_time()?));
        (!threads.is_empty()).then(|| Self {
            threads: threads.iter().filter_map(run).collect(),
            enough: RUN + local * RUN_FOR_A_PAGE,
        })
    }

    fn is_over(&mut self) -> bool {
        let enough = self.enough;
        self.threads.retain(|&(thread, before)| {
            let Some(call) = thread.file("syscall") else {
                // It is gone, and went after its call.
                return false;
            };
            match call.split_ascii_whitespace().next() {
                // On a processor or waiting for one.
                Some("running") | None => {
                    thread.run_time().is_some_and(|time| time < before + enough)
                }
                Some(number) => CALLS.contains(&number),
            }
        });
        self.threads.is_empty()
    }
}

impl LinuxKernel {
    pub(super) fn note_threads_that_drop(&mut self, id: SpaceId) {
        let processes = self.processes_of(id);
        let local = self.residency_of(id);
        let local = local.and_then(|residency| residency.anonymous_pages());
        let dropping = local.and_then(|local| Dropping::begin(&processes, local));
        if let Some(space) = self.space_mut(id) {
            space.dropping = dropping;
        }
    }

    /// False too if nobody could be noted.
    pub(super) fn all_is_dropped(&mut self, id: SpaceId) -> bool {
        let space = self.space_mut(id);
        let dropping = space.and_then(|space| space.dropping.as_mut());
        dropping.is_some_and(Dropping::is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::abi;
    use crate::uffd::features::Mask;
    use crate::uffd::message::Message;
    use crate::uffd::opening::Opener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    const LENGTH: usize = 1 << 20;

    /// A thread that waits until its announcement is read is not through; one that waits for anything
    /// else is.
    #[test]
    fn who_has_announced_is_waited_for() {
        let context = Opener::new(Mask::default())
            .open(abi::FEATURE_EVENT_REMOVE)
            .unwrap();
        // SAFETY: a fresh mapping of this test's own.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                LENGTH,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        }
        .unwrap() as usize;
        // SAFETY: nothing touches it from here on.
        unsafe { context.register(start as u64, LENGTH as u64, false) }.unwrap();
        let process = rustix::process::getpid();
        let (sender, receiver) = mpsc::channel();
        let (done, over) = mpsc::channel::<()>();
        let is_through = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_through = &is_through;
            scope.spawn(move || {
                let id = rustix::thread::gettid();
                sender.send(Thread { process, id }).unwrap();
                let advice = rustix::mm::Advice::LinuxDontNeed;
                // SAFETY: as above.
                unsafe { rustix::mm::madvise(start as *mut _, LENGTH, advice) }.unwrap();
                is_through.store(true, Ordering::SeqCst);
                over.recv().unwrap();
            });
            let thread = receiver.recv().unwrap();
            while !context.is_changing() {}
            let mut dropping = Dropping {
                threads: Vec::from([(thread, thread.run_time().unwrap())]),
                enough: u64::MAX / 2,
            };
            for _ in 0..100 {
                assert!(!dropping.is_over());
            }
            let mut messages = Vec::<Message>::new();
            context.read(1, &mut messages).unwrap();
            assert_eq!(messages.len(), 1);
            while !dropping.is_over() {}
            assert!(is_through.load(Ordering::SeqCst));
            done.send(()).unwrap();
        });
        // SAFETY: nothing uses it any more.
        unsafe { rustix::mm::munmap(start as *mut _, LENGTH) }.unwrap();
    }

    #[test]
    fn who_runs_on_is_through_after_a_while() {
        const ENOUGH: u64 = 5_000_000;
        let process = rustix::process::getpid();
        let (sender, receiver) = mpsc::channel();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            scope.spawn(move || {
                let id = rustix::thread::gettid();
                sender.send(Thread { process, id }).unwrap();
                while !is_over.load(Ordering::Relaxed) {}
            });
            let thread = receiver.recv().unwrap();
            // Until then it may be in the call that sends.
            while thread
                .file("syscall")
                .is_none_or(|call| call != "running\n")
            {}
            let before = thread.run_time().unwrap();
            let mut dropping = Dropping {
                threads: Vec::from([(thread, before)]),
                enough: ENOUGH,
            };
            while !dropping.is_over() {}
            let after = thread.run_time().unwrap();
            is_over.store(true, Ordering::Relaxed);
            assert!(after >= before + ENOUGH);
        });
    }
}
