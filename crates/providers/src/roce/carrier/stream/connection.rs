//! One stream.

use super::super::counters::Counters;
use super::super::inbox::{LENGTH_BYTES, frame_length};
use super::super::{PACKET_MAX, PACKET_MIN};
use super::output::Output;
use super::preamble::Preamble;
use super::sealing::Seal;
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_base::secret::MAC_LENGTH;
use legato_verbs::PathMtu;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `connect(2)` has not come to its end.
    Connecting { peer: SocketAddr },
    /// The peer that was connected to has not said who it is.
    Greeting { peer: SocketAddr },
    /// Somebody has connected and not said who it is; it comes from this address.
    Accepted { from: SocketAddr },
    /// The peer has connected while our own connection to it was on its way, which stays. This one
    /// is not answered, and the peer ends it when it sees ours.
    Superseded { peer: SocketAddr },
    /// Somebody who has the key, or a recording of one, has connected from there and was answered.
    Unproved {
        peer: SocketAddr,
        preamble: Preamble,
    },
    Open {
        peer: SocketAddr,
        path_mtu: PathMtu,
        instance: u64,
        /// We have connected, and not the peer.
        ours: bool,
    },
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) stage: Stage,
    /// What is left of our preamble.
    greeting: Option<(Vec<u8>, usize)>,
    pub(super) seal: Seal,
    pub(super) output: Output,
    /// The beginning of what has not come completely: a preamble, or a packet.
    partial: Vec<u8>,
    /// Whether the descriptor waits for room.
    pub(super) waits_for_room: bool,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Nothing,
    /// Whole packets up to here.
    Packets(usize),
    /// The same, and then something that is no packet.
    Garbage(usize),
    Closed(Errno),
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, stage: Stage, slots: usize) -> Self {
        Self {
            socket,
            stage,
            greeting: None,
            seal: Seal::Plain,
            output: Output::new(slots),
            partial: Vec::with_capacity(LENGTH_BYTES + PACKET_MAX + MAC_LENGTH),
            waits_for_room: false,
        }
    }

    /// What is to be said before any packet.
    pub(super) fn greet(&mut self, own: Vec<u8>) {
        self.greeting = Some((own, 0));
    }

    /// Whether something waits for the kernel to take it.
    pub(super) fn has_waiting(&self) -> bool {
        let sealed = matches!(&self.seal, Seal::On(sealed) if !sealed.waiting().is_empty());
        sealed || !self.output.is_empty()
    }

    /// The peer that packets are queued for or come from.
    pub(super) const fn peer(&self) -> Option<SocketAddr> {
        match self.stage {
            Stage::Connecting { peer } | Stage::Greeting { peer } | Stage::Open { peer, .. } => {
                Some(peer)
            }
            Stage::Accepted { .. } | Stage::Superseded { .. } | Stage::Unproved { .. } => None,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open { .. })
    }

    /// Writes as much as the kernel takes: first our preamble, then packets once the peer is
    /// known. [`Errno::AGAIN`] says that it does not take all.
    pub(super) fn write(&mut self, counters: &mut Counters) -> Result<(), Errno> {
        if matches!(self.stage, Stage::Connecting { .. }) {
            return Ok(());
        }
        while let Some((bytes, sent)) = &mut self.greeting {
            *sent += send(&self.socket, bytes.get(*sent..).unwrap_or_default())?;
            if *sent >= bytes.len() {
                self.greeting = None;
            }
        }
        if let Seal::On(_) = self.seal {
            return self.write_sealed(counters);
        }
        while self.is_open() && !self.output.is_empty() {
            let sent = send(&self.socket, self.output.waiting())?;
            counters.sends += 1;
            counters.bytes_sent += sent as u64;
            counters.packets_sent += self.output.written(sent);
        }
        Ok(())
    }

    fn write_sealed(&mut self, counters: &mut Counters) -> Result<(), Errno> {
        let is_open = self.is_open();
        let Seal::On(sealed) = &mut self.seal else {
            return Ok(());
        };
        if !is_open {
            return Ok(());
        }
        loop {
            counters.packets_sent += sealed.fill(&mut self.output)?;
            if sealed.waiting().is_empty() {
                return Ok(());
            }
            let sent = send(&self.socket, sealed.waiting())?;
            sealed.written(sent);
            counters.sends += 1;
            counters.bytes_sent += sent as u64;
        }
    }

    /// Reads packets into `into`.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Read {
        let before = self.partial.len();
        let (begin, rest) = into.split_at_mut(before);
        let count = match receive(&self.socket, rest) {
            Ok(0) => return Read::Closed(Errno::CONNRESET),
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Read::Nothing,
            Err(errno) => return Read::Closed(errno),
        };
        begin.copy_from_slice(&self.partial);
        self.partial.clear();
        let all = &mut into[..before + count];
        if let Seal::On(sealed) = &mut self.seal {
            let (end, used, is_right) = sealed.open(all);
            // What is left of the frames lies behind the packets.
            self.partial.extend_from_slice(&all[used..]);
            return match is_right {
                true => Read::Packets(end),
                false => Read::Garbage(end),
            };
        }
        let mut end = 0;
        while let Some(length) = frame_length(&all[end..]) {
            if !(PACKET_MIN..=PACKET_MAX).contains(&length) {
                return Read::Garbage(end);
            }
            let next = end + LENGTH_BYTES + length;
            if next > all.len() {
                break;
            }
            end = next;
        }
        self.partial.extend_from_slice(&all[end..]);
        Read::Packets(end)
    }

    /// Reads the first `N` bytes of what the peer says, and nothing behind them. They stay here until
    /// [`Self::forget_read`], so that more of them can be read after the first.
    pub(super) fn read_first<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Errno> {
        let mut bytes = [0; N];
        let before = self.partial.len().min(N);
        if before < N {
            match receive(&self.socket, &mut bytes[before..]) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(count) => self
                    .partial
                    .extend_from_slice(&bytes[before..before + count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Ok(self.partial.first_chunk().copied())
    }

    pub(super) fn forget_read(&mut self) {
        self.partial.clear();
    }

    /// Says why there will be no stream, as far as the kernel takes it at once. What the peer has said is
    /// read first: the kernel would reset the connection for it, and drop this.
    pub(super) fn say_last(&self, bytes: &[u8]) {
        let mut unread = [0; 256];
        while matches!(receive(&self.socket, &mut unread), Ok(256)) {}
        let _ = send(&self.socket, bytes);
        let _ = net::shutdown(&self.socket, net::Shutdown::Write);
    }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    // Without NOSIGNAL a dead peer would kill the program that the agent lives in with SIGPIPE.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match net::send(socket, bytes, flags) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    net::recv(socket, into, RecvFlags::DONTWAIT).map(|(count, _)| count)
}
