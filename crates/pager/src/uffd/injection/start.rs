//! The first moments of a program without a dynamic loader.

use super::borrowed::{look_again, pass, run_time, step_to_interrupted, wait_for};
use super::calls::{self, NO_SYSTEM_CALL, Registers, Resume, Stop};
use super::{InjectionError, SYS_MMAP};
use legato_base::timeouts::PROGRAM_START;

const SYS_ARCH_PRCTL: u64 = 158;
const SYS_SET_TID_ADDRESS: u64 = 218;
/// Of a call, `syscall` or `int 0x80`.
const INSTRUCTION_LENGTH: u64 = 2;
/// More than thread-local storage needs.
const SMALL: u64 = 1 << 20;
/// musl makes two.
const CALLS_MAX: u32 = 4;

/// Lets a thread in [`Stop::Interrupted`], before the first instruction of its program, go on until
/// its C library has told the kernel which word to clear when the thread ends (set_tid_address(2)):
/// musl has one for all threads, and nobody but the thread itself can ask the kernel for it. What any
/// other library does first is not waited for.
pub(super) fn follow(thread: i32) -> Result<(), InjectionError> {
    // Of the processor, because it may have to wait for that.
    let begin = run_time(thread);
    let is_late = || run_time(thread) - begin >= PROGRAM_START;
    for _ in 0..CALLS_MAX {
        if !run_to_system_call(thread, is_late)? {
            break;
        }
        let registers = calls::registers(thread)?;
        let is_before = match registers.orig_rax {
            SYS_MMAP => registers.rsi < SMALL,
            number => number == SYS_ARCH_PRCTL || number == SYS_SET_TID_ADDRESS,
        };
        if !is_before {
            take_back(thread, &registers)?;
            break;
        }
        // These end at once.
        run_to_end_of_call(thread)?;
        if registers.orig_rax == SYS_SET_TID_ADDRESS {
            break;
        }
    }
    step_to_interrupted(thread)
}

/// False if the thread was stopped anywhere, because it is late.
fn run_to_system_call(thread: i32, is_late: impl Fn() -> bool) -> Result<bool, InjectionError> {
    let tracer = InjectionError::of_tracer;
    calls::resume(thread, Resume::ToSystemCall, 0).map_err(tracer)?;
    let mut given_up = false;
    loop {
        match calls::look(thread).map_err(tracer)? {
            None if !given_up && is_late() => {
                given_up = true;
                calls::interrupt(thread).map_err(tracer)?;
            }
            None => look_again(),
            Some(Stop::SystemCall) => return Ok(true),
            Some(Stop::Interrupted) if given_up => return Ok(false),
            Some(Stop::Ended) => return Err(InjectionError::Gone),
            Some(stop) => pass(thread, stop, Resume::ToSystemCall)?,
        }
    }
}

fn run_to_end_of_call(thread: i32) -> Result<(), InjectionError> {
    calls::resume(thread, Resume::ToSystemCall, 0).map_err(InjectionError::of_tracer)?;
    wait_for(thread, Stop::SystemCall, Resume::ToSystemCall)
}

/// The call that the thread is entering is not made, and the thread is again before its instruction.
fn take_back(thread: i32, entered: &Registers) -> Result<(), InjectionError> {
    let set = |registers: &Registers| {
        calls::set_registers(thread, registers).map_err(InjectionError::of_tracer)
    };
    set(&Registers {
        orig_rax: NO_SYSTEM_CALL,
        ..*entered
    })?;
    run_to_end_of_call(thread)?;
    set(&Registers {
        orig_rax: NO_SYSTEM_CALL,
        rax: entered.orig_rax,
        rip: entered.rip - INSTRUCTION_LENGTH,
        ..*entered
    })
}
