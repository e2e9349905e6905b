//! What a program does with its process: descriptors, threads, daemons, its end.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, check, ensure, fill, outcome};
use crate::ground::{POOL, filled_region};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::sync::Barrier;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("close-all-descriptors", close_all_descriptors),
    ("daemon", daemon),
    ("block-all-signals", block_all_signals),
    ("children-are-the-programs", children_are_the_programs),
    ("end-by-another-thread", end_by_another_thread),
    ("main-thread-ends", main_thread_ends),
    ("stack-grows", stack_grows),
    ("heap-end-moves", heap_end_moves),
    ("fixed-addresses", fixed_addresses),
    ("own-userfaultfd", own_userfaultfd),
];

/// Everything that far memory is for, once more: the region comes back, changes, leaves again, and
/// there is new memory, which leaves too.
pub(crate) fn use_memory(ground: &Ground, region: &Arena) -> Checked {
    check(region, 1)?;
    fill(region, 2);
    // More than the cache holds, so that it is taken charge of.
    let new = filled_region(NEW_PAGES)?;
    ground.evict(region)?;
    check(region, 2)?;
    check(&new, 1)?;
    fill(region, 1);
    ground.evict(region)
}

const PAGES: u64 = 512;
const NEW_PAGES: u64 = 6 << 10;

fn close_all_descriptors(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    // All but standard output, by which the case speaks.
    call!(syscall(libc::SYS_close_range, 2, u32::MAX, 0))?;
    call!(close(0))?;
    use_memory(ground, &region)?;
    for descriptor in 2..2000 {
        let result = outcome!(close(descriptor));
        ensure!(
            result == Err(libc::EBADF),
            "descriptor {descriptor} was open: {result:?}"
        );
    }
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

/// As daemon(3) does it, twice forked; the last one speaks for the case.
fn daemon(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    fork("session", || {
        call!(setsid())?;
        fork("daemon", || {
            call!(chdir(c"/".as_ptr()))?;
            call!(syscall(libc::SYS_close_range, 2, u32::MAX, 0))?;
            let begin = std::time::Instant::now();
            // Until the one that forked it is gone, and somebody else is its parent.
            while call!(getppid())? != 1 && begin.elapsed().as_millis() < 500 {
                std::thread::yield_now();
            }
            check(&region, 1)?;
            fill(&region, 2);
            let new = filled_region(PAGES)?;
            ground.press_all();
            check(&region, 2)?;
            check(&new, 1)?;
            println!("daemon: ok");
            Ok(())
        })?;
        Ok(())
    })?;
    // SAFETY: ends the process at once; the daemon goes on.
    unsafe { libc::_exit(0) }
}

fn block_all_signals(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    // SAFETY: a zeroed set is one that sigfillset fills.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    call!(sigfillset(&raw mut all))?;
    call!(sigprocmask(
        libc::SIG_SETMASK,
        &raw const all,
        core::ptr::null_mut()
    ))?;
    for signal in 1..=64 {
        // SIGKILL, SIGSTOP and two of the library's own cannot be ignored.
        let _ = outcome!(signal(signal, libc::SIG_IGN));
    }
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

/// Nobody but the program's own children is found by wait, whatever is done with SIGCHLD.
fn children_are_the_programs(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let mut status = 0;
    let any = outcome!(waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL));
    ensure!(
        any == Err(libc::ECHILD),
        "without children wait gives {any:?}"
    );
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    ensure!(threads == 1, "{threads} threads in a program of one");
    call!(signal(libc::SIGCHLD, libc::SIG_IGN))?;
    let child = fork("child", || {
        check(&region, 1)?;
        fill(&region, 2);
        ground.press_all();
        check(&region, 2)
    })?;
    let waited = outcome!(waitpid(child, &raw mut status, 0));
    ensure!(
        waited == Err(libc::ECHILD),
        "a child that nobody waits for gives {waited:?}"
    );
    use_memory(ground, &region)?;
    call!(signal(libc::SIGCHLD, libc::SIG_DFL))?;
    reap(fork("child", || check(&region, 1))?)?;
    let any = outcome!(waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL));
    ensure!(
        any == Err(libc::ECHILD),
        "after the last child wait gives {any:?}"
    );
    Ok(Outcome::Passed)
}

/// exit_group while other threads wait for far pages.
fn end_by_another_thread(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(4 * PAGES)?;
    let barrier = Barrier::new(5);
    let (region, barrier) = (&region, &barrier);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                barrier.wait();
                loop {
                    for page in (thread..region.pages()).step_by(4) {
                        region.fill(page, 2);
                    }
                }
            });
        }
        scope.spawn(move || {
            barrier.wait();
            ground.press(200);
            println!("end-by-another-thread: ok");
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) }
        });
    });
    Ok(Outcome::Passed)
}

static MAIN_ENDED: AtomicBool = AtomicBool::new(false);

