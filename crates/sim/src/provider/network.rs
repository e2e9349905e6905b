//! The network as its owner drives it: time, and what happens to machines.

use super::config::SimNetworkConfig;
use super::environment::{Environment, Local, Occurrence, Place};
use super::memory::{CanaryHit, WatchId};
use super::nic::Nic;
use super::personality::Personality;
use super::trace::Kind;
use super::verbs::{SimProvider, service_of};
use super::wire::{Packet, gid_of};
use crate::fault::Faults;
use legato_base::Time;
use legato_transport::adapter::{Alarm, PORT};
use legato_verbs::{AsyncEvent, Event, MemoryRegion, VerbsError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The machines and everything between them. Clones are handles on the same network.
#[derive(Clone, Debug)]
pub struct SimNetwork(Rc<RefCell<Inner>>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) environment: Environment,
    /// All incarnations of all machines. A killed one keeps its number, empty, for ever.
    pub(super) machines: Vec<Nic>,
    /// The place of each machine.
    names: BTreeMap<String, usize>,
    watches: u64,
    watched: BTreeMap<WatchId, usize>,
}

impl SimNetwork {
    pub fn new(seed: u64, config: SimNetworkConfig) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            environment: Environment::new(seed, config),
            machines: Vec::new(),
            names: BTreeMap::new(),
            watches: 0,
            watched: BTreeMap::new(),
        })))
    }

    /// The NIC of the machine of this name, which is started if it never was. Of a killed machine
    /// this is the dead NIC: see [`Self::restart`].
    pub fn provider(&self, name: &str) -> SimProvider {
        let personality = self.0.borrow().environment.config.personality;
        self.provider_with(name, personality)
    }

    /// The same; a machine that is started now gets this NIC.
    pub fn provider_with(&self, name: &str, personality: Personality) -> SimProvider {
        let machine = self.0.borrow_mut().machine_named(name, personality);
        SimProvider::new(Rc::clone(&self.0), machine)
    }

    pub fn now(&self) -> Time {
        self.0.borrow().environment.now
    }

    /// When something happens next; `None` if nothing will by itself.
    pub fn next_event_time(&self) -> Option<Time> {
        self.0.borrow().environment.next_time()
    }

    /// Lets everything happen up to and including `time`. Time never goes back.
    pub fn advance_to(&self, time: Time) {
        let mut inner = self.0.borrow_mut();
        while let Some(occurrence) = inner.environment.take_until(time) {
            inner.happen(occurrence);
        }
        let environment = &mut inner.environment;
        environment.now = environment.now.max(time);
    }

    /// The machine dies at once with all that its NIC holds; its memory is gone. What it sent
    /// before still arrives. Peers find out by silence.
    pub fn kill(&self, name: &str) {
        self.0.borrow_mut().kill(name);
    }

    /// Starts a killed machine again, empty: a new incarnation with a NIC of its own. One that is
    /// alive is killed first.
    pub fn restart(&self, name: &str) -> SimProvider {
        let personality = {
            let mut inner = self.0.borrow_mut();
            let configured = inner.environment.config.personality;
            let machine = inner.machine_named(name, configured);
            inner.machines[machine].hardware.personality
        };
        self.restart_with(name, personality)
    }

    /// The same with another NIC.
    pub fn restart_with(&self, name: &str, personality: Personality) -> SimProvider {
        let mut inner = self.0.borrow_mut();
        inner.kill(name);
        let machine = inner.start(name, personality);
        drop(inner);
        SimProvider::new(Rc::clone(&self.0), machine)
    }

    /// Nothing happens on the machine's NIC, and no packet reaches it, until [`Self::unfreeze`];
    /// then all that was held back happens at once, in order. Its software is the caller's to stop.
    pub fn freeze(&self, name: &str) {
        self.0.borrow_mut().named(name).frozen = true;
    }

    pub fn unfreeze(&self, name: &str) {
        let mut inner = self.0.borrow_mut();
        let nic = inner.named(name);
        nic.frozen = false;
        let held = std::mem::take(&mut nic.held);
        let now = inner.environment.now;
        for occurrence in held {
            inner.environment.schedule(now, occurrence);
        }
    }

    pub fn is_alive(&self, name: &str) -> bool {
        let inner = self.0.borrow();
        let place = inner.names.get(name);
        place.is_some_and(|&place| inner.environment.places[place].alive)
    }

    /// Takes the NIC out of a machine that lives on: its queue pairs end, its owner gets
    /// [`AsyncEvent::DeviceFatal`] and for each connection `DeviceRemoved`, and nothing but
    /// destroying works any more. Peers hear nothing.
    pub fn remove_device(&self, name: &str) {
        self.on_nic(name, Nic::remove_device);
    }

    /// Pulls the cable, or puts it back: while it is out nothing that is sent leaves and nothing
    /// arrives.
    pub fn set_link(&self, name: &str, up: bool) {
        self.on_nic(name, |nic, environment| {
            let place = nic.hardware.place;
            let link = &mut environment.places[place].link_is_up;
            if !nic.alive || nic.removed || std::mem::replace(link, up) == up {
                return;
            }
            let event = if up {
                AsyncEvent::PortActive(PORT)
            } else {
                AsyncEvent::PortError(PORT)
            };
            environment.trace.at(environment.now, Kind::Link, place);
            nic.raise(environment, Event::Async(event));
        });
    }

    /// The machine's system gives so much more to all regions together, or as much as is asked for.
    pub fn limit_memory(&self, name: &str, more: Option<u64>) {
        self.on_nic(name, |nic, _| nic.hardware.memory.set_limit(more));
    }

    /// Gives a machine's owner an event that something outside of its NIC causes: a subnet manager,
    /// an address that changes, a path that migrates. Nothing else happens.
    pub fn raise(&self, name: &str, event: AsyncEvent) {
        self.on_nic(name, |nic, environment| {
            if nic.alive && !nic.removed {
                nic.raise(environment, Event::Async(event));
            }
        });
    }

    fn on_nic(&self, name: &str, act: impl FnOnce(&mut Nic, &mut Environment)) {
        let mut inner = self.0.borrow_mut();
        let machine = inner.named(name).hardware.machine;
        let Inner {
            environment,
            machines,
            ..
        } = &mut *inner;
        act(&mut machines[machine], environment);
    }

    /// The number by which fault rules name a machine, whatever its incarnation.
    pub fn machine_number(&self, name: &str) -> Option<usize> {
        self.0.borrow().names.get(name).copied()
    }

    /// The rules of what goes wrong.
    pub fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        change(&mut self.0.borrow_mut().environment.faults)
    }

    /// Has any NIC written outside its regions?
    ///
    /// # Errors
    /// The first such place.
    pub fn check_canaries(&self) -> Result<(), CanaryHit> {
        let inner = self.0.borrow();
        let hit = inner.machines.iter().find_map(|nic| {
            let (key, offset) = nic.hardware.memory.damage()?;
            let machine = inner.environment.places[nic.hardware.place].name.clone();
            Some(CanaryHit {
                machine,
                key,
                offset,
            })
        });
        hit.map_or(Ok(()), Err)
    }

    /// Watches a range of a region from now on, for writes by the machine's NIC.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn watch(
        &self,
        name: &str,
        region: &MemoryRegion,
        range: Range<u64>,
    ) -> Result<WatchId, VerbsError> {
        let mut inner = self.0.borrow_mut();
        inner.watches += 1;
        let id = WatchId(inner.watches);
        let nic = inner.named(name);
        let number = nic.adapter.region_number(region.local_key);
        let number = number.ok_or(VerbsError::UnknownHandle("region"))?;
        nic.hardware.memory.watch(id, number, range);
        let machine = nic.hardware.machine;
        inner.watched.insert(id, machine);
        Ok(id)
    }

    /// Has the NIC written there since? Not if the machine has died.
    pub fn touched(&self, watch: WatchId) -> bool {
        let inner = self.0.borrow();
        let machine = inner.watched.get(&watch);
        let memory = machine.map(|&machine| &inner.machines[machine].hardware.memory);
        memory.and_then(|memory| memory.touched(watch)) == Some(true)
    }

    /// Ends a watch.
    pub fn unwatch(&self, watch: WatchId) {
        let mut inner = self.0.borrow_mut();
        if let Some(machine) = inner.watched.remove(&watch) {
            inner.machines[machine].hardware.memory.unwatch(watch);
        }
    }

    /// A running hash of every packet, completion, event and timer with its time: equal histories
    /// have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.0.borrow().environment.trace.value()
    }

    /// Keeps the last lines of what happens, for readers: at most so many; 0 for none.
    pub fn keep_trace_lines(&self, lines_max: usize) {
        self.0.borrow_mut().environment.trace.keep(lines_max);
    }

    pub fn trace_lines(&self) -> Vec<String> {
        self.0.borrow().environment.trace.lines()
    }
}

