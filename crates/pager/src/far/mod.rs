//! The memory nodes as the pager sees them: connections, extents, slots.

mod buffer;
mod extents;
mod nodes;
mod room;
mod slots;
mod spare;

pub use buffer::FrameBuffer;
pub(crate) use extents::{ExtentUse, Extents};
pub use nodes::{FarShortage, NodeEnd, NodeIndex, NodePlace};
pub(crate) use nodes::{FarStore, StoreEvent};

/// Slots of an extent: 8 MiB of pages.
pub(crate) const EXTENT_SLOTS: u32 = 2048;
/// The smallest extent asked for when a node is nearly full.
pub(crate) const EXTENT_SLOTS_MIN: u32 = 64;
