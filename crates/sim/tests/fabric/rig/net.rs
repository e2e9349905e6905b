//! What carries the two fabrics.

use legato_base::Time;
use legato_providers::{Pollable as _, RoceProvider, ShmProvider};
use legato_sim::fault::Link;
use legato_sim::provider::{SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{Address, Provider};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;

/// Its time is the test's.
pub(crate) trait Net {
    type Nic: Provider;

    fn now(&self) -> Time;
    /// When something happens by itself.
    fn next_event_time(&self) -> Option<Time>;
    fn advance_to(&mut self, time: Time);
    /// A side had something to do.
    fn stirred(&mut self) {}
}

impl Net for SimNetwork {
    type Nic = SimProvider;

    fn now(&self) -> Time {
        Self::now(self)
    }

    fn next_event_time(&self) -> Option<Time> {
        Self::next_event_time(self)
    }

    fn advance_to(&mut self, time: Time) {
        Self::advance_to(self, time);
    }
}

/// Shared memory of one process with itself. Nothing takes time there: what one provider has done
/// the other finds when it looks.
#[derive(Debug)]
pub(crate) struct ShmNet {
    pub(crate) now: Time,
}

impl Net for ShmNet {
    type Nic = ShmProvider;

    fn now(&self) -> Time {
        self.now
    }

    fn next_event_time(&self) -> Option<Time> {
        None
    }

    fn advance_to(&mut self, time: Time) {
        self.now = self.now.max(time);
    }
}

/// Two software RoCE NICs on the loopback interface, which mostly delivers while the sender sends; time
/// goes on when nothing comes for a moment. A side that stands still leaves what comes to it where it is.
#[derive(Debug)]
pub(crate) struct RoceNet {
    now: Time,
    descriptors: [OwnedFd; 2],
    /// Where something waited the last time that nothing else happened.
    waited: [bool; 2],
}

impl RoceNet {
    pub(crate) fn between(nics: [&RoceProvider; 2]) -> Self {
        let descriptors = nics.map(|nic| {
            let mut descriptors = Vec::new();
            nic.descriptors(&mut descriptors);
            descriptors[0].try_clone_to_owned().unwrap()
        });
        Self {
            now: Time::from_nanos(1),
            descriptors,
            waited: [false; 2],
        }
    }

    fn waits(&self) -> [bool; 2] {
        let mut polled = self
            .descriptors
            .each_ref()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000,
        };
        poll(&mut polled, Some(&moment)).unwrap();
        polled.map(|descriptor| !descriptor.revents().is_empty())
    }
}

impl Net for RoceNet {
    type Nic = RoceProvider;

    fn now(&self) -> Time {
        self.now
    }

    fn next_event_time(&self) -> Option<Time> {
        None
    }

    fn advance_to(&mut self, time: Time) {
        let waits = self.waits();
        let is_new = |side: usize| waits[side] && !self.waited[side];
        if !is_new(0) && !is_new(1) {
            self.now = self.now.max(time);
        }
        self.waited = waits;
    }
}

/// The way from one machine to another.
pub(crate) fn link(network: &SimNetwork, from: &str, to: &str) -> Link {
    let number = |name| network.machine_number(name).unwrap();
    Link {
        from: number(from),
        to: number(to),
    }
}

pub(crate) fn sim_address() -> Address {
    Address::Sim("port".to_owned())
}

/// A network where nobody is told that a machine died: silence is all that its peers hear.
pub(crate) fn quiet() -> SimNetworkConfig {
    SimNetworkConfig {
        detection_time: None,
        ..SimNetworkConfig::default()
    }
}
