//! A fabric and its provider, driven with a real clock.

use legato_base::{Duration, Time};
use legato_fabric::{Buffer, Fabric, FabricConfig, Turn};
use legato_providers::{AnyProvider, Pollable as _};
use legato_verbs::Provider as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Instant;

pub(super) struct Station<B: Buffer> {
    pub(super) provider: AnyProvider,
    pub(super) fabric: Fabric<B>,
    origin: Instant,
}

impl<B: Buffer> Station<B> {
    pub(super) fn new(mut provider: AnyProvider, config: FabricConfig) -> Self {
        Self {
            fabric: Fabric::new(&mut provider, config).unwrap(),
            provider,
            origin: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }

    pub(super) fn after(&self, time: Duration) -> Time {
        self.now() + time
    }

    /// One turn of the fabric. Its events wait then.
    pub(super) fn turn(&mut self) -> Turn {
        let now = self.now();
        self.fabric.turn(&mut self.provider, now)
    }

    /// Sleeps until something is due or comes, `end` at the latest.
    pub(super) fn rest(&mut self, turn: Turn, end: Time) {
        if turn.progressed || !self.provider.set_sleeping(true) {
            return;
        }
        let left = turn.deadline.min(end).since(self.now()).as_nanos();
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        };
        let mut wanted = Vec::new();
        self.provider.descriptors(&mut wanted);
        let mut waited: Vec<_> = wanted
            .iter()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
            .collect();
        poll(&mut waited, Some(&timeout)).unwrap();
        self.provider.set_sleeping(false);
    }
}
