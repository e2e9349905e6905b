//! Sets of frames in which runs of neighbours are found.

use super::FrameIndex;
use crate::bit_set::BitSet;

/// A set of frames.
#[derive(Debug)]
pub(super) struct FrameSet {
    frames: BitSet,
    /// Where the search begins: after the last run that was found.
    cursor: u32,
}

impl FrameSet {
    /// None of so many frames.
    pub(super) fn new(frames: u32) -> Self {
        Self {
            frames: BitSet::new(frames),
            cursor: 0,
        }
    }

    /// All of so many frames.
    pub(super) fn full(frames: u32) -> Self {
        Self {
            frames: BitSet::full(frames),
            cursor: 0,
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.frames.count()
    }

    pub(super) fn contains(&self, frame: FrameIndex) -> bool {
        self.frames.contains(frame.0)
    }

    pub(super) fn insert(&mut self, frame: FrameIndex) {
        self.frames.insert(frame.0);
    }

    pub(super) fn remove(&mut self, frame: FrameIndex) {
        self.frames.remove(frame.0);
    }

    /// Up to `length_max` neighbours of the set: the first at or after the cursor, or else from the
    /// beginning on. They stay in the set; the next search begins behind them.
    pub(super) fn find_run(&mut self, length_max: u32) -> Option<(FrameIndex, u32)> {
        if self.count() == 0 {
            return None;
        }
        let frames = &self.frames;
        let found = frames.next_in(self.cursor, frames.end());
        let start = found.or_else(|| frames.next_in(0, self.cursor))?;
        let end = frames.end().min(start.saturating_add(length_max));
        let length = frames.next_out(start, end) - start;
        self.cursor = start + length;
        Some((FrameIndex(start), length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;

    #[test]
    fn it_finds_what_a_walk_over_all_frames_finds() {
        const FRAMES: u32 = 150;
        let mut random = Random::from_seed(1);
        let mut set = FrameSet::new(FRAMES);
        let mut model = [false; FRAMES as usize];
        for _ in 0..20_000 {
            let frame = random.below(u64::from(FRAMES)) as u32;
            match random.below(4) {
                0 => {
                    set.insert(FrameIndex(frame));
                    model[frame as usize] = true;
                }
                1 => {
                    set.remove(FrameIndex(frame));
                    model[frame as usize] = false;
                }
                _ => {
                    let length_max = 1 + random.below(100) as u32;
                    let cursor = set.cursor;
                    let found = set.find_run(length_max);
                    let mut walk = (cursor..FRAMES).chain(0..cursor);
                    let start = walk.find(|&frame| model[frame as usize]);
                    let expected = start.map(|start| {
                        let run = model[start as usize..].iter().take(length_max as usize);
                        let length = run.take_while(|&&is_in| is_in).count() as u32;
                        (FrameIndex(start), length)
                    });
                    assert_eq!(found, expected);
                }
            }
            let count = model.iter().filter(|&&is_in| is_in).count() as u32;
            assert_eq!(set.count(), count);
        }
    }

    #[test]
    fn a_run_may_be_as_long_as_the_set() {
        let mut set = FrameSet::new(130);
        (0..130).for_each(|frame| set.insert(FrameIndex(frame)));
        assert_eq!(set.find_run(u32::MAX), Some((FrameIndex(0), 130)));
        assert_eq!(set.find_run(63), Some((FrameIndex(0), 63)));
        assert_eq!(set.find_run(u32::MAX), Some((FrameIndex(63), 67)));
    }
}
