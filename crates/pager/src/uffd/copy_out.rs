//! Pages leave by being copied and dropped, where they cannot be moved: out of read-only
//! mappings, and on kernels without UFFDIO_MOVE.
//!
//! The pages are write-protected, so that a thread that writes to one waits; then read, put into
//! frames, and dropped with `madvise`. What `madvise` announces must be told from what the
//! program drops itself, and nothing else that is announced meanwhile may be lost.

use super::Layout;
use super::context::Message;
use super::dropper::Dropper;
use super::eligible::mapping_of;
use super::linux_kernel::{LinuxKernel, pages};
use super::range_set::RangeSet;
use crate::{EvictError, FrameIndex, FrameMemory, Kernel, PageRange};
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Reading 128 pages takes some 50 us; longer than this it takes only when one is missing.
const READ_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};
/// Between two looks at what else may have happened.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};

type Moved = (u32, Result<(), EvictError>);

impl LinuxKernel {
    /// As `move_out`, for pages that cannot be moved.
    pub(super) fn copy_out(&mut self, page: PageNumber, frame: FrameIndex, count: u32) -> Moved {
        let Some(dropper) = self.take_dropper() else {
            return (0, Err(EvictError::Fixed));
        };
        let count = Self::within_one_mapping(page, count.min(Layout::bounce_pages()));
        let mut result = self.copy_out_with(&dropper, page, frame, count);
        // A batch that is refused whole may span two mappings.
        if result == (0, Err(EvictError::Fixed)) && count > 1 {
            result = self.copy_out_with(&dropper, page, frame, 1);
        }
        self.dropper = Some(dropper);
        result
    }

    fn copy_out_with(
        &mut self,
        dropper: &Dropper,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> Moved {
        if self.is_unsettled() {
            return (0, Err(EvictError::Again));
        }
        if !dropper.is_idle() {
            return (0, Err(EvictError::Fixed));
        }
        let range = PageRange::new(page, u64::from(count));
        match self.own.protect(page.address(), range.count << PAGE_SHIFT) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return (0, Err(EvictError::Again)),
            Err(_) => return self.give_up(range, EvictError::Fixed),
        }
        // After protecting: from here on nothing can be pinned for writing in the range.
        if self.residency.has_pins() {
            return self.give_up(range, EvictError::Pinned);
        }
        let length = range.count << PAGE_SHIFT;
        let Some(read) = dropper.read(page.address(), length, READ_PATIENCE) else {
            return self.give_up(range, EvictError::Again);
        };
        let readable = (read >> PAGE_SHIFT) as u32;
        if readable == 0 {
            dropper.finish();
            return self.give_up(range, EvictError::Fixed);
        }
        if let Err(error) = self.fill_frames(frame, readable) {
            dropper.finish();
            return self.give_up(range, error);
        }
        let (dropped, result) = self.drop_range(dropper, PageRange::new(page, u64::from(readable)));
        self.settle(range);
        if dropped < readable {
            self.drop_frames(FrameIndex(frame.0 + dropped), readable - dropped);
        }
        (dropped, result)
    }

    fn give_up(&mut self, range: PageRange, error: EvictError) -> Moved {
        self.settle(range);
        (0, Err(error))
    }

    /// Puts what was read into frames.
    fn fill_frames(&mut self, frame: FrameIndex, count: u32) -> Result<(), EvictError> {
        let bounce = self.layout.bounce();
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
        let (done, result) = unsafe { self.own.copy(to, bounce, length) };
        if done == length {
            return Ok(());
        }
        self.drop_frames(frame, (done >> PAGE_SHIFT) as u32);
        Err(match result {
            Err(Errno::AGAIN) => EvictError::Again,
            _ => EvictError::Fixed,
        })
    }

