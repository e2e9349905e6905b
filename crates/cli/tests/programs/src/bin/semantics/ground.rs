//! What the cases stand on: memory that is pushed out, and calls whose result is a value.

use core::fmt;
use legato_base::PAGE_SIZE;
use legato_test_programs::{Arena, Wrong};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Why a case failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        Self(wrong.to_string())
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// This machine cannot show it, for this reason.
    Skipped(&'static str),
}

pub(crate) type Checked = Result<(), Failure>;
pub(crate) type Case = fn(&Ground) -> Result<Outcome, Failure>;

/// Says how a case ended; by a direct write, so that it works in forked processes too.
pub(crate) fn report(name: &str, outcome: &Outcome) {
    let line = match outcome {
        Outcome::Passed => format!("{name}: ok\n"),
        Outcome::Skipped(reason) => format!("{name}: skipped, {reason}\n"),
    };
    let mut output = std::io::stdout();
    // Whoever does not read it sees a case without an answer.
    let _ = output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush());
}

/// Leaves the case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::ground::Failure(format!($($text)+)));
        }
    };
}

/// A call of libc; its error is the errno.
macro_rules! outcome {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the cases pass numbers, and addresses of memory that is theirs and outlives the
        // call; what the call does to that memory is what the case is about.
        let result = unsafe { libc::$name($($argument),*) } as isize;
        $crate::ground::errno_of(result)
    }};
}

/// A call of libc that has to succeed.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::ground::outcome!($name($($argument),*)).map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            $crate::ground::Failure(format!("{}: {error}", stringify!($name)))
        })
    };
}

pub(crate) use {call, ensure, outcome};

pub(crate) fn errno_of(result: isize) -> Result<usize, i32> {
    match result {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        // Addresses in the upper half would be negative; user space has none.
        result => Ok(result as usize),
    }
}

/// Touched between two looks at whether the pages have left.
const STEP: u64 = 256;
/// So long the filler is touched before the pages count as staying. Whoever serves this process may be
/// on its way into it only, and want a processor.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pages for all regions of a case. Untouched ones cost nothing.
pub(crate) const POOL: u64 = 128 << 10;

/// Memory that is touched to push other memory out, and memory for the case's regions, in one
/// mapping: a pager that takes charge of mappings one by one has both or none.
#[derive(Debug)]
pub(crate) struct Ground {
    filler: Arena,
    pool: Mutex<Arena>,
    /// Counts the steps through the filler.
    step: AtomicU64,
    pub(crate) expect_evicted: bool,
    pub(crate) seconds: u64,
    pub(crate) rounds: u64,
}

impl Ground {
    pub(crate) fn new(
        pages: u64,
        expect_evicted: bool,
        seconds: u64,
        rounds: u64,
    ) -> Result<Self, Failure> {
        let mut pool = Arena::new(POOL + pages)?;
        Ok(Self {
            filler: pool.split_off(pages),
            pool: Mutex::new(pool),
            step: AtomicU64::new(0),
            expect_evicted,
            seconds,
            rounds,
        })
    }

    /// How many there are of other memory.
    pub(crate) fn pages(&self) -> u64 {
        self.filler.pages()
    }

    /// Never touched.
    pub(crate) fn region(&self, pages: u64) -> Result<Arena, Failure> {
        let mut pool = self
            .pool
            .lock()
            .map_err(|_| Failure("a thread panicked".to_owned()))?;
        Ok(pool.split_off(pages))
    }

    /// Filled with version 1, and pushed out.
    pub(crate) fn far_region(&self, pages: u64) -> Result<Arena, Failure> {
        let region = self.region(pages)?;
        fill(&region, 1);
        self.evict(&region)?;
        Ok(region)
    }

    pub(crate) fn evict(&self, region: &Arena) -> Checked {
        self.evict_range(region.address(0), region.length())
    }

    /// Uses other memory until none of the range is resident.
    pub(crate) fn evict_range(&self, start: *mut libc::c_void, length: usize) -> Checked {
        if !self.expect_evicted {
            return Ok(());
        }
        let begin = Instant::now();
        loop {
            let left = resident(start, length)?;
            if left == 0 {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "was not evicted: {left} pages stayed"
            );
            self.press(STEP);
        }
    }

    /// Writes to so many new pages. What is never used again is no loop that a pager could notice
    /// and protect other pages from.
    pub(crate) fn press(&self, pages: u64) {
        for _ in 0..pages.div_ceil(STEP) {
            let step = self.step.fetch_add(1, Relaxed) % (self.filler.pages() / STEP);
            let first = step * STEP;
            // Where a limit or a lock refuses it, the pages are old ones, which serve as well.
            let _ = self.filler.advise(first, STEP, libc::MADV_DONTNEED);
            for page in first..first + STEP {
                self.filler.words(page)[0].store(page + 1, Relaxed);
            }
        }
    }

    /// Touches as much as is surely more than the cache, whatever stays.
    pub(crate) fn press_all(&self) {
        if self.expect_evicted {
            self.press(self.filler.pages());
        }
    }

    /// Empties the filler and what is left of the pool, for cases that lock all there is: neither
    /// may be used again.
    pub(crate) fn give_filler_back(&self) -> Checked {
        let pool = self
            .pool
            .lock()
            .map_err(|_| Failure("a thread panicked".to_owned()))?;
        for part in [&self.filler, &*pool] {
            part.advise(0, part.pages(), libc::MADV_DONTNEED)?;
            part.protect(libc::PROT_NONE)?;
        }
        Ok(())
    }
}

/// A mapping of its own, filled.
pub(crate) fn filled_region(pages: u64) -> Result<Arena, Failure> {
    let region = Arena::new(pages)?;
    fill(&region, 1);
    Ok(region)
}

pub(crate) fn fill(region: &Arena, version: u32) {
    (0..region.pages()).for_each(|page| region.fill(page, version));
}

pub(crate) fn check(region: &Arena, version: u32) -> Checked {
    (0..region.pages()).try_for_each(|page| Ok(region.check(page, version)?))
}

/// The bytes of a region, in memory of the heap.
pub(crate) fn bytes_of(region: &Arena) -> Vec<u8> {
    let length = region.length();
    // SAFETY: the region is that long, and no other thread of a case that asks for this writes it.
    unsafe { core::slice::from_raw_parts(region.address(0).cast(), length) }.to_vec()
}

/// Pages of the range that are resident, by mincore(2): it needs neither /proc nor descriptors.
pub(crate) fn resident(start: *mut libc::c_void, length: usize) -> Result<usize, Failure> {
    let mut vector = [0_u8; 1024];
    let mut count = 0;
    for offset in (0..length).step_by(vector.len() * PAGE_SIZE) {
        let part = (length - offset).min(vector.len() * PAGE_SIZE);
        call!(mincore(
            start.wrapping_byte_add(offset),
            part,
            vector.as_mut_ptr()
        ))?;
        let pages = part.div_ceil(PAGE_SIZE);
        count += vector[..pages]
            .iter()
            .filter(|byte| **byte & 1 != 0)
            .count();
    }
    Ok(count)
}
