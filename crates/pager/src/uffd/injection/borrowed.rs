//! One thread of a process, stopped and borrowed: it makes system calls and runs a function for
//! its tracer, and then goes on as if nothing had happened.

use super::calls::{self, NO_SYSTEM_CALL, Registers, Resume, Stop, UserDispatch};
use super::parameters::END_OF_ENTRY;
use super::process::{Memory, Process};
use super::{Call, InjectionError};
use crate::uffd::program::Thread;
use crate::uffd::system_call::outcome;
use alloc::vec::Vec;
use legato_base::timeouts::{PROCESS_STOP, THREAD_STOP};
use legato_base::{Duration, Time};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};

/// Between two looks at a thread that is to stop.
const LOOK_AGAIN_NANOS: i64 = 50_000;

/// Interrupt flag and the bit that is always set; no direction, trap or alignment flag.
const FLAGS: u64 = 0x202;
/// The one signal besides SIGKILL that cannot be blocked (signal(7)).
const SIGSTOP: i32 = 19;
/// Where `struct rseq` keeps the critical section that runs (linux/rseq.h).
const CRITICAL_SECTION_OFFSET: u64 = 8;
/// `include/linux/errno.h`: the kernel turns it into EINTR if a handler runs, and makes the call
/// anew otherwise.
const ERESTARTNOHAND: i64 = 514;
/// System calls that say EINTR themselves when they are woken, whatever for, and have done nothing
/// then (signal(7), "Interruption of system calls"): read, write, readv, writev, accept, sendto,
/// recvfrom, sendmsg, recvmsg, semop, rt_sigtimedwait, semtimedop, epoll_wait, epoll_pwait,
/// accept4, recvmmsg, io_uring_enter, epoll_pwait2.
const INTERRUPTED_FOR_ANYTHING: [u64; 18] = [
    0, 1, 19, 20, 43, 44, 45, 46, 47, 65, 128, 220, 232, 281, 288, 299, 426, 441,
];

/// A borrowed thread. It must be given back, or its process lives on with a thread of ours.
#[derive(Debug)]
pub(super) struct Borrowed {
    thread: i32,
    pub(super) memory: Memory,
    instruction: u64,
    registers: Registers,
    extended_state: Vec<u8>,
    shadow_stack: Option<u64>,
    user_dispatch: Option<UserDispatch>,
    signal_mask: u64,
    critical_section: Option<(u64, u64)>,
}

/// Stops some thread of a process. Those that were to and have not goes to `late`; they must be let
/// go, or their calls end with EINTR when their tracer ends.
pub(super) fn stop_any(process: &Process, late: &mut Vec<i32>) -> Result<i32, InjectionError> {
    let deadline = now() + PROCESS_STOP;
    let mut why = InjectionError::Gone;
    for thread in process.threads() {
        if now() >= deadline {
            return Err(InjectionError::Busy);
        }
        // Another thread's end is nothing to report if there is one that can tell more.
        why = match stop(thread) {
            Ok(()) => return Ok(thread),
            Err(InjectionError::Gone) => why,
            Err(error @ InjectionError::Busy) => {
                late.push(thread);
                error
            }
            Err(error) => return Err(error),
        };
    }
    Err(why)
}

fn stop(thread: i32) -> Result<(), InjectionError> {
    match calls::seize(thread, false) {
        Ok(()) => {}
        Err(Errno::PERM) => return Err(Process::new(thread).why_not_traced()),
        Err(error) => return Err(InjectionError::of_tracer(error)),
    }
    calls::interrupt(thread).map_err(InjectionError::of_tracer)?;
    wait_until_stopped(thread)
}

/// Of a thread that was interrupted. One that only gets no processor is waited for, however long:
/// its call has ended, and with EINTR unless it stops here.
fn wait_until_stopped(thread: i32) -> Result<(), InjectionError> {
    let deadline = now() + THREAD_STOP;
    let had_run = run_time(thread);
    let is_stuck =
        || !Process::new(thread).is_runnable() || run_time(thread) - had_run >= THREAD_STOP;
    loop {
        match calls::look(thread).map_err(InjectionError::of_tracer)? {
            None if now() >= deadline && is_stuck() => return Err(InjectionError::Busy),
            None => look_again(),
            Some(Stop::Interrupted) => return Ok(()),
            Some(Stop::Ended) => return Err(InjectionError::Gone),
            Some(stop) => pass(thread, stop, Resume::Freely)?,
        }
    }
}

