//! A hand in a real forked child, on real memory: the child is made with `fork`, and its only
//! thread is the hand.

use super::remote::{Applicant, Hand, HandError};
use super::{HandStart, STACK_SIZE, STAGING_PAGES, run};
use crate::PageRange;
use crate::uffd::message::Message;
use crate::uffd::opening::Opener;
use crate::uffd::program::is_readable;
use crate::uffd::system_call::system_call;
use crate::uffd::{Mask, Userfaultfd};
use legato_base::wire::control::{AGENT_MESSAGE_SIZE, AgentMessage, AgentMessageBody};
use legato_base::{PAGE_SIZE, PageNumber};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions};
use std::format;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec;
use std::vec::Vec;

/// More than fit in the staging pages.
const PAGES: u64 = 300;

/// A parent's memory, a child forked from it with a hand, and the agent's view of both.
struct Family {
    alone: Option<MutexGuard<'static, ()>>,
    own: Userfaultfd,
    child: Userfaultfd,
    pid: Pid,
    applicant: Option<Applicant>,
    start: u64,
    /// The hand's staging pages in the child.
    staging: PageRange,
}

/// A fork announces itself to every userfaultfd of the process, and waits for each.
static ALONE: Mutex<()> = Mutex::new(());

impl Family {
    fn new(name: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = Self::beside(name, &[]);
        family.alone = Some(alone);
        family
    }

    /// Whose memory may only be read.
    fn read_only(name: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = Self::with(name, &[], MprotectFlags::READ);
        family.alone = Some(alone);
        family
    }

    /// In a process that has other userfaultfds.
    fn beside(name: &str, others: &[&Userfaultfd]) -> Self {
        Self::with(name, others, MprotectFlags::READ | MprotectFlags::WRITE)
    }

