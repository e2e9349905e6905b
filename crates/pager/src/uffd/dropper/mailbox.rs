//! What the agent and the task that takes pages share, and who may do what when.
//!
//! The agent posts one piece of work at a time and the task does it. What a piece of work needs is
//! written before the state names it, and its result before the state says that it is done. Work
//! that the agent does not wait for any more is still the task's until the mailbox is idle.

use super::words::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, RANGES_MAX, wait, wake};
use crate::PageRange;
use core::sync::atomic::Ordering;
use legato_base::{PAGE_SHIFT, PageNumber};
use rustix::event::Timespec;
use rustix::io::Errno;

const IDLE: u32 = 0;
const READ: u32 = 1;
const POPULATE: u32 = 2;
/// What the agent waits for, reading or populating, is done.
const ANSWERED: u32 = 3;
/// The agent does not wait for that any more.
const CANCELLED: u32 = 4;
const TAKE: u32 = 5;
const TAKE_DONE: u32 = 6;
/// There is no more work.
const END: u32 = 7;

/// A range as its start and its length in bytes.
pub(super) type Range = [u64; 2];

/// What the task does with ranges.
pub(super) trait Work {
    /// Reads ranges, one after the other. Returns how many bytes, or a negative errno.
    fn read(&self, ranges: impl Iterator<Item = Range>) -> i64;

    /// Makes all pages of a range this process's alone.
    fn populate(&self, range: Range) -> Result<(), Errno>;

    /// Moves a range with its pages, whole, to an address, and leaves it empty.
    fn take_range(&self, range: Range, to: u64) -> Result<(), Errno>;
}

#[derive(Debug)]
pub(in crate::uffd) struct Mailbox {
    state: AtomicU32,
    /// Ranges that are set.
    count: AtomicU32,
    ranges: [(AtomicU64, AtomicU64); RANGES_MAX],
    /// The agent wants no further range dropped.
    stop: AtomicBool,
    /// Where what is taken is put, one range after the other.
    area: AtomicU64,
    /// Ranges taken.
    done: AtomicU32,
    /// Bytes read, or 0 when populated or taken, or a negative errno.
    result: AtomicI64,
}

/// How far taking ranges got.
#[derive(Debug)]
pub(in crate::uffd) struct Taken {
    /// Ranges that are gone whole.
    pub(in crate::uffd) ranges: usize,
    /// Why not the next; without an error the agent has stopped it.
    pub(in crate::uffd) error: Option<Errno>,
}

