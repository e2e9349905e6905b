//! Places that the threads of an address space wait in.
//!
//! Whether somebody moves memory, or has announced something, is only seen by looking at each thread
//! (proc_pid_syscall(5), proc_pid_wchan(5)): that takes 15 us, and there may be thousands. But a thread that has
//! not been on a processor since it was looked at waits where it did then. How often it was is the third
//! number of its `schedstat` (Documentation/scheduler/sched-stats.rst), which takes 1 us to read.
//!
//! A thread whose announcement has been read is let go on before it is on a processor. So whoever has announced
//! something is looked at each time: as many messages are read as there are announcements, and no more.

use crate::uffd::proc;
use crate::uffd::program::Thread;
use alloc::vec::Vec;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::process::{Pid, Resource};

/// Share of the descriptors that the process may have, for files that are kept open: a quarter.
const DESCRIPTORS: u64 = 4;

/// The threads of an address space as they were last seen.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// In the order of the threads' ids.
    seen: Vec<Seen>,
}

/// One thread.
#[derive(Debug)]
struct Seen {
    thread: Thread,
    /// Its `schedstat`; None if there may be no more descriptors.
    schedule: Option<OwnedFd>,
    /// How often it had been on a processor before it was found to wait in `place`. None if it did not wait, or
    /// has announced something.
    arrivals: Option<u64>,
    place: Place,
}

/// Where a thread waits, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    has_announced: bool,
    is_in_mremap: bool,
}

impl Waits {
    /// Announcements of these threads that wait to be read, as far as can be seen.
    pub(super) fn count_announced(&mut self, threads: &[Thread]) -> usize {
        self.look_at(threads);
        let announced = self.seen.iter().filter(|seen| seen.place.has_announced);
        announced.count()
    }

    /// Does one of these threads wait in mremap(2)?
    pub(super) fn is_anyone_in_mremap(&mut self, threads: &[Thread]) -> bool {
        self.look_at(threads);
        self.seen.iter().any(|seen| seen.place.is_in_mremap)
    }

    fn look_at(&mut self, threads: &[Thread]) {
        let order = |thread: &Thread| [thread.process, thread.id].map(Pid::as_raw_pid);
        let mut threads = threads.to_vec();
        threads.sort_unstable_by_key(order);
        let most = rustix::process::getrlimit(Resource::Nofile).current;
        let mut room = most.map_or(u64::MAX, |most| most / DESCRIPTORS);
        let before = core::mem::take(&mut self.seen);
        let mut before = before.into_iter().peekable();
        for thread in threads {
            while before
                .next_if(|seen| order(&seen.thread) < order(&thread))
                .is_some()
            {}
            let known = before.next_if(|seen| seen.thread == thread);
            let mut seen = known.unwrap_or_else(|| Seen::new(thread));
            seen.look(room > 0);
            room = room.saturating_sub(u64::from(seen.schedule.is_some()));
            self.seen.push(seen);
        }
    }
}

impl Seen {
    const fn new(thread: Thread) -> Self {
        Self {
            thread,
            schedule: None,
            arrivals: None,
            place: Place::NOWHERE,
        }
    }

    /// Looks again, unless the thread waits still where it did.
    fn look(&mut self, may_open: bool) {
        let arrivals = self.count_arrivals(may_open);
        if arrivals.is_some() && arrivals == self.arrivals {
            return;
        }
        let waits;
        (self.place, waits) = Place::of(self.thread);
        // It has not been on a processor since this was counted, if it waits, or that shows the next time.
        self.arrivals = arrivals.filter(|_| waits && !self.place.has_announced);
    }

    /// None if that cannot be told.
    fn count_arrivals(&mut self, may_open: bool) -> Option<u64> {
        let count = self.schedule.as_ref().and_then(arrivals);
        if count.is_some() || !may_open {
            return count;
        }
        // It has not been looked at, or it was another thread of this id.
        let Thread { process, id } = self.thread;
        let [process, id] = [process, id].map(Pid::as_raw_pid);
        let path = alloc::format!("{process}/task/{id}/schedstat");
        self.schedule = proc::open(&path, OFlags::RDONLY).ok();
        self.schedule.as_ref().and_then(arrivals)
    }
}

impl Place {
    const NOWHERE: Self = Self {
        has_announced: false,
        is_in_mremap: false,
    };

