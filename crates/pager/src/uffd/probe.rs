//! What this machine offers to an agent, and how fast: without a program, for people who ask
//! before they run one.

use super::abi;
use super::agent::now;
use super::context::{MESSAGES_MAX, Userfaultfd};
use super::features::{self, Mask};
use super::linux_kernel::is_exact;
use super::message::Message;
use super::opening::{OpenError, Opener, Privileged, open_by_system_call, open_device};
use super::residency::Residency;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use legato_base::{Duration, PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// What the kernel offers to the calling process.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Through /dev/userfaultfd; or the errno.
    pub device: Result<(), i32>,
    /// Through the system call in full mode; or the errno.
    pub system_call: Result<(), i32>,
    /// Whether the caller may have one with all events that are needed, by either way.
    pub full: Result<(), OpenError>,
    /// Features of userfaultfd, as far as the caller may open one.
    pub features: Result<Offered, OpenError>,
    pub pagemap_scan: bool,
    /// RssAnon is all that there is.
    pub exact_rss: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    pub events: bool,
    pub moves: bool,
    pub protects: bool,
    pub poisons: bool,
    pub marks: bool,
}

impl Offer {
    /// Asks the kernel, but for what is masked. What the caller may not do, the other process does.
    pub fn of_this_machine(mask: Mask, other: &dyn Privileged) -> Self {
        let errno = |error: Errno| error.raw_os_error();
        Self {
            device: open_device(mask).map(drop).map_err(errno),
            system_call: open_by_system_call(mask).map(drop).map_err(errno),
            full: Opener::with(mask, other).may_open(),
            features: Opener::new(mask).offered().map(|offered| {
                let offered = mask.allowed(offered);
                let has = |feature| offered & feature != 0;
                Offered {
                    events: offered & features::REQUIRED == features::REQUIRED,
                    moves: has(abi::FEATURE_MOVE),
                    protects: has(abi::FEATURE_PAGEFAULT_FLAG_WP),
                    poisons: has(abi::FEATURE_POISON),
                    marks: has(abi::FEATURE_PAGEFAULT_FLAG_WP) && has(abi::FEATURE_WP_UNPOPULATED),
                }
            }),
            pagemap_scan: Residency::open(None, !mask.pagemap_scan).is_ok_and(|it| it.can_scan()),
            exact_rss: is_exact(mask),
        }
    }
}

/// Of a kernel's release, the first two numbers.
pub fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    next().zip(next())
}

/// A way to serve a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the kernel alone, with a page of zeros.
    Kernel,
    /// By another thread, with UFFDIO_COPY.
    Copy,
    /// By another thread, with UFFDIO_MOVE.
    Move,
    /// A write to a protected page, let through by another thread.
    Protected,
}

/// Memory whose faults are served in one way.
#[derive(Debug)]
pub struct Scratch {
    way: Way,
    userfaultfd: Option<Userfaultfd>,
    /// Twice `pages`: first those that are touched, then those that they are filled from.
    start: u64,
    pages: u64,
}

/// How long the server sleeps before it looks whether it is to end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// Empty reads before the server sleeps; about as long as the agent looks before it does.
const SPIN_READS: u32 = 64;

