//! The task that reads pages which are about to leave by being copied, and takes them away; and makes
//! pages the process's alone that are about to be moved.
//!
//! All of it may wait for the agent, so the agent cannot do it: `mremap` announces itself through
//! the userfaultfd and waits until that is read, and touching a page that was dropped or moved away
//! meanwhile faults. The task is a thread of the agent; it has nothing but its stack, and uses no heap.

mod mailbox;
mod words;

pub(super) use mailbox::Taken;

use super::program::threads_of;
use super::system_call::system_call;
use super::{Layout, Userfaultfd, transfer};
use alloc::boxed::Box;
use core::ffi::c_void;
use mailbox::{Mailbox, Range, Work};
use rustix::event::Timespec;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use words::RANGES_MAX;

/// Reading or copying 128 pages takes some 50 us; longer than this it takes only when one is missing, or
/// when the task gets no processor.
pub(super) const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// What runs in a new task, on its own stack. It must not return.
pub type TaskMain = extern "C" fn(*mut c_void) -> !;

/// Starts a thread of the calling process: the top of its stack, what it runs, and an argument.
///
/// Unsafe to call: the stack must be writable below its top, 16-byte aligned and used by nobody
/// else, and the argument valid for as long as the thread uses it.
pub type StartTask = unsafe fn(u64, TaskMain, *mut c_void) -> Result<(), Errno>;

/// The task's memory.
#[derive(Debug)]
struct Task {
    mailbox: Mailbox,
    process: i32,
    /// The agent's userfaultfd.
    context: RawFd,
    bounce: u64,
}

/// The agent's side.
#[derive(Debug)]
pub(super) struct Dropper {
    task: &'static Task,
}

impl Dropper {
    /// The one that runs, or a new one; None if there can be none.
    pub(super) fn running<'a>(
        this: &'a mut Option<Self>,
        layout: &Layout,
        context: &Userfaultfd,
        start_task: StartTask,
    ) -> Option<&'a Self> {
        if this.is_none() {
            *this = Self::start(layout, context, start_task).ok();
        }
        this.as_ref()
    }

    fn start(layout: &Layout, context: &Userfaultfd, start_task: StartTask) -> Result<Self, Errno> {
        let task: &'static Task = Box::leak(Box::new(Task {
            mailbox: Mailbox::new(),
            process: rustix::process::getpid().as_raw_nonzero().get(),
            context: context.fd().as_raw_fd(),
            bounce: layout.bounce(),
        }));
        let argument = core::ptr::from_ref(task).cast_mut().cast();
        // SAFETY: the layout keeps the stack for this task; its memory is never freed.
        unsafe { start_task(layout.dropper_stack_top(), serve, argument) }?;
        Ok(Self { task })
    }

    /// Lets the task end, if it has nothing to do. True once the caller has no other thread: then the
    /// task's stack is free.
    pub(super) fn end(&self) -> bool {
        self.task.mailbox.end() && threads_of(rustix::process::getpid()).len() == 1
    }
}

impl core::ops::Deref for Dropper {
    type Target = Mailbox;

    fn deref(&self) -> &Mailbox {
        &self.task.mailbox
    }
}

extern "C" fn serve(argument: *mut c_void) -> ! {
    // SAFETY: `Dropper::start` passes its task, which is never freed.
    let task = unsafe { &*argument.cast::<Task>() };
    while task.mailbox.serve_once(task) {}
    end_thread()
}

/// Ends the calling thread, running nothing more of it.
fn end_thread() -> ! {
    const SYS_EXIT: i64 = 60;
    loop {
        // SAFETY: ends the thread, of which nothing is used afterwards.
        let _ = unsafe { system_call(SYS_EXIT, [0]) };
    }
}

impl Work for Task {
    /// `process_vm_readv(2)` of this very process: memory that cannot be read is an error (EFAULT)
    /// or a short count, where a load would be SIGSEGV.
    fn read(&self, ranges: impl Iterator<Item = Range>) -> i64 {
        const SYS_PROCESS_VM_READV: i64 = 310;
        let mut remote = [[0_u64; 2]; RANGES_MAX];
        let mut length = 0;
        let mut count = 0;
        for (place, range) in remote.iter_mut().zip(ranges) {
            *place = range;
            length += range[1];
            count += 1;
        }
        let local = [self.bounce, length];
        // SAFETY: the vectors have the layout of `struct iovec`; the kernel writes into the bounce
        // pages, which are the caller's.
        let read = unsafe {
            system_call(
                SYS_PROCESS_VM_READV,
                [
                    i64::from(self.process),
                    local.as_ptr() as i64,
                    1,
                    remote.as_ptr() as i64,
                    count,
                    0,
                ],
            )
        };
        read.unwrap_or_else(|error| -i64::from(error.raw_os_error()))
    }

    fn populate(&self, [start, length]: Range) -> Result<(), Errno> {
        transfer::populate(start, length)
    }

    fn take_range(&self, [start, length]: Range, to: u64) -> Result<(), Errno> {
        // SAFETY: the agent keeps it open as long as it has work for this task.
        let context = unsafe { BorrowedFd::borrow_raw(self.context) };
        // SAFETY: the agent has the pages' content, and their threads wait for it; the area is the
        // agent's, and nothing is in it.
        unsafe { transfer::take(context, start, length, to) }
    }
}

#[cfg(test)]
mod orders;
#[cfg(test)]
mod tests;
