//! Loads and stores that may fail: the signal is the result.

use core::arch::global_asm;

/// A value, or the signal that came instead of it.
pub(crate) type Probed<T> = Result<T, Signal>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Segv,
    Bus,
}

/// A value, and zero or the signal that came instead of it: rax and rdx (System V ABI).
#[repr(C)]
struct Answer {
    value: u64,
    signal: u64,
}

// The first instruction of each is the one that may fail; the handler goes on at `matrix_failed`, with
// the signal's number in rdx.
global_asm!(
    "matrix_load:",
    "mov rax, [rdi]",
    "xor edx, edx",
    "ret",
    "matrix_store:",
    "mov [rdi], rsi",
    "xor edx, edx",
    "ret",
    "matrix_failed:",
    "xor eax, eax",
    "ret",
);

unsafe extern "C" {
    fn matrix_load(address: usize) -> Answer;
    fn matrix_store(address: usize, value: u64) -> Answer;
    fn matrix_failed();
}

extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the thread's context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize];
    if at == matrix_load as *const () as i64 || at == matrix_store as *const () as i64 {
        registers[libc::REG_RIP as usize] = matrix_failed as *const () as i64;
        registers[libc::REG_RDX as usize] = i64::from(signal);
        return;
    }
    // Somebody else's: it ends the program as it would have.
    // SAFETY: takes numbers.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// From here on loads and stores of this module survive what they touch.
pub(crate) fn install_handler() {
    // SAFETY: all of a sigaction may be zero; the handler changes the interrupted registers only.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            let result = libc::sigaction(signal, &raw const action, core::ptr::null_mut());
            assert_eq!(result, 0, "sigaction");
        }
    }
}

pub(crate) fn load(address: usize) -> Probed<u64> {
    // SAFETY: reads memory of the cases as a word, or fails.
    probed(unsafe { matrix_load(address) })
}

pub(crate) fn store(address: usize, value: u64) -> Probed<()> {
    // SAFETY: writes memory of the cases only, or fails.
    probed(unsafe { matrix_store(address, value) }).map(drop)
}

fn probed(answer: Answer) -> Probed<u64> {
    match answer.signal as i32 {
        0 => Ok(answer.value),
        libc::SIGBUS => Err(Signal::Bus),
        _ => Err(Signal::Segv),
    }
}
