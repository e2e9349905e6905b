//! A memory cgroup with a limit, for one run of the comparison with Linux swap.

use crate::failure::advised;
use crate::output::tell;
use crate::{machine, own_process};
use legato_base::{Bytes, Duration};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long a killed process may take to end before it is looked for again.
const END_MAX: Duration = Duration::from_secs(5);

/// Why there is no group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupError {
    #[error("no memory cgroup is mounted where this process could make a group of its own")]
    NoHierarchy,
    #[error("{}: {}", .path.display(), advised(cause))]
    System {
        path: PathBuf,
        cause: std::io::Error,
    },
}

/// A group that is removed when this is dropped, with all that runs in it.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    directory: PathBuf,
}

/// Where a group can be made, and the name of the file that limits it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    limit_file: &'static str,
}

impl MemoryGroup {
    /// Below the group of this process, so that limits which hold for it go on to hold.
    pub(crate) fn create(limit: Bytes) -> Result<Self, GroupError> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|cause| GroupError::System {
                path: path.into(),
                cause,
            })
        };
        let place = find(&read("/proc/self/mounts")?, &read("/proc/self/cgroup")?)
            .ok_or(GroupError::NoHierarchy)?;
        let at = |path: &Path, cause| GroupError::System {
            path: path.into(),
            cause,
        };
        let name = machine::random_name().map_err(|cause| at(&place.parent, cause))?;
        let directory = place.parent.join(format!("legato-bench-{name}"));
        std::fs::create_dir(&directory).map_err(|cause| at(&directory, cause))?;
        let group = Self { directory };
        let file = group.directory.join(place.limit_file);
        std::fs::write(&file, limit.0.to_string()).map_err(|cause| at(&file, cause))?;
        Ok(group)
    }

    /// A command that starts the program inside the group. The shell enters it and then becomes
    /// the program, so that nothing of the program is charged elsewhere.
    pub(crate) fn command(&self, program: &[OsString]) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.processes())
            .args(program);
        command
    }

    /// The file that lists them, and takes them in.
    fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Kills what the program left running, which would go on to be limited and swapped, and waits for
    /// its end.
    fn empty(&self) -> std::io::Result<()> {
        let list = || std::fs::read_to_string(self.processes());
        loop {
            let listed = list()?;
            let Some(first) = listed.lines().next() else {
                return Ok(());
            };
            let pid = first.parse().ok().and_then(Pid::from_raw);
            let pid = pid.ok_or(std::io::ErrorKind::InvalidData)?;
            let process = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(process) => process,
                Err(rustix::io::Errno::SRCH) => continue,
                Err(error) => return Err(error.into()),
            };
            // Read again: a number that is listed while a process is held is that process's own, or a
            // successor's, in which case the held one has ended and no signal reaches it.
            if list()?.lines().any(|line| line == first) {
                // Fails only if it has ended.
                let _ = pidfd_send_signal(&process, Signal::KILL);
                own_process::wait_readable(&process, END_MAX);
            }
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = self
            .empty()
            .and_then(|()| std::fs::remove_dir(&self.directory))
        {
            tell(format_args!(
                "cannot remove {}: {}",
                self.directory.display(),
                advised(&error)
            ));
        }
    }
}

/// Version 1 before version 2: a controller is in one hierarchy only, and where both are mounted,
/// memory is mostly in the first.
fn find(mounts: &str, own: &str) -> Option<Place> {
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, found, options) = (fields.next()?, fields.next()?, fields.next()?);
            let matches = found == kind && (option.is_empty() || has_word(options, ',', option));
            matches.then(|| PathBuf::from(path))
        })
    };
    let own = |wanted: fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/'))
        })
    };
    if let Some(root) = mount("cgroup", "memory") {
        let parent = root.join(own(|controllers| has_word(controllers, ',', "memory"))?);
        return Some(Place {
            // Inside a container the path may be one that is not mounted here.
            parent: if parent.is_dir() { parent } else { root },
            limit_file: "memory.limit_in_bytes",
        });
    }
    let root = mount("cgroup2", "")?;
    let start = root.join(own(str::is_empty)?);
    // A group with processes can pass no controller on (cgroups(7)): the next above that does.
    let parent = start
        .ancestors()
        .take_while(|directory| directory.starts_with(&root))
        .find(|directory| {
            std::fs::read_to_string(directory.join("cgroup.subtree_control"))
                .is_ok_and(|controllers| has_word(controllers.trim(), ' ', "memory"))
        })?;
    Some(Place {
        parent: parent.to_path_buf(),
        limit_file: "memory.max",
    })
}

fn has_word(text: &str, separator: char, word: &str) -> bool {
    text.split(separator).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_found_by_its_controller() {
        let mounts = "cgroup /nowhere/cpu cgroup rw,cpu 0 0\n\
                      cgroup /nowhere/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /nowhere/unified cgroup2 rw 0 0\n";
        let own = "9:name=systemd:/\n4:memory:/a/b\n0::/\n";
        let place = find(mounts, own).unwrap();
        assert_eq!(place.parent, Path::new("/nowhere/memory"));
        assert_eq!(place.limit_file, "memory.limit_in_bytes");
    }

    #[test]
    fn the_second_version_needs_a_group_that_passes_the_controller_on() {
        let root = tempfile::tempdir().unwrap();
        let middle = root.path().join("slice");
        std::fs::create_dir_all(middle.join("own")).unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        assert_eq!(find(&mounts, "0::/slice/own\n"), None);
        std::fs::write(middle.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        let place = find(&mounts, "0::/slice/own\n").unwrap();
        assert_eq!(place.parent, middle);
        assert_eq!(place.limit_file, "memory.max");
    }
}
