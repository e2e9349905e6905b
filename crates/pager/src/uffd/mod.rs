//! The Linux mechanism: userfaultfd in full mode with events, batched MOVE, and the agent's loop.
//!
//! All code here runs in the agent: a task that shares the program's memory and nothing else. It
//! calls no C library, and touches no memory that it serves faults for.

mod abi;
pub mod agent;
mod context;
mod copy_out;
mod dropper;
mod eligible;
mod features;
mod frame_memory;
mod layout;
mod linux_kernel;
mod program;
mod range_set;
mod residency;
mod supervisor;

pub use context::{OpenError, Userfaultfd};
pub use dropper::{StartTask, TaskMain};
pub use features::FeatureError;
pub use layout::{HEAP_OFFSET, Layout, RESERVATION, STACK_OFFSET, STACK_SIZE};
