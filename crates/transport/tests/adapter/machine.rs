//! The least that an adapter can be given: vectors for memory, a clock that somebody else moves,
//! and a box for packets that go out.

use legato_base::Time;
use legato_transport::adapter::{
    Alarm, Alarms, Chance, ChannelAdapter, Configuration, Flow, Policy, RegionNumber, Surroundings,
};
use legato_transport::cm::{CaGuid, Gid, LocalPort, Parameters};
use legato_transport::rc::{self, Recovery};
use legato_transport::wire::icrc::{self, Envelope, ICRC_LENGTH, Network};
use legato_verbs::{LocalKey, PathMtu, QueuePair, RetryCount, RnrTimer, VerbsError};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Room in front of a packet, as headers of a network would take it.
const HEADROOM: usize = 42;
/// UDP port of RoCEv2 (annex A17).
const PORT: u16 = 4791;

/// A packet with room for the network's own before and behind it.
#[derive(Clone, Debug)]
pub(crate) struct Frame(Vec<u8>);

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        let end = self.0.len() - ICRC_LENGTH;
        &mut self.0[HEADROOM..end]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
    source_port: u16,
    pub(crate) frame: Frame,
    length: usize,
}

impl Packet {
    fn envelope(&self) -> Envelope {
        Envelope {
            network: Network::Ipv4 {
                source: self.from,
                destination: self.to,
                identification: 0,
                do_not_fragment: true,
            },
            source_port: self.source_port,
            destination_port: PORT,
        }
    }

    fn checked(&self) -> Option<&[u8]> {
        let bytes = &self.frame.0[HEADROOM..HEADROOM + self.length];
        icrc::check(&self.envelope(), bytes).ok()
    }

    /// The peer says something else: a bit of it is another, and the CRC is right.
    pub(crate) fn forge(&mut self, bit: u64) {
        let length = self.length - ICRC_LENGTH;
        let bit = bit as usize % (length * 8);
        let envelope = self.envelope();
        let bytes = &mut self.frame.0[HEADROOM..];
        bytes[bit / 8] ^= 1 << (bit % 8);
        icrc::append(&envelope, bytes, length).unwrap();
    }

    /// A bit of its last byte before the CRC changes on the way.
    pub(crate) fn damage(&mut self) {
        self.frame.0[HEADROOM + self.length - ICRC_LENGTH - 1] ^= 1;
    }
}

#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) clock: Rc<Cell<Time>>,
    pub(crate) address: Ipv4Addr,
    pub(crate) alarms: Alarms,
    pub(crate) memory: BTreeMap<RegionNumber, Vec<u8>>,
    /// Bytes that all regions may have together.
    pub(crate) memory_max: usize,
    pub(crate) sent: Vec<Packet>,
    /// Packets that the link takes before it is busy.
    pub(crate) room: usize,
    pub(crate) link_watched: bool,
    pub(crate) times_link_was_busy: u64,
    /// Who has asked for an address that nobody has.
    pub(crate) asked_for_nobody: Vec<QueuePair>,
}

impl Surroundings for Around {
    type Buffer = Frame;

    fn now(&self) -> Time {
        self.clock.get()
    }

    fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.alarms.set(at, alarm);
    }

    fn link_has_room(&mut self) -> bool {
        self.room > 0
    }

    fn watch_link(&mut self) {
        assert!(!self.link_watched, "it is watched once");
        self.link_watched = true;
        self.times_link_was_busy += 1;
    }

    fn take_buffer(&mut self, room: usize) -> Frame {
        Frame(vec![0; HEADROOM + room + ICRC_LENGTH])
    }

    fn give_buffer(&mut self, _: Frame) {}

    fn send(&mut self, flow: Flow, to: Gid, frame: Frame, length: usize) {
        let Some(to) = address_of(to) else {
            return;
        };
        self.room = self.room.saturating_sub(1);
        let mut packet = Packet {
            from: self.address,
            to,
            source_port: match flow {
                Flow::Management => 0xC000,
                Flow::QueuePair { number, .. } => 0xC000 | number.get() as u16 & 0x3FFF,
            },
            frame,
            length,
        };
        let envelope = packet.envelope();
        let bytes = &mut packet.frame.0[HEADROOM..];
        packet.length = icrc::append(&envelope, bytes, length).unwrap();
        self.sent.push(packet);
    }

    fn allocate_memory(
        &mut self,
        region: RegionNumber,
        _: LocalKey,
        length: u64,
    ) -> Result<(), VerbsError> {
        let used: usize = self.memory.values().map(Vec::len).sum();
        let length = length as usize;
        if used + length > self.memory_max {
            return Err(NO_MEMORY);
        }
        let before = self.memory.insert(region, vec![0; length]);
        assert_eq!(before, None, "numbers are given once");
        Ok(())
    }

    fn release_memory(&mut self, region: RegionNumber) {
        self.memory.remove(&region).unwrap();
    }

    fn read_memory(&self, region: RegionNumber, offset: u64, into: &mut [u8]) -> bool {
        let start = offset as usize;
        let bytes = self.memory.get(&region);
        let bytes = bytes.and_then(|bytes| bytes.get(start..start + into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    fn write_memory(&mut self, region: RegionNumber, offset: u64, from: &[u8]) -> bool {
        let start = offset as usize;
        let bytes = self.memory.get_mut(&region);
        let bytes = bytes.and_then(|bytes| bytes.get_mut(start..start + from.len()));
        bytes.map(|bytes| bytes.copy_from_slice(from)).is_some()
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
        self.write_memory(region, offset, change(old).as_bytes());
        Some(old)
    }
}

pub(crate) const NO_MEMORY: VerbsError = VerbsError::System {
    call: "mmap",
    errno: 12,
};

/// What a test decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Packets that a link takes at a time.
    pub(crate) room: usize,
    pub(crate) path_mtu: [PathMtu; 2],
    pub(crate) recovery: Recovery,
}

/// An adapter with what is around it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) adapter: ChannelAdapter,
    pub(crate) around: Around,
    pub(crate) damaged: u64,
}

impl Machine {
    pub(crate) fn new(number: u8, setup: &Setup, clock: Rc<Cell<Time>>) -> Self {
        let address = Ipv4Addr::new(10, 0, 0, number);
        let configuration = Configuration {
            name: "test",
            port: LocalPort {
                ca_guid: CaGuid(u64::from(number)),
                gid: Gid::from_ipv4(address),
            },
            policy: Policy {
                transport: rc::Policy {
                    recovery: setup.recovery,
                    ..rc::Policy::IDEAL
                },
                ..Policy::IDEAL
            },
            message_length_max: 1 << 20,
            timeout: 14,
            retry_count: RetryCount::from_bits(3),
            rnr_retry: 2,
            rnr_timer: RnrTimer::new(12),
            path_mtu: setup.path_mtu[usize::from(number - 1)],
            reads_max: 16,
            connection_management: Parameters::default(),
        };
        let around = Around {
            clock,
            address,
            alarms: Alarms::default(),
            memory: BTreeMap::new(),
            memory_max: 1 << 28,
            sent: Vec::new(),
            room: setup.room,
            link_watched: false,
            times_link_was_busy: 0,
            asked_for_nobody: Vec::new(),
        };
        let chance = Chance::from_seed(setup.seed << 8 | u64::from(number));
        Self {
            adapter: ChannelAdapter::new(configuration, chance),
            around,
            damaged: 0,
        }
    }

    /// Does what is due, and returns when it wants to be called again.
    pub(crate) fn progress(&mut self) -> Time {
        while let Some(alarm) = self.around.alarms.take_due(self.around.now()) {
            self.adapter.alarm(&mut self.around, alarm);
        }
        for queue_pair in std::mem::take(&mut self.around.asked_for_nobody) {
            self.adapter.no_such_address(&mut self.around, queue_pair);
        }
        self.around.alarms.next_deadline()
    }

    pub(crate) fn receive(&mut self, packet: &Packet, is_marked: bool) {
        assert_eq!(packet.to, self.around.address);
        match packet.checked() {
            Some(bytes) => {
                let from = Gid::from_ipv4(packet.from);
                let (adapter, around) = (&mut self.adapter, &mut self.around);
                if is_marked {
                    adapter.receive_marked(around, from, bytes);
                } else {
                    adapter.receive(around, from, bytes);
                }
            }
            None => self.damaged += 1,
        }
    }
}

fn address_of(gid: Gid) -> Option<Ipv4Addr> {
    std::net::Ipv6Addr::from(gid.0).to_ipv4_mapped()
}
