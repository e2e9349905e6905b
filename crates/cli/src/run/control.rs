//! The supervisor's end of the control sockets (layouts in `legato_base::wire::control`).

use super::processes;
use legato_base::wire::control::{
    AGENT_MESSAGE_SIZE, AgentMessage, ControlError, SupervisorMessage,
};
use legato_pager::uffd::Peer;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, getuid};
use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Connections that wait to be accepted: programs that start at the same moment.
const BACKLOG: i32 = 128;
/// Descriptors that one message carries at most.
const DESCRIPTORS_MAX: usize = 3;

/// Everybody may connect: who it is, [`ControlListener::accept`] sees.
const MODE: u32 = 0o666;

/// Where agents connect to.
#[derive(Debug)]
pub(crate) struct ControlListener {
    socket: OwnedFd,
}

impl ControlListener {
    pub(crate) fn bind(path: &Path) -> std::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket })
    }

    /// The next agent, if one waits. Processes of other users are sent away, unless they belong to the run.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<Connection>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error),
            };
            let Peer { pid, user } = Peer::of(&socket)?;
            let is_foreign = user != getuid();
            if let Some(peer) = pid
                && (!is_foreign || processes::is_below(peer, user))
            {
                return Ok(Some(Connection {
                    socket,
                    peer,
                    is_foreign,
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
    /// It runs as another user: it must not get what is not its own.
    pub(crate) is_foreign: bool,
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
        let mut result = receive(self.as_fd(), &mut bytes, RecvFlags::DONTWAIT);
        if matches!(result, Err(Errno::CONNRESET)) {
            // The other side has left without reading all that was sent to it. The kernel says so
            // once, before it hands out what that side had sent: a goodbye, say.
            result = receive(self.as_fd(), &mut bytes, RecvFlags::DONTWAIT);
        }
        let (received, descriptors) = match result {
            Ok((received, descriptors)) if received > 0 => (received, descriptors),
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Ok(_) | Err(_) => return Received::End(None),
        };
        match AgentMessage::parse(&bytes[..received]) {
            Ok(message) => Received::Message(message, descriptors),
            // P-28: nothing more is read of whoever says what is no message.
            Err(error) => Received::End(Some(error)),
        }
    }

    /// False if the agent cannot be reached now: it is gone, or does not read.
    pub(crate) fn send(&self, message: &SupervisorMessage) -> bool {
        self.send_with(message, &[])
    }

    /// Passes another connection on, along with a message.
    pub(crate) fn pass_on(&self, message: &SupervisorMessage, connection: Self) -> bool {
        self.send_with(message, &[connection.socket.as_fd()])
    }

    /// With a descriptor, of which the other side gets a copy.
    pub(crate) fn send_attached(
        &self,
        message: &SupervisorMessage,
        descriptor: BorrowedFd<'_>,
    ) -> bool {
        self.send_with(message, &[descriptor])
    }

    fn send_with(&self, message: &SupervisorMessage, descriptors: &[BorrowedFd<'_>]) -> bool {
        send(self.as_fd(), &message.to_bytes(), descriptors)
    }
}

/// The next message and the descriptors that came with it.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | flags;
    let received = recvmsg(socket, &mut parts, &mut ancillary, flags)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((received.bytes, descriptors))
}

/// Sends a message and copies of descriptors. False if that cannot be now.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return false;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags).is_ok()
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