    fn with(name: &str, others: &[&Userfaultfd], access: MprotectFlags) -> Self {
        let features = Opener::new(Mask::default()).probe().unwrap();
        let own = Opener::new(Mask::default())
            .open_with_events(features)
            .unwrap();
        let start = map(PAGES);
        for page in 0..PAGES {
            // SAFETY: the mapping is this test's.
            unsafe { *((start + page * PAGE_SIZE as u64) as *mut u64) = content(page) };
        }
        // SAFETY: the mapping is this test's.
        unsafe { rustix::mm::mprotect(start as *mut _, PAGES as usize * PAGE_SIZE, access) }
            .unwrap();
        // SAFETY: nothing is missing in the range as far as this process is concerned.
        unsafe { own.register(start, PAGES * PAGE_SIZE as u64, true) }.unwrap();
        let area_pages = STACK_SIZE / PAGE_SIZE as u64 + u64::from(STAGING_PAGES);
        let area = map(area_pages);
        let name = format!("legato-hand-test-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let address = SocketAddrUnix::new(path.to_str().unwrap()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let parent = std::process::id();
        let forked_path = path.clone();
        let forking = std::thread::spawn(move || {
            let hand = HandStart {
                supervisor: forked_path.as_os_str().as_encoded_bytes(),
                child: 0,
                program: parent,
                area: (area, area + area_pages * PAGE_SIZE as u64),
                object: (0, 0),
            };
            fork(&hand)
        });
        // The fork goes on when its event was read.
        let child = loop {
            for other in others {
                other.read_one();
            }
            match own.read_one() {
                Some(Message::Forked { child }) => break child.context,
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        };
        while !forking.is_finished() {
            for other in others {
                other.read_one();
            }
        }
        let pid = Pid::from_raw(forking.join().unwrap()).unwrap();
        let connection = rustix::net::accept_with(&listener, flags).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(greeting(&connection), (parent, area));
        let staging = PageNumber::containing(area).plus(area_pages - u64::from(STAGING_PAGES));
        Self {
            alone: None,
            own,
            child,
            pid,
            applicant: Some(Applicant::new(connection, pid)),
            start,
            staging: PageRange::new(staging, u64::from(STAGING_PAGES)),
        }
    }

    fn hand(&mut self) -> Hand {
        let applicant = self.applicant.take().unwrap();
        assert_eq!(applicant.is_in(&self.child), Ok(true));
        applicant.accept(&self.child).unwrap()
    }

    /// Moves pages out and returns what was in them.
    fn take(&self, hand: &mut Hand, first: u64, count: u32) -> (Vec<u64>, Result<(), Errno>) {
        let room = hand.prepare(&self.child, count).unwrap();
        let first = PageNumber::containing(self.start).plus(first);
        let range = PageRange::new(first, u64::from(room));
        let mut strays = Vec::new();
        let ((moved, result), end) = hand.move_out(&self.child, range, &mut strays);
        assert_eq!(end, Ok(()));
        assert!(strays.is_empty(), "{strays:?}");
        let mut bytes = vec![0u8; moved as usize * PAGE_SIZE];
        // SAFETY: the buffer has room for as many pages.
        unsafe { hand.take(bytes.as_mut_ptr() as u64, moved) }.unwrap();
        (words(&bytes), result)
    }

    /// Takes pages that may only be read, and returns what was in them.
    fn take_unmovable(
        &self,
        hand: &mut Hand,
        first: u64,
        count: u64,
    ) -> Result<(Vec<u64>, Result<(), Errno>), HandError> {
        let first = PageNumber::containing(self.start).plus(first);
        let mut bytes = vec![0u8; count as usize * PAGE_SIZE];
        let into = bytes.as_mut_ptr() as u64;
        let (range, mut strays) = (PageRange::new(first, count), Vec::new());
        // SAFETY: the buffer has room for as many pages.
        let taken = unsafe { hand.take_unmovable(&self.child, range, into, &mut strays) };
        let ((taken, result), end) = taken?;
        assert_eq!(end, Ok(()));
        assert!(strays.is_empty(), "{strays:?}");
        Ok((words(&bytes[..taken as usize * PAGE_SIZE]), result))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        // SAFETY: the mapping is this test's. It is unregistered first, because nobody reads the
        // userfaultfd's events any more.
        unsafe {
            let length = PAGES * PAGE_SIZE as u64;
            self.own.unregister(self.start, length).unwrap();
            rustix::mm::munmap(self.start as *mut _, length as usize).unwrap();
        }
    }
}

/// The first word of each page.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().unwrap());
    bytes.chunks(PAGE_SIZE).map(word).collect()
}

fn content(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

fn map(pages: u64) -> u64 {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let length = pages as usize * PAGE_SIZE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), length, access, flags) }.unwrap()
        as u64
}

/// `fork(2)`, and in the child a hand. Returns the child's process id.
fn fork(hand: &HandStart<'_>) -> i32 {
    const SYS_FORK: i64 = 57;
    const SYS_EXIT_GROUP: i64 = 231;
    let result: i64;
    // SAFETY: the child has a copy of this thread alone, and runs nothing that uses the heap or a
    // lock, both of which another thread may have left in any state.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") SYS_FORK => result, out("rcx") _, out("r11") _);
    }
    if result == 0 {
        let status = i64::from(run(hand).is_err());
        // SAFETY: ends the child.
        unsafe {
            core::arch::asm!(
                "syscall",
                in("rax") SYS_EXIT_GROUP,
                in("rdi") status,
                options(noreturn)
            );
        }
    }
    i32::try_from(result).unwrap()
}

