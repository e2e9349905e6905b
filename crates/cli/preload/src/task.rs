//! Making the agent's task.
//!
//! It shares the address space and nothing else (no CLONE_FILES, CLONE_SIGHAND or CLONE_THREAD),
//! and it is not the program's child: a task in between makes it and ends, so that it is
//! reparented to the supervisor, and `wait` in the program never sees it.
//!
//! In a process that adopts orphans itself it would come back by that. There it is a child that sends no signal when
//! it ends, which `wait` does not see unless it is told to (`__WALL` and `__WCLONE` of wait(2)).

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use legato_pager::uffd::task_state::MayFork;
use legato_pager::uffd::{TaskMain, outcome, system_call};
use rustix::io::Errno;
use rustix::thread::futex;

const SYS_RT_SIGPROCMASK: i64 = 14;
const SYS_CLONE: i64 = 56;
const SYS_WAIT4: i64 = 61;
const SYS_PRCTL: i64 = 157;
const SYS_EXIT_GROUP: i64 = 231;
const PR_GET_CHILD_SUBREAPER: i64 = 37;
const CLONE_VM: i64 = 0x100;
const CLONE_FS: i64 = 0x200;
const CLONE_FILES: i64 = 0x400;
const CLONE_SIGHAND: i64 = 0x800;
const CLONE_THREAD: i64 = 0x1_0000;
const CLONE_VFORK: i64 = 0x4000;
const CLONE_CHILD_CLEARTID: i64 = 0x0020_0000;
const CLONE_CHILD_SETTID: i64 = 0x0100_0000;
const CLONE_UNTRACED: i64 = 0x0080_0000;
const WAIT_ALL: i64 = 0x4000_0000;
const SIG_SETMASK: i64 = 2;
const EXIT_SUCCESS: i32 = 0;

/// The agent's task as long as it lives: the kernel sets it, and clears it when the task will use
/// this memory no more. A part of the object, because it must not be anybody else's memory then.
static AGENT_TASK: AtomicU32 = AtomicU32::new(0);

struct Grandchild {
    stack_top: u64,
    main: TaskMain,
    argument: *mut c_void,
    /// What clone(2) returned for it.
    made: i64,
}

/// Starts `main(argument)` in a task of its own, which this process does not wait for, with all signals blocked.
///
/// # Safety
/// Both stacks must be writable memory below their tops, 16-byte aligned, used by nobody else as
/// long as the tasks live; the one in between has ended when this returns. `argument` must stay
/// valid as long as `main` uses it.
pub(crate) unsafe fn spawn(
    between_stack_top: u64,
    stack_top: u64,
    main: TaskMain,
    argument: *mut c_void,
) -> Result<(), Errno> {
    let mut grandchild = Grandchild {
        stack_top,
        main,
        argument,
        made: 0,
    };
    let old_mask = set_signal_mask(u64::MAX);
    let may_fork = MayFork::new();
    if adopts_orphans() {
        // SAFETY: the caller's promise.
        let made = unsafe { make(&grandchild) };
        drop(may_fork);
        set_signal_mask(old_mask);
        return outcome(made).map(drop);
    }
    // SAFETY: the stacks are the caller's promise; `grandchild` outlives the task in between,
    // because CLONE_VFORK holds this one until that has ended.
    let between = unsafe {
        clone(
            CLONE_VM | CLONE_VFORK | CLONE_UNTRACED,
            between_stack_top,
            make_grandchild,
            (&raw mut grandchild).cast(),
            0,
        )
    };
    drop(may_fork);
    set_signal_mask(old_mask);
    wait_for(outcome(between)?)?;
    // SAFETY: a plain variable of ours, which another task has written before it ended.
    let made = unsafe { (&raw const grandchild.made).read_volatile() };
    outcome(made).map(drop)
}

