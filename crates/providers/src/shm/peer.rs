//! Whose process is at the other end of a socket.

use core::arch::asm;
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::process::Uid;

const SYS_GETSOCKOPT: i64 = 55;
const SOL_SOCKET: i64 = 1;
const SO_PEERCRED: i64 = 17;

/// The user of the process that has connected, or that has begun to listen, as it was then (SO_PEERCRED of unix(7)).
/// Not by rustix, whose type has no place for a process without a number: the kernel calls one 0 that is in no pid
/// namespace of the caller's.
pub(super) fn peer_user(socket: impl AsFd) -> Option<Uid> {
    // Process, user and group.
    let mut credentials = [0u32; 3];
    let mut length = size_of_val(&credentials) as u32;
    let result: i64;
    // SAFETY: the kernel writes no more than the length says, and integers; the registers named are those that the
    // x86-64 system call convention changes.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_GETSOCKOPT => result,
            in("rdi") i64::from(socket.as_fd().as_raw_fd()),
            in("rsi") SOL_SOCKET,
            in("rdx") SO_PEERCRED,
            in("r10") &raw mut credentials,
            in("r8") &raw mut length,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    (result == 0).then(|| Uid::from_raw(credentials[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn the_user_of_a_peer_is_known_and_what_is_no_socket_has_none() {
        let kind = SocketType::SEQPACKET;
        let (one, _other) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(peer_user(&one), Some(rustix::process::getuid()));
        assert_eq!(peer_user(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
