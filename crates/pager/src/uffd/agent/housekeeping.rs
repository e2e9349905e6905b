//! What is done now and then, and how the agent sleeps.

use super::{Agent, ProviderGlue, SLEEP_MAX, now};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration as StdDuration;
use legato_base::wire::stats::STATS_SIZE;
use legato_base::{Duration, Time};
use legato_verbs::Provider;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;

/// How often counters are published and the program is looked at, while the agent is awake.
const HOUSEKEEPING: Duration = Duration::from_millis(20);
/// How often every waiting thread is let try again while the pager knows of none: a bound on what
/// a wake-up that got lost can cost.
const WAKE_ALL: Duration = Duration::from_millis(100);

impl<G: ProviderGlue> Agent<G> {
    pub(super) fn keep_house(&mut self, time: Time) {
        self.housekeeping_at = time + HOUSEKEEPING;
        self.publish();
        self.pager.kernel().keep_own_unmerged();
        if !self.pager.is_connecting() {
            // A node that is lost stays lost, so nobody connects any more (P-85).
            self.fabric.forget_keys();
        }
        if time >= self.wake_all_at && !self.pager.is_busy() {
            // As far as the pager knows nobody waits. Whoever does would wait for ever; so it
            // tries again, and either finds its page or faults anew.
            self.wake_all_at = time + WAKE_ALL;
            self.pager.kernel().wake_all();
        }
        // A child may be among what was read and waits.
        if !self.is_unused && !self.pager.kernel().is_unsettled() {
            self.look_at_users();
        }
    }

    /// Is this memory used still, and by whom?
    fn look_at_users(&mut self) {
        let kernel = self.pager.kernel_mut();
        if self.users.look(now) {
            kernel.set_sharers(self.users.sharers());
        }
        if !self.users.seem_gone() {
            return;
        }
        if !kernel.end_dropper() {
            // It needs a moment for that.
            self.housekeeping_at = now();
            return;
        }
        self.is_unused = self.users.are_gone();
        if self.is_unused && self.pager.children() > 0 {
            self.pager.close_own_space();
        }
    }

    pub(super) fn publish(&mut self) {
        let [memory, peak] = self.heap.bytes();
        self.pager.note_own_memory(memory, peak);
        self.pager.note_idle_poll(self.idle_poll.log(now()));
        self.pager.note_spins(self.spin.log());
        let mut bytes = vec![0u8; STATS_SIZE];
        self.pager.stats().write_to(&mut bytes);
        // A memfd of that size takes it whole.
        let _ = rustix::io::pwrite(&self.stats, &bytes, 0);
    }

    pub(super) fn sleep(&mut self, until: Time) {
        self.pager.kernel_mut().discard_staging(1);
        if !self.provider.set_sleeping(true) {
            self.provider.set_sleeping(false);
            return;
        }
        let housekeeping_late = {
            let mut waits: Vec<BorrowedFd<'_>> = self.pager.kernel().descriptors().collect();
            G::wait_on(&self.provider, &mut waits);
            let urgent = waits.len();
            if !self.supervisor_gone {
                waits.push(self.supervisor.fd());
            }
            waits.extend(self.users.descriptors());
            let mut polled: Vec<PollFd<'_>> = waits
                .into_iter()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let timeout = timespec(until.since(now()));
            // Errors (EINTR) are like a wake-up: everything is looked at again.
            let _ = rustix::event::poll(&mut polled, Some(&timeout));
            polled[urgent..].iter().any(|fd| !fd.revents().is_empty())
        };
        self.provider.set_sleeping(false);
        self.pager.hear_of_connections();
        if housekeeping_late {
            self.housekeeping_at = Time::ZERO;
            self.listen_soon();
        }
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    let duration = StdDuration::from_nanos(duration.as_nanos().min(SLEEP_MAX.as_nanos()));
    Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
