//! One round of the agent's loop: what the kernel had to say is followed, faults are served, and the
//! pager works. The agent in a real program and the simulated one go round here; only how they wait
//! for the next round differs.

use super::{Fault, Pager, PagerFabric, SpaceEvent};
use crate::{Kernel, SpaceId, SpacePage};
use alloc::vec::Vec;
use legato_base::Time;

/// What was read of the kernel at once.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Changes of the address spaces, in order. All of them came before the faults.
    pub events: Vec<SpaceEvent>,
    /// Missing pages that threads wait for.
    pub faults: Vec<SpacePage>,
    /// Pages written that were to be dropped.
    pub written: Vec<SpacePage>,
    /// Spaces that are new.
    pub children: Vec<SpaceId>,
}

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The next one at once may do more.
    pub worked: bool,
    /// When the next one is due at the latest.
    pub deadline: Time,
}

impl<K: Kernel> Pager<K> {
    /// Goes round once. `net.now` is when the kernel was read; `clock` tells how long faults take.
    pub fn round(
        &mut self,
        incoming: Incoming,
        net: &mut PagerFabric<'_>,
        clock: impl Fn() -> Time,
    ) -> Round {
        let has_come = !incoming.faults.is_empty() || !incoming.events.is_empty();
        let at = net.now;
        self.looks.outdate();
        for event in incoming.events {
            self.handle_space_event(event, net);
        }
        for page in incoming.written {
            self.handle_used(page);
        }
        for page in incoming.faults {
            self.handle_fault(Fault { page, at }, net);
            let served = clock();
            self.account_served(served);
            net.now = served;
        }
        let deadline = self.turn(has_come, net);
        // Not only then: what was fetched may have come without news of the program.
        if has_come || self.waiting.has_served() {
            self.account_served(clock());
        }
        Round {
            worked: has_come || self.has_progressed() || self.kernel.has_backlog(),
            deadline,
        }
    }

    /// Records how long the faults took that have been served since the last call.
    fn account_served(&mut self, now: Time) {
        for at in self.waiting.take_served() {
            self.stats.fault_ns.record(now.since(at).as_nanos());
        }
    }

    /// False if the last turn has shown nothing new, so that the next one at once will not either.
    const fn has_progressed(&self) -> bool {
        self.progressed || self.local.owes_eviction
    }
}
