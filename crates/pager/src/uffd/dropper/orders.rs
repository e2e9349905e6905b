//! The mailbox in every order in which the agent and the task can see each other's words. The file
//! that ships is compiled once more here, on words of `loom`.

use crate::PageRange;
use core::cell::Cell;
use legato_base::PageNumber;
use loom::sync::Arc;
use loom::thread;
use mailbox::{Mailbox, Range, Taken, Work};
use rustix::event::Timespec;
use rustix::io::Errno;
use std::panic::catch_unwind;
use std::string::String;

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the same source on other words; not all of it is used"
)]
#[path = "mailbox.rs"]
mod mailbox;

/// As the words that ship.
mod words {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

    use core::sync::atomic::Ordering;
    use loom::sync::{Condvar, Mutex};
    use rustix::event::Timespec;
    use std::cell::Cell;

    pub(super) const RANGES_MAX: usize = 2;

    std::thread_local! {
        /// A planted defect: stores do not release. loom runs its threads in the test's own.
        pub(super) static RELAXED_STORES: Cell<bool> = const { Cell::new(false) };
    }

    /// A word that can be waited for. The lock stands for that of the kernel's queue of waiters.
    #[derive(Debug)]
    pub(super) struct AtomicU32 {
        word: loom::sync::atomic::AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl AtomicU32 {
        pub(super) fn new(value: u32) -> Self {
            Self {
                word: loom::sync::atomic::AtomicU32::new(value),
                queue: Mutex::new(()),
                woken: Condvar::new(),
            }
        }

        pub(super) fn load(&self, ordering: Ordering) -> u32 {
            self.word.load(ordering)
        }

        pub(super) fn store(&self, value: u32, ordering: Ordering) {
            let ordering = match RELAXED_STORES.get() {
                true => Ordering::Relaxed,
                false => ordering,
            };
            self.word.store(value, ordering);
        }

        pub(super) fn compare_exchange(
            &self,
            old: u32,
            new: u32,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u32, u32> {
            self.word.compare_exchange(old, new, success, failure)
        }

        pub(super) fn fetch_add(&self, value: u32, ordering: Ordering) -> u32 {
            self.word.fetch_add(value, ordering)
        }
    }

    pub(super) fn wait(word: &AtomicU32, value: u32, patience: Option<&Timespec>) {
        let queue = word.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) != value {
            return;
        }
        match patience {
            None => drop(word.woken.wait(queue).unwrap()),
            Some(_) => {
                // It is over at once.
                drop(queue);
                loom::thread::yield_now();
            }
        }
    }

    pub(super) fn wake(word: &AtomicU32) {
        let _queue = word.queue.lock().unwrap();
        word.woken.notify_one();
    }
}

const FIRST: u64 = 1;
const LAST: u64 = 2;
/// Where it is put.
const AREA: PageNumber = PageNumber(1 << 20);
/// The task saw work without its ranges, and took nothing.
const STALE: &str = "failed: taken\n  left: (0, None)\n right: (1, None)";
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1,
};

/// One whose start and length are the same number of bytes: half of another does not fit.
fn range(number: u64) -> PageRange {
    PageRange::new(PageNumber(number), number)
}

/// A task that has nothing to read or take, and looks at what it is asked to.
#[derive(Default)]
struct Task {
    is_over: Cell<bool>,
}

impl Work for Task {
    fn read(&self, ranges: impl Iterator<Item = Range>) -> i64 {
        ranges.map(|[_, length]| length as i64).sum()
    }

    fn populate(&self, [start, length]: Range) -> Result<(), Errno> {
        assert_eq!(start, length, "half of a range");
        Err(Errno::NOMEM)
    }

    fn take_range(&self, [start, length]: Range, to: u64) -> Result<(), Errno> {
        assert_eq!(start, length, "half of a range");
        assert_eq!(to, AREA.address(), "another area");
        self.is_over.set(start == range(LAST).start.address());
        Ok(())
    }
}

fn taken(mailbox: &Mailbox) -> Taken {
    loop {
        if let Some(taken) = mailbox.taken(PATIENCE) {
            return taken;
        }
    }
}

fn take_whole(mailbox: &Mailbox, number: u64) {
    mailbox.take(&[range(number)], AREA);
    let Taken { ranges, error } = taken(mailbox);
    assert_eq!((ranges, error), (1, None), "taken");
}

fn until_idle(mailbox: &Mailbox) {
    while !mailbox.is_idle() {
        thread::yield_now();
    }
}

/// A range is read, and taken if that was in time; then the mailbox is used for another.
fn evicted(mailbox: &Mailbox) {
    match mailbox.read(&[range(FIRST)], PATIENCE) {
        Some(bytes) => {
            assert_eq!(bytes, range(FIRST).start.address(), "read");
            mailbox.finish();
            take_whole(mailbox, FIRST);
        }
        None => until_idle(mailbox),
    }
}

/// A range is populated, or given up; then the mailbox is used for another.
fn populated(mailbox: &Mailbox) {
    match mailbox.populate(range(FIRST), PATIENCE) {
        Some(result) => assert_eq!(result, Err(Errno::NOMEM), "populated"),
        None => until_idle(mailbox),
    }
}

/// The agent does something with a task that serves it, and then takes the last range.
fn beside_a_task(agent: fn(&Mailbox)) {
    let mailbox = Arc::new(Mailbox::new());
    let task = {
        let mailbox = mailbox.clone();
        thread::spawn(move || {
            let task = Task::default();
            while !task.is_over.get() {
                mailbox.serve_once(&task);
            }
        })
    };
    agent(&mailbox);
    take_whole(&mailbox, LAST);
    task.join().unwrap();
}

fn in_every_order(agent: fn(&Mailbox)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || beside_a_task(agent));
}

// P-76
#[test]
fn what_is_posted_is_what_is_done_and_nobody_waits_for_ever() {
    in_every_order(evicted);
    in_every_order(populated);
}

#[test]
fn a_range_that_is_not_released_with_its_work_is_noticed() {
    words::RELAXED_STORES.set(true);
    let failed = catch_unwind(|| in_every_order(evicted));
    words::RELAXED_STORES.set(false);
    let payload = failed.expect_err("every order was as it should be");
    let text = payload.downcast::<String>().unwrap();
    assert!(text.ends_with(STALE), "{text}");
}