/// Waits until the task that [`spawn`] has started will never again use its stack and its code.
pub(crate) fn wait_for_end() {
    let mut last = 0;
    loop {
        let task = AGENT_TASK.load(Ordering::Acquire);
        if task == 0 {
            if last != 0 {
                // It may have been a child of this process. (If not, that is no error.)
                let _ = wait_for(last);
            }
            return;
        }
        last = i64::from(task);
        // EINTR and EAGAIN both mean: look again. The kernel wakes without the private flag.
        let _ = futex::wait(&AGENT_TASK, futex::Flags::empty(), task, None);
    }
}

/// Starts `main(argument)` in a thread of the calling task, with its signal mask.
///
/// # Safety
/// The stack must be writable memory below its top, 16-byte aligned, used by nobody else as long
/// as the thread lives. `argument` must stay valid as long as `main` uses it.
pub(crate) unsafe fn spawn_thread(
    stack_top: u64,
    main: TaskMain,
    argument: *mut c_void,
) -> Result<(), Errno> {
    const THREAD: i64 = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
    // SAFETY: the caller's promise.
    outcome(unsafe { clone(THREAD | CLONE_UNTRACED, stack_top, main, argument, 0) }).map(drop)
}

extern "C" fn make_grandchild(argument: *mut c_void) -> ! {
    // SAFETY: `spawn` passes its Grandchild, and waits.
    let grandchild = unsafe { &mut *argument.cast::<Grandchild>() };
    // SAFETY: the caller of `spawn` answers for the stack and the argument.
    grandchild.made = unsafe { make(grandchild) };
    exit(EXIT_SUCCESS)
}

/// # Safety
/// As [`spawn`].
unsafe fn make(grandchild: &Grandchild) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        clone(
            CLONE_VM | CLONE_UNTRACED | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
            grandchild.stack_top,
            grandchild.main,
            grandchild.argument,
            AGENT_TASK.as_ptr() as i64,
        )
    }
}

/// Is it the first of its pid namespace, or a subreaper?
fn adopts_orphans() -> bool {
    let mut subreaper = 0i32;
    // SAFETY: the kernel writes an integer.
    let known = unsafe {
        system_call(
            SYS_PRCTL,
            [PR_GET_CHILD_SUBREAPER, (&raw mut subreaper) as i64],
        )
    };
    rustix::process::getpid().is_init() || known.is_ok() && subreaper != 0
}

/// `clone(2)` with a stack; the new task calls `main`. Returns the new task's id, or a negative
/// errno. `task_id` is where the kernel keeps the new task's id, if the flags ask for that.
unsafe fn clone(
    flags: i64,
    stack_top: u64,
    main: TaskMain,
    argument: *mut c_void,
    task_id: i64,
) -> i64 {
    let result: i64;
    // SAFETY: the new task starts on its own stack with the registers set here and never returns
    // into this frame; in the old task only the registers named below change.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") SYS_CLONE => result,
            in("rdi") flags,
            in("rsi") stack_top,
            in("rdx") 0i64,
            in("r10") task_id,
            in("r8") 0i64,
            in("r12") argument,
            in("r13") main,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Ends every thread of the calling process, running nothing of it.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends the process; nothing of it is used afterwards.
        let _ = unsafe { system_call(SYS_EXIT_GROUP, [i64::from(status)]) };
    }
}

/// Waits for a task that sends no signal when it ends.
fn wait_for(task: i64) -> Result<(), Errno> {
    loop {
        // SAFETY: no status is asked for.
        match unsafe { system_call(SYS_WAIT4, [task, 0, WAIT_ALL, 0]) } {
            // Another thread of the program may wait for just anything (`__WALL`).
            Ok(_) | Err(Errno::CHILD) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the mask that was set before.
fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both masks are eight bytes, the size passed. The call cannot fail with these.
    let _ = unsafe {
        system_call(
            SYS_RT_SIGPROCMASK,
            [
                SIG_SETMASK,
                (&raw const mask) as i64,
                (&raw mut old) as i64,
                8,
            ],
        )
    };
    old
}
