//! A few machines, each with a fabric, that call, read and write each other.

use super::super::stage::Stage;
use super::super::{Options, Outcome, Scenario, Violation};
use super::Plan;
use super::model::{Broken, Life, Model, REST, violation};
use super::node::{Beliefs, Node};
use crate::provider::{Personality, SimNetworkConfig};
use legato_base::{Duration, Random, Time};
use legato_verbs::VerbsError;

#[derive(Debug)]
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) plan: Plan,
    beliefs: Beliefs,
    pub(super) machines: Vec<Machine>,
    pub(super) model: Model,
    pub(super) step: u64,
    /// For what goes wrong; the work draws from the stage's.
    pub(super) chaos: Random,
    pub(super) connections: u64,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: String,
    /// How often it was started.
    lives: u64,
    /// None while it is dead.
    pub(super) node: Option<Node>,
    /// Since when its software stands still, with its NIC or without.
    pub(super) still: Option<Time>,
    /// When it goes on, or is started again.
    pub(super) due: Option<Time>,
    /// Its NIC was taken away.
    pub(super) removed: bool,
    /// When its port comes up again.
    pub(super) port_due: Option<Time>,
}

/// Turns at one moment before something is wrong.
const TURNS_MAX: u32 = 10_000;

pub(super) fn run(scenario: &Scenario, plan: Plan, options: &Options) -> Outcome {
    let config = SimNetworkConfig {
        detection_time: plan.detection,
        ..SimNetworkConfig::default()
    };
    let mut stage = Stage::new(scenario, options, config, |nic| Personality {
        late_writes: nic.late_writes.filter(|_| plan.late_writes),
        ..nic
    });
    let habit = stage.personality.late_writes.filter(|_| plan.fenced);
    // The last one may come at the end of the time.
    let late_writes = habit.map_or(Duration::ZERO, |it| it.lasts + Duration::from_nanos(1));
    let mut chaos = stage.random.fork();
    let beliefs = Beliefs {
        liveness: plan.liveness,
        late_write_bound: late_writes,
        shares_receives: plan.may_share_receives && chaos.below(2) == 0,
    };
    let mut world = World {
        stage,
        machines: (0..plan.machines).map(Machine::new).collect(),
        plan,
        beliefs,
        model: Model::default(),
        step: 0,
        chaos,
        connections: 0,
    };
    let violation = world.run(options.steps).err();
    let mut counts = world.model.counts();
    counts.push(("connections", world.connections));
    world.stage.outcome(counts, violation)
}

impl Machine {
    fn new(number: usize) -> Self {
        let names = ["left", "right", "middle", "top"];
        Self {
            name: names[number % names.len()].to_owned(),
            lives: 0,
            node: None,
            still: None,
            due: None,
            removed: false,
            port_due: None,
        }
    }

    /// Its software runs.
    pub(super) const fn runs(&self) -> bool {
        self.node.is_some() && self.still.is_none()
    }
}

impl World {
    fn run(&mut self, steps: u64) -> Result<(), Violation> {
        for machine in 0..self.machines.len() {
            self.start(machine)
                .map_err(|broken| self.violation(broken, &[machine]))?;
        }
        let rules = (self.plan.rules)(&mut self.chaos);
        for rule in rules {
            self.stage.add(rule);
        }
        while self.step < steps {
            self.step += 1;
            self.safety_step()?;
        }
        self.recover()?;
        self.tear_down()
    }

    fn safety_step(&mut self) -> Result<(), Violation> {
        self.wreak();
        let actions = 1 + self.stage.random.below(4);
        for _ in 0..actions {
            self.work()?;
        }
        let micros = [1, 2, 5, 20, 20, 100, 500, 2_000, 20_000, 150_000];
        let choice = self.stage.random.below(micros.len() as u64) as usize;
        self.pass(Duration::from_micros(micros[choice]))?;
        if self.step.is_multiple_of(8) {
            self.check_buffers()?;
        }
        Ok(())
    }

    pub(super) fn violation(&self, broken: Broken, machines: &[usize]) -> Violation {
        let names = machines
            .iter()
            .map(|&machine| self.machines[machine].name.clone())
            .collect();
        violation(broken, self.stage.now(), self.step, names)
    }

    pub(super) fn check_buffers(&self) -> Result<(), Violation> {
        for (number, machine) in self.machines.iter().enumerate() {
            if let Some(node) = &machine.node {
                node.check_all_quiet()
                    .map_err(|broken| self.violation(broken, &[number]))?;
            }
        }
        Ok(())
    }

