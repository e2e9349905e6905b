//! Protection, advice and locks: calls that change how pages are kept, and some their content.

use crate::calls;
use crate::content::{Content, file_stamp};
use crate::operation::Operation;
use crate::space::{Backing, Page, Protection, Space};
use crate::worker::{Failure, Worker};
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use libc::c_int;

/// Linux 6.13; not in the libc crate.
pub(crate) const MADV_GUARD_INSTALL: c_int = 102;
pub(crate) const MADV_GUARD_REMOVE: c_int = 103;

/// Locked pages, and pages given up with MADV_FREE, do not leave local memory: at most so many of a
/// thread.
const LOCKED_PAGES_MAX: usize = 16;
const FREE_PAGES_MAX: usize = 48;

impl Worker<'_> {
    pub(crate) fn protect(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(range) = self.space.pick_where(random, Page::is_mapped) else {
            return Ok(());
        };
        let (protection, bits) = match random.below(6) {
            0 => (Protection::None, calls::NONE),
            1 => (Protection::Read, calls::READ),
            2 => (Protection::ReadExecute, calls::READ | libc::PROT_EXEC),
            3 => (Protection::All, calls::READ_WRITE | libc::PROT_EXEC),
            _ => (Protection::ReadWrite, calls::READ_WRITE),
        };
        let (address, length) = self.bounds(&range);
        let found = calls::protect(address, length, bits);
        self.space
            .change(range.clone(), |page| page.protection = protection);
        self.note(range.clone());
        self.expect_at("mprotect", &range, found, Ok(0))
    }

    fn bounds(&self, range: &Range<usize>) -> (usize, usize) {
        (self.space.address(range.start), range.len() * PAGE_SIZE)
    }

    pub(crate) fn lock(&mut self, random: &mut Random, on_fault: bool) -> Result<(), Failure> {
        let room = LOCKED_PAGES_MAX.saturating_sub(self.space.count(|page| page.is_locked));
        let Some(mut range) = self.space.pick_where(random, Page::is_readable) else {
            return Ok(());
        };
        range.end = range.end.min(range.start + room);
        if range.is_empty() {
            return Ok(());
        }
        let (address, length) = self.bounds(&range);
        let found = calls::lock(address, length, on_fault);
        self.space
            .change(range.clone(), |page| page.is_locked = true);
        self.note(range.clone());
        self.expect_at("mlock2", &range, found, Ok(0))
    }

    pub(crate) fn unlock(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is_locked = |page: &Page| page.is_locked;
        let Some(range) = self.space.pick_where(random, is_locked) else {
            return Ok(());
        };
        let (address, length) = self.bounds(&range);
        let found = calls::unlock(address, length);
        self.space
            .change(range.clone(), |page| page.is_locked = false);
        self.note(range.clone());
        self.expect_at("munlock", &range, found, Ok(0))
    }

    pub(crate) fn advise(
        &mut self,
        operation: Operation,
        random: &mut Random,
    ) -> Result<(), Failure> {
        let unlocked = |page: &Page| page.is_mapped() && !page.is_locked;
        let anonymous = |page: &Page| page.is_anonymous() && !page.is_locked;
        match operation {
            Operation::Discard => self.discard(random),
            Operation::Free => self.free(random),
            Operation::Remove => self.remove(random),
            Operation::PopulateRead => {
                self.change(random, libc::MADV_POPULATE_READ, Page::is_readable, |_| ())
            }
            Operation::PopulateWrite => {
                self.change(random, libc::MADV_POPULATE_WRITE, Page::is_writable, |_| ())
            }
            Operation::Cold => self.change(random, libc::MADV_COLD, unlocked, |_| ()),
            Operation::PageOut => self.hint(random, libc::MADV_PAGEOUT, unlocked),
            Operation::Collapse => self.hint(random, libc::MADV_COLLAPSE, Page::is_anonymous),
            Operation::Huge => self.hint(random, libc::MADV_HUGEPAGE, Page::is_anonymous),
            Operation::NoHuge => self.hint(random, libc::MADV_NOHUGEPAGE, Page::is_anonymous),
            Operation::Mergeable => self.hint(random, libc::MADV_MERGEABLE, Page::is_anonymous),
            Operation::Unmergeable => self.hint(random, libc::MADV_UNMERGEABLE, Page::is_anonymous),
            Operation::DontFork => {
                self.change(random, libc::MADV_DONTFORK, Page::is_mapped, |page| {
                    page.is_left_by_fork = true;
                })
            }
            Operation::DoFork => self.change(random, libc::MADV_DOFORK, Page::is_mapped, |page| {
                page.is_left_by_fork = false;
            }),
            Operation::WipeOnFork => {
                let is = |page: &Page| page.is_anonymous() && !page.is_guard;
                self.change(random, libc::MADV_WIPEONFORK, is, |page| {
                    page.is_wiped_by_fork = true;
                })
            }
            Operation::KeepOnFork => {
                self.change(random, libc::MADV_KEEPONFORK, Page::is_anonymous, |page| {
                    page.is_wiped_by_fork = false;
                })
            }
            Operation::Guard if self.settings.has_guards => {
                let is = |page: &Page| anonymous(page) && !page.is_wiped_by_fork;
                self.change_kept(random, MADV_GUARD_INSTALL, is, |page| {
                    page.content = Content::default();
                    (page.is_guard, page.is_free) = (true, false);
                })
            }
            Operation::Unguard if self.settings.has_guards => {
                self.change_kept(random, MADV_GUARD_REMOVE, anonymous, |page| {
                    page.is_guard = false
                })
            }
            _ => Ok(()),
        }
    }

    /// Advice that is followed, and what it changes.
    fn change(
        &mut self,
        random: &mut Random,
        advice: c_int,
        is: impl Fn(&Page) -> bool,
        change: impl FnMut(&mut Page),
    ) -> Result<(), Failure> {
        self.follow(random, advice, is, |space, range| {
            space.change(range, change);
        })
    }

    /// The same where mappings are not split by it.
    fn change_kept(
        &mut self,
        random: &mut Random,
        advice: c_int,
        is: impl Fn(&Page) -> bool,
        change: impl FnMut(&mut Page),
    ) -> Result<(), Failure> {
        self.follow(random, advice, is, |space, range| {
            space.pages[range].iter_mut().for_each(change);
        })
    }

    fn follow(
        &mut self,
        random: &mut Random,
        advice: c_int,
        is: impl Fn(&Page) -> bool,
        apply: impl FnOnce(&mut Space, Range<usize>),
    ) -> Result<(), Failure> {
        let Some(range) = self.space.pick_where(random, is) else {
            return Ok(());
        };
        let (address, length) = self.bounds(&range);
        let found = calls::advise(address, length, advice);
        apply(&mut self.space, range.clone());
        self.note(range.clone());
        self.expect_at("madvise", &range, found, Ok(0))
    }

    /// Advice that may change no content, whatever it returns.
    fn hint(
        &mut self,
        random: &mut Random,
        advice: c_int,
        is: impl Fn(&Page) -> bool,
    ) -> Result<(), Failure> {
        let Some(range) = self.space.pick_where(random, is) else {
            return Ok(());
        };
        let (address, length) = self.bounds(&range);
        let _ = calls::advise(address, length, advice);
        self.space.change(range.clone(), |_| ());
        self.note(range);
        Ok(())
    }

    /// MADV_DONTNEED, over holes too; locked mappings refuse it.
    fn discard(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(range) = self.space.pick_where(random, |page| !page.is_locked) else {
            return Ok(());
        };
        let (address, length) = self.bounds(&range);
        let found = calls::advise(address, length, libc::MADV_DONTNEED);
        let mut expected = Ok(0);
        for page in &mut self.space.pages[range.clone()] {
            match page.backing {
                Backing::Nothing => expected = Err(libc::ENOMEM),
                Backing::Anonymous => page.content = Content::default(),
                Backing::File(index) => page.content = Content::of(file_stamp(index)),
                Backing::Shared { .. } => {}
            }
            page.is_free = false;
        }
        self.note(range.clone());
        self.expect_at("madvise(MADV_DONTNEED)", &range, found, expected)
    }

    fn free(&mut self, random: &mut Random) -> Result<(), Failure> {
        let room = FREE_PAGES_MAX.saturating_sub(self.space.count(|page| page.is_free));
        let is = |page: &Page| page.is_anonymous() && !page.is_locked;
        let Some(mut range) = self.space.pick_where(random, is) else {
            return Ok(());
        };
        range.end = range.end.min(range.start + room);
        if range.is_empty() {
            return Ok(());
        }
        let (address, length) = self.bounds(&range);
        let found = calls::advise(address, length, libc::MADV_FREE);
        for page in &mut self.space.pages[range.clone()] {
            page.is_free |= !page.content.is_zero();
        }
        self.note(range.clone());
        self.expect_at("madvise(MADV_FREE)", &range, found, Ok(0))
    }

    /// Punches a hole into shared memory, for all mappings of it; other memory refuses that.
    fn remove(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is = |page: &Page| {
            page.is_shared() && !page.is_locked && page.protection >= Protection::ReadWrite
        };
        let Some(range) = self.space.pick_where(random, is) else {
            let Some(range) = self.space.pick_where(random, Page::is_anonymous) else {
                return Ok(());
            };
            let (address, length) = self.bounds(&range);
            let found = calls::advise(address, length, libc::MADV_REMOVE);
            return self.expect_at("madvise(MADV_REMOVE)", &range, found, Err(libc::EINVAL));
        };
        let (address, length) = self.bounds(&range);
        let found = calls::advise(address, length, libc::MADV_REMOVE);
        for page in range.clone() {
            self.set_content(page, Content::default());
        }
        self.note(range.clone());
        self.expect_at("madvise(MADV_REMOVE)", &range, found, Ok(0))
    }
}
