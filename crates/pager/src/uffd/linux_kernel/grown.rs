//! Locked memory that mremap(2) moves and makes longer.
//!
//! The kernel populates the new part before it announces the move (`mm_populate` in mm/mremap.c), and lets
//! no page in before that announcement was read. The thread would wait for ever. So the
//! new part is taken out of the registration, by which the kernel fills it with zeros as it does any
//! memory: nothing was ever there. When the move is announced it is registered again, and found as new
//! memory is.
//!
//! Everything depends on telling that part from what was moved, whose pages have content and may be far.
//! Another thread may touch those before the move is announced. Only the thread that is in the call is
//! sure to touch the new part alone.

use super::LinuxKernel;
use super::waits::is_mremap;
use crate::uffd::message::Message;
use crate::uffd::program::{Thread, threads_of_all};
use crate::{PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::process::Pid;

/// New parts that are being populated, and who may be waiting for a page of one.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// Until the moves are announced.
    parts: Vec<PageRange>,
    /// The page that each thread was last said to wait for, since the address space has been changing.
    waiting: Vec<Waiting>,
    /// Somebody waits who was not looked at yet. Who was waits where it did, or has been said to wait anew.
    has_new: bool,
}

/// A page that a message says to be missing, and what the thread that waits for it calls itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    page: PageNumber,
    thread: u32,
}

impl Waiting {
    const fn of(message: &Message) -> Option<Self> {
        match *message {
            Message::Fault {
                page,
                protected: false,
                thread,
            } => Some(Self { page, thread }),
            _ => None,
        }
    }
}

impl Growing {
    /// The rest of a new part, in which the kernel has come to a page of what `call` asks for.
    ///
    /// It begins with the first page. There are further ones if the agent registers the mapping meanwhile.
    fn rest_from(&mut self, page: PageNumber, call: &Growth) -> PageRange {
        let known = self.parts.iter().find(|part| part.contains(page));
        let part = known.copied().unwrap_or_else(|| {
            let part = call
                .place
                .unwrap_or_else(|| PageRange::new(page, call.pages));
            self.parts.push(part);
            part
        });
        PageRange::new(page, part.end().0 - page.0)
    }

    /// Messages were read: the moves that they tell of are over.
    pub(super) fn follow(&mut self, messages: &[Message]) {
        for place in messages.iter().filter_map(Message::arrival) {
            self.parts.retain(|part| part.start != place.end());
        }
    }

    /// No move is on its way.
    fn forget(&mut self) {
        self.parts.clear();
        self.waiting.clear();
        self.has_new = false;
    }

    /// Messages were read.
    fn note(&mut self, messages: &[Message]) {
        for waiting in messages.iter().filter_map(Waiting::of) {
            self.waiting.retain(|other| other.thread != waiting.thread);
            self.waiting.push(waiting);
            self.has_new = true;
        }
    }
}

/// The pages that a call of mremap(2) adds to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    pages: u64,
    /// Where the new part comes to, if that was asked for.
    place: Option<PageRange>,
}

impl Growth {
    /// Reads a call of mremap(2) as proc_pid_syscall(5) shows it. None of any other call, and if nothing is added.
    fn of(call: &str) -> Option<Self> {
        if !is_mremap(call) {
            return None;
        }
        let numbers = call.split_ascii_whitespace().skip(1);
        let mut numbers =
            numbers.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let mut next = || numbers.next()?;
        let [_, before, after, flags, place] = [next()?, next()?, next()?, next()?, next()?];
        let [before, after] = [before, after].map(|length| length.div_ceil(PAGE_SIZE as u64));
        let pages = after.checked_sub(before).filter(|&pages| pages > 0)?;
        let is_fixed = flags & MREMAP_FIXED != 0;
        let place = PageNumber::containing(place).plus(before);
        Some(Self {
            pages,
            place: is_fixed.then_some(PageRange::new(place, pages)),
        })
    }
}

/// So many who wait are each looked at, whatever the threads are.
const FEW: usize = 8;

/// Flag of mremap(2).
const MREMAP_FIXED: u64 = 2;

impl LinuxKernel {
    /// Takes those faults out of what was read of a space that the kernel serves itself from now on.
    /// `is_changing` is what the space was before that was read. If it was not, a move may have begun since; then
    /// it shows at the next reading.
    pub(super) fn leave_new_parts_to_kernel(
        &mut self,
        id: SpaceId,
        messages: &mut Vec<Message>,
        is_changing: bool,
    ) {
        let Some(space) = self.space_mut(id) else {
            return;
        };
        if !is_changing {
            space.growing.forget();
        }
        space.growing.note(messages);
        if !is_changing || !space.growing.has_new {
            return;
        }
        space.growing.has_new = false;
        let processes = self.processes_of(id);
        let many = self
            .space(id)
            .is_some_and(|space| space.growing.waiting.len() > FEW);
        if many && !self.is_anyone_in_mremap(id, &processes) {
            return;
        }
        loop {
            let growths = self.growths(id, &processes);
            let Some(space) = self.space_mut(id).filter(|_| !growths.is_empty()) else {
                return;
            };
            // A signal may have ended a thread's wait for its page, and then it waits for another. It waits for
            // this one if it has announced no other since.
            let before = messages.len();
            let _ = space.read_faults(messages);
            if messages.len() > before {
                space.growing.note(&messages[before..]);
                continue;
            }
            for (waiting, growth) in growths {
                if growth_waited_for(waiting, &processes) == Some(growth)
                    && self.leave_to_kernel(id, waiting, &growth)
                {
                    messages.retain(|message| Waiting::of(message) != Some(waiting));
                } else if let Some(space) = self.space_mut(id) {
                    space.growing.has_new = true;
                }
            }
            return;
        }
    }

