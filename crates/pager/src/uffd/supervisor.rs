//! The agent's end of the connection to `legato run`.

use super::agent::StartError;
use super::opening::Privileged;
use alloc::string::String;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, Ordering};
use legato_base::wire::control::{
    AgentMessage, AgentMessageBody, ControlError, ORDER_SIZE, SupervisorMessage, WELCOME_SIZE,
    Welcome,
};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
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

/// May the program whose agent cannot start run without one?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    RunsWithout,
    Ends,
}

/// Tells the supervisor why a program has no agent, before there is one, and so without the heap.
/// Called in the program itself: its descriptor table is used until this returns.
///
/// # Errors
/// If the supervisor cannot be reached.
pub fn excuse(path: &[u8], pid: u32, text: &str) -> Result<Dismissal, Errno> {
    let socket = connect(path)?;
    let message = AgentMessage::failed_bytes(pid, text);
    rustix::net::send(&socket, &message, SendFlags::NOSIGNAL)?;
    Ok(dismissal(&socket))
}

/// Waits for the answer to a failure.
fn dismissal(socket: &OwnedFd) -> Dismissal {
    let mut bytes = [0; ORDER_SIZE];
    loop {
        let received = match rustix::net::recv(socket, &mut bytes, RecvFlags::empty()) {
            Ok((received, _)) => received,
            Err(Errno::INTR) => continue,
            Err(_) => return Dismissal::Ends,
        };
        match SupervisorMessage::parse(&bytes[..received]) {
            Ok(SupervisorMessage::Dismissed { runs: true }) => return Dismissal::RunsWithout,
            Ok(SupervisorMessage::Dismissed { runs: false }) | Err(_) => return Dismissal::Ends,
            // Sent before it knew.
            Ok(_) => {}
        }
    }
}