impl Inner {
    fn machine_named(&mut self, name: &str, personality: Personality) -> usize {
        match self.names.get(name) {
            Some(&place) => self.environment.places[place].machine,
            None => self.start(name, personality),
        }
    }

    /// Does another machine than this incarnation listen at the address?
    pub(super) fn is_listened_for(&self, address: &str, machine: usize) -> bool {
        let place = self.environment.addresses.get(address);
        place.is_some_and(|&place| {
            let there = &self.machines[self.environment.places[place].machine];
            there.hardware.machine != machine && there.adapter.listens(service_of(address))
        })
    }

    fn named(&mut self, name: &str) -> &mut Nic {
        let personality = self.environment.config.personality;
        let machine = self.machine_named(name, personality);
        &mut self.machines[machine]
    }

    fn start(&mut self, name: &str, personality: Personality) -> usize {
        let machine = self.machines.len();
        let place = match self.names.get(name) {
            Some(&place) => place,
            None => {
                let place = self.environment.places.len();
                self.environment.places.push(Place {
                    name: name.to_owned(),
                    machine,
                    alive: true,
                    link_is_up: true,
                    link_free: Time::ZERO,
                });
                self.names.insert(name.to_owned(), place);
                place
            }
        };
        let nic = Nic::new(machine, place, personality, &mut self.environment);
        let there = &mut self.environment.places[place];
        (there.machine, there.alive, there.link_is_up) = (machine, true, true);
        self.machines.push(nic);
        machine
    }

