//! Signal frames, handlers and stacks in far pages.

use crate::ground::check;
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, ensure};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::sync::mpsc::channel;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("alternate-stack", alternate_stack),
    ("nested-signals", nested_signals),
    ("normal-stack", normal_stack),
    ("thread-stacks", thread_stacks),
    ("handler-jumps-out", handler_jumps_out),
    ("handler-uses-far-pages", handler_uses_far_pages),
];

/// The address of a local of the last handler, and how many ran.
static HANDLER_LOCAL: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

pub(crate) fn install(signal: libc::c_int, flags: libc::c_int, handler: Handler) -> Checked {
    // SAFETY: a zeroed sigaction is a valid one, and the handler has the type that SA_SIGINFO asks
    // for.
    let action = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        action
    };
    call!(sigaction(signal, &raw const action, core::ptr::null_mut()))?;
    Ok(())
}

/// Uses 16 KiB of whatever stack it runs on.
#[inline(never)]
fn use_stack() -> u64 {
    let mut bytes = core::hint::black_box([3_u8; 16 << 10]);
    HANDLER_LOCAL.store(bytes.as_ptr() as usize, SeqCst);
    bytes[core::hint::black_box(8000)] = 4;
    core::hint::black_box(&bytes)
        .iter()
        .map(|byte| u64::from(*byte))
        .sum()
}

const STACK_SUM: u64 = 3 * (16 << 10) + 1;

extern "C" fn count(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let signal = unsafe { (*info).si_signo };
    if use_stack() == STACK_SUM && signal > 0 {
        HANDLED.fetch_add(1, SeqCst);
    }
}

/// Handles one signal, and in the middle of it another.
extern "C" fn nest(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: raise is async-signal-safe.
    unsafe { libc::raise(libc::SIGUSR2) };
    count(signal, info, context);
}

fn use_as_stack(stack: &Arena) -> Checked {
    let stack = libc::stack_t {
        ss_sp: stack.address(0),
        ss_flags: 0,
        ss_size: stack.length(),
    };
    call!(sigaltstack(&raw const stack, core::ptr::null_mut()))?;
    Ok(())
}

fn no_alternate_stack() -> Checked {
    let none = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    call!(sigaltstack(&raw const none, core::ptr::null_mut()))?;
    Ok(())
}

fn is_on(stack: &Arena) -> bool {
    let first = stack.address(0) as usize;
    (first..first + stack.length()).contains(&HANDLER_LOCAL.load(SeqCst))
}

fn alternate_stack(ground: &Ground) -> Result<Outcome, Failure> {
    let stack = ground.far_region(32)?;
    use_as_stack(&stack)?;
    install(libc::SIGUSR1, libc::SA_ONSTACK, count)?;
    for round in 1..=20 {
        ground.evict(&stack)?;
        call!(raise(libc::SIGUSR1))?;
        ensure!(HANDLED.load(SeqCst) == round, "the handler ran wrong");
        ensure!(is_on(&stack), "the handler ran on another stack");
    }
    // The far end of the stack was never used.
    stack.check(0, 1)?;
    no_alternate_stack()?;
    Ok(Outcome::Passed)
}

fn nested_signals(ground: &Ground) -> Result<Outcome, Failure> {
    let stack = ground.far_region(32)?;
    use_as_stack(&stack)?;
    install(libc::SIGUSR1, libc::SA_ONSTACK, nest)?;
    install(libc::SIGUSR2, libc::SA_ONSTACK, count)?;
    for round in 1..=20 {
        ground.evict(&stack)?;
        call!(raise(libc::SIGUSR1))?;
        ensure!(HANDLED.load(SeqCst) == 2 * round, "a handler ran wrong");
        ensure!(is_on(&stack), "a handler ran on another stack");
    }
    stack.check(0, 1)?;
    no_alternate_stack()?;
    Ok(Outcome::Passed)
}

/// What a thread with a stack of the case's choice runs.
struct Work<'a> {
    stack: &'a Arena,
    function: &'a mut (dyn FnMut() + Send),
}

