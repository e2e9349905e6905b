//! A filter of the program's system calls (seccomp(2)) for the few that far memory cannot keep the
//! promise of, and of which the kernel tells nobody:
//!
//! - `madvise(MADV_GUARD_INSTALL)` (Linux 6.13) discards pages without an event for the agent, which
//!   would bring their old content back. It is answered as older kernels do: EINVAL.
//! - `mlockall(MCL_CURRENT)` brings all memory in and keeps it, the agent's empty frames included.
//!   It is answered as where RLIMIT_MEMLOCK is too low: ENOMEM. (MCL_ONFAULT and MCL_FUTURE lock
//!   what is there or comes; they pass.)
//!
//! A filter lasts as long as the process, and for what it forks and executes. All other calls are
//! allowed whatever their arguments, which the kernel finds out once (Linux 5.11) and remembers: they
//! cost nothing. Calls of 32-bit code (`int 0x80`) and of io_uring (IORING_OP_MADVISE) pass by.

use super::system_call::system_call;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const SYS_MADVISE: u32 = 28;
const SYS_MLOCKALL: u32 = 151;
const SYS_SECCOMP: u32 = 317;
const SYS_PROCESS_MADVISE: u32 = 440;
/// A call of the x32 ABI has the numbers of the others, and this bit.
const X32_BIT: u32 = 0x4000_0000;
/// `include/uapi/linux/audit.h`.
const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;

/// `include/uapi/asm-generic/mman-common.h`, mman.h.
const MADV_GUARD_INSTALL: u32 = 102;
const MCL_CURRENT: u32 = 1;
const MCL_ONFAULT: u32 = 4;
const MCL_ALL: u32 = 7;
/// Advice that no kernel has. The filter answers it in a way that tells that it is there.
const ADVICE_FOR_THE_FILTER: u32 = 0x4C45_4741;

/// `include/uapi/linux/seccomp.h`: the structure that a filter looks at.
const OF_NUMBER: u32 = 0;
const OF_ARCHITECTURE: u32 = 4;
/// Lower half of an argument: all of the arguments that are looked at are of type int.
const fn of_argument(index: u32) -> u32 {
    16 + 8 * index
}

const SECCOMP_SET_MODE_FILTER: u64 = 1;
const FLAG_ALL_THREADS: u64 = 1;
/// The filter is no sandbox: do not slow the program down for the sake of one.
const FLAG_SPECULATE: u64 = 4;
const ALLOW: u32 = 0x7FFF_0000;
const ANSWER: u32 = 0x0005_0000;

/// `struct sock_filter`: one instruction of the classic BPF machine.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// `struct sock_fprog`.
#[derive(Debug)]
#[repr(C)]
struct Filter {
    length: u16,
    instructions: *const Instruction,
}

const fn load(offset: u32) -> Instruction {
    Instruction {
        code: 0x20,
        if_true: 0,
        if_false: 0,
        operand: offset,
    }
}

const fn and(operand: u32) -> Instruction {
    Instruction {
        code: 0x54,
        ..load(operand)
    }
}

const fn answer(operand: u32) -> Instruction {
    Instruction {
        code: 0x06,
        ..load(operand)
    }
}

/// Jumps count from the next instruction on.
const fn jump(code: u16, operand: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code,
        if_true,
        if_false,
        operand,
    }
}

const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const ANY_BIT: u16 = 0x45;

static PROGRAM: [Instruction; 21] = [
    load(OF_ARCHITECTURE),
    jump(EQUAL, AUDIT_ARCH_X86_64, 0, 15),
    load(OF_NUMBER),
    and(!X32_BIT),
    jump(EQUAL, SYS_MADVISE, 3, 0),
    jump(EQUAL, SYS_PROCESS_MADVISE, 5, 0),
    jump(EQUAL, SYS_MLOCKALL, 6, 0),
    answer(ALLOW),
    // madvise(address, length, advice)
    load(of_argument(2)),
    jump(EQUAL, ADVICE_FOR_THE_FILTER, 10, 0),
    jump(EQUAL, MADV_GUARD_INSTALL, 7, 6),
    // process_madvise(pidfd, ranges, count, advice, flags)
    load(of_argument(3)),
    jump(EQUAL, MADV_GUARD_INSTALL, 5, 4),
    // mlockall(flags); what makes no sense the kernel answers.
    load(of_argument(0)),
    jump(GREATER, MCL_ALL, 2, 0),
    jump(ANY_BIT, MCL_ONFAULT, 1, 0),
    jump(ANY_BIT, MCL_CURRENT, 2, 0),
    answer(ALLOW),
    answer(ANSWER | Errno::INVAL.raw_os_error() as u32),
    answer(ANSWER | Errno::NOMEM.raw_os_error() as u32),
    answer(ANSWER | Errno::ALREADY.raw_os_error() as u32),
];

