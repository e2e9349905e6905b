//! Pages leave by being copied and taken away, where they cannot be moved: out of read-only
//! mappings, and on kernels without UFFDIO_MOVE.
//!
//! The pages are write-protected, so that a thread that writes to one waits; then read, put into
//! frames, and moved with `mremap` to where nobody else looks, before they are unmapped there. What
//! `mremap` announces must be told from what the program moves itself, and nothing else that is
//! announced meanwhile may be lost.
//!
//! `madvise(MADV_DONTNEED)` would do it in fewer calls. But it announces first, lets the address
//! space go until that is read, and then drops whatever is there.

use super::Layout;
use super::dropper::{Dropper, PATIENCE, Taken};
use super::linux_kernel::LinuxKernel;
use super::message::Message;
use super::replaced;
use crate::{Departure, EvictError, FrameIndex, FrameMemory, Kernel, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Between two looks at what else may have happened.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// Looks for the next announcement before the agent sleeps for it: about as long as a wake-up
/// takes, at half a microsecond each.
const LOOKS: u32 = 40;

/// A run of pages, or its first part, on its way out: all of it in one mapping.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Which of the runs.
    run: usize,
    range: PageRange,
    frame: FrameIndex,
    mapping: PageRange,
}

impl Part {
    const fn pages(self) -> u32 {
        self.range.count as u32
    }

    const fn length(self) -> u64 {
        self.range.count << PAGE_SHIFT
    }
}

/// A range that is taken, and where it is put.
type Move = (PageRange, PageNumber);

impl LinuxKernel {
    /// As `move_out_runs`, for pages that cannot be moved. Of the first run at least one page is
    /// tried, of the others perhaps none.
    pub(super) fn copy_out_runs(&mut self, runs: &mut [Departure]) {
        if !self.features.can_protect() {
            return fail_all(runs, EvictError::Fixed);
        }
        let Some(dropper) = self.take_dropper() else {
            return fail_all(runs, EvictError::Fixed);
        };
        let mappings = self.residency.mappings();
        let parts = parts_of(runs, |page| mappings.as_ref()?.containing(page));
        if self.is_unsettled_in(SpaceId::OWN) {
            fail_all(runs, EvictError::Again);
        } else if dropper.is_idle() {
            self.copy_out_parts(&dropper, runs, &parts);
            // Here the write protection of all parts ends, whatever became of them.
            for part in &parts {
                self.settle(part.range);
            }
        } else {
            fail_all(runs, EvictError::Fixed);
        }
        self.dropper = Some(dropper);
    }

    fn copy_out_parts(&mut self, dropper: &Dropper, runs: &mut [Departure], parts: &[Part]) {
        let mut protected = Vec::new();
        for &part in parts {
            let address = part.range.start.address();
            match self.own.context.protect(address, part.length()) {
                Ok(()) => protected.push(part),
                Err(Errno::AGAIN) => return fail_all(runs, EvictError::Again),
                Err(_) => runs[part.run].error = Some(EvictError::Fixed),
            }
        }
        if protected.is_empty() {
            return;
        }
        // After protecting: from here on nothing can be pinned for writing in the ranges.
        if self.residency.has_pins() {
            return fail_all(runs, EvictError::Pinned);
        }
        let Some(read) = dropper.read(&ranges_of(&protected), PATIENCE) else {
            return fail_all(runs, EvictError::Again);
        };
        let filled = self.fill_parts(runs, &protected, (read >> PAGE_SHIFT) as u32);
        dropper.finish();
        if !filled.is_empty() {
            self.take_parts(dropper, runs, &filled, &protected);
        }
    }

    /// Puts what was read into frames: of the parts' pages the first `readable` ones.
    fn fill_parts(
        &mut self,
        runs: &mut [Departure],
        parts: &[Part],
        mut readable: u32,
    ) -> Vec<Part> {
        let mut filled = Vec::new();
        let mut bounce = self.layout.bounce();
        for &(mut part) in parts {
            let complete = readable >= part.pages();
            part.range.count = part.range.count.min(u64::from(readable));
            readable -= part.pages();
            if part.range.count == 0 {
                runs[part.run].error = Some(EvictError::Fixed);
                break;
            }
            match self.fill_frames(bounce, part.frame, part.pages()) {
                Ok(()) => filled.push(part),
                Err(error) => runs[part.run].error = Some(error),
            }
            bounce += part.length();
            // What comes after a page that cannot be read was not read either.
            if !complete {
                break;
            }
        }
        filled
    }

