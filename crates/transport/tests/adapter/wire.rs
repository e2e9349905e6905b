//! Two machines and a wire between them, on which each packet takes two microseconds.

use super::machine::{Packet, Setup};
use super::provider::{Directory, Nic};
use legato_base::{Duration, Time};
use legato_transport::rc::Recovery;
use legato_verbs::conformance::{Advance, Facts, Side, World};
use legato_verbs::{Address, PathMtu, Provider};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

const LATENCY: Duration = Duration::from_micros(2);
/// A busy link has room again after this.
const BUSY: Duration = Duration::from_micros(1);

/// What happens to a packet, by its number.
pub(crate) type Fate = Box<dyn FnMut(u64, &mut Packet) -> Copies>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    None,
    One,
    Two,
}

pub(crate) struct Wire {
    clock: Rc<Cell<Time>>,
    pub(crate) machines: [Nic; 2],
    room: usize,
    under_way: BTreeMap<Time, VecDeque<Packet>>,
    busy_until: [Option<Time>; 2],
    packets: u64,
    /// Does the network mark each packet?
    pub(crate) marks: bool,
    pub(crate) fate: Fate,
    addresses: u32,
    /// After this the bound of a wait is over.
    patience: Time,
}

impl Wire {
    /// With a room for so many packets on each link at a time.
    pub(crate) fn new(seed: u64, room: usize) -> Self {
        let path_mtu = [PathMtu::Bytes1024; 2];
        Self::with(&Setup {
            seed,
            room,
            path_mtu,
            recovery: Recovery::AsAttributes,
        })
    }

    pub(crate) fn with(setup: &Setup) -> Self {
        let clock = Rc::new(Cell::new(Time::ZERO));
        let directory = Rc::new(RefCell::new(Directory::default()));
        let nic = |number| {
            let (clock, directory) = (Rc::clone(&clock), Rc::clone(&directory));
            Nic::new(number, setup, clock, directory)
        };
        Self {
            machines: [nic(1), nic(2)],
            clock,
            room: setup.room,
            under_way: BTreeMap::new(),
            busy_until: [None; 2],
            packets: 0,
            marks: false,
            fate: Box::new(|_, _| Copies::One),
            addresses: 0,
            patience: Time::ZERO,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.get()
    }

    /// Takes what the machines have sent.
    fn collect(&mut self) {
        let now = self.clock.get();
        for (nic, busy_until) in self.machines.iter_mut().zip(&mut self.busy_until) {
            let around = &mut nic.machine.around;
            for mut packet in around.sent.drain(..) {
                let copies = (self.fate)(self.packets, &mut packet);
                self.packets += 1;
                let arrivals = self.under_way.entry(now + LATENCY).or_default();
                if copies == Copies::Two {
                    arrivals.push_back(packet.clone());
                }
                if copies != Copies::None {
                    arrivals.push_back(packet);
                }
            }
            if around.link_watched && busy_until.is_none() {
                *busy_until = Some(now + BUSY);
            }
        }
    }

    /// Lets time pass up to the next thing that happens. False if nothing will.
    pub(crate) fn step(&mut self) -> bool {
        self.collect();
        let alarms = self.machines.each_mut().map(|nic| nic.machine.progress());
        self.collect();
        let arrival = self.under_way.first_key_value().map(|(&at, _)| at);
        let busy = self.busy_until.iter().flatten().copied();
        let next = alarms.into_iter().chain(arrival).chain(busy).min();
        let Some(next) = next.filter(|&next| next != Time::NEVER) else {
            return false;
        };
        self.clock.set(self.clock.get().max(next));
        self.arrive();
        for nic in &mut self.machines {
            nic.machine.progress();
        }
        self.collect();
        true
    }

    fn arrive(&mut self) {
        let now = self.clock.get();
        while let Some(first) = self.under_way.first_entry().filter(|it| *it.key() <= now) {
            for packet in first.remove() {
                let to = &mut self.machines;
                let to = to.iter_mut().map(|nic| &mut nic.machine);
                for machine in to.filter(|it| it.around.address == packet.to) {
                    machine.receive(&packet, self.marks);
                }
            }
        }
        for (nic, busy_until) in self.machines.iter_mut().zip(&mut self.busy_until) {
            if busy_until.is_some_and(|until| until <= now) {
                *busy_until = None;
                let machine = &mut nic.machine;
                (machine.around.room, machine.around.link_watched) = (self.room, false);
                machine.adapter.link_free(&mut machine.around);
            }
        }
    }

    pub(crate) fn run_until_idle(&mut self) {
        while self.step() {}
    }
}

impl World for Wire {
    fn left(&mut self) -> &mut dyn Provider {
        &mut self.machines[0]
    }

    fn right(&mut self) -> &mut dyn Provider {
        &mut self.machines[1]
    }

    fn fresh_address(&mut self, _: Side) -> Address {
        self.addresses += 1;
        Address::Sim(format!("service-{}", self.addresses))
    }

    fn begin_wait(&mut self) {
        self.patience = self.now() + Duration::from_secs(100);
    }

    fn advance(&mut self) -> Advance {
        if self.now() < self.patience && self.step() {
            Advance::Stepped
        } else {
            Advance::Exhausted
        }
    }

    fn settle(&mut self) {
        self.run_until_idle();
    }

    fn facts(&self) -> Facts {
        Facts {
            cycles: 100,
            ..Facts::IDEAL
        }
    }
}
