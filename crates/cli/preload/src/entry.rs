//! The ways in: before `main`, or whenever a tracer comes. Start the agent and wait until it
//! serves. If it does not, a program that has not begun ends with one clear line, and one that
//! runs already goes on without.

use crate::environment::Environment;
use crate::heap::AgentHeap;
use crate::line::FixedLine;
use crate::provider::Nodes;
use crate::{hand, task};
use core::ffi::c_void;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use legato_base::SystemError;
use legato_pager::uffd::agent::{Agent, AgentStart, Dismissal, StartError, excuse};
use legato_pager::uffd::injection::{Entry, EntryRefusal, Parameters};
use legato_pager::uffd::{
    HEAP_OFFSET, Layout, RESERVATION, STACK_OFFSET, STACK_SIZE, filter, task_state,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use rustix::thread::{futex, get_clear_child_tid_address};

/// The variable that names the supervisor's socket. `legato run` sets it.
const CONTROL_VARIABLE: &[u8] = b"LEGATO_CONTROL=";
/// How many filters of system calls `legato run` itself has. `legato run` sets it.
const FILTERS_VARIABLE: &[u8] = b"LEGATO_FILTERS=";
/// Names of userfaultfd features to do without, separated by commas. An aid for tests: what is
/// done on older kernels can be seen on a new one.
const MASK_VARIABLE: &[u8] = b"LEGATO_MASK_FEATURES=";
/// Under Valgrind `LD_PRELOAD` names objects of its own. What runs there is not the program but an
/// interpreter, which can neither start a task nor tell pages that come and go.
const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD=";
const VALGRIND: &[u8] = b"/vgpreload_";
/// Stack of the task in between: the lowest part of the agent's own, which is not in use yet.
const BETWEEN_STACK_SIZE: u64 = 32 << 10;

const STARTING: u32 = 0;
const SERVING: u32 = 1;
const REFUSED: u32 = 2;
const RUNS_WITHOUT: u32 = 3;
const SUPERVISOR_GONE: u32 = 4;
/// Together with an errno: the supervisor knows nothing yet.
const NOT_CONNECTED: u32 = 1 << 16;

/// The program that the agent of this object serves; 0 before there is one.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Shared between the program's first thread, which waits, and the agent.
struct Start<'a> {
    state: AtomicU32,
    program: i32,
    supervisor: &'a [u8],
    masked_features: &'a [u8],
    reservation: u64,
    object: (u64, u64),
    last_word: Option<u64>,
    heap: &'static AgentHeap,
}

/// # Safety
/// `environment` must be the process's.
pub(crate) unsafe fn enter(environment: Environment, heap: &'static AgentHeap, object: (u64, u64)) {
    // SAFETY: the caller's promise.
    let Some(supervisor) = (unsafe { environment.variable(CONTROL_VARIABLE) }) else {
        return;
    };
    // SAFETY: the caller's promise.
    let filters = unsafe { environment.variable(FILTERS_VARIABLE) }.unwrap_or_default();
    // What a filter of the program's own does with what an agent calls nobody knows here, and it may kill for it.
    // The supervisor sees that there is no agent, and says why.
    if filter::is_another(number(filters)) {
        return;
    }
    // SAFETY: the caller's promise.
    let masked = unsafe { environment.variable(MASK_VARIABLE) }.unwrap_or_default();
    // SAFETY: the caller's promise.
    let preload = unsafe { environment.variable(PRELOAD_VARIABLE) }.unwrap_or_default();
    if preload.windows(VALGRIND.len()).any(|part| part == VALGRIND) {
        return go_on_or_end(
            supervisor,
            "Valgrind runs it, which knows of no memory that others map; run it without",
        );
    }
    let result = keep_out().and_then(|()| start(supervisor, masked, heap, object));
    match result {
        Ok(()) => {}
        // The supervisor has the reason and prints it.
        Err(StartFailure::Refused) => task::exit(2),
        Err(StartFailure::RunsWithout) => {}
        Err(StartFailure::SupervisorGone) => end_unreached(),
        Err(StartFailure::System(error)) => {
            let mut line = FixedLine::default();
            let error = SystemError(error.raw_os_error()).advised();
            let _ = write!(line, "the agent cannot be started: {error}");
            go_on_or_end(supervisor, line.as_str());
        }
        Err(StartFailure::Filter(error)) => {
            let mut line = FixedLine::default();
            let error = SystemError(error.raw_os_error());
            let _ = write!(
                line,
                "this kernel has guard pages (MADV_GUARD_INSTALL), and the filter of system calls \
                 that keeps them out of far memory is refused: {error}; allow seccomp(2)"
            );
            go_on_or_end(supervisor, line.as_str());
        }
    }
}

