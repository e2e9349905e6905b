//! What the channel adapter finds around it here: memory of this process, sockets, the user's clock.

use super::carrier::PACKET_BUFFER;
use super::memory::Memory;
use super::paths::{Paths, SHORT, Say};
use super::peers::{Peers, PortIndex};
use super::ports::Ports;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_base::{Random, Time};
use legato_transport::adapter::{Alarm, Alarms, Flow, RegionNumber, Surroundings};
use legato_transport::cm::Gid;
use legato_verbs::{LocalKey, VerbsError};
use zerocopy::{FromBytes, IntoBytes};

#[derive(Debug)]
pub(super) struct Around {
    /// As of the user's last call of `progress`.
    pub(super) now: Time,
    pub(super) alarms: Alarms,
    pub(super) memory: BTreeMap<RegionNumber, Memory>,
    pub(super) ports: Ports,
    pub(super) peers: Peers,
    pub(super) paths: Paths,
    pub(super) random: Random,
    /// The adapter waits for room.
    pub(super) link_watched: bool,
    spare: Vec<Box<[u8]>>,
}

impl Around {
    pub(super) fn new(ports: Ports, peers: Peers, mut random: Random) -> Self {
        Self {
            now: Time::ZERO,
            alarms: Alarms::default(),
            memory: BTreeMap::new(),
            ports,
            peers,
            paths: Paths::new(&mut random),
            random,
            link_watched: false,
            spare: Vec::new(),
        }
    }

    /// Sends a packet of this side's paths.
    pub(super) fn say(&mut self, to: Gid, say: Say) {
        if let Some((port, peer)) = self.peers.address(to) {
            let mut buffer = self.take_buffer(PACKET_BUFFER);
            let length = say.write(&mut buffer);
            let spare = self.ports.send(port, peer, MANAGEMENT, buffer, length);
            self.give_buffer(spare);
        }
    }

    /// Counts the packets that were missing in all on the way to a peer and back, of a connection with long ones.
    pub(super) fn count_missing(&mut self, peer: Gid, missing: u64) {
        let Some((port, place)) = self.peers.address(peer) else {
            return;
        };
        if self.ports.carries_datagrams(port) {
            let is_inside = || is_inside(&self.ports, port, place);
            let say = self.paths.count_missing(peer, is_inside, missing, self.now);
            if let Some(say) = say {
                self.say(peer, say);
            }
        }
    }

    /// Sends a packet in parts if it would not get through whole. False if it is to be sent whole.
    fn send_in_parts(
        &mut self,
        (to, port, peer): (Gid, PortIndex, SocketAddr),
        flow: u32,
        packet: &mut [u8],
        length: usize,
    ) -> bool {
        if !self.ports.carries_datagrams(port) {
            return false;
        }
        let is_inside = || is_inside(&self.ports, port, peer);
        let Some(split) = self.paths.split(to, is_inside, self.now, packet, length) else {
            return false;
        };
        let mut buffer = self.spare.pop();
        for range in split.parts() {
            let mut part = buffer
                .take()
                .unwrap_or_else(|| vec![0; PACKET_BUFFER].into());
            let length = split.write(range, &mut part);
            buffer = Some(self.ports.send(port, peer, flow, part, length));
        }
        self.spare.extend(buffer);
        // Each part occupies the memory of a long packet as long as it waits.
        self.ports.flush_one(port);
        true
    }
}

/// True if packets from a port to a place stay in this machine.
fn is_inside(ports: &Ports, port: PortIndex, place: SocketAddr) -> bool {
    let own = ports.local_address(port).map(|own| own.ip());
    place.ip().is_loopback() || own == Some(place.ip())
}

/// The flow of what no queue pair sends.
const MANAGEMENT: u32 = 1;

impl Surroundings for Around {
    type Buffer = Box<[u8]>;

    fn now(&self) -> Time {
        self.now
    }

    fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.alarms.set(at, alarm);
    }

    fn link_has_room(&mut self) -> bool {
        self.ports.has_room()
    }

    fn watch_link(&mut self) {
        self.link_watched = true;
    }

    fn take_buffer(&mut self, room: usize) -> Box<[u8]> {
        match self.spare.pop() {
            Some(buffer) if buffer.len() >= room => buffer,
            _ => vec![0; room.max(PACKET_BUFFER)].into(),
        }
    }

    fn give_buffer(&mut self, buffer: Box<[u8]>) {
        self.spare.push(buffer);
    }

    fn send(&mut self, flow: Flow, to: Gid, mut buffer: Box<[u8]>, length: usize) {
        let flow = match flow {
            Flow::Management => MANAGEMENT,
            Flow::QueuePair { number, .. } => number.get(),
        };
        let Some((port, peer)) = self.peers.address(to) else {
            return self.give_buffer(buffer);
        };
        if length > SHORT && self.send_in_parts((to, port, peer), flow, &mut buffer, length) {
            return self.give_buffer(buffer);
        }
        let spare = self.ports.send(port, peer, flow, buffer, length);
        self.give_buffer(spare);
    }

    fn is_inside(&self, peer: Gid) -> bool {
        let address = self.peers.address(peer);
        address.is_some_and(|(port, place)| is_inside(&self.ports, port, place))
    }

    fn allocate_memory(
        &mut self,
        region: RegionNumber,
        _: LocalKey,
        length: u64,
    ) -> Result<(), VerbsError> {
        self.memory.insert(region, Memory::allocate(length)?);
        Ok(())
    }

    fn release_memory(&mut self, region: RegionNumber) {
        self.memory.remove(&region);
    }

    fn read_memory(&self, region: RegionNumber, offset: u64, into: &mut [u8]) -> bool {
        let memory = self.memory.get(&region);
        memory.is_some_and(|memory| memory.read(offset, into))
    }

    fn write_memory(&mut self, region: RegionNumber, offset: u64, from: &[u8]) -> bool {
        let memory = self.memory.get(&region);
        memory.is_some_and(|memory| memory.write(offset, from))
    }

    fn update_memory(
        &mut self,
        region: RegionNumber,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = self.read_memory(region, offset, &mut bytes);
        let old = u64::read_from_bytes(&bytes).ok().filter(|_| read)?;
        let written = self.write_memory(region, offset, change(old).as_bytes());
        written.then_some(old)
    }
}
