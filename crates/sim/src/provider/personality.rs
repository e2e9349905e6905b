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
    pub transport: Policy,
    pub completion_queue: CompletionQueuePolicy,
    /// When the slot of a receive is free again. If that is before its completion is polled, the
    /// ledger of a completion queue does not keep it from being overrun.
    pub receive_reclaim: Reclaim,
    pub last_work_request: LastWorkRequestEvents,
    pub overrun_ends: OverrunEnds,
    pub overrun_events: OverrunEvents,
    /// A send that is refused before the queue pair is ready to send is executed all the same, with
    /// the next one that is posted, or is flushed.
    pub refused_sends_stay: bool,
    /// A queue pair number is used again at once.
    pub reuses_numbers: bool,
    /// Numbers count from here in each incarnation; otherwise from anywhere.
    pub first_number: Option<u32>,
    /// Of so many completions of sends one, by chance, never comes.
    pub loses_sends: Option<u32>,
    /// Each so-many-th change to the Error state fails with EIO and changes nothing.
    pub error_change_fails: Option<u32>,
    /// What the device does to the buffers of requests that it has given back.
    pub late_writes: Option<LateWrites>,
    /// A disconnect leaves the queue pair's state as it is.
    pub disconnect_keeps_state: bool,
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
        transport: Policy::IDEAL,
        completion_queue: CompletionQueuePolicy {
            overrun: Overrun::Ends,
            destroyed: Destroyed::Removed,
        },
        receive_reclaim: Reclaim::WhenPolled,
        last_work_request: LastWorkRequestEvents::AsTransport,
        overrun_ends: OverrunEnds::Attached,
        overrun_events: OverrunEvents::Once,
        refused_sends_stay: false,
        reuses_numbers: false,
        first_number: None,
        loses_sends: None,
        error_change_fails: None,
        late_writes: None,
        disconnect_keeps_state: false,
    };

    /// ConnectX: numbers come back at once, which is safe because completions are swept out when a
    /// queue pair is destroyed.
    pub const MLX5: Self = Self {
        name: "mlx5",
        transport: Policy::MLX5,
        reuses_numbers: true,
        ..Self::IDEAL
    };

    /// `rdma_rxe` of Linux 6.12.
    pub const RXE: Self = Self {
        name: "rxe",
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
        first_number: Some(17),
        ..Self::IDEAL
    };

    /// What several iWARP devices do (X722, E810), were they to speak InfiniBand.
    pub const IWARP: Self = Self {
        name: "iwarp",
        transport: Policy::IWARP,
        disconnect_keeps_state: true,
        ..Self::IDEAL
    };

    /// The ehca driver of 2008: nothing is flushed, and the event comes all the same.
    pub const EHCA: Self = Self {
        name: "ehca",
        transport: Policy::EHCA,
        completion_queue: CompletionQueuePolicy {
            overrun: Overrun::Ends,
            destroyed: Destroyed::Stay,
        },
        ..Self::IDEAL
    };

    /// Everything at once that some device was seen to do.
    pub const HOSTILE: Self = Self {
        name: "hostile",
        completion_queue: CompletionQueuePolicy {
            overrun: Overrun::Ends,
            destroyed: Destroyed::Stay,
        },
        last_work_request: LastWorkRequestEvents::Times(3),
        reuses_numbers: true,
        loses_sends: Some(100),
        error_change_fails: Some(5),
        late_writes: Some(LateWrites {
            lasts: Duration::from_secs(10),
            interval: Duration::from_millis(500),
            stops_with_link: false,
        }),
        ..Self::IDEAL
    };

    /// What is the channel adapter's own of it; the rest goes wrong around it.
    pub(super) const fn policy(&self) -> adapter::Policy {
        adapter::Policy {
            transport: self.transport,
            completion_queue: self.completion_queue,
            receive_reclaim: self.receive_reclaim,
            last_work_request: self.last_work_request,
            overrun_ends: self.overrun_ends,
            overrun_events: self.overrun_events,
            refused_sends_stay: self.refused_sends_stay,
            reuses_numbers: self.reuses_numbers,
            disconnect_keeps_state: self.disconnect_keeps_state,
        }
    }

    pub const ALL: [Self; 6] = [
        Self::IDEAL,
        Self::MLX5,
        Self::RXE,
        Self::IWARP,
        Self::EHCA,
        Self::HOSTILE,
    ];
}

impl Default for Personality {
    fn default() -> Self {
        Self::IDEAL
    }
}

/// No personality has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no personality is called '{0}': there are ideal, mlx5, rxe, iwarp, ehca and hostile")]
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
