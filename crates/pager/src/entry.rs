//! What the pager knows of one page.

use crate::FrameIndex;
use core::num::NonZeroU32;
use legato_base::PageChecksum;

/// A slot at some memory node: an extent of the far store and a slot in it, packed. The number is
/// kept plus one, so that an optional one takes no more room: there is one for each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotRef(NonZeroU32);

impl SlotRef {
    pub(crate) const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number.wrapping_add(1)) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    pub(crate) const fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// The process's word on a far copy: what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FarRecord {
    pub(crate) version: u64,
    pub(crate) checksum: PageChecksum,
}

/// Where a page's newest content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the program. `far`, where there is one, may be older.
    Resident,
    /// In this frame, or on its way there: what it is there, the frame knows. Of a victim, `far` names
    /// the copy that is, or will be when the write-back is acknowledged, equal to it.
    InFrame(FrameIndex),
    /// Only in its far copy.
    Far,
    /// In the pager's own memory, because the page was on its way when the space was forked: in
    /// no frame and in no copy yet.
    Kept,
    /// No copy is left. The next touch gets SIGBUS.
    Lost,
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageEntry {
    pub(crate) location: Location,
    /// Its far copy; what that must be is the extent's to know.
    pub(crate) far: Option<SlotRef>,
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

// One for each far page, and one more in each forked child: it counts as local memory.
const _: () = assert!(size_of::<Option<PageEntry>>() == 20);
