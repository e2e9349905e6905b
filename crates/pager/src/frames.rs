//! The pool of frames: page-sized places in the agent's memory that pages pass through on their
//! way out of the program and back.
//!
//! A frame is empty (a hole: moving a page out fills it), free (it has memory, its content means
//! nothing: a fetch fills it) or in use. One batched move needs neighbours on both sides, so the
//! pool hands out runs.
//!
//! Memory that was moved out of a program is never written again. A pipe (vmsplice(2)), a socket
//! (MSG_ZEROCOPY) or another process's read may still refer to it, which the kernel neither
//! prevents MOVE by nor tells anybody: such a frame becomes stale, and its memory must be dropped.
//! Whoever refers to it keeps what it had.

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
    /// In use, with memory that was moved out of a program.
    UsedForeign,
    /// No longer in use, with memory that was moved out of a program.
    Stale,
}

/// Which frames are empty, free and in use.
#[derive(Debug)]
pub(crate) struct FramePool {
    states: Vec<FrameState>,
    empty: u32,
    free: u32,
    stale: u32,
    /// Where the search for a run of empty or free frames starts: after the last one found.
    cursor_empty: usize,
    cursor_free: usize,
    cursor_stale: usize,
}

impl FramePool {
    /// All frames are empty at first.
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            states: vec![FrameState::Empty; frames as usize],
            empty: frames,
            free: 0,
            stale: 0,
            cursor_empty: 0,
            cursor_free: 0,
            cursor_stale: 0,
        }
    }

    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    pub(crate) const fn empty(&self) -> u32 {
        self.empty
    }

    /// Frames that hold or await a page.
    pub(crate) const fn used(&self) -> u32 {
        self.states.len() as u32 - self.empty - self.free - self.stale
    }

    /// Frames whose memory must be dropped before anything else.
    pub(crate) const fn stale(&self) -> u32 {
        self.stale
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

    /// Takes up to `count` neighbouring stale frames, whose memory is to be dropped. They count as
    /// in use until [`Self::emptied`] or [`Self::release`].
    pub(crate) fn take_stale_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        if self.stale == 0 {
            return None;
        }
        let (start, found) = self.find(FrameState::Stale, self.cursor_stale, count)?;
        self.cursor_stale = start + found as usize;
        self.set(start, found, FrameState::UsedForeign);
        Some((FrameIndex(start as u32), found))
    }

    /// A used frame got its memory from a program.
    pub(crate) fn mark_foreign(&mut self, frame: FrameIndex) {
        let _was = self.state_in_use(frame);
        self.set(frame.0 as usize, 1, FrameState::UsedForeign);
    }

    /// A used frame whose content no longer matters.
    #[track_caller]
    pub(crate) fn release(&mut self, frame: FrameIndex) {
        let to = match self.state_in_use(frame) {
            FrameState::UsedForeign => FrameState::Stale,
            _ => FrameState::Free,
        };
        self.set(frame.0 as usize, 1, to);
    }

    /// A used frame whose memory has moved away.
    #[track_caller]
    pub(crate) fn emptied(&mut self, frame: FrameIndex) {
        let _was = self.state_in_use(frame);
        self.set(frame.0 as usize, 1, FrameState::Empty);
    }

    #[track_caller]
    fn state_in_use(&self, frame: FrameIndex) -> FrameState {
        let state = self.states[frame.0 as usize];
        assert!(
            matches!(state, FrameState::Used | FrameState::UsedForeign),
            "invariant: frame {} is in use",
            frame.0
        );
        state
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
                FrameState::Stale => self.stale -= 1,
                FrameState::Used | FrameState::UsedForeign => {}
            }
            match to {
                FrameState::Empty => self.empty += 1,
                FrameState::Free => self.free += 1,
                FrameState::Stale => self.stale += 1,
                FrameState::Used | FrameState::UsedForeign => {}
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
    fn memory_of_a_program_is_dropped_before_its_frame_is_used_again() {
        let mut pool = FramePool::new(3);
        pool.take_empty_run(3).unwrap();
        pool.mark_foreign(FrameIndex(0));
        pool.mark_foreign(FrameIndex(1));
        (0..3).for_each(|frame| pool.release(FrameIndex(frame)));
        assert_eq!((pool.free(), pool.stale(), pool.empty()), (1, 2, 0));
        assert_eq!(pool.take_free_run(3), Some((FrameIndex(2), 1)));
        assert_eq!(pool.take_free_run(1), None);
        assert_eq!(pool.take_stale_run(3), Some((FrameIndex(0), 2)));
        pool.emptied(FrameIndex(0));
        // What could not be dropped stays stale.
        pool.release(FrameIndex(1));
        assert_eq!((pool.free(), pool.stale(), pool.empty()), (0, 1, 1));
        // With other memory it is a frame like any other.
        assert_eq!(pool.take_empty_run(1), Some((FrameIndex(0), 1)));
        pool.release(FrameIndex(0));
        assert_eq!(pool.free(), 1);
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
