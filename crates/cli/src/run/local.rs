//! Processes of a run without far memory: each is counted, and each reason is told once of each command.

use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Name of the file that has their number, as links in `/proc/PID/fd` show it.
pub(crate) const LOCAL_NAME: &str = "legato-local";
/// Bytes of that: a little-endian number.
pub(crate) const LOCAL_SIZE: usize = 8;
/// So many are listed in `--stats`; the others are only counted.
const LIST_MAX: usize = 1000;

/// A process that keeps all of its memory in local RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalProcess {
    pub(crate) pid: i32,
    pub(crate) command: String,
    /// With whose fault it is, and what they can do.
    pub(crate) why: String,
}

/// All of a run, also those that have ended.
#[derive(Debug)]
pub(crate) struct LocalProcesses {
    count: u64,
    list: Vec<LocalProcess>,
    told: BTreeSet<(String, String)>,
    /// For `legato ps`.
    file: File,
}

impl LocalProcesses {
    pub(crate) fn new() -> std::io::Result<Self> {
        let new = Self {
            count: 0,
            list: Vec::new(),
            told: BTreeSet::new(),
            file: File::from(memfd_create(LOCAL_NAME, MemfdFlags::CLOEXEC)?),
        };
        new.publish();
        Ok(new)
    }

    /// Returns what the user should know, unless that has been told of the same command.
    pub(crate) fn add(&mut self, process: LocalProcess) -> Option<String> {
        self.count += 1;
        self.publish();
        let LocalProcess { pid, command, why } = &process;
        let line = format!(
            "{command} ({pid}) runs without far memory, and does not count in --cache: {why}"
        );
        let is_news = self.told.insert((command.clone(), why.clone()));
        if self.list.len() < LIST_MAX {
            self.list.push(process);
        }
        is_news.then_some(line)
    }

    /// Without room for a page of memory the number stays what it was.
    fn publish(&self) {
        let _ = self.file.write_all_at(&self.count.to_le_bytes(), 0);
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The first ones.
    pub(crate) fn into_list(self) -> Vec<LocalProcess> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_and_each_reason_told_once_of_each_command() {
        let mut all = LocalProcesses::new().unwrap();
        let process = |pid, command: &str, why: &str| LocalProcess {
            pid,
            command: command.into(),
            why: why.into(),
        };
        let line = all.add(process(7, "sh", "no")).unwrap();
        assert_eq!(
            line,
            "sh (7) runs without far memory, and does not count in --cache: no"
        );
        assert_eq!(all.add(process(8, "sh", "no")), None);
        assert!(all.add(process(9, "sh", "never")).is_some());
        assert!(all.add(process(10, "awk", "no")).is_some());
        assert_eq!(all.count(), 4);
        let mut bytes = [0; LOCAL_SIZE];
        all.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 4);
        for pid in 11..2000 {
            assert_eq!(all.add(process(pid, "awk", "no")), None);
        }
        assert_eq!(all.count(), 1993);
        let list = all.into_list();
        assert_eq!((list.len(), list[1].pid), (LIST_MAX, 8));
    }
}
