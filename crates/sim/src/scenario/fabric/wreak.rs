//! What goes wrong, beside the rules that hold all the time.

use super::world::World;
use crate::fault::{Act, Link, Rule};
use legato_base::Duration;

impl World {
    /// What goes wrong in this step, by the plan. The network knows machines by the same numbers,
    /// because they are started in their order.
    pub(super) fn wreak(&mut self) {
        let plan = self.plan;
        if let Some((from, to)) = self.happens(plan.cut) {
            let time = self.fault_time();
            for (from, to) in [(from, to), (to, from)] {
                self.add_for(Rule::one_way_cut(Link { from, to }), time);
            }
        }
        if let Some((from, to)) = self.happens(plan.one_way) {
            let time = self.fault_time();
            self.add_for(Rule::one_way_cut(Link { from, to }), time);
        }
        if let Some((machine, _)) = self.happens(plan.blackhole) {
            let time = self.fault_time();
            let rule = Rule::blackhole(machine);
            self.add_for(rule, time);
        }
        if let Some((machine, _)) = self.happens(plan.freeze) {
            self.freeze(machine);
        }
        if let Some((machine, _)) = self.happens(plan.stop) {
            self.stop(machine);
        }
        if let Some((machine, _)) = self.happens(plan.kill) {
            self.kill(machine);
        }
        if let Some((machine, _)) = self.happens(plan.remove) {
            self.remove(machine);
        }
        if let Some((machine, _)) = self.happens(plan.port) {
            self.port_down(machine);
        }
    }

    /// Two machines, if this happens now. Draws the same whether or not it does.
    fn happens(&mut self, in_thousand: u64) -> Option<(usize, usize)> {
        let count = self.machines.len() as u64;
        let hit = self.chaos.below(1000) < in_thousand;
        let first = self.chaos.below(count) as usize;
        let other = self.chaos.below(count - 1) as usize;
        let other = if other >= first { other + 1 } else { other };
        hit.then_some((first, other))
    }

    fn fault_time(&mut self) -> Duration {
        let micros = [50, 1_000, 20_000, 150_000, 600_000, 2_000_000];
        let choice = self.chaos.below(micros.len() as u64) as usize;
        Duration::from_micros(micros[choice])
    }

    fn add_for(&mut self, rule: Rule, time: Duration) {
        let now = self.stage.now();
        self.stage.add(rule.between(now, now + time));
    }

    fn freeze(&mut self, number: usize) {
        let time = self.fault_time();
        let act = Act::Freeze(number);
        if self.stage.act(act) && self.machines[number].due.is_none() {
            self.stand_still(number, time);
            self.stage.network.freeze(&self.machines[number].name);
        }
    }

    /// As SIGSTOP does, where the NIC is hardware.
    fn stop(&mut self, number: usize) {
        // Also for longer than its peers believe in it.
        let longer = self.chaos.below(4) == 0;
        let time = match (longer, self.fault_time()) {
            (true, time) => self.plan.liveness.min(Duration::from_secs(20)) + time,
            (false, time) => time,
        };
        let act = Act::Stop(number);
        if self.stage.act(act) && self.machines[number].due.is_none() {
            self.stand_still(number, time);
        }
    }

    fn stand_still(&mut self, number: usize, time: Duration) {
        let now = self.stage.now();
        let machine = &mut self.machines[number];
        machine.still = Some(now);
        machine.due = Some(now + time);
    }

    fn kill(&mut self, number: usize) {
        let time = self.fault_time();
        let act = Act::Kill(number);
        let mortal = number < self.plan.mortal;
        if mortal && self.stage.act(act) && self.machines[number].due.is_none() {
            let machine = &mut self.machines[number];
            self.stage.network.kill(&machine.name);
            machine.due = Some(self.stage.network.now() + time);
            if let Some(node) = machine.node.take() {
                self.model.died(node.life);
            }
        }
    }

    /// The NIC goes; the software finds out, and is replaced later.
    fn remove(&mut self, number: usize) {
        let time = self.fault_time();
        let act = Act::RemoveDevice(number);
        if self.stage.act(act) && self.machines[number].due.is_none() {
            let machine = &mut self.machines[number];
            machine.removed = true;
            // Long enough for the fabric to give everything back.
            let reaction = Duration::from_secs(2);
            machine.due = Some(self.stage.network.now() + reaction + time);
            self.stage.network.remove_device(&machine.name);
        }
    }

    fn port_down(&mut self, number: usize) {
        let time = self.fault_time();
        let act = Act::PortDown(number);
        let machine = &mut self.machines[number];
        if self.stage.act(act) && machine.node.is_some() && machine.port_due.is_none() {
            machine.port_due = Some(self.stage.network.now() + time);
            self.stage.network.set_link(&machine.name, false);
        }
    }
}
