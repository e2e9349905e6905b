//! Processes that share their maker's memory (CLONE_VM without CLONE_THREAD), and outlive it.

use crate::forked::{fork, wait};
use crate::ground::{Case, Failure, Ground, Outcome, call, check, ensure, fill, report};
use legato_base::{PAGE_SIZE, Random};
use legato_test_programs::Arena;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("sharer-of-an-ended-program", |ground| {
        outlives(ground, End::Exit)
    }),
    ("sharer-of-a-program-that-executes", |ground| {
        outlives(ground, End::Execute)
    }),
    ("sharer-of-an-ended-child", of_an_ended_child),
    (
        "vfork-child-of-a-killed-program",
        vfork_child_of_a_killed_program,
    ),
    ("clone-flags", clone_flags),
    (
        "part-killed-between-vfork-and-exec",
        killed_between_vfork_and_exec,
    ),
];

const PAGES: u64 = 4096;
/// Pages of a sharer's stack. Its end is looked at like any other memory.
const STACK_PAGES: u64 = 64;

/// How a maker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit,
    Execute,
}

/// The argument of a sharer.
struct Task<'a> {
    name: &'static str,
    region: &'a Arena,
    ground: &'a Ground,
    /// Ends when the maker has.
    maker: [i32; 2],
}

impl Task<'_> {
    /// Waits for the end of the maker, and looks at all memory.
    fn run(&self) -> Result<Outcome, Failure> {
        call!(close(self.maker[1]))?;
        let mut byte = 0u8;
        let read = call!(read(self.maker[0], (&raw mut byte).cast(), 1))?;
        ensure!(read == 0, "the maker has not ended");
        // By then its agent has had time to see it.
        std::thread::sleep(std::time::Duration::from_millis(300));
        for version in 1..4 {
            check(self.region, version)?;
            fill(self.region, version + 1);
            self.ground.evict(self.region)?;
        }
        Ok(Outcome::Passed)
    }
}

extern "C" fn run_task(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the task and what it names are never given up.
    let task = unsafe { &*task.cast::<Task<'_>>() };
    match task.run() {
        Ok(outcome) => report(task.name, &outcome),
        Err(failure) => println!("{}: {failure}", task.name),
    }
    // SAFETY: ends the process, without exit handlers.
    unsafe { libc::_exit(0) }
}

/// The top of a new stack.
fn stack() -> Result<*mut libc::c_void, Failure> {
    let stack = Box::leak(Box::new(Arena::new(STACK_PAGES)?));
    Ok(stack.address(STACK_PAGES - 1).wrapping_byte_add(PAGE_SIZE))
}

/// Starts a process that shares the memory of this one, and looks at it when this one has ended.
fn start_sharer(name: &'static str, ground: &Ground) -> Result<(), Failure> {
    let region = Box::leak(Box::new(ground.far_region(PAGES)?));
    let mut maker = [0; 2];
    call!(pipe2(maker.as_mut_ptr(), libc::O_CLOEXEC))?;
    let task = Box::leak(Box::new(Task {
        name,
        region,
        ground,
        maker,
    }));
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    call!(clone(
        run_task,
        stack()?,
        flags,
        core::ptr::from_mut(task).cast()
    ))?;
    Ok(())
}

/// The sharer reports: this process says nothing more.
fn outlives(ground: &Ground, end: End) -> Result<Outcome, Failure> {
    let name = match end {
        End::Exit => "sharer-of-an-ended-program",
        End::Execute => "sharer-of-a-program-that-executes",
    };
    start_sharer(name, ground)?;
    if end == End::Execute {
        let arguments = [c"true".as_ptr(), core::ptr::null()];
        call!(execv(c"/bin/true".as_ptr(), arguments.as_ptr()))?;
    }
    // SAFETY: ends the process, without exit handlers: the memory is the sharer's now.
    unsafe { libc::_exit(0) }
}

fn of_an_ended_child(ground: &Ground) -> Result<Outcome, Failure> {
    let child = fork("child", || start_sharer("sharer-of-an-ended-child", ground))?;
    let status = wait(child)?;
    ensure!(status == 0, "the child ended with wait status {status:#x}");
    // SAFETY: ends the process; the sharer reports.
    unsafe { libc::_exit(0) }
}

/// A child of vfork(2) has not executed yet when its program is killed.
fn vfork_child_of_a_killed_program(ground: &Ground) -> Result<Outcome, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--case", "part-killed-between-vfork-and-exec", "--alone"]);
    command.args(["--bytes", &format!("{}KiB", ground.pages() * 4)]);
    command.args(ground.expect_evicted.then_some("--expect-evicted"));
    let status = command.status()?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    ensure!(
        signal == Some(libc::SIGKILL),
        "it ended otherwise: {status}"
    );
    Ok(Outcome::Passed)
}

