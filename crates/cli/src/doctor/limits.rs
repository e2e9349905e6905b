//! What bounds memory, mappings and descriptors.

use super::check::Check;
use crate::failure::by_name;
use crate::machine;
use crate::node::CLIENTS_MAX;
use crate::run::idle_poll;
use legato_base::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Of a node for other things than its clients.
const DESCRIPTORS_SPARE: u64 = 64;
/// Its socket, and the segment of its extents.
const DESCRIPTORS_OF_CLIENT: u64 = 2;
/// The kernel's default; less is somebody's wish.
const MAP_COUNT_DEFAULT: u64 = 65_530;
/// Less than this is hardly worth the name.
const MEMORY_LEAST: Bytes = Bytes::mib(256);

pub(super) fn checks() -> Vec<Check> {
    let memory = text("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| meminfo(&memory, name).unwrap_or(Bytes(0));
    let (total, available) = (of("MemTotal:"), of("MemAvailable:"));
    let thp = text("/sys/kernel/mm/transparent_hugepage/enabled");
    vec![
        processors(std::thread::available_parallelism().map_or(1, usize::from)),
        idle_processors(
            text("/sys/devices/system/cpu/cpuidle/current_driver").as_deref(),
            idle_poll::open().map(drop),
        ),
        self::memory(total, available),
        cgroup(machine::memory_limit(), available),
        overcommit(number("/proc/sys/vm/overcommit_memory").unwrap_or(0)),
        swap(of("SwapTotal:")),
        huge_pages(thp.as_deref()),
        memfd(memfd_create("legato-doctor", MemfdFlags::CLOEXEC).is_ok()),
        descriptors(getrlimit(Resource::Nofile).current),
        locked(),
        mappings(number("/proc/sys/vm/max_map_count").unwrap_or(MAP_COUNT_DEFAULT)),
    ]
}

fn processors(count: usize) -> Check {
    const NAME: &str = "processors";
    match count {
        1 => Check::warning(
            NAME,
            "one: the program, its agent and the memory nodes take turns on it",
            "two or more let the agent work while the program does",
        ),
        more => Check::ok(NAME, more.to_string()),
    }
}

/// From the kernel's driver for idle processors, and whether they may be asked to poll.
fn idle_processors(driver: Option<&str>, request: std::io::Result<()>) -> Check {
    const NAME: &str = "idle processors";
    let driver = driver.filter(|name| *name != "none");
    match (driver, request) {
        (None, _) => Check::warning(
            NAME,
            "the kernel has no cpuidle driver: they cannot be asked to poll instead of halting, and where \
             waking them is slow faults take twice as long",
            "in a virtual machine: modprobe cpuidle-haltpoll force=1",
        ),
        (Some(_), Err(error)) => Check::warning(
            NAME,
            format!(
                "they cannot be asked to poll instead of halting ({}: {}); where waking them is slow \
                 faults take twice as long",
                idle_poll::DEVICE,
                by_name(&error)
            ),
            format!("run as root, or setfacl -m u:USER:rw {}", idle_poll::DEVICE),
        ),
        (Some(driver), Ok(())) => {
            let why = format!("can be asked to poll while that makes faults faster ({driver})");
            Check::ok(NAME, why)
        }
    }
}

fn memory(total: Bytes, available: Bytes) -> Check {
    const NAME: &str = "memory";
    let why = format!("{available} of {total} are available");
    if available < MEMORY_LEAST {
        let advice = "end other programs, or name memory nodes that run already (--nodes)";
        return Check::warning(NAME, why, advice);
    }
    Check::ok(NAME, why)
}

fn cgroup(limit: Option<Bytes>, available: Bytes) -> Check {
    const NAME: &str = "cgroup";
    match limit {
        Some(limit) if limit < available => Check::warning(
            NAME,
            format!("the memory limit above us is {limit}; memory nodes of a run are inside it"),
            "choose --cache and --far within it, or run nodes outside and name them (--nodes)",
        ),
        Some(limit) => Check::ok(NAME, format!("the memory limit above us is {limit}")),
        None => Check::ok(NAME, "no memory limit above us"),
    }
}

/// From vm.overcommit_memory (Documentation/mm/overcommit-accounting.rst).
fn overcommit(mode: u64) -> Check {
    const NAME: &str = "overcommit";
    match mode {
        2 => Check::warning(
            NAME,
            "vm.overcommit_memory is 2: what the agents and nodes map counts against the limit \
             before it is used",
            "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        ),
        mode => Check::ok(NAME, format!("vm.overcommit_memory is {mode}")),
    }
}

fn swap(total: Bytes) -> Check {
    const NAME: &str = "swap";
    if total == Bytes(0) {
        return Check::ok(NAME, "none");
    }
    Check::warning(
        NAME,
        format!("{total}: when memory is short the kernel swaps memory nodes and caches too"),
        "swapoff -a, or keep --cache and --far well within the machine's memory",
    )
}

fn huge_pages(enabled: Option<&str>) -> Check {
    const NAME: &str = "huge pages";
    let Some(enabled) = enabled else {
        return Check::ok(NAME, "the kernel has none");
    };
    let chosen = enabled
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let chosen = chosen.map_or("?", |(word, _)| word);
    match chosen {
        "always" => Check::ok(NAME, "always: they are split when their pages leave"),
        other => Check::ok(NAME, other),
    }
}

fn memfd(works: bool) -> Check {
    const NAME: &str = "shared memory";
    if works {
        return Check::ok(NAME, "memfd_create works (/dev/shm is not needed)");
    }
    let why = "memfd_create is refused: there would be neither an agent nor far memory";
    Check::cannot(NAME, why, "sysctl vm.memfd_noexec=0, or allow memfd_create")
}

/// From the soft limit, if there is one.
fn descriptors(soft: Option<u64>) -> Check {
    const NAME: &str = "descriptors";
    let Some(soft) = soft else {
        return Check::ok(NAME, "no limit (RLIMIT_NOFILE)");
    };
    let served = soft.saturating_sub(DESCRIPTORS_SPARE) / DESCRIPTORS_OF_CLIENT;
    let why = format!("RLIMIT_NOFILE is {soft}");
    if served < u64::from(CLIENTS_MAX) {
        let why = format!("{why}: a memory node can serve about {served} processes");
        return Check::warning(NAME, why, "raise it for more (ulimit -n)");
    }
    Check::ok(NAME, why)
}

fn locked() -> Check {
    let limit = match getrlimit(Resource::Memlock).current {
        Some(limit) => Bytes(limit).to_string(),
        None => "unlimited".to_owned(),
    };
    let why = format!("RLIMIT_MEMLOCK is {limit}; nothing is locked");
    Check::ok("locked memory", why)
}

fn mappings(count: u64) -> Check {
    const NAME: &str = "mappings";
    let why = format!("vm.max_map_count is {count}");
    if count < MAP_COUNT_DEFAULT {
        let advice = format!("sysctl vm.max_map_count={MAP_COUNT_DEFAULT}");
        return Check::warning(NAME, why, advice);
    }
    Check::ok(NAME, why)
}

/// The text of a small file, without the last newline.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

pub(super) fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

fn meminfo(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::kib(kib))
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn what_is_short_is_a_warning() {
        let verdicts = [
            (processors(1), Verdict::Warning),
            (processors(2), Verdict::Ok),
            (idle_processors(Some("haltpoll"), Ok(())), Verdict::Ok),
            (idle_processors(Some("none"), Ok(())), Verdict::Warning),
            (idle_processors(None, Ok(())), Verdict::Warning),
            (
                idle_processors(
                    Some("haltpoll"),
                    Err(std::io::ErrorKind::PermissionDenied.into()),
                ),
                Verdict::Warning,
            ),
            (memory(Bytes::gib(1), Bytes::mib(100)), Verdict::Warning),
            (memory(Bytes::gib(8), Bytes::gib(7)), Verdict::Ok),
            (cgroup(Some(Bytes::gib(1)), Bytes::gib(8)), Verdict::Warning),
            (cgroup(Some(Bytes::gib(9)), Bytes::gib(8)), Verdict::Ok),
            (cgroup(None, Bytes::gib(8)), Verdict::Ok),
            (overcommit(2), Verdict::Warning),
            (overcommit(0), Verdict::Ok),
            (swap(Bytes::gib(1)), Verdict::Warning),
            (swap(Bytes(0)), Verdict::Ok),
            (huge_pages(Some("[always] madvise never")), Verdict::Ok),
            (memfd(true), Verdict::Ok),
            (memfd(false), Verdict::Cannot),
            (descriptors(Some(1024)), Verdict::Ok),
            (descriptors(Some(256)), Verdict::Warning),
            (descriptors(None), Verdict::Ok),
            (mappings(65_530), Verdict::Ok),
            (mappings(1_000), Verdict::Warning),
        ];
        for (check, verdict) in verdicts {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_some(), verdict != Verdict::Ok, "{check:?}");
        }
    }
}