/// The first thread ends by itself, and the others go on. Its process id lives on as a zombie.
fn main_thread_ends(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(4 * PAGES)?;
    std::thread::scope(|scope| {
        let region = &region;
        scope.spawn(move || {
            let result = main_is_gone().and_then(|()| {
                use_memory(ground, region)?;
                // Longer than anybody who looks at processes now and then does not look.
                std::thread::sleep(std::time::Duration::from_millis(600));
                use_memory(ground, region)
            });
            match result {
                Ok(()) => println!("main-thread-ends: ok"),
                Err(failure) => println!("main-thread-ends: {failure}"),
            }
            std::process::exit(0);
        });
        MAIN_ENDED.store(true, SeqCst);
        // SAFETY: ends this thread only; what it borrowed lives on, because its stack does.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    Err(Failure("the first thread came back".to_owned()))
}

fn main_is_gone() -> Checked {
    let begin = std::time::Instant::now();
    let path = format!("/proc/self/task/{}/stat", std::process::id());
    while !std::fs::read_to_string(&path)?.contains(") Z ") {
        ensure!(
            begin.elapsed().as_secs() < 30,
            "the first thread does not end"
        );
        std::thread::yield_now();
    }
    ensure!(MAIN_ENDED.load(SeqCst), "the first thread ended by itself");
    Ok(())
}

/// Deep recursion on the main stack, whose mapping grows by faults.
fn stack_grows(ground: &Ground) -> Result<Outcome, Failure> {
    #[inline(never)]
    fn descend(ground: &Ground, level: u64) -> u64 {
        let locals = core::hint::black_box([level; 1024]);
        let deeper = if level == 0 {
            ground.press_all();
            0
        } else {
            descend(ground, level - 1)
        };
        deeper
            + u64::from(
                core::hint::black_box(&locals)
                    .iter()
                    .all(|word| *word == level),
            )
    }
    let region = ground.far_region(PAGES)?;
    for levels in [50, 300] {
        let right = descend(ground, levels);
        ensure!(right == levels + 1, "{right} of {levels} levels are right");
    }
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

/// brk: the heap grows beyond what is known of it, leaves, shrinks, and grows with zeros.
fn heap_end_moves(ground: &Ground) -> Result<Outcome, Failure> {
    // The library's own allocations stay below.
    let start = call!(sbrk(0))?;
    let skip = start.next_multiple_of(PAGE_SIZE) - start;
    let length = 4 * PAGES as usize * PAGE_SIZE;
    call!(sbrk((skip + length) as isize))?;
    let heap = core::ptr::with_exposed_provenance_mut::<libc::c_void>(start + skip);
    let page = |index: usize| {
        let address = heap.wrapping_byte_add(index * PAGE_SIZE);
        // SAFETY: the heap was grown by that many pages, and nothing else allocates there.
        unsafe { core::slice::from_raw_parts(address.cast(), legato_test_programs::WORDS) }
    };
    let pages = 4 * PAGES as usize;
    for round in 1..=3 {
        (0..pages)
            .for_each(|index| legato_test_programs::fill_page(page(index), index as u64, round));
        ground.evict_range(heap, length)?;
        let half = length / 2;
        call!(sbrk(-(half as isize)))?;
        call!(sbrk(half as isize))?;
        for index in 0..pages {
            let version = if index < pages / 2 { round } else { 0 };
            legato_test_programs::check_page(page(index), index as u64, version)?;
        }
    }
    Ok(Outcome::Passed)
}

/// The same program with address space randomisation off (setarch -R).
fn fixed_addresses(ground: &Ground) -> Result<Outcome, Failure> {
    const NO_RANDOMIZE: libc::c_ulong = 0x4_0000; // ADDR_NO_RANDOMIZE of personality(2)
    let now = call!(personality(0xFFFF_FFFF))? as libc::c_ulong;
    if now & NO_RANDOMIZE == 0 {
        call!(personality(now | NO_RANDOMIZE))?;
        let arguments = std::env::args().skip(1);
        use std::os::unix::process::CommandExt;
        let error = std::process::Command::new(std::env::current_exe()?)
            .args(arguments)
            .exec();
        return Err(error.into());
    }
    let region = ground.far_region(PAGES)?;
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

// include/uapi/linux/userfaultfd.h
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_COPY: libc::c_ulong = 0xC028_AA03;

/// A program that serves faults of its own: its range is its own, and everything else goes far as
/// before.
fn own_userfaultfd(ground: &Ground) -> Result<Outcome, Failure> {
    let descriptor = call!(syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC))? as i32;
    let mut api = [0xAA_u64, 0, 0];
    call!(ioctl(descriptor, UFFDIO_API, api.as_mut_ptr()))?;
    // The range lies beside more memory than there is anywhere else. Whoever looks through the address
    // space for memory begins where most of it is, and so does not find enough elsewhere before.
    // Whoever takes charge of the range in this moment has it: then it is mapped anew.
    let (_beside, served) = loop {
        let mut most = Arena::new(2 * POOL)?;
        let served = most.split_off(64);
        let mut range = [served.address(0) as u64, 64 * PAGE_SIZE as u64, 1, 0];
        match outcome!(ioctl(descriptor, UFFDIO_REGISTER, range.as_mut_ptr())) {
            Err(libc::EBUSY) => {}
            registered => {
                ensure!(registered.is_ok(), "UFFDIO_REGISTER: {registered:?}");
                break (most, served);
            }
        }
    };
    let start = served.address(0) as u64;
    let content = filled_region(64)?;
    let (from, to) = (content.address(0) as u64, start);
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            for _ in 0..64 {
                let mut message = [0_u64; 4];
                call!(read(descriptor, message.as_mut_ptr().cast(), 32))?;
                let page = message[2] & !(PAGE_SIZE as u64 - 1);
                let mut copy = [page, from + (page - to), PAGE_SIZE as u64, 0, 0];
                call!(ioctl(descriptor, UFFDIO_COPY, copy.as_mut_ptr()))?;
            }
            Ok::<(), Failure>(())
        });
        check(&served, 1)?;
        server.join().expect("no thread panics")
    })?;
    let region = ground.far_region(PAGES)?;
    use_memory(ground, &region)?;
    check(&served, 1)?;
    call!(close(descriptor))?;
    use_memory(ground, &region)?;
    check(&served, 1)?;
    Ok(Outcome::Passed)
}
