//! Packets in parts: for a path that does not take them whole.

use super::LONGEST;
use super::packets::{HEAD, Own};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::ops::Range;
use legato_transport::cm::Gid;
use legato_transport::wire::icrc::{self, Envelope, ICRC_LENGTH, Network};

/// Packets of a peer that are put together at a time: the parts of one follow each other. More are begun only by loss,
/// or by strangers who send from a peer's address; the oldest is given up for a new one, and is sent again.
const BEGUN_MAX: usize = 4;
/// Memory that is kept for the next packets.
const SPARE_MAX: usize = 4;
/// Parts of a packet at most: with the shortest limit there are four.
const PARTS_MAX: usize = 8;

/// Whose parts have come is the whole packet's only if its own CRC is right, which covers no headers: each part has
/// another one for those.
const ENVELOPE: Envelope = Envelope {
    network: Network::Ipv6 {
        source: Ipv6Addr::UNSPECIFIED,
        destination: Ipv6Addr::UNSPECIFIED,
    },
    source_port: 0,
    destination_port: 0,
};

/// Where the parts of a packet of `length` bytes begin and end if none is longer than `limit` as a packet of its own.
pub(super) fn cut(length: usize, limit: usize) -> impl Iterator<Item = Range<usize>> {
    // Packets are of whole words.
    let most = (limit - HEAD) & !3;
    let starts = (0..length).step_by(most);
    starts.map(move |start| start..(start + most).min(length))
}

/// Ends a packet of `length` bytes with its own CRC. Returns how many bytes it has then; None if there is no room.
pub(super) fn seal(packet: &mut [u8], length: usize) -> Option<usize> {
    icrc::append(&ENVELOPE, packet, length).ok()
}

/// Packets of which not all parts have come.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The one that was begun first is the first.
    begun: VecDeque<Begun>,
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct Begun {
    from: Gid,
    packet: u32,
    total: usize,
    bytes: Box<[u8]>,
    come: Vec<Range<usize>>,
}

/// A packet of which all parts have come.
#[derive(Debug)]
pub(in crate::roce) struct Whole {
    bytes: Box<[u8]>,
    length: usize,
}

impl Whole {
    /// Without its own CRC, which was right.
    pub(in crate::roce) fn packet(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Begun {
    fn is_complete(&self) -> bool {
        self.come.iter().map(Range::len).sum::<usize>() == self.total
    }
}

impl Parts {
    /// A part has come. Returns the packet if it was the last one.
    pub(super) fn add(
        &mut self,
        from: Gid,
        packet: u32,
        total: usize,
        start: usize,
        bytes: &[u8],
    ) -> Option<Whole> {
        let is_it = |begun: &Begun| begun.from == from && begun.packet == packet;
        let index = match self.begun.iter().position(is_it) {
            Some(index) => index,
            None => self.begin(from, packet, total),
        };
        let begun = self.begun.get_mut(index)?;
        let range = start..start + bytes.len();
        let is_new = |come: &Range<usize>| come.end <= range.start || range.end <= come.start;
        let fits = begun.total == total && range.end <= total && begun.come.len() < PARTS_MAX;
        if !fits || !begun.come.iter().all(is_new) {
            return None;
        }
        begun.bytes[range.clone()].copy_from_slice(bytes);
        begun.come.push(range);
        if !begun.is_complete() {
            return None;
        }
        let Begun { bytes, .. } = self.begun.remove(index)?;
        if total <= ICRC_LENGTH || icrc::check(&ENVELOPE, &bytes[..total]).is_err() {
            self.keep(bytes);
            return None;
        }
        let length = total - ICRC_LENGTH;
        Some(Whole { bytes, length })
    }

    fn begin(&mut self, from: Gid, packet: u32, total: usize) -> usize {
        let mut of_peer = self.begun.iter().enumerate();
        let oldest = of_peer.find(|(_, begun)| begun.from == from);
        let count = self.begun.iter().filter(|begun| begun.from == from);
        if count.count() == BEGUN_MAX
            && let Some((oldest, _)) = oldest
            && let Some(oldest) = self.begun.remove(oldest)
        {
            self.keep(oldest.bytes);
        }
        let memory = self.spare.pop();
        self.begun.push_back(Begun {
            from,
            packet,
            total,
            bytes: memory.unwrap_or_else(|| vec![0; LONGEST + ICRC_LENGTH].into()),
            come: Vec::new(),
        });
        self.begun.len() - 1
    }

    /// The packet has been read.
    pub(super) fn give_back(&mut self, whole: Whole) {
        self.keep(whole.bytes);
    }

    fn keep(&mut self, memory: Box<[u8]>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(memory);
        }
    }

    /// The peer has no connection any more.
    pub(super) fn forget_all_but(&mut self, used: impl Fn(Gid) -> bool) {
        self.begun.retain(|begun| used(begun.from));
    }
}

/// A part of a sealed packet, as a packet of its own.
pub(super) fn part(packet: &[u8], number: u32, range: Range<usize>) -> Own<'_> {
    Own::Part {
        packet: number,
        total: packet.len(),
        start: range.start,
        bytes: &packet[range],
    }
}

