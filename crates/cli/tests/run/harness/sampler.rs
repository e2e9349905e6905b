//! Watches from outside, as often as it can, what a program and its children use.

use super::process::{Process, Resident, descendants};
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
    /// Shared memory of all programs together, at its highest: the far memory they have mapped.
    pub(crate) shared_peak: u64,
    pub(crate) samples: u64,
    /// Everything that ran, the supervisor and the nodes included.
    pub(crate) processes: BTreeSet<Process>,
    /// Names of Unix sockets that any of them held.
    pub(crate) sockets: BTreeSet<String>,
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
    pub(crate) fn of(root: Process, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let every = if pause < CLOSE { SAMPLES_PER_SEARCH } else { 1 };
            let mut programs = Vec::new();
            while !stopped.load(Relaxed) {
                if seen.samples % every == 0 {
                    let all = descendants(root);
                    programs = all.iter().copied().filter(Process::is_program).collect();
                    seen.note(&all);
                }
                seen.sample(&programs);
                std::thread::sleep(pause);
            }
            seen
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> Seen {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

impl Seen {
    fn sample(&mut self, programs: &[Process]) {
        self.samples += 1;
        let now: Vec<Resident> = programs.iter().filter_map(Process::resident).collect();
        self.anonymous_peak = self
            .anonymous_peak
            .max(now.iter().map(|one| one.anonymous).sum());
        self.shared_peak = self.shared_peak.max(now.iter().map(|one| one.shared).sum());
    }

    fn note(&mut self, all: &[Process]) {
        self.processes.extend(all);
        let inodes: BTreeSet<String> = all.iter().flat_map(Process::sockets).collect();
        self.sockets.extend(
            unix_sockets()
                .into_iter()
                .filter(|(inode, _)| inodes.contains(inode))
                .map(|(_, name)| name),
        );
    }
}

/// Inode and name of every named Unix socket of the machine; abstract names begin with @.
pub(crate) fn unix_sockets() -> Vec<(String, String)> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let named = |line: &str| {
        let mut fields = line.split_whitespace().skip(6);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    table.lines().skip(1).filter_map(named).collect()
}