/// How much of the processor the thread has had; none if it is gone.
pub(super) fn run_time(thread: i32) -> Duration {
    let nanos = Pid::from_raw(thread).and_then(|id| Thread { process: id, id }.run_time());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Lets a thread go that was to stop and had not. One that still has not sleeps uninterruptibly: for
/// that one nothing has changed, and its tracer's end is enough.
pub(super) fn let_go_late(thread: i32) {
    if wait_until_stopped(thread).is_ok() {
        let_go(thread);
    }
}

/// Lets a thread go on from [`Stop::Interrupted`] as if it had not been stopped. It may have been
/// killed meanwhile, which is no reason to report anything.
pub(super) fn let_go(thread: i32) {
    if let Ok(registers) = calls::registers(thread) {
        let _ = calls::set_registers(thread, &restarted(registers));
    }
    let _ = calls::detach(thread);
}

/// Waits until a thread that is to stop may have.
pub(super) fn look_again() {
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_AGAIN_NANOS,
    };
    // Waking early only means to look earlier.
    let _: NanosleepRelativeResult = nanosleep(&pause);
}

/// Lets a thread go on from a stop that is not the one waited for.
pub(super) fn pass(thread: i32, stop: Stop, how: Resume) -> Result<(), InjectionError> {
    let signal = match stop {
        Stop::Signal(signal) => signal,
        _ => 0,
    };
    calls::resume(thread, how, signal).map_err(InjectionError::of_tracer)
}

/// Follows a thread, which executes a program soon, to before the first instruction of that.
pub(super) fn follow_exec(thread: i32) -> Result<(), InjectionError> {
    wait_for(thread, Stop::Executed, Resume::Freely)?;
    step_to_interrupted(thread)
}

/// Takes a stopped thread to [`Stop::Interrupted`], before anything more of its program.
pub(super) fn step_to_interrupted(thread: i32) -> Result<(), InjectionError> {
    calls::interrupt(thread).map_err(InjectionError::of_tracer)?;
    calls::resume(thread, Resume::Freely, 0).map_err(InjectionError::of_tracer)?;
    wait_for(thread, Stop::Interrupted, Resume::Freely)
}

/// Waits for a stop, and lets the thread go on from all others.
pub(super) fn wait_for(thread: i32, wanted: Stop, how: Resume) -> Result<(), InjectionError> {
    loop {
        match calls::wait_for_stop(thread).map_err(InjectionError::of_tracer)? {
            Stop::Ended => return Err(InjectionError::Gone),
            stop if stop == wanted => return Ok(()),
            stop => pass(thread, stop, how)?,
        }
    }
}

impl Borrowed {
    /// Of a thread in [`Stop::Interrupted`]. From here on it takes no signals, except those that
    /// nobody can block. Where it fails nothing has changed.
    pub(super) fn new(
        process: &Process,
        memory: Memory,
        thread: i32,
    ) -> Result<Self, InjectionError> {
        let tracer = InjectionError::of_tracer;
        let registers = calls::registers(thread)?;
        if Process::new(thread).is_filtered() {
            return Err(InjectionError::Filtered);
        }
        let instruction = process
            .system_call_instruction(&memory)
            .ok_or(InjectionError::NoSystemCallInstruction)?;
        let critical_section = calls::restartable_sequences(thread).and_then(|area| {
            let address = area + CRITICAL_SECTION_OFFSET;
            Some((address, memory.read_long(address).ok()?))
        });
        let extended_state = calls::extended_state(thread).map_err(tracer)?;
        let signal_mask = calls::signal_mask(thread).map_err(tracer)?;
        // From here on only a thread that is gone refuses.
        calls::set_extended_state(thread, &calls::initial_state(&extended_state))
            .map_err(tracer)?;
        calls::set_signal_mask(thread, u64::MAX).map_err(tracer)?;
        Ok(Self {
            thread,
            memory,
            instruction,
            registers,
            extended_state,
            shadow_stack: calls::shadow_stack(thread),
            user_dispatch: calls::suspend_user_dispatch(thread).map_err(tracer)?,
            signal_mask,
            critical_section,
        })
    }

