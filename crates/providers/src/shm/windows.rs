//! Windows onto peers' segments, each of which shows many regions: a process can have so many mappings and
//! no more (`vm.max_map_count`), and inside a program they are the program's.

use crate::memory::{self, Mapping, Protection, SegmentError, SegmentIdentity};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};

/// Bytes of a window, unless its segment ends before, or a region is longer.
const WINDOW_BYTES: u64 = 1 << 30;
/// Mappings that are kept for windows to come, so that a program can use all others.
const IN_HAND: usize = 2;

/// A part of a segment that is mapped.
#[derive(Debug)]
struct Window {
    segment: SegmentIdentity,
    /// Where it begins in the segment.
    start: u64,
    protection: Protection,
    mapping: Mapping,
}

/// A region's bytes, in a window that stays mapped as long as they are.
#[derive(Debug)]
pub(super) struct View {
    window: Arc<Window>,
    /// Where the region begins in the window.
    offset: u64,
    length: u64,
}

/// All windows of a connection.
#[derive(Debug)]
pub(super) struct Windows {
    open: Vec<Weak<Window>>,
    /// Each takes the place of a mapping, and shows nothing that is used.
    in_hand: Vec<Mapping>,
}

impl View {
    /// Where `length` bytes of the region are, if they are inside.
    #[inline(always)]
    pub(super) fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        self.window.mapping.at(self.offset + offset, length)
    }
}

impl Window {
    fn view(self: &Arc<Self>, offset: u64, length: u64) -> Option<View> {
        let offset = offset.checked_sub(self.start)?;
        let is_inside = offset.checked_add(length)? <= self.mapping.length();
        is_inside.then(|| View {
            window: Arc::clone(self),
            offset,
            length,
        })
    }
}

impl Windows {
    /// `segment` has a page at least; its bytes are not looked at.
    pub(super) fn new(segment: &OwnedFd) -> Self {
        let mut windows = Self {
            open: Vec::new(),
            in_hand: Vec::new(),
        };
        windows.take_in_hand(segment);
        windows
    }

    /// Shows a region of a segment that a peer sent.
    ///
    /// # Errors
    /// As [`memory::map_segment`]. P-101: nothing else is lost by one.
    pub(super) fn show(
        &mut self,
        segment: &OwnedFd,
        (offset, length): (u64, u64),
        protection: Protection,
    ) -> Result<View, SegmentError> {
        let identity = memory::inspect_segment(segment, (offset, length))?;
        self.open.retain(|window| window.strong_count() > 0);
        let open = self.open.iter().filter_map(Weak::upgrade);
        let of_segment = open
            .filter(|window| window.segment == identity && window.protection == protection)
            .find_map(|window| window.view(offset, length));
        if let Some(view) = of_segment {
            return Ok(view);
        }
        let mapping = self.map(segment, &identity, (offset, length), protection)?;
        let window = Arc::new(Window {
            segment: identity,
            start: offset,
            protection,
            mapping,
        });
        self.open.push(Arc::downgrade(&window));
        self.take_in_hand(segment);
        window.view(offset, length).ok_or(SegmentError::Untrusted)
    }

    /// Maps a region and what comes after it, up to a window's length, or at least the region.
    fn map(
        &mut self,
        segment: &OwnedFd,
        identity: &SegmentIdentity,
        (offset, length): (u64, u64),
        protection: Protection,
    ) -> Result<Mapping, SegmentError> {
        let rest = identity.length() - offset;
        // What a program may have of address space is not to be spent on what may never be used.
        let is_limited = getrlimit(Resource::As).current.is_some();
        let window = if is_limited { length } else { WINDOW_BYTES };
        let longest = window.min(rest).max(length);
        loop {
            for bytes in [longest, length] {
                if let Ok(mapping) = Mapping::shared(segment, (offset, bytes as usize), protection)
                {
                    return Ok(mapping);
                }
            }
            self.in_hand.pop().ok_or(SegmentError::Unmappable)?;
        }
    }

    fn take_in_hand(&mut self, segment: &OwnedFd) {
        let page = (0, legato_base::PAGE_SIZE);
        while self.in_hand.len() < IN_HAND
            // The first page each time: what lies side by side does not become one mapping.
            && let Ok(mapping) = Mapping::shared(segment, page, Protection::ReadOnly)
        {
            self.in_hand.push(mapping);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    const MIB: u64 = 1 << 20;

    fn segment(length: u64) -> OwnedFd {
        let segment = memfd_create("windows", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&segment, length).unwrap();
        fcntl_add_seals(&segment, SealFlags::SHRINK).unwrap();
        segment
    }

    fn open(windows: &Windows) -> usize {
        let open = windows.open.iter();
        open.filter(|window| window.strong_count() > 0).count()
    }

    #[test]
    fn regions_of_a_gibibyte_of_a_segment_share_a_mapping() {
        let segment = segment(1 << 40);
        let mut windows = Windows::new(&segment);
        let mut views = Vec::new();
        for region in 0..256 {
            let place = (region * 8 * MIB, 8 * MIB);
            let view = windows.show(&segment, place, Protection::ReadWrite);
            views.push(view.unwrap());
        }
        assert_eq!(open(&windows), 2);
        let first = views[0].at(0, 8).unwrap();
        assert_eq!(
            views[3].at(8, 8).unwrap() as usize - first as usize,
            24 * MIB as usize + 8
        );
        for outside in [(8 * MIB, 1), (8 * MIB - 7, 8), (u64::MAX, 2)] {
            assert!(views[3].at(outside.0, outside.1).is_none(), "{outside:?}");
        }
        views.truncate(128);
        assert_eq!(open(&windows), 1);
        views.clear();
        assert_eq!(open(&windows), 0);
    }

    #[test]
    fn a_region_is_shown_by_no_window_of_another_segment_or_protection() {
        let segments = [segment(MIB), segment(MIB)];
        let mut windows = Windows::new(&segments[0]);
        let mut views = Vec::new();
        for segment in &segments {
            for protection in [Protection::ReadOnly, Protection::ReadWrite] {
                let view = windows.show(segment, (0, MIB), protection).unwrap();
                views.push(view);
            }
        }
        assert_eq!(open(&windows), 4);
    }

    #[test]
    fn a_segment_that_ends_before_its_window_is_mapped_to_its_end() {
        let segment = segment(3 * MIB);
        let mut windows = Windows::new(&segment);
        let view = windows.show(&segment, (MIB, MIB), Protection::ReadOnly);
        assert_eq!(view.unwrap().window.mapping.length(), 2 * MIB);
        let beyond = windows.show(&segment, (2 * MIB, 2 * MIB), Protection::ReadOnly);
        assert_eq!(beyond.unwrap_err(), SegmentError::Untrusted);
    }
}
