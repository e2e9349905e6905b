//! What a node has refused, for its log: a line for each reason, once a second at most, with how often
//! since the last one. Strangers cannot fill a disk with it.

use legato_base::{Duration, Time};
use legato_memnode::NodeServer;
use legato_providers::AnyProvider;
use tracing::warn;

/// Between lines about the same reason.
const INTERVAL: Duration = Duration::from_secs(1);
const REASONS: usize = 14;

/// What was counted for each reason.
type Counts = [(&'static str, u64); REASONS];

#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    said: [Said; REASONS],
    /// When to look again in the midst of work.
    due: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    count: u64,
    at: Option<Time>,
}

/// Collects what the parts of a node have counted.
pub(crate) fn counts(server: &NodeServer, provider: &AnyProvider) -> Counts {
    let fabric = server.fabric_counters();
    let (carried, discarded) = match provider {
        AnyProvider::Roce(nic) => (nic.counters(), nic.packets_discarded()),
        AnyProvider::Shm(_) | AnyProvider::Proxy(_) | AnyProvider::Ibverbs(_) => Default::default(),
    };
    let named = fabric.secrets_missing
        + fabric.secrets_wrong
        + fabric.secrets_unexpected
        + fabric.secrets_busy
        + fabric.secrets_repeated;
    // The node's, whatever the interface: said once.
    let without_memory = match server.interface() {
        0 => server.counters().refused_no_memory,
        _ => 0,
    };
    [
        ("a peer without a secret", fabric.secrets_missing),
        ("a peer with a wrong secret", fabric.secrets_wrong),
        (
            "a peer with a secret, and this node has none",
            fabric.secrets_unexpected,
        ),
        (
            "a peer, because too many others are proving themselves",
            fabric.secrets_busy,
        ),
        (
            "a peer that repeats what another has said before: a recording",
            fabric.secrets_repeated,
        ),
        (
            "a peer that did not confirm in time that it knows the secret",
            fabric.proofs_missing,
        ),
        ("a wrong confirmation", fabric.proofs_wrong),
        (
            "a peer of another protocol or beyond the limits",
            fabric.peers_rejected.saturating_sub(named),
        ),
        ("a stream that is none of this protocol", carried.garbage),
        ("a stream without the secret", carried.secrets_refused),
        ("damaged packets", carried.damaged),
        ("malformed packets", carried.malformed),
        ("packets of strangers", discarded),
        (
            "memory to a client: too little is left on this machine, or in the control group of this node",
            without_memory,
        ),
    ]
}

impl RefusalLog {
    /// Says what is new; once a second if the node is `busy`, as it may be for hours. Returns when there will
    /// be more to say even if nothing happens.
    pub(crate) fn note(&mut self, now: Time, busy: bool, counts: impl FnOnce() -> Counts) -> Time {
        if busy && now < self.due {
            return self.due;
        }
        self.due = now + INTERVAL;
        let mut next = Time::NEVER;
        for (said, (what, count)) in self.said.iter_mut().zip(counts()) {
            if count == said.count {
                continue;
            }
            match said.at.map(|at| at + INTERVAL) {
                Some(due) if due > now => next = next.min(due),
                _ => {
                    warn!(count = count.wrapping_sub(said.count), "refused {what}");
                    *said = Said {
                        count,
                        at: Some(now),
                    };
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> Counts {
        let mut counts = [("nothing", 0); REASONS];
        counts[3] = ("something", count);
        counts
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_flood_is_one_line_a_second_and_nothing_is_left_out() {
        let mut log = RefusalLog::default();
        let note = |log: &mut RefusalLog, now, count| log.note(at(now), false, || counted(count));
        assert_eq!(note(&mut log, 0, 0), Time::NEVER);
        assert_eq!(note(&mut log, 0, 5), Time::NEVER);
        assert_eq!(log.said[3].count, 5);
        for now in 1..1000 {
            assert_eq!(note(&mut log, now, 5 + now), at(1000));
            assert_eq!(log.said[3].count, 5);
        }
        assert_eq!(note(&mut log, 1000, 1004), Time::NEVER);
        assert_eq!((log.said[3].count, log.said[3].at), (1004, Some(at(1000))));
    }

    #[test]
    fn a_node_that_is_never_idle_says_it_too() {
        let mut log = RefusalLog::default();
        log.note(at(0), true, || counted(0));
        for now in 1..1000 {
            let unseen = || panic!("counted in the midst of work");
            assert_eq!(log.note(at(now), true, unseen), at(1000));
        }
        log.note(at(1000), true, || counted(7));
        assert_eq!((log.said[3].count, log.said[3].at), (7, Some(at(1000))));
    }
}
