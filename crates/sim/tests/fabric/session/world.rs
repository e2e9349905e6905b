//! Machines that call each other, over links on which things go wrong.

use super::machine::{Machine, address};
use legato_base::{Duration, Time};
use legato_fabric::FabricConfig;
use legato_fabric::session::{CallKind, Session, SessionCallId, SessionConfig};
use legato_sim::fault::{Faults, Link, Rule};
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const CREDITS: u32 = 4;

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) struct World {
    pub(crate) network: SimNetwork,
    pub(crate) machines: Vec<Machine>,
    lives: u64,
}

/// Nobody is told that a machine has died: silence is all that there is.
pub(crate) fn network(personality: Personality) -> SimNetworkConfig {
    SimNetworkConfig {
        detection_time: None,
        personality,
        ..SimNetworkConfig::default()
    }
}

pub(crate) fn config() -> FabricConfig {
    FabricConfig {
        connections_max: 12,
        credits: CREDITS,
        message_length_max: 200,
        one_sided_max: 1,
        first_generation: u32::MAX - 20,
        ..FabricConfig::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, config: SimNetworkConfig) -> Self {
        let network = SimNetwork::new(seed, config);
        network.faults(|faults| faults.set_seed(seed));
        Self {
            network,
            machines: Vec::new(),
            lives: 0,
        }
    }

    /// The machines of these names, the first of which has a session to each other one.
    pub(crate) fn star(seed: u64, personality: Personality, names: &[&str]) -> Self {
        let mut world = Self::new(seed, network(personality));
        for name in names {
            world.start(name, config());
        }
        for to in 1..names.len() {
            world.session(0, to, SessionConfig::default());
        }
        world
    }

    pub(crate) fn start(&mut self, name: &str, config: FabricConfig) -> usize {
        let nic = self.network.provider(name);
        let config = self.alive(config);
        self.machines.push(Machine::new(name, nic, config));
        self.machines.len() - 1
    }

    /// The next life of a machine. Its sessions are gone.
    pub(crate) fn restart(&mut self, machine: usize, config: FabricConfig) {
        let name = self.machines[machine].name.clone();
        let nic = self.network.restart(&name);
        let config = self.alive(config);
        self.machines[machine] = Machine::new(&name, nic, config);
    }

    fn alive(&mut self, config: FabricConfig) -> FabricConfig {
        self.lives += 1;
        FabricConfig {
            incarnation: 1000 + self.lives,
            ..config
        }
    }

    /// A session of one machine to another; its place among that machine's sessions.
    pub(crate) fn session(&mut self, from: usize, to: usize, config: SessionConfig) -> usize {
        let address = address(&self.machines[to].name);
        let machine = &mut self.machines[from];
        let number = machine.numbers;
        machine.numbers += 1;
        let seed = u64::from(number) + 1000 * from as u64;
        let session = Session::new(&machine.fabric, number, address, config, seed).unwrap();
        machine.sessions.push(session);
        machine.sessions.len() - 1
    }

    pub(crate) fn in_time(&self, duration: Duration) -> Time {
        self.network.now() + duration
    }

    pub(crate) fn call_on(
        &mut self,
        (machine, session): (usize, usize),
        body: &[u8],
        kind: CallKind,
        lasts: Duration,
    ) -> SessionCallId {
        let machine_clock = self.machines[machine].ahead;
        let deadline = self.in_time(lasts) + machine_clock;
        let session = &mut self.machines[machine].sessions[session];
        session.call(body.to_vec(), kind, deadline).unwrap()
    }

    /// A call of the first machine on its first session.
    pub(crate) fn call(&mut self, body: &[u8], kind: CallKind, lasts: Duration) -> SessionCallId {
        self.call_on((0, 0), body, kind, lasts)
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> Link {
        let number = |machine: usize| {
            let name = &self.machines[machine].name;
            self.network.machine_number(name).unwrap()
        };
        Link {
            from: number(from),
            to: number(to),
        }
    }

    pub(crate) fn add(&mut self, rule: Rule) {
        self.network.faults(|faults| faults.add(rule));
    }

    /// Nothing passes from one machine to the other any more.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        let rule = Rule::one_way_cut(self.link(from, to));
        self.add(rule);
    }

    pub(crate) fn cut_both(&mut self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    pub(crate) fn heal(&mut self) {
        self.network.faults(Faults::heal);
    }

    /// One turn of every machine, or one step of time, not past `end`. False at the end.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        let now = self.network.now();
        let (mut next, mut progressed) = (Time::NEVER, false);
        for machine in &mut self.machines {
            if machine.stopped || !self.network.is_alive(&machine.name) {
                continue;
            }
            let (deadline, moved) = machine.turn(now);
            next = next.min(deadline);
            progressed |= moved;
        }
        if progressed {
            return true;
        }
        if now >= end {
            return false;
        }
        next = next.min(self.network.next_event_time().unwrap_or(Time::NEVER));
        // A deadline that is due and does nothing must not stop the clock.
        let next = next.max(now + Duration::from_nanos(1)).min(end);
        self.network.advance_to(next);
        true
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.in_time(duration);
        while self.step(end) {}
    }

    /// Until it is so, which takes no longer than this.
    pub(crate) fn run_until(&mut self, most: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.in_time(most);
        while !done(self) {
            assert!(self.step(end), "it does not happen within {most}");
        }
    }

    /// Until these calls of a machine have ended, each by its deadline.
    pub(crate) fn run_until_ended(
        &mut self,
        machine: usize,
        most: Duration,
        calls: &[SessionCallId],
    ) {
        self.run_until(most, |world| {
            let ends = &world.machines[machine].ends;
            calls.iter().all(|call| ends.contains_key(call))
        });
    }

    pub(crate) fn run_until_up(&mut self) {
        self.run_until(SECOND, |world| {
            let mut sessions = world.machines.iter().flat_map(|machine| &machine.sessions);
            sessions.all(|session| session.connection().is_some())
        });
    }

    /// Ends all machines that are alive; nothing is left in any.
    pub(crate) fn end(mut self) {
        for machine in &mut self.machines {
            if self.network.is_alive(&machine.name) {
                machine.end();
            }
        }
        self.network.check_canaries().unwrap();
    }
}
