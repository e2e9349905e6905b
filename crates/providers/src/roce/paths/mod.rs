//! The lengths of packets that get through to peers: the path MTU of a connection is what both ends take, and a switch or a router between
//! them may take less, from the beginning or from some day on, without a word (RFC 2923, 2.1).
//!
//! A queue pair's packets are as long as they are, because their numbers stand for bytes of messages. So packets that
//! do not get through go in parts, which the peer puts together. What gets through is found out as RFC 8899 does: by
//! tries, which are packets of a length that the peer answers. A peer that has never answered is another kind of NIC,
//! and gets everything whole. Packets of up to [`SHORT`] bytes are sent whole anywhere, so where links take
//! 1500 bytes nothing is tried.

mod packets;
mod parts;
mod path;

use super::carrier::PACKET_MAX;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use legato_base::{Random, Time};
use legato_transport::cm::Gid;
use legato_transport::wire::HEADERS_MAX;
use legato_transport::wire::icrc::ICRC_LENGTH;
use legato_verbs::PathMtu;
pub(super) use packets::is_own;
use packets::{NUMBERS, Own};
use parts::Parts;
pub(super) use parts::Whole;
use path::Path;

/// Bytes of packets, without CRC, that get through wherever a path MTU of 1024 may be used: 1200 with it, as in RFC
/// 8899 (5.1.2), which are 1248 with the headers of IPv6 and UDP.
pub(super) const SHORT: usize = 1200 - ICRC_LENGTH;
/// Bytes of the longest packet of a queue pair, without CRC.
const LONGEST: usize = PACKET_MAX - ICRC_LENGTH;
/// Paths that are remembered in any case.
const REMEMBERED: usize = 64;

/// The paths to all peers.
#[derive(Debug)]
pub(super) struct Paths {
    by_peer: BTreeMap<Gid, Path>,
    /// With more, those of peers without a connection are forgotten.
    room: usize,
    /// When something is to be tried next, or before.
    next: Time,
    parts: Parts,
    /// Number of the packet that was sent in parts last.
    last: u32,
}

/// A peer's packet to this side's paths, read.
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    /// It is to be answered.
    Answer(Say),
    /// The last part of a packet.
    Packet(Whole),
}

/// A packet to be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Say {
    own: Own<'static>,
    length: usize,
}

impl Say {
    /// Returns how many bytes it has written.
    pub(super) fn write(&self, into: &mut [u8]) -> usize {
        self.own.write(into, self.length)
    }
}

/// A packet that is sent in parts.
#[derive(Debug)]
pub(super) struct Split<'a> {
    packet: &'a [u8],
    number: u32,
    limit: usize,
}

impl Split<'_> {
    pub(super) fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        parts::cut(self.packet.len(), self.limit)
    }

    /// Returns how many bytes it has written.
    pub(super) fn write(&self, range: Range<usize>, into: &mut [u8]) -> usize {
        parts::part(self.packet, self.number, range).write(into, 0)
    }
}

