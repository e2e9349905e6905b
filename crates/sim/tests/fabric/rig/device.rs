//! An RDMA device: the kernel's `rdma_rxe` in the emulated guest (`scripts/rdma-guest/beside`).

use super::net::Net;
use legato_base::Time;
use legato_providers::{IbverbsProvider, Pollable as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;

/// Where the device is.
pub(crate) const GUEST: [u8; 4] = [10, 77, 0, 2];
/// The kernel gets the one processor for so long, or until it has something to say.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};
/// When it has had nothing to say so often, it has nothing under way: what takes it longest is a
/// connection, some 5 ms.
const LOOKS: u32 = 10;

/// Two openings of the device. Time goes on when nothing comes for a while.
#[derive(Debug)]
pub(crate) struct DeviceNet {
    now: Time,
    /// With those left out on which something waits that a side leaves there.
    descriptors: Vec<(OwnedFd, bool)>,
    /// Since a side had something to do.
    looks: u32,
}

impl DeviceNet {
    pub(crate) fn between(nics: [&IbverbsProvider; 2]) -> Self {
        let mut descriptors = Vec::new();
        for nic in nics {
            nic.descriptors(&mut descriptors);
        }
        let descriptors = descriptors.into_iter();
        let descriptors = descriptors.map(|fd| (fd.try_clone_to_owned().unwrap(), false));
        Self {
            now: Time::from_nanos(1),
            descriptors: descriptors.collect(),
            looks: 0,
        }
    }

    fn look(&mut self) {
        let mut waited: Vec<_> = self
            .descriptors
            .iter_mut()
            .filter(|(_, is_left)| !is_left)
            .collect();
        let polled = waited.iter();
        let mut polled: Vec<_> = polled
            .map(|(fd, _)| PollFd::new(fd, PollFlags::IN))
            .collect();
        poll(&mut polled, Some(&LOOK)).unwrap();
        let came: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        for ((_, is_left), came) in waited.iter_mut().zip(came) {
            *is_left = came;
        }
    }
}

impl Net for DeviceNet {
    type Nic = IbverbsProvider;

    fn now(&self) -> Time {
        self.now
    }

    fn next_event_time(&self) -> Option<Time> {
        None
    }

    fn advance_to(&mut self, time: Time) {
        if self.looks < LOOKS {
            self.looks += 1;
            self.look();
        } else {
            self.looks = 0;
            self.now = self.now.max(time);
        }
    }

    fn stirred(&mut self) {
        self.looks = 0;
        for (_, is_left) in &mut self.descriptors {
            *is_left = false;
        }
    }
}
