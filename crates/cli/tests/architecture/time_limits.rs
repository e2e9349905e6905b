//! Every time limit stands in one file, with what it protects.

use crate::sources::{sources, workspace};
use std::fs;

/// Where product code may have a time of a second or more that is no time limit: it paces work, or
/// engines are told otherwise.
const PACES: [(&str, &str); 20] = [
    ("crates/cli/src/run/progress.rs", "LIVE_PACE"),
    ("crates/cli/src/run/progress.rs", "LOG_PACE"),
    ("crates/cli/src/bench/", ""),
    ("crates/cli/src/node/refusals.rs", "INTERVAL"),
    ("crates/cli/src/run/supervise.rs", "WAITING_NOTICE"),
    ("crates/cli/src/run/budget.rs", "ASK_AGAIN"),
    ("crates/cli/src/run/proxies.rs", "SLEEP_MAX"),
    ("crates/cli/src/sim/sweep.rs", "PROGRESS_INTERVAL"),
    ("crates/fabric/src/session/", ""),
    ("crates/pager/src/engine/memory.rs", "QUIET_AFTER"),
    ("crates/pager/src/engine/strays.rs", "REST_M"),
    ("crates/pager/src/engine/strays.rs", "USED_AFTER"),
    ("crates/pager/src/far/room.rs", "ASK_AGAIN_MAX"),
    ("crates/pager/src/order/mod.rs", "CONTESTED"),
    ("crates/pager/src/uffd/linux_kernel/rss.rs", "REST_MAX"),
    ("crates/providers/src/ibverbs/", ""),
    ("crates/providers/src/proxy/agent/line.rs", "LOOK"),
    ("crates/providers/src/roce/paths/path.rs", "_ROUND"),
    ("crates/sim/src/", ""),
    ("crates/transport/src/", ""),
];
const TIME_LIMITS: &str = "crates/base/src/timeouts/mod.rs";

#[test]
fn time_limits_stand_in_one_file() {
    let sources = sources();
    let products = sources.iter().filter(|file| {
        file.path.contains("/src/")
            && !file.path.contains("test")
            && !file.path.starts_with("crates/base/")
    });
    let strays: Vec<String> = products
        .flat_map(|file| file.text.lines().map(|line| (&file.path, line.trim())))
        .filter(|(_, line)| line.contains("const ") && line.contains("from_secs("))
        .filter(|(path, line)| {
            let paces =
                |(place, name): &(&str, &str)| path.starts_with(place) && line.contains(name);
            !PACES.iter().any(paces)
        })
        .map(|(path, line)| format!("{path}: {line}"))
        .collect();
    assert_eq!(strays, Vec::<String>::new(), "see {TIME_LIMITS}");
}

/// Each has a row that says what it is, what it protects and what is at its end.
#[test]
fn every_time_limit_is_explained() {
    let text = fs::read_to_string(workspace().join(TIME_LIMITS)).unwrap();
    let lines = || text.lines();
    let names: Vec<&str> = lines()
        .filter_map(|line| Some(line.strip_prefix("pub const ")?.split_once(':')?.0))
        .collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let named = format!("[`{name}`]");
        let row = lines().find(|line| line.starts_with("//! | [`") && line.contains(&named));
        let columns = row.map(|row| row.split(" | ").count());
        assert_eq!(columns, Some(5), "{name}");
    }
}
