//! A memory control group with a hard limit (cgroup v2 `memory.max`, or v1).

use super::{PATIENCE, poll_until};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Cgroup {
    directory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// A new group, or why this machine lets nobody make one here.
    pub(crate) fn limited_to(bytes: u64) -> Result<Self, String> {
        let (parent, version) = hierarchy()?;
        let directory = parent.join(format!("legato-test-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let group = Self { directory, version };
        group.limit_to(bytes)?;
        Ok(group)
    }

    pub(crate) fn limit_to(&self, bytes: u64) -> Result<(), String> {
        let limit = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let written = fs::write(self.directory.join(limit), bytes.to_string());
        written.map_err(|error| format!("{limit}: {error}"))
    }

    /// Bytes charged to the group now.
    pub(crate) fn usage(&self) -> u64 {
        self.number(match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        })
    }

    /// What starts a program in the group: a shell becomes it.
    pub(crate) fn enter(&self) -> Vec<String> {
        let script = "echo $$ >\"$0\"/cgroup.procs && exec \"$@\"";
        let directory = self.directory.display().to_string();
        vec!["/bin/sh".into(), "-c".into(), script.into(), directory]
    }

    /// How often the limit was in the way of an allocation.
    pub(crate) fn limit_hits(&self) -> u64 {
        match self.version {
            Version::One => self.number("memory.failcnt"),
            Version::Two => {
                let events = fs::read_to_string(self.directory.join("memory.events")).unwrap();
                let of = |name: &str| -> u64 {
                    let line = events.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap().trim().parse().unwrap()
                };
                of("max ") + of("oom ")
            }
        }
    }

    /// Bytes charged to the group at most. None on kernels that do not tell (v2 before 5.19).
    pub(crate) fn peak(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        self.directory
            .join(name)
            .exists()
            .then(|| self.number(name))
    }

    fn number(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.directory.join(name)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Busy for a moment after its last process has ended.
        poll_until("the group is gone", PATIENCE, || {
            fs::remove_dir(&self.directory).is_ok() || !self.directory.exists()
        });
    }
}

/// Where memory groups are made.
fn hierarchy() -> Result<(PathBuf, Version), String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut unusable = "no cgroup hierarchy with a memory controller is mounted".to_owned();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, path, kind, options, ..] = fields[..] else {
            continue;
        };
        let path = Path::new(path);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                return Ok((path.to_owned(), Version::One));
            }
            "cgroup2" if has_memory(&path.join("cgroup.controllers")) => {
                let control = path.join("cgroup.subtree_control");
                if has_memory(&control) || fs::write(&control, "+memory").is_ok() {
                    return Ok((path.to_owned(), Version::Two));
                }
                unusable = format!("{} cannot be written", control.display());
            }
            _ => {}
        }
    }
    Err(unusable)
}

fn has_memory(list: &Path) -> bool {
    let list = fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().any(|name| name == "memory")
}
