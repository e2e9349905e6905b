//! Waiting until every thread has announced what it has done.
//!
//! A thread that is taken off its CPU between letting the address space go and queueing its event
//! announces late, and a thread that is let go on meanwhile may do anything with what the first one gave
//! up. As long as nothing is read everybody who has announced something waits; so before the next
//! reading each thread is given the time to get there. If something has come in that time, somebody may
//! be late who came before that, and the waiting begins anew. What is there when nothing has come is all
//! that was done before any of it, and exactly that is read: the kernel hands announcements out in the
//! order in which they were queued.

use super::LinuxKernel;
use super::waits::Waits;
use crate::SpaceId;
use crate::order::Sequence;
use crate::uffd::agent::now;
use crate::uffd::hand::remote::Hand;
use crate::uffd::program::{Thread, has_threads, is_readable, threads_of_all};
use alloc::vec::Vec;
use legato_base::Duration;
use legato_base::timeouts::{ANNOUNCEMENTS, Patience};
use rustix::process::Pid;
use rustix::thread::{Timespec, nanosleep};

/// A hundred times what the way from the unlock to the queue takes.
const RUN: u64 = 50_000;
/// From one look to the next, even if this task gets no CPU for a while.
const LOOK: Duration = Duration::from_millis(10);
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000,
};

/// Who may not have announced yet what it has done.
#[derive(Debug)]
pub(super) struct Gathering {
    patience: Patience,
    /// Those that use the space.
    processes: Vec<Pid>,
    /// Announcements that were there at the beginning.
    announced: usize,
    /// Threads, and how long they had run.
    late: Vec<(Thread, u64)>,
}

/// What may be read of a space, and what that is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// So many changes, and the faults that come before them. None: whatever there is.
    pub(super) changes: Option<usize>,
    pub(super) sequence: Sequence,
}

impl Ready {
    /// What comes next is not told from what came before it.
    const INCOMPLETE: Self = Self {
        changes: None,
        sequence: Sequence::Incomplete,
    };
    const AT_ONCE: Self = Self {
        changes: None,
        sequence: Sequence::AtOnce,
    };
    const ALL: Self = Self {
        changes: None,
        sequence: Sequence::AsDone,
    };
}

impl Gathering {
    fn begin(
        processes: Vec<Pid>,
        threads: &[Thread],
        waits: &mut Waits,
        patience: Patience,
    ) -> Self {
        // Who is late is looked for afterwards.
        let announced = waits.count_announced(threads);
        let late = threads
            .iter()
            .filter_map(|&thread| Some((thread, running_for(thread)?)));
        Self {
            patience,
            processes,
            announced,
            late: late.collect(),
        }
    }

    fn nobody_is_late(&mut self) -> bool {
        self.late.retain(|&(thread, before)| {
            running_for(thread).is_some_and(|time| time < before + RUN)
        });
        self.late.is_empty()
    }

    /// What may be read, once nobody is late and nothing has come since the beginning.
    fn outcome(&mut self, waits: &mut Waits) -> Option<Ready> {
        if self.patience.waited(now()) >= ANNOUNCEMENTS {
            return Some(Ready::INCOMPLETE);
        }
        if !self.nobody_is_late() {
            return None;
        }
        let threads = threads_of_all(&self.processes);
        match waits.count_announced(&threads) {
            // Whoever waits is none of the threads that are known, or it cannot be seen.
            0 if self.announced == 0 => Some(Ready::INCOMPLETE),
            count if count == self.announced => Some(Ready {
                changes: Some(count),
                sequence: Sequence::Simultaneous,
            }),
            _ => {
                let processes = core::mem::take(&mut self.processes);
                *self = Self::begin(processes, &threads, waits, self.patience);
                None
            }
        }
    }
}

impl LinuxKernel {
    /// Waits until each thread of a space waits or has run for a while. None if there is nothing to be
    /// read; or for now, if a thread has met a missing page meanwhile.
    pub(super) fn gather(&mut self, space: SpaceId) -> Option<Ready> {
        let mut waits = core::mem::take(&mut self.space_mut(space)?.waits);
        let ready = self.gather_with(space, &mut waits);
        self.space_mut(space)?.waits = waits;
        ready
    }

