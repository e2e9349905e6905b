//! What a run tells at its end as JSON: `--stats`.

use super::agents::AgentReport;
use super::local::LocalProcess;
use super::summary::{NodeReport, RunReport};
use legato_base::histogram::Histogram;
use legato_base::wire::stats::AgentCounters;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::time::Duration;

/// Changes when a field goes away or means something else; new fields may come without that.
const SCHEMA_VERSION: u32 = 1;

/// The content of `--stats`, of a run of this command that lasted so long.
pub(crate) fn json(report: &RunReport, command: &[OsString], elapsed: Duration) -> Value {
    let (counters, fault_ns) = report.totals();
    let mut object = counter_fields(&counters);
    object.insert("schema_version".into(), SCHEMA_VERSION.into());
    object.insert("legato_version".into(), env!("CARGO_PKG_VERSION").into());
    object.insert("kernel".into(), kernel().into());
    let command = command.iter().map(|part| part.to_string_lossy());
    object.insert("command".into(), command.collect());
    let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    object.insert("elapsed_ms".into(), elapsed.into());
    object.insert("exit_status".into(), report.outcome.exit_status().into());
    object.insert("signal".into(), report.outcome.signal().into());
    object.insert("cache_bytes_limit".into(), report.cache.0.into());
    object.insert(
        "local_bytes_peak".into(),
        report.local_peak(&counters).0.into(),
    );
    object.insert("processes_injected".into(), report.injected().into());
    object.insert("processes_local".into(), report.local_count.into());
    object.insert(
        "local".into(),
        report.local.iter().map(local_process).collect(),
    );
    // Of each process: sums of them say nothing.
    object.remove("share_bytes_current");
    object.remove("share_bytes_peak");
    object.insert("fault_ns".into(), quantiles(&fault_ns));
    object.insert("nodes".into(), report.nodes.iter().map(node).collect());
    object.insert(
        "processes".into(),
        report.processes.iter().map(process).collect(),
    );
    object.into()
}

/// Release of the running kernel (proc_sys_kernel(5)); empty if it cannot be told.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

fn counter_fields(counters: &AgentCounters) -> Map<String, Value> {
    let entries = counters.entries();
    entries
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect()
}

fn quantiles(fault_ns: &Histogram) -> Value {
    json!({
        "p50": fault_ns.quantile(500),
        "p90": fault_ns.quantile(900),
        "p99": fault_ns.quantile(990),
        "p999": fault_ns.quantile(999),
        "max": fault_ns.max(),
    })
}

fn node(node: &NodeReport) -> Value {
    let mut object = json!({
        "address": node.address,
        "lost": node.lost,
        "pages_lost": node.pages_lost,
    });
    if let Some(pid) = node.pid {
        object["pid"] = pid.into();
    }
    object
}

fn local_process(process: &LocalProcess) -> Value {
    json!({
        "pid": process.pid,
        "command": process.command,
        "reason": process.why,
    })
}

fn process(process: &AgentReport) -> Value {
    let mut object = counter_fields(&process.stats.counters);
    object.insert("pid".into(), process.pid.into());
    object.insert("command".into(), process.command.as_str().into());
    object.insert("injected".into(), process.injected.into());
    object.insert("fault_ns".into(), quantiles(&process.stats.fault_ns));
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outcome::Outcome;
    use crate::run::summary::tests::report;
    use legato_base::Bytes;

    #[test]
    fn the_json_has_every_promised_field() {
        let command = ["sort".into(), "-n".into()];
        let value = json(&report(), &command, Duration::from_millis(1_500));
        for name in [
            "exit_status",
            "cache_bytes_limit",
            "local_bytes_peak",
            "processes_injected",
            "processes_local",
            "cache_bytes_peak",
            "faults",
            "pages_fetched",
            "pages_written",
            "pages_clean_dropped",
            "pages_prefetched",
            "pages_lost",
        ] {
            assert!(value[name].is_u64(), "{name}");
        }
        for name in ["p50", "p90", "p99", "p999", "max"] {
            assert!(value["fault_ns"][name].is_u64(), "{name}");
        }
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["legato_version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(value["command"], json!(["sort", "-n"]));
        assert_eq!(value["elapsed_ms"], 1_500);
        let kernel = value["kernel"].as_str().unwrap();
        assert!(
            kernel.starts_with(|first: char| first.is_ascii_digit()),
            "{kernel}"
        );
        assert_eq!(value["exit_status"], 3);
        assert_eq!(value["signal"], Value::Null);
        assert_eq!(value["faults"], 3);
        assert_eq!(value["fault_ns"]["max"], 9_000);
        assert_eq!(
            value["cache_bytes_peak"],
            1 << 21,
            "the highest, not the sum"
        );
        assert_eq!(
            value["nodes"][0],
            json!({"address": "shm:@a", "pid": 9, "lost": true, "pages_lost": 7})
        );
        assert_eq!(value["processes"][1]["pid"], 11);
        assert_eq!(value["processes"][1]["faults"], 1);
    }

    #[test]
    fn a_peak_between_two_looks_is_told_by_its_process() {
        let mut report = report();
        report.local_peak = Bytes::mib(1);
        let value = json(&report, &[], Duration::ZERO);
        assert_eq!(value["local_bytes_peak"], 2 << 20);
    }

    #[test]
    fn processes_without_far_memory_are_listed() {
        let mut report = report();
        report.local_count = 1;
        report.local.push(LocalProcess {
            pid: 12,
            command: "awk".into(),
            why: "no".into(),
        });
        let value = json(&report, &[], Duration::ZERO);
        assert_eq!(value["processes_local"], 1);
        let listed = json!([{"pid": 12, "command": "awk", "reason": "no"}]);
        assert_eq!(value["local"], listed);
    }

    #[test]
    fn a_signal_is_told_besides_the_exit_status() {
        let mut report = report();
        report.outcome = Outcome::Killed(9);
        let value = json(&report, &[], Duration::ZERO);
        assert_eq!(value["exit_status"], 137);
        assert_eq!(value["signal"], 9);
    }

    #[test]
    fn processes_that_came_later_are_marked() {
        let mut report = report();
        report.processes[0].injected = true;
        report.processes[1].stats.counters.children_served = 3;
        let value = json(&report, &[], Duration::ZERO);
        assert_eq!(value["processes_injected"], 1);
        assert_eq!(value["children_served"], 3);
        assert_eq!(value["processes"][0]["injected"], true);
        assert_eq!(value["processes"][1]["injected"], false);
    }
}
