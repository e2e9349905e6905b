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
//! A thread may come and go between two looks at the threads, on a stack that glibc kept of one before it,
//! and whose page nobody has seen anybody touch for long. So before a page leaves, its bytes are looked
//! at where the threads' blocks begin: glibc lays a block out before there is a thread, always at the same
//! distance from the end of the stack, and leaves it there when the thread has ended.
//!
//! A debugger reads through /proc/PID/mem or PTRACE_PEEKDATA, and gets EIO where a page is far. gdb
//! reads the block of each thread, whole, whenever the program stops (libthread_db), and without it
//! waits for ever in the middle of a call that it makes in the program. So the whole block stays; and,
//! while somebody traces the program, what is on top of each stack.

use super::LinuxKernel;
use super::space::Space;
use crate::uffd::agent;
use crate::uffd::proc::beginning_of;
use crate::uffd::program::{Thread, has_threads, threads_of_all};
use crate::uffd::system_call::system_call;
use crate::{EvictError, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{Duration, PAGE_SIZE, PageNumber, Time};
use rustix::fd::OwnedFd;
use rustix::process::Pid;

/// A thread that is younger has only just used its pages.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// And so many times what the last look has taken: there may be thousands of threads.
const REST: u64 = 9;
/// While it is not known where blocks are to be looked for, and there are threads.
const LOOK_SOON: Duration = Duration::from_millis(1);

/// Where the block of a thread begins, seen from its list of robust mutexes, and how long it is at
/// most: `struct pthread` of glibc 2.31 to 2.41 has 2304 bytes, and the list is 736 bytes in.
const BLOCK_BEFORE: u64 = 736;
const BLOCK_LENGTH: u64 = 2560;

/// So many bytes from a thread's stack pointer on, for the innermost frames.
const STACK_LENGTH: u64 = 16 << 10;

/// Before the list of robust mutexes: the thread's id, and the last of the list.
const WORDS_BEFORE: u64 = 16;
/// In the list (`struct robust_list_head` of `linux/futex.h`): from where a mutex of glibc is in it to
/// its lock. Never anything else on x86-64.
const FUTEX_OFFSET: u64 = -32_i64 as u64;

/// Places within a page at which blocks are looked for. glibc's own stacks end with a page, so there
/// is one; stacks of the program's may have others.
const PLACES_MAX: usize = 4;

/// The pages that the threads of one address space need.
#[derive(Debug, Default)]
pub(super) struct ThreadBlocks {
    /// In order.
    pages: Vec<PageNumber>,
    looked: Option<Time>,
    /// How long that took.
    cost: Duration,
    /// Where in its page a list of robust mutexes was seen, other than the first thread's: that one's
    /// block lies where the program was started.
    places: Vec<u64>,
    /// The last id that the system had given when the threads were looked at.
    last_id: Option<u64>,
    /// None was given between the last two looks, and the blocks of all threads were seen: until one is
    /// given there are no others.
    seen_all: bool,
}

impl ThreadBlocks {
    /// The first page of a range that must stay, as far as was seen.
    fn first_in(&self, range: PageRange) -> Option<PageNumber> {
        let after = self.pages.partition_point(|page| *page < range.start);
        let first = *self.pages.get(after)?;
        range.contains(first).then_some(first)
    }

    fn look_again(&mut self, processes: &[Pid], last_word: Option<PageNumber>) {
        let now = agent::now();
        let is_over = |rest| self.looked.is_none_or(|looked| now >= looked + rest);
        let is_blind = || self.places.is_empty() && processes.iter().any(|&one| has_threads(one));
        let rest = LOOK_AGAIN.max(Duration::from_nanos(self.cost.as_nanos() * REST));
        if is_over(rest) || is_over(LOOK_SOON) && is_blind() {
            self.looked = Some(now);
            self.look(processes, last_word);
            self.cost = agent::now().since(now);
        }
    }

    fn look(&mut self, processes: &[Pid], last_word: Option<PageNumber>) {
        // An id is given a moment before its thread is among the others.
        let before = core::mem::replace(&mut self.last_id, last_id());
        self.seen_all = self.last_id.is_some() && self.last_id == before;
        self.pages.clear();
        self.pages.extend(last_word);
        let traced = processes.iter().any(|&process| is_traced(process));
        for thread in threads_of_all(processes) {
            if let Some(list) = robust_list(thread.id) {
                self.keep(list.saturating_sub(BLOCK_BEFORE), BLOCK_LENGTH);
                if !thread.is_first() {
                    self.note_place(list % PAGE_SIZE as u64);
                }
            } else {
                // It may have only begun.
                self.seen_all = false;
            }
            if traced && let Some(top) = stack_pointer(thread) {
                self.keep(top, STACK_LENGTH);
            }
        }
        self.pages.sort_unstable();
        self.pages.dedup();
    }

    /// May there be blocks that were not seen, where it is known where to look for them?
    fn may_be_more(&self) -> bool {
        let all_seen = || self.seen_all && last_id() == self.last_id;
        !self.places.is_empty() && !all_seen()
    }

    fn note_place(&mut self, place: u64) {
        if !self.places.contains(&place) && self.places.len() < PLACES_MAX {
            self.places.push(place);
        }
    }

    /// Looks at pages that are to leave. `read` fills bytes from an address on, if nothing is missing.
    fn look_at(&mut self, range: PageRange, read: &impl Fn(u64, &mut [u8]) -> bool) {
        for page in (range.start.0..range.end().0).map(PageNumber) {
            let mut lists = self.places.iter().map(|place| page.address() + place);
            if lists.any(|list| is_list(list, read))
                && let Err(at) = self.pages.binary_search(&page)
            {
                self.pages.insert(at, page);
            }
        }
    }

    /// Keeps the pages of so many bytes.
    fn keep(&mut self, address: u64, length: u64) {
        let last = PageNumber::containing(address.saturating_add(length - 1));
        let first = PageNumber::containing(address);
        self.pages.extend((first.0..=last.0).map(PageNumber));
    }
}

/// Is there a thread's list of robust mutexes, whether the thread is there or not?
fn is_list(list: u64, read: &impl Fn(u64, &mut [u8]) -> bool) -> bool {
    let mut bytes = [0; 32];
    if !read(list.saturating_sub(WORDS_BEFORE), &mut bytes) {
        return false;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let [id, last, first, offset] = [0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word]));
    // The next four bytes belong to no id.
    let is_id = i32::try_from(id).is_ok();
    is_id && is_address(last) && is_address(first) && offset == FUTEX_OFFSET
}

