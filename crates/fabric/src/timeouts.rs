//! Every time limit of a fabric, derived from one: how long a peer that says nothing is believed to
//! be alive ([`crate::FabricConfig::liveness`], `L`).
//!
//! | limit | | what it bounds |
//! |---|---|---|
//! | ping | L/10 | silence after which the peer is asked for a sign of life |
//! | suspicion | 3 L/10 | silence after which its owner is told |
//! | silence | L | silence after which the connection is reset |
//! | handshake | L/2 | an accepted peer's part of connecting |
//! | proof | L/10 | how long an accepted peer may take to prove that it knows the secret |
//! | yielding | L/200 | how long it may take in any case, when others wait for its place |
//! | completion | 11 L/10 | a posted send's way to its completion: a silent peer is found first |
//! | credits | 11 L/10 | how long late replies may hold all credits |
//! | drain | L/10 | how long a queue pair in the error state may take to give its requests back |
//! | grace | L/10 | how long what waits for a peer still has, at most, when this side has not looked for as long or longer |
//! | settling | L/200 | how long what a queue pair in the error state has done may take to be known: then everything that it had to do has its outcome |
//! | retry | L/1000 | between attempts at what the provider refused |
//!
//! So from whatever state and for whatever reason a connection ends, its queue pair is destroyed
//! within `drain` of the moment at which that is known, and that is known within `silence`.

use crate::FabricConfig;
use legato_base::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) ping: Duration,
    pub(crate) suspicion: Duration,
    pub(crate) silence: Duration,
    pub(crate) handshake: Duration,
    pub(crate) proof: Duration,
    pub(crate) yielding: Duration,
    pub(crate) completion: Duration,
    pub(crate) credits: Duration,
    pub(crate) drain: Duration,
    pub(crate) grace: Duration,
    pub(crate) settling: Duration,
    pub(crate) retry: Duration,
}

impl Timeouts {
    pub(crate) const fn of(config: &FabricConfig) -> Self {
        let liveness = config.liveness;
        Self {
            // P-46: asked, then suspected, then given up.
            ping: part(liveness, 10),
            suspicion: Duration::from_nanos(3 * part(liveness, 10).as_nanos()),
            silence: liveness,
            handshake: part(liveness, 2),
            // P-79: so long a recording has its queue pair.
            proof: part(liveness, 10),
            yielding: part(liveness, 200),
            completion: sum(liveness, part(liveness, 10)),
            credits: sum(liveness, part(liveness, 10)),
            drain: part(liveness, 10),
            grace: part(liveness, 10),
            settling: part(liveness, 200),
            retry: part(liveness, 1000),
        }
    }
}

/// At least a nanosecond, so that what is due at once is not due for ever.
const fn part(whole: Duration, by: u64) -> Duration {
    let nanos = whole.as_nanos() / by;
    Duration::from_nanos(if nanos == 0 { 1 } else { nanos })
}

const fn sum(one: Duration, other: Duration) -> Duration {
    Duration::from_nanos(one.as_nanos().saturating_add(other.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // P-46
    #[test]
    fn a_silent_peer_is_asked_then_suspected_then_given_up() {
        for liveness in [Duration::from_millis(1), Duration::from_secs(10)] {
            let timeouts = Timeouts::of(&FabricConfig {
                liveness,
                ..FabricConfig::default()
            });
            assert!(Duration::ZERO < timeouts.retry && timeouts.retry < timeouts.ping);
            let thrice = timeouts.ping + timeouts.ping + timeouts.ping;
            assert!(thrice == timeouts.suspicion && timeouts.suspicion < timeouts.silence);
            assert!(timeouts.settling < timeouts.drain && timeouts.drain < timeouts.silence);
        }
    }
}
