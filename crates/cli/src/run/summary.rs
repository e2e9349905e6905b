//! What a run tells at its end.

use super::agents::AgentReport;
use super::local::LocalProcess;
use super::outcome::Outcome;
use legato_base::histogram::Histogram;
use legato_base::wire::stats::AgentCounters;
use legato_base::{Bytes, Duration};
use std::fmt::Write as _;

/// Everything that is known at the end of a run.
#[derive(Debug)]
pub(crate) struct RunReport {
    pub(crate) outcome: Outcome,
    pub(crate) cache: Bytes,
    /// The most local memory that all processes together were seen to use.
    pub(crate) local_peak: Bytes,
    pub(crate) processes: Vec<AgentReport>,
    /// How many ran without far memory, and the first of them.
    pub(crate) local_count: u64,
    pub(crate) local: Vec<LocalProcess>,
    pub(crate) nodes: Vec<NodeReport>,
}

/// One memory node at the end of a run.
#[derive(Debug)]
pub(crate) struct NodeReport {
    pub(crate) address: String,
    /// Of a node that the run has started itself.
    pub(crate) pid: Option<i32>,
    pub(crate) lost: bool,
    pub(crate) pages_lost: u64,
}

impl RunReport {
    /// Sums over all processes; but peaks of memory were at different times, so theirs is that of
    /// the highest.
    pub(super) fn totals(&self) -> (AgentCounters, Histogram) {
        let mut counters = AgentCounters::default();
        let mut fault_ns = Histogram::default();
        for process in &self.processes {
            counters.add(&process.stats.counters);
            fault_ns.merge(&process.stats.fault_ns);
        }
        let highest = |of: fn(&AgentCounters) -> u64| {
            let all = self
                .processes
                .iter()
                .map(|process| of(&process.stats.counters));
            all.max().unwrap_or_default()
        };
        counters.cache_bytes_peak = highest(|counters| counters.cache_bytes_peak);
        counters.agent_bytes_peak = highest(|counters| counters.agent_bytes_peak);
        counters.kept_pages_peak = highest(|counters| counters.kept_pages_peak);
        counters.quarantined_bytes_peak = highest(|counters| counters.quarantined_bytes_peak);
        (counters, fault_ns)
    }

    /// The most that all processes took together: each knows its own peak, which the supervisor, who
    /// looks from time to time, may have missed.
    pub(super) fn local_peak(&self, totals: &AgentCounters) -> Bytes {
        self.local_peak.max(Bytes(totals.cache_bytes_peak))
    }

    /// Processes whose agent did not come with the program's start.
    pub(super) fn injected(&self) -> usize {
        let injected = self.processes.iter().filter(|process| process.injected);
        injected.count()
    }
}

pub(super) fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        _ => format!("{count} processes"),
    }
}

/// The short block on standard error.
pub(crate) fn text(report: &RunReport) -> String {
    let (counters, fault_ns) = report.totals();
    let local = match report.local_count {
        0 => String::new(),
        1 => "1 process without far memory".to_owned(),
        count => format!("{count} processes without far memory"),
    };
    if report.processes.is_empty() {
        return match report.local_count {
            0 => "no process attached to far memory\n".into(),
            _ => format!("no process attached to far memory; {local}\n"),
        };
    }
    let time = |per_mille| Duration::from_nanos(fault_ns.quantile(per_mille));
    let mut processes = processes(report.processes.len());
    let mut text = String::new();
    // Writing to a String does not fail.
    match report.injected() {
        0 => {}
        count => drop(write!(processes, " ({count} joined while running)")),
    }
    match counters.children_served {
        0 => {}
        1 => processes.push_str(" and 1 forked child"),
        count => drop(write!(processes, " and {count} forked children")),
    }
    if report.local_count > 0 {
        let _ = write!(processes, "; {local}");
    }
    let _ = writeln!(
        text,
        "{processes}; far pages peak {} ({}); cache peak {} of {}",
        counters.far_pages_peak,
        Bytes::pages(counters.far_pages_peak),
        report.local_peak(&counters),
        report.cache,
    );
    let _ = writeln!(
        text,
        "faults {} (p50 {}, p99 {}, max {})",
        counters.faults,
        time(500),
        time(990),
        Duration::from_nanos(fault_ns.max()),
    );
    let _ = writeln!(
        text,
        "pages fetched {}, written {}, prefetched {}, skipped as clean {}, lost {}",
        counters.pages_fetched,
        counters.pages_written,
        counters.pages_prefetched,
        counters.pages_clean_dropped,
        counters.pages_lost,
    );
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use legato_base::wire::stats::StatsPage;

    fn agent(pid: i32, cache_peak: u64, faults: &[u64]) -> AgentReport {
        let mut stats = StatsPage::default();
        stats.counters.cache_bytes_peak = cache_peak;
        stats.counters.faults = faults.len() as u64;
        stats.counters.far_pages_peak = 256;
        for &fault in faults {
            stats.fault_ns.record(fault);
        }
        AgentReport {
            pid,
            command: "sort".into(),
            injected: false,
            stats,
        }
    }

    pub(in crate::run) fn report() -> RunReport {
        RunReport {
            outcome: Outcome::Exited(3),
            cache: Bytes::mib(64),
            local_peak: Bytes::mib(3),
            processes: vec![
                agent(10, 1 << 20, &[4_000, 5_000]),
                agent(11, 1 << 21, &[9_000]),
            ],
            local_count: 0,
            local: Vec::new(),
            nodes: vec![NodeReport {
                address: "shm:@a".into(),
                pid: Some(9),
                lost: true,
                pages_lost: 7,
            }],
        }
    }

    #[test]
    fn a_peak_between_two_looks_is_told_by_its_process() {
        let mut report = report();
        report.local_peak = Bytes::mib(1);
        assert!(text(&report).contains("cache peak 2 MiB of 64 MiB"));
    }

    #[test]
    fn processes_that_came_later_are_counted() {
        let mut report = report();
        report.processes[0].injected = true;
        report.processes[1].stats.counters.children_served = 3;
        let text = text(&report);
        let expected = "2 processes (1 joined while running) and 3 forked children; far";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn processes_without_far_memory_are_counted() {
        let mut report = report();
        for (count, expected) in [
            (1, "2 processes; 1 process without far memory; far"),
            (2, "2 processes; 2 processes without far memory; far"),
        ] {
            report.local_count = count;
            assert!(text(&report).contains(expected), "{}", text(&report));
        }
        report.processes.clear();
        assert!(text(&report).ends_with("; 2 processes without far memory\n"));
    }

    #[test]
    fn the_summary_is_three_lines() {
        let text = text(&report());
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.contains("2 processes; far pages peak 512 (2 MiB)"),
            "{text}"
        );
        assert!(text.contains("cache peak 3 MiB of 64 MiB"), "{text}");
    }
}
