//! The words that processes share without a lock, and the fences between them.
//!
//! What is built on them is written once for any [`Words`]: the tests run the very code that ships
//! on words of `loom`, which tries every order in which the other side may see them.

use core::fmt;
use core::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// A word that one side stores and all load.
pub(crate) trait Word<T>: fmt::Debug {
    fn load(&self, ordering: Ordering) -> T;
    fn store(&self, value: T, ordering: Ordering);
}

/// A kind of words, with the fences that order them.
pub(crate) trait Words: fmt::Debug {
    type Word32: Word<u32>;
    type Word64: Word<u64>;

    fn fence(ordering: Ordering);
}

/// The processor's own.
#[derive(Debug)]
pub(crate) enum Processor {}

impl Words for Processor {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline(always)]
    fn fence(ordering: Ordering) {
        atomic::fence(ordering);
    }
}

impl Word<u32> for AtomicU32 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u32 {
        Self::load(self, ordering)
    }

    #[inline(always)]
    fn store(&self, value: u32, ordering: Ordering) {
        Self::store(self, value, ordering);
    }
}

impl Word<u64> for AtomicU64 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u64 {
        Self::load(self, ordering)
    }

    #[inline(always)]
    fn store(&self, value: u64, ordering: Ordering) {
        Self::store(self, value, ordering);
    }
}