    /// Drops a range whose content is in frames. Returns how many of its pages are gone.
    fn drop_range(&mut self, dropper: &Dropper, range: PageRange) -> Moved {
        let all = range.count as u32;
        // The pages whose dropping was not announced yet. The kernel announces it mapping by
        // mapping; a page that is announced twice was dropped by the program too.
        let mut unannounced = RangeSet::default();
        unannounced.insert(range);
        dropper.drop_pages(range.start.address(), range.count << PAGE_SHIFT);
        let result = loop {
            // One message at a time, and none without need: a thread that is let go on may put
            // new memory where the old was.
            let announced = unannounced.missing_from(range) == [range];
            let patience = if announced {
                LOOK_AGAIN
            } else {
                Timespec::default()
            };
            if let Some(result) = dropper.dropped(patience) {
                break result;
            }
            if !self.wait_for_message() {
                continue;
            }
            if let Some(message) = self.own.read_one() {
                self.stow(message, range, &mut unannounced);
            }
        };
        // When nothing is changing any more, every change so far has been read.
        self.settle(range);
        self.check_replaced(range);
        let gone = unannounced.missing_from(range);
        match result {
            // ENOMEM: a part of the range is no longer mapped, which is announced too; all that
            // is mapped was dropped.
            Ok(()) | Err(Errno::NOMEM) => (all, Ok(())),
            // Locked, and so not announced either.
            Err(_) => match gone.first() {
                None => (0, Err(EvictError::Fixed)),
                // The mapping was split at this very moment: what was dropped by whom is not
                // known, and must not pass unseen.
                Some(first) => {
                    self.damaged = Some(first.start);
                    (0, Err(EvictError::Fixed))
                }
            },
        }
    }

    /// How many of the pages lie in the mapping of the first: `madvise` fails half way where one
    /// mapping is locked and its neighbour is not.
    fn within_one_mapping(page: PageNumber, count: u32) -> u32 {
        let maps = Self::read_maps().unwrap_or_default();
        let mapping = maps
            .lines()
            .filter_map(mapping_of)
            .find(|mapping| mapping.contains(page));
        let pages = mapping.map_or(1, |mapping| mapping.end().0 - page.0);
        count.min(u32::try_from(pages).unwrap_or(u32::MAX))
    }

    /// Keeps a message for the next `read`, but for the part that announces the agent's own
    /// dropping of `range`.
    fn stow(&mut self, message: Message, range: PageRange, unannounced: &mut RangeSet) {
        if let Message::Removed {
            start,
            end,
            unmapped: false,
        } = message
        {
            let removed = pages(start, end);
            if removed.start >= range.start && removed.end() <= range.end() {
                for twice in unannounced.missing_from(removed) {
                    let (start, end) = (twice.start.address(), twice.end().address());
                    self.backlog.push(Message::Removed {
                        start,
                        end,
                        unmapped: false,
                    });
                }
                unannounced.remove(removed);
                return;
            }
        }
        self.backlog.push(message);
    }

    /// Ends the write protection of a range. While the address space is changing that is refused,
    /// and the change goes on only when its event was read.
    fn settle(&mut self, range: PageRange) {
        while self.is_changing(range) {
            if self.wait_for_message()
                && let Some(message) = self.own.read_one()
            {
                self.backlog.push(message);
            }
        }
        // Where the mapping is gone nothing was unprotected and nobody was woken.
        let _ = self
            .own
            .wake_range(range.start.address(), range.count << PAGE_SHIFT);
    }

    /// Ends the write protection of a range, unless the address space is changing.
    fn is_changing(&self, range: PageRange) -> bool {
        let length = range.count << PAGE_SHIFT;
        self.own.unprotect(range.start.address(), length) == Err(Errno::AGAIN)
    }

    /// False if none came for a while.
    fn wait_for_message(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.own.fd(), PollFlags::IN)];
        matches!(rustix::event::poll(&mut polled, Some(&LOOK_AGAIN)), Ok(ready) if ready > 0)
    }

    /// `madvise` lets the address space go while it waits for its event to be read. If the range
    /// was unmapped and mapped again in between, it dropped the new memory. Unmapping is announced
    /// too, and the thread that does it waits; only another thread can have written to the new
    /// memory by then. That is not known, and must not pass unseen.
    fn check_replaced(&mut self, range: PageRange) {
        let replaced = self.backlog.iter().find_map(|message| {
            match *message {
                Message::Removed {
                    start,
                    end,
                    unmapped: true,
                } => Some(pages(start, end)),
                Message::Remapped { from, length, .. } => Some(pages(from, from + length)),
                _ => None,
            }
            .filter(|gone| gone.start < range.end() && range.start < gone.end())
        });
        let Some(replaced) = replaced else { return };
        if self.has_mapping_in(replaced, range) && self.residency.program_threads(self.program) > 1
        {
            self.damaged = Some(replaced.start.max(range.start));
        }
    }

    fn has_mapping_in(&self, replaced: PageRange, range: PageRange) -> bool {
        let first = replaced.start.max(range.start);
        let last = replaced.end().min(range.end());
        let Some(maps) = Self::read_maps() else {
            return true;
        };
        maps.lines()
            .filter_map(mapping_of)
            .any(|mapping| mapping.start < last && first < mapping.end())
    }
}