#[cfg(test)]
mod tests {
    use super::super::SHORT;
    use super::*;

    const FROM: Gid = Gid([1; 16]);

    fn sealed(length: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..length).map(|n| (n * 7) as u8).collect();
        packet.resize(length + 8, 0);
        let total = seal(&mut packet, length).unwrap();
        packet.truncate(total);
        packet
    }

    fn add(parts: &mut Parts, number: u32, packet: &[u8], range: Range<usize>) -> Option<Whole> {
        parts.add(FROM, number, packet.len(), range.start, &packet[range])
    }

    #[test]
    fn parts_are_no_longer_than_the_limit_and_make_the_packet() {
        let mut parts = Parts::default();
        for (number, length) in [(1, SHORT + 4), (2, 2 * SHORT), (3, LONGEST)] {
            let packet = sealed(length);
            let mut ranges: Vec<_> = cut(packet.len(), SHORT).collect();
            assert!(ranges.len() <= 4);
            assert!(ranges.iter().all(|range| HEAD + range.len() <= SHORT));
            // In any order, and twice.
            ranges.reverse();
            let last = ranges.pop().unwrap();
            for range in ranges.iter().chain(&ranges) {
                assert!(add(&mut parts, number, &packet, range.clone()).is_none());
            }
            let whole = add(&mut parts, number, &packet, last).unwrap();
            assert_eq!(whole.packet(), &packet[..length]);
            parts.give_back(whole);
        }
        assert!(parts.begun.is_empty());
        assert_eq!(parts.spare.len(), 1);
    }

    #[test]
    fn parts_of_two_packets_make_none() {
        let mut parts = Parts::default();
        let [one, mut other] = [sealed(2000), sealed(2000)];
        other[1500] ^= 1;
        let ranges: Vec<_> = cut(one.len(), SHORT).collect();
        assert!(add(&mut parts, 1, &one, ranges[0].clone()).is_none());
        assert!(add(&mut parts, 1, &other, ranges[1].clone()).is_none());
        assert!(parts.begun.is_empty(), "it was complete, and wrong");
        // Another peer's of the same number, and one that claims another length.
        assert!(add(&mut parts, 1, &one, ranges[0].clone()).is_none());
        let second = ranges[1].clone();
        let bytes = &one[second.clone()];
        let stranger = Gid([2; 16]);
        assert!(
            parts
                .add(stranger, 1, one.len(), second.start, bytes)
                .is_none()
        );
        assert!(
            parts
                .add(FROM, 1, one.len() - 4, second.start, &bytes[4..])
                .is_none()
        );
        assert!(add(&mut parts, 1, &one, second).is_some());
    }

    #[test]
    fn there_is_an_end_to_what_is_begun() {
        let mut parts = Parts::default();
        let packet = sealed(2000);
        for number in 0..10_000 {
            assert!(add(&mut parts, number, &packet, 0..4).is_none());
        }
        assert_eq!(parts.begun.len(), BEGUN_MAX);
        assert!(parts.spare.len() <= SPARE_MAX);
        // And to the parts of one.
        for start in (4..1000).step_by(4) {
            assert!(add(&mut parts, 9_999, &packet, start..start + 4).is_none());
        }
        assert_eq!(parts.begun[BEGUN_MAX - 1].come.len(), PARTS_MAX);
    }
}
