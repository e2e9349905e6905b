//! Providers of verbs on real machines. Here are the system calls and the `unsafe` that the
//! engines above do without.
//!
//! No C library: the agent inside a program may not share the program's, so every system call
//! goes through rustix's own assembly and every descriptor is close-on-exec.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod foreign;
mod poll;
pub mod shm;

pub use foreign::ForeignMemory;
pub use poll::Pollable;
pub use shm::ShmProvider;
