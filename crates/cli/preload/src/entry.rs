//! Before `main`: start the agent and wait until it serves, or end with one clear line.

use crate::heap::{AgentHeap, FixedLine};
use crate::provider::Shm;
use crate::task;
use core::ffi::{CStr, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use legato_pager::uffd::agent::{Agent, AgentStart, StartError};
use legato_pager::uffd::{HEAP_OFFSET, Layout, RESERVATION, STACK_OFFSET, STACK_SIZE};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use rustix::pipe::PipeFlags;
use rustix::thread::futex;

/// The variable that names the supervisor's socket. `legato run` sets it.
const CONTROL_VARIABLE: &[u8] = b"LEGATO_CONTROL=";
/// Names of userfaultfd features to do without, separated by commas. An aid for tests: what is
/// done on older kernels can be seen on a new one.
const MASK_VARIABLE: &[u8] = b"LEGATO_MASK_FEATURES=";
/// The program's end of the lifeline gets a number that programs do not expect to be given.
const LIFELINE_NUMBERS: [i32; 3] = [1000, 200, 20];
/// Stack of the task in between: the lowest part of the agent's own, which is not in use yet.
const BETWEEN_STACK_SIZE: u64 = 32 << 10;

const STARTING: u32 = 0;
const SERVING: u32 = 1;
const FAILED: u32 = 2;

/// The program that the agent of this object serves; 0 before there is one.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Shared between the program's first thread, which waits, and the agent.
struct Start {
    state: AtomicU32,
    program: i32,
    supervisor: &'static [u8],
    masked_features: &'static [u8],
    reservation: u64,
    object: (u64, u64),
    lifeline: i32,
}

/// # Safety
/// `environment` must be the process's environment: pointers to zero-terminated strings, the last
/// one null.
pub(crate) unsafe fn enter(environment: *const *const u8, heap: &AgentHeap, object: (u64, u64)) {
    // SAFETY: the caller's promise.
    let Some(supervisor) = (unsafe { find_variable(environment, CONTROL_VARIABLE) }) else {
        return;
    };
    // SAFETY: the caller's promise.
    let masked = unsafe { find_variable(environment, MASK_VARIABLE) }.unwrap_or_default();
    if let Err(error) = start(supervisor, masked, heap, object) {
        let mut line = FixedLine::default();
        let errno = error.raw_os_error();
        let _ = writeln!(line, "legato: the agent cannot be started (errno {errno})");
        complain(line.as_bytes());
        task::exit(2);
    }
}

/// # Safety
/// As for [`enter`].
unsafe fn find_variable(environment: *const *const u8, variable: &[u8]) -> Option<&'static [u8]> {
    let mut place = environment;
    loop {
        // SAFETY: `place` is inside the array or at its final null pointer.
        let text = unsafe { *place };
        if text.is_null() {
            return None;
        }
        // SAFETY: a zero-terminated string that stays at least until `main`.
        let text = unsafe { CStr::from_ptr(text.cast()) }.to_bytes();
        if let Some(value) = text.strip_prefix(variable) {
            return Some(value);
        }
        // SAFETY: not yet at the final null pointer.
        place = unsafe { place.add(1) };
    }
}

fn start(
    supervisor: &'static [u8],
    masked_features: &'static [u8],
    heap: &AgentHeap,
    object: (u64, u64),
) -> Result<(), Errno> {
    let reservation = Layout::reserve()?;
    let stack = reservation + STACK_OFFSET;
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the stack's part of the reservation, which nothing uses yet.
    unsafe { rustix::mm::mprotect(stack as *mut c_void, STACK_SIZE as usize, access) }?;
    heap.open(reservation + HEAP_OFFSET, RESERVATION - HEAP_OFFSET);
    let (lifeline, program_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    keep_open(&program_end)?;
    drop(program_end);
    let mut start = Start {
        state: AtomicU32::new(STARTING),
        program: rustix::process::getpid().as_raw_nonzero().get(),
        supervisor,
        masked_features,
        reservation,
        object,
        lifeline: lifeline.as_raw_fd(),
    };
    // SAFETY: both stacks lie in the reservation; the one in between ends before the agent gets
    // that deep. `start` lives until the agent has said that it needs it no more.
    unsafe {
        task::spawn(
            stack + BETWEEN_STACK_SIZE,
            stack + STACK_SIZE,
            agent_main,
            (&raw mut start).cast(),
        )
    }?;
    drop(lifeline);
    match wait_until_started(&start.state) {
        SERVING => Ok(()),
        // The supervisor has the reason and prints it.
        _ => task::exit(2),
    }
}

/// Leaves a copy of the pipe's end open in the program, out of the way.
fn keep_open(end: &OwnedFd) -> Result<(), Errno> {
    let mut last = Err(Errno::MFILE);
    for number in LIFELINE_NUMBERS {
        last = rustix::io::fcntl_dupfd_cloexec(end, number).map(IntoRawFd::into_raw_fd);
        if last.is_ok() {
            break;
        }
    }
    last.map(drop)
}

fn wait_until_started(state: &AtomicU32) -> u32 {
    loop {
        let now = state.load(Ordering::Acquire);
        if now != STARTING {
            return now;
        }
        // EINTR and EAGAIN both mean: look again.
        let _ = futex::wait(state, futex::Flags::PRIVATE, STARTING, None);
    }
}

extern "C" fn agent_main(argument: *mut c_void) -> ! {
    let state = {
        // SAFETY: `start` passes its Start, which lives until the state changes.
        let start = unsafe { &*argument.cast::<Start>() };
        PROGRAM.store(start.program, Ordering::Relaxed);
        // Out of the program's process group: signals to the group are not for the agent. Fails
        // only for the leader of a group, which a new task is not.
        let _ = rustix::process::setsid();
        match start_agent(start) {
            Ok(agent) => {
                report(&start.state, SERVING);
                agent.run();
                task::exit(0)
            }
            Err(StartError::SupervisorGone) => {
                complain(b"legato: the legato run that started this program is gone\n");
                &start.state
            }
            Err(StartError::Refused(_)) => &start.state,
        }
    };
    report(state, FAILED);
    task::exit(2)
}

fn start_agent(start: &Start) -> Result<Agent<Shm>, StartError> {
    // SAFETY: this number is the pipe's end in the agent's copy of the descriptor table.
    let lifeline = unsafe { OwnedFd::from_raw_fd(start.lifeline) };
    let start = AgentStart {
        program: start.program,
        supervisor: start.supervisor,
        reservation: start.reservation,
        object: start.object,
        lifeline: Some(lifeline),
        masked_features: start.masked_features,
        start_task: task::spawn_thread,
    };
    Agent::start(start)
}

/// After this the other side may give the Start up.
fn report(state: &AtomicU32, value: u32) {
    state.store(value, Ordering::Release);
    // Fails only for a bad address.
    let _ = futex::wake(state, futex::Flags::PRIVATE, 1);
}

pub(crate) fn program_of_agent() -> Option<i32> {
    Some(PROGRAM.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
}

/// Writes to standard error, whatever that is by now. (The agent has closed its copy: there the
/// line goes nowhere, and [`legato_pager::uffd::agent::last_words`] is the way.)
pub(crate) fn complain(line: &[u8]) {
    // SAFETY: descriptor 2 is borrowed for one call; if it is closed, the call fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line);
}
