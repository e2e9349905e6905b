//! Processes as /proc shows them.

use super::{legato, poll_until};
use legato_base::wire::stats::{AgentCounters, STATS_NAME, StatsPage};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A process, told from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    start: u64,
}

/// Fields of proc_pid_stat(5), from 1.
const SESSION: usize = 6;
const EXIT_SIGNAL: usize = 38;

impl Process {
    pub(crate) fn find(pid: i32) -> Option<Self> {
        let (state, start) = state_and_start(pid)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, start })
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::find(self.pid) == Some(*self)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid).unwrap();
        // A process that has just ended needs no signal.
        let _ = kill_process(pid, signal);
    }

    /// A program of the test, not the supervisor, a node, or a process that is yet to become one.
    pub(crate) fn is_program(&self) -> bool {
        let executable = fs::read_link(format!("/proc/{}/exe", self.pid));
        executable.is_ok_and(|path| !path.starts_with(legato())) && !self.shares_memory()
    }

    /// True for the agent of a program and the hand in a child. They have the memory of another
    /// process, so counting both would count that twice.
    pub(crate) fn shares_memory(&self) -> bool {
        // Until they are reparented they end without a signal, unlike forked processes.
        self.leads_a_session() || self.stat_field(EXIT_SIGNAL).as_deref() == Some("0")
    }

    /// True for agents and hands, which leave the program's session first of all; none of the test
    /// programs does.
    pub(crate) fn leads_a_session(&self) -> bool {
        self.stat_field(SESSION) == Some(self.pid.to_string())
    }

    fn stat_field(&self, number: usize) -> Option<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        // The command name is in parentheses; the third field follows.
        let (_, after_name) = stat.rsplit_once(") ")?;
        Some(after_name.split(' ').nth(number - 3)?.to_owned())
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    pub(crate) fn userfaultfds(&self) -> usize {
        self.descriptors_of("[userfaultfd]")
    }

    /// What an agent has counted.
    pub(crate) fn counters(&self) -> Option<AgentCounters> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid));
        let paths = descriptors.into_iter().flatten().flatten();
        let is_theirs = |path: &PathBuf| {
            let target = fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().contains(STATS_NAME)
        };
        let path = paths.map(|entry| entry.path()).find(is_theirs)?;
        Some(StatsPage::parse(&fs::read(path).ok()?)?.counters)
    }

    /// Open descriptors, but for those whose target's name has `part`.
    pub(crate) fn descriptors_without(&self, part: &str) -> usize {
        self.count_descriptors(|target| !target.contains(part))
    }

    /// Those whose target's name has `part`.
    pub(crate) fn descriptors_of(&self, part: &str) -> usize {
        self.count_descriptors(|target| target.contains(part))
    }

    fn count_descriptors(&self, counts: impl Fn(&str) -> bool) -> usize {
        let all = fs::read_dir(format!("/proc/{}/fd", self.pid));
        let targets = all.into_iter().flatten().flatten();
        let counted = targets.filter(|entry| {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            counts(&target.to_string_lossy())
        });
        counted.count()
    }

    /// Where its stack is, while it waits in the kernel (proc_pid_syscall(5)).
    pub(crate) fn stack_pointer(&self) -> Option<u64> {
        let line = fs::read_to_string(format!("/proc/{}/syscall", self.pid)).ok()?;
        let fields: Vec<&str> = line.split_whitespace().collect();
        let pointer = fields
            .len()
            .checked_sub(2)
            .and_then(|index| fields.get(index))?;
        u64::from_str_radix(pointer.trim_start_matches("0x"), 16).ok()
    }

    /// VmFlags of the mapping at an address; ` um` among them means that missing pages are
    /// reported to a userfaultfd (proc_pid_smaps(5)).
    pub(crate) fn flags_of_mapping(&self, address: u64) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/smaps", self.pid)).ok()?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut inside = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            if let Some((Some(start), Some(end))) =
                range.map(|(start, end)| (number(start), number(end)))
            {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return Some(flags.to_owned());
            }
        }
        None
    }

    /// RssAnon and RssShmem of /proc/PID/status, in bytes.
    pub(crate) fn resident(&self) -> Option<Resident> {
        let [anonymous, shared] = self.numbers(["RssAnon:", "RssShmem:"])?;
        Some(Resident {
            anonymous: anonymous * 1024,
            shared: shared * 1024,
        })
    }

    /// How long its main thread was ready to run and had no processor (Documentation/scheduler/
    /// sched-stats.rst). Agents have one thread each.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let times = fs::read_to_string(format!("/proc/{}/schedstat", self.pid)).ok()?;
        let waited = times.split_whitespace().nth(1)?.parse().ok()?;
        Some(Duration::from_nanos(waited))
    }

    /// Time that all its threads have run.
    pub(crate) fn ran(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        let times = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
            times.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(times.sum())
    }

    /// How often its main thread has gone to sleep (proc_pid_status(5)).
    pub(crate) fn sleeps(&self) -> Option<u64> {
        let [sleeps] = self.numbers(["voluntary_ctxt_switches:"])?;
        Some(sleeps)
    }

    /// Numbers of /proc/PID/status, all of one moment.
    fn numbers<const N: usize>(&self, names: [&str; N]) -> Option<[u64; N]> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let number = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let mut numbers = [0; N];
        for (slot, name) in numbers.iter_mut().zip(names) {
            *slot = number(name)?;
        }
        Some(numbers)
    }

    /// `T` for one that has been stopped (proc_pid_stat(5)).
    pub(crate) fn state(&self) -> Option<char> {
        state_and_start(self.pid).map(|(state, _)| state)
    }

    pub(crate) fn command(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    /// What the process is and where each of its threads waits, for the message of a test that
    /// finds it hanging.
    pub(crate) fn describe(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        let threads = tasks.into_iter().flatten().flatten().map(|task| {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let field = |name| status.lines().find(|line| line.starts_with(name));
            format!(
                "{:?} {:?} {:?} in {}, system call {}, ns run and waiting to run {}",
                task.file_name(),
                field("State:"),
                field("TracerPid:"),
                read("wchan"),
                read("syscall").trim_end(),
                // Documentation/scheduler/sched-stats.rst
                read("schedstat").trim_end()
            )
        });
        let threads: Vec<String> = threads.collect();
        format!("{self:?} {}: {}", self.command(), threads.join("; "))
    }

    fn children(&self) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<i32> = lists
            .flat_map(|list| {
                list.split(' ')
                    .filter_map(|pid| pid.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        pids.into_iter().filter_map(Self::find).collect()
    }

    /// Inode numbers of the sockets that the process holds.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        let inode = |path: PathBuf| {
            Some(
                path.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        };
        targets.filter_map(inode).collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    pub(crate) anonymous: u64,
    pub(crate) shared: u64,
}

fn state_and_start(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, spaces and brackets included (proc_pid_stat(5)).
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some((
        fields.next()?.chars().next()?,
        fields.nth(18)?.parse().ok()?,
    ))
}

/// The process and everything below it.
pub(crate) fn descendants(root: Process) -> Vec<Process> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let children = found[next].children();
        found.extend(
            children
                .into_iter()
                .filter(|child| !found.contains(child))
                .collect::<Vec<_>>(),
        );
        next += 1;
    }
    found
}

/// Every process whose environment holds `mark`, whoever its parent is by now.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // Whole entries only: one run's mark may begin like another's.
        environment
            .split(|&byte| byte == 0)
            .any(|entry| entry == mark.as_bytes())
    };
    pids.filter(has_mark).filter_map(Process::find).collect()
}

pub(crate) fn wait_until_gone(processes: &[Process], limit: Duration) {
    let names: Vec<_> = processes
        .iter()
        .map(|process| (process.pid, process.command()))
        .collect();
    poll_until(&format!("all gone of {names:?}"), limit, || {
        !processes.iter().any(Process::is_alive)
    });
}
