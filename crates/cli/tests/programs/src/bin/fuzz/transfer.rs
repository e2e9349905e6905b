//! Content that goes into the memory and out of it: by loads and stores, and by every kind of system
//! call that copies.

use crate::calls;
use crate::content::{Content, file_stamp, render_stamp};
use crate::process::FILE_PAGES;
use crate::space::Page;
use crate::worker::{Failure, Worker};
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;

/// Less than a pipe or socket holds, so that one thread may write and then read.
const CHUNK: usize = 32 << 10;

/// How bytes get from one place to another.
#[derive(Clone, Copy, Debug)]
enum Way {
    Direct,
    Pipe,
    PipeInParts,
    Message,
    File,
    ProcessRead,
    ProcessWrite,
}

const WAYS: [Way; 9] = [
    Way::Direct,
    Way::Direct,
    Way::Direct,
    Way::Pipe,
    Way::PipeInParts,
    Way::Message,
    Way::File,
    Way::ProcessRead,
    Way::ProcessWrite,
];

impl Worker<'_> {
    fn draw_way(random: &mut Random) -> Way {
        WAYS[random.below(WAYS.len() as u64) as usize]
    }

    /// Pages that may be written, none of which is another one of them too.
    fn pick_writable(&self, random: &mut Random) -> Option<Range<usize>> {
        let range = self.space.pick_where(random, Page::is_writable)?;
        let place = |page: usize| {
            (
                self.space.pages[page].is_shared(),
                self.space.pages[page].backing,
            )
        };
        let is_again = |page: &usize| {
            place(*page).0 && (range.start..*page).any(|before| place(before) == place(*page))
        };
        let end = range.clone().find(is_again).unwrap_or(range.end);
        Some(range.start..end)
    }

    /// A new stamp over some bytes.
    pub(crate) fn write(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(pages) = self.pick_writable(random) else {
            return Ok(());
        };
        let mut bytes = some_bytes(&pages, random);
        for (page, is_first) in [(pages.start, true), (pages.end - 1, false)] {
            let is_free = self.space.pages[page].is_free;
            if is_free || self.content(page).is_crowded() {
                match is_first {
                    true => bytes.start = page * PAGE_SIZE,
                    false => bytes.end = (page + 1) * PAGE_SIZE,
                }
            }
            if pages.len() == 1 && (is_free || self.content(page).is_crowded()) {
                bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            }
        }
        let stamp = self.next_stamp();
        let mut bounce = core::mem::take(&mut self.bounce);
        let source = &mut bounce[..bytes.len()];
        render_stamp(stamp, bytes.start % PAGE_SIZE, source);
        let target = self.space.base + bytes.start;
        let moved = self.transfer(
            Self::draw_way(random),
            source.as_mut_ptr().expose_provenance(),
            target,
            bytes.len(),
        );
        self.bounce = bounce;
        self.wrote(bytes, stamp);
        moved
    }

    /// Reads some bytes and compares them.
    pub(crate) fn check(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(pages) = self.space.pick_where(random, Page::is_readable) else {
            return Ok(());
        };
        let bytes = some_bytes(&pages, random);
        let mut bounce = core::mem::take(&mut self.bounce);
        let target = &mut bounce[..bytes.len()];
        let address = self.space.base + bytes.start;
        self.transfer(
            Self::draw_way(random),
            address,
            target.as_mut_ptr().expose_provenance(),
            bytes.len(),
        )?;
        let mut done = 0;
        while done < bytes.len() {
            let (page, offset) = (
                (bytes.start + done) / PAGE_SIZE,
                (bytes.start + done) % PAGE_SIZE,
            );
            let count = (PAGE_SIZE - offset).min(bytes.len() - done);
            self.compare(page, offset, &target[done..done + count])?;
            done += count;
        }
        self.bounce = bounce;
        Ok(())
    }

    /// Whole pages from one place of the thread to another, without a stop between.
    pub(crate) fn copy(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(source) = self
            .space
            .pick_where(random, |page| page.is_readable() && !page.is_free)
        else {
            return Ok(());
        };
        let Some(target) = self.pick_writable(random) else {
            return Ok(());
        };
        let count = source.len().min(target.len());
        let is_apart = source.start + count <= target.start || target.start + count <= source.start;
        // Two mappings of one object may be one memory, which a chunk would change half way.
        let is_shared = |page: usize| self.space.pages[page].is_shared();
        if !is_apart || (source.clone().any(is_shared) && target.clone().any(is_shared)) {
            return Ok(());
        }
        let addresses = (
            self.space.address(source.start),
            self.space.address(target.start),
        );
        self.transfer(
            Self::draw_way(random),
            addresses.0,
            addresses.1,
            count * PAGE_SIZE,
        )?;
        for index in 0..count {
            let content = self.content(source.start + index).clone();
            self.set_content(target.start + index, content);
        }
        self.note(target.start..target.start + count);
        Ok(())
    }

    /// From the file that nobody writes, straight into the memory.
    pub(crate) fn read_file(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(mut pages) = self.pick_writable(random) else {
            return Ok(());
        };
        pages.end = pages.end.min(pages.start + FILE_PAGES);
        let first = random.below((FILE_PAGES - pages.len() + 1) as u64) as usize;
        let length = pages.len() * PAGE_SIZE;
        let address = self.space.address(pages.start);
        let read = calls::read_at(self.settings.file, address, length, first * PAGE_SIZE);
        for (index, page) in pages.clone().enumerate() {
            self.set_content(page, Content::of(file_stamp(first + index)));
        }
        self.note(pages.clone());
        self.expect_at("preadv of the file", &pages, read, Ok(length))
    }

    /// The kernel's random bytes, and then a stamp, because nobody knows what they were.
    pub(crate) fn get_random(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(mut pages) = self.pick_writable(random) else {
            return Ok(());
        };
        pages.end = pages.end.min(pages.start + 4);
        let length = pages.len() * PAGE_SIZE;
        let found = calls::random(self.space.address(pages.start), length);
        self.expect_at("getrandom", &pages, found, Ok(length))?;
        self.store_new(pages);
        Ok(())
    }

    fn transfer(
        &mut self,
        way: Way,
        source: usize,
        target: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < length {
            let count = (length - done).min(CHUNK);
            self.transfer_chunk(way, source + done, target + done, count)
                .map_err(|failure| {
                    Failure(format!(
                        "{failure}; from {:#x} to {:#x}",
                        source + done,
                        target + done
                    ))
                })?;
            done += count;
        }
        Ok(())
    }

    fn transfer_chunk(
        &mut self,
        way: Way,
        source: usize,
        target: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let [pipe_out, pipe_in] = self.channels.pipe;
        let [near, far] = self.channels.sockets;
        let scratch = self.channels.scratch;
        let (name, sent, received) = match way {
            Way::Direct => {
                calls::copy(target, source, length);
                return Ok(());
            }
            Way::Pipe => (
                "pipe",
                calls::write(pipe_in, source, length),
                calls::read(pipe_out, target, length),
            ),
            Way::PipeInParts => (
                "writev and readv",
                calls::write_parts(pipe_in, source, length),
                calls::read_parts(pipe_out, target, length),
            ),
            Way::Message => (
                "sendmsg and recvmsg",
                calls::send(near, source, length),
                calls::receive(far, target, length),
            ),
            Way::File => (
                "pwritev and preadv",
                calls::write_at(scratch, source, length, source % CHUNK),
                calls::read_at(scratch, target, length, source % CHUNK),
            ),
            Way::ProcessRead => {
                let copied = calls::copy_in(target, source, length);
                ("process_vm_readv", copied, copied)
            }
            Way::ProcessWrite => {
                let copied = calls::copy_out(target, source, length);
                ("process_vm_writev", copied, copied)
            }
        };
        self.expect(name, sent, Ok(length))?;
        self.expect(name, received, Ok(length))
    }
}

/// Some of the bytes of some pages; all of them half the time.
fn some_bytes(pages: &Range<usize>, random: &mut Random) -> Range<usize> {
    let (mut start, mut end) = (pages.start * PAGE_SIZE, pages.end * PAGE_SIZE);
    if random.ratio(1, 2) {
        start += random.below(PAGE_SIZE as u64 / 2) as usize;
        end -= random.below(PAGE_SIZE as u64 / 2) as usize;
    }
    start..end
}