    /// Makes a system call in the process and returns what it returned.
    pub(super) fn call(&self, number: u64, arguments: [u64; 6]) -> Result<i64, InjectionError> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        self.set_registers(&Registers {
            rip: self.instruction,
            rax: number,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.neutral()
        })?;
        self.run_to_system_call()?;
        self.run_to_system_call()?;
        Ok(calls::registers(self.thread)?.rax.cast_signed())
    }

    /// Calls the entry of an object and returns what it returned.
    pub(super) fn run(
        &self,
        entry: u64,
        stack_top: u64,
        argument: u64,
    ) -> Result<i64, InjectionError> {
        self.set_registers(&Registers {
            rip: entry,
            rsp: stack_top,
            rdi: argument,
            rbp: 0,
            ..self.neutral()
        })?;
        loop {
            self.run_to_system_call()?;
            let registers = calls::registers(self.thread)?;
            if registers.orig_rax == u64::from(END_OF_ENTRY) {
                // The kernel is not asked: a filter of system calls might not like this one.
                self.set_registers(&Registers {
                    orig_rax: NO_SYSTEM_CALL,
                    ..registers
                })?;
                self.run_to_system_call()?;
                return Ok(registers.rdi.cast_signed());
            }
        }
    }

    /// Puts everything back and lets the thread go on.
    pub(super) fn give_back(self) -> Result<(), InjectionError> {
        let tracer = InjectionError::of_tracer;
        // Only from this kind of stop the kernel restarts a system call that was interrupted.
        calls::interrupt(self.thread).map_err(tracer)?;
        self.resume(Resume::Freely, 0)?;
        self.wait_until_interrupted()?;
        calls::set_extended_state(self.thread, &self.extended_state).map_err(tracer)?;
        if let Some((address, section)) = self.critical_section {
            // The kernel forgets the section when it sees the thread run elsewhere. Reminded, it
            // aborts it, as it does after any other preemption.
            let _ = self.memory.write(address, &section.to_le_bytes());
        }
        self.set_registers(&restarted(self.registers))?;
        if let Some(pointer) = self.shadow_stack {
            calls::set_shadow_stack(self.thread, pointer).map_err(tracer)?;
        }
        if let Some(dispatch) = &self.user_dispatch {
            calls::set_user_dispatch(self.thread, dispatch).map_err(tracer)?;
        }
        calls::set_signal_mask(self.thread, self.signal_mask).map_err(tracer)?;
        calls::detach(self.thread).map_err(tracer)
    }

    fn wait_until_interrupted(&self) -> Result<(), InjectionError> {
        loop {
            match calls::wait_for_stop(self.thread).map_err(InjectionError::of_tracer)? {
                Stop::Interrupted => return Ok(()),
                Stop::Ended => return Err(InjectionError::Gone),
                Stop::Signal(SIGSTOP) => self.resume(Resume::Freely, SIGSTOP)?,
                // Any other can only be one that our own code has raised.
                _ => self.resume(Resume::Freely, 0)?,
            }
        }
    }

    fn run_to_system_call(&self) -> Result<(), InjectionError> {
        let mut signal = 0;
        loop {
            self.resume(Resume::ToSystemCall, signal)?;
            signal = 0;
            match calls::wait_for_stop(self.thread).map_err(InjectionError::of_tracer)? {
                Stop::SystemCall => return Ok(()),
                Stop::Ended => return Err(InjectionError::Gone),
                // It stops the process, and this thread too as soon as it is given back.
                Stop::Signal(SIGSTOP) => signal = SIGSTOP,
                // All others are blocked: the processor has raised this one.
                Stop::Signal(signal) => return Err(InjectionError::Crashed(signal)),
                Stop::Interrupted | Stop::Executed | Stop::Other => {}
            }
        }
    }

    fn resume(&self, how: Resume, signal: i32) -> Result<(), InjectionError> {
        calls::resume(self.thread, how, signal).map_err(InjectionError::of_tracer)
    }

    /// Registers for code of ours: with the thread's own segments, and not in a system call that
    /// the kernel would restart.
    const fn neutral(&self) -> Registers {
        Registers {
            orig_rax: NO_SYSTEM_CALL,
            eflags: FLAGS,
            ..self.registers
        }
    }

    fn set_registers(&self, registers: &Registers) -> Result<(), InjectionError> {
        calls::set_registers(self.thread, registers).map_err(InjectionError::of_tracer)
    }
}

/// A call that says EINTR for anything has seen no signal, only us. The kernel decides: a signal
/// that is there by now is worth its EINTR.
fn restarted(registers: Registers) -> Registers {
    let interrupted = registers.rax.cast_signed() == -i64::from(Errno::INTR.raw_os_error());
    if interrupted && INTERRUPTED_FOR_ANYTHING.contains(&registers.orig_rax) {
        return Registers {
            rax: (-ERESTARTNOHAND).cast_unsigned(),
            ..registers
        };
    }
    registers
}

impl Call {
    /// The result of the call that this stands for, made inside the process.
    pub(super) fn check(self, result: i64) -> Result<u64, InjectionError> {
        match outcome(result) {
            Ok(result) => Ok(result.cast_unsigned()),
            Err(error) => Err(InjectionError::CallRefused {
                call: self,
                errno: error.raw_os_error(),
            }),
        }
    }
}

fn now() -> Time {
    crate::uffd::agent::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_always_say_eintr_are_made_anew() {
        let at = |orig_rax, rax: i64| Registers {
            orig_rax,
            rax: rax.cast_unsigned(),
            ..Registers::default()
        };
        assert_eq!(restarted(at(232, -4)), at(232, -514));
        assert_eq!(restarted(at(232, 3)), at(232, 3));
        // close(2) must not be made twice; nanosleep(2) knows by itself how to go on.
        assert_eq!(restarted(at(3, -4)), at(3, -4));
        assert_eq!(restarted(at(35, -516)), at(35, -516));
        assert_eq!(restarted(at(u64::MAX, -4)), at(u64::MAX, -4));
    }

    #[test]
    fn the_last_addresses_are_errors() {
        assert_eq!(Call::Map.check(0x7000), Ok(0x7000));
        let refused = InjectionError::CallRefused {
            call: Call::Map,
            errno: 12,
        };
        assert_eq!(Call::Map.check(-12), Err(refused));
    }
}