/// To the path of a socket.
fn connect(path: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The supervisor is not there any more, for what it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Gone {
    #[error("the connection has ended")]
    Ended,
    #[error(transparent)]
    Misspoken(#[from] ControlError),
}

/// A seqpacket connection.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: OwnedFd,
    pid: u32,
}

impl Supervisor {
    /// Connects to the path of a socket.
    pub(super) fn connect(path: &[u8], pid: u32) -> Result<Self, Errno> {
        let socket = connect(path)?;
        SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
        Ok(Self { socket, pid })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks to be taken on. With the answer comes a connection to the supervisor's half of the NIC,
    /// where the nodes are reached through that.
    ///
    /// # Errors
    /// [`StartError::SupervisorGone`], also if it speaks another version, and
    /// [`StartError::RunsWithout`] where another agent is in the program already.
    pub(super) fn greet(&self, command: String) -> Result<(Welcome, Option<OwnedFd>), StartError> {
        self.send(AgentMessageBody::Hello { text: command }, &[])
            .map_err(|_| StartError::SupervisorGone)?;
        let mut answer = alloc::vec![0u8; WELCOME_SIZE];
        loop {
            match self.receive_into(&mut answer, RecvFlags::empty()) {
                Ok((length, proxy)) => match SupervisorMessage::parse(&answer[..length]) {
                    Ok(SupervisorMessage::Welcome(welcome)) => {
                        legato_base::secret::wipe(&mut answer);
                        return Ok((welcome, proxy));
                    }
                    Ok(SupervisorMessage::Dismissed { runs: true }) => {
                        return Err(StartError::RunsWithout);
                    }
                    Ok(_) | Err(_) => return Err(StartError::SupervisorGone),
                },
                Err(Errno::INTR) => {}
                Err(_) => return Err(StartError::SupervisorGone),
            }
        }
    }

    /// Asks for something that comes at once, before the agent serves. None if the supervisor is gone.
    fn ask(
        &self,
        body: AgentMessageBody,
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<(SupervisorMessage, Option<OwnedFd>)> {
        self.send(body, descriptors).ok()?;
        let mut bytes = [0; ORDER_SIZE];
        loop {
            match self.receive_into(&mut bytes, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(_) => return None,
                Ok((length, descriptor)) => {
                    let message = SupervisorMessage::parse(&bytes[..length]).ok()?;
                    return Some((message, descriptor));
                }
            }
        }
    }

    /// The agent cannot start: may the program without it?
    pub(super) fn confess(&self, text: String) -> Dismissal {
        match self.send(AgentMessageBody::Failed { text }, &[]) {
            Ok(()) => dismissal(&self.socket),
            Err(_) => Dismissal::Ends,
        }
    }

    /// The next order, with the descriptor that came with it; None if there is none now.
    ///
    /// # Errors
    /// When the supervisor is gone or says what is no order.
    pub(super) fn receive(&self) -> Result<Option<(SupervisorMessage, Option<OwnedFd>)>, Gone> {
        // A byte more, so that the beginning of what is longer is not taken for an order.
        let mut bytes = [0; ORDER_SIZE + 1];
        let (received, descriptor) = match self.receive_into(&mut bytes, RecvFlags::DONTWAIT) {
            Ok((received, descriptor)) if received > 0 => (received, descriptor),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Ok(_) | Err(_) => return Err(Gone::Ended),
        };
        // P-32: what is no order, as the end of the connection, means that it is gone.
        let message = SupervisorMessage::parse(&bytes[..received])?;
        Ok(Some((message, descriptor)))
    }

    /// The length of the next message, and the descriptor that came with it.
    fn receive_into(
        &self,
        bytes: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(usize, Option<OwnedFd>), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | flags;
        let received = rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, flags)?;
        let mut descriptor = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                descriptor = rights.next();
            }
        }
        Ok((received.bytes, descriptor))
    }

    /// Sends a message unless that would have to wait; true if it was sent.
    pub(super) fn offer(&self, body: AgentMessageBody) -> bool {
        let pid = self.pid;
        let bytes = AgentMessage { pid, body }.to_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.socket, &bytes, flags).is_ok()
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

impl Privileged for Supervisor {
    fn device(&self) -> Option<OwnedFd> {
        match self.ask(AgentMessageBody::NeedsDevice, &[])? {
            (SupervisorMessage::Device, device) => device,
            _ => None,
        }
    }

    fn handshake(&self, context: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
        let body = AgentMessageBody::Handshake { features };
        match self.ask(body, &[context]) {
            Some((SupervisorMessage::Handshake { errno: 0 }, _)) => Ok(()),
            Some((SupervisorMessage::Handshake { errno }, _)) => {
                Err(Errno::from_raw_os_error(errno.cast_signed()))
            }
            _ => Err(Errno::PERM),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send, socketpair};

    /// The agent's end, and the supervisor's.
    fn connected() -> (Supervisor, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let ends = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (socket, other) = ends.unwrap();
        (Supervisor { socket, pid: 1 }, other)
    }

    /// P-32: so is a supervisor whose connection has ended.
    #[test]
    fn a_supervisor_that_says_what_is_no_order_is_gone() {
        let order = SupervisorMessage::Share { bytes: 4096 };
        let good = order.to_bytes();
        let mut newer = good.clone();
        newer[4] ^= 0x40;
        let (short, long) = (&good[..good.len() - 1], [&good[..], &[0]].concat());
        for bad in [b"hello", &newer[..], short, &long] {
            let (agent, supervisor) = connected();
            send(&supervisor, bad, SendFlags::NOSIGNAL).unwrap();
            let heard = agent.receive().map(drop);
            assert!(matches!(heard, Err(Gone::Misspoken(_))), "{heard:?}");
        }
        let (agent, supervisor) = connected();
        assert!(matches!(agent.receive(), Ok(None)));
        send(&supervisor, &good, SendFlags::NOSIGNAL).unwrap();
        let heard = agent.receive().unwrap().map(|(heard, _)| heard);
        assert_eq!(heard, Some(order));
        drop(supervisor);
        assert!(matches!(agent.receive(), Err(Gone::Ended)));
    }
}
