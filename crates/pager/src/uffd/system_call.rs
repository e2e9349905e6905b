//! System calls that rustix does not wrap.

use rustix::io::Errno;

/// Makes a system call with up to six arguments; more do not compile.
///
/// # Safety
/// The caller answers for what the call does with its arguments.
///
/// # Errors
/// The kernel's.
pub unsafe fn system_call<const N: usize>(number: i64, arguments: [i64; N]) -> Result<i64, Errno> {
    const {
        assert!(
            N <= 6,
            "the x86-64 convention has six registers for arguments"
        )
    };
    let mut all = [0i64; 6];
    all[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = all;
    let result: i64;
    // SAFETY: the caller's promise; the registers named are those that the x86-64 system call
    // convention changes.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    outcome(result)
}

/// What a system call has left in its result register: errors are the last page of addresses.
///
/// # Errors
/// The kernel's.
pub fn outcome(result: i64) -> Result<i64, Errno> {
    match result {
        -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
        _ => Ok(result),
    }
}
