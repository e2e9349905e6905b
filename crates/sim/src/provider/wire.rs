//! The wire: packets as bytes, from one machine's link to another's.

use super::environment::{Environment, Occurrence};
use super::trace::Kind;
use crate::fault::Link;
use core::net::Ipv6Addr;
use legato_base::{Duration, Time};
use legato_transport::cm::Gid;
use legato_transport::wire::icrc::{self, Envelope, ICRC_LENGTH, Network};
use legato_transport::wire::{self, Body, Syndrome};
use std::fmt::Write as _;

/// A packet under way, with its invariant CRC.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Longer than the packet.
    pub(super) buffer: Vec<u8>,
    pub(super) length: usize,
}

/// Bytes in front of a packet on an Ethernet: MAC header and its CRC, IPv6 and UDP.
const FRAMING: usize = 18 + 40 + 8;
/// A NIC gives its link no more than it sends in this time, so that queue pairs share it.
const BACKLOG: Duration = Duration::from_micros(50);
const PORT: u16 = 4791;

/// Places have addresses of fd00::/16, which nobody routes.
pub(super) const fn gid_of(place: usize) -> Gid {
    Gid::from_ipv6(Ipv6Addr::from_bits(
        0xFD00 << 112 | (place as u128 + 1) & 0xFFFF_FFFF,
    ))
}

/// The place that has this address.
pub(super) fn place_of(gid: [u8; 16], places: usize) -> Option<usize> {
    let number = Ipv6Addr::from(gid).to_bits().checked_sub(0xFD00 << 112)?;
    let place = usize::try_from(number.checked_sub(1)?).ok()?;
    (place < places).then_some(place)
}

fn envelope(from: usize, to: usize) -> Envelope {
    Envelope {
        network: Network::Ipv6 {
            source: Ipv6Addr::from(gid_of(from).0),
            destination: Ipv6Addr::from(gid_of(to).0),
        },
        source_port: PORT,
        destination_port: PORT,
    }
}

impl Packet {
    /// The bytes that its CRC covers, if they are what was sent.
    pub(super) fn checked(&self) -> Option<&[u8]> {
        let bytes = self.buffer.get(..self.length)?;
        icrc::check(&envelope(self.from, self.to), bytes).ok()
    }

    /// The CRC stands for all of it.
    fn digest(&self) -> u64 {
        let mut word = self.length as u64;
        for &byte in &self.buffer[self.length.saturating_sub(ICRC_LENGTH)..self.length] {
            word = word << 8 | u64::from(byte);
        }
        word
    }

    fn flip(&mut self, bit: u32) {
        let bit = bit as usize % (self.length * 8).max(1);
        if let Some(byte) = self.buffer.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

impl Environment {
    /// When a machine's NIC may give its link more; now, if it is not busy.
    pub(super) fn link_has_room(&self, place: usize) -> Time {
        let busy = self.places[place].link_free.since(self.now);
        if busy <= BACKLOG {
            return self.now;
        }
        self.now + (busy - BACKLOG)
    }

    /// Puts a packet on the wire: `length` bytes, to which the CRC is added. None sent later with
    /// the same `order` arrives earlier, unless a fault lets it.
    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        order: &mut Time,
        mut buffer: Vec<u8>,
        length: usize,
    ) {
        let Ok(length) = icrc::append(&envelope(from, to), &mut buffer, length) else {
            return self.give_buffer(buffer);
        };
        let packet = Packet {
            from,
            to,
            buffer,
            length,
        };
        self.trace_packet(Kind::Sent, &packet, "->");
        if !self.places[from].link_is_up {
            return self.give_buffer(packet.buffer);
        }
        let size = (length + FRAMING) as u128;
        let duration = self.config.bytes_per_second.map_or(0, |rate| {
            (size * 1_000_000_000 / u128::from(rate.max(1))) as u64
        });
        let jitter = self.some_of(self.config.jitter);
        let left = self.places[from].link_free.max(self.now) + Duration::from_nanos(duration);
        self.places[from].link_free = left;
        let arrival = (left + self.config.latency + jitter).max(*order);
        *order = arrival;
        self.deliver(arrival, packet);
    }

    fn deliver(&mut self, arrival: Time, packet: Packet) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let (from, to) = (packet.from, packet.to);
        let link = Link { from, to };
        self.faults
            .packet(self.now, link, packet.length, &mut deliveries);
        let copies = deliveries.len();
        let mut original = Some(packet);
        for (number, delivery) in deliveries.drain(..).enumerate() {
            let copy = if number + 1 == copies {
                original.take()
            } else {
                original.as_ref().map(|packet| {
                    let mut buffer = self.take_buffer(packet.length);
                    buffer[..packet.length].copy_from_slice(&packet.buffer[..packet.length]);
                    Packet { buffer, ..*packet }
                })
            };
            if let Some(mut copy) = copy {
                if let Some(bit) = delivery.flipped_bit {
                    copy.flip(bit);
                }
                self.schedule(arrival + delivery.later, Occurrence::Arrive(copy));
            }
        }
        self.deliveries = deliveries;
        if let Some(lost) = original {
            self.trace_packet(Kind::Dropped, &lost, "lost");
            self.give_buffer(lost.buffer);
        }
    }

