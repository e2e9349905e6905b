//! The memory and its model: for each page, the version that it must have.

use crate::{Arena, Wrong};
use legato_base::Random;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Pages that belong to one thread in a row, so that calls can use several neighbours, while
/// eviction in larger batches still meets pages of all threads.
pub(crate) const BLOCK: u64 = 16;
/// Pages at the end of the arena that all threads write, each under its lock.
const SHARED: u64 = 2 * BLOCK;
/// Pages before them that hold one counter each, which all threads add to.
const COUNTERS: u64 = 2 * BLOCK;
/// Set in the model beside the last version of a page that is zeros now.
const ZEROS: u32 = 1 << 31;

/// Why the program ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The memory is not what the program wrote.
    Content(Wrong),
    /// A call on the memory failed.
    Call(io::Error),
    /// A call gave another result than on ordinary memory.
    Result(&'static str),
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        Self::Content(wrong)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Call(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(wrong) => write!(f, "wrong: {wrong}"),
            Self::Call(error) => write!(f, "failed: {error}"),
            Self::Result(what) => write!(f, "wrong: {what}"),
        }
    }
}

/// Everything the phases work on.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) arena: Arena,
    pub(crate) threads: u64,
    /// How often `touch` touches, all threads together.
    pub(crate) operations: u64,
    seed: u64,
    versions: Vec<AtomicU32>,
    locks: Vec<Mutex<()>>,
    added: Vec<AtomicU64>,
    done: AtomicU64,
}

impl World {
    pub(crate) fn new(
        pages: u64,
        threads: u64,
        operations: u64,
        seed: u64,
    ) -> Result<Self, Failure> {
        let pages = pages / BLOCK * BLOCK;
        if threads == 0 || pages < SHARED + COUNTERS + 4 * threads * BLOCK {
            return Err(Failure::Result("too little memory for so many threads"));
        }
        let world = Self {
            arena: Arena::new(pages)?,
            threads,
            operations,
            seed,
            versions: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            locks: (0..SHARED).map(|_| Mutex::new(())).collect(),
            added: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicU64::new(0),
        };
        let fill = |thread| {
            for page in world.own_pages(thread) {
                world.write(page);
            }
            Ok(())
        };
        world.on_all_threads(&fill)?;
        (pages - SHARED..pages).for_each(|page| world.write(page));
        Ok(world)
    }

    /// A stream of random numbers of its own for each user.
    pub(crate) fn random(&self, user: u64) -> Random {
        Random::from_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(user))
    }

    pub(crate) fn operations_done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn count_operation(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    fn owned(&self) -> u64 {
        self.arena.pages() - SHARED - COUNTERS
    }

    /// The pages that only `thread` may write.
    pub(crate) fn own_pages(&self, thread: u64) -> impl Iterator<Item = u64> {
        let blocks = self.owned() / BLOCK;
        (thread..blocks)
            .step_by(self.threads as usize)
            .flat_map(|block| block * BLOCK..(block + 1) * BLOCK)
    }

    /// `pages` neighbours, at most a block, that belong to `thread`.
    pub(crate) fn own_run(&self, thread: u64, pages: u64, random: &mut Random) -> Range<u64> {
        let blocks = (self.owned() / BLOCK - thread).div_ceil(self.threads);
        let block = thread + random.below(blocks) * self.threads;
        let first = block * BLOCK + random.below(BLOCK - pages + 1);
        first..first + pages
    }

    /// A page of the thread's own.
    pub(crate) fn own_page(&self, thread: u64, random: &mut Random) -> u64 {
        self.own_run(thread, 1, random).start
    }

    /// The version that the page must have; 0 for zeros.
    pub(crate) fn version(&self, page: u64) -> u32 {
        match self.versions[page as usize].load(Relaxed) {
            version if version & ZEROS == 0 => version,
            _ => 0,
        }
    }

    /// Notes that the page is zeros now. Its next version still is one that it never had.
    pub(crate) fn set_zeros(&self, page: u64) {
        self.versions[page as usize].fetch_or(ZEROS, Relaxed);
    }

    /// Gives the page its next version.
    pub(crate) fn write(&self, page: u64) {
        let last = self.versions[page as usize].load(Relaxed) & !ZEROS;
        self.write_version(page, last + 1);
    }

    pub(crate) fn write_version(&self, page: u64, version: u32) {
        self.arena.fill(page, version);
        self.versions[page as usize].store(version, Relaxed);
    }

    pub(crate) fn verify(&self, page: u64) -> Result<(), Wrong> {
        self.arena.check(page, self.version(page))
    }

    /// Verifies a page that all threads write, and writes it.
    pub(crate) fn write_shared(&self, random: &mut Random) -> Result<(), Wrong> {
        let index = random.below(SHARED);
        let page = self.arena.pages() - SHARED + index;
        let _guard = self.locks[index as usize].lock().expect("no thread panics");
        self.verify(page)?;
        self.write(page);
        Ok(())
    }

    /// Adds to a counter in far memory, without a lock.
    pub(crate) fn add(&self, random: &mut Random) {
        let (index, amount) = (random.below(COUNTERS), random.below(1000));
        self.counter(index).fetch_add(amount, Relaxed);
        self.added[index as usize].fetch_add(amount, Relaxed);
    }

    fn counter(&self, index: u64) -> &AtomicU64 {
        &self.arena.words(self.owned() + index)[0]
    }

    /// Verifies every page. No other thread may write meanwhile.
    pub(crate) fn verify_all(&self) -> Result<(), Failure> {
        let counters = self.owned()..self.owned() + COUNTERS;
        for page in 0..self.arena.pages() {
            if !counters.contains(&page) {
                self.verify(page)?;
            }
        }
        let right =
            |index| self.counter(index).load(Relaxed) == self.added[index as usize].load(Relaxed);
        match (0..COUNTERS).all(right) {
            true => Ok(()),
            false => Err(Failure::Result("a counter lost an addition")),
        }
    }

    /// Runs `work` on every thread; the first failure wins.
    pub(crate) fn on_all_threads(
        &self,
        work: &(dyn Fn(u64) -> Result<(), Failure> + Sync),
    ) -> Result<(), Failure> {
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || work(thread)))
                .collect();
            let results = running
                .into_iter()
                .map(|thread| thread.join().expect("no thread panics"));
            results.fold(Ok(()), Result::and)
        })
    }
}
