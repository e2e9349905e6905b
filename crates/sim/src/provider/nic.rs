//! One incarnation of a machine's NIC: the channel adapter, and what is the simulator's of it.

use super::environment::{Environment, LateCompletion, Occurrence};
use super::hardware::{Around, Hardware};
use super::personality::Personality;
use super::trace::Kind;
use super::wire::{Packet, gid_of};
use legato_base::Random;
use legato_transport::adapter::{
    Chance, ChannelAdapter, Configuration, NumberOrder, QUEUE_PAIR_NUMBERS,
};
use legato_transport::cm::{CaGuid, LocalPort};
use legato_transport::nic::Posted;
use legato_verbs::{Event, VerbsError};

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) adapter: ChannelAdapter,
    pub(super) hardware: Hardware,
    pub(super) alive: bool,
    /// The device was removed from the machine.
    pub(super) removed: bool,
    pub(super) frozen: bool,
    /// What happens to a frozen machine waits here until it thaws.
    pub(super) held: Vec<Occurrence>,
    packets_received: u64,
    packets_damaged: u64,
}

/// What a NIC has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    pub packets_received: u64,
    /// The invariant CRC was wrong.
    pub packets_damaged: u64,
    /// No packet, or nobody's, or from a stranger.
    pub packets_discarded: u64,
}

impl Nic {
    pub(super) fn new(
        machine: usize,
        place: usize,
        personality: Personality,
        environment: &mut Environment,
    ) -> Self {
        let (chance, random) = chances(&personality, &mut environment.random);
        let configuration = configuration(environment, place, &personality);
        Self {
            adapter: ChannelAdapter::new(configuration, chance),
            hardware: Hardware::new(machine, place, personality, random),
            alive: true,
            removed: false,
            frozen: false,
            held: Vec::new(),
            packets_received: 0,
            packets_damaged: 0,
        }
    }

    /// The NIC of a killed machine.
    pub(super) const fn die(&mut self) {
        self.alive = false;
        self.adapter.fail(KILLED);
    }

    /// The device is taken out of its machine.
    pub(super) fn remove_device(&mut self, environment: &mut Environment) {
        if self.removed || !self.alive {
            return;
        }
        let place = self.hardware.place;
        environment.trace.at(environment.now, Kind::Removed, place);
        self.hardware.lose_power();
        environment.places[place].link_is_up = false;
        self.with(environment, |adapter, around| adapter.remove_device(around));
        self.removed = true;
    }

    /// Calls the adapter.
    pub(super) fn with<R>(
        &mut self,
        environment: &mut Environment,
        call: impl FnOnce(&mut ChannelAdapter, &mut Around<'_>) -> R,
    ) -> R {
        let mut around = Around {
            environment,
            hardware: &mut self.hardware,
        };
        call(&mut self.adapter, &mut around)
    }

    pub(super) fn arrive(&mut self, environment: &mut Environment, packet: &Packet) {
        self.packets_received += 1;
        let Some(bytes) = packet.checked() else {
            self.packets_damaged += 1;
            return;
        };
        let from = gid_of(packet.from);
        self.with(environment, |adapter, around| {
            adapter.receive(around, from, bytes);
        });
    }

    pub(super) const fn counters(&self) -> Counters {
        Counters {
            packets_received: self.packets_received,
            packets_damaged: self.packets_damaged,
            packets_discarded: self.adapter.packets_discarded(),
        }
    }

    /// An event that a fault may take.
    pub(super) fn raise(&mut self, environment: &mut Environment, event: Event) {
        self.with(environment, |adapter, around| {
            adapter.raise_event(around, event);
        });
    }

    /// A completion that a fault has held back or doubled.
    pub(super) fn store_late(&mut self, environment: &mut Environment, late: &LateCompletion) {
        let posted = self.with(environment, |adapter, around| {
            adapter.store(around, &late.completion)
        });
        if late.again && matches!(posted, Some(Posted::Stored | Posted::Wake)) {
            self.hardware.doubled.push(late.completion);
        }
    }
}

/// The adapter's chance, and the simulator's own for this NIC.
fn chances(personality: &Personality, shared: &mut Random) -> (Chance, Random) {
    let mut random = shared.fork();
    let connection_management = random.fork();
    let keys = random.fork();
    let own = random.fork();
    let anywhere = QUEUE_PAIR_NUMBERS.start + shared.below(1 << 22) as u32;
    let chance = Chance {
        keys,
        connection_management,
        sequences: random,
        numbers: NumberOrder::From(personality.first_number.unwrap_or(anywhere)),
    };
    (chance, own)
}

fn configuration(
    environment: &Environment,
    place: usize,
    personality: &Personality,
) -> Configuration {
    let config = &environment.config;
    Configuration {
        name: "sim",
        port: LocalPort {
            ca_guid: CaGuid(0x0200_0000_0000_0000 | (place as u64 + 1)),
            gid: gid_of(place),
        },
        policy: personality.adapter,
        message_length_max: config.message_length_max,
        timeout: config.timeout,
        retry_count: config.retry_count,
        rnr_retry: config.rnr_retry,
        rnr_timer: config.rnr_timer,
        path_mtu: config.path_mtu,
        reads_max: config.reads_max,
        connection_management: config.connection_management,
    }
}

/// Calls on the NIC of a killed machine fail as they would after a surprise removal (ENODEV).
const KILLED: VerbsError = VerbsError::System {
    call: "a killed machine's NIC",
    errno: 19,
};