    pub(super) fn trace_packet(&mut self, kind: Kind, packet: &Packet, arrow: &str) {
        let at = if matches!(kind, Kind::Arrived) {
            packet.to
        } else {
            packet.from
        };
        self.trace.at(self.now, kind, at);
        self.trace.word(packet.digest());
        let (from, to) = (&self.places[packet.from].name, &self.places[packet.to].name);
        self.trace.line(self.now, || {
            let direction = match kind {
                Kind::Arrived => format!("{to}<-{from} {arrow}"),
                _ => format!("{from}{arrow}{to}"),
            };
            format!("{direction} {}", describe(packet))
        });
    }
}

/// What a packet is, for a reader.
fn describe(packet: &Packet) -> String {
    let end = packet.length.saturating_sub(ICRC_LENGTH);
    let bytes = packet.buffer.get(..end).unwrap_or_default();
    let parsed = match wire::Packet::parse(bytes) {
        Ok(parsed) => parsed,
        Err(error) => return error.to_string(),
    };
    let mut text = format!(
        "{:?} qp {} psn {:?} len {}",
        parsed.body.opcode(),
        parsed.base.destination.get(),
        parsed.base.sequence,
        parsed.payload.len()
    );
    if let Body::Acknowledge(acknowledgement) = parsed.body {
        // A String takes everything.
        let _ = match acknowledgement.syndrome {
            Syndrome::Acknowledged { .. } => Ok(()),
            Syndrome::ReceiverNotReady(_) => write!(text, " receiver not ready"),
            Syndrome::Refused(code) => write!(text, " refused: {code:?}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_place() {
        for place in [0, 1, 70_000] {
            assert_eq!(place_of(gid_of(place).0, 70_001), Some(place));
        }
        assert_eq!(place_of(gid_of(3).0, 3), None);
        assert_eq!(place_of([0; 16], 3), None);
        assert_eq!(place_of([0xFF; 16], 3), None);
    }

    /// V-13: the CRC covers every bit but those that routers may change.
    #[test]
    fn v_13_every_flipped_bit_is_found() {
        let base = wire::BaseHeader {
            destination: legato_transport::QueuePairNumber::new(0x1234),
            sequence: legato_transport::PacketSequenceNumber::new(7),
            acknowledge: true,
            solicited: false,
            forward_congestion: false,
            backward_congestion: false,
        };
        let mut buffer = vec![0; 200];
        let body = Body::SendOnly(wire::Extra::Nothing);
        let length = wire::encode(&base, &body, &mut buffer, 64, |payload| {
            payload.fill(0xA5);
            Ok::<_, ()>(())
        })
        .unwrap();
        let length = icrc::append(&envelope(3, 4), &mut buffer, length).unwrap();
        let mut packet = Packet {
            from: 3,
            to: 4,
            buffer,
            length,
        };
        assert!(packet.checked().is_some());
        for bit in 0..length as u32 * 8 {
            packet.flip(bit);
            let is_masked = (32..40).contains(&bit);
            assert_eq!(packet.checked().is_some(), is_masked, "bit {bit}");
            packet.flip(bit);
        }
        // From or for somebody else.
        for (from, to) in [(4, 3), (3, 5), (5, 4)] {
            (packet.from, packet.to) = (from, to);
            assert!(packet.checked().is_none());
        }
    }
}