/// The process that the hand is for, and the address that it names.
fn greeting(connection: &OwnedFd) -> (u32, u64) {
    let mut bytes = [0u8; AGENT_MESSAGE_SIZE];
    let (length, _) = rustix::net::recv(connection, &mut bytes, RecvFlags::empty()).unwrap();
    match AgentMessage::parse(&bytes[..length]).unwrap().body {
        AgentMessageBody::Hand { program, address } => (program, address),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pages_leave_a_forked_child_with_their_content_and_can_come_back() {
    let mut family = Family::new("leave");
    let mut hand = family.hand();
    // Twice: what has come back is the child's alone, and was shared with the parent before.
    for round in 0..2 {
        let mut at = 0;
        while at < PAGES {
            let (words, result) = family.take(&mut hand, at, (PAGES - at) as u32);
            assert_eq!(result, Ok(()));
            assert!(!words.is_empty());
            for word in words {
                assert_eq!(word, content(at) + round, "page {at}");
                at += 1;
            }
        }
        let (words, result) = family.take(&mut hand, 7, 1);
        assert_eq!((words, result), (vec![], Err(Errno::NOENT)));
        for page in 0..PAGES {
            let mut bytes = vec![0u8; PAGE_SIZE];
            bytes[..8].copy_from_slice(&(content(page) + 1).to_le_bytes());
            let to = family.start + page * PAGE_SIZE as u64;
            // SAFETY: the buffer is one page; the page is missing in the child.
            let (_, result) = unsafe {
                family
                    .child
                    .copy(to, bytes.as_ptr() as u64, PAGE_SIZE as u64)
            };
            assert_eq!(result, Ok(()));
        }
    }
    for page in 0..PAGES {
        // SAFETY: the parent's own pages, which nothing has taken away.
        let word = unsafe { *((family.start + page * PAGE_SIZE as u64) as *const u64) };
        assert_eq!(word, content(page), "the parent's page {page}");
    }
}

/// Lost: it stayed, and a child with more of it than the cache was ended.
#[test]
fn pages_that_may_only_be_read_leave_a_forked_child() {
    let mut family = Family::read_only("read");
    let mut hand = family.hand();
    assert_eq!(
        family.take(&mut hand, 0, 1),
        (vec![], Err(Errno::INVAL)),
        "moved"
    );
    let count = u64::from(STAGING_PAGES);
    let expected: Vec<_> = (0..count).map(content).collect();
    let taken = family.take_unmovable(&mut hand, 0, count);
    assert_eq!(taken, Ok((expected, Ok(()))));
    let taken = family.take_unmovable(&mut hand, 299, 1);
    assert_eq!(taken, Ok((vec![content(299)], Ok(()))));
    let first = PageNumber::containing(family.start);
    let left = hand.residency.pages_in(PageRange::new(first, PAGES));
    assert_eq!(left.unwrap().len() as u64, PAGES - count - 1);
    // They are missing, and served, as those are that were moved.
    let bytes = vec![9u8; PAGE_SIZE];
    // SAFETY: the buffer is one page.
    let (_, copied) = unsafe {
        family
            .child
            .copy(family.start, bytes.as_ptr() as u64, PAGE_SIZE as u64)
    };
    assert_eq!(copied, Ok(()));
    // The staging pages are the hand's own again, and empty.
    assert_eq!(
        family.take(&mut hand, 200, 1),
        (vec![], Err(Errno::INVAL)),
        "moved"
    );
    let staged = hand.residency.pages_in(family.staging);
    assert_eq!(staged.unwrap(), []);
    assert!(!is_readable(family.child.fd()), "something is announced");
}

#[test]
fn what_was_not_registered_when_it_was_taken_is_not_what_was_to_be_taken() {
    let mut family = Family::read_only("replaced");
    let mut hand = family.hand();
    // As memory that another thread has put there.
    let second = family.start + PAGE_SIZE as u64;
    // SAFETY: nothing is missing there.
    unsafe { family.child.unregister(second, PAGE_SIZE as u64) }.unwrap();
    let taken = family.take_unmovable(&mut hand, 0, 2);
    assert_eq!(taken, Ok((vec![], Err(Errno::FAULT))), "of two mappings");
    let taken = family.take_unmovable(&mut hand, 1, 1);
    assert_eq!(taken, Err(HandError::Lost));
}

#[test]
fn a_hand_knows_its_own_address_space_from_others() {
    let mut first = Family::new("first");
    let second = Family::beside("second", &[&first.own]);
    let applicant = first.applicant.take().unwrap();
    assert_eq!(applicant.is_in(&first.own), Ok(false));
    assert_eq!(applicant.is_in(&second.child), Ok(false));
    assert_eq!(applicant.is_in(&first.child), Ok(true));
    let mut hand = applicant.accept(&first.child).unwrap();
    assert!(hand.is_there() && hand.is_needed());
}

#[test]
fn staging_pages_are_given_back() {
    let mut family = Family::new("staging");
    let mut hand = family.hand();
    let staged = |hand: &Hand| hand.residency.pages_in(family.staging).unwrap();
    let all: Vec<_> = (0..u64::from(STAGING_PAGES))
        .map(|page| family.staging.start.plus(page))
        .collect();
    let (words, _) = family.take(&mut hand, 0, STAGING_PAGES);
    assert_eq!(words.len(), STAGING_PAGES as usize);
    assert_eq!(staged(&hand), all);
    hand.discard_from(&family.child, 1).unwrap();
    // The next order is carried out after that.
    let (words, _) = family.take(&mut hand, u64::from(STAGING_PAGES), 1);
    assert_eq!(words, [content(u64::from(STAGING_PAGES))]);
    assert_eq!(staged(&hand), all[..1]);
}

/// Lost: what was announced while a hand was late to drop its staging pages was read and forgotten.
#[test]
fn what_comes_while_a_hand_drops_is_left_to_be_read() {
    let mut family = Family::new("dropping");
    let mut hand = family.hand();
    let (words, _) = family.take(&mut hand, 0, 1);
    assert_eq!(words, [content(0)]);
    rustix::process::kill_process(family.pid, Signal::STOP).unwrap();
    hand.discard_from(&family.child, 1).unwrap();
    let (child, memory) = (family.pid, family.start);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || read_of(child, memory));
        while !is_readable(family.child.fd()) {
            std::thread::yield_now();
        }
        let preparing = scope.spawn(|| hand.prepare(&family.child, 1));
        // So long that the agent looks what else there is, if it does.
        std::thread::sleep(std::time::Duration::from_millis(100));
        rustix::process::kill_process(child, Signal::CONT).unwrap();
        assert_eq!(preparing.join().unwrap(), Ok(1));
        let fault = family.child.read_one();
        let page = PageNumber::containing(memory);
        // SAFETY: the page is missing, and only this test reads it.
        unsafe { family.child.zero(page) }.unwrap();
        assert_eq!(reading.join().unwrap(), 0);
        assert!(
            matches!(fault, Some(Message::Fault { page: at, .. }) if at == page),
            "{fault:?}"
        );
    });
}

