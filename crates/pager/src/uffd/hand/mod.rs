//! The hand: a task in a forked child that does for the parent's agent what can only be done from
//! inside the child's address space.
//!
//! With the child's userfaultfd and its `/proc` files the agent registers, fills, protects and
//! scans the child's memory from outside. But UFFDIO_MOVE works only for a task of the same
//! address space, and so does `madvise`. The hand moves pages into its *staging* pages, from
//! which the agent reads them, and drops those.

pub(super) mod protocol;
pub(super) mod remote;
mod serve;

pub use serve::{HandStart, STACK_SIZE, STAGING_PAGES, run};

#[cfg(test)]
mod tests;
