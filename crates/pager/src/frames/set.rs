//! Sets of frames in which runs of neighbours are found by whole words.

use super::FrameIndex;
use alloc::vec;
use alloc::vec::Vec;

/// A set of frames.
#[derive(Debug)]
pub(super) struct FrameSet {
    words: Vec<u64>,
    frames: u32,
    count: u32,
    /// Where the search begins: after the last run that was found.
    cursor: u32,
}

impl FrameSet {
    /// None of so many frames.
    pub(super) fn new(frames: u32) -> Self {
        Self {
            words: vec![0; frames.div_ceil(u64::BITS) as usize],
            frames,
            count: 0,
            cursor: 0,
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn contains(&self, frame: FrameIndex) -> bool {
        let (word, bit) = place(frame.0);
        self.words[word] & bit != 0
    }

    pub(super) fn insert(&mut self, frame: FrameIndex) {
        let (word, bit) = place(frame.0);
        self.count += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub(super) fn remove(&mut self, frame: FrameIndex) {
        let (word, bit) = place(frame.0);
        self.count -= u32::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
    }

    /// Up to `length_max` neighbours of the set: the first at or after the cursor, or else from the
    /// beginning on. They stay in the set; the next search begins behind them.
    pub(super) fn find_run(&mut self, length_max: u32) -> Option<(FrameIndex, u32)> {
        if self.count == 0 {
            return None;
        }
        let found = self.next_in(self.cursor, self.frames);
        let start = found.or_else(|| self.next_in(0, self.cursor))?;
        let end = self.frames.min(start.saturating_add(length_max));
        let length = self.next_out(start, end) - start;
        self.cursor = start + length;
        Some((FrameIndex(start), length))
    }

    /// The first frame from `from` to before `end` that is in the set.
    fn next_in(&self, from: u32, end: u32) -> Option<u32> {
        let found = first_set(from, end, |word| self.words[word]);
        (found < end).then_some(found)
    }

    /// The first frame from `from` on that is not in the set, or `end`.
    fn next_out(&self, from: u32, end: u32) -> u32 {
        first_set(from, end, |word| !self.words[word])
    }
}

/// The first bit from `from` on that is set, or `end`.
fn first_set(from: u32, end: u32, word_at: impl Fn(usize) -> u64) -> u32 {
    let mut at = from;
    while at < end {
        let (word, bit) = place(at);
        let rest = word_at(word) & !(bit - 1);
        let base = at - at % u64::BITS;
        if rest != 0 {
            return end.min(base + rest.trailing_zeros());
        }
        at = base + u64::BITS;
    }
    end
}

const fn place(frame: u32) -> (usize, u64) {
    ((frame / u64::BITS) as usize, 1 << (frame % u64::BITS))
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
