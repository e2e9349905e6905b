//! Where devices differ: named sets of deviations.

use core::str::FromStr;
use legato_base::{Duration, Random};
use legato_transport::adapter::{
    self, LastWorkRequestEvents, OverrunEnds, OverrunEvents, VendorErrors,
};
use legato_transport::nic::{CompletionQueuePolicy, Destroyed, Overrun, Reclaim};
use legato_transport::rc::Policy;

/// How one kind of NIC behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Personality {
    pub name: &'static str,
    pub adapter: adapter::Policy,
    /// Numbers count from here in each incarnation; otherwise from anywhere.
    pub first_number: Option<u32>,
    /// By chance what it has to tell is lost, or comes again, or late.
    pub careless: Option<Careless>,
    /// Each so-many-th change to the Error state fails with EIO and changes nothing.
    pub error_change_fails: Option<u32>,
    /// What the device does to the buffers of requests that it has given back.
    pub late_writes: Option<LateWrites>,
}

/// What may become of completions and events on their way to their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Careless {
    pub sends: Mishaps,
    pub receives: Mishaps,
    /// Not of those that a program waits for: a peer that asks, and a connection that is there.
    pub events: Mishaps,
    /// What is late or comes again comes up to so much later.
    pub later: Duration,
}

/// How often something goes wrong, in a thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mishaps {
    pub lost: u16,
    pub again: u16,
    pub late: u16,
}

impl Mishaps {
    pub const NONE: Self = Self {
        lost: 0,
        again: 0,
        late: 0,
    };
}

/// A DMA engine that writes into buffers that are not its own any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateWrites {
    /// For so long after the request was given back.
    pub lasts: Duration,
    /// How often, at most.
    pub interval: Duration,
    /// Not while the link is down.
    pub stops_with_link: bool,
}

/// What becomes of one of the things that a careless device tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    Lost,
    Again(Duration),
    Late(Duration),
}

impl Careless {
    pub(super) fn draw(self, mishaps: Mishaps, random: &mut Random) -> Option<Mishap> {
        let Mishaps { lost, again, late } = mishaps;
        let draw = random.below(1000) as u16;
        let later = Duration::from_nanos(random.below(self.later.as_nanos().max(1)));
        match draw {
            _ if draw < lost => Some(Mishap::Lost),
            _ if draw < lost + again => Some(Mishap::Again(later)),
            _ if draw < lost + again + late => Some(Mishap::Late(later)),
            _ => None,
        }
    }
}

impl Personality {
    /// As the specification says.
    pub const IDEAL: Self = Self {
        name: "ideal",
        adapter: adapter::Policy::IDEAL,
        first_number: None,
        careless: None,
        error_change_fails: None,
        late_writes: None,
    };

    /// ConnectX: numbers come back at once, which is safe because completions are swept out when a
    /// queue pair is destroyed.
    pub const MLX5: Self = Self {
        name: "mlx5",
        adapter: adapter::Policy {
            transport: Policy::MLX5,
            reuses_numbers: true,
            vendor_errors: VendorErrors::Mlx5,
            ..adapter::Policy::IDEAL
        },
        ..Self::IDEAL
    };

    /// `rdma_rxe` of Linux 6.12.
    pub const RXE: Self = Self {
        name: "rxe",
        adapter: adapter::Policy {
            transport: Policy::RXE,
            completion_queue: CompletionQueuePolicy {
                overrun: Overrun::Drops,
                destroyed: Destroyed::Stay,
            },
            receive_reclaim: Reclaim::WhenTaken,
            overrun_ends: OverrunEnds::Receiver,
            overrun_events: OverrunEvents::Each,
            refused_sends_stay: true,
            reuses_numbers: true,
            ..adapter::Policy::IDEAL
        },
        first_number: Some(17),
        ..Self::IDEAL
    };

    /// What several iWARP devices do (X722, E810), were they to speak InfiniBand.
    pub const IWARP: Self = Self {
        name: "iwarp",
        adapter: adapter::Policy {
            transport: Policy::IWARP,
            disconnect_keeps_state: true,
            ..adapter::Policy::IDEAL
        },
        ..Self::IDEAL
    };

