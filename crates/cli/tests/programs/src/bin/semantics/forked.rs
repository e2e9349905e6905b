//! Forked processes, and what becomes of them.

use crate::ground::{Checked, Failure, call, ensure};

/// Runs `child` in a forked process.
pub(crate) fn fork(name: &str, child: impl FnOnce() -> Checked) -> Result<libc::pid_t, Failure> {
    let pid = call!(fork())?;
    if pid == 0 {
        let status = match child() {
            Ok(()) => 0,
            Err(failure) => {
                println!("{name}: {failure}");
                1
            }
        };
        // SAFETY: ends the process, without the exit handlers that are the parent's.
        unsafe { libc::_exit(status) };
    }
    Ok(pid as libc::pid_t)
}

/// The wait status of a child.
pub(crate) fn wait(pid: libc::pid_t) -> Result<i32, Failure> {
    let mut status = 0;
    call!(waitpid(pid, &raw mut status, 0))?;
    Ok(status)
}

/// Waits for a child that has to end well.
pub(crate) fn reap(pid: libc::pid_t) -> Checked {
    let status = wait(pid)?;
    ensure!(status == 0, "a child ended with wait status {status:#x}");
    Ok(())
}