impl Scratch {
    /// Memory of which no page was touched; but if served as [`Way::Protected`], all were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(way: Way, pages: u64, mask: Mask) -> Result<Self, OpenError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                length_of(2 * pages),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(system)?;
        let mut scratch = Self {
            way,
            userfaultfd: None,
            start: start as u64,
            pages,
        };
        // SAFETY: the mapping is ours. A huge page would come with one fault for all.
        unsafe { rustix::mm::madvise(start, length_of(2 * pages), Advice::LinuxNoHugepage) }
            .map_err(system)?;
        for page in 0..pages {
            // What is moved in must have memory.
            scratch.write(pages + page);
            if way == Way::Protected {
                scratch.write(page);
            }
        }
        if way == Way::Kernel {
            return Ok(scratch);
        }
        let feature = match way {
            Way::Kernel | Way::Copy => 0,
            Way::Move => abi::FEATURE_MOVE,
            Way::Protected => abi::FEATURE_PAGEFAULT_FLAG_WP,
        };
        let context = Opener::new(mask).open(feature)?;
        // SAFETY: `serve` and `move_in` answer the faults of this memory, which means nothing.
        unsafe {
            context.register(
                scratch.start,
                length_of(pages) as u64,
                way == Way::Protected,
            )
        }
        .map_err(system)?;
        if way == Way::Protected {
            context
                .protect(scratch.start, length_of(pages) as u64)
                .map_err(system)?;
        }
        scratch.userfaultfd = Some(context);
        Ok(scratch)
    }

    /// Touches every page once, in a shuffled order, and tells how long each took. Unless the
    /// kernel serves, another thread must be in [`Self::serve`].
    pub fn touch_all(&self) -> Vec<Duration> {
        // An odd number is prime to a power of two, so this meets every page.
        let order = (0..self.pages.next_power_of_two())
            .map(|step| step.wrapping_mul(0x9E37_79B1) & (self.pages.next_power_of_two() - 1));
        let order = order.filter(|&page| page < self.pages);
        order
            .map(|page| {
                let begin = now();
                self.write(page);
                now().since(begin)
            })
            .collect()
    }

    /// Serves faults until told to stop.
    pub fn serve(&self, stop: &AtomicBool) {
        let Some(context) = &self.userfaultfd else {
            return;
        };
        let mut messages = Vec::new();
        let mut idle = 0;
        while !stop.load(Ordering::Acquire) {
            messages.clear();
            // An error is as good as no message: there is another try.
            let _ = context.read(MESSAGES_MAX, &mut messages);
            for message in &messages {
                if let Message::Fault { page, .. } = *message {
                    self.answer(context, page);
                }
            }
            idle = if messages.is_empty() { idle + 1 } else { 0 };
            if idle > SPIN_READS {
                let mut polled = [PollFd::from_borrowed_fd(context.fd(), PollFlags::IN)];
                let _ = rustix::event::poll(&mut polled, Some(&LOOK));
                idle = 0;
            }
        }
    }

    fn answer(&self, context: &Userfaultfd, page: PageNumber) {
        let to = page.address();
        let from = to + length_of(self.pages) as u64;
        let length = PAGE_SIZE as u64;
        // SAFETY: both pages lie in this scratch memory, which means nothing.
        let done = unsafe {
            match self.way {
                Way::Kernel => Ok(()),
                Way::Copy => context.copy(to, from, length).1,
                Way::Move => context.move_pages(to, from, length, true).1,
                Way::Protected => context.unprotect(to, length),
            }
        };
        if done.is_err() {
            // The thread tries again, and faults again if nothing came.
            let _ = context.wake(page);
        }
    }

    /// Moves all pages in, `batch` at a time, and tells how long each batch took. No other thread
    /// may touch the memory.
    pub fn move_in(&self, batch: u64) -> Vec<Duration> {
        let Some(context) = &self.userfaultfd else {
            return Vec::new();
        };
        let length = length_of(batch) as u64;
        (0..self.pages / batch)
            .filter_map(|step| {
                let to = self.start + step * length;
                let begin = now();
                // SAFETY: as above.
                let (moved, _) = unsafe {
                    context.move_pages(to, to + length_of(self.pages) as u64, length, false)
                };
                (moved == length).then(|| now().since(begin))
            })
            .collect()
    }

    fn write(&self, page: u64) {
        let address = (self.start + (page << PAGE_SHIFT)) as *mut u64;
        // SAFETY: inside the mapping, to which there are no references.
        unsafe { address.write_volatile(page + 1) };
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points there any more. This fails for no
        // mapping of ours.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut _, length_of(2 * self.pages)) };
    }
}

const fn length_of(pages: u64) -> usize {
    (pages as usize) << PAGE_SHIFT
}

const fn system(error: Errno) -> OpenError {
    OpenError::System(error.raw_os_error())
}
