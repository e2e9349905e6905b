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
use super::gather::is_mremap;
use crate::uffd::message::Message;
use crate::uffd::program::{Thread, threads_of_all};
use crate::{PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::process::Pid;

/// New parts that are being populated, until the moves are announced.
#[derive(Debug, Default)]
pub(super) struct Growing(Vec<PageRange>);

impl Growing {
    /// The rest of a new part, in which the kernel has come to a page of what `call` asks for.
    ///
    /// It begins with the first page. There are further ones if the agent registers the mapping meanwhile.
    fn rest_from(&mut self, page: PageNumber, call: &Growth) -> PageRange {
        if let Some(part) = self.0.iter().find(|part| part.contains(page)) {
            return PageRange::new(page, part.end().0 - page.0);
        }
        let part = call
            .place
            .unwrap_or_else(|| PageRange::new(page, call.pages));
        self.0.push(part);
        PageRange::new(page, part.end().0 - page.0)
    }

    /// Messages were read: the moves that they tell of are over.
    pub(super) fn follow(&mut self, messages: &[Message]) {
        for place in messages.iter().filter_map(Message::arrival) {
            self.0.retain(|part| part.start != place.end());
        }
    }
}

/// What a call of mremap(2) adds to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    pages: u64,
    /// Where the new part comes to, if that was asked for.
    place: Option<PageRange>,
}

impl Growth {
    /// Of a system call in proc_pid_syscall(5). None of any other, and if nothing is added.
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

/// Flag of mremap(2).
const MREMAP_FIXED: u64 = 2;

impl LinuxKernel {
    /// Takes those faults out of what was read of a space that the kernel serves itself from now on.
    pub(super) fn leave_new_parts_to_kernel(&mut self, id: SpaceId, messages: &mut Vec<Message>) {
        let is_missing = |message: &Message| missing(message).is_some();
        if !messages.iter().any(is_missing) {
            return;
        }
        let Some(space) = self.space(id) else {
            return;
        };
        if !space.context.is_changing() {
            // No move is on its way.
            if let Some(space) = self.space_mut(id) {
                space.growing = Growing::default();
            }
            return;
        }
        let processes = self.processes_of(id);
        let mut index = 0;
        while index < messages.len() {
            match self.new_part_at(id, &processes, messages, index) {
                Some(part) if self.leave_to_kernel(id, part) => drop(messages.remove(index)),
                _ => index += 1,
            }
        }
    }

    /// What remains of a new part, if a message says that the kernel has come to this page of it.
    fn new_part_at(
        &mut self,
        id: SpaceId,
        processes: &[Pid],
        messages: &mut Vec<Message>,
        index: usize,
    ) -> Option<PageRange> {
        let (page, name) = missing(&messages[index])?;
        let thread = thread_called(processes, name)?;
        let growth = growth_waited_for(thread)?;
        // A signal may have ended the thread's wait for this page, and then it waits for another. It waits for
        // this one if it has announced no other since.
        let space = self.space_mut(id)?;
        space.read_faults(messages).ok()?;
        let later = messages[index + 1..].iter();
        let is_last = !later.filter_map(missing).any(|(_, other)| other == name);
        if !is_last || growth_waited_for(thread) != Some(growth) {
            return None;
        }
        if growth.place.is_some_and(|place| !place.contains(page)) {
            return None;
        }
        Some(space.growing.rest_from(page, &growth))
    }

    /// Registers what the kernel has populated again, before the thread goes on that waits until its move is read:
    /// otherwise it would find two mappings where it has asked for one.
    pub(super) fn take_new_parts_back(&self, id: SpaceId) {
        let Some(space) = self.space(id) else {
            return;
        };
        for part in &space.growing.0 {
            let (start, length) = (part.start.address(), part.count << PAGE_SHIFT);
            // If it fails the mapping is gone.
            // SAFETY: what is missing there was never written, and is answered with zeros.
            let _ = unsafe {
                let protectable = self.features.can_protect();
                space.context.register(start, length, protectable)
            };
        }
    }

    /// False if it is not what it was taken for.
    fn leave_to_kernel(&self, id: SpaceId, part: PageRange) -> bool {
        let Some(space) = self.space(id) else {
            return false;
        };
        let (start, length) = (part.start.address(), part.count << PAGE_SHIFT);
        // SAFETY: the mapping has just got this part, and nothing was ever in it.
        unsafe { space.context.unregister(start, length) }.is_ok()
    }
}

/// The page that a message says to be missing, and the thread that waits for it.
const fn missing(message: &Message) -> Option<(PageNumber, u32)> {
    match *message {
        Message::Fault {
            page,
            protected: false,
            thread,
        } => Some((page, thread)),
        _ => None,
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

/// If a thread waits for a page of a new part, what the call adds.
fn growth_waited_for(thread: Thread) -> Option<Growth> {
    let growth = Growth::of(&thread.file("syscall")?)?;
    (thread.file("wchan")?.as_str() == "handle_userfault").then_some(growth)
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
}