    /// Who of those that were read to wait is in a call that adds to a mapping.
    fn growths(&self, id: SpaceId, processes: &[Pid]) -> Vec<(Waiting, Growth)> {
        let waiting = self.space(id).map(|space| space.growing.waiting.iter());
        let waiting = waiting.into_iter().flatten();
        let growth = |&waiting| Some((waiting, growth_waited_for(waiting, processes)?));
        waiting.filter_map(growth).collect()
    }

    /// False if it is not what it was taken for.
    fn leave_to_kernel(&mut self, id: SpaceId, waiting: Waiting, growth: &Growth) -> bool {
        let Some(space) = self.space_mut(id) else {
            return false;
        };
        let Growing { waiting: all, .. } = &mut space.growing;
        all.retain(|&other| other != waiting);
        let part = space.growing.rest_from(waiting.page, growth);
        let (start, length) = (part.start.address(), part.count << PAGE_SHIFT);
        // SAFETY: the mapping has just got this part, and nothing was ever in it.
        unsafe { space.context.unregister(start, length) }.is_ok()
    }

    /// Registers what the kernel has populated again, before the thread goes on that waits until its move is read:
    /// otherwise it would find two mappings where it has asked for one.
    pub(super) fn take_new_parts_back(&self, id: SpaceId) {
        let Some(space) = self.space(id) else {
            return;
        };
        for part in &space.growing.parts {
            let (start, length) = (part.start.address(), part.count << PAGE_SHIFT);
            // If it fails the mapping is gone.
            // SAFETY: what is missing there was never written, and is answered with zeros.
            let _ = unsafe {
                let protectable = self.features.can_protect();
                space.context.register(start, length, protectable)
            };
        }
    }
}

/// The thread of these processes that calls itself so.
fn thread_called(processes: &[Pid], name: u32) -> Option<Thread> {
    let id = Pid::from_raw(name.cast_signed())?;
    let is_it = |thread: &Thread| thread.own_id() == Some(name);
    let candidates = processes.iter().map(|&process| Thread { process, id });
    candidates.into_iter().find(is_it).or_else(|| {
        // Its process is in a namespace of its own.
        threads_of_all(processes).into_iter().find(is_it)
    })
}

/// If it is a page of a new part that is waited for, what the call adds.
fn growth_waited_for(waiting: Waiting, processes: &[Pid]) -> Option<Growth> {
    let thread = thread_called(processes, waiting.thread)?;
    // First: this waits until the thread sleeps.
    let growth = Growth::of(&thread.file("syscall")?)?;
    let is_waiting = thread.file("wchan")?.starts_with("handle_userfault");
    let is_there = |place: PageRange| place.contains(waiting.page);
    (is_waiting && growth.place.is_none_or(is_there)).then_some(growth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn anywhere(pages: u64) -> Growth {
        Growth { pages, place: None }
    }

    #[test]
    fn a_call_tells_what_it_adds_and_where_if_that_was_asked_for() {
        let call = "25 0x7f0000010000 0x3001 0x6000 0x1 0x0 0x0 0x7ffd0 0x7f123\n";
        assert_eq!(Growth::of(call), Some(anywhere(2)));
        let call = "25 0x7f0000010000 0x3000 0x6000 0x3 0x500000 0x0 0x7ffd0 0x7f123\n";
        let place = Some(range(0x503, 3));
        assert_eq!(Growth::of(call), Some(Growth { pages: 3, place }));
        for other in [
            "25 0x7f0000010000 0x6000 0x6000 0x3 0x500000 0x0 0x7ffd0 0x7f123",
            "25 0x7f0000010000 0x6000 0x3000 0x0 0x0 0x0 0x7ffd0 0x7f123",
            "9 0x0 0x3000 0x6000 0x3 0x500000 0x0 0x7ffd0 0x7f123",
            "-1 0x7ffd0 0x7f123",
            "25 0x7f0000010000",
            "running",
        ] {
            assert_eq!(Growth::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_new_part_ends_where_its_first_page_says() {
        let mut growing = Growing::default();
        assert_eq!(
            growing.rest_from(PageNumber(10), &anywhere(8)),
            range(10, 8)
        );
        // It was registered meanwhile.
        assert_eq!(
            growing.rest_from(PageNumber(13), &anywhere(8)),
            range(13, 5)
        );
        let moved = |to: u64| Message::Remapped {
            from: range(100, 4),
            to: PageNumber(to),
            kept: false,
        };
        growing.follow(&[moved(5)]);
        assert_eq!(
            growing.rest_from(PageNumber(14), &anywhere(8)),
            range(14, 4)
        );
        growing.follow(&[moved(6)]);
        assert_eq!(
            growing.rest_from(PageNumber(13), &anywhere(8)),
            range(13, 8)
        );
    }

    #[test]
    fn of_each_thread_the_last_page_counts() {
        let fault = |page, thread| Message::Fault {
            page: PageNumber(page),
            protected: false,
            thread,
        };
        let mut growing = Growing::default();
        growing.note(&[fault(1, 7), fault(2, 8)]);
        growing.note(&[fault(3, 7)]);
        let pages: Vec<_> = growing
            .waiting
            .iter()
            .map(|waiting| waiting.page.0)
            .collect();
        assert_eq!(pages, [2, 3]);
    }
}