    /// The ehca driver of 2008: nothing is flushed, and the event comes all the same.
    pub const EHCA: Self = Self {
        name: "ehca",
        adapter: adapter::Policy {
            transport: Policy::EHCA,
            completion_queue: CompletionQueuePolicy {
                overrun: Overrun::Ends,
                destroyed: Destroyed::Stay,
            },
            ..adapter::Policy::IDEAL
        },
        ..Self::IDEAL
    };

    /// Everything at once that some device was seen to do.
    pub const HOSTILE: Self = Self {
        name: "hostile",
        adapter: adapter::Policy {
            completion_queue: CompletionQueuePolicy {
                overrun: Overrun::Ends,
                destroyed: Destroyed::Stay,
            },
            last_work_request: LastWorkRequestEvents::Times(3),
            reuses_numbers: true,
            ..adapter::Policy::IDEAL
        },
        careless: Some(Careless {
            sends: Mishaps {
                lost: 10,
                ..Mishaps::NONE
            },
            receives: Mishaps::NONE,
            events: Mishaps::NONE,
            later: Duration::ZERO,
        }),
        error_change_fails: Some(5),
        late_writes: Some(LateWrites {
            lasts: Duration::from_secs(10),
            interval: Duration::from_millis(500),
            stops_with_link: false,
        }),
        ..Self::IDEAL
    };

    /// What it does is in order; what it tells of it is not. By itself, so that of every other one a
    /// test can count what comes.
    pub const CARELESS: Self = Self {
        name: "careless",
        careless: Some(Careless {
            sends: Mishaps {
                lost: 10,
                again: 10,
                late: 10,
            },
            receives: Mishaps {
                lost: 5,
                again: 10,
                late: 10,
            },
            events: Mishaps {
                lost: 100,
                again: 100,
                late: 100,
            },
            later: Duration::from_millis(500),
        }),
        ..Self::IDEAL
    };

    /// Two readings of what is left open. Its engine writes on into what was given back, as long as
    /// its link gives it a clock; and Last Work Request Reached comes only after a receive that was
    /// flushed (IB spec C11-5.2.5, its first condition alone), so never for a queue pair that held none.
    pub const CLOCKED: Self = Self {
        name: "clocked",
        adapter: adapter::Policy {
            last_work_request: LastWorkRequestEvents::AfterFlush,
            ..adapter::Policy::IDEAL
        },
        late_writes: Some(LateWrites {
            lasts: Duration::from_millis(50),
            interval: Duration::from_millis(1),
            stops_with_link: true,
        }),
        ..Self::IDEAL
    };

    /// The same, and whatever it has to tell comes once and in time.
    #[must_use]
    pub const fn attentive(self) -> Self {
        Self {
            careless: None,
            ..self
        }
    }

    /// All but the careless one: for who counts what comes, or waits for it.
    pub const ATTENTIVE: [Self; 7] = [
        Self::IDEAL,
        Self::MLX5,
        Self::RXE,
        Self::IWARP,
        Self::EHCA,
        Self::HOSTILE,
        Self::CLOCKED,
    ];

    pub const ALL: [Self; 8] = {
        let [a, b, c, d, e, f, g] = Self::ATTENTIVE;
        [a, b, c, d, e, f, g, Self::CARELESS]
    };
}

impl Default for Personality {
    fn default() -> Self {
        Self::IDEAL
    }
}

/// No personality has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no personality is called '{0}': there are ideal, mlx5, rxe, iwarp, ehca, hostile, clocked \
     and careless"
)]
pub struct UnknownPersonality(pub String);

impl FromStr for Personality {
    type Err = UnknownPersonality;

    fn from_str(name: &str) -> Result<Self, UnknownPersonality> {
        let found = Self::ALL.into_iter().find(|known| known.name == name);
        found.ok_or_else(|| UnknownPersonality(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        for personality in Personality::ALL {
            assert_eq!(personality.name.parse(), Ok(personality));
        }
        assert!("mlx4".parse::<Personality>().is_err());
    }
}
