//! The memory control groups that this process is in (cgroups(7)), of either hierarchy.

use legato_base::Bytes;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Where both hierarchies are mounted, and the first one's controller of memory below.
const ROOT: &str = "/sys/fs/cgroup";
const FIRST_ROOT: &str = "/sys/fs/cgroup/memory";
/// The first hierarchy has a number near 2^63 for no limit.
const UNLIMITED: u64 = 1 << 62;

/// A hierarchy's names: of the limit and of what is charged, and, in `memory.stat`, of those parts of the
/// page cache that the kernel drops before it says that there is no more. Shared memory is in none of
/// them, though it counts as `file`.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    dropped: [&'static str; 2],
}

const FIRST: Hierarchy = Hierarchy {
    root: FIRST_ROOT,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    dropped: ["total_inactive_file", "total_active_file"],
};

const SECOND: Hierarchy = Hierarchy {
    root: ROOT,
    limit: "memory.max",
    usage: "memory.current",
    dropped: ["inactive_file", "active_file"],
};

/// The lowest limit of this process's groups and all above them.
pub(crate) fn memory_limit() -> Option<Bytes> {
    own_groups().iter().filter_map(Group::limit).min()
}

/// What can still be charged to all of them.
pub(super) fn memory_left() -> Option<Bytes> {
    own_groups().iter().filter_map(Group::left).min()
}

#[derive(Debug)]
struct Group {
    directory: PathBuf,
    of: &'static Hierarchy,
}

/// This process's groups and all above them. It may be moved to others at any time.
fn own_groups() -> Vec<Group> {
    let text = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let lines = text.lines().filter_map(group_of);
    let groups = lines.flat_map(|(of, path)| {
        let below = Path::new(path.trim_start_matches('/'));
        below.ancestors().map(move |part| Group {
            directory: Path::new(of.root).join(part),
            of,
        })
    });
    groups.collect()
}

/// A line of /proc/PID/cgroup, if memory is what its hierarchy may limit.
fn group_of(line: &str) -> Option<(&'static Hierarchy, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if number == "0" {
        return Some((&SECOND, path));
    }
    let memory = controllers.split(',').any(|name| name == "memory");
    memory.then_some((&FIRST, path))
}

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        let text = read_to_string(self.directory.join(file)).ok()?;
        text.trim().parse().ok()
    }

    fn limit(&self) -> Option<Bytes> {
        let limit = self.number(self.of.limit)?;
        (limit < UNLIMITED).then_some(Bytes(limit))
    }

    fn left(&self) -> Option<Bytes> {
        let limit = self.limit()?;
        let usage = self.number(self.of.usage)?;
        let statistics = read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let dropped: u64 = statistics
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.of.dropped.contains(name))
            .filter_map(|(_, number)| number.parse::<u64>().ok())
            .sum();
        Some(Bytes(limit.0.saturating_sub(usage.saturating_sub(dropped))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_groups_of_both_hierarchies_are_found() {
        for (line, expected) in [
            ("0::/user.slice/a", Some((&SECOND, "/user.slice/a"))),
            ("9:memory:/docker/b", Some((&FIRST, "/docker/b"))),
            ("4:cpu,memory:/c:d", Some((&FIRST, "/c:d"))),
            ("3:cpu,cpuacct:/", None),
            ("garbage", None),
        ] {
            assert_eq!(group_of(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_left_is_the_limit_without_what_cannot_be_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let group = Group {
            directory: directory.path().to_owned(),
            of: &SECOND,
        };
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        assert_eq!((group.limit(), group.left()), (None, None));
        write("memory.max", "max\n");
        assert_eq!((group.limit(), group.left()), (None, None));
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        assert_eq!(group.left(), Some(Bytes(100)));
        let statistics = "anon 500\nfile 300\ninactive_file 40\nactive_file 60\nshmem 200\n";
        write("memory.stat", statistics);
        assert_eq!(group.limit(), Some(Bytes(1000)));
        assert_eq!(group.left(), Some(Bytes(200)));
        // Lowered below what is there.
        write("memory.max", "700\n");
        assert_eq!(group.left(), Some(Bytes(0)));
        let first = Group {
            directory: directory.path().to_owned(),
            of: &FIRST,
        };
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(first.limit(), None);
    }
}
