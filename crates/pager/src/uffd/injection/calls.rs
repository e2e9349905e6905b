//! The system calls of a tracer, as far as they are used here: ptrace(2), waitid(2). Written out
//! because no crate without a C library has them.

use super::InjectionError;
use crate::uffd::system_call::system_call;
use alloc::vec;
use alloc::vec::Vec;
use rustix::io::Errno;

const SYS_PTRACE: i64 = 101;
const SYS_WAITID: i64 = 247;

const PTRACE_CONT: i64 = 7;
const PTRACE_DETACH: i64 = 17;
const PTRACE_SYSCALL: i64 = 24;
const PTRACE_GETREGSET: i64 = 0x4204;
const PTRACE_SETREGSET: i64 = 0x4205;
const PTRACE_SEIZE: i64 = 0x4206;
const PTRACE_INTERRUPT: i64 = 0x4207;
const PTRACE_GETSIGMASK: i64 = 0x420A;
const PTRACE_SETSIGMASK: i64 = 0x420B;
const PTRACE_GET_RSEQ_CONFIGURATION: i64 = 0x420F;
/// Since Linux 6.4.
const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: i64 = 0x4210;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: i64 = 0x4211;
/// System call stops are told from SIGTRAP.
const OPTION_TRACESYSGOOD: i64 = 1;
const OPTION_TRACEEXEC: i64 = 1 << 4;

const NT_PRSTATUS: i64 = 1;
const NT_X86_XSTATE: i64 = 0x202;
/// Since Linux 6.6.
const NT_X86_SHSTK: i64 = 0x204;
/// Bytes of the largest extended state so far: AMX tiles (8 KiB) and what came before them.
const EXTENDED_STATE_MAX: usize = 16 << 10;

const P_PID: i64 = 1;
const WNOHANG: i64 = 1;
const WSTOPPED: i64 = 2;
const WEXITED: i64 = 4;
const WNOWAIT: i64 = 0x0100_0000;
const WALL: i64 = 0x4000_0000;
const CLD_TRAPPED: i32 = 4;

/// In place of the number of a system call.
pub(super) const NO_SYSTEM_CALL: u64 = u64::MAX;

const STOP_SYSTEM_CALL: i32 = 0x85;
const EVENT_EXEC: i32 = 4;
const EVENT_STOP: i32 = 128;

/// `struct user_regs_struct` (sys/user.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Registers {
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) rbp: u64,
    pub(super) rbx: u64,
    pub(super) r11: u64,
    pub(super) r10: u64,
    pub(super) r9: u64,
    pub(super) r8: u64,
    pub(super) rax: u64,
    pub(super) rcx: u64,
    pub(super) rdx: u64,
    pub(super) rsi: u64,
    pub(super) rdi: u64,
    pub(super) orig_rax: u64,
    pub(super) rip: u64,
    pub(super) cs: u64,
    pub(super) eflags: u64,
    pub(super) rsp: u64,
    pub(super) ss: u64,
    pub(super) fs_base: u64,
    pub(super) gs_base: u64,
    pub(super) ds: u64,
    pub(super) es: u64,
    pub(super) fs: u64,
    pub(super) gs: u64,
}

#[repr(C)]
struct IoVector {
    base: *mut u8,
    length: usize,
}

/// `struct ptrace_rseq_configuration` (linux/ptrace.h).
#[derive(Default)]
#[repr(C)]
struct RestartableConfiguration {
    area: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// `struct ptrace_sud_config` (linux/ptrace.h): which of its system calls a thread gets as signals.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct UserDispatch {
    mode: u64,
    selector: u64,
    offset: u64,
    length: u64,
}

/// The part of `siginfo_t` that waitid(2) fills.
#[repr(C)]
struct WaitInformation {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    pid: i32,
    user: u32,
    status: i32,
    rest: [i32; 25],
}

const _: () = assert!(size_of::<Registers>() == 27 * 8 && size_of::<WaitInformation>() == 128);
const _: () = assert!(size_of::<RestartableConfiguration>() == 24);

/// Why a traced thread does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It is on its way back to its program, and whatever a system call that was interrupted needs
    /// to go on is still to be done by the kernel: registers that are set now are treated as if
    /// the thread had come here with them. A stop of the whole process looks the same.
    Interrupted,
    /// Entering a system call, or leaving one.
    SystemCall,
    /// It has executed another program, and is still inside `execve`.
    Executed,
    /// Another event that nobody asked for.
    Other,
    /// About to take this signal.
    Signal(i32),
    Ended,
}

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Resume {
    /// To the next system call stop.
    ToSystemCall,
    Freely,
}

