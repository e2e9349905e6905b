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
