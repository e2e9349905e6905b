//! What a run did.

use super::trouble::Trouble;
use legato_base::histogram::Histogram;
use legato_base::wire::stats::AgentCounters;
use legato_base::{Duration, Time};
use std::collections::BTreeMap;
use std::fmt;

/// A successful run.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    pub steps: u64,
    /// Two runs with equal hashes had the same history, message by message.
    pub trace_hash: u64,
    /// Virtual time that the run took.
    pub elapsed: Time,
    /// Reads and writes of the program that were checked.
    pub accesses: u64,
    /// Accesses that ended in SIGBUS, because a node was lost.
    pub bus_errors: u64,
    /// How often each trouble has come.
    pub troubles: BTreeMap<Trouble, u64>,
    pub forks: u64,
    pub resident_pages_peak: u64,
    pub counters: AgentCounters,
    /// From the touch of a missing page until its thread may go on, in nanoseconds.
    pub fault_ns: Histogram,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = &self.counters;
        let quantile = |per_mille| Duration::from_nanos(self.fault_ns.quantile(per_mille));
        writeln!(
            f,
            "seed {}, {} steps: history {:016x}",
            self.seed, self.steps, self.trace_hash
        )?;
        writeln!(
            f,
            "{} accesses checked in {} of virtual time, {} forks, {} SIGBUS",
            self.accesses,
            self.elapsed.since(Time::ZERO),
            self.forks,
            self.bus_errors
        )?;
        writeln!(
            f,
            "{} faults, p50 {}, p99 {}, max {}",
            counters.faults,
            quantile(500),
            quantile(990),
            Duration::from_nanos(self.fault_ns.max())
        )?;
        write!(
            f,
            "{} pages evicted, {} fetched, {} written, {} local at most",
            counters.pages_evicted,
            counters.pages_fetched,
            counters.pages_written,
            self.resident_pages_peak
        )
    }
}

/// A running hash of a history: FNV-1a over words, with a shift so that high bits matter too.
#[derive(Debug)]
pub(super) struct History(u64);

impl Default for History {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl History {
    pub(super) fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub(super) const fn value(&self) -> u64 {
        self.0
    }
}
