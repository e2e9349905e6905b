//! Fills memory, prints `ready`, waits for a line on standard input, then reads everything back.
//!
//! `hold --bytes SIZE [--catch-sigbus]`: a page whose access raises SIGBUS is lost. With
//! --catch-sigbus a handler counts it and puts a fresh page in its place; without, the program
//! ends as programs do.

use legato_base::{Bytes, PAGE_SIZE};
use legato_test_programs::{Arena, Options, check_call};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The last page that raised SIGBUS; zero for none.
static LOST: AtomicUsize = AtomicUsize::new(0);

fn main() -> ExitCode {
    let options = Options::parse(&["--bytes"], &["--catch-sigbus"]);
    let pages = options.pages("--bytes", Bytes::mib(128));
    match run(pages, options.flag("--catch-sigbus")) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("hold: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(pages: u64, catch: bool) -> std::io::Result<ExitCode> {
    let arena = Arena::new(pages)?;
    if catch {
        install()?;
    }
    (0..pages).for_each(|page| arena.fill(page, 1));
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
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
    Ok(ExitCode::from(u8::from(wrong > 0)))
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
