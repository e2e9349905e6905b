//! One thread's part: its addresses, the model of them, and the steps that change both.

use crate::calls::{self, Outcome};
use crate::content::{Content, PageBytes, Stamp, describe, stamp};
use crate::operation::Operation;
use crate::shared::SharedAreas;
use crate::space::{Backing, Page, Protection, Space};
use core::fmt;
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use libc::c_int;

/// What is the same for all processes and threads of a run.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) steps: u32,
    pub(crate) threads: usize,
    pub(crate) only_thread: Option<usize>,
    pub(crate) skipped: Vec<Operation>,
    /// Pages of all threads of a process together.
    pub(crate) pages: usize,
    /// The file that private mappings are of; nobody writes it.
    pub(crate) file: c_int,
    /// MADV_GUARD_INSTALL is there (Linux 6.13).
    pub(crate) has_guards: bool,
    /// A canary: one bit is changed behind the model's back.
    pub(crate) flips_bit: bool,
}

/// Something that Linux does not do, at a step of a thread.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Memory that several processes could share. Its content is here, because several mappings of it
/// may be there at once.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) file: Option<c_int>,
    pub(crate) contents: Vec<Content>,
}

/// Descriptors of a thread's own.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) pipe: [c_int; 2],
    pub(crate) sockets: [c_int; 2],
    pub(crate) scratch: c_int,
}

/// Bytes that a transfer takes at most.
pub(crate) const BOUNCE: usize = 1 << 20;

/// Pages before the thread's pages that the model leaves out: the alternate stack of signals.
pub(crate) const STACK_PAGES: usize = 32;

