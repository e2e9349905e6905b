//! Mappings that come, go, and move.

use crate::calls::{self, NO_FILE, PRIVATE};
use crate::content::{Content, file_stamp};
use crate::process::FILE_PAGES;
use crate::space::{Backing, Page, Protection};
use crate::worker::{Failure, Object, Worker};
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use libc::c_int;

/// Pages of an object of shared memory, and objects of a thread.
const OBJECT_PAGES: usize = 64;
const OBJECTS_MAX: usize = 10;

/// Private pages of files do not leave local memory, so there are few.
const FILE_PAGES_MAX: usize = 32;

const TO_TARGET: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

impl Worker<'_> {
    fn length_of(range: &Range<usize>) -> usize {
        range.len() * PAGE_SIZE
    }

    /// New anonymous memory, over whatever was there or only where nothing was.
    pub(crate) fn map(&mut self, random: &mut Random) -> Result<(), Failure> {
        let range = match random.ratio(1, 2) {
            true => self.space.pick_where(random, |page| !page.is_mapped()),
            false => Some(self.space.pick(random)),
        };
        let Some(range) = range else {
            return Ok(());
        };
        let (address, length) = (self.space.address(range.start), Self::length_of(&range));
        let mut flags = PRIVATE;
        if random.ratio(1, 3) {
            flags |= libc::MAP_NORESERVE;
        }
        if random.ratio(1, 6) {
            flags |= libc::MAP_POPULATE;
        }
        let is_taken = range.clone().any(|page| self.space.pages[page].is_mapped());
        if random.ratio(1, 5) {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            let expected = if is_taken {
                Err(libc::EEXIST)
            } else {
                Ok(address)
            };
            let found = calls::map(address, length, calls::READ_WRITE, flags, NO_FILE, 0);
            self.expect_at("mmap without replacing", &range, found, expected)?;
        }
        let found = calls::map(
            address,
            length,
            calls::READ_WRITE,
            flags | libc::MAP_FIXED,
            NO_FILE,
            0,
        );
        let new = |_| (Backing::Anonymous, Content::default());
        self.space.place(range.clone(), Protection::ReadWrite, new);
        self.note(range.clone());
        self.expect_at("mmap", &range, found, Ok(address))?;
        if random.ratio(2, 3) {
            self.store_new(range);
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, random: &mut Random) -> Result<(), Failure> {
        let range = self.space.pick(random);
        let found = calls::unmap(self.space.address(range.start), Self::length_of(&range));
        self.forget(range.clone());
        self.note(range.clone());
        self.expect_at("munmap", &range, found, Ok(0))
    }

    fn forget(&mut self, range: Range<usize>) {
        self.space.pages[range].iter_mut().for_each(Page::clear);
    }

    /// A private mapping of the file: its pages are the file's until they are written.
    pub(crate) fn map_file(&mut self, random: &mut Random) -> Result<(), Failure> {
        let range = self.space.pick(random);
        let mapped = self
            .space
            .count(|page| matches!(page.backing, Backing::File(_)));
        if mapped + range.len() > FILE_PAGES_MAX {
            return Ok(());
        }
        let first = random.below((FILE_PAGES - range.len() + 1) as u64) as usize;
        let address = self.space.address(range.start);
        let (protection, bits) = match random.ratio(1, 4) {
            true => (Protection::Read, calls::READ),
            false => (Protection::ReadWrite, calls::READ_WRITE),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let (file, offset) = (self.settings.file, first * PAGE_SIZE);
        let found = calls::map(address, Self::length_of(&range), bits, flags, file, offset);
        self.space.place(range.clone(), protection, |index| {
            (
                Backing::File(first + index),
                Content::of(file_stamp(first + index)),
            )
        });
        self.note(range.clone());
        self.expect_at("mmap of the file", &range, found, Ok(address))
    }

    /// Shared memory: a new object, or another mapping of one that has a file.
    pub(crate) fn map_shared(&mut self, random: &mut Random) -> Result<(), Failure> {
        let mut range = self.space.pick(random);
        range.end = range.end.min(range.start + OBJECT_PAGES);
        let old = random.below(OBJECTS_MAX as u64) as usize;
        let (object, first) = match self.objects.get(old) {
            Some(Object { file: Some(_), .. }) => (
                old,
                random.below((OBJECT_PAGES - range.len() + 1) as u64) as usize,
            ),
            Some(_) => return Ok(()),
            None => {
                let is_named = random.ratio(2, 3);
                let file = is_named.then(|| calls::memory_file(OBJECT_PAGES * PAGE_SIZE));
                let file = file
                    .transpose()
                    .map_err(|errno| self.failure(&format!("memfd: errno {errno}")))?;
                self.objects.push(Object {
                    file: file.map(|file| file as c_int),
                    contents: vec![Content::default(); OBJECT_PAGES],
                });
                (self.objects.len() - 1, 0)
            }
        };
        let address = self.space.address(range.start);
        let (flags, file) = match self.objects[object].file {
            Some(file) => (libc::MAP_SHARED, file),
            None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, NO_FILE),
        };
        let flags = flags | libc::MAP_FIXED;
        let (bits, offset) = (calls::READ_WRITE, first * PAGE_SIZE);
        let found = calls::map(address, Self::length_of(&range), bits, flags, file, offset);
        self.space
            .place(range.clone(), Protection::ReadWrite, |index| {
                let page = first + index;
                (Backing::Shared { object, page }, Content::default())
            });
        self.note(range.clone());
        self.expect_at("mmap of shared memory", &range, found, Ok(address))
    }

    /// Grows in place, or fails to where something is behind.
    pub(crate) fn grow(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is = |page: &Page| page.is_anonymous() && !page.is_locked;
        let Some(range) = self.space.pick_piece(random, is) else {
            return Ok(());
        };
        let (address, length) = (self.space.address(range.start), Self::length_of(&range));
        let next = self.space.pages.get(range.end);
        if next.is_some_and(Page::is_mapped) {
            let found = calls::remap(address, length, length + PAGE_SIZE, 0, 0);
            return self.expect_at("mremap into a neighbour", &range, found, Err(libc::ENOMEM));
        }
        let room = self.space.room_after(range.end, 256);
        if room == 0 {
            return Ok(());
        }
        let flags = if random.ratio(1, 2) {
            libc::MREMAP_MAYMOVE
        } else {
            0
        };
        let found = calls::remap(address, length, length + room * PAGE_SIZE, flags, 0);
        // It may fill the hole in what was one mapping: that makes two of it, unless the kernel can join them.
        self.space.cut(range.end + room);
        let last = self.space.pages[range.end - 1].clone();
        for page in range.end..range.end + room {
            let state = &mut self.space.pages[page];
            state.clear();
            (state.backing, state.protection, state.piece) =
                (Backing::Anonymous, last.protection, last.piece);
            state.is_left_by_fork = last.is_left_by_fork;
            state.is_wiped_by_fork = last.is_wiped_by_fork;
        }
        self.note(range.start..range.end + room);
        self.expect_at("mremap to more", &range, found, Ok(address))
    }

    pub(crate) fn shrink(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(range) = self.space.pick_piece(random, Page::is_mapped) else {
            return Ok(());
        };
        let unit = if range.start % 32 == 0 && range.len() % 32 == 0 {
            32
        } else {
            1
        };
        let kept = range.len() / unit / 2 * unit;
        if kept == 0 {
            return Ok(());
        }
        let address = self.space.address(range.start);
        let found = calls::remap(address, Self::length_of(&range), kept * PAGE_SIZE, 0, 0);
        self.forget(range.start + kept..range.end);
        self.note(range.clone());
        self.expect_at("mremap to less", &range, found, Ok(address))
    }

    /// Moves over whatever is at the target.
    pub(crate) fn relocate(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(range) = self.space.pick_piece(random, Page::is_mapped) else {
            return Ok(());
        };
        let Some(target) = self.space.pick_target(random, &range) else {
            return Ok(());
        };
        let (address, length) = (self.space.address(range.start), Self::length_of(&range));
        let found = calls::remap(
            address,
            length,
            length,
            TO_TARGET,
            self.space.address(target),
        );
        self.move_model(&range, target);
        self.forget(range.clone());
        self.note(range.clone());
        self.note(target..target + range.len());
        self.expect_at(
            "mremap to a place",
            &range,
            found,
            Ok(self.space.address(target)),
        )
    }

    /// Moves the pages and leaves the mapping, which then reads as zeros (MREMAP_DONTUNMAP).
    pub(crate) fn move_content(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is = |page: &Page| page.is_anonymous() && !page.is_locked;
        let Some(range) = self.space.pick_piece(random, is) else {
            return Ok(());
        };
        let Some(target) = self.space.pick_target(random, &range) else {
            return Ok(());
        };
        let (address, length) = (self.space.address(range.start), Self::length_of(&range));
        let flags = TO_TARGET | libc::MREMAP_DONTUNMAP;
        let found = calls::remap(address, length, length, flags, self.space.address(target));
        self.move_model(&range, target);
        for page in &mut self.space.pages[range.clone()] {
            page.content = Content::default();
            (page.is_free, page.is_guard) = (false, false);
        }
        self.note(range.clone());
        self.note(target..target + range.len());
        self.expect_at(
            "mremap that keeps the mapping",
            &range,
            found,
            Ok(self.space.address(target)),
        )
    }

    fn move_model(&mut self, range: &Range<usize>, target: usize) {
        let piece = self.space.new_piece();
        for (index, page) in range.clone().enumerate() {
            self.space.pages[target + index] = self.space.pages[page].clone();
            self.space.pages[target + index].piece = piece;
        }
    }

    /// Grows where there is no room, so that the kernel chooses another place, and comes back.
    pub(crate) fn send_away(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is = |page: &Page| page.is_anonymous() && !page.is_locked;
        let Some(range) = self.space.pick_piece(random, is) else {
            return Ok(());
        };
        if !self.space.pages.get(range.end).is_some_and(Page::is_mapped) {
            return Ok(());
        }
        let (address, length) = (self.space.address(range.start), Self::length_of(&range));
        let longer = length + 3 * PAGE_SIZE;
        let found = calls::remap(address, length, longer, libc::MREMAP_MAYMOVE, 0);
        self.note(range.clone());
        let Ok(away) = found else {
            return self.expect_at("mremap to anywhere", &range, found, Ok(0));
        };
        if self.space.pages[range.start].is_readable() && !self.space.pages[range.start].is_guard {
            self.check_page_at(range.start, away)?;
        }
        if self.space.pages[range.start].protection >= Protection::Read {
            let mut tail = [1; PAGE_SIZE];
            calls::load(away + length + PAGE_SIZE, &mut tail);
            if tail != [0; PAGE_SIZE] {
                return Err(self.failure("the new part of a grown mapping is not zeros"));
            }
        }
        let found = calls::remap(away, longer, length, TO_TARGET, address);
        // What it is part of is now another mapping.
        let piece = self.space.new_piece();
        self.space.pages[range.clone()]
            .iter_mut()
            .for_each(|page| page.piece = piece);
        self.expect_at("mremap from anywhere", &range, found, Ok(address))
    }
}