/// Reads a word of another process; waits for the page if it is missing.
fn read_of(process: Pid, address: u64) -> u64 {
    const SYS_PROCESS_VM_READV: i64 = 310;
    let mut word = [0u8; 8];
    let local = [word.as_mut_ptr() as u64, 8];
    let remote = [address, 8];
    let process = i64::from(process.as_raw_pid());
    let (local, remote) = (local.as_ptr() as i64, remote.as_ptr() as i64);
    // SAFETY: both vectors have the layout of `struct iovec`; eight bytes are written to `word`.
    let read = unsafe { system_call(SYS_PROCESS_VM_READV, [process, local, 1, remote, 1, 0]) };
    assert_eq!(read, Ok(8));
    u64::from_le_bytes(word)
}

#[test]
fn a_hand_that_has_ended_is_noticed() {
    let mut family = Family::new("ended");
    let mut hand = family.hand();
    rustix::process::kill_process(family.pid, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(family.pid), WaitOptions::empty()).unwrap();
    assert!(!hand.is_there() && !hand.is_needed());
    assert_eq!(hand.prepare(&family.child, 1), Err(HandError::Gone));
}

#[test]
fn m14_a_child_says_what_it_has_inherited() {
    let family = Family::new("inherited");
    let last = PageRange::new(PageNumber::containing(family.start).plus(PAGES - 1), 1);
    let address = last.start.address();
    let unmapping = std::thread::spawn(move || {
        // SAFETY: the page is this test's, and nobody uses it.
        unsafe { rustix::mm::munmap(address as *mut _, PAGE_SIZE) }
    });
    while family.own.read_one().is_none() {
        std::thread::yield_now();
    }
    unmapping.join().unwrap().unwrap();
    assert_eq!(family.own.is_registered(last), Ok(false));
    assert_eq!(family.child.is_registered(last), Ok(true));
    // It has this too, and it was never registered.
    assert_eq!(family.child.is_registered(family.staging), Ok(false));
}