    fn fill_frames(
        &mut self,
        bounce: u64,
        frame: FrameIndex,
        count: u32,
    ) -> Result<(), EvictError> {
        if !self.features.can_move() {
            for step in 0..count {
                let from = (bounce + (u64::from(step) << PAGE_SHIFT)) as *const [u8; PAGE_SIZE];
                // SAFETY: the bounce pages are the agent's, and the task that fills them is done.
                let from = unsafe { &*from };
                self.frames
                    .page_mut(FrameIndex(frame.0 + step), |page| *page = *from);
            }
            return Ok(());
        }
        let to = self.layout.frame(frame.0);
        let length = u64::from(count) << PAGE_SHIFT;
        // SAFETY: the frames are empty and the agent's own, as are the bounce pages.
        let (done, result) = unsafe { self.own.context.copy(to, bounce, length) };
        if done == length {
            return Ok(());
        }
        self.drop_frames(frame, (done >> PAGE_SHIFT) as u32);
        Err(match result {
            Err(Errno::AGAIN) => EvictError::Again,
            _ => EvictError::Fixed,
        })
    }

    /// Takes parts away whose content is in frames, and says which are gone.
    fn take_parts(
        &mut self,
        dropper: &Dropper,
        runs: &mut [Departure],
        parts: &[Part],
        protected: &[Part],
    ) {
        let ranges = ranges_of(parts);
        let Some(area) = self.layout.area(self.area) else {
            return self.give_up(runs, parts);
        };
        let mut moves = moves_into(area, &ranges);
        let taken = self.take_ranges(dropper, &moves, area);
        let count = taken.ranges;
        let next = moves.get(count).copied();
        moves.truncate(count);
        // Whatever replaced one of them has an announcement that is not followed.
        if self.is_changing(ranges[0]) || replaced::any_vacated(&self.backlog, &ranges) {
            // What is not reported yet stays: several batches may leave in one turn.
            let damaged = self.damaged.or_else(|| self.first_new(&moves));
            // When nothing is changing any more, every change so far has been read.
            self.settle(ranges[0]);
            let mut rest = ranges_of(protected);
            rest.retain(|range| !ranges[..count].contains(range));
            self.damaged =
                damaged.or_else(|| replaced::first_unclear(&self.backlog, &ranges[..count], &rest));
        }
        self.clear(area, &moves);
        // Its place may have been unmapped for nothing.
        if taken.error.is_some_and(|error| error != Errno::AGAIN)
            && let Some(next) = next
        {
            self.mend(area, next);
        }
        // Sealed (mseal(2)): nothing of the mapping can be moved away or dropped.
        let sealed = parts
            .get(count)
            .filter(|_| taken.error == Some(Errno::PERM));
        let sealed = sealed.map(|part| part.mapping);
        for (index, part) in parts.iter().enumerate() {
            if index < count {
                runs[part.run].moved = part.pages();
                continue;
            }
            self.drop_frames(part.frame, part.pages());
            let more = part.pages() - 1;
            if sealed == Some(part.mapping) {
                runs[part.run].error = Some(EvictError::Locked { more });
            } else if index == count {
                runs[part.run].error = taken.error.map(|error| match error {
                    Errno::INVAL => EvictError::Locked { more },
                    // It is changing, or not one mapping any more.
                    Errno::AGAIN | Errno::FAULT => EvictError::Again,
                    _ => EvictError::Fixed,
                });
            }
        }
    }

    /// Lets the task take the ranges. What is announced meanwhile is kept for the next `read`.
    fn take_ranges(&mut self, dropper: &Dropper, moves: &[Move], area: PageRange) -> Taken {
        let ranges: Vec<PageRange> = moves.iter().map(|(range, _)| *range).collect();
        dropper.take(&ranges, area.start);
        let mut announced = 0;
        let mut patience = Timespec::default();
        loop {
            if let Some(taken) = dropper.taken(patience) {
                return taken;
            }
            let is_last = announced == moves.len();
            let Some(message) = self.next_message(dropper, is_last) else {
                // There is only the end to wait for.
                if is_last {
                    patience = LOOK_AGAIN;
                }
                continue;
            };
            if matches!(message, Message::Remapped { from, to, .. } if moves.contains(&(from, to)))
            {
                announced += 1;
                continue;
            }
            if message.is_change() {
                // Something else is changing: what comes next may not be what it was.
                dropper.stop();
            }
            self.backlog.push((SpaceId::OWN, message));
        }
    }

    /// Looks for a message and for the end of the taking; unless it `is_last`, waits a moment for one.
    fn next_message(&self, dropper: &Dropper, is_last: bool) -> Option<Message> {
        for _ in 0..LOOKS {
            let message = self.own.context.read_one();
            if message.is_some() || !dropper.is_taking() {
                return message;
            }
        }
        if !is_last && self.wait_for_message() {
            self.own.context.read_one()
        } else {
            None
        }
    }

