//! System calls into and from pages that are mostly far away: the kernel must find them as if they
//! were resident.

use super::world::{Failure, World};
use crate::{check_call, check_page};
use legato_base::{PAGE_SIZE, Random};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

type Call = fn(&World, u64, &mut Random) -> Result<(), Failure>;

const CALLS: [Call; 7] = [pipe, zeros, file, vectors, random_bytes, path, futex];
/// Times that each thread makes each call.
const ROUNDS: usize = 40;

pub(crate) fn run(world: &World) -> Result<(), Failure> {
    world.on_all_threads(&|thread| {
        let mut random = world.random(1000 + thread);
        for _ in 0..ROUNDS {
            for call in CALLS {
                world.count_operation();
                call(world, thread, &mut random)?;
            }
        }
        Ok(())
    })
}

fn write(world: &World, file: &File, pages: &Range<u64>) -> Result<(), Failure> {
    let (address, length) = (
        world.arena.address(pages.start),
        PAGE_SIZE * pages.clone().count(),
    );
    // SAFETY: the pages are inside the arena.
    let result = unsafe { libc::write(file.as_raw_fd(), address, length) };
    expect_length(check_call("write", result)?, length, "write took a part")
}

fn read(world: &World, file: &File, pages: &Range<u64>) -> Result<(), Failure> {
    let (address, length) = (
        world.arena.address(pages.start),
        PAGE_SIZE * pages.clone().count(),
    );
    // SAFETY: the pages are inside the arena, whose content is atomics.
    let result = unsafe { libc::read(file.as_raw_fd(), address, length) };
    expect_length(check_call("read", result)?, length, "read gave a part")
}

fn expect_length(found: usize, expected: usize, what: &'static str) -> Result<(), Failure> {
    if found == expected {
        Ok(())
    } else {
        Err(Failure::Result(what))
    }
}

/// Two runs of own pages that do not overlap.
fn two_runs(
    world: &World,
    thread: u64,
    pages: u64,
    random: &mut Random,
) -> (Range<u64>, Range<u64>) {
    let from = world.own_run(thread, pages, random);
    loop {
        let to = world.own_run(thread, pages, random);
        if to.end <= from.start || from.end <= to.start {
            return (from, to);
        }
    }
}

/// After `to` was filled with the content of `from` by the kernel: checks it, then makes it `to`'s
/// own again.
fn check_copy(world: &World, from: Range<u64>, to: Range<u64>) -> Result<(), Failure> {
    for (from, to) in from.zip(to) {
        check_page(world.arena.words(to), from, world.version(from))?;
        world.write(to);
    }
    Ok(())
}

/// 8 pages through a pipe, which holds 16 (pipe(7)).
fn pipe(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let (from, to) = two_runs(world, thread, 8, random);
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    check_call("pipe2", result as isize)?;
    // SAFETY: both descriptors are new and ours.
    let [reader, writer] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    write(world, &writer, &from)?;
    read(world, &reader, &to)?;
    check_copy(world, from, to)
}

/// Zeros over old content.
fn zeros(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let run = world.own_run(thread, 4, random);
    read(world, &File::open("/dev/zero")?, &run)?;
    for page in run {
        world.set_zeros(page);
        world.verify(page)?;
        world.write(page);
    }
    Ok(())
}

fn memory_file() -> Result<File, Failure> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"pattern".as_ptr(), libc::MFD_CLOEXEC) };
    check_call("memfd_create", descriptor as isize)?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// A whole block into a file, and back at an offset.
fn file(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let (from, to) = two_runs(world, thread, 6, random);
    let file = memory_file()?;
    write(world, &file, &from)?;
    let (address, length) = (world.arena.address(to.start), 6 * PAGE_SIZE);
    // SAFETY: the pages are inside the arena, whose content is atomics.
    let result = unsafe { libc::pread(file.as_raw_fd(), address, length, 0) };
    expect_length(check_call("pread", result)?, length, "pread gave a part")?;
    check_copy(world, from, to)
}

