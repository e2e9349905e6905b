//! Unix sockets: names, packets with descriptors, and who is at the other end.

use super::peer::peer_user;
use super::wire::MESSAGE_SIZE;
use crate::memory::system;
use alloc::format;
use alloc::string::String;
use core::mem::MaybeUninit;
use legato_verbs::VerbsError;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Descriptors that a message can carry.
pub(super) const DESCRIPTORS_MAX: usize = 2;
/// Peers that can wait for `accept(2)`; the kernel makes further ones try again.
pub(super) const BACKLOG: i32 = 128;

/// A name from [`legato_verbs::Address::Shm`] as the system wants it.
pub(super) fn socket_address(name: &str) -> Result<SocketAddrUnix, VerbsError> {
    let address = match name.strip_prefix('@') {
        Some("") => return Err(VerbsError::UnsupportedAddress),
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        None if name.is_empty() => return Err(VerbsError::UnsupportedAddress),
        None => SocketAddrUnix::new(name),
    };
    address.map_err(|_| VerbsError::UnsupportedAddress)
}

pub(super) fn new_socket() -> Result<OwnedFd, VerbsError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("socket"))
}

/// Whether the other end runs as our user or as root. Whoever is let in can make us map memory
/// and can read regions, so nobody else is.
pub(super) fn is_trusted(socket: impl AsFd) -> bool {
    peer_user(socket).is_some_and(|user| user == rustix::process::geteuid() || user.is_root())
}

/// Sends one message. The socket is never waited for.
pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8; MESSAGE_SIZE],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    // Without NOSIGNAL a dead peer would kill the program that the agent lives in with SIGPIPE.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// A packet as it came.
#[derive(Debug)]
pub(super) struct Packet {
    bytes: [u8; MESSAGE_SIZE + 1],
    length: usize,
    descriptors: [Option<OwnedFd>; DESCRIPTORS_MAX],
}

impl Packet {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The descriptors, if there are exactly `N`.
    pub(super) fn into_descriptors<const N: usize>(self) -> Option<[OwnedFd; N]> {
        let count = self.descriptors.iter().flatten().count();
        let mut descriptors = self.descriptors.into_iter().flatten();
        if count != N {
            return None;
        }
        Some(core::array::from_fn(|_| {
            descriptors.next().expect("invariant: counted above")
        }))
    }
}

#[derive(Debug)]
pub(super) enum Received {
    Packet(Packet),
    /// More was attached than any message carries.
    TooMuch,
    Nothing,
    /// The other end is closed or dead.
    Closed,
}

/// Receives one packet.
pub(super) fn receive(socket: impl AsFd) -> Received {
    let mut packet = Packet {
        bytes: [0; MESSAGE_SIZE + 1],
        length: 0,
        descriptors: [const { None }; DESCRIPTORS_MAX],
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut packet.bytes)];
        match net::recvmsg(&socket, &mut parts, &mut control, flags) {
            // Reported once when the other end closed with our words unread; what it had said
            // before is still to be had.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            other => break other,
        }
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    let mut places = packet.descriptors.iter_mut();
    // The kernel's word for this, MSG_CTRUNC, is not enough: the space is rounded up.
    let mut too_many = received.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                match places.next() {
                    Some(place) => *place = Some(descriptor),
                    None => too_many = true,
                }
            }
        }
    }
    if too_many {
        return Received::TooMuch;
    }
    if received.bytes == 0 {
        // A packet of no bytes looks the same; no honest peer sends one.
        return Received::Closed;
    }
    packet.length = received.bytes;
    Received::Packet(packet)
}

/// A listening socket; its name is removed on drop if it is still ours.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    socket: OwnedFd,
    /// Path, device and inode.
    file: Option<(String, u64, u64)>,
}

