//! Pages leave by being copied and dropped, where they cannot be moved: out of read-only
//! mappings, and on kernels without UFFDIO_MOVE.
//!
//! The pages are write-protected, so that a thread that writes to one waits; then read, put into
//! frames, and dropped with `madvise`. What `madvise` announces must be told from what the
//! program drops itself, and nothing else that is announced meanwhile may be lost.

use super::Layout;
use super::dropper::{Dropped, Dropper, PATIENCE};
use super::linux_kernel::LinuxKernel;
use super::mappings::mapping_of;
use super::message::Message;
use super::program::{thread_file, threads_of};
use super::replaced::Standing;
use crate::RangeSet;
use crate::{Departure, EvictError, FrameIndex, FrameMemory, Kernel, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Pid;

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
}

impl Part {
    const fn pages(self) -> u32 {
        self.range.count as u32
    }

    const fn length(self) -> u64 {
        self.range.count << PAGE_SHIFT
    }
}

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
        let parts = parts_of(&self.residency.maps().unwrap_or_default(), runs);
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
            self.drop_parts(dropper, runs, &filled);
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

    /// Drops parts whose content is in frames, and says which are gone.
    fn drop_parts(&mut self, dropper: &Dropper, runs: &mut [Departure], parts: &[Part]) {
        let ranges = ranges_of(parts);
        let (dropped, unannounced) = self.drop_ranges(dropper, &ranges);
        // Before anything more is read: until then whoever unmaps waits, and puts nothing new in
        // the place of what was unmapped.
        let standing = self.stands(&ranges);
        // When nothing is changing any more, every change so far has been read.
        self.settle(ranges[0]);
        if let Some(standing) = standing {
            let begun = dropped.ranges + usize::from(dropped.error.is_some());
            self.damaged = standing.first_replaced(&self.backlog, &ranges[..begun]);
        }
        for (index, part) in parts.iter().enumerate() {
            let failed = index == dropped.ranges && dropped.error.is_some();
            // ENOMEM: a part of the range is no longer mapped, which is announced too; all that
            // is mapped was dropped.
            if index < dropped.ranges || failed && dropped.error == Some(Errno::NOMEM) {
                runs[part.run].moved = part.pages();
                continue;
            }
            self.drop_frames(part.frame, part.pages());
            let gone = unannounced.missing_from(part.range);
            if failed {
                // Locked, and so not announced either. Otherwise the mapping was split at this
                // very moment: what was dropped by whom is not known, and must not pass unseen.
                let more = part.pages() - 1;
                runs[part.run].error = Some(EvictError::Locked { more });
                self.damaged = self.damaged.or(gone.first().map(|first| first.start));
            } else {
                // Stopped before this part: what was announced of it the program has dropped.
                gone.into_iter().for_each(|range| self.removed(range));
            }
        }
    }

    /// Lets the task drop the ranges. Returns how far it got, and of what no dropping was
    /// announced.
    fn drop_ranges(&mut self, dropper: &Dropper, ranges: &[PageRange]) -> (Dropped, RangeSet) {
        // The kernel announces mapping by mapping; a page that is announced twice was dropped by
        // the program too.
        let mut unannounced = RangeSet::default();
        for &range in ranges {
            unannounced.insert(range);
        }
        dropper.drop_pages(ranges);
        let dropped = loop {
            // One message at a time, and none without need: a thread that is let go on may put
            // new memory where the old was.
            let patience = if unannounced.is_empty() {
                LOOK_AGAIN
            } else {
                Timespec::default()
            };
            if let Some(dropped) = dropper.dropped(patience) {
                break dropped;
            }
            if let Some(message) = self.next_message(dropper)
                && !self.stow(message, ranges, &mut unannounced)
            {
                // Something else is changing: what comes next may not be what it was.
                dropper.stop();
            }
        };
        (dropped, unannounced)
    }

    /// Waits a moment for a message, and for the end of the dropping.
    fn next_message(&self, dropper: &Dropper) -> Option<Message> {
        for _ in 0..LOOKS {
            let message = self.own.context.read_one();
            if message.is_some() || !dropper.is_dropping() {
                return message;
            }
        }
        if self.wait_for_message() {
            self.own.context.read_one()
        } else {
            None
        }
    }

    /// Keeps a message for the next `read`, but for the part that announces the agent's own
    /// dropping of one of the ranges. False if the address space is changing otherwise.
    fn stow(&mut self, message: Message, ranges: &[PageRange], unannounced: &mut RangeSet) -> bool {
        if let Message::Removed {
            range: removed,
            unmapped: false,
        } = message
        {
            let inside =
                |range: &PageRange| removed.start >= range.start && removed.end() <= range.end();
            if ranges.iter().any(inside) {
                let twice = unannounced.missing_from(removed);
                let own = twice.is_empty();
                twice.into_iter().for_each(|range| self.removed(range));
                unannounced.remove(removed);
                return own;
            }
        }
        let harmless = matches!(message, Message::Fault { .. });
        self.backlog.push((SpaceId::OWN, message));
        harmless
    }

    /// The program has dropped a range.
    fn removed(&mut self, range: PageRange) {
        let removed = Message::Removed {
            range,
            unmapped: false,
        };
        self.backlog.push((SpaceId::OWN, removed));
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

    /// What stands where ranges were dropped, unless nothing can have taken their place: then
    /// nothing of them was unmapped, or the program has one thread, which cannot do that and write
    /// to new memory at the same time.
    fn stands(&self, ranges: &[PageRange]) -> Option<Standing> {
        let first = ranges.first()?;
        let changing =
            self.is_changing(*first) || super::replaced::any_unmapped(&self.backlog, ranges);
        if !changing || self.residency.program_threads(self.program) <= 1 {
            return None;
        }
        let smaps = self.residency.smaps();
        let program = Pid::from_raw(self.program)?;
        let threads = threads_of(program).into_iter();
        let calls = threads.filter_map(|thread| thread_file(program, thread, "syscall"));
        Some(Standing::of(smaps, calls, ranges))
    }
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
/// `madvise` fails half way where one mapping is locked and its neighbour is not.
fn parts_of(maps: &str, runs: &[Departure]) -> Vec<Part> {
    let mappings: Vec<PageRange> = maps.lines().filter_map(mapping_of).collect();
    let mut room = u64::from(Layout::bounce_pages());
    let mut parts = Vec::new();
    for (run, departure) in runs.iter().enumerate() {
        let first = departure.page.page();
        // They are in order of address.
        let next = mappings.partition_point(|mapping| mapping.end() <= first);
        let mapping = mappings.get(next).filter(|mapping| mapping.contains(first));
        let pages = mapping.map_or(1, |mapping| mapping.end().0 - first.0);
        let count = pages.min(departure.count.into()).min(room);
        if count == 0 {
            break;
        }
        room -= count;
        parts.push(Part {
            run,
            range: PageRange::new(first, count),
            frame: departure.frame,
        });
    }
    parts
}
