//! Queues of frames, linked through one place for each frame: a frame is in one of them at most, and
//! leaves it from wherever it is.

use super::FrameIndex;
use alloc::vec;
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// The places of all frames.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

impl Links {
    pub(super) fn new(frames: u32) -> Self {
        let link = Link {
            before: NONE,
            after: NONE,
        };
        Self(vec![link; frames as usize])
    }

    fn at(&mut self, frame: u32) -> Option<&mut Link> {
        self.0.get_mut(frame as usize)
    }
}

/// A queue, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
    length: u32,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            first: NONE,
            last: NONE,
            length: 0,
        }
    }

    pub(super) const fn length(&self) -> u32 {
        self.length
    }

    pub(super) const fn first(&self) -> Option<FrameIndex> {
        if self.first == NONE {
            None
        } else {
            Some(FrameIndex(self.first))
        }
    }

    /// The frame is in no queue.
    pub(super) fn push(&mut self, frame: FrameIndex, links: &mut Links) {
        links.0[frame.0 as usize] = Link {
            before: self.last,
            after: NONE,
        };
        match links.at(self.last) {
            Some(last) => last.after = frame.0,
            None => self.first = frame.0,
        }
        self.last = frame.0;
        self.length += 1;
    }

    /// The frame is in this queue.
    pub(super) fn remove(&mut self, frame: FrameIndex, links: &mut Links) {
        let Link { before, after } = links.0[frame.0 as usize];
        match links.at(before) {
            Some(link) => link.after = after,
            None => self.first = after,
        }
        match links.at(after) {
            Some(link) => link.before = before,
            None => self.last = before,
        }
        self.length -= 1;
    }

    pub(super) fn iter(self, links: &Links) -> impl Iterator<Item = FrameIndex> {
        let after = |frame: &FrameIndex| {
            let link = links.0[frame.0 as usize];
            (link.after != NONE).then_some(FrameIndex(link.after))
        };
        core::iter::successors(self.first(), after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;
    use std::collections::VecDeque;

    #[test]
    fn two_queues_agree_with_plain_ones() {
        const FRAMES: u32 = 40;
        let mut random = Random::from_seed(1);
        let mut links = Links::new(FRAMES);
        let mut queues = [Queue::new(); 2];
        let mut models = [const { VecDeque::new() }; 2];
        for _ in 0..20_000 {
            let frame = FrameIndex(random.below(u64::from(FRAMES)) as u32);
            let which = random.below(2) as usize;
            let place = models
                .iter()
                .position(|model: &VecDeque<_>| model.contains(&frame));
            if let Some(place) = place {
                queues[place].remove(frame, &mut links);
                models[place].retain(|&other| other != frame);
            } else {
                queues[which].push(frame, &mut links);
                models[which].push_back(frame);
            }
            for (queue, model) in queues.iter().zip(&models) {
                assert!(queue.iter(&links).eq(model.iter().copied()));
                assert_eq!(queue.first(), model.front().copied());
                assert_eq!(queue.length() as usize, model.len());
            }
        }
    }
}
