//! The Linux mechanism: userfaultfd in full mode with events, batched MOVE, and the agent's loop.
//!
//! All code here but [`injection`] runs in the agent: a task that shares the program's memory and
//! nothing else. It calls no C library, and touches no memory that it serves faults for.

mod abi;
pub mod agent;
mod context;
mod copy_out;
mod dropper;
mod eligible;
mod fault_count;
mod features;
pub mod filter;
mod frame_memory;
pub mod hand;
mod held;
pub mod injection;
mod layout;
mod linux_kernel;
mod mappings;
mod message;
mod opening;
mod peer;
pub mod probe;
mod proc;
mod processor_clock;
mod program;
mod replaced;
mod residency;
mod supervisor;
mod system_call;
pub mod task_state;
mod transfer;
mod users;

pub use context::Userfaultfd;
pub use dropper::{StartTask, TaskMain};
pub use features::{FeatureError, Mask, UnknownName};
pub use held::HeldMemory;
pub use layout::{HEAP_OFFSET, Layout, RESERVATION, STACK_OFFSET, STACK_SIZE};
pub use opening::{OpenError, Privileged, device, handshake_for, is_userfaultfd};
pub use peer::Peer;
pub use proc::is_own as has_own_proc;
pub use program::{raise_descriptor_limit, same_memory};
pub use system_call::{outcome, system_call};
pub use users::Sharer;
