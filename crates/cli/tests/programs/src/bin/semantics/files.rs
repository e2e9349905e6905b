//! Devices that reach into memory by themselves: direct I/O, and pipes that hold pages.

use crate::ground::{
    Case, Checked, Failure, Ground, Outcome, bytes_of, call, check, ensure, fill, outcome,
};
use crate::transfers::new_pipe;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use legato_base::{PAGE_SIZE, Random};
use legato_test_programs::Arena;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("direct-io", direct_io),
    ("direct-io-in-flight", direct_io_in_flight),
    ("pipe-holds-pages", pipe_holds_pages),
    ("pipe-is-given-pages", pipe_is_given_pages),
];

fn temporary_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("semantics-{}-{number}", std::process::id()))
}

/// A file without a name.
pub(crate) fn temporary_file() -> Result<File, Failure> {
    open_temporary(0)
}

fn open_temporary(flags: libc::c_int) -> Result<File, Failure> {
    let path = temporary_path();
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags);
    let file = options.open(&path);
    // What could not be opened may have been created.
    let _ = std::fs::remove_file(&path);
    Ok(file?)
}

fn direct_file() -> Result<Option<File>, Failure> {
    let path = std::env::temp_dir();
    Ok(match open_temporary(libc::O_DIRECT) {
        Ok(file) => Some(file),
        Err(failure) => {
            ensure!(path.is_dir(), "{}: {failure}", path.display());
            None
        }
    })
}

const NO_DIRECT: Outcome = Outcome::Skipped("the temporary directory has no direct I/O");

/// The device reads what is far, and writes where far pages are.
fn direct_io(ground: &Ground) -> Result<Outcome, Failure> {
    let Some(file) = direct_file()? else {
        return Ok(NO_DIRECT);
    };
    let from = ground.far_region(256)?;
    let to = ground.far_region(256)?;
    let length = 256 * PAGE_SIZE;
    let expected = bytes_of(&from);
    ground.evict(&from)?;
    let written = call!(pwrite(file.as_raw_fd(), from.address(0), length, 0))?;
    ensure!(written == length, "{written} bytes written");
    ground.evict(&to)?;
    fill(&from, 2);
    let read = call!(pread(file.as_raw_fd(), to.address(0), length, 0))?;
    ensure!(read == length, "{read} bytes read");
    ensure!(
        bytes_of(&to) == expected,
        "the device brought something else"
    );
    ground.evict(&to)?;
    ensure!(
        bytes_of(&to) == expected,
        "what the device brought was lost on its way"
    );
    check(&from, 2)?;
    Ok(Outcome::Passed)
}

const READERS: usize = 3;
const BLOCKS: u64 = 64;
const BLOCK_PAGES: u64 = 16;

/// Threads read by the device while memory is short all the time: no page may leave between the
/// moment when the device was given it and the moment when it has written it.
fn direct_io_in_flight(ground: &Ground) -> Result<Outcome, Failure> {
    let Some(file) = direct_file()? else {
        return Ok(NO_DIRECT);
    };
    let source = ground.far_region(BLOCKS * BLOCK_PAGES)?;
    let length = source.length();
    ensure!(
        call!(pwrite(file.as_raw_fd(), source.address(0), length, 0))? == length,
        "pwrite"
    );
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, done) = (&file, &done);
        let readers: Vec<_> = (0..READERS as u64)
            .map(|seed| scope.spawn(move || read_blocks(file, seed)))
            .collect();
        let presser = scope.spawn(move || {
            while !done.load(Relaxed) {
                ground.press(512);
            }
        });
        let results: Vec<Checked> = readers
            .into_iter()
            .map(|reader| reader.join().expect("no thread panics"))
            .collect();
        done.store(true, Relaxed);
        presser.join().expect("no thread panics");
        results.into_iter().collect::<Checked>()
    })?;
    check(&source, 1)?;
    Ok(Outcome::Passed)
}

fn read_blocks(file: &File, seed: u64) -> Checked {
    let target = Arena::new(BLOCKS * BLOCK_PAGES)?;
    let mut random = Random::from_seed(seed);
    let mut holds: Vec<Option<u64>> = vec![None; BLOCKS as usize];
    for _ in 0..150 {
        let place = random.below(BLOCKS);
        let block = random.below(BLOCKS);
        let bytes = BLOCK_PAGES as usize * PAGE_SIZE;
        let address = target.address(place * BLOCK_PAGES);
        let position = (block as usize * bytes) as libc::off_t;
        let read = call!(pread(file.as_raw_fd(), address, bytes, position))?;
        ensure!(read == bytes, "{read} bytes of {bytes}");
        holds[place as usize] = Some(block);
        let seen = random.below(BLOCKS);
        for place in [place, seen] {
            let Some(block) = holds[place as usize] else {
                continue;
            };
            for page in 0..BLOCK_PAGES {
                let words = target.words(place * BLOCK_PAGES + page);
                legato_test_programs::check_page(words, block * BLOCK_PAGES + page, 1)?;
            }
        }
    }
    Ok(())
}

fn into_pipe(region: &Arena, flags: libc::c_uint) -> Result<OwnedFd, Failure> {
    let (reader, writer) = new_pipe()?;
    let length = region.length();
    let piece = libc::iovec {
        iov_base: region.address(0),
        iov_len: length,
    };
    let given = call!(vmsplice(writer.as_raw_fd(), &raw const piece, 1, flags))?;
    ensure!(given == length, "the pipe took {given} bytes");
    Ok(reader)
}

fn expect_from_pipe(reader: &OwnedFd, pages: u64, version: u32) -> Checked {
    check(&from_pipe(reader, pages)?, version)
}

fn from_pipe(reader: &OwnedFd, pages: u64) -> Result<Arena, Failure> {
    let target = Arena::new(pages)?;
    let length = pages as usize * PAGE_SIZE;
    let mut taken = 0;
    while taken < length {
        let at = target.address(0).wrapping_byte_add(taken);
        let more = call!(read(reader.as_raw_fd(), at, length - taken))?;
        ensure!(more > 0, "the pipe ends after {taken} bytes");
        taken += more;
    }
    Ok(target)
}

/// A pipe that was lent pages has what they held, or what the program has written since; on far
/// memory, where they may be others by then, either.
fn pipe_holds_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(12)?;
    let reader = into_pipe(&region, 0)?;
    ground.press_all();
    fill(&region, 2);
    ground.press_all();
    let taken = from_pipe(&reader, region.pages())?;
    for page in 0..region.pages() {
        if taken.check(page, 2).is_err() {
            taken.check(page, 1)?;
        }
    }
    check(&region, 2)?;
    // Nobody holds them any more.
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

/// A program that gives pages away and unmaps them: the pipe still has them.
fn pipe_is_given_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(12)?;
    let gift = 8; // SPLICE_F_GIFT of splice.h
    let reader = into_pipe(&region, gift)?;
    ground.press_all();
    let length = region.length();
    outcome!(munmap(region.address(0), length)).map_err(|errno| Failure(format!("{errno}")))?;
    core::mem::forget(region);
    ground.press_all();
    expect_from_pipe(&reader, 12, 1)?;
    Ok(Outcome::Passed)
}
