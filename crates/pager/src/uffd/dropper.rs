//! The task that reads pages which are about to leave by being copied, and drops them.
//!
//! Both may wait for the agent, so the agent cannot do them: `madvise` announces itself through
//! the userfaultfd and waits until that is read, and reading a page that was dropped meanwhile
//! faults. The task is a thread of the agent; it has nothing but its stack, and uses no heap.

use super::Layout;
use alloc::boxed::Box;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::futex;

/// What runs in a new task, on its own stack. It must not return.
pub type TaskMain = extern "C" fn(*mut c_void) -> !;

/// Starts a thread of the calling process: the top of its stack, what it runs, and an argument.
///
/// Unsafe to call: the stack must be writable below its top, 16-byte aligned and used by nobody
/// else, and the argument valid for as long as the thread uses it.
pub type StartTask = unsafe fn(u64, TaskMain, *mut c_void) -> Result<(), Errno>;

const IDLE: u32 = 0;
const READ: u32 = 1;
const READ_DONE: u32 = 2;
const DROP: u32 = 3;
const DROP_DONE: u32 = 4;
/// The agent does not wait for what is being read any more.
const CANCELLED: u32 = 5;

/// What the agent and the task share.
#[derive(Debug)]
struct Mailbox {
    state: AtomicU32,
    process: i32,
    bounce: u64,
    start: AtomicU64,
    length: AtomicU64,
    /// Bytes read, or 0 when dropped, or a negative errno.
    result: AtomicI64,
}

/// The agent's side.
#[derive(Debug)]
pub(super) struct Dropper {
    mailbox: &'static Mailbox,
}

impl Dropper {
    pub(super) fn start(layout: &Layout, start_task: StartTask) -> Result<Self, Errno> {
        let stack_top = layout.open_dropper_stack()?;
        let mailbox: &'static Mailbox = Box::leak(Box::new(Mailbox {
            state: AtomicU32::new(IDLE),
            process: rustix::process::getpid().as_raw_nonzero().get(),
            bounce: layout.bounce(),
            start: AtomicU64::new(0),
            length: AtomicU64::new(0),
            result: AtomicI64::new(0),
        }));
        let argument = core::ptr::from_ref(mailbox).cast_mut().cast();
        // SAFETY: the layout keeps the stack for this task; the mailbox is never freed.
        unsafe { start_task(stack_top, serve, argument) }?;
        Ok(Self { mailbox })
    }

    /// False while the task still reads what was given up.
    pub(super) fn is_idle(&self) -> bool {
        self.mailbox.state.load(Ordering::Acquire) == IDLE
    }

    /// Reads a range into the bounce pages; returns how many bytes could be read. None if that
    /// takes longer than `patience`: then a page is missing, and its fault must be served first.
    pub(super) fn read(&self, start: u64, length: u64, patience: Timespec) -> Option<u64> {
        self.post(READ, start, length);
        let state = &self.mailbox.state;
        // EINTR, EAGAIN and ETIMEDOUT are all answered by looking. Twice, because a wake-up may be
        // left over from the work before.
        for _ in 0..2 {
            if state.load(Ordering::Acquire) == READ {
                let _ = futex::wait(state, futex::Flags::PRIVATE, READ, Some(&patience));
            }
        }
        let given_up = state
            .compare_exchange(READ, CANCELLED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if given_up {
            return None;
        }
        Some(u64::try_from(self.mailbox.result.load(Ordering::Acquire)).unwrap_or(0))
    }

    /// Lets the task drop the range that it read, or a part of it. The agent must go on reading
    /// its userfaultfd until [`Self::dropped`].
    pub(super) fn drop_pages(&self, start: u64, length: u64) {
        self.post(DROP, start, length);
    }

    /// Did it end, and how? Waits for up to `patience`.
    pub(super) fn dropped(&self, patience: Timespec) -> Option<Result<(), Errno>> {
        let state = &self.mailbox.state;
        if state.load(Ordering::Acquire) == DROP && patience != Timespec::default() {
            let _ = futex::wait(state, futex::Flags::PRIVATE, DROP, Some(&patience));
        }
        if state.load(Ordering::Acquire) == DROP {
            return None;
        }
        let result = self.mailbox.result.load(Ordering::Acquire);
        self.finish();
        Some(match i32::try_from(-result) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(Errno::from_raw_os_error(errno)),
            Err(_) => Err(Errno::INVAL),
        })
    }

    /// Nothing more is to be done with what was read.
    pub(super) fn finish(&self) {
        self.mailbox.state.store(IDLE, Ordering::Release);
    }

    fn post(&self, work: u32, start: u64, length: u64) {
        self.mailbox.start.store(start, Ordering::Relaxed);
        self.mailbox.length.store(length, Ordering::Relaxed);
        change(&self.mailbox.state, work);
    }
}

fn change(state: &AtomicU32, to: u32) {
    state.store(to, Ordering::Release);
    wake(state);
}

fn wake(state: &AtomicU32) {
    // Fails only for a bad address.
    let _ = futex::wake(state, futex::Flags::PRIVATE, 1);
}

extern "C" fn serve(argument: *mut c_void) -> ! {
    // SAFETY: `Dropper::start` passes its mailbox, which is never freed.
    let mailbox = unsafe { &*argument.cast::<Mailbox>() };
    loop {
        let state = mailbox.state.load(Ordering::Acquire);
        let start = mailbox.start.load(Ordering::Relaxed);
        let length = mailbox.length.load(Ordering::Relaxed);
        match state {
            READ => {
                let read = read_memory(mailbox.process, mailbox.bounce, start, length);
                mailbox.result.store(read, Ordering::Release);
                let wanted = mailbox.state.compare_exchange(
                    READ,
                    READ_DONE,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                if wanted.is_ok() {
                    wake(&mailbox.state);
                } else {
                    mailbox.state.store(IDLE, Ordering::Release);
                }
            }
            DROP => {
                // SAFETY: the agent has the pages' content, and their threads wait for it.
                let dropped = unsafe {
                    rustix::mm::madvise(start as *mut _, length as usize, Advice::LinuxDontNeed)
                };
                let result = dropped.map_or_else(|error| -i64::from(error.raw_os_error()), |()| 0);
                mailbox.result.store(result, Ordering::Release);
                change(&mailbox.state, DROP_DONE);
            }
            // Given up before it was begun.
            CANCELLED => mailbox.state.store(IDLE, Ordering::Release),
            other => {
                // EINTR and EAGAIN both mean: look again.
                let _ = futex::wait(&mailbox.state, futex::Flags::PRIVATE, other, None);
            }
        }
    }
}

/// `process_vm_readv(2)` of this very process: memory that cannot be read is an error (EFAULT) or
/// a short count, where a load would be SIGSEGV.
fn read_memory(process: i32, into: u64, from: u64, length: u64) -> i64 {
    const SYS_PROCESS_VM_READV: i64 = 310;
    let (local, remote) = ([into, length], [from, length]);
    let result: i64;
    // SAFETY: the two vectors have the layout of `struct iovec`; the kernel writes into the
    // bounce pages, which are the caller's. The registers are those that the x86-64 system call
    // convention changes.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") SYS_PROCESS_VM_READV => result,
            in("rdi") i64::from(process),
            in("rsi") local.as_ptr(),
            in("rdx") 1i64,
            in("r10") remote.as_ptr(),
            in("r8") 1i64,
            in("r9") 0i64,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
