//! Pages come before they are asked for, a part of a window at a time.

use super::{Pager, PagerFabric};
use crate::entry::Location;
use crate::prefetch::{Brought, Part, Source};
use crate::{FrameIndex, Kernel, SpacePage};

/// A window goes over no more pages that are there already: what is behind them is not needed soon.
const HERE_MAX: u32 = 256;

/// What a window finds in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A page to bring.
    Missing,
    /// Nothing to do: it is in the program, or on its way.
    Here,
    /// The end of the window.
    Elsewhere,
}

impl<K: Kernel> Pager<K> {
    /// Brings one part, as much of it as spare frames and queues allow.
    pub(super) fn go_ahead(&mut self, net: &mut PagerFabric<'_>) {
        let part = self.prefetcher.next_part();
        self.brought_ahead = part.is_some();
        let Some(part) = part else { return };
        let done = self.bring(part, net);
        match part.source {
            Source::Far => self.counters.pages_prefetched += u64::from(done.brought),
            Source::Untouched => self.counters.pages_zero_filled_ahead += u64::from(done.brought),
        }
        self.prefetcher.handle_brought(part, done);
        self.progressed |= self.prefetcher.has_parts();
        self.look_at_requests(net);
        self.fill_arrived();
    }

    fn bring(&mut self, part: Part, net: &mut PagerFabric<'_>) -> Brought {
        let mut done = Brought::default();
        loop {
            let page = part.first.plus(u64::from(done.passed));
            let begun = match self.next(part.source, page) {
                Next::Here if done.passed - done.brought < HERE_MAX => {
                    done.passed += 1;
                    continue;
                }
                Next::Missing if done.brought == part.count => return done,
                Next::Missing => {
                    let most = part.count - done.brought;
                    self.bring_run(part.source, page, most, net)
                }
                Next::Here | Next::Elsewhere => 0,
            };
            if begun == 0 {
                return Brought { ends: true, ..done };
            }
            done.passed += begun;
            done.brought += begun;
        }
    }

    /// Brings up to `most` neighbours, the first of which is missing. Returns how many.
    fn bring_run(
        &mut self,
        source: Source,
        page: SpacePage,
        most: u32,
        net: &mut PagerFabric<'_>,
    ) -> u32 {
        let missing = 1
            + (1..u64::from(most))
                .take_while(|&step| self.next(source, page.plus(step)) == Next::Missing)
                .count() as u32;
        let Some((frame, count)) = self.take_spare_frames(missing) else {
            return 0;
        };
        match source {
            Source::Far => self.fetch_run(page, frame, count, net),
            Source::Untouched => self.zero_fill_run(page, frame, count),
        }
    }

    fn next(&self, source: Source, page: SpacePage) -> Next {
        let Some(entry) = self.table.entry(page) else {
            // What was to be dropped and is in use is there already.
            let is_untouched = source == Source::Untouched
                && self.kernel.is_registered(page)
                && !self.strays.has_in_use(page);
            return match is_untouched {
                true => Next::Missing,
                false => Next::Elsewhere,
            };
        };
        match entry.location() {
            Location::Far if source == Source::Far => Next::Missing,
            Location::Resident | Location::InFrame(_) => Next::Here,
            Location::Far | Location::Kept | Location::Lost => Next::Elsewhere,
        }
    }

    /// Starts fetching neighbours into frames that were taken for them. Returns how many; the frames of the
    /// others are released.
    fn fetch_run(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        count: u32,
        net: &mut PagerFabric<'_>,
    ) -> u32 {
        for step in 0..count {
            if !self.fetch_into(page.plus(u64::from(step)), frame.plus(step), false, net) {
                for unused in step + 1..count {
                    self.frames.release(frame.plus(unused));
                }
                return step;
            }
        }
        count
    }

    fn zero_fill_run(&mut self, page: SpacePage, frame: FrameIndex, count: u32) -> u32 {
        for step in 0..count {
            self.zero_fill(page.plus(u64::from(step)), frame.plus(step), false);
        }
        count
    }
}