fn killed_between_vfork_and_exec(ground: &Ground) -> Result<Outcome, Failure> {
    let region = Box::leak(Box::new(ground.far_region(PAGES)?));
    let mut maker = [0; 2];
    call!(pipe2(maker.as_mut_ptr(), libc::O_CLOEXEC))?;
    let task = Box::leak(Box::new(Task {
        name: "part-killed-between-vfork-and-exec",
        region,
        ground,
        maker,
    }));
    // The thread that kills is not one that waits in vfork.
    let mut begun = [0; 2];
    call!(pipe2(begun.as_mut_ptr(), libc::O_CLOEXEC))?;
    BEGUN.store(begun[1], Ordering::Relaxed);
    std::thread::spawn(move || {
        let mut byte = 0u8;
        // SAFETY: reads one byte into a local variable; then ends the process.
        unsafe {
            libc::read(begun[0], (&raw mut byte).cast(), 1);
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    });
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    call!(clone(
        run_begun,
        stack()?,
        flags,
        core::ptr::from_mut(task).cast()
    ))?;
    Err(Failure("the program went on".to_owned()))
}

static BEGUN: AtomicI32 = AtomicI32::new(-1);

extern "C" fn run_begun(task: *mut libc::c_void) -> libc::c_int {
    let byte = 1u8;
    // SAFETY: writes one byte of a local variable.
    unsafe { libc::write(BEGUN.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    run_task(task)
}

/// Flags of clone(2) that go with CLONE_VM, each alone and with others. Which go together the kernel
/// knows: what it refuses here it refuses anywhere.
const FLAGS: &[libc::c_int] = &[
    libc::CLONE_FS,
    libc::CLONE_FILES,
    libc::CLONE_SIGHAND,
    libc::CLONE_THREAD,
    libc::CLONE_VFORK,
    libc::CLONE_PARENT,
    libc::CLONE_SYSVSEM,
    libc::CLONE_PARENT_SETTID,
    libc::CLONE_CHILD_SETTID,
    libc::CLONE_CHILD_CLEARTID,
    libc::CLONE_UNTRACED,
    libc::CLONE_PTRACE,
    libc::CLONE_IO,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWCGROUP,
    libc::SIGCHLD,
];

/// The memory that one task is to look at, and the result.
struct Look<'a> {
    region: &'a Arena,
    ids: [libc::pid_t; 2],
    state: AtomicU32,
}

const RIGHT: u32 = 1;
const WRONG: u32 = 2;

extern "C" fn look(look: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the maker waits until the state says that this is over.
    let look = unsafe { &*look.cast::<Look<'_>>() };
    let is_right = check(look.region, 1).is_ok();
    fill(look.region, 2);
    let state = if is_right { RIGHT } else { WRONG };
    look.state.store(state, Ordering::Release);
    // SAFETY: ends the calling thread and nothing else, without the C library, which knows nothing of it.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("exit does not return")
}

/// Tasks with many combinations of flags, one after the other, see what is far and write to it.
fn clone_flags(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.region(64)?;
    let mut random = Random::from_seed(ground.seconds);
    let (mut made, mut refused) = (0, 0);
    let mut chosen: Vec<libc::c_int> = FLAGS.to_vec();
    chosen.extend((0..ground.rounds).map(|_| {
        let half: libc::c_int = FLAGS
            .iter()
            .filter(|_| random.below(3) == 0)
            .fold(0, |all, flag| all | flag);
        half
    }));
    for flags in chosen {
        fill(&region, 1);
        ground.evict(&region)?;
        match clone_and_wait(flags, &region)? {
            true => {
                made += 1;
                check(&region, 2)?;
                ground.evict(&region)?;
                check(&region, 2)?;
            }
            false => refused += 1,
        }
    }
    println!("clone-flags: {made} made, {refused} refused: ok");
    Ok(Outcome::Passed)
}

/// False if the kernel refuses these flags.
fn clone_and_wait(flags: libc::c_int, region: &Arena) -> Result<bool, Failure> {
    let look_at = Box::leak(Box::new(Look {
        region,
        ids: [0; 2],
        state: AtomicU32::new(0),
    }));
    let argument = core::ptr::from_mut(look_at);
    let ids = (&raw mut look_at.ids).cast::<libc::pid_t>();
    let flags = flags | libc::CLONE_VM;
    // SAFETY: the new task has a stack of its own and an argument that is never given up.
    let made = unsafe {
        libc::clone(
            look,
            stack()?,
            flags,
            argument.cast(),
            ids,
            core::ptr::null_mut::<libc::c_void>(),
            ids.add(1),
        )
    };
    if made < 0 {
        return Ok(false);
    }
    let look_at: &Look<'_> = look_at;
    loop {
        match look_at.state.load(Ordering::Acquire) {
            RIGHT => break,
            WRONG => {
                return Err(Failure(format!(
                    "a task with flags {flags:#x} sees wrong memory"
                )));
            }
            _ => std::thread::yield_now(),
        }
    }
    // Not of a thread, nor of a child of this process's parent.
    let mut status = 0;
    // SAFETY: the status is a local variable.
    unsafe { libc::waitpid(made, &raw mut status, libc::__WALL) };
    Ok(true)
}
