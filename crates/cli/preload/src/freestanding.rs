//! What a Rust program needs of its surroundings, without a C library.

use crate::environment::Environment;
use crate::{entry, heap, line, task};
use core::fmt::Write;
use core::panic::PanicInfo;
use legato_pager::uffd::agent::last_words;
use legato_pager::uffd::injection::{END_OF_ENTRY, Parameters};
use rustix::process::{Pid, Signal};

#[global_allocator]
#[unsafe(link_section = ".data")]
static HEAP: heap::AgentHeap = heap::AgentHeap::new();

/// The dynamic loader calls this before `main` (System V gABI, chapter 5).
// SAFETY: the section holds pointers to functions of this type; this is one.
#[unsafe(link_section = ".init_array")]
#[used]
static INITIALISE: extern "C" fn(i32, *const *const u8, *const *const u8) = initialise;

extern "C" fn initialise(count: i32, arguments: *const *const u8, environment: *const *const u8) {
    // SAFETY: a loader that passes an environment behind arguments passes main's.
    let Some(environment) = (unsafe { Environment::find(count, arguments, environment) }) else {
        return;
    };
    // SAFETY: nothing but the loader has run.
    unsafe { entry::enter(environment, &HEAP, object()) }
}

// Where a tracer enters, with the parameters in rdi and a stack of its own: the ELF entry of this
// object (build.rs of legato-cli names it). It never returns; a system call that only the tracer
// understands ends it. Hidden, as everything else.
core::arch::global_asm!(
    ".globl legato_entry",
    ".hidden legato_entry",
    ".type legato_entry, @function",
    "legato_entry:",
    "call {enter}",
    "mov rdi, rax",
    "mov eax, {end}",
    "syscall",
    "ud2",
    enter = sym enter_injected,
    end = const END_OF_ENTRY,
);

extern "C" fn enter_injected(parameters: *const Parameters) -> i64 {
    // SAFETY: the tracer passes parameters that stay until this has returned.
    let parameters = unsafe { &*parameters };
    entry::enter_injected(parameters, &HEAP, object())
}

/// Where this object lies in memory, zero-initialised data included.
fn object() -> (u64, u64) {
    let (start, end): (u64, u64);
    // SAFETY: the linker defines both symbols for every object; only their addresses are taken.
    // Hidden, so that they are this object's and not the program's.
    unsafe {
        core::arch::asm!(
            ".hidden __ehdr_start",
            ".hidden _end",
            "lea {start}, [rip + __ehdr_start]",
            "lea {end}, [rip + _end]",
            start = out(reg) start,
            end = out(reg) end,
            options(nomem, nostack, pure, preserves_flags),
        );
    }
    (start, end)
}

/// The agent cannot go on, and without it the program's missing pages would never come: both end,
/// with a message. The pages cannot read zero meanwhile, because the supervisor holds the
/// userfaultfd too.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = line::FixedLine::default();
    let place = info.location().map_or("?", |location| location.file());
    let number = info.location().map_or(0, |location| location.line());
    let message = info.message();
    // A line that is too long is cut.
    let _ = write!(
        line,
        "the agent failed at {place}:{number}: {message}; please report it"
    );
    last_words(line.as_str());
    if let Some(program) = entry::program_of_agent().and_then(Pid::from_raw) {
        // Fails only when the program has ended already.
        let _ = rustix::process::kill_process(program, Signal::KILL);
    }
    task::exit(2)
}

// The compiled `alloc` crate names these for unwinding, which never happens: panics end here.
core::arch::global_asm!(
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "_Unwind_Resume:",
    "rust_eh_personality:",
    "ud2",
);

// The functions that compiled code calls by name. `rep movsb` is as fast as anything on
// processors with ERMS (all that have userfaultfd in practice) for the sizes used here. Hidden, so
// that the program's own are never replaced by these.
core::arch::global_asm!(
    ".globl memcpy",
    ".hidden memcpy",
    ".type memcpy, @function",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".globl memmove",
    ".hidden memmove",
    ".type memmove, @function",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2:",
    "lea rsi, [rsi + rdx - 1]",
    "lea rdi, [rdi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".globl memset",
    ".hidden memset",
    ".type memset, @function",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".globl memcmp",
    ".hidden memcmp",
    ".type memcmp, @function",
    ".globl bcmp",
    ".hidden bcmp",
    ".type bcmp, @function",
    "memcmp:",
    "bcmp:",
    "xor ecx, ecx",
    "3:",
    "cmp rcx, rdx",
    "je 4f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "je 3b",
    "ret",
    "4:",
    "xor eax, eax",
    "ret",
    ".globl strlen",
    ".hidden strlen",
    ".type strlen, @function",
    "strlen:",
    "xor eax, eax",
    "5:",
    "cmp byte ptr [rdi + rax], 0",
    "je 6f",
    "inc rax",
    "jmp 5b",
    "6:",
    "ret",
);
