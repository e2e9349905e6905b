//! Watches from outside, as often as it can, what a program and its children use.

use super::process::{Process, Resident, descendants};
use super::verdict::{Waits, stolen};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// What was seen of the processes below `legato run`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Anonymous memory of all programs together (nodes and supervisor apart), at its highest.
    pub(crate) anonymous_peak: u64,
    /// Who had it then.
    pub(crate) at_peak: Vec<(Process, Resident)>,
    /// Shared memory of all programs together, at its highest: the far memory they have mapped.
    pub(crate) shared_peak: u64,
    pub(crate) samples: u64,
    /// Everything that ran, the supervisor and the nodes included.
    pub(crate) processes: BTreeSet<Process>,
    /// Of the last sample.
    resident: Vec<(Process, Resident)>,
    /// Names of Unix sockets that any of them held, where they are noted.
    pub(crate) sockets: BTreeSet<String>,
    /// Directories of runs, as their keepers know them.
    pub(crate) directories: BTreeSet<String>,
    pub(crate) waits: Waits,
}

#[derive(Debug)]
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// Looks for new processes once in so many close samples, because that is slower than a sample.
const SAMPLES_PER_SEARCH: u64 = 32;
/// A pause below this makes samples close.
const CLOSE: Duration = Duration::from_millis(1);

impl Sampler {
    pub(crate) fn of(root: Process, pause: Duration, notes_sockets: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let every = if pause < CLOSE { SAMPLES_PER_SEARCH } else { 1 };
            let mut programs = Vec::new();
            let stolen_before = stolen();
            while !stopped.load(Relaxed) {
                if seen.samples % every == 0 {
                    let all = descendants(root);
                    programs = all.iter().copied().filter(Process::is_program).collect();
                    seen.processes.extend(&all);
                    seen.waits.search(&all);
                    if notes_sockets {
                        seen.note_sockets(&all);
                        let commands = all.iter().map(Process::command);
                        let kept = commands.filter_map(|command| {
                            Some(command.strip_prefix("legato keep ")?.trim_end().to_owned())
                        });
                        seen.directories.extend(kept);
                    }
                }
                seen.sample(&programs);
                seen.waits.look();
                std::thread::park_timeout(pause);
            }
            seen.waits.stolen = stolen().saturating_sub(stolen_before);
            seen
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> Seen {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap()
    }
}

impl Seen {
    fn sample(&mut self, programs: &[Process]) {
        self.samples += 1;
        // What was about to become an agent when it was found is one by now.
        let programs = programs.iter().filter(|one| !one.shares_memory());
        let now: Vec<(Process, Resident)> = programs
            .filter_map(|one| Some((*one, one.resident()?)))
            .collect();
        let held = held_through(&self.resident, &now);
        let anonymous: u64 = held.iter().map(|one| one.anonymous).sum();
        if anonymous > self.anonymous_peak {
            self.anonymous_peak = anonymous;
            self.at_peak.clone_from(&now);
        }
        self.shared_peak = self
            .shared_peak
            .max(held.iter().map(|one| one.shared).sum());
        self.resident = now;
    }

    fn note_sockets(&mut self, all: &[Process]) {
        let inodes: BTreeSet<String> = all.iter().flat_map(Process::sockets).collect();
        self.sockets.extend(
            unix_sockets()
                .into_iter()
                .filter(|(inode, _)| inodes.contains(inode))
                .map(|(_, name)| name),
        );
    }
}

/// What each process had in two samples. Processes are looked at one after the other: what one
/// has given up and another taken between two looks would count twice in a single sample.
pub(crate) fn held_through(
    before: &[(Process, Resident)],
    now: &[(Process, Resident)],
) -> Vec<Resident> {
    if let [(_, only)] = now {
        return vec![*only];
    }
    let both = now.iter().filter_map(|(process, now)| {
        let (_, before) = before.iter().find(|(one, _)| one == process)?;
        Some(Resident {
            anonymous: now.anonymous.min(before.anonymous),
            shared: now.shared.min(before.shared),
        })
    });
    both.collect()
}

/// Inode and name of every named Unix socket of the machine; abstract names begin with @.
fn unix_sockets() -> Vec<(String, String)> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let named = |line: &str| {
        let mut fields = line.split_whitespace().skip(6);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    table.lines().skip(1).filter_map(named).collect()
}