impl Paths {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            by_peer: BTreeMap::new(),
            room: REMEMBERED,
            next: Time::NEVER,
            parts: Parts::default(),
            last: number(random),
        }
    }

    /// The path to a peer, which begins with the first long packet there or back.
    fn path(&mut self, peer: Gid, is_inside: impl FnOnce() -> bool, now: Time) -> &mut Path {
        let begun = || match is_inside() {
            true => Path::inside(),
            false => Path::new(now),
        };
        let path = self.by_peer.entry(peer).or_insert_with(begun);
        path.resume(now);
        self.next = self.next.min(path.next());
        path
    }

    /// The parts of a packet of `length` bytes, if it is to be sent in parts. It may have a CRC of its own behind
    /// it then. `is_inside` tells whether the peer is in this machine.
    pub(super) fn split<'a>(
        &mut self,
        peer: Gid,
        is_inside: impl FnOnce() -> bool,
        now: Time,
        packet: &'a mut [u8],
        length: usize,
    ) -> Option<Split<'a>> {
        let limit = self.path(peer, is_inside, now).limit()?;
        if length <= limit {
            return None;
        }
        let total = parts::seal(packet, length)?;
        self.last = (self.last + 1) % NUMBERS;
        Some(Split {
            packet: &packet[..total],
            number: self.last,
            limit,
        })
    }

    /// When [`Self::tries`] has something to do.
    pub(super) const fn next_deadline(&self) -> Time {
        self.next
    }

    /// Tries to be sent now, and to whom: peers that are used, which are those with a connection.
    pub(super) fn tries(
        &mut self,
        used: impl Fn(Gid) -> bool,
        now: Time,
        random: &mut Random,
    ) -> Vec<(Gid, Say)> {
        let mut tries = Vec::new();
        self.next = Time::NEVER;
        for (&peer, path) in &mut self.by_peer {
            if path.next() <= now && !used(peer) {
                path.rest();
            }
            if path.next() <= now {
                let number = number(random);
                let own = Own::Try {
                    number,
                    misses: false,
                };
                let lengths = path.tries(now, number);
                tries.extend(lengths.map(|length| (peer, Say { own, length })));
            }
            self.next = self.next.min(path.next());
        }
        tries
    }

    /// So many packets were missing in all on the way to a peer or back, whose queue pairs have longer packets.
    /// Returns what the peer is to be told.
    pub(super) fn count_missing(
        &mut self,
        peer: Gid,
        is_inside: impl FnOnce() -> bool,
        missing: u64,
        now: Time,
    ) -> Option<Say> {
        let path = self.path(peer, is_inside, now);
        if !path.is_missing_more(missing) {
            return None;
        }
        path.narrow(now);
        let tells = path.tells(now);
        let next = path.next();
        self.next = self.next.min(next);
        let own = Own::Try {
            number: 0,
            misses: true,
        };
        tells.then_some(Say { own, length: 0 })
    }

    /// A packet was too long for this machine's own link, or a router has said that it was for its. What goes in parts
    /// is not meant by that, but a try.
    pub(super) fn refused(&mut self, peer: Gid, now: Time) {
        if let Some(path) = self.by_peer.get_mut(&peer)
            && path.limit().is_none()
        {
            path.narrow(now);
            self.next = self.next.min(path.next());
        }
    }

    /// Takes in what a peer with a connection has sent to this side's paths ([`is_own`]).
    pub(super) fn hear(&mut self, from: Gid, packet: &[u8], now: Time) -> Heard {
        match Own::parse(packet) {
            None => Heard::Nothing,
            Some(Own::Try { number, misses }) => {
                // Without a path it can miss nothing that is long.
                if misses && let Some(path) = self.by_peer.get_mut(&from) {
                    path.narrow(now);
                    self.next = self.next.min(path.next());
                }
                let length = packet.len();
                let own = Own::Answer { number, length };
                Heard::Answer(Say { own, length: 0 })
            }
            Some(Own::Answer { number, length }) => {
                if let Some(path) = self.by_peer.get_mut(&from) {
                    path.answered(number, length);
                }
                Heard::Nothing
            }
            Some(Own::Part {
                packet,
                total,
                start,
                bytes,
            }) => {
                let whole = self.parts.add(from, packet, total, start, bytes);
                whole.map_or(Heard::Nothing, Heard::Packet)
            }
        }
    }

    /// The packet was read.
    pub(super) fn give_back(&mut self, whole: Whole) {
        self.parts.give_back(whole);
    }

    /// The path MTU of a new connection to a peer, of those that its ends take.
    pub(super) fn path_mtu(&self, peer: Gid, ends: PathMtu) -> PathMtu {
        let limit = self.by_peer.get(&peer).and_then(Path::limit);
        let fits =
            |mtu: &PathMtu| limit.is_none_or(|limit| mtu.bytes() as usize + HEADERS_MAX <= limit);
        let all = (1..=5).rev().filter_map(PathMtu::from_code);
        all.filter(|&mtu| mtu <= ends).find(fits).unwrap_or(ends)
    }

    /// Forgets paths that nobody uses, when there are many: twice as many as were left the last time.
    pub(super) fn forget_all_but(&mut self, used: impl Fn(Gid) -> bool) {
        if self.by_peer.len() > self.room {
            self.by_peer.retain(|&peer, _| used(peer));
            self.parts.forget_all_but(&used);
            self.room = REMEMBERED.max(2 * self.by_peer.len());
        }
    }
}

fn number(random: &mut Random) -> u32 {
    random.below(u64::from(NUMBERS)) as u32
}

#[cfg(test)]
mod tests;
