//! Machines to which everything happens, and the model of what their calls may end with.

use super::machine::answer;
use super::world::{CREDITS, World, config, millis, network, seconds};
use legato_base::{Duration, Random, Time};
use legato_fabric::Effect;
use legato_fabric::session::{
    CallKind, SessionCallId, SessionCause, SessionConfig, SessionServer, SessionServerConfig,
};
use legato_sim::fault::{
    CompletionEffect, Effect as FaultEffect, Frequency, PacketEffect, Rule, Span,
};
use legato_sim::provider::Personality;
use std::collections::BTreeMap;

const SERVERS: usize = 3;
const CLIENTS: usize = 2;
const MACHINES: usize = SERVERS + CLIENTS;
const NAMES: [&str; MACHINES] = ["one", "two", "three", "left", "right"];

/// A call, as it was started.
#[derive(Debug)]
struct Call {
    kind: CallKind,
    deadline: Time,
    lasts: Duration,
    /// Of the caller; it forgets everything when it dies.
    machine: usize,
    id: SessionCallId,
    is_alive: bool,
}

pub(crate) struct Chaos {
    pub(crate) world: World,
    random: Random,
    calls: Vec<Call>,
    /// Of a number: how often it was executed in all lives of all servers.
    executed: BTreeMap<u64, usize>,
    /// When a machine thaws, goes on or is started again.
    due: [Option<Time>; MACHINES],
    /// When a caller's software last went on after it had stood still.
    resumed: [Time; MACHINES],
    pub(crate) crashed: u64,
}

fn body(number: u64) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.extend(vec![number as u8; (number % 60) as usize]);
    body
}

impl Chaos {
    pub(crate) fn new(seed: u64, personality: Personality) -> Self {
        let mut random = Random::from_seed(seed);
        let mut world = World::new(seed, network(personality));
        for name in NAMES {
            world.start(name, config());
        }
        let losses = [0, 0, 1, 5][random.below(4) as usize];
        world.add(Rule::packets(losses, PacketEffect::Drop));
        let late = Span {
            least: Duration::ZERO,
            most: millis(20),
        };
        world.add(Rule::packets(losses, PacketEffect::Delay(late)));
        world.add(Rule::packets(losses, PacketEffect::Duplicate(late)));
        // Of a device that loses what it should say, says it late, or twice.
        let effects = [
            CompletionEffect::Lose,
            CompletionEffect::Delay(late),
            CompletionEffect::Duplicate,
            CompletionEffect::Stale(late),
        ];
        if random.ratio(1, 3) {
            let effect = effects[random.below(4) as usize];
            let effect = FaultEffect::Completion { of: None, effect };
            world.add(Rule::new(Frequency::one_in(100), effect));
        }
        let mut chaos = Self {
            world,
            random,
            calls: Vec::new(),
            executed: BTreeMap::new(),
            due: [None; MACHINES],
            resumed: [Time::ZERO; MACHINES],
            crashed: 0,
        };
        for machine in 0..MACHINES {
            chaos.equip(machine);
        }
        chaos
    }

    /// What a machine has in each of its lives.
    fn equip(&mut self, machine: usize) {
        if machine >= SERVERS {
            for server in 0..SERVERS {
                let config = SessionConfig {
                    calls_max: 20,
                    connect_max: millis(500),
                };
                self.world.session(machine, server, config);
            }
            return;
        }
        let narrow = self.random.ratio(1, 2);
        let server = &mut self.world.machines[machine];
        server.answers = false;
        server.server = SessionServer::new(SessionServerConfig {
            window: if narrow { 2 } else { CREDITS as usize },
            executing_max: if narrow { 3 } else { 2 * CREDITS as usize },
            clients_max: if narrow { 1 } else { 8 },
        });
    }

    pub(crate) fn step(&mut self) {
        for _ in 0..=self.random.below(3) {
            self.call();
        }
        if self.random.ratio(1, 20) && !self.calls.is_empty() {
            let choice = self.random.below(self.calls.len() as u64) as usize;
            let call = &self.calls[choice];
            if call.is_alive && self.runs(call.machine) {
                let sessions = &mut self.world.machines[call.machine].sessions;
                for session in sessions {
                    session.cancel(call.id);
                }
            }
        }
        self.serve();
        self.wreak();
        let micros = [1, 5, 20, 100, 1_000, 20_000, 100_000];
        let choice = self.random.below(micros.len() as u64) as usize;
        self.pass(Duration::from_micros(micros[choice]));
    }

    fn runs(&self, machine: usize) -> bool {
        self.due[machine].is_none()
    }

    fn call(&mut self) {
        let machine = SERVERS + self.random.below(CLIENTS as u64) as usize;
        let session = self.random.below(SERVERS as u64) as usize;
        let kind = if self.random.ratio(1, 3) {
            CallKind::Idempotent
        } else {
            CallKind::Once
        };
        let lasts = [millis(1), millis(50), seconds(1), seconds(10)];
        let lasts = lasts[self.random.below(4) as usize];
        if !self.runs(machine) {
            return;
        }
        let (number, deadline) = (self.calls.len() as u64, self.world.in_time(lasts));
        let session = &mut self.world.machines[machine].sessions[session];
        if let Ok(id) = session.call(body(number), kind, deadline) {
            self.calls.push(Call {
                kind,
                deadline,
                lasts,
                machine,
                id,
                is_alive: true,
            });
        }
    }