/// Makes the calling thread the tracer.
pub(super) fn seize(thread: i32, until_exec: bool) -> Result<(), Errno> {
    let exec = if until_exec { OPTION_TRACEEXEC } else { 0 };
    // SAFETY: no address is passed.
    unsafe { ptrace(PTRACE_SEIZE, thread, 0, OPTION_TRACESYSGOOD | exec) }
}

pub(super) fn interrupt(thread: i32) -> Result<(), Errno> {
    // SAFETY: no address is passed.
    unsafe { ptrace(PTRACE_INTERRUPT, thread, 0, 0) }
}

pub(super) fn resume(thread: i32, how: Resume, signal: i32) -> Result<(), Errno> {
    let request = match how {
        Resume::ToSystemCall => PTRACE_SYSCALL,
        Resume::Freely => PTRACE_CONT,
    };
    // SAFETY: no address is passed.
    unsafe { ptrace(request, thread, 0, i64::from(signal)) }
}

pub(super) fn detach(thread: i32) -> Result<(), Errno> {
    // SAFETY: no address is passed.
    unsafe { ptrace(PTRACE_DETACH, thread, 0, 0) }
}

/// The registers of a stopped thread.
pub(super) fn registers(thread: i32) -> Result<Registers, InjectionError> {
    let mut registers = Registers::default();
    let mut vector = IoVector {
        base: (&raw mut registers).cast(),
        length: size_of::<Registers>(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel writes at most `length` bytes into the registers, and the length.
    unsafe { ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, address) }
        .map_err(InjectionError::of_tracer)?;
    // A thread that runs 32-bit code has fewer and smaller registers.
    if vector.length == size_of::<Registers>() {
        Ok(registers)
    } else {
        Err(InjectionError::ThirtyTwoBit)
    }
}

pub(super) fn set_registers(thread: i32, registers: &Registers) -> Result<(), Errno> {
    let mut vector = IoVector {
        base: (&raw const *registers).cast_mut().cast(),
        length: size_of::<Registers>(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel reads `length` bytes of the registers.
    unsafe { ptrace(PTRACE_SETREGSET, thread, NT_PRSTATUS, address) }
}

/// Floating point and vector registers, in the kernel's form (XSAVE, standard layout).
pub(super) fn extended_state(thread: i32) -> Result<Vec<u8>, Errno> {
    let mut state = vec![0u8; EXTENDED_STATE_MAX];
    let mut vector = IoVector {
        base: state.as_mut_ptr(),
        length: state.len(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel writes at most `length` bytes into the state, and the length.
    unsafe { ptrace(PTRACE_GETREGSET, thread, NT_X86_XSTATE, address) }?;
    state.truncate(vector.length);
    Ok(state)
}

/// The extended state with which a program begins: exceptions masked, vector registers zero, and memory of
/// every protection key accessible. `state` is some thread's. (Intel SDM vol. 1, 10.5.1 and 13.4.)
pub(super) fn initial_state(state: &[u8]) -> Vec<u8> {
    const CONTROL_WORD: core::ops::Range<usize> = 0..2;
    const MXCSR: core::ops::Range<usize> = 24..28;
    const REGISTERS: core::ops::Range<usize> = 32..464;
    const HEADER: core::ops::Range<usize> = 512..576;
    let mut state = state.to_vec();
    if state.len() < HEADER.end {
        return state;
    }
    state[..MXCSR.end].fill(0);
    state[CONTROL_WORD].copy_from_slice(&0x037Fu16.to_le_bytes());
    state[MXCSR].copy_from_slice(&0x1F80u32.to_le_bytes());
    state[REGISTERS].fill(0);
    // Of all components but the first two the header says that they are as they are at first.
    state[HEADER].fill(0);
    state[HEADER.start] = 0b11;
    state
}

pub(super) fn set_extended_state(thread: i32, state: &[u8]) -> Result<(), Errno> {
    let mut vector = IoVector {
        base: state.as_ptr().cast_mut(),
        length: state.len(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel reads `length` bytes of the state.
    unsafe { ptrace(PTRACE_SETREGSET, thread, NT_X86_XSTATE, address) }
}

/// Lets a thread make all of its system calls, and returns what was set before. None if they were not
/// dispatched, or if the kernel cannot tell (before Linux 6.4).
pub(super) fn suspend_user_dispatch(thread: i32) -> Result<Option<UserDispatch>, Errno> {
    let mut set = UserDispatch::default();
    let size = size_of::<UserDispatch>() as i64;
    let address = (&raw mut set) as i64;
    // SAFETY: the kernel writes the size passed.
    let told = unsafe {
        ptrace(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
            thread,
            size,
            address,
        )
    };
    if told.is_err() || set.mode == 0 {
        return Ok(None);
    }
    set_user_dispatch(thread, &UserDispatch::default())?;
    Ok(Some(set))
}

pub(super) fn set_user_dispatch(thread: i32, wanted: &UserDispatch) -> Result<(), Errno> {
    let size = size_of::<UserDispatch>() as i64;
    let address = (&raw const *wanted) as i64;
    // SAFETY: the kernel reads the size passed.
    unsafe {
        ptrace(
            PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG,
            thread,
            size,
            address,
        )
    }
}

/// The pointer into the shadow stack of a thread; None if it has none.
pub(super) fn shadow_stack(thread: i32) -> Option<u64> {
    let mut pointer = 0u64;
    let mut vector = IoVector {
        base: (&raw mut pointer).cast(),
        length: size_of::<u64>(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel writes at most `length` bytes into the pointer, and the length.
    unsafe { ptrace(PTRACE_GETREGSET, thread, NT_X86_SHSTK, address) }.ok()?;
    Some(pointer)
}

pub(super) fn set_shadow_stack(thread: i32, pointer: u64) -> Result<(), Errno> {
    let mut vector = IoVector {
        base: (&raw const pointer).cast_mut().cast(),
        length: size_of::<u64>(),
    };
    let address = (&raw mut vector) as i64;
    // SAFETY: the kernel reads `length` bytes of the pointer.
    unsafe { ptrace(PTRACE_SETREGSET, thread, NT_X86_SHSTK, address) }
}

pub(super) fn signal_mask(thread: i32) -> Result<u64, Errno> {
    let mut mask = 0u64;
    let size = size_of::<u64>() as i64;
    // SAFETY: the kernel writes a mask of the size passed.
    unsafe { ptrace(PTRACE_GETSIGMASK, thread, size, (&raw mut mask) as i64) }?;
    Ok(mask)
}

pub(super) fn set_signal_mask(thread: i32, mask: u64) -> Result<(), Errno> {
    let size = size_of::<u64>() as i64;
    // SAFETY: the kernel reads a mask of the size passed.
    unsafe { ptrace(PTRACE_SETSIGMASK, thread, size, (&raw const mask) as i64) }
}

/// Where the thread's restartable sequences are described (rseq(2)); None if it uses none, or if
/// the kernel cannot tell (before Linux 5.13).
pub(super) fn restartable_sequences(thread: i32) -> Option<u64> {
    let mut configuration = RestartableConfiguration::default();
    let size = size_of::<RestartableConfiguration>() as i64;
    let address = (&raw mut configuration) as i64;
    // SAFETY: the kernel writes at most the size passed.
    unsafe { ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread, size, address) }.ok()?;
    Some(configuration.area).filter(|&area| area != 0)
}

/// Why the thread does not run; None if it does. Nothing is taken away by asking: the end of a
/// child stays there for whoever collects exit statuses.
pub(super) fn look(thread: i32) -> Result<Option<Stop>, Errno> {
    wait(thread, WNOHANG)
}

/// Waits until the thread does not run.
pub(super) fn wait_for_stop(thread: i32) -> Result<Stop, Errno> {
    loop {
        match wait(thread, 0) {
            Ok(Some(stop)) => return Ok(stop),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn wait(thread: i32, flags: i64) -> Result<Option<Stop>, Errno> {
    let mut information = WaitInformation {
        signal: 0,
        error: 0,
        code: 0,
        padding: 0,
        pid: 0,
        user: 0,
        status: 0,
        rest: [0; 25],
    };
    let flags = flags | WSTOPPED | WEXITED | WALL | WNOWAIT;
    let address = (&raw mut information) as i64;
    // SAFETY: the kernel fills one siginfo_t.
    unsafe { system_call(SYS_WAITID, [P_PID, thread.into(), address, flags, 0]) }?;
    if information.pid == 0 {
        return Ok(None);
    }
    Ok(Some(match information.code {
        CLD_TRAPPED => stop(information.status),
        _ => Stop::Ended,
    }))
}

const fn stop(status: i32) -> Stop {
    match (status >> 8, status & 0xFF) {
        (0, STOP_SYSTEM_CALL) => Stop::SystemCall,
        (0, signal) => Stop::Signal(signal),
        (EVENT_STOP, _) => Stop::Interrupted,
        (EVENT_EXEC, _) => Stop::Executed,
        _ => Stop::Other,
    }
}

/// # Safety
/// `data`, where the request takes an address, must be valid for it.
unsafe fn ptrace(request: i64, thread: i32, address: i64, data: i64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { system_call(SYS_PTRACE, [request, thread.into(), address, data]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_told_apart() {
        assert_eq!(stop(0x85), Stop::SystemCall);
        assert_eq!(stop(5), Stop::Signal(5));
        assert_eq!(stop(0x8005), Stop::Interrupted);
        assert_eq!(stop(0x8013), Stop::Interrupted, "the whole process stops");
        assert_eq!(stop(0x0405), Stop::Executed);
        assert_eq!(stop(0x0605), Stop::Other);
    }
}