    /// The first page that was taken and is not what the agent had protected: its protection would
    /// have gone along with it. All of a range is, if that cannot be seen.
    fn first_new(&self, moves: &[Move]) -> Option<PageNumber> {
        moves.iter().find_map(|&(range, place)| {
            let landed = PageRange::new(place, range.count);
            let new = match self.residency.unprotected_in(landed) {
                Ok(pages) => *pages.first()?,
                Err(_) => place,
            };
            Some(range.start.plus(new.0 - place.0))
        })
    }

    /// Nothing of the parts leaves.
    fn give_up(&mut self, runs: &mut [Departure], parts: &[Part]) {
        for part in parts {
            self.drop_frames(part.frame, part.pages());
        }
        fail_all(runs, EvictError::Fixed);
    }

    /// Throws away what was taken. Where that cannot be, the area is given up.
    fn clear(&mut self, area: PageRange, moves: &[Move]) {
        let count = moves.iter().map(|(range, _)| range.count).sum();
        if count == 0 {
            return;
        }
        let used = PageRange::new(area.start, count);
        let (start, length) = (used.start.address(), used.count << PAGE_SHIFT);
        // Unregistered, so that unmapping is not announced: nobody would read of it.
        // SAFETY: the area is the agent's, and the content of what is in it is in frames.
        let cleared = unsafe {
            let unregistered = self.own.context.unregister(start, length);
            unregistered.and_then(|()| self.layout.clear_area(used))
        };
        if cleared.is_err() {
            self.area += 1;
        }
    }

    /// Before Linux 6.17 `mremap` unmaps the place where a range is to go before it finds that it
    /// cannot move the range. What the program has mapped there since stays, and the area is given up.
    fn mend(&mut self, area: PageRange, (range, place): Move) {
        // It fails where nothing was unmapped, too.
        let _ = self.layout.fill_area(PageRange::new(place, range.count));
        let mappings = self.residency.mappings();
        let mapping = mappings.and_then(|mappings| mappings.containing(area.start));
        if mapping.and_then(|mapping| mapping.common(area)) != Some(area) {
            self.area += 1;
        }
    }

    /// Ends the write protection of a range. While the address space is changing that is refused,
    /// and the change goes on only when its event was read.
    fn settle(&mut self, range: PageRange) {
        while self.is_changing(range) {
            if self.wait_for_message()
                && let Some(message) = self.own.context.read_one()
            {
                self.backlog.push((SpaceId::OWN, message));
            }
        }
        // Where the mapping is gone nothing was unprotected and nobody was woken.
        let _ = self
            .own
            .context
            .wake_range(range.start.address(), range.count << PAGE_SHIFT);
    }

    /// Ends the write protection of a range, unless the address space is changing.
    fn is_changing(&self, range: PageRange) -> bool {
        let length = range.count << PAGE_SHIFT;
        self.own.context.unprotect(range.start.address(), length) == Err(Errno::AGAIN)
    }

    /// False if none came for a while.
    fn wait_for_message(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(
            self.own.context.fd(),
            PollFlags::IN,
        )];
        matches!(rustix::event::poll(&mut polled, Some(&LOOK_AGAIN)), Ok(ready) if ready > 0)
    }
}

/// Ranges that go into an area, one after the other.
fn moves_into(area: PageRange, ranges: &[PageRange]) -> Vec<Move> {
    let mut place = area.start;
    let mut moves = Vec::new();
    for &range in ranges {
        moves.push((range, place));
        place = place.plus(range.count);
    }
    moves
}

fn fail_all(runs: &mut [Departure], error: EvictError) {
    for run in runs {
        run.error = Some(error);
    }
}

fn ranges_of(parts: &[Part]) -> Vec<PageRange> {
    parts.iter().map(|part| part.range).collect()
}

/// The first part of each run, as far as the bounce pages go. A part lies in one mapping:
/// `mremap` takes no more (EFAULT).
fn parts_of(runs: &[Departure], mapping_of: impl Fn(PageNumber) -> Option<PageRange>) -> Vec<Part> {
    let mut room = u64::from(Layout::bounce_pages());
    let mut parts = Vec::new();
    for (run, departure) in runs.iter().enumerate() {
        let first = departure.page.page();
        let mapping = mapping_of(first).unwrap_or(PageRange::new(first, 1));
        let pages = mapping.end().0 - first.0;
        let count = pages.min(departure.count.into()).min(room);
        if count == 0 {
            break;
        }
        room -= count;
        parts.push(Part {
            run,
            range: PageRange::new(first, count),
            frame: departure.frame,
            mapping,
        });
    }
    parts
}
