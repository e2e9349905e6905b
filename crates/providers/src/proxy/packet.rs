//! Packets on the socket between the halves, each with at most one descriptor.

use alloc::vec::Vec;
use core::mem::MaybeUninit;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Longest packet: a call with an address and private data.
pub(super) const PACKET_BYTES_MAX: usize = 1024;

/// Sends one packet. The socket is never waited for.
pub(super) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::INVAL);
    }
    // Without NOSIGNAL a dead supervisor would kill the program that the agent lives in.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// What was there to receive.
#[derive(Debug)]
pub(super) enum Received {
    /// The first bytes of the buffer, and the descriptor that came with them.
    Packet(usize, Option<OwnedFd>),
    /// More bytes or descriptors than any packet has.
    TooMuch,
    Nothing,
    /// The other end is closed or dead.
    Closed,
}

/// Receives one packet.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8; PACKET_BYTES_MAX]) -> Received {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        let mut parts = [IoSliceMut::new(into)];
        match net::recvmsg(socket, &mut parts, &mut control, flags) {
            // Reported once when the other end closed with our words unread; what it had said
            // before is still to be had.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Ok(received) => break received,
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let cut = ReturnFlags::CTRUNC | ReturnFlags::TRUNC;
    if received.flags.intersects(cut) || descriptors.len() > 1 {
        return Received::TooMuch;
    }
    match received.bytes {
        // A packet of no bytes looks the same; no honest half sends one.
        0 => Received::Closed,
        length => Received::Packet(length, descriptors.pop()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn packets_come_whole_with_their_descriptor() {
        let (near, far) = pair();
        let mut bytes = [0; PACKET_BYTES_MAX];
        assert!(matches!(receive(&far, &mut bytes), Received::Nothing));
        send(&near, b"one", None).unwrap();
        send(&near, b"three", Some(near.as_fd())).unwrap();
        assert!(matches!(
            receive(&far, &mut bytes),
            Received::Packet(3, None)
        ));
        assert_eq!(&bytes[..3], b"one");
        let second = receive(&far, &mut bytes);
        assert!(matches!(second, Received::Packet(5, Some(_))), "{second:?}");
        drop(near);
        drop(second);
        assert!(matches!(receive(&far, &mut bytes), Received::Closed));
    }

    #[test]
    fn more_than_a_packet_has_is_seen() {
        let (near, far) = pair();
        let mut bytes = [0; PACKET_BYTES_MAX];
        send(&near, &[1; PACKET_BYTES_MAX + 1], None).unwrap();
        assert!(matches!(receive(&far, &mut bytes), Received::TooMuch));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let both = [near.as_fd(), far.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&both)));
        let parts = [IoSlice::new(b"x")];
        net::sendmsg(&near, &parts, &mut control, SendFlags::empty()).unwrap();
        assert!(matches!(receive(&far, &mut bytes), Received::TooMuch));
    }
}
