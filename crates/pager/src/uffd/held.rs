//! Memory that is held for when its agent dies: what that process's supervisor and keeper do.

use super::Userfaultfd;
use super::message::Message;
use alloc::vec::Vec;
use legato_base::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// A userfaultfd that another process serves. As long as anybody holds it, pages that have left the
/// memory stay missing; when the last holder is gone they read as zeros.
#[derive(Debug)]
pub struct HeldMemory {
    context: Userfaultfd,
}

impl HeldMemory {
    pub const fn new(userfaultfd: OwnedFd) -> Self {
        Self {
            context: Userfaultfd::from_descriptor(userfaultfd),
        }
    }

    /// True while anybody uses the memory. Disturbs nothing. Kernels before 5.13 do not tell: true.
    pub fn is_used(&self) -> bool {
        self.context.has_address_space()
    }

    /// Lets every access that waits for a page fail (SIGBUS, or EFAULT in a system call), and changes of
    /// the address space go on. Returns the memory of children that were forked meanwhile. Does not
    /// block. Only for memory whose agent is gone.
    ///
    /// Before Linux 6.6 there is no such answer, and who waits for a page goes on waiting.
    pub fn refuse_accesses(&self) -> Vec<Self> {
        let (mut messages, mut children) = (Vec::new(), Vec::new());
        // All of them first: no access can be answered while a change has not been read.
        while let Some(message) = self.context.read_one() {
            messages.push(message);
        }
        for message in messages {
            match message {
                Message::Fault {
                    page, protected, ..
                } => {
                    // Whatever cannot be done now is announced again by whoever waits.
                    let _ = self.context.unmark(page.address(), PAGE_SIZE as u64);
                    if !protected {
                        let _ = self.context.poison(page);
                    }
                    let _ = self.context.wake(page);
                }
                Message::Forked { child } => children.push(Self {
                    context: child.context,
                }),
                Message::Remapped { .. } | Message::Removed { .. } => {}
            }
        }
        children
    }
}

impl AsFd for HeldMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.fd()
    }
}