    fn gather_with(&mut self, space: SpaceId, waits: &mut Waits) -> Option<Ready> {
        let begun = self.space_mut(space)?.gathering.take();
        let watched = self.space(space)?;
        let context = &watched.context;
        if !is_readable(context.fd()) {
            return None;
        }
        let processes = self.processes_of(space);
        if processes.is_empty() {
            return Some(Ready::INCOMPLETE);
        }
        let mut gathering = if let Some(gathering) = begun {
            gathering
        } else {
            let threads = threads_of_all(&processes);
            if threads.len() <= 1 {
                return Some(Ready::ALL);
            }
            Gathering::begin(processes, &threads, waits, Patience::new(LOOK, now()))
        };
        loop {
            // What there is to read are faults.
            if !context.is_changing() {
                return None;
            }
            let outcome = gathering.outcome(waits);
            if outcome.is_some() {
                return outcome;
            }
            let _ = nanosleep(&PAUSE);
            if watched.waiting_faults() > 0 {
                self.space_mut(space)?.gathering = Some(gathering);
                return None;
            }
        }
    }

    /// What may be read of a space whose threads have not been seen to move memory. None if one of them
    /// does so now.
    pub(super) fn look_for_moves(&mut self, space: SpaceId, is_changing: bool) -> Option<Ready> {
        let context = &self.space(space)?.context;
        // What comes meanwhile may be anybody's.
        if !is_changing {
            return Some(Ready::AT_ONCE);
        }
        let processes = self.processes_of(space);
        if processes.is_empty() {
            return Some(Ready::AT_ONCE);
        }
        // One thread announces in order.
        if matches!(processes[..], [process] if !has_threads(process)) {
            return Some(Ready::ALL);
        }
        // Whoever has announced it last may need a processor to go on.
        if !is_readable(context.fd()) {
            return None;
        }
        let threads = threads_of_all(&processes);
        let waits = &mut self.space_mut(space)?.waits;
        let count = waits.count_announced(&threads).max(1);
        // Whoever announces something from here on is behind those that were counted.
        (!waits.is_anyone_in_mremap(&threads)).then_some(Ready {
            changes: Some(count),
            ..Ready::AT_ONCE
        })
    }

    pub(super) fn is_anyone_in_mremap(&mut self, space: SpaceId, processes: &[Pid]) -> bool {
        let threads = threads_of_all(processes);
        self.space_mut(space)
            .is_some_and(|space| space.waits.is_anyone_in_mremap(&threads))
    }

    /// The processes whose threads use a space, as far as they are known.
    pub(super) fn processes_of(&self, space: SpaceId) -> Vec<Pid> {
        if space == SpaceId::OWN {
            let program = Pid::from_raw(self.program);
            return program
                .into_iter()
                .chain(self.sharers.iter().copied())
                .collect();
        }
        let child = self.children.get(&space);
        let hand = child.and_then(|child| child.hand.as_ref());
        hand.map(Hand::child).into_iter().collect()
    }
}

/// How long a thread has run, in nanoseconds. None if it waits for something other than a CPU, or is gone.
fn running_for(thread: Thread) -> Option<u64> {
    let stat = thread.file("stat")?;
    // The name before it may hold anything (proc_pid_stat(5)).
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (state == 'R').then(|| thread.run_time())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_thread_that_runs_has_a_time_that_grows_and_one_that_waits_has_none() {
        let process = rustix::process::getpid();
        let thread = |id| Thread { process, id };
        let (this, done) = (thread(rustix::thread::gettid()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let grown = loop {
                    // While this thread looks, the first one waits for it.
                    if running_for(this).is_none() {
                        break running_for(thread(rustix::thread::gettid())).is_some();
                    }
                };
                done.store(true, Ordering::Release);
                grown
            });
            assert!(other.join().unwrap());
        });
        assert!(done.load(Ordering::Acquire));
        let before = running_for(this).unwrap();
        while running_for(this).unwrap() < before + RUN {}
    }
}
