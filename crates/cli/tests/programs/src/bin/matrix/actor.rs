//! Who does it: the program, another of its threads, a forked child, a process that shares its
//! memory, or one that does not.

use crate::case::{Case, Means};
use crate::operation::{self, Operation};
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use legato_test_programs::Arena;
use std::io::{PipeReader, Read, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Main,
    Thread,
    Fork,
    /// clone(2) with CLONE_VM, as vfork(2) makes it.
    Vfork,
    /// clone(2) with CLONE_VM, while the maker goes on.
    Sharer,
    Outside,
}

impl Actor {
    pub(crate) fn any(random: &mut Random) -> Self {
        match random.below(16) {
            0..5 => Self::Main,
            5..8 => Self::Thread,
            8..11 => Self::Fork,
            11 => Self::Vfork,
            12 => Self::Sharer,
            _ => Self::Outside,
        }
    }

    /// Does it do to the memory of the case what it does, and not to a copy?
    const fn shares_memory(self) -> bool {
        !matches!(self, Self::Fork | Self::Outside)
    }

    /// Chooses the next operation.
    pub(crate) fn choose(self, case: &mut Case) -> Operation {
        let region = *case.region();
        let operation = match self {
            Self::Outside => operation::from_outside(&mut case.random, &region),
            _ => {
                let may_move = case.is_one();
                operation::any(&mut case.random, &region, may_move)
            }
        };
        if self.shares_memory() && operation.may_divide(&region) {
            case.divide();
        }
        operation
    }
}

/// The stack of the processes that share this memory, one after the other.
#[derive(Debug)]
pub(crate) struct Stage {
    stack: Arena,
}

const STACK_PAGES: u64 = 64;

impl Stage {
    pub(crate) fn new() -> Self {
        let stack = Arena::new(STACK_PAGES).expect("a stack");
        Self { stack }
    }

    /// Has it done, and says what came of it.
    pub(crate) fn play(
        &self,
        actor: Actor,
        case: &mut Case,
        operation: &Operation,
        means: &Means<'_>,
    ) -> String {
        match actor {
            Actor::Main => case.perform(operation, means),
            Actor::Thread => std::thread::scope(|scope| {
                let thread = scope.spawn(|| case.perform(operation, means));
                thread.join().expect("a thread that does not panic")
            }),
            Actor::Fork => in_child(|| {
                case.count_apart();
                let result = case.perform(operation, means);
                format!("{result}; sees{}", case.look())
            }),
            Actor::Outside => in_child(|| case.perform(operation, means)),
            Actor::Vfork => self.share(libc::CLONE_VFORK, || case.perform(operation, means)),
            Actor::Sharer => self.share(0, || case.perform(operation, means)),
        }
    }

    fn share<F: FnOnce() -> String>(&self, flags: libc::c_int, act: F) -> String {
        struct Task<F> {
            act: Option<F>,
            said: String,
        }
        extern "C" fn run<F: FnOnce() -> String>(task: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the maker waits until this process has ended.
            let task = unsafe { &mut *task.cast::<Task<F>>() };
            if let Some(act) = task.act.take() {
                task.said = act();
            }
            // SAFETY: ends this process, without what the C library does at an end.
            unsafe { libc::_exit(0) }
        }
        let mut task = Task {
            act: Some(act),
            said: String::new(),
        };
        let top = self
            .stack
            .address(STACK_PAGES - 1)
            .wrapping_byte_add(PAGE_SIZE);
        let argument = (&raw mut task).cast();
        let flags = libc::CLONE_VM | libc::SIGCHLD | flags;
        // SAFETY: the stack is nobody else's, and the task lives until the process has ended, which is
        // waited for. Its maker does nothing meanwhile: they share what the C library keeps for a thread.
        let child = unsafe { libc::clone(run::<F>, top, flags, argument) };
        assert!(child > 0, "clone: {}", std::io::Error::last_os_error());
        wait(child);
        // Another process has written it, which the compiler does not know.
        core::mem::take(&mut core::hint::black_box(&mut task).said)
    }
}

/// Runs it in a forked process; what it says comes back.
fn in_child(act: impl FnOnce() -> String) -> String {
    let (mut answer, mut writer) = std::io::pipe().expect("a pipe");
    // SAFETY: the other threads of this process, if there are any, hold nothing that the child needs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let said = act();
        let status = i32::from(writer.write_all(said.as_bytes()).is_err());
        // SAFETY: ends the process, without the exit handlers that are the parent's.
        unsafe { libc::_exit(status) };
    }
    drop(writer);
    let said = read_all(&mut answer);
    let status = wait(child);
    match status {
        0 => said,
        status => format!("{said} and ended with wait status {status:#x}"),
    }
}

fn read_all(answer: &mut PipeReader) -> String {
    let mut said = String::new();
    answer.read_to_string(&mut said).expect("an answer");
    said
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the status is a local variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
    assert_eq!(waited, child, "waitpid");
    status
}
