//! Who is at the other end of a Unix socket.

use super::system_call::system_call;
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::io::Errno;
use rustix::process::{Pid, Uid};

const SYS_GETSOCKOPT: i64 = 55;
const SOL_SOCKET: i64 = 1;
const SO_PEERCRED: i64 = 17;

/// The process that has connected, or that has begun to listen, as it was then (SO_PEERCRED of unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// None if it has no number in the caller's pid namespace.
    pub pid: Option<Pid>,
    pub user: Uid,
}

impl Peer {
    /// # Errors
    /// The kernel's, for what is no connected socket.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        // As the kernel has them: it calls a process without a number 0, which rustix's type cannot be.
        let mut credentials = [0u32; 3];
        let mut length = size_of_val(&credentials) as u32;
        let arguments = [
            socket.as_fd().as_raw_fd().into(),
            SOL_SOCKET,
            SO_PEERCRED,
            (&raw mut credentials) as i64,
            (&raw mut length) as i64,
        ];
        // SAFETY: the kernel writes no more than the length says, and integers.
        unsafe { system_call(SYS_GETSOCKOPT, arguments) }?;
        let [pid, user, _] = credentials;
        Ok(Self {
            pid: Pid::from_raw(pid.cast_signed()),
            user: Uid::from_raw(user),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_peer_is_known_by_number_and_user() {
        let kind = SocketType::SEQPACKET;
        let (one, _other) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let own = Peer {
            pid: Some(rustix::process::getpid()),
            user: rustix::process::getuid(),
        };
        assert_eq!(Peer::of(&one), Ok(own));
        let (no_socket, _) = rustix::pipe::pipe().unwrap();
        assert_eq!(Peer::of(no_socket), Err(Errno::NOTSOCK));
    }
}
