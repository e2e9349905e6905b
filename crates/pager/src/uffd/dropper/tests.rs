//! The task on real memory, and this test as its agent.

use super::{Dropper, TaskMain};
use crate::PageRange;
use crate::uffd::message::Message;
use crate::uffd::{Layout, Mask, Userfaultfd, abi};
use core::ffi::c_void;
use legato_base::{PAGE_SIZE, PageNumber};
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

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
    let dropper = Dropper::start(&layout, start_thread).unwrap();
    let page = map();
    let context = Userfaultfd::open(abi::FEATURE_EVENT_UNMAP, Mask::default()).unwrap();
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
