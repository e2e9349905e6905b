//! The agent's end of the connection to `legato run`.

use alloc::string::String;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, Ordering};
use legato_base::wire::control::{AgentMessage, AgentMessageBody, WELCOME_SIZE, Welcome};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// The connection, for [`last_words`]; -1 before there is one.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// Tells the supervisor why the agent is about to end, without using the heap. For a panic.
pub fn last_words(text: &str) {
    let socket = SOCKET.load(Ordering::Relaxed);
    if socket < 0 {
        return;
    }
    let message = AgentMessage::fatal_bytes(text);
    // SAFETY: the agent keeps its connection open until it ends; borrowed for one call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // If this fails the supervisor is gone.
    let _ = rustix::net::send(socket, &message, SendFlags::NOSIGNAL);
}

/// A seqpacket connection.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: OwnedFd,
    pid: u32,
}

impl Supervisor {
    /// Connects to a name in the abstract namespace.
    pub(super) fn connect(name: &[u8], pid: u32) -> Result<Self, Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
        Ok(Self { socket, pid })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks to be taken on. None if the supervisor is gone or speaks another version.
    pub(super) fn greet(&self, command: String) -> Option<Welcome> {
        self.send(AgentMessageBody::Hello { text: command }, &[])
            .ok()?;
        let mut answer = alloc::vec![0u8; WELCOME_SIZE];
        loop {
            match rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty()) {
                Ok((length, _)) => return Welcome::parse(&answer[..length]).ok(),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Sends a message and, with it, copies of descriptors.
    pub(super) fn send(
        &self,
        body: AgentMessageBody,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let bytes = AgentMessage {
            pid: self.pid,
            body,
        }
        .to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(Errno::INVAL);
        }
        let parts = [IoSlice::new(&bytes)];
        loop {
            let flags = SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
