//! How a process waits for its provider: poll, spin for a bounded time while there is work, then
//! sleep, having told the peers so.

use legato_base::{Duration, Time};
use legato_fabric::Turn;
use legato_providers::Pollable;
use legato_verbs::Provider;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::time::Instant;

/// How long to poll on after the last progress. A peer that answers at once does so within a few
/// microseconds; a wake-up through the kernel costs five to ten.
const SPIN: Duration = Duration::from_micros(20);

/// Monotonic time since the clock was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        // 64 bits of nanoseconds last for 584 years.
        Time::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// What is waited for.
pub(crate) trait Nic: Provider + Pollable {}

impl<P: Provider + Pollable> Nic for P {}

/// Waits between the turns of one loop.
#[derive(Debug)]
pub(crate) struct Waiter {
    clock: Clock,
    last_progress: Time,
}

impl Waiter {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last_progress: Time::ZERO,
        }
    }

    /// Returns when another turn may be worth it: because of a provider, of one of the `others`
    /// becoming readable, or of the deadline.
    pub(crate) fn wait(
        &mut self,
        nics: &mut [&mut dyn Nic],
        turn: Turn,
        others: &[BorrowedFd<'_>],
    ) {
        let now = self.clock.now();
        if turn.progressed {
            self.last_progress = now;
        }
        if now.since(self.last_progress) < SPIN {
            std::hint::spin_loop();
            return;
        }
        // Each is told, though one that has something to do is enough.
        let busy = nics
            .iter_mut()
            .filter_map(|nic| (!nic.set_sleeping(true)).then_some(()));
        if busy.count() == 0 {
            sleep(nics, others, turn.deadline, now);
        }
        for nic in nics {
            nic.set_sleeping(false);
        }
    }
}

fn sleep(nics: &[&mut dyn Nic], others: &[BorrowedFd<'_>], deadline: Time, now: Time) {
    let mut wanted = others.to_vec();
    nics.iter().for_each(|nic| nic.descriptors(&mut wanted));
    let mut descriptors: Vec<_> = wanted
        .iter()
        .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
        .collect();
    let left = deadline.since(now).as_nanos();
    let timeout = (deadline != Time::NEVER).then_some(Timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    // Interrupted by a signal: the loop looks at everything again anyhow.
    let _ = poll(&mut descriptors, timeout.as_ref());
}
