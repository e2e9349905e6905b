//! Two openings of the guest's device in one thread.

use legato_base::{Duration, Time};
use legato_providers::{IbverbsProvider, Pollable};
use legato_verbs::conformance::{Advance, Facts, Side, World};
use legato_verbs::{Address, CompletionStatus, Provider};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

/// Of the guest's dummy interface.
pub(crate) const HOST: [u8; 4] = [10, 77, 0, 1];
/// Longer than the provider waits for an answer to a connect (10 s). The processor is emulated.
const BOUND: Duration = Duration::from_secs(20);
/// Nothing that is under way takes so long there.
const QUIET: Duration = Duration::from_millis(150);

/// Ports of listeners: each its own, for the kernel keeps one for a moment.
static PORTS: AtomicU16 = AtomicU16::new(20_000);

pub(crate) fn fresh_address() -> Address {
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    Address::Verbs(SocketAddr::from((HOST, port)))
}

pub(crate) fn open() -> IbverbsProvider {
    let address = Address::Verbs(SocketAddr::from((HOST, 0)));
    IbverbsProvider::open(&address).unwrap()
}

pub(crate) struct DeviceWorld {
    pub(crate) left: IbverbsProvider,
    pub(crate) right: IbverbsProvider,
    begun: Instant,
    /// By so much the providers' clock is ahead.
    pub(crate) ahead: Duration,
    wait_until: Time,
}

impl DeviceWorld {
    pub(crate) fn new() -> Self {
        Self {
            left: open(),
            right: open(),
            begun: Instant::now(),
            ahead: Duration::ZERO,
            wait_until: Time::ZERO,
        }
    }

    fn now(&self) -> Time {
        let nanos = self.begun.elapsed().as_nanos() as u64;
        Time::ZERO + Duration::from_nanos(nanos + 1) + self.ahead
    }

    fn progress(&mut self) {
        let now = self.now();
        self.left.progress(now);
        self.right.progress(now);
    }

    /// Gives the kernel the processor, until it says something or for a millisecond.
    fn rest(&self) {
        let mut descriptors = Vec::new();
        self.left.descriptors(&mut descriptors);
        self.right.descriptors(&mut descriptors);
        let mut polled: Vec<_> = descriptors
            .into_iter()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        poll(&mut polled, Some(&timeout)).unwrap();
    }
}

impl World for DeviceWorld {
    fn left(&mut self) -> &mut dyn Provider {
        &mut self.left
    }

    fn right(&mut self) -> &mut dyn Provider {
        &mut self.right
    }

    fn fresh_address(&mut self, _: Side) -> Address {
        fresh_address()
    }

    fn begin_wait(&mut self) {
        self.wait_until = self.now() + BOUND;
    }

    fn advance(&mut self) -> Advance {
        self.progress();
        if self.now() >= self.wait_until {
            return Advance::Exhausted;
        }
        self.rest();
        Advance::Stepped
    }

    fn settle(&mut self) {
        let end = self.now() + QUIET;
        while self.now() < end {
            self.progress();
            self.rest();
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            cycles: 25,
            // Of rxe (`docs/ibverbs.md`).
            too_long_at_sender: CompletionStatus::RemoteOperation,
            too_long_at_receiver: CompletionStatus::LocalQueuePairOperation,
            ..Facts::IDEAL
        }
    }
}
