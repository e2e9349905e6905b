//! Making the agent's task.
//!
//! It shares the address space and nothing else (no CLONE_FILES, CLONE_SIGHAND or CLONE_THREAD),
//! and it is not the program's child: a task in between makes it and ends, so that it is
//! reparented to the supervisor, and `wait` in the program never sees it.

use core::ffi::c_void;
use legato_pager::uffd::TaskMain;
use rustix::io::Errno;

const SYS_RT_SIGPROCMASK: i64 = 14;
const SYS_CLONE: i64 = 56;
const SYS_WAIT4: i64 = 61;
const SYS_EXIT_GROUP: i64 = 231;
const CLONE_VM: i64 = 0x100;
const CLONE_FS: i64 = 0x200;
const CLONE_FILES: i64 = 0x400;
const CLONE_SIGHAND: i64 = 0x800;
const CLONE_THREAD: i64 = 0x1_0000;
const CLONE_VFORK: i64 = 0x4000;
const CLONE_UNTRACED: i64 = 0x0080_0000;
const WAIT_ALL: i64 = 0x4000_0000;
const SIG_SETMASK: i64 = 2;
const EXIT_SUCCESS: i32 = 0;
const EXIT_FAILURE: i32 = 1;

struct Grandchild {
    stack_top: u64,
    main: TaskMain,
    argument: *mut c_void,
}

/// Starts `main(argument)` in a task of its own, reparented to the nearest subreaper, with all
/// signals blocked.
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
    };
    let old_mask = set_signal_mask(u64::MAX);
    // SAFETY: the stacks are the caller's promise; `grandchild` outlives the task in between,
    // because CLONE_VFORK holds this one until that has ended.
    let between = unsafe {
        clone(
            CLONE_VM | CLONE_VFORK | CLONE_UNTRACED,
            between_stack_top,
            make_grandchild,
            (&raw mut grandchild).cast(),
        )
    };
    set_signal_mask(old_mask);
    let status = wait_for(error_of(between)?)?;
    if status == 0 {
        Ok(())
    } else {
        Err(Errno::AGAIN)
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
    error_of(unsafe { clone(THREAD | CLONE_UNTRACED, stack_top, main, argument) }).map(drop)
}

extern "C" fn make_grandchild(argument: *mut c_void) -> ! {
    // SAFETY: `spawn` passes its Grandchild, and waits.
    let grandchild = unsafe { &*argument.cast::<Grandchild>() };
    // SAFETY: the caller of `spawn` answers for the stack and the argument.
    let made = unsafe {
        clone(
            CLONE_VM | CLONE_UNTRACED,
            grandchild.stack_top,
            grandchild.main,
            grandchild.argument,
        )
    };
    exit(if made > 0 { EXIT_SUCCESS } else { EXIT_FAILURE })
}

/// `clone(2)` with a stack; the new task calls `main`. Returns the new task's id, or a negative
/// errno.
unsafe fn clone(flags: i64, stack_top: u64, main: TaskMain, argument: *mut c_void) -> i64 {
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
            in("r10") 0i64,
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
        unsafe { syscall4(SYS_EXIT_GROUP, i64::from(status), 0, 0, 0) };
    }
}

/// Waits for a task that sends no signal when it ends, and returns its wait status.
fn wait_for(task: i64) -> Result<i32, Errno> {
    let mut status = 0i32;
    loop {
        // SAFETY: the kernel writes one integer into `status`.
        let result = unsafe { syscall4(SYS_WAIT4, task, (&raw mut status) as i64, WAIT_ALL, 0) };
        match error_of(result) {
            Ok(_) => return Ok(status),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the mask that was set before.
fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both masks are eight bytes, the size passed. The call cannot fail with these.
    unsafe {
        syscall4(
            SYS_RT_SIGPROCMASK,
            SIG_SETMASK,
            (&raw const mask) as i64,
            (&raw mut old) as i64,
            8,
        );
    }
    old
}

unsafe fn syscall4(number: i64, a: i64, b: i64, c: i64, d: i64) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for the arguments; the registers named are those that the x86-64
    // system call convention changes.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

fn error_of(result: i64) -> Result<i64, Errno> {
    if result < 0 {
        Err(Errno::from_raw_os_error(
            i32::try_from(-result).unwrap_or(i32::MAX),
        ))
    } else {
        Ok(result)
    }
}
