//! Brings the agent into a process that runs already, or that no dynamic loader starts, through
//! ptrace(2): one thread of it is borrowed, maps the object, runs an entry of it, and goes on as
//! if nothing had happened. The other threads run meanwhile.
//!
//! This part runs in the supervisor, unlike its neighbours. Nothing is left behind where it fails.

mod borrowed;
mod calls;
mod error;
mod object;
mod parameters;
mod process;
mod start;

pub use error::{Call, InjectionError};
pub use object::{Object, ObjectError};
pub use parameters::{END_OF_ENTRY, Entry, EntryRefusal, Parameters};

use alloc::vec::Vec;
use borrowed::Borrowed;
use object::{Access, Piece};
use process::{Memory, Process};
use rustix::io::Errno;
use rustix::process::Pid;
use zerocopy::IntoBytes as _;

const SYS_MMAP: u64 = 9;
const SYS_MUNMAP: u64 = 11;
const SYS_MADVISE: u64 = 28;
const SYS_PRCTL: u64 = 157;
const PROT_NONE: u64 = 0;
const PROT_READ: u64 = 1;
const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
const MAP_PRIVATE: u64 = 0x02;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MADV_DONTFORK: u64 = 10;
const MADV_DONTDUMP: u64 = 16;
/// Names a mapping in /proc/PID/maps, where the kernel can do that (Linux 5.17).
const PR_SET_VMA: u64 = 0x5356_4D41;
const PR_SET_VMA_ANON_NAME: u64 = 0;

/// Of the stack on which the entry runs, parameters and the name included.
const SCRATCH_SIZE: u64 = 128 << 10;
const NAME: &[u8] = b"legato-agent.so\0";
/// Parameters and name lie above the stack.
const PARAMETERS_OFFSET: u64 = SCRATCH_SIZE - 1024;
const NAME_OFFSET: u64 = SCRATCH_SIZE - 64;

const _: () = assert!(size_of::<Parameters>() as u64 <= NAME_OFFSET - PARAMETERS_OFFSET);

/// A process with the memory that it has now. Once it executes another program it is another target:
/// what was found out about this one is not true of that.
#[derive(Debug)]
pub struct Target {
    pid: Pid,
    memory: Memory,
}

impl Target {
    /// # Errors
    /// If the process is gone, or its memory is none of the caller's business.
    pub fn of(pid: Pid) -> Result<Self, InjectionError> {
        let memory = Process::new(pid.as_raw_pid()).memory()?;
        Ok(Self { pid, memory })
    }

    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Has it filtered its system calls by more than what the calling process came with?
    pub fn is_filtered(&self) -> bool {
        Process::new(self.pid.as_raw_pid()).is_filtered()
    }
}

/// Calls an entry of the object in a process.
///
/// The calling thread should end soon after: a thread that could not be stopped is let go only by
/// that.
///
/// # Errors
/// Whatever kept the entry from doing its work; the process runs on without it.
pub fn inject(
    target: Target,
    object: &Object<'_>,
    parameters: &Parameters,
) -> Result<(), InjectionError> {
    let Target { pid, memory } = target;
    let process = Process::new(pid.as_raw_pid());
    let mut late = Vec::new();
    let result = borrowed::stop_any(&process, &mut late).and_then(|thread| {
        // While it is stopped it executes nothing. (If another thread of it does, it is killed.)
        let entered = match memory.is_in_use() {
            true => inject_stopped(&process, memory, thread, object, parameters, false),
            false => Err(InjectionError::Gone),
        };
        // Of no effect after the thread has been given back; otherwise nothing was changed yet.
        entered.inspect_err(|_| borrowed::let_go(thread))
    });
    late.into_iter().for_each(borrowed::let_go_late);
    result
}

/// A process that waits for its tracer before it executes the program that it is for.
#[derive(Debug)]
pub struct Launch {
    process: Process,
    thread: i32,
}

impl Launch {
    /// Makes the calling thread its tracer.
    ///
    /// # Errors
    /// If it cannot be traced.
    pub fn seize(pid: Pid) -> Result<Self, InjectionError> {
        let thread = pid.as_raw_pid();
        let process = Process::new(thread);
        match calls::seize(thread, true) {
            Ok(()) => Ok(Self { process, thread }),
            Err(Errno::PERM) => Err(process.why_not_traced()),
            Err(error) => Err(InjectionError::of_tracer(error)),
        }
    }

    /// Waits for its `execve`, and calls an entry of the object before the program has any memory
    /// worth to speak of; not if it has a dynamic loader, which brings the agent in by itself. If the
    /// entry does not do its work the process is killed.
    ///
    /// # Errors
    /// Whatever kept the entry from doing its work.
    pub fn inject(
        self,
        object: &Object<'_>,
        parameters: &Parameters,
    ) -> Result<(), InjectionError> {
        let result = borrowed::follow_exec(self.thread).and_then(|()| {
            if self.process.has_loader() {
                return calls::detach(self.thread).map_err(InjectionError::of_tracer);
            }
            start::follow(self.thread)?;
            let memory = self.process.memory()?;
            inject_stopped(&self.process, memory, self.thread, object, parameters, true)
        });
        if result.is_err() {
            kill(self.thread);
        }
        result
    }
}