/// The agent's side.
impl Mailbox {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(IDLE),
            count: AtomicU32::new(0),
            ranges: core::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))),
            stop: AtomicBool::new(false),
            area: AtomicU64::new(0),
            done: AtomicU32::new(0),
            result: AtomicI64::new(0),
        }
    }

    /// False while the task is still at what was given up (P-76).
    pub(in crate::uffd) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }

    /// Reads ranges into the bounce pages, one after the other; returns how many bytes could be
    /// read. None if that takes longer than `patience`: then a page is missing, and its fault must
    /// be served first.
    pub(in crate::uffd) fn read(&self, ranges: &[PageRange], patience: Timespec) -> Option<u64> {
        let read = self.ask(READ, ranges, patience)?;
        Some(u64::try_from(read).unwrap_or(0))
    }

    /// Makes the pages of a range this process's alone, as the program's own write would. None if that
    /// takes longer than `patience`: then a page is missing, and its fault must be served first.
    pub(in crate::uffd) fn populate(
        &self,
        range: PageRange,
        patience: Timespec,
    ) -> Option<Result<(), Errno>> {
        let result = self.ask(POPULATE, &[range], patience)?;
        self.finish();
        Some(error_of(result).map_or(Ok(()), Err))
    }

    /// Posts work and waits for its result, as long as there is patience.
    fn ask(&self, work: u32, ranges: &[PageRange], patience: Timespec) -> Option<i64> {
        self.post(work, ranges);
        let state = &self.state;
        // EINTR, EAGAIN and ETIMEDOUT are all answered by looking. Twice, because a wake-up may be
        // left over from the work before.
        for _ in 0..2 {
            if state.load(Ordering::Acquire) == work {
                wait(state, work, Some(&patience));
            }
        }
        let given_up = state
            .compare_exchange(work, CANCELLED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        (!given_up).then(|| self.result.load(Ordering::Acquire))
    }

    /// Lets the task take ranges that it read and put them into an area, one after the other. The
    /// agent must go on reading its userfaultfd until [`Self::taken`].
    pub(in crate::uffd) fn take(&self, ranges: &[PageRange], area: PageNumber) {
        self.stop.store(false, Ordering::Relaxed);
        self.area.store(area.address(), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.post(TAKE, ranges);
    }

    /// Lets the task begin no further range.
    pub(in crate::uffd) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(in crate::uffd) fn is_taking(&self) -> bool {
        self.state.load(Ordering::Acquire) == TAKE
    }

    /// Did it end, and how? Waits for up to `patience`.
    pub(in crate::uffd) fn taken(&self, patience: Timespec) -> Option<Taken> {
        let state = &self.state;
        if state.load(Ordering::Acquire) == TAKE && patience != Timespec::default() {
            wait(state, TAKE, Some(&patience));
        }
        if state.load(Ordering::Acquire) == TAKE {
            return None;
        }
        let error = error_of(self.result.load(Ordering::Acquire));
        let ranges = self.done.load(Ordering::Acquire) as usize;
        self.finish();
        Some(Taken { ranges, error })
    }

    /// Nothing more is to be done with what was read.
    pub(in crate::uffd) fn finish(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// Lets the task end, if it has nothing to do. True if it ends or has ended.
    pub(super) fn end(&self) -> bool {
        let state = &self.state;
        match state.compare_exchange(IDLE, END, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                wake(state);
                true
            }
            Err(state) => state == END,
        }
    }

    fn post(&self, work: u32, ranges: &[PageRange]) {
        assert!(
            ranges.len() <= RANGES_MAX,
            "invariant: every range has a page, and all fit the bounce pages"
        );
        for (place, range) in self.ranges.iter().zip(ranges) {
            place.0.store(range.start.address(), Ordering::Relaxed);
            place.1.store(range.count << PAGE_SHIFT, Ordering::Relaxed);
        }
        self.count.store(ranges.len() as u32, Ordering::Relaxed);
        change(&self.state, work);
    }
}

/// The task's side.
impl Mailbox {
    /// Does the work that is posted, or waits for some. False if there will be no more.
    pub(super) fn serve_once(&self, work: &impl Work) -> bool {
        let state = self.state.load(Ordering::Acquire);
        match state {
            READ => self.answer(READ, work.read(self.ranges())),
            POPULATE => self.answer(POPULATE, self.populate_ranges(work)),
            TAKE => {
                let result = self.take_ranges(work);
                self.result.store(result, Ordering::Release);
                change(&self.state, TAKE_DONE);
            }
            // Given up before it was begun.
            CANCELLED => self.state.store(IDLE, Ordering::Release),
            END => return false,
            other => wait(&self.state, other, None),
        }
        true
    }

    /// The work is done, if the agent still waits for that.
    fn answer(&self, work: u32, result: i64) {
        self.result.store(result, Ordering::Release);
        let wanted =
            self.state
                .compare_exchange(work, ANSWERED, Ordering::AcqRel, Ordering::Acquire);
        if wanted.is_ok() {
            wake(&self.state);
        } else {
            self.state.store(IDLE, Ordering::Release);
        }
    }

    /// Returns 0 or a negative errno.
    fn populate_ranges(&self, work: &impl Work) -> i64 {
        match self.ranges().try_for_each(|range| work.populate(range)) {
            Ok(()) => 0,
            Err(error) => -i64::from(error.raw_os_error()),
        }
    }

    /// Takes range after range. Returns 0 or a negative errno.
    fn take_ranges(&self, work: &impl Work) -> i64 {
        let mut to = self.area.load(Ordering::Relaxed);
        for range in self.ranges() {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            if let Err(error) = work.take_range(range, to) {
                return -i64::from(error.raw_os_error());
            }
            to += range[1];
            self.done.fetch_add(1, Ordering::Release);
        }
        0
    }

    fn ranges(&self) -> impl Iterator<Item = Range> {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let set = &self.ranges[..count];
        set.iter().map(|(start, length)| {
            [
                start.load(Ordering::Relaxed),
                length.load(Ordering::Relaxed),
            ]
        })
    }
}

/// The error in a result, which is a negative errno then.
fn error_of(result: i64) -> Option<Errno> {
    if result >= 0 {
        return None;
    }
    let errno = i32::try_from(-result);
    Some(errno.map_or(Errno::INVAL, Errno::from_raw_os_error))
}

fn change(state: &AtomicU32, to: u32) {
    state.store(to, Ordering::Release);
    wake(state);
}
