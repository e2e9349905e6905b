//! When the faults are over: everything works again, and nothing is left.

use super::super::Violation;
use super::model::{CANARY, Kind, LEAK, LIVENESS, RECLAIMED, Verdict};
use super::node::Peer;
use super::world::World;
use legato_base::{Duration, Time};
use legato_verbs::{Provider as _, ResourceCounts};

/// Virtual time in which every pair of machines must have done its work.
const RECOVERY_MAX: Duration = Duration::from_secs(200);
/// Calls, writes and reads that must succeed one after another.
const ROUNDS: u32 = 9;
/// So long nothing can be started on a connection, and its user gives it up.
const BLOCKED_MAX: Duration = Duration::from_secs(8);
/// Within this much time the end of a peer is found out. Longer than connection management asks a
/// peer that does not answer.
const RECLAIM_MAX: Duration = Duration::from_secs(100);
/// After this much time nothing of an ended connection is left: connection management has given
/// up asking a peer that does not answer.
const SETTLE: Duration = Duration::from_secs(300);

/// One machine's work on another.
#[derive(Clone, Copy, Debug)]
struct Pair {
    here: usize,
    there: usize,
    done: u32,
    /// The operation under way, in the model.
    waits: Option<Probe>,
    /// Since when nothing could be started.
    blocked: Time,
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    Call(usize),
    Operation(usize),
}

impl World {
    /// Heals everything, and has every machine do some work on every other.
    pub(super) fn recover(&mut self) -> Result<(), Violation> {
        self.stage.heal();
        self.all_awake()?;
        let begun = self.stage.now();
        let count = self.machines.len();
        let mut pairs: Vec<Pair> = (0..count * count)
            .map(|number| (number / count, number % count))
            .filter(|(here, there)| here != there)
            .map(|(here, there)| Pair {
                here,
                there,
                done: 0,
                waits: None,
                blocked: begun,
            })
            .collect();
        while pairs.iter().any(|pair| pair.done < ROUNDS) || self.model.open() > 0 {
            if self.stage.now().since(begun) > RECOVERY_MAX {
                return Err(self.stuck(&pairs));
            }
            for pair in &mut pairs {
                self.press_on(pair)?;
            }
            for machine in 0..count {
                let replied = self.reply_all(machine);
                replied.map_err(|broken| self.violation(broken, &[machine]))?;
            }
            self.pass(Duration::from_micros(200))?;
            // Nothing under way and nothing to do at once: let time pass.
            if pairs.iter().all(|pair| pair.waits.is_some()) {
                self.pass(Duration::from_millis(2))?;
            }
        }
        self.check_reclaimed()?;
        self.check_buffers()
    }

    /// No machine holds a queue pair for a connection whose other end is gone.
    fn check_reclaimed(&mut self) -> Result<(), Violation> {
        self.pass(RECLAIM_MAX)?;
        // One to each other machine, and one from each.
        let most = 2 * (self.machines.len() - 1);
        for (number, machine) in self.machines.iter().enumerate() {
            let Some(node) = &machine.node else { continue };
            let held = node.nic.resource_counts().queue_pairs;
            if held > most {
                let detail = format!(
                    "{} holds {held} queue pairs, of {most} in use",
                    machine.name
                );
                return Err(self.violation((RECLAIMED, detail), &[number]));
            }
        }
        Ok(())
    }

    fn stuck(&self, pairs: &[Pair]) -> Violation {
        let late = pairs.iter().find(|pair| pair.done < ROUNDS);
        match late {
            Some(pair) => {
                let (here, there) = (&self.machines[pair.here], &self.machines[pair.there]);
                let peer = here.node.as_ref().map(|node| node.peers[pair.there]);
                let receives = [here, there].map(|machine| {
                    let node = machine.node.as_ref();
                    node.and_then(|node| node.fabric.shared_receives())
                });
                let detail = format!(
                    "{} has done {} of {ROUNDS} on {} in {RECOVERY_MAX}: {peer:?}, {receives:?}",
                    here.name, pair.done, there.name
                );
                self.violation((LIVENESS, detail), &[pair.here, pair.there])
            }
            None => {
                let open = self.model.open();
                let detail = format!("{open} operations have no end after {RECOVERY_MAX}");
                self.violation((LIVENESS, detail), &[])
            }
        }
    }

