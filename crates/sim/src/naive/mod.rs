//! A stack as they were, whose failures are on record.
//!
//! LegoOS' FIT (2018), Lustre's o2iblnd and IPoIB's connected mode (2008) failed in ways that
//! their authors wrote down. [`NaiveStack`] does calls and one-sided operations over any provider
//! as those stacks did, as far as their descriptions say; no line is theirs. Each bad habit is a
//! switch in [`Habits`], so that a test can show that the habit is the cause, and that the same
//! schedule does not hurt `legato-fabric`.
//!
//! With every habit off it is a small stack that does nothing wrong, and little at all: it has no
//! credits, no quarantine, and no way to find out that a silent peer is gone.

mod calls;
mod habits;
mod header;
mod one_sided;
mod receives;
mod stack;
mod teardown;

pub use calls::Asked;
pub use habits::Habits;
pub use stack::{NaiveConfig, NaiveCounters, NaiveEvent, NaiveStack};
