//! A program whose memory is tested: it does what it is told and reports how that ended. It uses
//! no heap, because it may be a forked child of a process with several threads.

use crate::{ARENA, name_of};
use legato_base::PAGE_SIZE;
use std::os::fd::RawFd;

/// One call: what, and its arguments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Command {
    pub(crate) call: Call,
    pub(crate) arguments: [u64; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Call {
    Map,
    Unmap,
    Remap,
    DontNeed,
    Free,
    Lock,
    Unlock,
    Fork,
    Exit,
    Read,
    Write,
}

/// How it ended: 0 or an errno, and a value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Reply {
    pub(crate) errno: u64,
    pub(crate) value: u64,
}

/// The ends of the pipes of each program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) commands: [RawFd; 2],
    pub(crate) replies: [RawFd; 2],
    /// Bytes go through it to memory and back, so that an access that fails is an errno.
    pub(crate) bytes: [RawFd; 2],
}

pub(crate) fn pipe() -> [RawFd; 2] {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(name_of(result), "ok", "a pipe");
    ends
}

/// Reads a whole plain value; None at the end of the pipe.
pub(crate) fn receive<T: Copy>(fd: RawFd, mut value: T) -> Option<T> {
    let size = size_of::<T>();
    // SAFETY: the other side sends a value of this type, and all of it at once.
    let length = unsafe { libc::read(fd, (&raw mut value).cast(), size) };
    (usize::try_from(length) == Ok(size)).then_some(value)
}

pub(crate) fn send<T: Copy>(fd: RawFd, value: T) {
    // SAFETY: the bytes of a plain value.
    let length = unsafe { libc::write(fd, (&raw const value).cast(), size_of::<T>()) };
    assert_eq!(length, size_of::<T>() as isize, "a pipe takes a value");
}

/// Serves commands until there are no more.
pub(crate) fn serve(channels: &[Channel], mut own: usize) {
    let idle = Command {
        call: Call::Exit,
        arguments: [0; 4],
    };
    while let Some(command) = receive(channels[own].commands[0], idle) {
        match command.call {
            // SAFETY: ends the process at once, as the program was told.
            Call::Exit => unsafe { libc::_exit(0) },
            Call::Fork => {
                // SAFETY: the child goes on in this loop, which needs nothing of other threads.
                let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
                if child == 0 {
                    own = command.arguments[0] as usize;
                } else {
                    send(channels[own].replies[1], reply(child));
                }
            }
            _ => send(
                channels[own].replies[1],
                perform(command, channels[own].bytes),
            ),
        }
    }
}

fn reply(result: i64) -> Reply {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    match u64::try_from(result) {
        Ok(value) => Reply { errno: 0, value },
        Err(_) => Reply {
            errno: errno as u64,
            value: 0,
        },
    }
}

fn perform(Command { call, arguments }: Command, bytes: [RawFd; 2]) -> Reply {
    let address = |page: u64| (ARENA + page * PAGE_SIZE as u64) as *mut libc::c_void;
    let [first, count, to, grow] = arguments;
    let (start, length) = (address(first), count as usize * PAGE_SIZE);
    let mut word = count;
    let word: *mut libc::c_void = (&raw mut word).cast();
    // SAFETY: all of it is about pages of the arena, which nothing else uses, and about a word of
    // this function's own.
    let result = unsafe {
        match call {
            Call::Map => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let access = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(start, length, access, flags, -1, 0) as i64
            }
            Call::Unmap => libc::munmap(start, length).into(),
            Call::Remap => {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let new = length + grow as usize * PAGE_SIZE;
                libc::mremap(start, length, new, flags, address(to)) as i64
            }
            Call::DontNeed => libc::madvise(start, length, libc::MADV_DONTNEED).into(),
            Call::Free => libc::madvise(start, length, libc::MADV_FREE).into(),
            Call::Lock => libc::syscall(libc::SYS_mlock2, start, length, 1),
            Call::Unlock => libc::munlock(start, length).into(),
            Call::Read => {
                let read = libc::write(bytes[1], start, 8);
                if read == 8 {
                    libc::read(bytes[0], word, 8);
                    return Reply {
                        errno: 0,
                        value: *word.cast::<u64>(),
                    };
                }
                read as i64
            }
            Call::Write => {
                libc::write(bytes[1], word, 8);
                let written = libc::read(bytes[0], start, 8);
                let failed = reply(written as i64);
                if written != 8 {
                    libc::read(bytes[0], word, 8);
                    return failed;
                }
                0
            }
            Call::Fork | Call::Exit => unreachable!("served by the loop"),
        }
    };
    reply(result)
}
