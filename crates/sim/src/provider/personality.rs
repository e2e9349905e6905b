//! Where devices differ: named sets of deviations.

use core::str::FromStr;
use legato_base::Duration;
use legato_transport::adapter::{self, LastWorkRequestEvents, OverrunEnds, OverrunEvents};
use legato_transport::nic::{CompletionQueuePolicy, Destroyed, Overrun, Reclaim};
use legato_transport::rc::Policy;

/// How one kind of NIC behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Personality {
    pub name: &'static str,
    pub adapter: adapter::Policy,
    /// Numbers count from here in each incarnation; otherwise from anywhere.
    pub first_number: Option<u32>,
    /// Of so many completions of sends one, by chance, never comes.
    pub loses_sends: Option<u32>,
    /// Each so-many-th change to the Error state fails with EIO and changes nothing.
    pub error_change_fails: Option<u32>,
    /// What the device does to the buffers of requests that it has given back.
    pub late_writes: Option<LateWrites>,
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

impl Personality {
    /// As the specification says.
    pub const IDEAL: Self = Self {
        name: "ideal",
        adapter: adapter::Policy::IDEAL,
        first_number: None,
        loses_sends: None,
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
        loses_sends: Some(100),
        error_change_fails: Some(5),
        late_writes: Some(LateWrites {
            lasts: Duration::from_secs(10),
            interval: Duration::from_millis(500),
            stops_with_link: false,
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

    pub const ALL: [Self; 7] = [
        Self::IDEAL,
        Self::MLX5,
        Self::RXE,
        Self::IWARP,
        Self::EHCA,
        Self::HOSTILE,
        Self::CLOCKED,
    ];
}

impl Default for Personality {
    fn default() -> Self {
        Self::IDEAL
    }
}

/// No personality has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no personality is called '{0}': there are ideal, mlx5, rxe, iwarp, ehca, hostile and clocked"
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