#[derive(Debug)]
pub(crate) struct Worker<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) process: u16,
    pub(crate) path: String,
    pub(crate) number: usize,
    pub(crate) step: u32,
    pub(crate) operation: Operation,
    pub(crate) space: Space,
    pub(crate) objects: Vec<Object>,
    pub(crate) channels: Channels,
    pub(crate) bounce: Vec<u8>,
    /// Times that each page of the locked area was taken by this thread.
    pub(crate) taken: Vec<u32>,
    /// Everything that calls returned, as far as it may not differ.
    pub(crate) results: u64,
    pub(crate) steps_done: u64,
    writes: u32,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        path: &str,
        number: usize,
        base: usize,
    ) -> Result<Self, Failure> {
        let pages = settings.pages / settings.threads;
        let length = (STACK_PAGES + pages) * PAGE_SIZE;
        let flags = calls::PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let mapped = calls::map(base, length, calls::READ_WRITE, flags, calls::NO_FILE, 0);
        let mut space = Space::new(base + STACK_PAGES * PAGE_SIZE, pages);
        space.place(0..pages, Protection::ReadWrite, |_| {
            (Backing::Anonymous, Content::default())
        });
        let worker = Self {
            settings,
            process: process_number(path),
            path: path.to_owned(),
            number,
            step: 0,
            operation: Operation::Fill,
            space,
            objects: Vec::new(),
            channels: Channels::open()
                .map_err(|errno| Failure(format!("channels: errno {errno}")))?,
            bounce: vec![0; BOUNCE],
            taken: Vec::new(),
            results: 0,
            steps_done: 0,
            writes: 0,
        };
        worker.expect("mmap of the arena", mapped, Ok(base))?;
        Ok(worker)
    }

    /// Goes on as a thread of another process.
    pub(crate) fn become_child(&mut self, path: &str) -> Result<(), Failure> {
        self.path = path.to_owned();
        self.process = process_number(path);
        (self.writes, self.step, self.steps_done, self.results) = (0, 0, 0, 0);
        self.channels =
            Channels::open().map_err(|errno| self.failure(&format!("channels: errno {errno}")))?;
        Ok(())
    }

    pub(crate) fn next_stamp(&mut self) -> Stamp {
        self.writes += 1;
        stamp(self.process, self.number, self.writes)
    }

    /// Writes all memory once, so that there is more than the cache holds from the beginning.
    pub(crate) fn fill(&mut self) -> Result<(), Failure> {
        for start in (0..self.space.pages.len()).step_by(64) {
            let end = (start + 64).min(self.space.pages.len());
            // One page in eight stays zeros.
            if start % 512 != 0 {
                self.store_new(start..end);
            }
        }
        Ok(())
    }

    /// Stores one new stamp over whole pages.
    pub(crate) fn store_new(&mut self, range: Range<usize>) {
        let stamp = self.next_stamp();
        let length = range.len() * PAGE_SIZE;
        crate::content::render_stamp(stamp, 0, &mut self.bounce[..length]);
        calls::store(self.space.address(range.start), &self.bounce[..length]);
        self.wrote(range.start * PAGE_SIZE..range.end * PAGE_SIZE, stamp);
    }

    /// Takes `steps` steps. What a step does depends on the seed and its number alone, and on what
    /// the steps before it have left.
    pub(crate) fn run(&mut self, steps: u32, shared: Option<&SharedAreas>) -> Result<(), Failure> {
        for _ in 0..steps {
            self.step += 1;
            self.steps_done += 1;
            let mut random = self.random(u64::from(self.step));
            let operation = Operation::draw(&mut random);
            if !self.settings.skipped.contains(&operation) {
                self.operation = operation;
                self.apply(operation, &mut random, shared)?;
            }
        }
        Ok(())
    }

    pub(crate) fn random(&self, salt: u64) -> Random {
        let who = (u64::from(self.process) << 8) | self.number as u64;
        let seed = self.settings.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (who << 40) ^ salt;
        Random::from_seed(seed)
    }

    fn apply(
        &mut self,
        operation: Operation,
        random: &mut Random,
        shared: Option<&SharedAreas>,
    ) -> Result<(), Failure> {
        match operation {
            Operation::Nothing | Operation::Fill => Ok(()),
            Operation::Heap | Operation::Fork | Operation::Execute => Ok(()),
            Operation::Write => self.write(random),
            Operation::Check => self.check(random),
            Operation::Copy => self.copy(random),
            Operation::File => self.read_file(random),
            Operation::Random => self.get_random(random),
            Operation::Map => self.map(random),
            Operation::Unmap => self.unmap(random),
            Operation::MapFile => self.map_file(random),
            Operation::MapShared => self.map_shared(random),
            Operation::Grow => self.grow(random),
            Operation::Shrink => self.shrink(random),
            Operation::Move => self.relocate(random),
            Operation::Away => self.send_away(random),
            Operation::Keep => self.move_content(random),
            Operation::Protect => self.protect(random),
            Operation::Lock => self.lock(random, false),
            Operation::LockOnFault => self.lock(random, true),
            Operation::Unlock => self.unlock(random),
            Operation::Fault => self.provoke_fault(random),
            Operation::Signal => self.take_signal(),
            Operation::Futex => self.use_futex(random),
            Operation::SharedRead => shared.map_or(Ok(()), |areas| areas.read(self, random)),
            Operation::SharedLock => shared.map_or(Ok(()), |areas| areas.take(self, random)),
            _ => self.advise(operation, random),
        }
    }

    /// The operation reached these pages.
    pub(crate) fn note(&mut self, range: Range<usize>) {
        self.space.note(range, self.step, self.operation);
    }

    pub(crate) fn failure(&self, message: &str) -> Failure {
        Failure(format!(
            "seed {} process {} thread {} step {} ({}): {message}",
            self.settings.seed,
            self.path,
            self.number,
            self.step,
            self.operation.name()
        ))
    }

    /// The result of a call must be this one, and is part of the record.
    pub(crate) fn expect(
        &self,
        call: &str,
        found: Outcome,
        expected: Outcome,
    ) -> Result<(), Failure> {
        match found == expected {
            true => Ok(()),
            false => Err(self.failure(&format!("{call} gave {found:?}, expected {expected:?}"))),
        }
    }

    /// As `expect`, for a range, which is named.
    pub(crate) fn expect_at(
        &mut self,
        call: &str,
        range: &Range<usize>,
        found: Outcome,
        expected: Outcome,
    ) -> Result<(), Failure> {
        self.record(found);
        self.expect(call, found, expected).map_err(|failure| {
            let page = &self.space.pages[range.start];
            Failure(format!(
                "{failure}; pages {}..{} from {:#x} on; the first is {:?} {:?}, history: {}",
                range.start,
                range.end,
                self.space.address(range.start),
                page.backing,
                page.protection,
                page.history()
            ))
        })
    }

    pub(crate) fn record(&mut self, outcome: Outcome) {
        let value = match outcome {
            Ok(value) => value as u64,
            Err(errno) => 1 << 63 | errno as u64,
        };
        self.results = mix(self.results, value ^ u64::from(self.step) << 20);
    }

    pub(crate) fn content(&self, page: usize) -> &Content {
        match self.space.pages[page].backing {
            Backing::Shared { object, page } => &self.objects[object].contents[page],
            _ => &self.space.pages[page].content,
        }
    }

    fn content_mut(&mut self, page: usize) -> &mut Content {
        match self.space.pages[page].backing {
            Backing::Shared { object, page } => &mut self.objects[object].contents[page],
            _ => &mut self.space.pages[page].content,
        }
    }

    /// Bytes of the arena were written with one stamp.
    pub(crate) fn wrote(&mut self, bytes: Range<usize>, stamp: Stamp) {
        let pages = bytes.start / PAGE_SIZE..bytes.end.div_ceil(PAGE_SIZE);
        for page in pages.clone() {
            let start = bytes.start.saturating_sub(page * PAGE_SIZE);
            let end = (bytes.end - page * PAGE_SIZE).min(PAGE_SIZE);
            self.content_mut(page).put(start, end, stamp);
            self.space.pages[page].is_free = false;
        }
        self.note(pages);
    }

    /// A whole page has this content now.
    pub(crate) fn set_content(&mut self, page: usize, content: Content) {
        *self.content_mut(page) = content;
        self.space.pages[page].is_free = false;
    }

    /// Compares bytes that were read from `offset` of a page on.
    pub(crate) fn compare(&self, page: usize, offset: usize, found: &[u8]) -> Result<(), Failure> {
        let mut expected: PageBytes = [0; PAGE_SIZE];
        self.content(page).render(&mut expected);
        let expected = &expected[offset..offset + found.len()];
        if found == expected {
            return Ok(());
        }
        let is_free = self.space.pages[page].is_free;
        if is_free
            && found
                .iter()
                .zip(expected)
                .all(|(found, old)| found == old || *found == 0)
        {
            return Ok(());
        }
        Err(self.wrong(page, &describe(found, expected, offset)))
    }

    pub(crate) fn wrong(&self, page: usize, found: &str) -> Failure {
        let Page {
            backing,
            protection,
            is_free,
            is_locked,
            ..
        } = self.space.pages[page];
        self.failure(&format!(
            "WRONG CONTENT of page {page} at {:#x}: expected {}, found {found}; \
             {backing:?} {protection:?} free {is_free} locked {is_locked}; history: {}",
            self.space.address(page),
            self.content(page),
            self.space.pages[page].history()
        ))
    }

    /// Loads a page and compares it.
    pub(crate) fn check_page(&self, page: usize) -> Result<(), Failure> {
        self.check_page_at(page, self.space.address(page))
    }

    /// The same where the page has been moved to.
    pub(crate) fn check_page_at(&self, page: usize, address: usize) -> Result<(), Failure> {
        let mut found: PageBytes = [0; PAGE_SIZE];
        calls::load(address, &mut found);
        self.compare(page, 0, &found)
    }

    /// Checks every page that may be read.
    pub(crate) fn check_all(&self) -> Result<(), Failure> {
        (0..self.space.pages.len())
            .filter(|page| self.space.pages[*page].is_readable())
            .try_for_each(|page| self.check_page(page))
    }

    /// Changes one bit of the first page that may be written.
    fn flip_bit(&self) {
        let mut pages = self.space.pages.iter();
        if let Some(page) = pages.position(|page| page.is_writable() && !page.is_free) {
            let address = self.space.address(page) + 300;
            let mut byte = [0];
            calls::load(address, &mut byte);
            calls::store(address, &[byte[0] ^ 1]);
        }
    }

    /// Makes everything readable, checks it, and gives a checksum of all that may not differ.
    pub(crate) fn finish(&mut self) -> Result<u64, Failure> {
        if self.settings.flips_bit {
            self.flip_bit();
        }
        let mut sum = 0;
        let mut found: PageBytes = [0; PAGE_SIZE];
        for page in 0..self.space.pages.len() {
            let state = &self.space.pages[page];
            if !state.is_mapped() || state.is_guard || state.is_free {
                sum = mix(
                    sum,
                    u64::from(state.is_mapped()) << 1 | u64::from(state.is_guard),
                );
                continue;
            }
            let address = self.space.address(page);
            if !state.is_readable() {
                let result = calls::protect(address, PAGE_SIZE, calls::READ);
                self.expect("mprotect", result, Ok(0))?;
            }
            self.check_page(page)?;
            calls::load(address, &mut found);
            for word in found.chunks_exact(8) {
                sum = mix(
                    sum,
                    word.iter()
                        .fold(0, |word, byte| word << 8 | u64::from(*byte)),
                );
            }
        }
        Ok(sum)
    }
}

impl Channels {
    pub(crate) fn open() -> Result<Self, i32> {
        Ok(Self {
            pipe: calls::pipe()?,
            sockets: calls::socket_pair()?,
            scratch: calls::memory_file(BOUNCE)? as c_int,
        })
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for file in [self.pipe, self.sockets].concat() {
            calls::close(file);
        }
        calls::close(self.scratch);
    }
}

/// One more value in a checksum (the multiplier is SplitMix64's).
pub(crate) fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
        .rotate_left(29)
}

/// Below the number of the file's stamps; of 16 bits, so two processes may share one by chance,
/// which only makes a diagnosis less sure.
fn process_number(path: &str) -> u16 {
    let sum = path.bytes().fold(1, |sum, byte| mix(sum, u64::from(byte)));
    ((sum >> 16) % u64::from(u16::MAX)) as u16
}
