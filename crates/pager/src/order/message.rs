//! What an address space has to say.

use crate::{PageRange, RangeSet};
use legato_base::PageNumber;

/// A missing page, or a change of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<C> {
    /// If `protected`, the page was there when the thread touched it, but write-protected.
    Fault {
        page: PageNumber,
        protected: bool,
        /// The thread, as it calls itself (gettid(2)). 0 if the kernel does not say.
        thread: u32,
    },
    Forked {
        child: C,
    },
    Remapped {
        from: PageRange,
        to: PageNumber,
        /// The old place is still mapped, and empty (MREMAP_DONTUNMAP). The kernel does not say so
        /// here: that it does not announce the end of the old place does ([`super::Order`]).
        kept: bool,
    },
    /// The range reads zero until it is written; if `unmapped`, it is no longer registered.
    Removed {
        range: PageRange,
        unmapped: bool,
    },
}

impl<C> Message<C> {
    /// False of a missing page.
    pub const fn is_change(&self) -> bool {
        !matches!(self, Self::Fault { .. })
    }

    /// Memory was moved.
    pub const fn is_move(&self) -> bool {
        matches!(self, Self::Remapped { .. })
    }

    pub const fn is_unmapping(&self) -> bool {
        matches!(self, Self::Removed { unmapped: true, .. })
    }

    /// True of a fork, and of what says where a child has what it has inherited.
    pub(super) fn may_come_late(&self) -> bool {
        self.child().is_some() || self.is_move() || self.vacated().is_some()
    }

    /// True of a change of certain pages.
    pub(super) const fn has_place(&self) -> bool {
        matches!(self, Self::Remapped { .. } | Self::Removed { .. })
    }

    /// True if it tells that something was mapped or unmapped on the page.
    pub(super) fn touches(&self, page: PageNumber) -> bool {
        let places = [self.vacated(), self.arrival()];
        places
            .into_iter()
            .flatten()
            .any(|range| range.contains(page))
    }

    /// Where no mapping of those before is any more: it was unmapped, or moved away.
    pub fn vacated(&self) -> Option<PageRange> {
        match *self {
            Self::Removed {
                range,
                unmapped: true,
            } => Some(range),
            Self::Remapped {
                from, kept: false, ..
            } => Some(from),
            _ => None,
        }
    }

    /// Where memory was moved to.
    pub fn arrival(&self) -> Option<PageRange> {
        match *self {
            Self::Remapped { from, to, .. } => Some(PageRange::new(to, from.count)),
            _ => None,
        }
    }

    /// What there is of a forked child.
    pub const fn child(&self) -> Option<&C> {
        match self {
            Self::Forked { child } => Some(child),
            _ => None,
        }
    }

    /// As [`Self::child`].
    pub const fn child_mut(&mut self) -> Option<&mut C> {
        match self {
            Self::Forked { child } => Some(child),
            _ => None,
        }
    }

    /// Carries the change out on what is registered. Moves of registered memory alone are announced: if only
    /// a part of it was known, or nothing because it had grown to there, all of it was.
    pub fn follow_in_armed(&self, armed: &mut RangeSet) {
        if let Self::Remapped { from, .. } = *self {
            armed.insert(from);
        }
        if let Some(gone) = self.vacated() {
            armed.remove(gone);
        }
        if let Some(place) = self.arrival() {
            armed.insert(place);
        }
    }

    /// Carries the change out on a set of which it may concern a part.
    pub fn follow_in(&self, set: &mut RangeSet) {
        match *self {
            Self::Remapped { from, to, kept } => {
                set.relocate(from, to);
                if kept {
                    set.insert(from);
                }
            }
            Self::Removed {
                range,
                unmapped: true,
            } => set.remove(range),
            Self::Removed {
                unmapped: false, ..
            }
            | Self::Fault { .. }
            | Self::Forked { .. } => {}
        }
    }
}