impl ListeningSocket {
    pub(super) fn bind(name: &str) -> Result<Self, VerbsError> {
        let address = socket_address(name)?;
        let socket = new_socket()?;
        match net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) if !name.starts_with('@') => {
                remove_if_stale(name)?;
                net::bind(&socket, &address).map_err(bind_error)?;
            }
            Err(errno) => return Err(bind_error(errno)),
        }
        let file = match name.starts_with('@') {
            true => None,
            false => fs::lstat(name)
                .ok()
                .map(|status| (String::from(name), status.st_dev, status.st_ino)),
        };
        // Owned from here on, so that a failure below removes the name again.
        let listening = Self { socket, file };
        net::listen(&listening.socket, BACKLOG).map_err(system("listen"))?;
        Ok(listening)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn accept(&self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match net::accept_with(&self.socket, flags) {
                Ok(socket) => return Some(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Out of descriptors looks like nobody there: the peer waits in the backlog.
                Err(_) => return None,
            }
        }
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if let Some((name, device, inode)) = &self.file {
            let ours = fs::lstat(name.as_str())
                .is_ok_and(|status| status.st_dev == *device && status.st_ino == *inode);
            if ours {
                let _ = fs::unlink(name.as_str());
            }
        }
    }
}

fn bind_error(errno: Errno) -> VerbsError {
    match errno {
        Errno::ADDRINUSE => VerbsError::AddressInUse,
        Errno::ACCESS | Errno::PERM => VerbsError::PermissionDenied,
        other => system("bind")(other),
    }
}

/// Removes what a dead process left behind. Nobody listens on a socket that refuses to connect.
fn remove_if_stale(name: &str) -> Result<(), VerbsError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match fs::open(name, flags, Mode::empty()) {
        Ok(found) => found,
        // Another has removed it.
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(bind_error(errno)),
    };
    let status = fs::fstat(&found).map_err(system("fstat"))?;
    // Connecting to a plain file is refused as well, and that must not be deleted.
    if fs::FileType::from_raw_mode(status.st_mode) != fs::FileType::Socket {
        return Err(VerbsError::AddressInUse);
    }
    // To this one, whatever has the name by now.
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    let address = SocketAddrUnix::new(itself).map_err(system("connect"))?;
    match net::connect(new_socket()?, &address) {
        Err(Errno::CONNREFUSED) => remove_dead(name, &found),
        Err(Errno::ACCESS | Errno::PERM) => Err(VerbsError::PermissionDenied),
        _ => Err(VerbsError::AddressInUse),
    }
}

/// Removes `dead` from its name. Another may have done so meanwhile, and listen there: unlink(2) does not
/// look at what it removes, so what has the name is moved away and looked at first. As long as `dead` is
/// open no other file has its number.
fn remove_dead(name: &str, dead: &OwnedFd) -> Result<(), VerbsError> {
    let aside = format!("{name}.{}", rustix::process::getpid().as_raw_nonzero());
    match fs::rename(name, &aside) {
        Err(Errno::NOENT) => return Ok(()),
        moved => moved.map_err(bind_error)?,
    }
    let (moved, dead) = (fs::lstat(&aside), fs::fstat(dead));
    let is_dead = moved.is_ok_and(|moved| {
        dead.is_ok_and(|dead| (dead.st_dev, dead.st_ino) == (moved.st_dev, moved.st_ino))
    });
    if is_dead {
        return fs::unlink(&aside).map_err(bind_error);
    }
    fs::renameat_with(fs::CWD, &aside, fs::CWD, name, RenameFlags::NOREPLACE)
        .map_err(bind_error)?;
    Err(VerbsError::AddressInUse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::read_dir;

    /// Two start at the place of one that is dead.
    #[test]
    fn who_has_taken_a_stale_name_meanwhile_keeps_it() {
        let directory = format!("legato-{}-stale", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir(&directory).unwrap();
        let name = directory.join("node.sock");
        let name = name.to_str().unwrap();
        let address = socket_address(name).unwrap();
        let dead = new_socket().unwrap();
        net::bind(&dead, &address).unwrap();
        drop(dead);
        let dead = fs::open(name, OFlags::PATH, Mode::empty()).unwrap();

        let live = ListeningSocket::bind(name).unwrap();
        assert_eq!(remove_dead(name, &dead), Err(VerbsError::AddressInUse));
        net::connect(new_socket().unwrap(), &address).unwrap();
        assert_eq!(read_dir(&directory).unwrap().count(), 1);
        drop(live);
        assert_eq!(remove_dead(name, &dead), Ok(()));
        assert_eq!(read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}
