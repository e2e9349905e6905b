//! Packets that wait to be sent, in the order of their sending, and joined to messages that the
//! kernel or the NIC segments again (`UDP_SEGMENT`).

use super::super::PACKET_MAX;
use super::super::name::Name;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::fmt;
use core::net::SocketAddr;

/// Bytes from one packet's place to the next. Not a power of two, so that the heads of packets do
/// not all fall into the same set of the cache.
const STRIDE: usize = (PACKET_MAX + 3).next_multiple_of(64);
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
    first: usize,
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
    memory: Box<[u8]>,
    lengths: Box<[u16]>,
    /// The place of the next packet, and the number of packets.
    next: usize,
    used: usize,
    batches: VecDeque<Batch>,
    pub(super) segmentation: bool,
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("packets", &self.used)
            .field("batches", &self.batches.len())
            .finish_non_exhaustive()
    }
}

impl Batches {
    pub(super) fn new(slots: usize, segmentation: bool) -> Self {
        let slots = slots.max(1);
        Self {
            memory: vec![0; slots * STRIDE].into(),
            lengths: vec![0; slots].into(),
            next: 0,
            used: 0,
            batches: VecDeque::with_capacity(slots),
            segmentation,
        }
    }

    /// The packet that waits, if it is the only one, and where it goes.
    pub(super) fn lone_packet(&self) -> Option<(&Name, &[u8])> {
        let batch = self.front().filter(|_| self.used == 1)?;
        let packet = self.packets(batch).next()?;
        Some((&batch.to, packet))
    }

    pub(super) fn room(&self) -> usize {
        self.lengths.len() - self.used
    }

    /// Where the next packet is written, if there is room.
    pub(super) fn place(&mut self) -> Option<&mut [u8]> {
        let begin = (self.room() > 0).then_some(self.next * STRIDE)?;
        self.memory.get_mut(begin..begin + STRIDE)
    }

    /// Which packet of its message the next one will be, if it goes to `peer` and is so long.
    pub(super) fn index(&self, peer: SocketAddr, socket: usize, length: usize) -> usize {
        match self.batches.back() {
            Some(last) if last.takes(peer, socket, length) => last.count,
            _ => 0,
        }
    }

    /// Adds the packet of `length` bytes that [`Batches::place`] has been filled with.
    pub(super) fn push(&mut self, peer: SocketAddr, socket: usize, length: usize) {
        self.lengths[self.next] = length as u16;
        let place = self.next;
        self.next = (self.next + 1) % self.lengths.len();
        self.used += 1;
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
                first: place,
                count: 1,
                segment: length,
                bytes: length,
                closed: !self.segmentation,
            }),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Batch> {
        self.batches.iter()
    }

    pub(super) fn front(&self) -> Option<&Batch> {
        self.batches.front()
    }

    /// The packets of a batch.
    pub(super) fn packets(&self, batch: &Batch) -> impl ExactSizeIterator<Item = &[u8]> {
        let first = batch.first;
        (0..batch.count).map(move |index| {
            let place = (first + index) % self.lengths.len();
            let begin = place * STRIDE;
            &self.memory[begin..begin + usize::from(self.lengths[place])]
        })
    }

    /// Forgets the oldest batch, and frees its places.
    pub(super) fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.used -= batch.count;
        Some(batch)
    }

    /// Makes batches of one packet each of the oldest one. `change` gets each packet.
    pub(super) fn split(&mut self, mut change: impl FnMut(&mut [u8])) {
        let Some(whole) = self.batches.pop_front() else {
            return;
        };
        for index in (0..whole.count).rev() {
            let place = (whole.first + index) % self.lengths.len();
            let length = usize::from(self.lengths[place]);
            change(&mut self.memory[place * STRIDE..place * STRIDE + length]);
            self.batches.push_front(Batch {
                first: place,
                count: 1,
                segment: length,
                bytes: length,
                closed: true,
                ..whole
            });
        }
    }
}
