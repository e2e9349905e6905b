//! A frame on its way through the fabric.

use crate::{FrameIndex, FrameMemory};
use alloc::vec::Vec;
use legato_fabric::Buffer;
use legato_verbs::ScatterGatherEntry;

/// Owns a frame while an operation may touch it. It moves into the operation and comes back with
/// `Quiesced`; there is no other way to make one, and it cannot be cloned.
#[derive(Debug)]
pub struct FrameBuffer {
    frame: FrameIndex,
    entries: [ScatterGatherEntry; 2],
}

/// Does not compile if it can be cloned: then `exists` is ambiguous.
const _: fn() = {
    trait Once<How> {
        fn exists() {}
    }
    struct Clonable;
    impl<T> Once<()> for T {}
    impl<T: Clone> Once<Clonable> for T {}
    <FrameBuffer as Once<_>>::exists
};

impl FrameBuffer {
    pub(crate) fn new(frames: &impl FrameMemory, frame: FrameIndex) -> Self {
        Self {
            frame,
            entries: frames.entries(frame),
        }
    }

    pub(crate) const fn into_frame(self) -> FrameIndex {
        self.frame
    }
}

impl Buffer for FrameBuffer {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        self.entries.to_vec()
    }
}
