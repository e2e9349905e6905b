//! The system calls, by address. A range that is given here is memory that its thread owns, which
//! no Rust object lives in; its content is only ever copied.

use libc::{c_int, c_void, iovec};
use std::io;

/// What a call returned, or its errno.
pub(crate) type Outcome = Result<usize, i32>;

pub(crate) const NONE: c_int = libc::PROT_NONE;
pub(crate) const READ: c_int = libc::PROT_READ;
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
pub(crate) const NO_FILE: c_int = -1;

fn outcome(result: isize) -> Outcome {
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

pub(crate) fn pointer(address: usize) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address)
}

pub(crate) fn map(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: usize,
) -> Outcome {
    let address = pointer(address);
    // SAFETY: a new mapping, or one over memory that the caller owns.
    let result = unsafe { libc::mmap(address, length, protection, flags, file, offset as i64) };
    outcome(result as isize)
}

pub(crate) fn unmap(address: usize, length: usize) -> Outcome {
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::munmap(pointer(address), length) } as isize)
}

/// `mremap`; `target` counts with MREMAP_FIXED only.
pub(crate) fn remap(
    address: usize,
    length: usize,
    new_length: usize,
    flags: c_int,
    target: usize,
) -> Outcome {
    let (address, target) = (pointer(address), pointer(target));
    // SAFETY: the caller owns both ranges.
    let result = unsafe { libc::mremap(address, length, new_length, flags, target) };
    outcome(result as isize)
}

pub(crate) fn protect(address: usize, length: usize, protection: c_int) -> Outcome {
    // SAFETY: the caller owns the range, and touches it as its protection says.
    outcome(unsafe { libc::mprotect(pointer(address), length, protection) } as isize)
}

pub(crate) fn advise(address: usize, length: usize, advice: c_int) -> Outcome {
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::madvise(pointer(address), length, advice) } as isize)
}

pub(crate) fn lock(address: usize, length: usize, on_fault: bool) -> Outcome {
    let flags = if on_fault { libc::MLOCK_ONFAULT } else { 0 };
    // SAFETY: changes no content.
    outcome(unsafe { libc::mlock2(pointer(address), length, flags) } as isize)
}

pub(crate) fn unlock(address: usize, length: usize) -> Outcome {
    // SAFETY: changes no content.
    outcome(unsafe { libc::munlock(pointer(address), length) } as isize)
}

pub(crate) fn grow_heap(bytes: isize) -> Outcome {
    // SAFETY: growing harms nobody; who shrinks has grown as much before, with no allocation since.
    outcome(unsafe { libc::sbrk(bytes) } as isize)
}

/// Loads.
pub(crate) fn load(address: usize, target: &mut [u8]) {
    // SAFETY: the caller owns the range, and it may be read.
    unsafe {
        core::ptr::copy_nonoverlapping(
            pointer(address).cast::<u8>(),
            target.as_mut_ptr(),
            target.len(),
        );
    }
}

/// Loads and stores, between ranges that do not overlap.
pub(crate) fn copy(target: usize, source: usize, length: usize) {
    // SAFETY: the caller owns both ranges, the one may be read and the other written.
    unsafe {
        core::ptr::copy_nonoverlapping(
            pointer(source).cast::<u8>(),
            pointer(target).cast::<u8>(),
            length,
        );
    }
}

/// Stores.
pub(crate) fn store(address: usize, source: &[u8]) {
    // SAFETY: the caller owns the range, and it may be written.
    unsafe {
        core::ptr::copy_nonoverlapping(
            source.as_ptr(),
            pointer(address).cast::<u8>(),
            source.len(),
        );
    }
}

pub(crate) fn read(file: c_int, address: usize, length: usize) -> Outcome {
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::read(file, pointer(address), length) })
}

pub(crate) fn write(file: c_int, address: usize, length: usize) -> Outcome {
    // SAFETY: the range is only read.
    outcome(unsafe { libc::write(file, pointer(address), length) })
}