fn kill(process: i32) {
    if let Some(pid) = Pid::from_raw(process) {
        // ESRCH: it has ended, which was the purpose.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// With `or_kill` a process in which the entry has not done its work never gets to run.
fn inject_stopped(
    process: &Process,
    memory: Memory,
    thread: i32,
    object: &Object<'_>,
    parameters: &Parameters,
    or_kill: bool,
) -> Result<(), InjectionError> {
    let borrowed = Borrowed::new(process, memory, thread)?;
    let result = run_entry(&borrowed, object, parameters);
    if or_kill && result.is_err() {
        kill(thread);
    }
    let given_back = borrowed.give_back();
    // Whether the entry has done its work is what counts; then it may have ended since.
    result?;
    match given_back {
        Err(InjectionError::Gone) => Ok(()),
        other => other,
    }
}

fn run_entry(
    borrowed: &Borrowed,
    object: &Object<'_>,
    parameters: &Parameters,
) -> Result<(), InjectionError> {
    let scratch = map(borrowed, 0, SCRATCH_SIZE, PROT_READ | PROT_WRITE)?;
    let result = load(borrowed, object, scratch).and_then(|base| {
        let called = call_entry(borrowed, base + object.entry(), scratch, parameters);
        if called.is_err() {
            unmap(borrowed, base, object.span());
        }
        called
    });
    unmap(borrowed, scratch, SCRATCH_SIZE);
    result
}

/// Places the object in the process and returns where.
fn load(borrowed: &Borrowed, object: &Object<'_>, scratch: u64) -> Result<u64, InjectionError> {
    let base = map(borrowed, 0, object.span(), PROT_NONE)?;
    let mut pieces = object.place(base).into_iter();
    let filled = pieces
        .try_for_each(|piece| fill(borrowed, &piece))
        .and_then(|()| settle(borrowed, base, object.span(), scratch));
    if let Err(error) = filled {
        unmap(borrowed, base, object.span());
        return Err(error);
    }
    Ok(base)
}

/// Mapped at once with the access that it will have: what could be written once and executed
/// later is what hardened systems refuse.
fn fill(borrowed: &Borrowed, piece: &Piece) -> Result<(), InjectionError> {
    let access = match piece.access {
        Access::Read => PROT_READ,
        Access::Write => PROT_READ | PROT_WRITE,
        Access::Execute => PROT_READ | PROT_EXEC,
    };
    map(borrowed, piece.start, piece.length, access)?;
    borrowed
        .memory
        .write(piece.content_address, &piece.content)
        .map_err(InjectionError::of_memory)
}

/// A forked child and a core file have no use for the object.
fn settle(borrowed: &Borrowed, base: u64, span: u64, scratch: u64) -> Result<(), InjectionError> {
    for advice in [MADV_DONTFORK, MADV_DONTDUMP] {
        let result = borrowed.call(SYS_MADVISE, [base, span, advice, 0, 0, 0])?;
        Call::Advise.check(result)?;
    }
    let name = scratch + NAME_OFFSET;
    borrowed
        .memory
        .write(name, NAME)
        .map_err(InjectionError::of_memory)?;
    // A kernel that has no names for mappings serves as well.
    let arguments = [PR_SET_VMA, PR_SET_VMA_ANON_NAME, base, span, name, 0];
    borrowed.call(SYS_PRCTL, arguments).map(drop)
}

fn call_entry(
    borrowed: &Borrowed,
    entry: u64,
    scratch: u64,
    parameters: &Parameters,
) -> Result<(), InjectionError> {
    let address = scratch + PARAMETERS_OFFSET;
    borrowed
        .memory
        .write(address, parameters.as_bytes())
        .map_err(InjectionError::of_memory)?;
    parameters::outcome(borrowed.run(entry, address, address)?)
}

/// Maps private memory; at an address that is ours, or anywhere for 0.
fn map(borrowed: &Borrowed, address: u64, length: u64, access: u64) -> Result<u64, InjectionError> {
    let fixed = if address == 0 { 0 } else { MAP_FIXED };
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | fixed;
    let no_file = u64::MAX;
    let result = borrowed.call(SYS_MMAP, [address, length, access, flags, no_file, 0])?;
    Call::Map.check(result)
}

/// Takes back what [`map`] gave, where something else has failed already: if this fails too, the
/// first error is the one to report.
fn unmap(borrowed: &Borrowed, address: u64, length: u64) {
    let _ = borrowed.call(SYS_MUNMAP, [address, length, 0, 0, 0, 0]);
}
