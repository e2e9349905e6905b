//! Pages that must be there when somebody comes who cannot wait for them: the kernel when a thread
//! ends, and a debugger.
//!
//! An ending thread's id is set to zero, and whoever joins it is woken (CLONE_CHILD_CLEARTID of
//! clone(2)); and robust mutexes that it holds are given up. The kernel does that when the thread
//! counts as exiting, and then `handle_userfault` (fs/userfaultfd.c) waits for no page: the write
//! fails, nobody is told, and `pthread_join` waits for ever. So these pages stay.
//!
//! Where the id is the kernel tells nobody. Of the list of robust mutexes it does, and glibc keeps
//! both in the same 64 bytes of its block for the thread (`tid` and `robust_head` of `struct
//! pthread`). musl's is one word in its own data for all threads, and while it is not cleared no thread
//! comes or goes. It is looked up once, in the program's first thread (PR_GET_TID_ADDRESS of prctl(2)).
//!
//! A debugger reads through /proc/PID/mem or PTRACE_PEEKDATA, and gets EIO where a page is far. gdb
//! reads the block of each thread, whole, whenever the program stops (libthread_db), and without it
//! waits for ever in the middle of a call that it makes in the program. So the whole block stays; and,
//! while somebody traces the program, what is on top of each stack.

use super::LinuxKernel;
use crate::uffd::agent;
use crate::uffd::program::{thread_file, threads_of};
use crate::uffd::system_call::system_call;
use crate::{EvictError, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{Duration, PageNumber, Time};
use rustix::process::Pid;

/// A thread that is younger has only just used its pages.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Where the block of a thread begins, seen from its list of robust mutexes, and how long it is at
/// most: `struct pthread` of glibc 2.31 to 2.41 has 2304 bytes, and the list is 736 bytes in.
const BLOCK_BEFORE: u64 = 736;
const BLOCK_LENGTH: u64 = 2560;

/// So many bytes from a thread's stack pointer on, for the innermost frames.
const STACK_LENGTH: u64 = 16 << 10;

/// Of the threads of one process.
#[derive(Debug, Default)]
pub(super) struct ThreadBlocks {
    /// In order.
    pages: Vec<PageNumber>,
    looked: Option<Time>,
}

impl ThreadBlocks {
    /// The first page of a range that must stay.
    fn first_in(
        &mut self,
        range: PageRange,
        process: Pid,
        last_word: Option<PageNumber>,
    ) -> Option<PageNumber> {
        let now = agent::now();
        if self.looked.is_none_or(|looked| now >= looked + LOOK_AGAIN) {
            self.looked = Some(now);
            self.look(process, last_word);
        }
        let after = self.pages.partition_point(|page| *page < range.start);
        let first = *self.pages.get(after)?;
        range.contains(first).then_some(first)
    }

    fn look(&mut self, process: Pid, last_word: Option<PageNumber>) {
        self.pages.clear();
        self.pages.extend(last_word);
        let traced = is_traced(process);
        for thread in threads_of(process) {
            if let Some(list) = robust_list(thread) {
                self.keep(list.saturating_sub(BLOCK_BEFORE), BLOCK_LENGTH);
            }
            if traced && let Some(top) = stack_pointer(process, thread) {
                self.keep(top, STACK_LENGTH);
            }
        }
        self.pages.sort_unstable();
        self.pages.dedup();
    }

    /// Keeps the pages of so many bytes.
    fn keep(&mut self, address: u64, length: u64) {
        let last = PageNumber::containing(address.saturating_add(length - 1));
        let first = PageNumber::containing(address);
        self.pages.extend((first.0..=last.0).map(PageNumber));
    }
}

/// Does a debugger trace the process?
fn is_traced(process: Pid) -> bool {
    let status = thread_file(process, process, "status");
    let tracer = status.as_deref().and_then(|status| {
        let rest = status.split_once("TracerPid:")?.1;
        rest.split_ascii_whitespace().next()
    });
    tracer.is_some_and(|tracer| tracer != "0")
}

/// Of a thread that is stopped or waits in the kernel (proc_pid_syscall(5)).
fn stack_pointer(process: Pid, thread: Pid) -> Option<u64> {
    let line = thread_file(process, thread, "syscall")?;
    let pointer = line.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// Where a thread's list of robust mutexes begins.
fn robust_list(thread: Pid) -> Option<u64> {
    const SYS_GET_ROBUST_LIST: i64 = 274;
    let (mut head, mut length) = (0u64, 0u64);
    let thread = i64::from(thread.as_raw_pid());
    // SAFETY: the kernel writes two words, which are ours.
    unsafe {
        system_call(
            SYS_GET_ROBUST_LIST,
            [thread, (&raw mut head) as i64, (&raw mut length) as i64],
        )
    }
    .ok()?;
    (head != 0).then_some(head)
}

/// Lets pages leave that come before one that stays, if any do, of `count` pages.
pub(super) fn leave_before(
    free: u32,
    count: u32,
    leave: impl FnOnce() -> (u32, Result<(), EvictError>),
) -> (u32, Result<(), EvictError>) {
    // To let none leave is no step that succeeds or fails: who cannot tell would try it for ever.
    if free == 0 {
        return (0, Err(EvictError::Fixed));
    }
    match leave() {
        (moved, Ok(())) if moved == free && free < count => (moved, Err(EvictError::Fixed)),
        outcome => outcome,
    }
}

impl LinuxKernel {
    /// How many pages of a range may leave: those before the first that must stay.
    pub(super) fn may_leave(&mut self, space: SpaceId, range: PageRange) -> u32 {
        let process = self.process_of(space);
        // A forked child's is where its parent's is.
        let word = self.last_word;
        let space = self.space_mut(space);
        let first = space.and_then(|space| space.thread_blocks.first_in(range, process?, word));
        first.map_or(range.count, |first| first.0 - range.start.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Killed: a program of which nothing could leave, because a page that stays was the next one, and
    /// none before it were tried again and again.
    #[test]
    fn a_page_that_stays_is_not_tried_again_for_want_of_others() {
        let leave = |outcome| move || outcome;
        let again = (0, Err(EvictError::Again));
        assert_eq!(
            leave_before(0, 4, leave(again)),
            (0, Err(EvictError::Fixed))
        );
        assert_eq!(
            leave_before(2, 4, leave((2, Ok(())))),
            (2, Err(EvictError::Fixed))
        );
        assert_eq!(leave_before(2, 4, leave(again)), again);
        assert_eq!(leave_before(4, 4, leave((4, Ok(())))), (4, Ok(())));
    }

    #[test]
    fn the_block_of_each_thread_stays() {
        let this = rustix::process::getpid();
        let lists = [
            std::thread::spawn(|| robust_list(rustix::thread::gettid()).unwrap())
                .join()
                .unwrap(),
            robust_list(rustix::thread::gettid()).unwrap(),
        ];
        assert_ne!(lists[0], lists[1]);
        let own = lists[1];
        let begin = PageNumber::containing(own - BLOCK_BEFORE);
        let end = PageNumber::containing(own - BLOCK_BEFORE + BLOCK_LENGTH - 1);
        let mut blocks = ThreadBlocks::default();
        let before = PageRange::new(PageNumber(begin.0 - 3), 4);
        let far = PageNumber(7);
        let mut first_in = |range| blocks.first_in(range, this, Some(far));
        assert!(before.contains(first_in(before).unwrap()));
        for page in [begin, PageNumber::containing(own), end] {
            assert_eq!(first_in(PageRange::new(page, 1)), Some(page));
        }
        assert_eq!(first_in(PageRange::new(PageNumber(1), 2)), None);
        assert_eq!(first_in(PageRange::new(PageNumber(6), 3)), Some(far));
    }

    /// The thread pointer is the address of its block (ELF handling for thread-local storage, 3.4.6).
    #[test]
    fn a_block_lies_where_it_is_said_to() {
        let list = robust_list(rustix::thread::gettid()).unwrap();
        let block = list - BLOCK_BEFORE;
        // The first word of a block, and the third, are its own address.
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut words = [0; 24];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut words, block).unwrap();
        for word in [&words[..8], &words[16..]] {
            assert_eq!(word, block.to_le_bytes());
        }
    }

    #[test]
    fn a_thread_that_waits_has_a_stack_pointer_and_nobody_traces_it() {
        let this = rustix::process::getpid();
        assert!(!is_traced(this));
        let thread = rustix::thread::gettid();
        let local = 0_u8;
        // This thread runs while it asks; another one sees it wait.
        let seen = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                loop {
                    if let Some(top) = stack_pointer(this, thread) {
                        break top;
                    }
                }
            });
            other.join().unwrap()
        });
        let here = (&raw const local) as u64;
        assert!(here.abs_diff(seen) < 64 << 10, "{here:#x} {seen:#x}");
    }
}