/// A range in three parts, so that parts begin and end inside of pages.
fn parts(address: usize, length: usize) -> [iovec; 3] {
    let (first, second) = (length / 3, length / 2);
    [(0, first), (first, second), (second, length)].map(|(from, to)| iovec {
        iov_base: pointer(address + from),
        iov_len: to - from,
    })
}

pub(crate) fn read_parts(file: c_int, address: usize, length: usize) -> Outcome {
    let parts = parts(address, length);
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::readv(file, parts.as_ptr(), 3) })
}

pub(crate) fn write_parts(file: c_int, address: usize, length: usize) -> Outcome {
    let parts = parts(address, length);
    // SAFETY: the range is only read.
    outcome(unsafe { libc::writev(file, parts.as_ptr(), 3) })
}

pub(crate) fn read_at(file: c_int, address: usize, length: usize, offset: usize) -> Outcome {
    let parts = parts(address, length);
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::preadv(file, parts.as_ptr(), 3, offset as i64) })
}

pub(crate) fn write_at(file: c_int, address: usize, length: usize, offset: usize) -> Outcome {
    let parts = parts(address, length);
    // SAFETY: the range is only read.
    outcome(unsafe { libc::pwritev(file, parts.as_ptr(), 3, offset as i64) })
}

fn message(parts: &mut [iovec; 3]) -> libc::msghdr {
    // SAFETY: all of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

pub(crate) fn send(socket: c_int, address: usize, length: usize) -> Outcome {
    let mut parts = parts(address, length);
    let message = message(&mut parts);
    // SAFETY: the range is only read.
    outcome(unsafe { libc::sendmsg(socket, &raw const message, 0) })
}

pub(crate) fn receive(socket: c_int, address: usize, length: usize) -> Outcome {
    let mut parts = parts(address, length);
    let mut message = message(&mut parts);
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_WAITALL) })
}

/// `process_vm_readv` of this very process.
pub(crate) fn copy_in(target: usize, source: usize, length: usize) -> Outcome {
    let (target, source) = (parts(target, length), parts(source, length));
    // SAFETY: the caller owns both ranges.
    outcome(unsafe {
        libc::process_vm_readv(libc::getpid(), target.as_ptr(), 3, source.as_ptr(), 3, 0)
    })
}

/// `process_vm_writev` of this very process.
pub(crate) fn copy_out(target: usize, source: usize, length: usize) -> Outcome {
    let (target, source) = (parts(target, length), parts(source, length));
    // SAFETY: the caller owns both ranges.
    outcome(unsafe {
        libc::process_vm_writev(libc::getpid(), source.as_ptr(), 3, target.as_ptr(), 3, 0)
    })
}

pub(crate) fn random(address: usize, length: usize) -> Outcome {
    // SAFETY: the caller owns the range.
    outcome(unsafe { libc::getrandom(pointer(address), length, 0) })
}

/// FUTEX_WAIT with a value, without a limit of time.
pub(crate) fn futex_wait(address: usize, value: u32) -> Outcome {
    let word = pointer(address);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = core::ptr::null::<libc::timespec>();
    // SAFETY: the kernel only reads the word.
    outcome(unsafe { libc::syscall(libc::SYS_futex, word, operation, value, forever) } as isize)
}

pub(crate) fn futex_wake(address: usize, count: u32) -> Outcome {
    let word = pointer(address);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is not even read.
    outcome(unsafe { libc::syscall(libc::SYS_futex, word, operation, count) } as isize)
}

/// A file of memory, closed by exec.
pub(crate) fn memory_file(bytes: usize) -> Outcome {
    // SAFETY: the name is a C string.
    let file =
        outcome(unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) } as isize)?;
    // SAFETY: a number.
    outcome(unsafe { libc::ftruncate(file as c_int, bytes as i64) } as isize)?;
    Ok(file)
}

pub(crate) fn close(file: c_int) {
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::close(file) };
}

pub(crate) fn pipe() -> Result<[c_int; 2], i32> {
    let mut ends = [0; 2];
    // SAFETY: room for two.
    outcome(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } as isize)?;
    Ok(ends)
}

pub(crate) fn socket_pair() -> Result<[c_int; 2], i32> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two.
    outcome(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } as isize)?;
    Ok(ends)
}