/// Is the calling process behind a filter that is neither this one nor one of the `known` ones, which it has
/// inherited? Kernels before 5.9 do not tell: false. Does without the heap.
pub fn is_another(known: u64) -> bool {
    count().is_some_and(|count| count > known + u64::from(is_installed()))
}

/// How many filters there are.
fn count() -> Option<u64> {
    let mut text = [0; 4096];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let status = rustix::fs::open(c"/proc/self/status", flags, Mode::empty()).ok()?;
    let length = rustix::io::read(&status, &mut text).ok()?;
    let mut lines = text[..length].split(|&byte| byte == b'\n');
    let count = lines.find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    core::str::from_utf8(count.trim_ascii()).ok()?.parse().ok()
}

fn is_installed() -> bool {
    advise_nothing(ADVICE_FOR_THE_FILTER) == Err(Errno::ALREADY)
}

/// Puts the calling thread, or all threads of its process, behind the filter, unless it is behind
/// one already. Without CAP_SYS_ADMIN that gives up what set-user-id programs could gain
/// (PR_SET_NO_NEW_PRIVS), as the kernel wants it.
///
/// # Errors
/// If there is no filter, and the kernel has guards.
pub fn install(all_threads: bool) -> Result<(), Errno> {
    if is_installed() {
        return Ok(());
    }
    let installed = match add(all_threads) {
        Err(Errno::ACCESS) => {
            rustix::thread::set_no_new_privs(true).and_then(|()| add(all_threads))
        }
        result => result,
    };
    // Where there are no guards the worst that happens is that mlockall never ends.
    let has_guards = advise_nothing(MADV_GUARD_INSTALL).is_ok();
    installed.or_else(|error| if has_guards { Err(error) } else { Ok(()) })
}

fn add(all_threads: bool) -> Result<(), Errno> {
    let filter = Filter {
        length: PROGRAM.len() as u16,
        instructions: PROGRAM.as_ptr(),
    };
    let threads = if all_threads { FLAG_ALL_THREADS } else { 0 };
    let result = call(
        SYS_SECCOMP,
        [
            SECCOMP_SET_MODE_FILTER,
            threads | FLAG_SPECULATE,
            (&raw const filter) as u64,
        ],
    )?;
    // Otherwise the id of a thread that has a filter which this one has not.
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::BUSY)
    }
}

/// The kernel looks at the advice before it looks at the range, which is empty.
fn advise_nothing(advice: u32) -> Result<(), Errno> {
    call(SYS_MADVISE, [0, 0, u64::from(advice)]).map(drop)
}

fn call(number: u32, arguments: [u64; 3]) -> Result<i64, Errno> {
    // SAFETY: madvise of an empty range changes nothing, and seccomp only reads the filter.
    unsafe { system_call(i64::from(number), arguments.map(u64::cast_signed)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, because nothing takes a filter away.
    fn behind_the_filter(check: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            install(false).unwrap();
            check();
        });
        thread.join().unwrap();
    }

    fn filters() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"));
        count.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn guards_are_refused_as_by_an_older_kernel() {
        behind_the_filter(|| {
            let guard = u64::from(MADV_GUARD_INSTALL);
            assert_eq!(advise_nothing(MADV_GUARD_INSTALL), Err(Errno::INVAL));
            assert_eq!(
                call(SYS_MADVISE | X32_BIT, [0, 0, guard]),
                Err(Errno::INVAL)
            );
            // Advice is an int: the upper half does not count.
            assert_eq!(
                call(SYS_MADVISE, [0, 0, guard | 1 << 32]),
                Err(Errno::INVAL)
            );
            // MADV_NORMAL.
            assert_eq!(advise_nothing(0), Ok(()));
        });
    }

    #[test]
    fn all_memory_cannot_be_locked_at_once() {
        behind_the_filter(|| {
            let lock = |flags: u64| call(SYS_MLOCKALL, [flags, 0, 0]);
            assert_eq!(lock(1), Err(Errno::NOMEM));
            assert_eq!(lock(3), Err(Errno::NOMEM));
            // The kernel's own answers.
            assert_eq!(lock(0), Err(Errno::INVAL));
            assert_eq!(lock(8 | 1), Err(Errno::INVAL));
            assert_eq!(lock(4), Err(Errno::INVAL));
        });
    }

    #[test]
    fn one_filter_is_enough() {
        let before = filters();
        behind_the_filter(move || {
            assert_eq!(filters(), before + 1);
            install(false).unwrap();
            assert_eq!(filters(), before + 1);
        });
        assert_eq!(filters(), before);
    }
}
