//! What the pager knows of one page.

use crate::FrameIndex;
use legato_base::PageChecksum;

/// Copies that a record has room for. One is used until replication comes.
pub(crate) const COPIES_MAX: usize = 2;

/// A slot at some memory node: an extent of the far store and a slot in it, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotRef(pub(crate) u32);

impl SlotRef {
    /// Stands for "no copy" in a record.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// The process's word on a page's far copies: where they are, and what they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FarRecord {
    pub(crate) slots: [SlotRef; COPIES_MAX],
    pub(crate) version: u64,
    pub(crate) checksum: PageChecksum,
}

impl FarRecord {
    pub(crate) const fn first(slot: SlotRef, version: u64, checksum: PageChecksum) -> Self {
        Self {
            slots: [slot, SlotRef::NONE],
            version,
            checksum,
        }
    }

    pub(crate) const fn slot(&self) -> SlotRef {
        self.slots[0]
    }
}

/// Where a page's newest content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the program. `far`, where there is one, may be older.
    Resident,
    /// Moved out, in a frame of the victim list. `far` names the copy that is, or will be when
    /// the write-back is acknowledged, equal to it.
    Victim {
        frame: FrameIndex,
        write_back: WriteBack,
    },
    /// Only in its far copy.
    Far,
    /// In its far copy, and on its way.
    Fetching { frame: FrameIndex, demanded: bool },
    /// Fetched and checked; enters the program with the next batch.
    Arrived { frame: FrameIndex, demanded: bool },
    /// No copy is left. The next touch gets SIGBUS.
    Lost,
}

/// How far a victim's way to its node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    Queued,
    InFlight,
    /// The far copy is good: the frame may be taken at any time.
    Done,
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageEntry {
    pub(crate) location: Location,
    pub(crate) far: Option<FarRecord>,
    /// Came in by prefetch and has not been touched as far as the pager can see.
    pub(crate) prefetched: bool,
    /// The pager has not held its content since it was first touched or adopted: only the kernel
    /// knows it.
    pub(crate) unseen: bool,
    /// On its way back from the victim list.
    pub(crate) returning: bool,
    /// While resident: which of the page's places in the replacement queue counts. While out: the
    /// eviction clock when it left.
    pub(crate) stamp: u32,
}
