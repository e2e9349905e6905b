//! `--progress`: what a run does, while it does it. On a terminal a line that changes, elsewhere one now and
//! then.

use super::summary::processes;
use crate::output;
use legato_base::wire::stats::AgentCounters;
use legato_base::{Bytes, PAGE_SIZE};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Between two lines: as often as somebody who looks on wants it, and as is not too much in a log.
const LIVE_PACE: Duration = Duration::from_secs(1);
const LOG_PACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    is_live: bool,
    last: Instant,
    /// What all agents had served then, those that have ended included.
    faults: u64,
}

/// Of all processes together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) processes: usize,
    pub(crate) local: Bytes,
    pub(crate) far: Bytes,
    pub(crate) faults: u64,
}

impl Load {
    /// One that runs. Its counters are what a process has written: any number.
    pub(crate) fn add(&mut self, counters: &AgentCounters) {
        self.processes += 1;
        self.local.0 = self.local.0.saturating_add(counters.cache_bytes_current);
        let far = counters.far_pages_current.saturating_mul(PAGE_SIZE as u64);
        self.far.0 = self.far.0.saturating_add(far);
        self.add_ended(counters);
    }

    /// One that has ended.
    pub(crate) const fn add_ended(&mut self, counters: &AgentCounters) {
        self.faults = self.faults.saturating_add(counters.faults);
    }
}

impl Progress {
    pub(crate) fn start(now: Instant) -> Self {
        Self::new(now, std::io::stderr().is_terminal())
    }

    const fn new(now: Instant, is_live: bool) -> Self {
        Self {
            began: now,
            is_live,
            last: now,
            faults: 0,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.last + if self.is_live { LIVE_PACE } else { LOG_PACE }
    }

    pub(crate) fn turn(&mut self, now: Instant, cache: Bytes, load: impl FnOnce() -> Load) {
        if now < self.deadline() {
            return;
        }
        let line = self.line(now, cache, load());
        match self.is_live {
            true => output::show(&line),
            false => output::tell(line),
        }
    }

    fn line(&mut self, now: Instant, cache: Bytes, load: Load) -> String {
        let between = (now - self.last).as_secs_f64();
        let rate = load.faults.saturating_sub(self.faults) as f64 / between;
        (self.last, self.faults) = (now, load.faults);
        format!(
            "{}: {}, {} of {cache} local, {} far, {rate:.0} faults/s",
            output::clock(now - self.began),
            processes(load.processes),
            load.local,
            load.far,
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        output::show("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_all_processes_have_and_do() {
        let began = Instant::now();
        let mut progress = Progress::new(began, false);
        let counters = AgentCounters {
            cache_bytes_current: 24 << 20,
            far_pages_current: 512,
            faults: 3_000,
            ..AgentCounters::default()
        };
        let mut load = Load::default();
        load.add(&counters);
        load.add_ended(&counters);
        let at = began + Duration::from_secs(60);
        assert_eq!(
            progress.line(at, Bytes::mib(64), load),
            "1:00: 1 process, 24 MiB of 64 MiB local, 2 MiB far, 100 faults/s"
        );
        load.add(&counters);
        assert_eq!(
            progress.line(at + Duration::from_secs(2), Bytes::mib(64), load),
            "1:02: 2 processes, 48 MiB of 64 MiB local, 4 MiB far, 1500 faults/s"
        );
    }

    #[test]
    fn a_log_has_fewer_lines_than_a_terminal() {
        let now = Instant::now();
        let paces = [true, false].map(|is_live| Progress::new(now, is_live).deadline() - now);
        assert_eq!(paces, [LIVE_PACE, LOG_PACE]);
        let mut progress = Progress::new(now, false);
        progress.turn(now + LIVE_PACE, Bytes(0), || panic!("too early"));
        progress.turn(now + LOG_PACE, Bytes(0), Load::default);
        assert_eq!(progress.deadline(), now + LOG_PACE + LOG_PACE);
    }
}
