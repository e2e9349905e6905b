//! The task on real memory, and this test as its agent.

use super::{Dropper, TaskMain};
use crate::PageRange;
use crate::uffd::message::Message;
use crate::uffd::opening::Opener;
use crate::uffd::residency::Residency;
use crate::uffd::{Layout, Mask, Userfaultfd, abi};
use core::ffi::c_void;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MlockFlags, MprotectFlags, ProtFlags};
use std::thread::JoinHandle;
use std::vec::Vec;

/// What only a hang exceeds.
const LONG: Timespec = Timespec {
    tv_sec: 300,
    tv_nsec: 0,
};
const SHORT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// The task as a thread of the test, which has a stack.
unsafe fn start_thread(_stack: u64, main: TaskMain, argument: *mut c_void) -> Result<(), Errno> {
    let argument = argument as usize;
    std::thread::spawn(move || main(argument as *mut c_void));
    Ok(())
}

/// A page that nobody has touched.
fn map() -> PageRange {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let anywhere = core::ptr::null_mut();
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address =
        unsafe { rustix::mm::mmap_anonymous(anywhere, PAGE_SIZE, access, flags) }.unwrap();
    PageRange::new(PageNumber::containing(address as u64), 1)
}

/// Lost: an agent that did it itself, and waited for a page that only it could give.
#[test]
fn who_populates_a_page_that_has_gone_leaves_the_agent_free_to_give_it() {
    let layout = Layout::new(Layout::reserve().unwrap(), 8);
    let context = Opener::new(Mask::default())
        .open(abi::FEATURE_EVENT_UNMAP)
        .unwrap();
    let dropper = Dropper::start(&layout, &context, start_thread).unwrap();
    let page = map();
    // SAFETY: the page is missing, and this test gives it.
    unsafe { context.register(page.start.address(), PAGE_SIZE as u64, false) }.unwrap();

    let fault = loop {
        if let Some(message) = context.read_one() {
            break message;
        }
        // At first, and when the task was given up before it had begun.
        if dropper.is_idle() {
            assert_eq!(dropper.populate(page, SHORT), None);
        }
        std::thread::yield_now();
    };
    assert!(
        matches!(fault, Message::Fault { page: at, .. } if at == page.start),
        "{fault:?}"
    );
    assert!(!dropper.is_idle(), "it waits for the page");
    // SAFETY: nothing was ever in the page.
    unsafe { context.zero(page.start) }.unwrap();
    while !dropper.is_idle() {
        std::thread::yield_now();
    }
    assert_eq!(dropper.populate(page, LONG), Some(Ok(())));

    let gone = map();
    // SAFETY: the page is this test's.
    unsafe { rustix::mm::munmap(gone.start.address() as *mut _, PAGE_SIZE) }.unwrap();
    assert_eq!(dropper.populate(gone, LONG), Some(Err(Errno::NOMEM)));
    assert!(dropper.is_idle());
}

const PAGES: u64 = 4;

/// Some pages that are registered, filled and protected, as they are before they are taken.
struct Protected {
    layout: Layout,
    dropper: Dropper,
    context: Userfaultfd,
    residency: Residency,
    range: PageRange,
    messages: Vec<Message>,
}

impl Protected {
    fn new() -> Self {
        const FEATURES: u64 =
            abi::FEATURE_EVENT_UNMAP | abi::FEATURE_EVENT_REMAP | abi::FEATURE_PAGEFAULT_FLAG_WP;
        let layout = Layout::new(Layout::reserve().unwrap(), 8);
        let range = map_pages(None);
        fill(range);
        let context = Opener::new(Mask::default()).open(FEATURES).unwrap();
        let (start, length) = bytes_of(range);
        // SAFETY: every page is there.
        unsafe { context.register(start, length, true) }.unwrap();
        context.protect(start, length).unwrap();
        Self {
            dropper: Dropper::start(&layout, &context, start_thread).unwrap(),
            residency: Residency::open(None, false).unwrap(),
            layout,
            context,
            range,
            messages: Vec::new(),
        }
    }

    fn area(&self) -> PageRange {
        self.layout.area(0).unwrap()
    }

    fn take(&mut self) -> (usize, Option<Errno>) {
        self.dropper.take(&[self.range], self.area().start);
        loop {
            if let Some(taken) = self.dropper.taken(Timespec::default()) {
                return (taken.ranges, taken.error);
            }
            self.messages.extend(self.context.read_one());
        }
    }

    /// Maps new memory over all of it, and lets go who did.
    fn map_over(&mut self) {
        let mapping = self.begin_to_map_over();
        while !mapping.is_finished() {
            self.messages.extend(self.context.read_one());
        }
        mapping.join().unwrap();
    }

    fn begin_to_map_over(&self) -> JoinHandle<PageRange> {
        let range = self.range;
        std::thread::spawn(move || map_pages(Some(range)))
    }

    /// Steps of the pages that were taken and had no protection.
    fn new_pages(&self) -> Vec<u64> {
        let taken = PageRange::new(self.area().start, PAGES);
        let pages = self.residency.unprotected_in(taken).unwrap();
        pages.iter().map(|page| page.0 - taken.start.0).collect()
    }

    fn pages_at(&self, start: PageNumber) -> usize {
        let range = PageRange::new(start, PAGES);
        self.residency.pages_in(range).unwrap().len()
    }

    fn unmapped(&self) -> bool {
        self.messages.iter().any(Message::is_unmapping)
    }
}