    /// Some of the calls that have come are executed, in any order.
    fn serve(&mut self) {
        for server in 0..SERVERS {
            if !self.runs(server) {
                continue;
            }
            let machine = &mut self.world.machines[server];
            while !machine.open.is_empty() && self.random.ratio(3, 4) {
                let choice = self.random.below(machine.open.len() as u64) as usize;
                let delivery = machine.open.swap_remove(choice);
                let (fabric, nic) = (&mut machine.fabric, &mut machine.nic);
                let dropped = self.random.ratio(1, 2)
                    && machine
                        .server
                        .drop_expired(fabric, nic, delivery.ticket)
                        .unwrap();
                if dropped {
                    continue;
                }
                let number = u64::from_le_bytes(*delivery.body.first_chunk().unwrap());
                assert_eq!(delivery.body, body(number));
                *self.executed.entry(number).or_default() += 1;
                machine.execute(&delivery);
            }
        }
    }

    fn wreak(&mut self) {
        let now = self.world.network.now();
        let time = [millis(1), millis(30), millis(500), seconds(3)];
        let time = time[self.random.below(4) as usize];
        let machine = self.random.below(MACHINES as u64) as usize;
        let other = (machine + 1 + self.random.below(MACHINES as u64 - 1) as usize) % MACHINES;
        match self.random.below(60) {
            0 | 1 => {
                let rule = Rule::one_way_cut(self.world.link(machine, other));
                self.world.add(rule.between(now, now + time));
            }
            2 => {
                for (from, to) in [(machine, other), (other, machine)] {
                    let rule = Rule::one_way_cut(self.world.link(from, to));
                    self.world.add(rule.between(now, now + time));
                }
            }
            3 if self.runs(machine) => {
                self.due[machine] = Some(now + time);
                self.world.machines[machine].stopped = true;
                self.world.network.freeze(NAMES[machine]);
            }
            4 if self.runs(machine) => {
                // Its NIC goes on.
                self.due[machine] = Some(now + time);
                self.world.machines[machine].stopped = true;
            }
            5 if self.runs(machine) => {
                self.due[machine] = Some(now + time);
                self.crash(machine);
            }
            6 if self.runs(machine) => {
                let machine = &mut self.world.machines[machine];
                if let Some(&connection) = machine.accepted.last() {
                    machine.fabric.close(&mut machine.nic, connection);
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, machine: usize) {
        self.crashed += 1;
        self.check(machine);
        self.world.network.kill(NAMES[machine]);
        for call in &mut self.calls {
            call.is_alive &= call.machine != machine;
        }
    }

    fn wake(&mut self, machine: usize) {
        self.due[machine] = None;
        if self.world.network.is_alive(NAMES[machine]) {
            self.world.network.unfreeze(NAMES[machine]);
            self.world.machines[machine].stopped = false;
            self.resumed[machine] = self.world.network.now();
        } else {
            self.world.restart(machine, config());
            self.equip(machine);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.world.in_time(time);
        loop {
            for machine in 0..MACHINES {
                if self.due[machine].is_some_and(|due| due <= self.world.network.now()) {
                    self.wake(machine);
                }
            }
            let due = self.due.iter().flatten().copied();
            let next = due.fold(end, Time::min);
            while self.world.step(next) {}
            if self.world.network.now() >= end {
                return;
            }
        }
    }

    /// Each call of a machine that should have ended has, in time, and its outcome is true so far.
    fn check(&self, machine: usize) {
        let now = self.world.network.now();
        for (number, call) in self.calls.iter().enumerate() {
            if call.machine != machine || !call.is_alive {
                continue;
            }
            let Some((outcome, at)) = self.world.machines[machine].ends.get(&call.id) else {
                let is_due = call.deadline <= now && self.runs(machine);
                assert!(!is_due, "call {number} has no outcome: {call:?}");
                continue;
            };
            let latest = call.deadline.max(self.resumed[machine]);
            assert!(*at <= latest, "call {number} ended at {at:?}: {call:?}");
            let executed = self.executed.get(&(number as u64)).copied();
            let executed = executed.unwrap_or_default();
            match outcome {
                Ok(reply) => {
                    assert_eq!(*reply, answer(&body(number as u64)), "call {number}");
                    assert!(executed > 0, "call {number} was never executed");
                }
                Err(error) if error.effect == Effect::NotExecuted => {
                    assert_eq!(executed, 0, "call {number} was executed: {error}");
                }
                Err(error) => assert_eq!(error.effect, Effect::Unknown, "call {number}"),
            }
        }
    }

    pub(crate) fn check_all(&self) {
        for machine in SERVERS..MACHINES {
            self.check(machine);
        }
        for (&number, &times) in &self.executed {
            let kind = self.calls[number as usize].kind;
            let allowed = times == 1 || kind == CallKind::Idempotent;
            assert!(allowed, "call {number} was executed {times} times");
        }
    }

    /// Everything is well again: what is called now is done, and everything that was has ended.
    pub(crate) fn recover(&mut self) {
        self.world.heal();
        for machine in 0..MACHINES {
            if self.due[machine].is_some() {
                self.wake(machine);
            }
        }
        // Longer than any silence is borne.
        for _ in 0..300 {
            self.serve();
            self.pass(millis(100));
        }
        let first = self.calls.len();
        for round in 0..100 {
            self.call();
            self.serve();
            self.pass(millis(50 * (round % 2)));
        }
        for _ in 0..250 {
            self.serve();
            self.pass(millis(50));
        }
        for (number, call) in self.calls.iter().enumerate().skip(first) {
            let (outcome, _) = &self.world.machines[call.machine].ends[&call.id];
            // Servers take their time, and some have narrow limits.
            let patient = call.lasts >= seconds(10);
            let busy = matches!(outcome, Err(error) if error.cause == SessionCause::PeerBusy);
            assert!(
                outcome.is_ok() || busy || !patient,
                "call {number}: {outcome:?}"
            );
        }
        for machine in &self.world.machines {
            for session in &machine.sessions {
                assert_eq!(session.calls_open(), 0);
            }
        }
        self.check_all();
    }
}
