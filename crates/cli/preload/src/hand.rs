//! The entry into a forked child: start its hand.
//!
//! It runs on a borrowed thread of the child, in a fresh copy of this object, with no heap.

use crate::task;
use core::ffi::c_void;
use legato_base::PAGE_SHIFT;
use legato_pager::uffd::hand::{HandStart, STACK_SIZE, STAGING_PAGES, run};
use legato_pager::uffd::task_state;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// What is below the stack: never accessible.
const GUARD: u64 = 1 << PAGE_SHIFT;
/// Stack of the task in between, at the bottom of the hand's own.
const BETWEEN_STACK_SIZE: u64 = 16 << 10;
/// At the top of the hand's stack, for what it is told.
const START_SIZE: u64 = 512;
/// Longest name of a socket (`sun_path`, unix(7)).
const NAME_MAX: usize = 108;

/// What the hand is told. It lies in the hand's own memory, because the thread that starts it does
/// not wait for it.
struct Start {
    supervisor: [u8; NAME_MAX],
    supervisor_length: usize,
    child: u32,
    program: u32,
    area: (u64, u64),
    object: (u64, u64),
}

const _: () = assert!(size_of::<Start>() <= START_SIZE as usize);

/// Starts a hand for the agent that serves this process's memory: that of `program`.
pub(crate) fn enter(supervisor: &[u8], program: u32, object: (u64, u64)) -> Result<(), Errno> {
    let mut name = [0; NAME_MAX];
    name.get_mut(..supervisor.len())
        .ok_or(Errno::NAMETOOLONG)?
        .copy_from_slice(supervisor);
    let area = map()?;
    let start = Start {
        supervisor: name,
        supervisor_length: supervisor.len(),
        child: rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs(),
        program,
        area,
        object,
    };
    let stack_top = area.0 + GUARD + STACK_SIZE - START_SIZE;
    let place = stack_top as *mut Start;
    // SAFETY: above the hand's stack, inside its mapping, aligned, and used by nobody else. Both
    // stacks lie in the mapping; the one in between ends before the hand gets that deep.
    let started = unsafe {
        place.write(start);
        let between = area.0 + GUARD + BETWEEN_STACK_SIZE;
        task::spawn(between, stack_top, hand_main, place.cast())
    };
    if started.is_err() {
        // SAFETY: nobody uses the mapping. If this fails it stays, for no harm.
        let _ = unsafe { rustix::mm::munmap(area.0 as *mut c_void, (area.1 - area.0) as usize) };
    }
    started
}

/// The hand's stack, and the staging pages up to the end. A forked grandchild has no use for them,
/// nor has a core file.
fn map() -> Result<(u64, u64), Errno> {
    let length = GUARD + STACK_SIZE + (u64::from(STAGING_PAGES) << PAGE_SHIFT);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            length as usize,
            access,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the mapping is fresh, and the page below the stack is not used.
    unsafe {
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            rustix::mm::madvise(start, length as usize, advice)?;
        }
        rustix::mm::mprotect(start, GUARD as usize, MprotectFlags::empty())?;
    }
    Ok((start as u64, start as u64 + length))
}

extern "C" fn hand_main(argument: *mut c_void) -> ! {
    task_state::begin(c"legato-hand");
    // SAFETY: `enter` passes its Start, in memory that nobody unmaps.
    let start = unsafe { &*argument.cast::<Start>() };
    // The child may have a personality in which what can be read can be executed (READ_IMPLIES_EXEC), and pages
    // move only between mappings of the same access (UFFDIO_MOVE).
    let staging = start.area.0 + GUARD;
    let length = (start.area.1 - staging) as usize;
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the access that the hand's own memory was mapped with. It cannot fail.
    let _ = unsafe { rustix::mm::mprotect(staging as *mut c_void, length, access) };
    let status = run(&HandStart {
        supervisor: start
            .supervisor
            .get(..start.supervisor_length)
            .unwrap_or_default(),
        child: start.child,
        program: start.program,
        area: start.area,
        object: start.object,
    })
    .is_err();
    task::exit(i32::from(status))
}
