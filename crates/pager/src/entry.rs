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

/// What else is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Came in by prefetch and has not been touched as far as the pager can see.
    Prefetched = 1 << 3,
    /// The pager has not held its content since it was first touched or adopted: only the kernel
    /// knows it.
    Unseen = 1 << 4,
    /// On its way back from the victim list.
    Returning = 1 << 5,
}

/// One page.
#[derive(Clone, Copy)]
pub(crate) struct PageEntry {
    /// Its location (3 bits), its flags (3 bits) and its frame (26 bits).
    word: u32,
    /// Its far copy; what that must be is the extent's to know.
    pub(crate) far: Option<SlotRef>,
    /// While resident: which of the page's places in the replacement queue counts. While out: the
    /// eviction clock when it left.
    pub(crate) stamp: u32,
}

// One for each far page, and one more in each forked child: it counts as local memory.
const _: () = assert!(size_of::<PageEntry>() == 12);

const FRAME_SHIFT: u32 = 6;
const FLAGS: u32 = 0b11_1000;
const KIND: u32 = 0b111;
const RESIDENT: u32 = 0;
const IN_FRAME: u32 = 1;
const FAR: u32 = 2;
const KEPT: u32 = 3;
const LOST: u32 = 4;

impl PageEntry {
    pub(crate) const fn new(location: Location, far: Option<SlotRef>, stamp: u32) -> Self {
        Self {
            word: pack(location),
            far,
            stamp,
        }
    }

    #[must_use]
    pub(crate) const fn with(mut self, flag: Flag) -> Self {
        self.word |= flag as u32;
        self
    }

    pub(crate) const fn location(&self) -> Location {
        match self.word & KIND {
            RESIDENT => Location::Resident,
            IN_FRAME => Location::InFrame(FrameIndex(self.word >> FRAME_SHIFT)),
            FAR => Location::Far,
            KEPT => Location::Kept,
            _ => Location::Lost,
        }
    }

    pub(crate) const fn set_location(&mut self, location: Location) {
        self.word = self.word & FLAGS | pack(location);
    }

    pub(crate) const fn is(&self, flag: Flag) -> bool {
        self.word & flag as u32 != 0
    }

    pub(crate) const fn set(&mut self, flag: Flag, value: bool) {
        self.word &= !(flag as u32);
        if value {
            self.word |= flag as u32;
        }
    }

    /// Clears a flag, and says whether it was set.
    pub(crate) const fn take(&mut self, flag: Flag) -> bool {
        let was = self.is(flag);
        self.set(flag, false);
        was
    }

    /// True of zeros that have never entered, or may have entered and were never seen.
    pub(crate) const fn is_zeros(&self) -> bool {
        self.is(Flag::Unseen) && self.far.is_none()
    }
}

const fn pack(location: Location) -> u32 {
    match location {
        Location::Resident => RESIDENT,
        Location::InFrame(FrameIndex(frame)) => {
            debug_assert!(frame < FrameIndex::END);
            IN_FRAME | frame << FRAME_SHIFT
        }
        Location::Far => FAR,
        Location::Kept => KEPT,
        Location::Lost => LOST,
    }
}

impl core::fmt::Debug for PageEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let flags = [Flag::Prefetched, Flag::Unseen, Flag::Returning];
        let set = flags.into_iter().filter(|&flag| self.is(flag));
        write!(f, "{:?}", self.location())?;
        set.into_iter()
            .try_for_each(|flag| write!(f, " {flag:?}"))?;
        write!(f, " far {:?} stamp {}", self.far, self.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_entry_says_what_was_put_in() {
        let flags = [Flag::Prefetched, Flag::Unseen, Flag::Returning];
        let last = FrameIndex(FrameIndex::END - 1);
        let locations = [
            Location::Resident,
            Location::InFrame(FrameIndex(0)),
            Location::InFrame(last),
            Location::Far,
            Location::Kept,
            Location::Lost,
        ];
        for from in locations {
            for set in flags {
                let mut entry = PageEntry::new(from, SlotRef::new(7), 9).with(set);
                for to in locations {
                    entry.set_location(to);
                    assert_eq!(entry.location(), to);
                    assert!(
                        flags
                            .into_iter()
                            .all(|flag| entry.is(flag) == (flag == set))
                    );
                }
                assert!(entry.take(set) && !entry.is(set));
                assert_eq!(
                    (entry.location(), entry.far),
                    (Location::Lost, SlotRef::new(7))
                );
            }
        }
    }
}
