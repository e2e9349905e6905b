//! What waits for the link.

use legato_base::Time;
use std::collections::VecDeque;

/// Bytes of Ethernet, IP and UDP headers and the CRC around a packet.
pub(super) const AROUND: usize = 14 + 20 + 8 + 4;

pub(super) struct Frame {
    pub(super) flow: usize,
    pub(super) to: usize,
    pub(super) marked: bool,
    pub(super) bytes: Vec<u8>,
}

/// The queue of one direction.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) frames: VecDeque<Frame>,
    pub(super) bytes: usize,
    pub(super) busy: bool,
    pub(super) most: usize,
    /// The product of bytes and time.
    pub(super) area: u128,
    pub(super) since: Time,
    pub(super) drops: u64,
    pub(super) marks: u64,
    pub(super) sent: u64,
}

impl Queue {
    pub(super) fn change(&mut self, now: Time, length: usize, more: bool) {
        self.area += self.bytes as u128 * u128::from(now.since(self.since).as_nanos());
        self.since = now;
        self.bytes = if more {
            self.bytes + length
        } else {
            self.bytes - length
        };
        self.most = self.most.max(self.bytes);
    }
}
