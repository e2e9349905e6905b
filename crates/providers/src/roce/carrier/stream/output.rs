//! Packets that wait to be written to a stream, each with its length before it.

use super::super::inbox::LENGTH_BYTES;
use super::super::{PACKET_MAX, PACKET_MIN, SendError, pseudo_envelope};
use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use legato_transport::cm::Gid;
use legato_transport::wire::icrc::{self, ICRC_LENGTH};
use zerocopy::IntoBytes;
use zerocopy::big_endian::U16;

/// Bytes that a packet may need while it is written.
const PACKET_ROOM: usize = LENGTH_BYTES + PACKET_MAX + 3;

/// A bounded buffer: written at the end, read at the beginning.
pub(super) struct Output {
    /// Empty until the first packet: strangers who connect cost no more than a socket.
    memory: Box<[u8]>,
    capacity: usize,
    begin: usize,
    end: usize,
    pub(super) packets: u64,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("bytes", &(self.end - self.begin))
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

impl Output {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            memory: Box::default(),
            capacity: slots.max(2) * PACKET_ROOM,
            begin: 0,
            end: 0,
            packets: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Adds a packet from GID to GID that `write` writes.
    pub(super) fn push<E>(
        &mut self,
        (source, destination): (Gid, Gid),
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), SendError<E>> {
        self.make_room();
        let place = self
            .memory
            .get_mut(self.end..self.end + PACKET_ROOM)
            .ok_or(SendError::Busy)?;
        let (frame, packet) = place.split_at_mut(LENGTH_BYTES);
        let room = packet.len() - ICRC_LENGTH;
        let length = write(&mut packet[..room]).map_err(SendError::Write)?;
        let whole = length + ICRC_LENGTH;
        if !(PACKET_MIN..=PACKET_MAX).contains(&whole) {
            return Err(SendError::Length(length));
        }
        icrc::append(&pseudo_envelope(source, destination), packet, length)
            .map_err(|_| SendError::Length(length))?;
        frame.copy_from_slice(U16::new(whole as u16).as_bytes());
        self.end += LENGTH_BYTES + whole;
        self.packets += 1;
        Ok(())
    }

    /// Moves what waits to the beginning if that is needed and it is no more than what has been
    /// freed: so a byte is moved once at most on average.
    fn make_room(&mut self) {
        if self.memory.is_empty() {
            self.memory = vec![0; self.capacity].into();
        }
        let waiting = self.end - self.begin;
        if self.end + PACKET_ROOM > self.memory.len() && self.begin >= waiting {
            self.memory.copy_within(self.begin..self.end, 0);
            self.begin = 0;
            self.end = waiting;
        }
    }

    pub(super) fn waiting(&self) -> &[u8] {
        &self.memory[self.begin..self.end]
    }

    /// Forgets what has been written. Returns the packets that are written completely thereby, if
    /// nothing waits any more.
    pub(super) fn written(&mut self, bytes: usize) -> u64 {
        self.begin += bytes;
        if self.begin < self.end {
            return 0;
        }
        self.begin = 0;
        self.end = 0;
        core::mem::take(&mut self.packets)
    }
}
