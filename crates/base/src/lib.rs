//! The vocabulary of Legato: ids, units, time, randomness, checksums, and every byte layout
//! that crosses a wire or a process boundary.
//!
//! Nothing here does I/O, reads a clock or allocates threads; it compiles without `std` because
//! the agent inside a program must not share that program's C library.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod checksum;
pub mod histogram;
pub mod id;
pub mod random;
pub mod secret;
pub mod system_error;
pub mod time;
pub mod timeouts;
pub mod units;
pub mod wire;

pub use checksum::PageChecksum;
pub use id::{ClientId, ExtentId, SlotIndex};
pub use random::Random;
pub use system_error::SystemError;
pub use time::{Duration, Time};
pub use units::{Bytes, PAGE_SHIFT, PAGE_SIZE, PageNumber};
