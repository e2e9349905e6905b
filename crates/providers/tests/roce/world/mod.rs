//! Two software RoCE NICs in one thread, for the conformance suite.

use crate::netns::Link;
use legato_base::{Duration, Time};
use legato_providers::{Pollable, RoceProvider};
use legato_verbs::conformance::{Advance, Facts, Side, World};
use legato_verbs::{Address, Provider};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// The network between the NICs.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) listen: fn(SocketAddr) -> Address,
    pub(crate) left: SocketAddr,
    pub(crate) right: SocketAddr,
    /// The right NIC is at its far end. None if both are in the thread's namespace.
    pub(crate) link: Option<Rc<Link>>,
    /// Whatever the NIC waits for is over by then.
    pub(crate) bound: Duration,
    /// Nothing that is under way takes so long.
    pub(crate) quiet: Duration,
    pub(crate) cycles: u32,
    pub(crate) loses: bool,
}

pub(crate) struct RoceWorld {
    left: RoceProvider,
    right: RoceProvider,
    network: Network,
    ports: u16,
    begun: Instant,
    wait_until: Time,
    deadline: Time,
    /// What the next call to a provider is for. It makes its sockets where its thread is.
    at_far: bool,
}

impl Network {
    /// Runs `body` where the right NIC is.
    fn far<T>(&self, body: impl FnOnce() -> T) -> T {
        match &self.link {
            Some(link) => link.far(body),
            None => body(),
        }
    }
}

impl RoceWorld {
    pub(crate) fn new(network: Network) -> Self {
        let open = |place| RoceProvider::open(&(network.listen)(place)).unwrap();
        Self {
            left: open(network.left),
            right: network.far(|| open(network.right)),
            network,
            ports: 0,
            begun: Instant::now(),
            wait_until: Time::ZERO,
            deadline: Time::ZERO,
            at_far: false,
        }
    }

    fn now(&self) -> Time {
        let nanos = self.begun.elapsed().as_nanos() as u64;
        Time::ZERO + Duration::from_nanos(nanos + 1)
    }

    /// Brings the thread to the namespace of one of the NICs.
    fn go(&mut self, far: bool) {
        if let Some(link) = &self.network.link
            && self.at_far != far
        {
            link.enter(far);
            self.at_far = far;
        }
    }

    fn progress(&mut self) {
        let now = self.now();
        self.go(false);
        let left = self.left.progress(now);
        self.go(true);
        self.deadline = left.min(self.right.progress(now));
    }

    /// Sleeps until there is something to do, or for so long.
    fn sleep(&mut self, most: Duration) {
        self.go(false);
        let left = self.left.set_sleeping(true);
        self.go(true);
        if !left || !self.right.set_sleeping(true) {
            return;
        }
        let now = self.now();
        let wait = self.deadline.since(now).min(most);
        let mut descriptors = Vec::new();
        self.left.descriptors(&mut descriptors);
        self.right.descriptors(&mut descriptors);
        let mut polled: Vec<_> = descriptors
            .into_iter()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: wait.as_nanos() as i64,
        };
        let _ = poll(&mut polled, Some(&timeout));
        self.left.set_sleeping(false);
        self.right.set_sleeping(false);
    }
}

impl World for RoceWorld {
    fn left(&mut self) -> &mut dyn Provider {
        self.go(false);
        &mut self.left
    }

    fn right(&mut self) -> &mut dyn Provider {
        self.go(true);
        &mut self.right
    }

    fn fresh_address(&mut self, of: Side) -> Address {
        self.ports += 1;
        let host = match of {
            Side::Left => self.network.left.ip(),
            Side::Right => self.network.right.ip(),
        };
        (self.network.listen)(SocketAddr::new(host, 20_000 + self.ports))
    }

    fn begin_wait(&mut self) {
        self.wait_until = self.now() + self.network.bound;
    }

    fn advance(&mut self) -> Advance {
        self.progress();
        if self.now() >= self.wait_until {
            return Advance::Exhausted;
        }
        self.sleep(Duration::from_millis(1));
        Advance::Stepped
    }

    fn settle(&mut self) {
        let end = self.now() + self.network.quiet;
        while self.now() < end {
            self.progress();
            self.sleep(Duration::from_millis(1));
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            cycles: self.network.cycles,
            reads_are_repeated: self.network.loses,
            ..Facts::IDEAL
        }
    }
}

impl Drop for RoceWorld {
    fn drop(&mut self) {
        self.go(false);
    }
}
