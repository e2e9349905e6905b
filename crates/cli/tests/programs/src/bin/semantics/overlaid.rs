//! Threads that put new memory over parts of their own, whose pages may be on their way out just then:
//! with one call (`mmap` or `mremap` with MAP_FIXED), and of memory that may be read only, so that no
//! kernel moves its pages out.

use crate::ground::{Case, Checked, Failure, Ground, Outcome, call};
use core::sync::atomic::Ordering::Relaxed;
use legato_base::{PAGE_SIZE, Random};
use legato_test_programs::Arena;

pub(crate) const CASES: &[(&str, Case)] = &[("overlaid", overlaid)];

const THREADS: u64 = 16;
/// Of each thread.
const PAGES: u64 = 512;
/// Pages that are replaced at a time, at most.
const RUN: u64 = 32;
const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

struct Own {
    region: Arena,
    /// What is moved over parts of it.
    other: Arena,
    /// The first word of each page of the region.
    words: Vec<u64>,
    next: u64,
    random: Random,
}

impl Own {
    fn new(thread: u64) -> Result<Self, Failure> {
        let mut own = Self {
            region: Arena::new(PAGES)?,
            other: Arena::new(RUN)?,
            words: vec![0; PAGES as usize],
            next: thread << 32,
            random: Random::from_seed(thread),
        };
        own.write(0, PAGES);
        Ok(own)
    }

    fn write(&mut self, first: u64, pages: u64) {
        for page in first..first + pages {
            self.next += 1;
            self.region.words(page)[0].store(self.next, Relaxed);
            self.words[page as usize] = self.next;
        }
    }

    fn check(&self, first: u64, pages: u64) -> Checked {
        for page in first..first + pages {
            let (found, expected) = (
                self.region.words(page)[0].load(Relaxed),
                self.words[page as usize],
            );
            if found != expected {
                let at = self.region.address(page);
                let wrong = format!("page {page} at {at:p}: {found:#x} for {expected:#x}");
                return Err(Failure(wrong));
            }
        }
        Ok(())
    }

    fn map_over(&mut self, first: u64, pages: u64) -> Checked {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let (at, length) = (self.region.address(first), pages as usize * PAGE_SIZE);
        call!(mmap(at, length, READ_WRITE, flags, -1, 0))?;
        self.words[first as usize..(first + pages) as usize].fill(0);
        Ok(())
    }

    fn move_over(&mut self, first: u64, pages: u64) -> Checked {
        for page in 0..pages {
            self.next += 1;
            self.other.words(page)[0].store(self.next, Relaxed);
            self.words[(first + page) as usize] = self.next;
        }
        self.other.protect(libc::PROT_READ)?;
        // The old place stays mapped, and is empty: nobody else maps there.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let (from, to) = (self.other.address(0), self.region.address(first));
        let length = pages as usize * PAGE_SIZE;
        call!(mremap(from, length, length, flags, to))?;
        Ok(self.other.protect(READ_WRITE)?)
    }

    fn step(&mut self) -> Checked {
        let pages = 1 + self.random.below(RUN);
        let first = self.random.below(PAGES - pages);
        self.region.protect(libc::PROT_READ)?;
        for _ in 0..8 {
            let page = self.random.below(PAGES);
            self.check(page, 1)?;
        }
        match self.random.ratio(1, 2) {
            true => self.map_over(first, pages)?,
            false => self.move_over(first, pages)?,
        }
        self.check(first, pages)?;
        self.region.protect(READ_WRITE)?;
        self.write(first, pages);
        Ok(())
    }
}

fn overlaid(ground: &Ground) -> Result<Outcome, Failure> {
    let mut owns = Vec::new();
    for thread in 0..THREADS {
        owns.push(Own::new(thread)?);
    }
    std::thread::scope(|scope| {
        let run = |own: &mut Own| -> Checked {
            (0..ground.rounds).try_for_each(|_| own.step())?;
            own.check(0, PAGES)
        };
        let mut threads = Vec::new();
        for own in &mut owns {
            threads.push(scope.spawn(move || run(own)));
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(Outcome::Passed)
}