fn bytes_of(range: PageRange) -> (u64, u64) {
    (range.start.address(), range.count << PAGE_SHIFT)
}

/// Fresh memory, or over other memory of this test's.
fn map_pages(over: Option<PageRange>) -> PageRange {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (at, how) = match over {
        Some(range) => (range.start.address() as *mut c_void, MapFlags::FIXED),
        None => (core::ptr::null_mut(), MapFlags::empty()),
    };
    let flags = MapFlags::PRIVATE | how;
    let length = PAGES as usize * PAGE_SIZE;
    // SAFETY: what is replaced is the caller's.
    let address = unsafe { rustix::mm::mmap_anonymous(at, length, access, flags) }.unwrap();
    PageRange::new(PageNumber::containing(address as u64), PAGES)
}

fn fill(range: PageRange) {
    for step in 0..range.count {
        let word = range.start.plus(step).address() as *mut u64;
        // SAFETY: the range is mapped and this test's.
        unsafe { word.write(step + 1) };
    }
}

#[test]
fn what_is_taken_leaves_an_empty_mapping_and_keeps_its_protection() {
    let mut pages = Protected::new();
    assert_eq!(pages.take(), (1, None));
    let (from, to) = (pages.range, pages.area().start);
    let told = pages.messages.as_slice();
    assert!(
        matches!(told, [Message::Remapped { from: f, to: t, .. }] if (*f, *t) == (from, to)),
        "{told:?}"
    );
    assert_eq!(pages.pages_at(from.start), 0);
    assert_eq!(pages.pages_at(to), PAGES as usize);
    assert_eq!(pages.new_pages(), []);
    assert_eq!(pages.context.is_registered(from), Ok(true));
}

/// The agent tells by that whether something else has come there.
#[test]
fn an_area_is_one_mapping_before_and_after() {
    let mut pages = Protected::new();
    let area = pages.area();
    let is_whole = |pages: &Protected| {
        let mappings = pages.residency.mappings().unwrap();
        let mapping = mappings.containing(area.start);
        mapping.and_then(|mapping| mapping.common(area)) == Some(area)
    };
    assert!(is_whole(&pages));
    assert_eq!(pages.take(), (1, None));
    assert!(!is_whole(&pages));
    assert!(pages.layout.fill_area(area).is_err());
    let taken = PageRange::new(area.start, PAGES);
    let (start, length) = bytes_of(taken);
    // SAFETY: nobody uses what was taken.
    unsafe {
        pages.context.unregister(start, length).unwrap();
        pages.layout.clear_area(taken).unwrap();
    }
    assert!(is_whole(&pages));
    // As where `mremap` has unmapped what it then does not use.
    // SAFETY: nobody uses the area.
    unsafe { rustix::mm::munmap(start as *mut _, length as usize) }.unwrap();
    assert!(!is_whole(&pages));
    pages.layout.fill_area(taken).unwrap();
    assert!(is_whole(&pages));
}

/// Lost: programs, to a look at the mappings that came when the new memory was there and the thread
/// that had put it there was gone.
#[test]
fn what_is_mapped_over_a_range_after_it_was_taken_is_no_damage() {
    let mut pages = Protected::new();
    assert_eq!(pages.take(), (1, None));
    pages.map_over();
    fill(pages.range);
    assert!(pages.unmapped());
    assert_eq!(pages.new_pages(), []);
}

#[test]
fn what_was_mapped_over_a_range_before_it_was_taken_is_seen() {
    let mut pages = Protected::new();
    pages.map_over();
    assert_eq!(pages.take(), (1, None));
    assert_eq!(pages.new_pages(), [], "nobody has touched it");

    let mut pages = Protected::new();
    pages.map_over();
    fill(PageRange::new(pages.range.start.plus(1), 2));
    assert_eq!(pages.take(), (1, None));
    assert_eq!(pages.new_pages(), [1, 2]);
}

#[test]
fn nothing_is_taken_while_something_changes() {
    let mut pages = Protected::new();
    let mapping = pages.begin_to_map_over();
    while !pages.context.is_changing() {
        std::thread::yield_now();
    }
    // Nothing is read meanwhile: the change would be over.
    pages.dropper.take(&[pages.range], pages.area().start);
    let taken = loop {
        if let Some(taken) = pages.dropper.taken(LONG) {
            break taken;
        }
    };
    assert_eq!((taken.ranges, taken.error), (0, Some(Errno::AGAIN)));
    while !mapping.is_finished() {
        pages.messages.extend(pages.context.read_one());
    }
}

/// Also what is locked while it is taken, which only chance can show.
#[test]
fn what_is_locked_stays() {
    let mut pages = Protected::new();
    let (start, length) = bytes_of(pages.range);
    let flags = MlockFlags::ONFAULT;
    // SAFETY: the memory is this test's.
    unsafe { rustix::mm::mlock_with(start as *mut _, length as usize, flags) }.unwrap();
    assert_eq!(pages.take(), (0, Some(Errno::INVAL)));
    assert_eq!(pages.pages_at(pages.range.start), PAGES as usize);
}

#[test]
fn what_is_not_one_mapping_any_more_stays() {
    let mut pages = Protected::new();
    let hole = pages.range.start.plus(1).address() as *mut c_void;
    // SAFETY: the memory is this test's.
    unsafe { rustix::mm::mprotect(hole, PAGE_SIZE, MprotectFlags::READ) }.unwrap();
    assert_eq!(pages.take(), (0, Some(Errno::FAULT)));
    assert_eq!(pages.pages_at(pages.range.start), PAGES as usize);
}
