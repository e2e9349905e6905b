//! Fills memory, prints `ready`, waits for a line on standard input, then reads everything back.
//!
//! `hold --bytes SIZE [--lock] [--catch-sigbus] [--again] [--fork] [--release]
//! [--share]`: with
//! --lock the memory is locked (`mlock(2)`). A page whose access raises SIGBUS is lost. With --catch-sigbus a handler counts it
//! and puts a fresh page in its place; without, the program ends as programs do. With --again it
//! reads once more for each further line, until standard input ends. With --fork a forked child
//! waits and reads, and its parent waits for that. With --release it unmaps the memory in the end,
//! prints `released` and waits for a line. With --share a process that shares the memory (CLONE_VM)
//! waits and reads, and its maker ends before that; or, with --stay, waits for that.

use legato_base::{Bytes, PAGE_SIZE};
use legato_test_programs::{Arena, Options, check_call, end_at_a_panic};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The last page that raised SIGBUS; zero for none.
static LOST: AtomicUsize = AtomicUsize::new(0);

fn main() -> ExitCode {
    end_at_a_panic();
    let options = Options::parse(
        &["--bytes"],
        &[
            "--again",
            "--catch-sigbus",
            "--fork",
            "--lock",
            "--release",
            "--share",
            "--stay",
        ],
    );
    let pages = options.pages("--bytes", Bytes::mib(128));
    match run(pages, &options) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("hold: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(pages: u64, options: &Options) -> std::io::Result<ExitCode> {
    let arena = Arena::new(pages)?;
    if options.flag("--catch-sigbus") {
        install()?;
        lock_heap()?;
    }
    if options.flag("--lock") {
        let length = pages as usize * PAGE_SIZE;
        // SAFETY: takes addresses and changes no memory.
        let result = unsafe { libc::mlock(arena.address(0) as *const _, length) };
        check_call("mlock", result as isize)?;
    }
    (0..pages).for_each(|page| arena.fill(page, 1));
    if options.flag("--fork") {
        // SAFETY: there is one thread.
        let child = check_call("fork", unsafe { libc::fork() } as isize)?;
        if child != 0 {
            let mut status = 0;
            // SAFETY: the status is a local variable.
            let waited = unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
            check_call("waitpid", waited as isize)?;
            return Ok(ExitCode::from(u8::from(status != 0)));
        }
    }
    if options.flag("--share") {
        go_on_in_a_sharer(&arena, pages, options)?;
    }
    wait_and_read(arena, pages, options)
}

/// Starts a process with this memory, and ends.
fn go_on_in_a_sharer(arena: &Arena, pages: u64, options: &Options) -> std::io::Result<()> {
    let mut maker = [0; 2];
    // SAFETY: the kernel writes two numbers.
    let made = unsafe { libc::pipe2(maker.as_mut_ptr(), libc::O_CLOEXEC) };
    check_call("pipe2", made as isize)?;
    let stack = Arena::new(STACK_PAGES)?;
    let top = stack.address(STACK_PAGES - 1).wrapping_byte_add(PAGE_SIZE);
    let share = Share {
        arena,
        pages,
        options,
        maker,
    };
    let argument = (&raw const share).cast_mut().cast();
    // SAFETY: this process ends and gives nothing of its memory up, so stack and argument stay.
    let made = unsafe { libc::clone(share_memory, top, libc::CLONE_VM | libc::SIGCHLD, argument) };
    check_call("clone", made as isize)?;
    // SAFETY: as above; and the status is a local variable. Nothing else runs in this process.
    unsafe {
        let mut status = 0;
        if options.flag("--stay") {
            libc::close(maker[1]);
            libc::waitpid(made, &raw mut status, 0);
        }
        libc::_exit(status)
    }
}

/// Pages of the sharer's stack.
const STACK_PAGES: u64 = 64;

struct Share<'a> {
    arena: &'a Arena,
    pages: u64,
    options: &'a Options,
    /// Ends when the maker has.
    maker: [i32; 2],
}

extern "C" fn share_memory(share: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the maker has it on its stack, which nobody uses any more.
    let share = unsafe { &*share.cast::<Share<'_>>() };
    let mut byte = 0u8;
    // SAFETY: at most one byte is written, to a local variable.
    unsafe {
        libc::close(share.maker[1]);
        libc::read(share.maker[0], (&raw mut byte).cast(), 1);
    }
    // SAFETY: as the maker's, which uses it no more.
    let arena = unsafe { core::ptr::read(share.arena) };
    let status = wait_and_read(arena, share.pages, share.options);
    let failed = status.map_or(2, |status| i32::from(status != ExitCode::SUCCESS));
    // SAFETY: ends the process, without exit handlers.
    unsafe { libc::_exit(failed) }
}

fn wait_and_read(arena: Arena, pages: u64, options: &Options) -> std::io::Result<ExitCode> {
    println!("ready");
    let next = || std::io::stdin().read_line(&mut String::new());
    next()?;
    let mut all_right = read_back(&arena, pages);
    while options.flag("--again") && next()? > 0 {
        all_right &= read_back(&arena, pages);
    }
    if options.flag("--release") {
        drop(arena);
        println!("released");
        next()?;
    }
    Ok(ExitCode::from(u8::from(!all_right)))
}

/// True if nothing is wrong; lost pages are not wrong.
fn read_back(arena: &Arena, pages: u64) -> bool {
    let (mut lost, mut right, mut wrong) = (0, 0, 0);
    for page in 0..pages {
        LOST.store(0, Relaxed);
        match (arena.check(page, 1), LOST.load(Relaxed)) {
            (Ok(()), 0) => right += 1,
            (Err(what), 0) => {
                eprintln!("hold: {what}");
                wrong += 1;
            }
            (_, address) if address == arena.address(page) as usize => lost += 1,
            (_, address) => {
                eprintln!("hold: SIGBUS at {address:#x} while page {page} was read");
                wrong += 1;
            }
        }
    }
    println!("hold: {right} right, {lost} lost, {wrong} wrong");
    wrong == 0
}

/// Only pages of the arena can be replaced: nobody can go on without those of the heap, which may
/// be far, and lost, like any others.
fn lock_heap() -> std::io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let heap = maps.lines().find(|line| line.ends_with("[heap]"));
    let range = heap.and_then(|line| line.split(' ').next()?.split_once('-'));
    let Some((start, end)) = range else {
        return Err(std::io::Error::other("no heap in /proc/self/maps"));
    };
    let number = |text| usize::from_str_radix(text, 16).map_err(std::io::Error::other);
    let (start, end) = (number(start)?, number(end)?);
    // SAFETY: takes addresses and changes no memory.
    let result = unsafe { libc::mlock(start as *const _, end - start) };
    check_call("mlock", result as isize).map(drop)
}

fn install() -> std::io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = replace_page;
    // SAFETY: a zeroed sigaction is a valid one, and the handler has the type that SA_SIGINFO asks
    // for and calls nothing but mmap.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut())
    };
    check_call("sigaction", result as isize).map(drop)
}

/// A fresh page in the place of the lost one lets the interrupted access go on.
extern "C" fn replace_page(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; SIGBUS carries an address.
    let address = unsafe { (*info).si_addr() } as usize & !(PAGE_SIZE - 1);
    LOST.store(address, Relaxed);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page belongs to the arena, which is only read as atomics.
    let page = unsafe { libc::mmap(address as *mut _, PAGE_SIZE, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        // SAFETY: ends the process at once; async-signal-safe.
        unsafe { libc::_exit(3) };
    }
}