extern "C" fn run_work(work: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `on_stack` passes a Work that lives until this thread has been joined.
    let work = unsafe { &mut *work.cast::<Work<'_>>() };
    (work.function)();
    core::ptr::null_mut()
}

/// Runs `function` in a thread on that stack, and `meanwhile` here, with the thread's number.
fn on_stack(
    stack: &Arena,
    function: &mut (dyn FnMut() + Send),
    meanwhile: impl FnOnce(libc::pthread_t) -> Checked,
) -> Checked {
    let mut work = Work { stack, function };
    let (mut thread, mut attributes) = (0, UnsafeCell::new(core::mem::MaybeUninit::uninit()));
    let attributes = attributes.get_mut().as_mut_ptr();
    call!(pthread_attr_init(attributes))?;
    let length = work.stack.length();
    call!(pthread_attr_setstack(
        attributes,
        work.stack.address(0),
        length
    ))?;
    let result = call!(pthread_create(
        &raw mut thread,
        attributes,
        run_work,
        (&raw mut work).cast()
    ))?;
    ensure!(result == 0, "pthread_create: errno {result}");
    let result = meanwhile(thread);
    call!(pthread_join(thread, core::ptr::null_mut()))?;
    result
}

/// All but the C library's own block at the top, which the kernel needs when the thread ends.
fn evict_stack(ground: &Ground, stack: &Arena) -> Checked {
    let length = (stack.pages() as usize - 1) * PAGE_SIZE;
    ground.evict_range(stack.address(0), length)
}

/// The thread sleeps in the kernel while its stack leaves; then a signal comes, whose frame the
/// kernel puts there.
fn normal_stack(ground: &Ground) -> Result<Outcome, Failure> {
    let stack = ground.region(64)?;
    install(libc::SIGUSR1, libc::SA_RESTART, count)?;
    let (reader, writer) = crate::transfers::new_pipe()?;
    let right = AtomicU64::new(0);
    use std::os::fd::AsRawFd;
    let (input, output) = (reader.as_raw_fd(), writer.as_raw_fd());
    let mut sleep = || {
        let mut locals = core::hint::black_box([0x5A_u8; 24 << 10]);
        for _ in 0..5 {
            let mut byte = 0_u8;
            if call!(read(input, (&raw mut byte).cast(), 1)).is_ok() {
                locals[usize::from(byte)] = byte;
            }
        }
        let sum: u64 = core::hint::black_box(&locals)
            .iter()
            .map(|byte| u64::from(*byte))
            .sum();
        right.store(sum, SeqCst);
    };
    on_stack(&stack, &mut sleep, |thread| {
        // Every byte is written whatever happens, so that the thread ends.
        let mut result = Ok(());
        for byte in 1..=5_u8 {
            let handled = HANDLED.load(SeqCst);
            result = result.and_then(|()| {
                evict_stack(ground, &stack)?;
                let sent = call!(pthread_kill(thread, libc::SIGUSR1))?;
                ensure!(sent == 0, "pthread_kill: errno {sent}");
                wait_for(&HANDLED, handled + 1)?;
                ensure!(is_on(&stack), "the handler ran on another stack");
                evict_stack(ground, &stack)
            });
            call!(write(output, (&raw const byte).cast(), 1))?;
        }
        result
    })?;
    let expected = 0x5A * ((24 << 10) - 5) + 15;
    let found = right.load(SeqCst);
    ensure!(
        found == expected,
        "the locals' sum is {found}, not {expected}"
    );
    Ok(Outcome::Passed)
}

fn wait_for(count: &AtomicU64, value: u64) -> Checked {
    let begin = std::time::Instant::now();
    while count.load(SeqCst) < value {
        ensure!(begin.elapsed().as_secs() < 60, "the handler never ran");
        std::thread::yield_now();
    }
    Ok(())
}

/// Fills locals, one level after another, and compares them on the way back.
#[inline(never)]
fn descend(level: u64, bottom: &mut dyn FnMut()) -> u64 {
    let locals = core::hint::black_box([level; 2048]);
    let deeper = if level == 0 {
        bottom();
        0
    } else {
        descend(level - 1, bottom)
    };
    deeper
        + u64::from(
            core::hint::black_box(&locals)
                .iter()
                .all(|word| *word == level),
        )
}

/// Memory is short while threads of the C library sleep on deep stacks.
fn thread_stacks(ground: &Ground) -> Result<Outcome, Failure> {
    const LEVELS: u64 = 60;
    let (asleep, sleeping) = channel();
    std::thread::scope(|scope| {
        let mut wakers = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..6 {
            let (waker, wake) = channel::<()>();
            let asleep = asleep.clone();
            wakers.push(waker);
            threads.push(scope.spawn(move || {
                descend(LEVELS, &mut || {
                    // The receiver waits for all of them.
                    let _ = asleep.send(());
                    let _ = wake.recv();
                })
            }));
        }
        let deep = sleeping.iter().take(threads.len()).count();
        ground.press_all();
        wakers.iter().for_each(|waker| {
            // A thread that is gone needs no waking.
            let _ = waker.send(());
        });
        for thread in threads {
            let right = thread.join().expect("no thread panics");
            ensure!(
                right == LEVELS + 1,
                "{right} of {} levels are right",
                LEVELS + 1
            );
        }
        ensure!(deep == 6, "{deep} threads slept");
        Ok(())
    })?;
    Ok(Outcome::Passed)
}

/// Where the handler of the next case jumps.
static JUMP_TO: AtomicPtr<libc::ucontext_t> = AtomicPtr::new(core::ptr::null_mut());
static JUMPS: AtomicI32 = AtomicI32::new(0);

extern "C" fn jump(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if use_stack() == STACK_SUM {
        JUMPS.fetch_add(1, SeqCst);
    }
    // SAFETY: the context was saved by swapcontext below, in a frame that still waits; it brings
    // the signal mask back, as siglongjmp would.
    unsafe { libc::setcontext(JUMP_TO.load(SeqCst)) };
}

extern "C" fn raise_and_never_return() {
    // SAFETY: raise takes a number. The handler does not come back here.
    unsafe { libc::raise(libc::SIGUSR1) };
    std::process::abort();
}

/// A handler that leaves its frame by a jump. swapcontext(3) stands for sigsetjmp, which returns
/// twice and so cannot be called from Rust. Stack, saved contexts and alternate stack are far.
fn handler_jumps_out(ground: &Ground) -> Result<Outcome, Failure> {
    let stack = ground.far_region(32)?;
    let alternate = ground.far_region(32)?;
    let contexts = ground.far_region(4)?;
    use_as_stack(&alternate)?;
    install(libc::SIGUSR1, libc::SA_ONSTACK, jump)?;
    let here = contexts.address(0).cast::<libc::ucontext_t>();
    let there = contexts.address(2).cast::<libc::ucontext_t>();
    JUMP_TO.store(here, SeqCst);
    for round in 1..=10 {
        call!(getcontext(there))?;
        // SAFETY: getcontext has filled it; the stack is the region's.
        unsafe {
            (*there).uc_stack.ss_sp = stack.address(0);
            (*there).uc_stack.ss_size = stack.length();
            libc::makecontext(there, raise_and_never_return, 0);
        }
        for region in [&stack, &alternate, &contexts] {
            ground.evict(region)?;
        }
        call!(swapcontext(here, there))?;
        ensure!(JUMPS.load(SeqCst) == round, "the handler ran wrong");
    }
    no_alternate_stack()?;
    Ok(Outcome::Passed)
}

static TARGET: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

extern "C" fn touch_target(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    for page in 0..64 {
        let word = TARGET.load(SeqCst).wrapping_byte_add(page * PAGE_SIZE);
        // SAFETY: the case points it at a region of 64 pages.
        if unsafe { (*word).load(SeqCst) } == page as u64 {
            HANDLED.fetch_add(1, SeqCst);
        }
    }
}

/// Far pages are fetched from inside a handler that interrupts a thread which itself touches far
/// pages.
fn handler_uses_far_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let handled = ground.far_region(64)?;
    let touched = ground.far_region(512)?;
    TARGET.store(handled.address(0).cast(), SeqCst);
    install(libc::SIGUSR1, libc::SA_RESTART, touch_target)?;
    // SAFETY: pthread_self cannot fail.
    let thread = unsafe { libc::pthread_self() };
    for _ in 0..4 {
        ground.evict(&handled)?;
        ground.evict(&touched)?;
        let before = HANDLED.load(SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(move || call!(pthread_kill(thread, libc::SIGUSR1)));
            check(&touched, 1)
        })?;
        let found = HANDLED.load(SeqCst) - before;
        ensure!(found == 64, "the handler saw {found} of 64 pages right");
    }
    Ok(Outcome::Passed)
}
