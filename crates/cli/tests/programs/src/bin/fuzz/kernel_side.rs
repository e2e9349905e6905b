//! What the kernel does with the memory by itself: it refuses what may not be touched, sleeps on
//! futexes, and puts the frames of signals there.

use crate::calls::{self, Outcome};
use crate::space::Page;
use crate::worker::{Failure, STACK_PAGES, Worker};
use core::cell::Cell;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use libc::c_int;

/// Bytes of a call that is to fail.
const PROBE: usize = 96;

thread_local! {
    /// Signals taken by this thread, and the stack address of the last.
    static TAKEN: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Uses more than a page of its stack.
extern "C" fn handle(_: c_int) {
    let mut room = [0u8; 2 * PAGE_SIZE];
    room[PAGE_SIZE] = core::hint::black_box(1);
    let address = core::hint::black_box(&raw mut room).addr();
    TAKEN.set((TAKEN.get().0 + u64::from(room[PAGE_SIZE]), address));
}

/// SIGUSR1 goes to the alternate stack from now on, in every thread that has one.
pub(crate) fn install_handler() -> Outcome {
    // SAFETY: all of a sigaction may be zero.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(c_int) as usize;
    action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler touches its stack and a thread-local cell without a destructor.
    let result =
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()) };
    if result == 0 {
        Ok(0)
    } else {
        Err(libc::EINVAL)
    }
}

impl Worker<'_> {
    /// The frame of a signal goes to the pages before the arena, which are as far as any others.
    pub(crate) fn take_signal(&mut self) -> Result<(), Failure> {
        let length = STACK_PAGES * PAGE_SIZE;
        let base = self.space.base - length;
        let stack = libc::stack_t {
            ss_sp: calls::pointer(base),
            ss_flags: 0,
            ss_size: length,
        };
        let before = TAKEN.get().0;
        // SAFETY: all of a stack_t may be zero; the new stack is this thread's alone, and the old
        // one is put back.
        let raised = unsafe {
            let mut old: libc::stack_t = core::mem::zeroed();
            libc::sigaltstack(&raw const stack, &raw mut old);
            let raised = libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            libc::sigaltstack(&raw const old, core::ptr::null_mut());
            raised
        };
        let (taken, address) = TAKEN.get();
        let is_right =
            raised == 0 && taken == before + 1 && (base..base + length).contains(&address);
        match is_right {
            true => Ok(()),
            false => Err(self.failure(&format!(
                "a signal on the alternate stack at {base:#x}: raised {raised}, taken {}, at {address:#x}",
                taken - before
            ))),
        }
    }

    /// Calls that must fail on a page, and leave everything as it is.
    pub(crate) fn provoke_fault(&mut self, random: &mut Random) -> Result<(), Failure> {
        let Some(range) = self.space.pick_where(random, |page| !page.is_writable()) else {
            return Ok(());
        };
        let page = range.start;
        let range = page..page + 1;
        let address = self.space.address(page) + random.below((PAGE_SIZE - PROBE) as u64) as usize;
        let state = &self.space.pages[page];
        let (is_mapped, is_readable) = (state.is_mapped(), state.is_readable());
        let bounce = self.bounce.as_mut_ptr().expose_provenance();
        let fault = Err(libc::EFAULT);
        if !is_mapped {
            let start = self.space.address(page);
            let absent = Err(libc::ENOMEM);
            let found = calls::advise(start, PAGE_SIZE, libc::MADV_DONTNEED);
            self.expect_at("madvise of nothing", &range, found, absent)?;
            let found = calls::protect(start, PAGE_SIZE, calls::READ);
            self.expect_at("mprotect of nothing", &range, found, absent)?;
            let found = calls::lock(start, PAGE_SIZE, false);
            self.expect_at("mlock of nothing", &range, found, absent)?;
        }
        let [pipe_out, pipe_in] = self.channels.pipe;
        if !is_readable {
            let found = calls::write(pipe_in, address, PROBE);
            self.expect_at("write from what may not be read", &range, found, fault)?;
            let found = calls::copy_in(bounce, address, PROBE);
            self.expect_at(
                "process_vm_readv of what may not be read",
                &range,
                found,
                fault,
            )?;
            let found = calls::futex_wait(address & !3, 1);
            self.expect_at("futex on what may not be read", &range, found, fault)?;
        }
        let found = calls::write(pipe_in, bounce, PROBE);
        self.expect("write", found, Ok(PROBE))?;
        let found = calls::read(pipe_out, address, PROBE);
        self.expect_at("read into what may not be written", &range, found, fault)?;
        let found = calls::read(pipe_out, bounce, PROBE);
        self.expect_at("read after one that failed", &range, found, Ok(PROBE))?;
        let found = calls::random(address, PROBE);
        self.expect_at(
            "getrandom into what may not be written",
            &range,
            found,
            fault,
        )?;
        let found = calls::read_at(self.settings.file, address, PROBE, 0);
        self.expect_at("preadv into what may not be written", &range, found, fault)?;
        let found = calls::copy_out(address, bounce, PROBE);
        self.expect_at(
            "process_vm_writev into what may not be written",
            &range,
            found,
            fault,
        )
    }

    /// A futex word in the memory: the kernel looks at it, and finds another value than it is told.
    pub(crate) fn use_futex(&mut self, random: &mut Random) -> Result<(), Failure> {
        let is = |page: &Page| page.is_readable() && !page.is_free;
        let Some(range) = self.space.pick_where(random, is) else {
            return Ok(());
        };
        let offset = random.below(PAGE_SIZE as u64 / 4) as usize * 4;
        let address = self.space.address(range.start) + offset;
        let mut page = [0; PAGE_SIZE];
        self.content(range.start).render(&mut page);
        let word = page[offset..offset + 4].iter().rev();
        let value = word.fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        let found = calls::futex_wait(address, !value);
        self.expect_at("futex with another value", &range, found, Err(libc::EAGAIN))?;
        let found = calls::futex_wake(address, 1);
        self.expect_at("futex that nobody waits for", &range, found, Ok(0))
    }
}
