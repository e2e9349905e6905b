//! Ids, one type each, so that an extent is never passed where a slot is meant.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One client of a memory node: one agent in one process, drawn at random when it starts, so
    /// that a process that returns with the same pid is another client.
    ClientId(u64),
    "client-"
);
id!(
    /// One extent of a memory node. Never issued twice by one incarnation of a node.
    ExtentId(u64),
    "extent-"
);
id!(
    /// The place of one page inside an extent.
    SlotIndex(u32),
    "slot-"
);
