//! Sending.

use super::super::inbox::headers;
use super::super::name::canonical;
use super::super::notice::{Notice, Refusal};
use super::super::system::{MESSAGES, SendBatch, send_one};
use super::super::{Flushed, PACKET_MAX, PACKET_MIN, SendError};
use super::DatagramCarrier;
use alloc::boxed::Box;
use core::mem;
use core::net::SocketAddr;
use legato_transport::wire::icrc::{self, ICRC_LENGTH};
use rustix::io::Errno;

/// How often one message is tried against errors that may be those of earlier ones.
const TRIES: u32 = 3;

impl DatagramCarrier {
    /// See [`super::super::Carrier::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send<E>(
        &mut self,
        peer: SocketAddr,
        flow: u32,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), SendError<E>> {
        let mut packet = self.batches.take_spare();
        let room = packet.len() - ICRC_LENGTH;
        let sent = match write(&mut packet[..room]) {
            Ok(length) => self.send_packet(peer, flow, &mut packet, length),
            Err(error) => Err(SendError::Write(error)),
        };
        self.batches.give_spare(packet);
        sent
    }

    /// See [`super::super::Carrier::send_packet`].
    ///
    /// # Errors
    /// As there.
    pub fn send_packet<E>(
        &mut self,
        peer: SocketAddr,
        flow: u32,
        packet: &mut Box<[u8]>,
        length: usize,
    ) -> Result<(), SendError<E>> {
        let peer = canonical(peer);
        if peer.is_ipv4() != self.local_address().is_ipv4() {
            return Err(SendError::OtherFamily);
        }
        if !(PACKET_MIN..=PACKET_MAX).contains(&(length + ICRC_LENGTH)) {
            return Err(SendError::Length(length));
        }
        if self.batches.room() == 0 {
            self.flush();
        }
        if self.batches.room() == 0 {
            return Err(SendError::Busy);
        }
        let socket = self.socket_for(peer, flow);
        let whole = length + ICRC_LENGTH;
        let index = self.batches.index(peer, socket, whole);
        let envelope = headers(self.sockets.address(socket), peer, index as u16);
        icrc::append(&envelope, packet, length).map_err(|_| SendError::Length(length))?;
        let packet = mem::replace(packet, self.batches.take_spare());
        self.batches.push(peer, socket, packet, whole);
        Ok(())
    }

    /// Sends what waits, as much as the kernel takes.
    pub fn flush(&mut self) -> Flushed {
        let mut tries = 0;
        let mut mtu = None;
        loop {
            let Some(front) = self.batches.front() else {
                self.set_blocked(false);
                return Flushed::All;
            };
            let socket = front.socket;
            match self.send_front(socket) {
                Ok(messages) => {
                    tries = 0;
                    self.sent(messages);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.counters.would_block += 1;
                    self.set_blocked(true);
                    return Flushed::Blocked;
                }
                // A queue of the device was full, and it has dropped the packets.
                Err(Errno::NOBUFS) => {
                    let dropped = self.batches.pop().map_or(0, |batch| batch.count);
                    self.counters.dropped_by_device += dropped as u64;
                }
                Err(errno) if tries < TRIES => {
                    // ICMP's answer to an earlier packet fails the next call, whomever it is for.
                    tries += 1;
                    mtu = self.take_errors(socket).or(mtu);
                    self.split_if_too_much(errno);
                }
                Err(errno) => {
                    tries = 0;
                    self.refuse_front(errno, mtu.take());
                }
            }
        }
    }

    /// Sends as many messages as possible with one call.
    fn send_front(&self, socket: usize) -> Result<usize, Errno> {
        if let Some((to, packet)) = self.batches.lone_packet() {
            return send_one(self.sockets.descriptor(socket), to, packet).map(|()| 1);
        }
        let mut call = SendBatch::new();
        for (batch, packets) in self.batches.iter().take(MESSAGES) {
            if batch.socket != socket || !call.push(batch.to, batch.segment(), packets) {
                break;
            }
        }
        call.send(self.sockets.descriptor(socket))
    }

    fn sent(&mut self, messages: usize) {
        self.counters.sends += 1;
        for _ in 0..messages {
            let Some(batch) = self.batches.pop() else {
                return;
            };
            self.counters.packets_sent += batch.count as u64;
            self.counters.bytes_sent += batch.bytes as u64;
            self.counters.segmented_messages += u64::from(batch.count > 1);
        }
    }

    /// The kernel refuses to segment for devices that compute no checksums (EIO), before 4.18
    /// altogether (EINVAL), and when a segment does not fit the device (EINVAL, EMSGSIZE). Packets
    /// that go alone have other identifications.
    fn split_if_too_much(&mut self, errno: Errno) {
        let Some(front) = self.batches.front().copied() else {
            return;
        };
        if front.count == 1 || !matches!(errno, Errno::IO | Errno::INVAL | Errno::MSGSIZE) {
            return;
        }
        self.counters.segmentation_refused += 1;
        if errno == Errno::IO {
            self.batches.segmentation = false;
        }
        let envelope = headers(self.sockets.address(front.socket), front.peer, 0);
        self.batches.split(|packet| {
            let length = packet.len().saturating_sub(ICRC_LENGTH);
            // The packet had a CRC before, so it has room for one.
            let _ = icrc::append(&envelope, packet, length);
        });
    }

    fn refuse_front(&mut self, errno: Errno, mtu: Option<u32>) {
        let Some(batch) = self.batches.pop() else {
            return;
        };
        self.counters.refused += batch.count as u64;
        let notice = Notice::Refused {
            peer: batch.peer,
            refusal: Refusal::new(errno, mtu),
        };
        self.notices.push(notice, &mut self.counters);
    }
}
