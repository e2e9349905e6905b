//! Providers of verbs on real machines. Here are the system calls and the `unsafe` that the
//! engines above do without.
//!
//! No C library: the agent inside a program may not share the program's, so every system call
//! goes through rustix's own assembly and every descriptor is close-on-exec. The provider on RDMA
//! devices alone needs one, and is there with the feature `ibverbs` only.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "ibverbs"))]
extern crate std;

mod any;
mod foreign;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
mod memory;
mod poll;
pub mod proxy;
pub mod roce;
mod shared;
pub mod shm;
mod table;

pub use any::AnyProvider;
pub use foreign::ForeignMemory;
#[cfg(feature = "ibverbs")]
pub use ibverbs::IbverbsProvider;
pub use poll::Pollable;
pub use proxy::{ProxyProvider, ProxyServer};
pub use roce::RoceProvider;
pub use shared::{SharedNic, SharedProvider};
pub use shm::ShmProvider;
