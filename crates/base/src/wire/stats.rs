//! The page of counters that an agent shares with its supervisor through a memfd. The supervisor
//! reads it while the program runs and after it has ended, however it ended.

use crate::histogram::{BUCKETS, Histogram};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u64 = u64::from_le_bytes(*b"LGstats7");
/// The memfd's name, as links in `/proc/PID/fd` show it.
pub const STATS_NAME: &str = "legato-stats";

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one agent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct AgentCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        struct RawCounters {
            $($name: U64,)*
        }

        impl AgentCounters {
            fn to_raw(self) -> RawCounters {
                RawCounters { $($name: self.$name.into(),)* }
            }

            fn from_raw(raw: &RawCounters) -> Self {
                Self { $($name: raw.$name.get(),)* }
            }

            /// Every counter with its name.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds another agent's counters to these, peaks included.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Local memory of the process, the agent's own included, in bytes: now.
    cache_bytes_current,
    /// The same, at its highest.
    cache_bytes_peak,
    /// Of it the agent's heap: now.
    agent_bytes_current,
    /// The same, at its highest.
    agent_bytes_peak,
    /// Pages in the agent's heap that were on their way when a child was forked, and that it has too: now.
    kept_pages_current,
    /// The same, at its highest.
    kept_pages_peak,
    /// Bytes of buffers that are over and not quiet (quarantine): now.
    quarantined_bytes_current,
    /// The same, at its highest.
    quarantined_bytes_peak,
    /// The share of the run's local memory that the process may use, in bytes: now.
    share_bytes_current,
    /// The same, at its highest.
    share_bytes_peak,
    /// Faults that the agent served.
    faults,
    /// Faults on memory that was never touched before.
    faults_zero_filled,
    /// Faults on pages that were still in the victim list.
    faults_victim_hit,
    /// Faults that had to wait for a free frame.
    faults_stalled,
    /// Pages moved out of the program's memory.
    pages_evicted,
    /// Pages read from memory nodes, prefetched ones included.
    pages_fetched,
    /// Pages written to memory nodes.
    pages_written,
    /// Evicted pages whose far copy was still right.
    pages_clean_dropped,
    /// Evicted pages that held only zeros.
    pages_zero_dropped,
    /// Pages fetched before they were touched.
    pages_prefetched,
    /// Pages filled with zeros before they were touched.
    pages_zero_filled_ahead,
    /// Pages fetched or filled ahead that were evicted again with no sign of having been used.
    pages_prefetched_unused,
    /// Pages that stay local because a device or another process holds them.
    pages_pinned,
    /// Pages that were local without the pager's knowing, and were found.
    pages_found_again,
    /// Pages whose every copy is gone.
    pages_lost,
    /// Pages that live at memory nodes now.
    far_pages_current,
    /// The same, at its highest.
    far_pages_peak,
    /// Far pages released by their program.
    far_pages_released,
    /// Fetched pages that did not match the record.
    pages_rejected,
    /// Bytes of address space registered with userfaultfd.
    registered_bytes,
    /// Forked children that this agent serves.
    children_served,
    /// Milliseconds for which idle processors were asked to poll instead of halting.
    idle_poll_ms,
    /// How often it was tried whether that makes faults faster.
    idle_poll_trials,
    /// Of these, the trials that showed it.
    idle_poll_trials_won,
    /// How often the agent had nothing to do and looked on for a while before it would sleep.
    spins,
    /// Of these, the times that something came meanwhile.
    spins_won,
    /// How often it slept without looking on, because that had been in vain.
    sleeps_at_once,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStats {
    magic: U64,
    counters: RawCounters,
    fault_max: U64,
    fault_counts: [U64; BUCKETS],
}

/// Bytes of the page that the supervisor reads too, a whole number of memory pages (P-33).
pub const STATS_SIZE: usize = size_of::<RawStats>().next_multiple_of(crate::PAGE_SIZE);

/// A snapshot of one agent: its counters and the times from fault to service, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct StatsPage {
    pub counters: AgentCounters,
    pub fault_ns: Histogram,
}

impl StatsPage {
    /// Writes the page into the first bytes of `into`.
    ///
    /// # Panics
    /// If `into` is shorter than [`STATS_SIZE`].
    pub fn write_to(&self, into: &mut [u8]) {
        let raw = RawStats {
            magic: MAGIC.into(),
            counters: self.counters.to_raw(),
            fault_max: self.fault_ns.max().into(),
            fault_counts: self.fault_ns.counts().map(U64::from),
        };
        into[..STATS_SIZE][..size_of::<RawStats>()].copy_from_slice(raw.as_bytes());
    }

    /// None if the agent has not written it yet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawStats::read_from_prefix(bytes).ok()?;
        (raw.magic.get() == MAGIC).then(|| Self {
            counters: AgentCounters::from_raw(&raw.counters),
            fault_ns: Histogram::from_parts(
                raw.fault_counts.iter().map(|count| count.get()),
                raw.fault_max.get(),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_page_survives_a_round_trip() {
        let mut page = StatsPage::default();
        page.counters.faults = 3;
        page.counters.children_served = 1;
        page.fault_ns.record(12_345);
        let mut bytes = vec![0; STATS_SIZE];
        assert!(StatsPage::parse(&bytes).is_none());
        page.write_to(&mut bytes);
        let copy = StatsPage::parse(&bytes).unwrap();
        assert_eq!(copy.counters, page.counters);
        assert_eq!(copy.fault_ns.max(), 12_345);
    }
}
