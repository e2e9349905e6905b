//! A process of one thread that is single-stepped (ptrace(2)).

use legato_test_programs::check_call;
use libc::{c_long, c_uint, c_void, cpu_set_t, pid_t, user_regs_struct};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;

/// The process, stopped. Goes on as it was when this is dropped.
pub(crate) struct Tracee {
    pid: pid_t,
    memory: File,
    /// Where it may run else.
    processors: cpu_set_t,
    /// The instruction that is next.
    at: u64,
}

/// A system call that has returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 2],
    pub(crate) result: i64,
}

impl Call {
    const fn returned(registers: &user_regs_struct) -> Self {
        Self {
            number: registers.orig_rax.cast_signed(),
            arguments: [registers.rdi, registers.rsi],
            result: registers.rax.cast_signed(),
        }
    }
}

impl Tracee {
    /// From here on both run on one processor: to wake another one for each instruction takes twenty times
    /// as long.
    pub(crate) fn attach(pid: pid_t) -> io::Result<Self> {
        // The stops at system calls are told from those after single steps.
        ask(libc::PTRACE_SEIZE, pid, libc::PTRACE_O_TRACESYSGOOD.into())?;
        let memory = format!("/proc/{pid}/mem");
        let memory = File::options().read(true).write(true).open(memory)?;
        ask(libc::PTRACE_INTERRUPT, pid, 0)?;
        let tracee = Self {
            pid,
            memory,
            processors: processors_of(pid)?,
            at: 0,
        };
        tracee.wait()?;
        let one = one_processor()?;
        run_on(0, &one)?;
        run_on(pid, &one)?;
        Ok(tracee)
    }

    /// Executes one instruction, however long it takes. Returns the system call that it was.
    pub(crate) fn step(&mut self) -> io::Result<Option<Call>> {
        // One that repeats itself (Intel SDM, REP) stops each time, on some machines.
        let registers = loop {
            ask(libc::PTRACE_SINGLESTEP, self.pid, 0)?;
            // A signal is not passed on: the agent has none but this tracer's.
            self.wait()?;
            let registers = self.registers()?;
            if registers.rip != self.at {
                break registers;
            }
        };
        self.at = registers.rip;
        // The instruction leaves in RCX where it returns to (Intel SDM, SYSCALL). What else has that
        // there has no number of a system call.
        let is_call = registers.rcx == registers.rip && registers.orig_rax.cast_signed() >= 0;
        Ok(is_call.then_some(Call::returned(&registers)))
    }

    /// Executes all up to the next system call, and that.
    pub(crate) fn step_to_call(&self) -> io::Result<Call> {
        // It stops as it enters and as it leaves.
        for _ in 0..2 {
            ask(libc::PTRACE_SYSCALL, self.pid, 0)?;
            self.wait()?;
        }
        self.registers().map(|registers| Call::returned(&registers))
    }

    fn registers(&self) -> io::Result<user_regs_struct> {
        // SAFETY: all bit patterns are integers.
        let mut registers: user_regs_struct = unsafe { core::mem::zeroed() };
        let into = ptr::from_mut(&mut registers).cast::<c_void>();
        let none = ptr::null_mut::<c_void>();
        // SAFETY: the kernel writes one such structure there.
        let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, none, into) };
        check_call("ptrace", result as isize)?;
        Ok(registers)
    }

    /// Waits until it has stopped.
    fn wait(&self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the status is written to an integer.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        check_call("waitpid", waited as isize)?;
        if libc::WIFSTOPPED(status) {
            return Ok(());
        }
        Err(io::Error::other(format!("it has ended: {status:#x}")))
    }

    /// Writes anywhere, as a debugger does.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, address)
    }

    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(into, address)
    }

    /// What its memory consists of (proc_pid_maps(5)).
    pub(crate) fn maps(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/maps", self.pid))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // Who has ended cannot be let go.
        let _ = run_on(self.pid, &self.processors);
        let _ = ask(libc::PTRACE_DETACH, self.pid, 0);
    }
}

fn ask(request: c_uint, pid: pid_t, data: c_long) -> io::Result<()> {
    // SAFETY: these requests take a process and a number, and touch no memory of ours.
    let result = unsafe { libc::ptrace(request, pid, ptr::null_mut::<c_void>(), data) };
    check_call("ptrace", result as isize)?;
    Ok(())
}

fn processors_of(pid: pid_t) -> io::Result<cpu_set_t> {
    let mut processors = no_processors();
    // SAFETY: the kernel writes one such set there.
    let result =
        unsafe { libc::sched_getaffinity(pid, size_of::<cpu_set_t>(), &raw mut processors) };
    check_call("sched_getaffinity", result as isize)?;
    Ok(processors)
}

fn run_on(pid: pid_t, processors: &cpu_set_t) -> io::Result<()> {
    // SAFETY: the kernel reads one such set there.
    let result = unsafe { libc::sched_setaffinity(pid, size_of::<cpu_set_t>(), processors) };
    check_call("sched_setaffinity", result as isize)?;
    Ok(())
}

/// The one that this runs on.
fn one_processor() -> io::Result<cpu_set_t> {
    // SAFETY: takes nothing.
    let processor = check_call("sched_getcpu", unsafe { libc::sched_getcpu() } as isize)?;
    let mut one = no_processors();
    // SAFETY: the processor is one of those that a set has room for, or it would have no number.
    unsafe { libc::CPU_SET(processor, &mut one) };
    Ok(one)
}

fn no_processors() -> cpu_set_t {
    // SAFETY: the set is an array of integers.
    unsafe { core::mem::zeroed() }
}