    /// Lets everything happen for so long.
    pub(super) fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.stage.after(time);
        let mut turns = 0;
        loop {
            self.wake()?;
            let (progressed, deadline) = self.turn_all()?;
            let now = self.stage.now();
            if progressed {
                turns += 1;
                if turns > TURNS_MAX {
                    let endless = "turns without end at one moment".to_owned();
                    return Err(self.violation((REST, endless), &[]));
                }
                continue;
            }
            turns = 0;
            if now >= end {
                break;
            }
            let due = self.machines.iter().filter_map(|machine| machine.due);
            let ports = self.machines.iter().filter_map(|machine| machine.port_due);
            let next = due
                .chain(ports)
                .chain(self.stage.network.next_event_time())
                .fold(deadline, Time::min);
            // A deadline that is due and does nothing must not stop the clock.
            let next = next.max(now + Duration::from_nanos(1)).min(end);
            self.stage.network.advance_to(next);
        }
        self.check_in_time()
    }

    fn check_in_time(&self) -> Result<(), Violation> {
        for (number, machine) in self.machines.iter().enumerate() {
            if let Some(node) = machine.node.as_ref().filter(|_| machine.runs()) {
                self.model
                    .overdue(node.life, self.stage.now())
                    .map_err(|broken| self.violation(broken, &[number]))?;
            }
        }
        Ok(())
    }

    /// One turn of every machine: whether anything happened, and when the next is due.
    fn turn_all(&mut self) -> Result<(bool, Time), Violation> {
        let now = self.stage.now();
        let mut progressed = false;
        let mut deadline = Time::NEVER;
        for number in 0..self.machines.len() {
            let machine = &mut self.machines[number];
            if !machine.runs() {
                continue;
            }
            if let Some(node) = &mut machine.node {
                let turn = node.fabric.turn(&mut node.nic, now);
                progressed |= turn.progressed;
                deadline = deadline.min(turn.deadline);
            }
            progressed |= self
                .take_events(number)
                .map_err(|broken| self.violation(broken, &[number]))?;
        }
        Ok((progressed, deadline))
    }

    /// Wakes and starts what is due.
    fn wake(&mut self) -> Result<(), Violation> {
        let now = self.stage.now();
        for number in 0..self.machines.len() {
            if self.machines[number].port_due.is_some_and(|due| due <= now) {
                self.port_up(number);
            }
            if self.machines[number].due.is_some_and(|due| due <= now) {
                self.wake_machine(number)
                    .map_err(|broken| self.violation(broken, &[number]))?;
            }
        }
        Ok(())
    }

    /// Ends what was done to a machine.
    pub(super) fn wake_machine(&mut self, number: usize) -> Result<(), Broken> {
        self.machines[number].due = None;
        if let Some(since) = self.machines[number].still.take() {
            if let Some(node) = &self.machines[number].node {
                let stood = self.stage.now().since(since);
                let tenth = Duration::from_nanos(self.plan.liveness.as_nanos() / 10);
                self.model.forgive(node.life, stood + stood.min(tenth));
            }
            let name = self.machines[number].name.clone();
            self.stage.network.unfreeze(&name);
            self.stage.note(|| format!("{name} goes on"));
        }
        if self.machines[number].removed {
            self.retire(number)?;
        }
        if self.machines[number].node.is_none() {
            self.start(number)?;
        }
        Ok(())
    }

    pub(super) fn port_up(&mut self, number: usize) {
        let name = self.machines[number].name.clone();
        self.machines[number].port_due = None;
        self.stage.network.set_link(&name, true);
        self.stage.note(|| format!("the port of {name} is up"));
    }

    /// Ends what was done to all machines. One without a NIC is replaced in its time: first its
    /// software must find out. All software turns before it starts anything: what is started before
    /// the first turn after a pause looks as if it had been under way meanwhile (`Fabric::turn`).
    pub(super) fn all_awake(&mut self) -> Result<(), Violation> {
        for number in 0..self.machines.len() {
            if self.machines[number].port_due.is_some() {
                self.port_up(number);
            }
            if self.machines[number].removed {
                continue;
            }
            let woken = self.wake_machine(number);
            woken.map_err(|broken| self.violation(broken, &[number]))?;
        }
        self.pass(Duration::ZERO)
    }

    fn start(&mut self, number: usize) -> Result<(), Broken> {
        let count = self.machines.len();
        let machine = &mut self.machines[number];
        let life = Life {
            machine: number,
            number: machine.lives,
        };
        let nic = if machine.lives == 0 {
            self.stage.start(&machine.name)
        } else {
            self.stage.network.restart(&machine.name)
        };
        machine.lives += 1;
        let name = machine.name.clone();
        self.stage
            .note(|| format!("{name} starts, life {}", life.number));
        let setup = |error: VerbsError| (super::model::REFUSED, format!("no start: {error}"));
        self.machines[number].node =
            Some(Node::new(nic, life, count, self.beliefs).map_err(setup)?);
        Ok(())
    }

    /// The software of a machine without a NIC ends: everything must have an outcome by now.
    fn retire(&mut self, number: usize) -> Result<(), Broken> {
        self.machines[number].removed = false;
        if let Some(node) = &mut self.machines[number].node {
            // Whoever took the NIC out knows, though every event that says so may be lost.
            node.fabric.device_stopped();
        }
        self.take_events(number)?;
        let Some(mut node) = self.machines[number].node.take() else {
            return Ok(());
        };
        let open = self.model.open_of(node.life);
        if open > 0 {
            let detail = format!("{open} operations have no end although the NIC is gone");
            return Err((super::model::ONE_OUTCOME, detail));
        }
        node.check_all_quiet()?;
        // What a NIC that is gone refuses does not matter.
        let _ = node.end();
        self.stage.network.kill(&self.machines[number].name);
        self.model.died(node.life);
        Ok(())
    }
}
