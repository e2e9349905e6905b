//! One address space: the program's, or a forked child's.

use super::accept::{Batch, Order};
use super::dropped::Dropping;
use super::gather::Gathering;
use super::grown::Growing;
use super::ranges::Ranges;
use super::refused::Refused;
use super::survey::Survey;
use super::thread_blocks::ThreadBlocks;
use super::waits::Waits;
use crate::uffd::Userfaultfd;
use crate::uffd::context::MESSAGES_MAX;
use crate::uffd::fault_count::FaultCount;
use crate::uffd::message::Message;
use alloc::vec::Vec;
use legato_base::Time;
use rustix::io::Errno;

/// What is known of an address space.
#[derive(Debug)]
pub(in crate::uffd) struct Space {
    pub(in crate::uffd) context: Userfaultfd,
    fault_count: FaultCount,
    /// Nobody uses it any more.
    pub(super) closed: bool,
    pub(super) ranges: Ranges,
    pub(super) refused: Refused,
    pub(super) thread_blocks: ThreadBlocks,
    /// What was read.
    pub(super) order: Order,
    pub(super) waits: Waits,
    /// What is to be read when it is all there.
    pub(super) gathering: Option<Gathering>,
    /// New parts of mappings that the kernel is populating before it has announced their moves.
    pub(super) growing: Growing,
    /// What was found and is not in the pager's charge yet.
    pub(super) survey: Option<Survey>,
    /// Who may have been dropping something when that was last noted.
    pub(super) dropping: Option<Dropping>,
}

impl Space {
    pub(super) fn new(context: Userfaultfd, ranges: Ranges) -> Self {
        Self {
            context,
            fault_count: FaultCount::default(),
            closed: false,
            ranges,
            refused: Refused::default(),
            thread_blocks: ThreadBlocks::default(),
            order: Order::default(),
            waits: Waits::default(),
            gathering: None,
            growing: Growing::default(),
            survey: None,
            dropping: None,
        }
    }

    /// Faults that wait to be read.
    pub(super) fn waiting_faults(&self) -> usize {
        self.fault_count.read(&self.context)
    }

    /// Reads faults alone, if any wait. The kernel hands them out before anything else, and nobody is
    /// let go on by that.
    pub(super) fn read_faults(&self, into: &mut Vec<Message>) -> Result<(), Errno> {
        let end = into.len() + self.waiting_faults();
        while into.len() < end {
            let (before, count) = (into.len(), MESSAGES_MAX.min(end - into.len()));
            self.context.read(count, into)?;
            // Who waited may be gone (a signal), and in the place of its fault a change is read.
            let is_change = into.first().is_some_and(Message::is_change);
            if is_change || into.len() < before + count {
                break;
            }
        }
        Ok(())
    }

    /// Reads so many changes, or as many as there are, and the faults that the kernel hands out before them.
    pub(super) fn read_changes(&self, count: usize, into: &mut Vec<Message>) -> Result<(), Errno> {
        loop {
            // Of these there may be one for each thread, and no more is read below than changes are missing.
            self.read_faults(into)?;
            let before = into.len();
            let changes = into.iter().filter(|message| message.is_change()).count();
            let missing = count.saturating_sub(changes);
            if missing == 0 {
                return Ok(());
            }
            self.context.read(missing, into)?;
            if into.len() == before {
                return Ok(());
            }
        }
    }

    /// Takes messages that were read at once.
    pub(super) fn receive(&mut self, batch: Batch, now: Time) {
        if batch.messages.is_empty() {
            return;
        }
        if let Some(survey) = &mut self.survey {
            survey.follow(&batch.messages);
        }
        self.growing.follow(&batch.messages);
        self.order.receive(batch, now);
    }

    /// Pages came or went, so no event is missing.
    pub(super) fn note_settled(&mut self) {
        self.order.settle();
        self.settle_survey();
    }

    pub(super) const fn settle_survey(&mut self) {
        if let Some(survey) = &mut self.survey {
            survey.settle();
        }
    }

    /// Nobody uses it any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.ranges = Ranges::default();
        self.order = Order::default();
        self.gathering = None;
        self.survey = None;
        self.dropping = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::opening::Opener;
    use crate::uffd::{Mask, abi};
    use legato_base::{PAGE_SIZE, PageNumber};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// More than are read at a time.
    const THREADS: usize = MESSAGES_MAX + 6;

    /// Lost: of a thousand threads that waited for pages as many were read as there were changes, and all
    /// threads were looked at in between.
    #[test]
    fn all_faults_and_so_many_changes_are_read() {
        let context = Opener::new(Mask::default())
            .open(abi::FEATURE_EVENT_REMOVE)
            .unwrap();
        let length = (THREADS + 1) * PAGE_SIZE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of this test's own.
        let start = unsafe {
            mmap_anonymous(core::ptr::null_mut(), length, access, MapFlags::PRIVATE).unwrap()
                as usize
        };
        // SAFETY: the test gives each page that is touched.
        unsafe { context.register(start as u64, length as u64, false) }.unwrap();
        let space = Space::new(context, Ranges::default());
        let page = |index: usize| start + index * PAGE_SIZE;
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            for index in 0..THREADS {
                scope.spawn(move || {
                    // SAFETY: mapped until all threads have ended.
                    unsafe { core::ptr::read_volatile(page(index) as *const u8) }
                });
            }
            while space.waiting_faults() < THREADS {
                std::thread::yield_now();
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    // SAFETY: nothing touches this page.
                    unsafe { madvise(page(THREADS) as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) }
                });
            }
            while !space.context.is_changing() {
                std::thread::yield_now();
            }
            for _ in 0..2 {
                let mut messages = Vec::new();
                // It may not have come yet.
                while !messages.iter().any(Message::is_change) {
                    let _ = space.read_changes(1, &mut messages);
                }
                read.push(messages.len());
            }
            // The second one is let go on, and ends the change.
            while space.context.is_changing() {
                std::thread::yield_now();
            }
            for index in 0..THREADS {
                let page = PageNumber::containing(page(index) as u64);
                // SAFETY: it was never written.
                let _ = unsafe { space.context.zero(page) };
            }
        });
        assert_eq!(read, [THREADS + 1, 1]);
        // SAFETY: nothing uses it any more.
        unsafe { munmap(start as *mut _, length).unwrap() };
    }
}