    /// Starts a pair's next operation when the last has succeeded.
    fn press_on(&mut self, pair: &mut Pair) -> Result<(), Violation> {
        let (here, there) = (pair.here, pair.there);
        let verdict = match pair.waits {
            None => None,
            Some(Probe::Call(number)) => match self.model.calls[number].verdict {
                None => return Ok(()),
                verdict => verdict,
            },
            Some(Probe::Operation(number)) => match self.model.operations[number].verdict {
                None => return Ok(()),
                verdict => verdict,
            },
        };
        match verdict {
            Some(Verdict::Done) => pair.done += 1,
            Some(Verdict::NotExecuted | Verdict::Unknown) => pair.done = 0,
            None => {}
        }
        pair.waits = None;
        if pair.done >= ROUNDS {
            return Ok(());
        }
        let now = self.stage.now();
        let mut attempt = || {
            // A user whose call has failed, or who cannot start any, takes another connection.
            if verdict.is_some_and(|verdict| verdict != Verdict::Done)
                || now.since(pair.blocked) > BLOCKED_MAX
            {
                pair.blocked = now;
                self.close(here, there)?;
            }
            self.connect(here, there, now + Duration::from_secs(5))?;
            self.refresh(here, there)?;
            let (deadline, size) = (now + Duration::from_secs(5), u64::from(pair.done));
            Ok(match pair.done % 3 {
                0 => self.call(here, there, size, deadline)?.map(Probe::Call),
                1 => self
                    .write(here, there, size, deadline)?
                    .map(Probe::Operation),
                _ => self
                    .read(here, there, size, deadline)?
                    .map(Probe::Operation),
            })
        };
        let started = attempt();
        pair.waits = started.map_err(|broken| self.violation(broken, &[here, there]))?;
        if pair.waits.is_some() {
            pair.blocked = now;
        }
        Ok(())
    }

    /// A connection to an earlier life of the peer is of no use.
    fn refresh(&mut self, here: usize, there: usize) -> Result<(), super::model::Broken> {
        let current = self.machines[there].node.as_ref().map(|node| node.life);
        let peer = self.machines[here]
            .node
            .as_ref()
            .map(|node| node.peers[there]);
        match peer {
            Some(Peer::Up { life, .. }) if current != Some(life) => self.close(here, there),
            _ => Ok(()),
        }
    }

    /// Gives everything back and looks for what is left.
    pub(super) fn tear_down(&mut self) -> Result<(), Violation> {
        for (number, operation) in self.model.operations.iter().enumerate() {
            if operation.kind == Kind::Read {
                continue;
            }
            let checked = self.check_written(number);
            let target = operation.target.machine;
            checked.map_err(|broken| self.violation(broken, &[target]))?;
        }
        for number in 0..self.machines.len() {
            let Some(node) = self.machines[number].node.as_mut() else {
                continue;
            };
            if let Err(error) = node.end() {
                let detail = format!("it cannot be given back: {error}");
                return Err(self.violation((LEAK, detail), &[number]));
            }
        }
        let end = self.stage.after(SETTLE);
        while let Some(next) = self.stage.network.next_event_time()
            && next <= end
        {
            self.stage.network.advance_to(next);
            for machine in &mut self.machines {
                if let Some(node) = &mut machine.node {
                    node.nic.progress(next);
                    while node.nic.poll_event().is_some() {}
                }
            }
        }
        self.check_left_over()
    }

    fn check_left_over(&self) -> Result<(), Violation> {
        if let Some(next) = self.stage.network.next_event_time() {
            let detail = format!("something is still to happen at {next:?}");
            return Err(self.violation((LEAK, detail), &[]));
        }
        for (number, machine) in self.machines.iter().enumerate() {
            let Some(node) = &machine.node else { continue };
            let counts = node.nic.resource_counts();
            if counts != ResourceCounts::default() {
                let detail = format!("{counts:?}");
                return Err(self.violation((LEAK, detail), &[number]));
            }
            let counters = node.fabric.counters();
            if counters.operations_started != counters.operations_quiesced
                || counters.operations_quarantined > 0
            {
                let detail = format!("{counters:?}");
                return Err(self.violation((LEAK, detail), &[number]));
            }
        }
        match self.stage.network.check_canaries() {
            Ok(()) => Ok(()),
            Err(hit) => Err(self.violation((CANARY, format!("{hit:?}")), &[])),
        }
    }
}