    fn kill(&mut self, name: &str) {
        let (machine, place) = {
            let nic = self.named(name);
            if !nic.alive {
                return;
            }
            (nic.hardware.machine, nic.hardware.place)
        };
        let environment = &mut self.environment;
        environment.trace.at(environment.now, Kind::Killed, place);
        environment.places[place].alive = false;
        let personality = self.machines[machine].hardware.personality;
        let mut dead = Nic::new(machine, place, personality, environment);
        dead.die();
        self.machines[machine] = dead;
        self.announce_death(place);
    }

    /// After the detection time all who are connected with a dead machine hear of it.
    fn announce_death(&mut self, place: usize) {
        let Some(detection_time) = self.environment.config.detection_time else {
            return;
        };
        let found = self.environment.now + detection_time;
        for nic in &self.machines {
            for (queue_pair, connection, peer) in nic.adapter.connections() {
                if peer == gid_of(place) {
                    let what = Local::PeerLost {
                        queue_pair,
                        connection,
                    };
                    let machine = nic.hardware.machine;
                    self.environment.schedule_at(found, machine, what);
                }
            }
        }
    }

    fn happen(&mut self, occurrence: Occurrence) {
        let machine = match &occurrence {
            Occurrence::Arrive(packet) => self.environment.places[packet.to].machine,
            Occurrence::At { machine, .. } => *machine,
        };
        let nic = &mut self.machines[machine];
        if nic.frozen && nic.alive {
            nic.held.push(occurrence);
            return;
        }
        match occurrence {
            Occurrence::Arrive(packet) => self.arrive(machine, packet),
            Occurrence::At { what, .. } => self.local(machine, what),
        }
    }

    fn arrive(&mut self, machine: usize, packet: Packet) {
        let environment = &mut self.environment;
        let nic = &mut self.machines[machine];
        let there = &environment.places[packet.to];
        if nic.alive && !nic.removed && there.link_is_up {
            environment.trace_packet(Kind::Arrived, &packet, "got");
            nic.arrive(environment, &packet);
        } else {
            environment.trace_packet(Kind::Dropped, &packet, "lost");
        }
        self.environment.give_buffer(packet.buffer);
    }

    fn local(&mut self, machine: usize, what: Local) {
        if let Local::Alarm(Alarm::QueuePairTimer(queue_pair)) = what
            && self.machines[machine].alive
            && self.spare_the_wire(machine, queue_pair)
        {
            return;
        }
        let environment = &mut self.environment;
        let nic = &mut self.machines[machine];
        if !nic.alive {
            return;
        }
        let place = nic.hardware.place;
        match what {
            Local::Alarm(alarm) => nic.with(environment, |adapter, around| {
                adapter.alarm(around, alarm);
            }),
            Local::LinkFree => nic.with(environment, |adapter, around| {
                adapter.link_free(around);
            }),
            Local::PeerLost {
                queue_pair,
                connection,
            } => nic.with(environment, |adapter, around| {
                adapter.peer_lost(around, queue_pair, connection);
            }),
            Local::NoSuchAddress { queue_pair } => nic.with(environment, |adapter, around| {
                adapter.no_such_address(around, queue_pair);
            }),
            Local::Completion(late) => nic.store_late(environment, &late),
            Local::Event(event) => {
                environment.trace_event(place, &event);
                nic.adapter.deliver_event(event);
            }
            Local::LateWrite { number } => nic.write_late(environment, number),
            Local::PeerMayReceive { queue_pair } => {
                nic.peer_may_receive(environment, queue_pair);
            }
        }
    }
}