    /// The place of a thread; and does it wait at all?
    fn of(thread: Thread) -> (Self, bool) {
        // First: this tells whether it waits.
        let call = thread.file("syscall").unwrap_or_default();
        let place = thread.file("wchan").unwrap_or_default();
        let number = call.split_ascii_whitespace().next();
        let waits = number.is_some_and(|number| number != "running");
        let place = Self {
            has_announced: place.starts_with("userfaultfd_event"),
            is_in_mremap: is_mremap(&call),
        };
        (place, waits)
    }
}

/// None if the kernel does not count them, or the thread is gone.
fn arrivals(schedule: &OwnedFd) -> Option<u64> {
    let mut bytes = [0; 64];
    let length = rustix::io::pread(schedule, &mut bytes, 0).ok()?;
    let text = core::str::from_utf8(&bytes[..length]).ok()?;
    let count = text.split_ascii_whitespace().nth(2)?.parse().ok()?;
    (count > 0).then_some(count)
}

/// Is it this system call, in proc_pid_syscall(5)?
pub(super) fn is_mremap(call: &str) -> bool {
    call.split_ascii_whitespace().next() == Some("25")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::opening::Opener;
    use crate::uffd::{Mask, abi};
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Everything rests on this: who has run since has been counted.
    #[test]
    fn who_waits_and_has_not_arrived_has_not_run() {
        let process = rustix::process::getpid();
        let (steps, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (steps, is_over) = (&steps, &is_over);
            scope.spawn(move || {
                sender.send(rustix::thread::gettid()).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    steps.fetch_add(1, Ordering::SeqCst);
                    // For moments of all lengths, some of which are over before the processor is left.
                    let micros = steps.load(Ordering::Relaxed) % 50;
                    std::thread::sleep(core::time::Duration::from_micros(micros));
                }
            });
            let id = receiver.recv().unwrap();
            let mut seen = Seen::new(Thread { process, id });
            let mut waited = 0;
            while waited < 2_000 {
                seen.look(true);
                let Some(arrivals) = seen.arrivals else {
                    continue;
                };
                let before = steps.load(Ordering::SeqCst);
                std::thread::sleep(core::time::Duration::from_micros(20));
                let after = steps.load(Ordering::SeqCst);
                if seen.count_arrivals(true) == Some(arrivals) {
                    assert_eq!(before, after);
                    waited += 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Its announcement may have been read since, and it not have run.
    #[test]
    fn who_has_announced_something_is_looked_at_each_time() {
        const LENGTH: usize = 1 << 16;
        let context = Opener::new(Mask::default())
            .open(abi::FEATURE_EVENT_REMOVE)
            .unwrap();
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a fresh mapping of this test's own.
        let start =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), LENGTH, access, flags) };
        let start = start.unwrap() as usize;
        // SAFETY: nothing touches it from here on.
        unsafe { context.register(start as u64, LENGTH as u64, false) }.unwrap();
        let process = rustix::process::getpid();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (done, over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sender.send(rustix::thread::gettid()).unwrap();
                let advice = rustix::mm::Advice::LinuxDontNeed;
                // SAFETY: as above.
                unsafe { rustix::mm::madvise(start as *mut _, LENGTH, advice) }.unwrap();
                over.recv().unwrap_err();
            });
            let id = receiver.recv().unwrap();
            let mut seen = Seen::new(Thread { process, id });
            while !seen.place.has_announced {
                seen.look(true);
            }
            assert_eq!(seen.arrivals, None, "remembered");
            assert!(context.read_one().is_some());
            while seen.place.has_announced || seen.arrivals.is_none() {
                seen.look(true);
            }
            drop(done);
        });
        // SAFETY: nothing uses it any more. It is unregistered first, because nobody reads of it.
        unsafe {
            context.unregister(start as u64, LENGTH as u64).unwrap();
            rustix::mm::munmap(start as *mut _, LENGTH).unwrap();
        }
    }

    #[test]
    fn threads_come_and_go() {
        let process = rustix::process::getpid();
        let thread = |id| Thread { process, id };
        let own = thread(rustix::thread::gettid());
        let mut waits = Waits::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (done, over) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid()).unwrap();
            over.recv().unwrap_err();
        });
        let threads = [thread(receiver.recv().unwrap()), own];
        assert!(!waits.is_anyone_in_mremap(&threads));
        assert_eq!(waits.seen.len(), 2);
        assert!(waits.seen.iter().all(|seen| seen.schedule.is_some()));
        drop(done);
        other.join().unwrap();
        assert_eq!(waits.count_announced(&[own]), 0);
        assert_eq!(waits.seen.len(), 1);
        assert_eq!(waits.seen[0].thread, own);
    }
}
