//! The shared object that `legato run` loads into a program: it starts the agent before `main`.
//!
//! It is freestanding: no C library, no thread-local storage, no symbol needed or exported. So it
//! works in programs of any C library, interposes nothing, and cannot touch the program's heap or
//! locks. Built as an ordinary library (for checks and lints) it does nothing.
#![no_std]
#![cfg_attr(
    not(legato_shared_object),
    allow(dead_code, reason = "entered only when loaded")
)]

extern crate alloc;

mod entry;
mod environment;
#[cfg(legato_shared_object)]
mod freestanding;
mod hand;
mod heap;
mod line;
mod provider;
mod task;