/// 0 for what is none.
fn number(text: &[u8]) -> u64 {
    let text = core::str::from_utf8(text).unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// Keeps the program from what far memory cannot do, before there is any.
fn keep_out() -> Result<(), StartFailure> {
    filter::install(true).map_err(StartFailure::Filter)
}

/// There is no agent. What that means for the program the supervisor decides: the program of the run ends, and
/// a child of it runs on.
fn go_on_or_end(supervisor: &[u8], text: &str) {
    match excuse(supervisor, own_pid().unsigned_abs(), text) {
        Ok(Dismissal::RunsWithout) => {}
        Ok(Dismissal::Ends) => task::exit(2),
        Err(Errno::CONNREFUSED | Errno::NOENT) => end_unreached(),
        Err(_) => go_on_without(text),
    }
}

/// Nobody listens at the supervisor's socket, or there is none any more.
fn end_unreached() -> ! {
    complain(b"legato: the legato run that started this program is gone; start it anew\n");
    task::exit(2)
}

/// Nobody can say so but this process.
fn go_on_without(text: &str) {
    let mut line = FixedLine::default();
    let _ = writeln!(
        line,
        "legato: a program runs without far memory, and does not count in --cache: {text}"
    );
    complain(line.as_bytes());
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// What a tracer asks for. Whatever fails, nothing of it stays but this object.
pub(crate) fn enter_injected(
    parameters: &Parameters,
    heap: &'static AgentHeap,
    object: (u64, u64),
) -> i64 {
    let result = match parameters.entry() {
        Some(Entry::Agent) => keep_out().and_then(|()| {
            start(
                parameters.control(),
                parameters.masked_features(),
                heap,
                object,
            )
        }),
        // The argument is the process whose agent serves this one's memory.
        Some(Entry::Hand) => u32::try_from(parameters.argument())
            .map_err(|_| Errno::INVAL)
            .and_then(|program| hand::enter(parameters.control(), program, object))
            .map_err(StartFailure::System),
        None => return EntryRefusal::UnknownEntry as i64,
    };
    match result {
        Ok(()) => 0,
        Err(StartFailure::Refused | StartFailure::RunsWithout | StartFailure::SupervisorGone) => {
            EntryRefusal::Agent as i64
        }
        Err(StartFailure::System(error) | StartFailure::Filter(error)) => {
            -i64::from(error.raw_os_error())
        }
    }
}

/// Why there is no agent.
enum StartFailure {
    System(Errno),
    /// The kernel does not take the filter of system calls.
    Filter(Errno),
    /// The supervisor has been told, and the program must end.
    Refused,
    /// The supervisor has been told, and the program may go on.
    RunsWithout,
    SupervisorGone,
}

impl From<Errno> for StartFailure {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

fn start(
    supervisor: &[u8],
    masked_features: &[u8],
    heap: &'static AgentHeap,
    object: (u64, u64),
) -> Result<(), StartFailure> {
    let reservation = Layout::reserve()?;
    let result = start_in(reservation, supervisor, masked_features, heap, object);
    if result.is_err() {
        task::wait_for_end();
        // SAFETY: the task that used it has ended. Fails only for a bad address.
        let _ = unsafe { rustix::mm::munmap(reservation as *mut c_void, RESERVATION as usize) };
    }
    result
}

fn start_in(
    reservation: u64,
    supervisor: &[u8],
    masked_features: &[u8],
    heap: &'static AgentHeap,
    object: (u64, u64),
) -> Result<(), StartFailure> {
    let stack = reservation + STACK_OFFSET;
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the stack's part of the reservation, which nothing uses yet.
    unsafe { rustix::mm::mprotect(stack as *mut c_void, STACK_SIZE as usize, access) }?;
    // SAFETY: the end of the reservation, which is unmapped only when the agent has ended.
    unsafe { heap.open(reservation + HEAP_OFFSET, RESERVATION - HEAP_OFFSET) }?;
    let mut start = Start {
        state: AtomicU32::new(STARTING),
        program: own_pid(),
        supervisor,
        masked_features,
        reservation,
        object,
        last_word: last_word(),
        heap,
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
    // P-29: the program waits here until Ready was said.
    match wait_until_started(&start.state) {
        SERVING => Ok(()),
        RUNS_WITHOUT => Err(StartFailure::RunsWithout),
        SUPERVISOR_GONE => Err(StartFailure::SupervisorGone),
        state if state & NOT_CONNECTED != 0 => {
            let errno = (state & !NOT_CONNECTED).cast_signed();
            Err(StartFailure::System(Errno::from_raw_os_error(errno)))
        }
        _ => Err(StartFailure::Refused),
    }
}

/// What the kernel clears when the calling thread ends. None also if this kernel does not tell
/// (CONFIG_CHECKPOINT_RESTORE).
fn last_word() -> Option<u64> {
    let word = get_clear_child_tid_address().ok()??;
    Some(word.as_ptr() as u64)
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
    task_state::begin(c"legato-agent");
    let (state, outcome) = {
        // SAFETY: `start` passes its Start, which lives until the state changes.
        let start = unsafe { &*argument.cast::<Start<'_>>() };
        PROGRAM.store(start.program, Ordering::Relaxed);
        match start_agent(start) {
            Ok(agent) => {
                report(&start.state, SERVING);
                agent.run();
                task::exit(0)
            }
            Err(error) => (&start.state, outcome(error)),
        }
    };
    report(state, outcome);
    task::exit(2)
}

const fn outcome(error: StartError) -> u32 {
    match error {
        StartError::SupervisorGone => SUPERVISOR_GONE,
        StartError::NotConnected(errno) => NOT_CONNECTED | errno.raw_os_error().cast_unsigned(),
        // Nobody will hear it of a program that is gone.
        StartError::RunsWithout | StartError::ProgramGone => RUNS_WITHOUT,
        StartError::Refused => REFUSED,
    }
}

fn start_agent(start: &Start<'_>) -> Result<Agent<Nodes>, StartError> {
    let start = AgentStart {
        program: start.program,
        supervisor: start.supervisor,
        reservation: start.reservation,
        object: start.object,
        last_word: start.last_word,
        masked_features: start.masked_features,
        start_task: task::spawn_thread,
        heap: start.heap,
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

/// Writes to the program's standard error, whatever that is by now. (The agent has closed its copy:
/// there [`legato_pager::uffd::agent::last_words`] is the way.)
fn complain(line: &[u8]) {
    // SAFETY: descriptor 2 is borrowed for one call; if it is closed, the call fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line);
}
