//! The state of a task that Legato has put into a process.
//!
//! A new task has most of what the thread has that made it (clone(2), prctl(2)), and a program may have set that
//! in a way that ends the task or keeps it from running: an instruction that raises a signal, a processor that
//! somebody else never leaves, a limit. So the task gives it all up before it does anything else.
//!
//! A state that takes a right to change, which the process does not have, stays: then the task runs on the
//! program's terms.

use super::peer::Peer;
use super::program::{close_all, raise_limit};
use super::system_call::system_call;
use core::ffi::CStr;
use core::num::NonZeroU64;
use rustix::fd::BorrowedFd;
use rustix::process::Resource;

const SYS_PERSONALITY: i64 = 135;
const SYS_PRCTL: i64 = 157;
const SYS_ARCH_PRCTL: i64 = 158;
const SYS_SCHED_SETATTR: i64 = 314;
const SYS_SCHED_GETATTR: i64 = 315;

/// `include/uapi/linux/prctl.h`.
const PR_SET_TSC: i64 = 26;
const PR_TSC_ENABLE: i64 = 1;
/// `arch/x86/include/uapi/asm/prctl.h`: may CPUID be executed?
const ARCH_SET_CPUID: i64 = 0x1012;
const PER_LINUX: i64 = 0;

/// `include/uapi/linux/sched.h`.
const SCHED_NORMAL: u32 = 0;
const SCHED_DEADLINE: u32 = 6;
const FLAG_RESET_ON_FORK: u64 = 1;

/// CPUID leaf 7: WRPKRU may be executed (Intel SDM vol. 2, CPUID).
const OSPKE: u32 = 1 << 4;
/// All exceptions masked, rounding to nearest (Intel SDM vol. 1, 10.2.3).
const MXCSR: u32 = 0x1F80;

/// The default of a thread whose makers have not set it.
const TIMER_SLACK_NANOS: NonZeroU64 = NonZeroU64::new(50_000).unwrap();

/// Limits that count for each process by itself, and of which the last two end it. (Those of address space and
/// data stay: what they limit is the program's as well.)
const LIMITS: [Resource; 6] = [
    Resource::Nofile,
    Resource::Fsize,
    Resource::Nproc,
    Resource::Sigpending,
    Resource::Cpu,
    Resource::Rttime,
];

/// `struct sched_attr` as of Linux 3.14.
#[derive(Debug, Default)]
#[repr(C)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SCHEDULING_SIZE: u32 = size_of::<Scheduling>() as u32;
const _: () = assert!(SCHEDULING_SIZE == 48);

/// Gives up what the calling task has of the thread that made it, and names the task. It has all signals
/// blocked and a table of descriptors of its own, of which none is needed.
pub fn begin(name: &CStr) {
    allow_instructions();
    close_all();
    // Out of the program's process group: signals to the group are not for this task. Fails only for the leader
    // of a group, which a new task is not.
    let _ = rustix::process::setsid();
    // For whoever lists processes. Fails only for a bad address.
    let _ = rustix::thread::set_name(name);
    // SAFETY: an integer. It cannot fail.
    let _ = unsafe { system_call(SYS_PERSONALITY, [PER_LINUX]) };
    let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NANOS));
    // Threads wait for pages that wait for this task.
    if let Some(own) = scheduling()
        && own.policy != SCHED_NORMAL
    {
        set_scheduling(&Scheduling {
            policy: SCHED_NORMAL,
            nice: own.nice,
            ..Scheduling::default()
        });
    }
    // Without the right to it the task is one like any other.
    let _ = rustix::process::setpriority_process(None, -20);
    for resource in LIMITS {
        raise_limit(resource);
    }
}

/// Lets the calling task run on the processors on which the supervisor at the other end of a socket may,
/// whichever the program has chosen for itself.
pub(super) fn run_where_supervisor_may(socket: BorrowedFd<'_>) {
    // In another pid namespace it has no number, and the program's choice stays.
    let pid = Peer::of(socket).ok().and_then(|supervisor| supervisor.pid);
    if let Some(set) = pid.and_then(|pid| rustix::thread::sched_getaffinity(Some(pid)).ok()) {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Undoes what makes the processor refuse instructions that any code may contain. Until this has returned, none
/// of those may be executed.
fn allow_instructions() {
    // SAFETY: integers. The second one fails on processors that have no such thing.
    unsafe {
        let _ = system_call(SYS_PRCTL, [PR_SET_TSC, PR_TSC_ENABLE]);
        let _ = system_call(SYS_ARCH_PRCTL, [ARCH_SET_CPUID, 1]);
    }
    let mxcsr = MXCSR;
    // SAFETY: floating point with its default settings, which compiled code relies on.
    unsafe {
        core::arch::asm!(
            "fninit",
            "ldmxcsr dword ptr [{}]",
            in(reg) &raw const mxcsr,
            options(nostack),
        );
    }
    let leaves = core::arch::x86_64::__cpuid(0).eax;
    if leaves >= 7 && core::arch::x86_64::__cpuid_count(7, 0).ecx & OSPKE != 0 {
        // SAFETY: allows accesses whatever the protection key, also of what has come from the program.
        unsafe {
            core::arch::asm!(
                "wrpkru",
                in("eax") 0,
                in("ecx") 0,
                in("edx") 0,
                options(nostack),
            );
        }
    }
}

/// Lets the calling thread make tasks as long as this lives: one with a deadline (SCHED_DEADLINE) may not,
/// unless they are to have none.
#[derive(Debug)]
pub struct MayFork {
    before: Option<Scheduling>,
}

impl MayFork {
    pub fn new() -> Self {
        let own = scheduling();
        let before =
            own.filter(|own| own.policy == SCHED_DEADLINE && own.flags & FLAG_RESET_ON_FORK == 0);
        if let Some(before) = &before {
            set_scheduling(&Scheduling {
                flags: before.flags | FLAG_RESET_ON_FORK,
                ..*before
            });
        }
        Self { before }
    }
}

impl Default for MayFork {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MayFork {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set_scheduling(before);
        }
    }
}

fn scheduling() -> Option<Scheduling> {
    let mut own = Scheduling::default();
    let arguments = [0, (&raw mut own) as i64, i64::from(SCHEDULING_SIZE), 0];
    // SAFETY: the kernel writes at most the size passed.
    unsafe { system_call(SYS_SCHED_GETATTR, arguments) }.ok()?;
    Some(own)
}

/// Without the right to it everything stays as it is.
fn set_scheduling(wanted: &Scheduling) {
    let wanted = Scheduling {
        size: SCHEDULING_SIZE,
        ..*wanted
    };
    // SAFETY: the kernel reads the size that the structure names.
    let _ = unsafe { system_call(SYS_SCHED_SETATTR, [0, (&raw const wanted) as i64, 0]) };
}
