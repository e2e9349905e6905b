//! Filters of a program's own system calls (seccomp(2)).

use crate::{CallError, check_call};
use libc::{sock_filter, sock_fprog};

/// include/uapi/linux/bpf_common.h: BPF_RET, with a constant.
const RETURN: u16 = 0x06;

/// What becomes of a call: one of the `SECCOMP_RET_` values.
#[must_use]
pub const fn decide(decision: u32) -> sock_filter {
    sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: decision,
    }
}

/// From here on every system call of the calling thread, and of those that it starts, passes this filter too.
pub fn filter_system_calls(filter: &mut [sock_filter]) -> Result<(), CallError> {
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: no address is passed.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    check_call("prctl", set as isize)?;
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the filter lives until the call returns, and the kernel only reads it.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    check_call("prctl", set as isize)?;
    Ok(())
}
