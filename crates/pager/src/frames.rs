//! The pool of frames: page-sized places in the agent's memory that pages pass through on their
//! way out of the program and back.
//!
//! A frame is empty (a hole: moving a page out fills it), free (it has memory, its content means
//! nothing: a fetch fills it) or in use. One batched move needs neighbours on both sides, so the
//! pool hands out runs.

use alloc::vec;
use alloc::vec::Vec;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameIndex(pub u32);

impl FrameIndex {
    #[must_use]
    pub(crate) const fn plus(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    Empty,
    Free,
    Used,
}

/// Which frames are empty, free and in use.
#[derive(Debug)]
pub(crate) struct FramePool {
    states: Vec<FrameState>,
    empty: u32,
    free: u32,
    /// Where the search for a run of empty or free frames starts: after the last one found.
    cursor_empty: usize,
    cursor_free: usize,
}

impl FramePool {
    /// All frames are empty at first.
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            states: vec![FrameState::Empty; frames as usize],
            empty: frames,
            free: 0,
            cursor_empty: 0,
            cursor_free: 0,
        }
    }

    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    pub(crate) const fn empty(&self) -> u32 {
        self.empty
    }

    /// Frames that have memory.
    pub(crate) fn with_memory(&self) -> u32 {
        self.states.len() as u32 - self.empty
    }

    /// Takes up to `count` neighbouring empty frames for pages that move out.
    pub(crate) fn take_empty_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let (start, found) = self.find(FrameState::Empty, self.cursor_empty, count)?;
        self.cursor_empty = start + found as usize;
        self.set(start, found, FrameState::Used);
        Some((FrameIndex(start as u32), found))
    }

    /// Takes up to `count` neighbouring free frames for pages that are fetched.
    pub(crate) fn take_free_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let (start, found) = self.find(FrameState::Free, self.cursor_free, count)?;
        self.cursor_free = start + found as usize;
        self.set(start, found, FrameState::Used);
        Some((FrameIndex(start as u32), found))
    }

    /// A used frame whose content no longer matters.
    pub(crate) fn release(&mut self, frame: FrameIndex) {
        self.change(frame, FrameState::Used, FrameState::Free);
    }

    /// A used frame whose memory has moved away.
    pub(crate) fn emptied(&mut self, frame: FrameIndex) {
        self.change(frame, FrameState::Used, FrameState::Empty);
    }

    fn change(&mut self, frame: FrameIndex, from: FrameState, to: FrameState) {
        assert_eq!(
            self.states[frame.0 as usize], from,
            "invariant: frame {} is in use",
            frame.0
        );
        self.set(frame.0 as usize, 1, to);
    }

    fn find(&self, wanted: FrameState, cursor: usize, count: u32) -> Option<(usize, u32)> {
        let total = self.states.len();
        let start = (0..total)
            .map(|step| (cursor + step) % total)
            .find(|&index| self.states[index] == wanted)?;
        let run = self.states[start..]
            .iter()
            .take(count as usize)
            .take_while(|&&state| state == wanted)
            .count();
        Some((start, run as u32))
    }

    fn set(&mut self, start: usize, count: u32, to: FrameState) {
        for state in &mut self.states[start..start + count as usize] {
            match *state {
                FrameState::Empty => self.empty -= 1,
                FrameState::Free => self.free -= 1,
                FrameState::Used => {}
            }
            match to {
                FrameState::Empty => self.empty += 1,
                FrameState::Free => self.free += 1,
                FrameState::Used => {}
            }
            *state = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_and_counts_add_up() {
        let mut pool = FramePool::new(8);
        assert!(pool.take_free_run(1).is_none());
        let (start, count) = pool.take_empty_run(3).unwrap();
        assert_eq!((start, count), (FrameIndex(0), 3));
        pool.release(FrameIndex(1));
        assert_eq!((pool.free(), pool.empty()), (1, 5));
        assert_eq!(pool.take_free_run(4), Some((FrameIndex(1), 1)));
        pool.emptied(FrameIndex(1));
        assert_eq!(pool.take_empty_run(8), Some((FrameIndex(3), 5)));
        assert_eq!(pool.take_empty_run(8), Some((FrameIndex(1), 1)));
        assert!(pool.take_empty_run(8).is_none());
    }

    #[test]
    #[should_panic(expected = "in use")]
    fn a_frame_is_not_released_twice() {
        let mut pool = FramePool::new(2);
        pool.take_empty_run(1).unwrap();
        pool.release(FrameIndex(0));
        pool.release(FrameIndex(0));
    }
}