/// Of the program's memory, or with a bit that says of which kind the mutex is.
const fn is_address(word: u64) -> bool {
    const LOWEST: u64 = 1 << 16;
    const END: u64 = 1 << 47;
    LOWEST <= word && word < END
}

/// The last id that a task was given (`ns_last_pid` of proc_sys_kernel(5), with
/// CONFIG_CHECKPOINT_RESTORE).
fn last_id() -> Option<u64> {
    let id = beginning_of("sys/kernel/ns_last_pid")?;
    id.trim_end().parse().ok()
}

/// Does a debugger trace the process?
fn is_traced(process: Pid) -> bool {
    let id = process;
    let status = Thread { process, id }.file("status");
    let tracer = status.as_deref().and_then(|status| {
        let rest = status.split_once("TracerPid:")?.1;
        rest.split_ascii_whitespace().next()
    });
    tracer.is_some_and(|tracer| tracer != "0")
}

/// Of a thread that is stopped or waits in the kernel (proc_pid_syscall(5)).
fn stack_pointer(thread: Thread) -> Option<u64> {
    let line = thread.file("syscall")?;
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

/// Unlike a load, and unlike process_vm_readv(2), this waits for no page: one that is missing is EIO.
fn is_read(memory: &OwnedFd, address: u64, bytes: &mut [u8]) -> bool {
    let length = bytes.len();
    rustix::io::pread(memory, bytes, address) == Ok(length)
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
    /// Looks for pages that must stay among those that are to leave.
    pub(super) fn look_for_blocks(
        &mut self,
        space: SpaceId,
        ranges: impl Iterator<Item = PageRange>,
    ) {
        let (processes, word) = (self.processes_of(space), self.last_word);
        let Some(Space { thread_blocks, .. }) = self.space_mut(space) else {
            return;
        };
        if processes.is_empty() {
            return;
        }
        // A forked child's word is where its parent's is.
        thread_blocks.look_again(&processes, word);
        if !thread_blocks.may_be_more() {
            return;
        }
        let mut blocks = core::mem::take(thread_blocks);
        let residency = self.residency_of(space);
        // Where the program may not be looked at, what was seen of its threads must do.
        if let Some(memory) = residency.and_then(|residency| residency.open_memory().ok()) {
            let read = |address, bytes: &mut [u8]| is_read(&memory, address, bytes);
            ranges.for_each(|range| blocks.look_at(range, &read));
        }
        if let Some(space) = self.space_mut(space) {
            space.thread_blocks = blocks;
        }
    }

    /// How many pages of a range may leave: those before the first that must stay.
    pub(super) fn may_leave(&self, space: SpaceId, range: PageRange) -> u32 {
        let blocks = self.space(space).map(|space| &space.thread_blocks);
        let first = blocks.and_then(|blocks| blocks.first_in(range));
        first.map_or(range.count, |first| first.0 - range.start.0) as u32
    }
}

#[cfg(test)]
mod tests;
