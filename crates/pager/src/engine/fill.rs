//! Pages enter the program, in batches of neighbours: one system call for many pages.
//!
//! What the program's own memory holds goes back with that memory. All else is copied: moving costs a
//! flush of the TLBs, and the frame would need new memory, which costs as much as the copy.

use super::candidates::Origin;
use super::{Pager, PagerEvent};
use crate::entry::{Flag, Location};
use crate::frames::FrameState;
use crate::{FillError, FrameIndex, FrameMemory, Kernel, SpaceId, SpacePage};
use alloc::vec::Vec;
use legato_base::checksum::is_zero;

/// A page that waits to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    /// False sorts first: pages that somebody waits for.
    undemanded: bool,
    page: SpacePage,
    frame: FrameIndex,
}

impl Arrival {
    const fn space(&self) -> SpaceId {
        self.page.space()
    }
}

impl<K: Kernel> Pager<K> {
    /// Moves every arrived page in. What its address space does not take yet stays for later, and holds up
    /// nothing of another.
    pub(super) fn fill_arrived(&mut self) {
        if !self.frames.has_arrived() {
            return;
        }
        let arrivals = self.arrivals();
        let mut rest = arrivals.as_slice();
        while let Some(first) = rest.first() {
            let moves = self.moves_back(first);
            let run = run_length(rest, |arrival| self.moves_back(arrival) == moves) as u32;
            let (done, result) = match moves {
                true => self.kernel.move_in(first.frame, first.page, run),
                false => self.kernel.copy_in(first.frame, first.page, run),
            };
            let (done, later) = rest.split_at(done as usize);
            for arrival in done {
                match moves {
                    true => self.frames.emptied(arrival.frame),
                    false => self.keep_frame(arrival.frame),
                }
                self.entered(arrival.page);
            }
            rest = later;
            let (Err(error), Some(failed)) = (result, rest.first()) else {
                continue;
            };
            if error == FillError::Again {
                let is_of_it = |arrival: &Arrival| arrival.space() == failed.space();
                rest = &rest[rest.iter().take_while(|arrival| is_of_it(arrival)).count()..];
                continue;
            }
            self.handle_fill_error(*failed, error);
            rest = &rest[1..];
        }
    }

    /// True of what is in the program's own memory, unless a NIC may touch that.
    fn moves_back(&self, arrival: &Arrival) -> bool {
        self.kernel.moves_memory(arrival.page.space())
            && self.frames.is_foreign(arrival.frame)
            && !self.frames.is_held(arrival.frame)
    }

    /// Its page was copied.
    fn keep_frame(&mut self, frame: FrameIndex) {
        self.local.pages += 1;
        self.frames.release(frame);
    }

    /// Neighbours together.
    fn arrivals(&self) -> Vec<Arrival> {
        let arrival = |frame| match self.frames.state(frame) {
            FrameState::Arrived { page, demanded } => Some(Arrival {
                undemanded: !demanded,
                page,
                frame,
            }),
            _ => None,
        };
        let mut arrivals: Vec<Arrival> = self.frames.arrivals().filter_map(arrival).collect();
        arrivals.sort_unstable();
        arrivals
    }

    fn handle_fill_error(&mut self, failed: Arrival, error: FillError) {
        match error {
            FillError::CopyOnly => match self.kernel.copy_in(failed.frame, failed.page, 1).1 {
                Ok(()) => {
                    self.keep_frame(failed.frame);
                    self.entered(failed.page);
                }
                Err(FillError::Again | FillError::NoMemory | FillError::CopyOnly) => {}
                Err(error) => self.handle_fill_error(failed, error),
            },
            // What is there was there before the pager took the page for untouched: it was to be dropped.
            // As long as it may be, it must not leave.
            FillError::Present if self.is_unentered(failed.page) => {
                self.forget_arrival(failed);
                self.handle_used(failed.page);
            }
            FillError::Present => {
                self.frames.release(failed.frame);
                self.entered(failed.page);
                self.kernel.wake(failed.page);
            }
            // The last process of the space has ended, which is not announced.
            FillError::SpaceGone => self.forget_arrival(failed),
            // A fault that was read before its mapping went, of a thread that no longer waits.
            FillError::Gone if self.kernel.frames().page(failed.frame, is_zero) => {
                self.forget_arrival(failed);
            }
            // Unmapping is announced before it is done, and until the announcement is read every
            // move says Again. A mapping that is gone without one would read zeros: stop.
            FillError::Gone => self
                .events
                .push_back(PagerEvent::MappingVanished { page: failed.page }),
            // Not to be tried again, nor looked into: whoever touches the frame waits for ever.
            FillError::Empty => {
                self.frames.hollow(failed.frame);
                self.events.push_back(PagerEvent::FrameEmpty {
                    page: failed.page,
                    frame: failed.frame,
                });
            }
            FillError::NoMemory | FillError::Again => {}
        }
    }

    /// True of zeros that have never entered.
    fn is_unentered(&self, page: SpacePage) -> bool {
        let entry = self.table.entry(page);
        entry.is_some_and(|entry| entry.is_zeros())
    }

    fn forget_arrival(&mut self, gone: Arrival) {
        let entry = self.table.remove(gone.page);
        self.release_far(entry.and_then(|entry| entry.far));
        self.waiting.forget(gone.page);
        self.frames.release(gone.frame);
        self.kernel.wake(gone.page);
    }

    /// The page is in its address space.
    fn entered(&mut self, page: SpacePage) {
        self.waiting.entered(page);
        if !self.kernel.can_evict(page.space()) {
            self.count_given(page.space());
            // Nothing is known of it from here on. When pages can leave, it is found there.
            let entry = self.table.remove(page);
            self.release_far(entry.and_then(|entry| entry.far));
            return;
        }
        let Some(entry) = self.table.entry_mut(page) else {
            unreachable!("invariant: a page that enters is in the table");
        };
        entry.set_location(Location::Resident);
        let origin = match entry.take(Flag::Returning) {
            true => Origin::Victim,
            false => Origin::New,
        };
        entry.stamp = self.candidates.enter(page, origin);
    }
}

/// How many of the first arrivals are neighbours both as pages and as frames, and alike.
fn run_length(arrivals: &[Arrival], is_alike: impl Fn(&Arrival) -> bool) -> usize {
    1 + arrivals
        .windows(2)
        .take_while(|pair| {
            pair[1].page.follows(pair[0].page)
                && pair[1].frame.0 == pair[0].frame.0 + 1
                && is_alike(&pair[1])
        })
        .count()
}
