//! The memory nodes as the pager sees them: connections, extents, slots.

mod buffer;
mod extents;
mod nodes;

pub use buffer::FrameBuffer;
pub(crate) use extents::Extents;
pub use nodes::NodeIndex;
pub(crate) use nodes::{FarStore, StoreEvent};

use legato_base::Duration;

/// A node that does not answer a request for this long is treated as lost. Generous: with one
/// copy, giving up means losing memory.
pub(crate) const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// Slots of an extent: 8 MiB of pages.
pub(crate) const EXTENT_SLOTS: u32 = 2048;
/// The smallest extent asked for when a node is nearly full.
pub(crate) const EXTENT_SLOTS_MIN: u32 = 64;
