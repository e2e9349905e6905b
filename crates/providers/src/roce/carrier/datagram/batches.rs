//! Packets that wait to be sent, in the order of their sending, and joined to messages that the
//! kernel or the NIC segments again (`UDP_SEGMENT`).

use super::super::PACKET_BUFFER;
use super::super::name::Name;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

/// Segments of one message at most (`UDP_MAX_SEGMENTS` of Linux before 6.9; later 128).
const SEGMENTS_MAX: usize = 64;
/// Payload of a UDP datagram over IPv4 at most, and so of a message that is segmented later.
const MESSAGE_MAX: usize = 65_507;

/// Packets for one peer from one socket: all as long as the first one, but for the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) to: Name,
    pub(super) peer: SocketAddr,
    pub(super) socket: usize,
    pub(super) count: usize,
    segment: usize,
    pub(super) bytes: usize,
    /// Nothing may follow: the last packet is shorter, or there is no segmentation.
    closed: bool,
}

impl Batch {
    pub(super) fn segment(&self) -> Option<u16> {
        (self.count > 1).then_some(self.segment as u16)
    }

    fn takes(&self, peer: SocketAddr, socket: usize, length: usize) -> bool {
        !self.closed
            && self.count < SEGMENTS_MAX
            && self.bytes + length <= MESSAGE_MAX
            && length <= self.segment
            && self.socket == socket
            && self.peer == peer
    }
}

pub(super) struct Batches {
    slots: usize,
    /// The packets that wait, and how long each is.
    waiting: VecDeque<(Box<[u8]>, usize)>,
    /// Memory of packets that have gone: those that went last are still in the processor's cache.
    spare: Vec<Box<[u8]>>,
    batches: VecDeque<Batch>,
    pub(super) segmentation: bool,
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("packets", &self.waiting.len())
            .field("batches", &self.batches.len())
            .finish_non_exhaustive()
    }
}

impl Batches {
    pub(super) fn new(slots: usize, segmentation: bool) -> Self {
        let slots = slots.max(1);
        Self {
            slots,
            waiting: VecDeque::with_capacity(slots),
            spare: Vec::with_capacity(slots),
            batches: VecDeque::with_capacity(slots),
            segmentation,
        }
    }

    /// The packet that waits, if it is the only one, and where it goes.
    pub(super) fn lone_packet(&self) -> Option<(&Name, &[u8])> {
        let batch = self.front().filter(|_| self.waiting.len() == 1)?;
        Some((&batch.to, self.packet(0)))
    }

    pub(super) fn room(&self) -> usize {
        self.slots - self.waiting.len()
    }

    /// Memory for a packet.
    pub(super) fn take_spare(&mut self) -> Box<[u8]> {
        let spare = self.spare.pop();
        spare.unwrap_or_else(|| vec![0; PACKET_BUFFER].into())
    }

    pub(super) fn give_spare(&mut self, memory: Box<[u8]>) {
        if self.spare.len() < self.slots {
            self.spare.push(memory);
        }
    }

    /// Which packet of its message the next one will be, if it goes to `peer` and is so long.
    pub(super) fn index(&self, peer: SocketAddr, socket: usize, length: usize) -> usize {
        match self.batches.back() {
            Some(last) if last.takes(peer, socket, length) => last.count,
            _ => 0,
        }
    }

    /// Adds a packet of `length` bytes.
    pub(super) fn push(
        &mut self,
        peer: SocketAddr,
        socket: usize,
        packet: Box<[u8]>,
        length: usize,
    ) {
        self.waiting.push_back((packet, length));
        match self.batches.back_mut() {
            Some(last) if last.takes(peer, socket, length) => {
                last.count += 1;
                last.bytes += length;
                last.closed = length < last.segment;
            }
            _ => self.batches.push_back(Batch {
                to: Name::new(peer),
                peer,
                socket,
                count: 1,
                segment: length,
                bytes: length,
                closed: !self.segmentation,
            }),
        }
    }

    pub(super) fn front(&self) -> Option<&Batch> {
        self.batches.front()
    }

    /// Batches with their packets, the oldest first.
    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (&Batch, impl ExactSizeIterator<Item = &[u8]>)> {
        self.batches.iter().scan(0, |first, batch| {
            let begin = *first;
            *first += batch.count;
            Some((batch, (begin..*first).map(|index| self.packet(index))))
        })
    }

    fn packet(&self, index: usize) -> &[u8] {
        let packet = self.waiting.get(index);
        packet.map_or(&[], |(memory, length)| &memory[..*length])
    }

    /// Forgets the oldest batch.
    pub(super) fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        for _ in 0..batch.count {
            if let Some((memory, _)) = self.waiting.pop_front() {
                self.give_spare(memory);
            }
        }
        Some(batch)
    }

    /// Makes batches of one packet each of the oldest one. `change` gets each packet.
    pub(super) fn split(&mut self, mut change: impl FnMut(&mut [u8])) {
        let Some(whole) = self.batches.pop_front() else {
            return;
        };
        for (packet, length) in self.waiting.iter_mut().take(whole.count) {
            change(&mut packet[..*length]);
        }
        for (_, length) in self.waiting.iter().take(whole.count).rev() {
            self.batches.push_front(Batch {
                count: 1,
                segment: *length,
                bytes: *length,
                closed: true,
                ..whole
            });
        }
    }
}