/// Scattered pages in one call.
fn vectors(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let (from, to) = two_runs(world, thread, 5, random);
    let file = memory_file()?;
    let pieces = |run: &Range<u64>| -> Vec<libc::iovec> {
        let piece = |page| libc::iovec {
            iov_base: world.arena.address(page),
            iov_len: PAGE_SIZE,
        };
        run.clone().rev().map(piece).collect()
    };
    let (from_pieces, to_pieces) = (pieces(&from), pieces(&to));
    // SAFETY: every piece is a page of the arena.
    let written = unsafe { libc::writev(file.as_raw_fd(), from_pieces.as_ptr(), 5) };
    expect_length(
        check_call("writev", written)?,
        5 * PAGE_SIZE,
        "writev took a part",
    )?;
    // SAFETY: every piece is a page of the arena, whose content is atomics.
    let read = unsafe { libc::preadv(file.as_raw_fd(), to_pieces.as_ptr(), 5, 0) };
    expect_length(
        check_call("preadv", read)?,
        5 * PAGE_SIZE,
        "preadv gave a part",
    )?;
    check_copy(world, from, to)
}

/// Random bytes must arrive in the page and stay as they are.
fn random_bytes(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let page = world.own_page(thread, random);
    // getrandom gives up to 256 bytes in one piece (getrandom(2)).
    let length = 256;
    // SAFETY: the page is inside the arena, whose content is atomics.
    let result = unsafe { libc::getrandom(world.arena.address(page), length, 0) };
    expect_length(
        check_call("getrandom", result)?,
        length,
        "getrandom gave a part",
    )?;
    let content = || {
        world
            .arena
            .words(page)
            .iter()
            .map(|word| word.load(Relaxed))
            .collect::<Vec<_>>()
    };
    let before = content();
    for _ in 0..64 {
        let other = world.own_page(thread, random);
        if other != page {
            world.verify(other)?;
        }
    }
    if content() != before || before[..32].iter().all(|word| *word == 0) {
        return Err(Failure::Result("random bytes changed or never arrived"));
    }
    world.write(page);
    Ok(())
}

/// The name of a file that lies across two pages.
fn path(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let run = world.own_run(thread, 2, random);
    let name = world
        .arena
        .address(run.start)
        .wrapping_byte_add(PAGE_SIZE - 4)
        .cast::<libc::c_char>();
    let text = c"/proc/self/status".to_bytes_with_nul();
    // SAFETY: the text fits into the two pages, which only this thread touches.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
    for _ in 0..16 {
        let other = world.own_page(thread, random);
        if !run.contains(&other) {
            world.verify(other)?;
        }
    }
    // SAFETY: the name is a C string in far memory.
    let descriptor = unsafe { libc::open(name, libc::O_RDONLY | libc::O_CLOEXEC) };
    check_call("open", descriptor as isize)?;
    // SAFETY: the descriptor is new and ours.
    drop(unsafe { File::from_raw_fd(descriptor) });
    // The result of stat goes to far memory as well.
    let status = world.arena.address(run.start).cast::<libc::stat>();
    // SAFETY: the name is a C string and the page has room for the result, before the name.
    check_call("stat", unsafe { libc::stat(name, status) } as isize)?;
    // SAFETY: stat has written it.
    if unsafe { (*status).st_mode } & libc::S_IFMT != libc::S_IFREG {
        return Err(Failure::Result("stat told of something that is no file"));
    }
    run.for_each(|page| world.write(page));
    Ok(())
}

/// A thread sleeps on a far word until another wakes it.
fn futex(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    let page = world.own_page(thread, random);
    let word = world.arena.address(page).cast::<AtomicU32>();
    // SAFETY: the word is inside the arena and aligned, and nobody reaches it in another size
    // before the scope below has ended.
    let word = unsafe { &*word };
    word.store(0, Relaxed);
    let woken = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Acquire) == 0 {
                let limit = libc::timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                // SAFETY: the word is a u32 and the time limit lives on this stack.
                let result = unsafe {
                    libc::syscall(
                        libc::SYS_futex,
                        word.as_ptr(),
                        libc::FUTEX_WAIT,
                        0,
                        &raw const limit,
                    )
                };
                let error = std::io::Error::last_os_error().raw_os_error();
                if result != 0 && error != Some(libc::EAGAIN) && error != Some(libc::EINTR) {
                    return false;
                }
            }
            true
        });
        for _ in 0..8 {
            let other = world.own_page(thread, random);
            if other != page && world.verify(other).is_err() {
                break;
            }
        }
        word.store(1, Release);
        // SAFETY: the word is a u32.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
        sleeper.join().expect("no thread panics")
    });
    world.write(page);
    if woken {
        Ok(())
    } else {
        Err(Failure::Result("a sleeper on a far word was not woken"))
    }
}
