//! Everything at once: 32 threads that fault, write, discard, move, unmap and fork, each on memory
//! of its own that it knows the versions of.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use legato_base::{PAGE_SIZE, Random};
use legato_test_programs::Arena;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("storm", |ground| storm(ground, Steps::All)),
    ("storm-of-moves", |ground| storm(ground, Steps::Moves)),
    ("maps-beside-faults", maps_beside_faults),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    All,
    /// Reads, writes and mremap, which must not be refused then.
    Moves,
}

const THREADS: u64 = 32;
/// Of each thread, at first.
const PAGES: u64 = 1024;

struct Own {
    region: Arena,
    /// What each page holds; zero for zeros.
    versions: Vec<u32>,
    /// It is one mapping: nothing was mapped over a part of it.
    whole: bool,
    steps: Steps,
    next: u32,
    random: Random,
}

impl Own {
    fn check_all(&self) -> Checked {
        let mut pages = self.versions.iter().enumerate();
        pages.try_for_each(|(page, version)| Ok(self.region.check(page as u64, *version)?))
    }

    fn page(&mut self) -> u64 {
        self.random.below(self.region.pages())
    }

    fn write(&mut self, page: u64) {
        self.next += 1;
        self.region.fill(page, self.next);
        self.versions[page as usize] = self.next;
    }

    /// Up to 32 pages.
    fn run(&mut self) -> (u64, u64) {
        let first = self.page();
        let pages = 1 + self.random.below(32.min(self.region.pages() - first));
        (first, pages)
    }

    fn forget(&mut self, first: u64, pages: u64) {
        self.versions[first as usize..(first + pages) as usize].fill(0);
    }

    /// mremap takes one mapping only, and what was mapped over a part is another (EFAULT). After such
    /// a refusal everything must still be there; then a whole one takes its place.
    fn renew(&mut self) -> Checked {
        self.check_all()?;
        self.region = Arena::new(PAGES)?;
        self.whole = true;
        self.versions = vec![0; PAGES as usize];
        self.write_all();
        Ok(())
    }

    fn write_all(&mut self) {
        (0..self.region.pages()).for_each(|page| self.write(page));
    }

    /// The child sees what this thread wrote, and changes it for itself.
    fn forked(&mut self) -> Checked {
        let child = fork("child", || {
            self.check_all()?;
            let page = self.page();
            self.write(page);
            self.check_all()
        })?;
        reap(child)
    }

    fn step(&mut self) -> Checked {
        let step = match self.random.below(1000) {
            step @ (900..980 | 998..) if self.steps == Steps::Moves => step % 900,
            step => step,
        };
        match step {
            0..450 => {
                let page = self.page();
                self.region.check(page, self.versions[page as usize])?;
            }
            450..900 => {
                let page = self.page();
                self.write(page);
            }
            900..940 => {
                let (first, pages) = self.run();
                self.region.advise(first, pages, libc::MADV_DONTNEED)?;
                self.forget(first, pages);
            }
            940..980 => {
                let (first, pages) = self.run();
                map_over(&self.region, first, pages)?;
                self.whole = false;
                self.forget(first, pages);
            }
            980..990 => {
                let pages = PAGES / 2 + self.random.below(PAGES);
                match self.region.resize(pages) {
                    Ok(()) => self.versions.resize(pages as usize, 0),
                    Err(_) if !self.whole => self.renew()?,
                    Err(error) => return Err(error.into()),
                }
            }
            // Of several mappings Linux 6.17 moves the first ones before it refuses.
            990..996 if self.whole => self.region.relocate()?,
            990..996 => self.renew()?,
            996..998 => self.check_all()?,
            _ => self.forked()?,
        }
        Ok(())
    }
}

/// In one call: between an unmapping and a mapping another thread could take the place.
fn map_over(region: &Arena, first: u64, pages: u64) -> Checked {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let length = pages as usize * PAGE_SIZE;
    call!(mmap(region.address(first), length, both, flags, -1, 0))?;
    Ok(())
}

fn storm(ground: &Ground, steps: Steps) -> Result<Outcome, Failure> {
    let end = Instant::now() + Duration::from_secs(ground.seconds);
    let failed = AtomicBool::new(false);
    let failed = &failed;
    let thread = &|seed: u64| -> Checked {
        let mut own = Own {
            region: Arena::new(PAGES)?,
            versions: vec![0; PAGES as usize],
            whole: true,
            steps,
            next: 0,
            random: Random::from_seed(seed),
        };
        own.write_all();
        while Instant::now() < end && !failed.load(Relaxed) {
            let result = own.step();
            if result.is_err() {
                failed.store(true, Relaxed);
                return result;
            }
        }
        own.check_all()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || thread(seed)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(Outcome::Passed)
}

/// What one of the threads that map and unmap has at a time, at most: with all of them more than the
/// cache of most tests.
const MAPPED_PAGES: u64 = 2048;

/// What another one goes round in: 32 MiB.
const WHOLE_PAGES: u64 = 8192;

/// Four threads map, fill, check and unmap memory all the time, mostly at addresses that another has
/// just given back, while one goes round in memory of its own.
fn maps_beside_faults(ground: &Ground) -> Result<Outcome, Failure> {
    let done = &AtomicBool::new(false);
    let map = |seed: u64| -> Checked {
        let mut random = Random::from_seed(seed);
        for version in 1.. {
            let region = Arena::new(1 + random.below(MAPPED_PAGES))?;
            let mut pages = 0..region.pages();
            pages.clone().for_each(|page| region.fill(page, version));
            pages.try_for_each(|page| region.check(page, version))?;
            if done.load(Relaxed) {
                break;
            }
        }
        Ok(())
    };
    let go_round = || -> Checked {
        let region = Arena::new(WHOLE_PAGES)?;
        for version in 0..ground.rounds as u32 {
            for page in 0..region.pages() {
                region.check(page, version)?;
                region.fill(page, version + 1);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let mappers: Vec<_> = (0..4).map(|seed| scope.spawn(move || map(seed))).collect();
        let result = go_round();
        done.store(true, Relaxed);
        mappers
            .into_iter()
            .try_for_each(|mapper| mapper.join().expect("no thread panics"))
            .and(result)
    })?;
    Ok(Outcome::Passed)
}
