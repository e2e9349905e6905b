//! The supervisor's end of the control sockets (layouts in `legato_base::wire::control`).

use legato_base::wire::control::{AGENT_MESSAGE_SIZE, AgentMessage, ControlError, Welcome};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recvmsg, send, socket_with,
};
use rustix::process::{Pid, getuid};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that wait to be accepted: programs that start at the same moment.
const BACKLOG: i32 = 128;
/// Descriptors that one message carries at most.
const DESCRIPTORS_MAX: usize = 2;

/// Where agents connect to. The name lies in the abstract namespace: it ends with the socket.
#[derive(Debug)]
pub(crate) struct ControlListener {
    socket: OwnedFd,
}

impl ControlListener {
    pub(crate) fn bind(name: &str) -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket })
    }

    /// The next agent, if one waits. The abstract namespace has no permissions of its own, so
    /// that processes of other users are sent away here.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<Connection>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error),
            };
            let peer = rustix::net::sockopt::socket_peercred(&socket)?;
            if peer.uid == getuid() {
                return Ok(Some(Connection {
                    socket,
                    peer: peer.pid,
                }));
            }
        }
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The connection of one agent.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Of the process that connected, in this process's pid namespace.
    pub(crate) peer: Pid,
}

/// What was there to receive.
#[derive(Debug)]
pub(crate) enum Received {
    Nothing,
    Message(AgentMessage, Vec<OwnedFd>),
    /// The other side is gone, or speaks something else.
    End(Option<ControlError>),
}

impl Connection {
    pub(crate) fn receive(&self) -> Received {
        let mut bytes = [0; AGENT_MESSAGE_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Ok(_) | Err(_) => return Received::End(None),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        match AgentMessage::parse(&bytes[..received]) {
            Ok(message) => Received::Message(message, descriptors),
            Err(error) => Received::End(Some(error)),
        }
    }

    /// False if the agent cannot be answered: then it is gone.
    pub(crate) fn welcome(&self, welcome: &Welcome) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.socket, &welcome.to_bytes(), flags).is_ok()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
