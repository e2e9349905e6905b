//! Memory that all threads of a process use: pages that everybody reads, and pages with a lock in
//! them, on which the kernel makes threads sleep and wakes them.

use crate::calls::{self, NO_FILE, PRIVATE, READ_WRITE};
use crate::content::{PageBytes, Stamp, describe, render_stamp, stamp};
use crate::worker::{Failure, Settings, Worker};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use legato_base::PAGE_SIZE;
use legato_base::random::Random;

/// The number of the thread that stamps what everybody reads.
const WRITER: usize = 100;

/// Half of the locking is for so many pages, so that threads meet.
const CONTENDED: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct SharedAreas {
    base: usize,
    /// What each page that everybody reads holds.
    stamps: Vec<Stamp>,
    /// How often each page with a lock had been taken when all threads were at rest.
    versions: Vec<u32>,
    writes: u32,
}

impl SharedAreas {
    pub(crate) fn new(base: usize, read: usize, locked: usize) -> Result<Self, Failure> {
        let length = (read + locked) * PAGE_SIZE;
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        match calls::map(base, length, READ_WRITE, flags, NO_FILE, 0) {
            Ok(found) if found == base => Ok(Self {
                base,
                stamps: vec![0; read],
                versions: vec![0; locked],
                writes: 0,
            }),
            found => Err(Failure(format!("mmap of the shared areas: {found:?}"))),
        }
    }

    pub(crate) fn lock_count(&self) -> usize {
        self.versions.len()
    }

    fn read_address(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    fn lock_address(&self, page: usize) -> usize {
        self.base + (self.stamps.len() + page) * PAGE_SIZE
    }

    /// Writes one page in `one_in` anew. No other thread is running.
    pub(crate) fn rewrite(&mut self, process: u16, random: &mut Random, one_in: u64) {
        for page in 0..self.stamps.len() {
            if random.ratio(1, one_in) {
                self.writes += 1;
                self.stamps[page] = stamp(process, WRITER, self.writes);
                let mut bytes: PageBytes = [0; PAGE_SIZE];
                render_stamp(self.stamps[page], 0, &mut bytes);
                calls::store(self.read_address(page), &bytes);
            }
        }
    }

    /// Everything, while no other thread is running; `taken` is what the threads have done since.
    pub(crate) fn check_all(
        &mut self,
        settings: &Settings,
        workers: &mut [Worker<'_>],
    ) -> Result<(), Failure> {
        for page in 0..self.stamps.len() {
            self.check_read(page)
                .map_err(|text| named(settings, &text))?;
        }
        for page in 0..self.versions.len() {
            for worker in workers.iter_mut() {
                self.versions[page] += core::mem::take(&mut worker.taken[page]);
            }
            let mut bytes: PageBytes = [0; PAGE_SIZE];
            calls::load(self.lock_address(page), &mut bytes);
            self.compare_locked(page, self.versions[page], &bytes)
                .map_err(|text| named(settings, &text))?;
        }
        Ok(())
    }

    fn check_read(&self, page: usize) -> Result<(), String> {
        let (mut found, mut expected): (PageBytes, PageBytes) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        calls::load(self.read_address(page), &mut found);
        render_stamp(self.stamps[page], 0, &mut expected);
        match found == expected {
            true => Ok(()),
            false => Err(format!(
                "page {page} of the area for all, at {:#x}: write {}, {}",
                self.read_address(page),
                self.stamps[page] as u32,
                describe(&found, &expected, 0)
            )),
        }
    }

    pub(crate) fn read(&self, worker: &mut Worker<'_>, random: &mut Random) -> Result<(), Failure> {
        for _ in 0..32 {
            let page = random.below(self.stamps.len() as u64) as usize;
            self.check_read(page)
                .map_err(|text| worker.failure(&format!("WRONG CONTENT of {text}")))?;
        }
        Ok(())
    }

    /// Takes some pages' locks, one after the other, checks what is there and writes the next.
    pub(crate) fn take(&self, worker: &mut Worker<'_>, random: &mut Random) -> Result<(), Failure> {
        for _ in 0..16 {
            let among = match random.ratio(1, 2) {
                true => CONTENDED.min(self.versions.len() as u64),
                false => self.versions.len() as u64,
            };
            let page = random.below(among) as usize;
            let lock = self.lock(page);
            let mut bytes: PageBytes = [0; PAGE_SIZE];
            calls::load(self.lock_address(page), &mut bytes);
            let version = bytes[8..12].iter().rev();
            let version = version.fold(0u32, |version, byte| version << 8 | u32::from(*byte));
            self.compare_locked(page, version, &bytes)
                .map_err(|text| worker.failure(&format!("WRONG CONTENT of {text}")))?;
            locked_content(page, version + 1, &mut bytes);
            calls::store(self.lock_address(page) + 8, &bytes[8..]);
            worker.taken[page] += 1;
            self.unlock(page, lock);
        }
        Ok(())
    }

    /// The first word is the lock's and may be anything.
    fn compare_locked(&self, page: usize, version: u32, found: &PageBytes) -> Result<(), String> {
        let mut expected: PageBytes = [0; PAGE_SIZE];
        locked_content(page, version, &mut expected);
        match found[8..] == expected[8..] {
            true => Ok(()),
            false => Err(format!(
                "page {page} with a lock, at {:#x}: version {version}, {}",
                self.lock_address(page),
                describe(&found[8..], &expected[8..], 8)
            )),
        }
    }

    /// Drepper's lock of three states ("Futexes Are Tricky", 2011): 0 free, 1 taken, 2 waited for.
    fn lock(&self, page: usize) -> &AtomicU32 {
        let address = self.lock_address(page);
        // SAFETY: the word is aligned, mapped as long as the process lives, and only used so.
        let word = unsafe { AtomicU32::from_ptr(calls::pointer(address).cast()) };
        if word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            while word.swap(2, Acquire) != 0 {
                let _ = calls::futex_wait(address, 2);
            }
        }
        word
    }

    fn unlock(&self, page: usize, word: &AtomicU32) {
        if word.swap(0, Release) == 2 {
            let _ = calls::futex_wake(self.lock_address(page), 1);
        }
    }
}

fn locked_content(page: usize, version: u32, bytes: &mut PageBytes) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate().skip(1) {
        let value = match (version, index) {
            (0, _) => 0,
            (_, 1) => u64::from(version),
            _ => u64::from(version) << 32 | (page as u64) << 12 | index as u64,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn named(settings: &Settings, text: &str) -> Failure {
    Failure(format!("seed {}: WRONG CONTENT of {text}", settings.seed))
}
