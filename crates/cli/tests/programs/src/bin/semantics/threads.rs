//! How threads end.

use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, ensure};
use core::ffi::c_void;
use core::hint::black_box;
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use legato_base::PAGE_SIZE;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[(&str, Case)] = &[("joins-see-the-end", joins_see_the_end)];

const THREADS: usize = 8;
/// Pages of its stack that each thread sits on: together most of a small cache, so that they must
/// leave.
const DEPTH: usize = 448;
const LIMIT: Duration = Duration::from_secs(60);

/// Read and written by the kernel and the threads; never far, as part of the program's file.
static GATE: AtomicU32 = AtomicU32::new(0);

/// What a thread tells of itself.
#[derive(Debug)]
struct Told {
    id: AtomicU32,
    /// In units of pages, from the stack's middle.
    page: core::sync::atomic::AtomicUsize,
}

/// Sleeps deep down its stack, and ends without having touched the top of it again, where the C
/// library keeps the word that the kernel clears at the end (CLONE_CHILD_CLEARTID of clone(2)).
extern "C" fn sleeper(told: *mut c_void) -> *mut c_void {
    let mut deep = [1u8; DEPTH * PAGE_SIZE];
    black_box(&mut deep);
    // SAFETY: the case keeps it until all threads have ended.
    let told = unsafe { &*told.cast::<Told>() };
    let middle = deep.as_ptr() as usize + deep.len() / 2;
    told.page.store(middle / PAGE_SIZE, Release);
    // SAFETY: gettid has no arguments; FUTEX_WAIT reads the word; SYS_exit ends this thread, which
    // has nothing to give up.
    unsafe {
        told.id
            .store(libc::syscall(libc::SYS_gettid) as u32, Release);
        while GATE.load(Acquire) == 0 {
            libc::syscall(
                libc::SYS_futex,
                GATE.as_ptr(),
                libc::FUTEX_WAIT,
                0,
                ptr::null::<libc::timespec>(),
            );
        }
        black_box(&mut deep);
        libc::syscall(libc::SYS_exit, 0);
    }
    ptr::null_mut()
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> Checked {
    let begin = Instant::now();
    while !done() {
        ensure!(begin.elapsed() < LIMIT, "waits for ever: {what}");
        std::thread::yield_now();
    }
    Ok(())
}

/// The kernel says that a thread has ended by clearing a word on a page that would be far.
fn joins_see_the_end(ground: &Ground) -> Result<Outcome, Failure> {
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let told: &'static Told = Box::leak(Box::new(Told {
            id: AtomicU32::new(0),
            page: 0.into(),
        }));
        let mut thread: libc::pthread_t = 0;
        call!(pthread_create(
            &raw mut thread,
            ptr::null(),
            sleeper,
            ptr::from_ref(told).cast_mut().cast()
        ))?;
        threads.push((thread, told));
    }
    for (_, told) in &threads {
        until("a thread sleeps", || told.id.load(Acquire) != 0)?;
    }
    for (_, told) in &threads {
        let start = told.page.load(Acquire) * PAGE_SIZE;
        ground.evict_range(ptr::without_provenance_mut(start), PAGE_SIZE)?;
    }
    // Whatever is older than those has left too, if it can.
    ground.press_all();
    GATE.store(1, Release);
    call!(syscall(
        libc::SYS_futex,
        GATE.as_ptr(),
        libc::FUTEX_WAKE,
        i32::MAX
    ))?;
    for (thread, told) in threads {
        let task = format!("/proc/self/task/{}", told.id.load(Acquire));
        until("a thread ends", || !std::path::Path::new(&task).exists())?;
        let joined = call!(pthread_tryjoin_np(thread, ptr::null_mut()))?;
        ensure!(
            joined == 0,
            "an ended thread cannot be joined: error {joined}"
        );
    }
    Ok(Outcome::Passed)
}
