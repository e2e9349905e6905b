//! What stays in local memory, and how the rest moves.
//!
//! [`engine::Pager`] is the policy: which pages are evicted, fetched, written back, prefetched,
//! and where they are. It knows the operating system only through the [`Kernel`] trait, so that
//! the simulator drives it with no kernel. `uffd` is the other side of that trait: the thin Linux
//! mechanism, and the agent's loop inside the program.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bit_set;
pub mod budget;
pub mod engine;
mod entry;
pub mod far;
mod frames;
mod kernel;
pub mod order;
mod prefetch;
mod range_set;
pub mod replacement;
mod table;
#[cfg(target_os = "linux")]
pub mod uffd;

pub use budget::Budget;
pub use engine::{
    IdlePollLog, Incoming, Newest, Pager, PagerConfig, PagerEvent, PagerFabric, PagerUsage, Round,
    SpaceEvent, SpinLog, Stuck,
};
pub use far::{FarShortage, FrameBuffer, NodeEnd, NodeIndex, NodePlace};
pub use frames::FrameIndex;
pub use kernel::{
    Charge, Departure, EvictError, FillError, FrameMemory, Kernel, PageRange, SpaceId, SpacePage,
};
pub use range_set::RangeSet;
