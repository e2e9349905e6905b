//! Words of `loom`, whole or with a planted defect, and a ring made of its cells, which notice
//! when two sides use one byte without an order between them.

use super::segment::{Header, Line, Segment};
use super::words::{Word, Words};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{self, AtomicU32, AtomicU64};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is wrong with the words.
pub(super) type Defect = u8;
/// Nothing.
pub(super) const NONE: Defect = 0;
/// Stores do not release.
pub(super) const RELAXED_STORES: Defect = 1;
/// Loads do not acquire.
pub(super) const RELAXED_LOADS: Defect = 2;
/// There are no fences.
pub(super) const NO_FENCES: Defect = 3;
/// A word that was loaded once is taken to stay as it was: a second look is none.
pub(super) const ONE_LOOK: Defect = 4;

#[derive(Debug)]
pub(super) struct Loom<const DEFECT: Defect>;

pub(super) struct Loomed<A, T, const DEFECT: Defect> {
    atomic: A,
    /// For [`ONE_LOOK`]: the word as each thread first saw it.
    first: std::sync::Mutex<Vec<(loom::thread::ThreadId, T)>>,
}

impl<const DEFECT: Defect> Words for Loom<DEFECT> {
    type Word32 = Loomed<AtomicU32, u32, DEFECT>;
    type Word64 = Loomed<AtomicU64, u64, DEFECT>;

    fn fence(ordering: Ordering) {
        if DEFECT != NO_FENCES {
            atomic::fence(ordering);
        }
    }
}

macro_rules! word {
    ($integer:ty, $atomic:ty) => {
        impl<const DEFECT: Defect> Loomed<$atomic, $integer, DEFECT> {
            pub(super) fn new(value: $integer) -> Self {
                Self {
                    atomic: <$atomic>::new(value),
                    first: std::sync::Mutex::default(),
                }
            }
        }

        impl<const DEFECT: Defect> Word<$integer> for Loomed<$atomic, $integer, DEFECT> {
            fn load(&self, ordering: Ordering) -> $integer {
                let ordering = match DEFECT {
                    RELAXED_LOADS => Ordering::Relaxed,
                    _ => ordering,
                };
                let value = self.atomic.load(ordering);
                if DEFECT != ONE_LOOK {
                    return value;
                }
                let this = loom::thread::current().id();
                let mut first = self.first.lock().unwrap();
                match first.iter().find(|(thread, _)| *thread == this) {
                    Some((_, value)) => *value,
                    None => {
                        first.push((this, value));
                        value
                    }
                }
            }

            fn store(&self, value: $integer, ordering: Ordering) {
                let ordering = match DEFECT {
                    RELAXED_STORES => Ordering::Relaxed,
                    _ => ordering,
                };
                self.atomic.store(value, ordering);
            }
        }
    };
}

word!(u32, AtomicU32);
word!(u64, AtomicU64);

impl<A: fmt::Debug, T, const DEFECT: Defect> fmt::Debug for Loomed<A, T, DEFECT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.atomic.fmt(f)
    }
}

/// Bytes of the ring: a message with eight bytes fits, and the next one wraps.
pub(super) const RING: u64 = 32;

/// A segment as both sides have it mapped.
#[derive(Debug)]
pub(super) struct Shared<const DEFECT: Defect> {
    header: Header<Loom<DEFECT>>,
    /// By eight bytes, as messages are aligned.
    ring: Vec<UnsafeCell<[u8; 8]>>,
}

impl<const DEFECT: Defect> Shared<DEFECT> {
    pub(super) fn create() -> Arc<Self> {
        Arc::new(Self {
            header: Header {
                produced: Line(Loomed::<AtomicU64, u64, DEFECT>::new(0)),
                consumed: Line(Loomed::<AtomicU64, u64, DEFECT>::new(0)),
                delivered: Loomed::<AtomicU64, u64, DEFECT>::new(0),
                refusal: Loomed::<AtomicU32, u32, DEFECT>::new(0),
                state: Loomed::<AtomicU32, u32, DEFECT>::new(0),
                parameters: Loomed::<AtomicU32, u32, DEFECT>::new(0),
                posted: Loomed::<AtomicU64, u64, DEFECT>::new(0),
                shortest: Loomed::<AtomicU32, u32, DEFECT>::new(0),
                sleeping: Line(Loomed::<AtomicU32, u32, DEFECT>::new(0)),
            },
            ring: (0..RING / 8).map(|_| UnsafeCell::new([0; 8])).collect(),
        })
    }

    /// The cells of a place, each with the number of its bytes that are meant.
    fn cells(
        &self,
        place: u64,
        length: u32,
    ) -> impl Iterator<Item = (&UnsafeCell<[u8; 8]>, usize)> {
        assert!(place.is_multiple_of(8), "messages are aligned");
        let first = place as usize / 8;
        (0..length.div_ceil(8) as usize).map(move |cell| {
            let bytes = (length as usize - cell * 8).min(8);
            (&self.ring[first + cell], bytes)
        })
    }
}

impl<const DEFECT: Defect> Segment for Arc<Shared<DEFECT>> {
    type Words = Loom<DEFECT>;
    const RING_BYTES: u64 = RING;

    fn header(&self) -> &Header<Loom<DEFECT>> {
        &self.header
    }

    unsafe fn copy_in(&self, from: *const u8, place: u64, length: u32) {
        for (cell, (to, bytes)) in self.cells(place, length).enumerate() {
            // SAFETY: `from` has `length` bytes; loom panics if the cell is not ours alone.
            to.with_mut(|to| unsafe { from.add(cell * 8).copy_to(to.cast(), bytes) });
        }
    }

    unsafe fn copy_out(&self, place: u64, to: *mut u8, length: u32) {
        for (cell, (from, bytes)) in self.cells(place, length).enumerate() {
            // SAFETY: `to` has `length` bytes; loom panics if somebody may write the cell now.
            from.with(|from| unsafe { from.cast::<u8>().copy_to(to.add(cell * 8), bytes) });
        }
    }
}

/// Runs `scene` in every order that differs in at most `preemptions` places where a thread that
/// could go on is interrupted.
pub(super) fn in_every_order(preemptions: usize, scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(scene);
}

/// What `loom` says of a scene that has an order in which it fails.
pub(super) fn failure(scene: impl Fn() + Sync + Send + 'static) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| in_every_order(3, scene)));
    let payload = failed.expect_err("every order was as it should be");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => String::from(*payload.downcast::<&str>().unwrap()),
    }
}
