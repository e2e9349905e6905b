//! A running hash of everything that happened: two histories are equal if their hashes are. And,
//! when somebody wants to read them, the last lines of it.

use legato_base::Time;
use std::collections::VecDeque;

/// FNV-1a over 64-bit words (Fowler, Noll, Vo), with a shift so that high bits matter below too.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    /// 0 if nobody wants to read them.
    lines_max: usize,
}

/// What happened: a number of its own for each place in the code.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Killed = 1,
    Event = 2,
    Sent = 3,
    Arrived = 4,
    Dropped = 5,
    Completion = 6,
    Timer = 7,
    Removed = 8,
    Link = 9,
    LateWrite = 10,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: 0xCBF2_9CE4_8422_2325,
            lines: VecDeque::new(),
            lines_max: 0,
        }
    }
}

impl Trace {
    pub(super) fn word(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        self.hash = mixed ^ (mixed >> 29);
    }

    pub(super) fn at(&mut self, time: Time, kind: Kind, machine: usize) {
        self.word(time.as_nanos());
        self.word((kind as u64) << 32 | machine as u64);
    }

    pub(super) const fn value(&self) -> u64 {
        self.hash
    }

    /// Keeps that many lines from now on; 0 for none.
    pub(super) fn keep(&mut self, lines_max: usize) {
        self.lines_max = lines_max;
        while self.lines.len() > lines_max {
            self.lines.pop_front();
        }
    }

    pub(super) fn line(&mut self, time: Time, text: impl FnOnce() -> String) {
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() >= self.lines_max {
            self.lines.pop_front();
        }
        let (micros, nanos) = (time.as_nanos() / 1000, time.as_nanos() % 1000);
        self.lines
            .push_back(format!("{micros}.{nanos:03}us {}", text()));
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
