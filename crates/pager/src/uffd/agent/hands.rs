//! Hands: tasks in forked children through which their pages leave.

use super::{Agent, ProviderGlue};
use alloc::format;
use rustix::fd::OwnedFd;
use rustix::process::Pid;

impl<G: ProviderGlue> Agent<G> {
    /// A hand has been started in the process `child`, and has connected to the supervisor, which
    /// passes it on.
    pub(super) fn handle_hand(&mut self, child: u32, connection: OwnedFd) {
        if let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) {
            self.pager.kernel_mut().apply(connection, child);
        }
    }

    /// To be called after the events of the address spaces were read.
    pub(super) fn attach_hands(&mut self) {
        for outcome in self.pager.kernel_mut().attach_hands() {
            if let Err(error) = outcome
                && !error.is_end_of_child()
            {
                self.notice(format!(
                    "memory of a forked child stays local until it runs a program: {error}; raise --cache if \
                     that is too much"
                ));
            }
        }
        for child in self.pager.kernel_mut().take_killed() {
            // A forked child, not the program: that one goes on.
            self.notice(format!(
                "process {}, which it has forked, was killed: pages of it were lost while they were leaving; \
                 please report it",
                child.as_raw_nonzero()
            ));
        }
    }
}
