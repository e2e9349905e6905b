//! Processes that share pages until one of them writes: each must see its own writes only.

use super::touch::operate;
use super::world::{Failure, World};
use crate::check_call;

/// Versions of the child start here, so that a page of the wrong process is told apart.
const CHILD: u32 = 1_000_000;
const GRANDCHILD: u32 = 2_000_000;

/// Runs `child` in a forked process.
fn spawn(name: &str, child: impl FnOnce() -> Result<(), Failure>) -> Result<libc::pid_t, Failure> {
    // SAFETY: the child goes on with this thread only, touches no lock that another thread could
    // hold, and ends without unwinding.
    let pid = unsafe { libc::fork() };
    check_call("fork", pid as isize)?;
    if pid == 0 {
        let status = match child() {
            Ok(()) => 0,
            Err(failure) => {
                eprintln!("pattern: {name}: {failure}");
                1
            }
        };
        // SAFETY: ends the process, without the exit handlers that are the parent's.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

fn wait(pid: libc::pid_t) -> Result<(), Failure> {
    let mut status = 0;
    // SAFETY: status lives on this stack.
    check_call("waitpid", unsafe { libc::waitpid(pid, &raw mut status, 0) }
        as isize)?;
    match libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        true => Ok(()),
        false => Err(Failure::Result("a child process did not end well")),
    }
}

/// Writes every third page and verifies all.
fn rewrite(world: &World, versions: u32) -> Result<(), Failure> {
    for thread in 0..world.threads {
        for page in world.own_pages(thread).step_by(3) {
            world.verify(page)?;
            world.write_version(page, versions + world.version(page) % CHILD);
        }
    }
    world.verify_all()
}

/// A child and a grandchild, all three at work at the same time.
pub(crate) fn run(world: &World) -> Result<(), Failure> {
    let child = spawn("child", || {
        world.verify_all()?;
        rewrite(world, CHILD)?;
        let grandchild = spawn("grandchild", || {
            world.verify_all()?;
            rewrite(world, GRANDCHILD)
        })?;
        world.on_all_threads(&|thread| {
            let mut random = world.random(4000 + thread);
            (0..500).try_for_each(|_| operate(world, thread, &mut random))
        })?;
        world.verify_all()?;
        wait(grandchild)?;
        world.verify_all()
    })?;
    world.on_all_threads(&|thread| {
        let mut random = world.random(5000 + thread);
        (0..500).try_for_each(|_| operate(world, thread, &mut random))
    })?;
    world.verify_all()?;
    wait(child)?;
    // The child is gone, and what it wrote with it.
    world.verify_all()
}

/// One thread forks while the others go on. The child may only look at that thread's pages: the
/// others were caught in the middle of a write.
pub(crate) fn run_busy(world: &World) -> Result<(), Failure> {
    world.on_all_threads(&|thread| {
        let mut random = world.random(6000 + thread);
        for round in 0..600 {
            if thread == 0 && round % 200 == 100 {
                let child = spawn("busy child", || {
                    for page in world.own_pages(0) {
                        world.verify(page)?;
                        world.write_version(page, CHILD);
                    }
                    world
                        .own_pages(0)
                        .try_for_each(|page| Ok(world.verify(page)?))
                })?;
                wait(child)?;
            }
            operate(world, thread, &mut random)?;
        }
        Ok(())
    })
}
