//! Two machines and the connections between them.

use super::super::stage::Stage;
use super::super::{Options, Outcome, Scenario, Violation};
use super::ends::{End, Name, Path, Side, WINDOW, receive_offset, send_offset};
use super::model::{Broken, IN_ORDER, MEMORY, MESSAGES, PROGRESS, REFUSED, SLOT, violation};
use crate::fault::Rule;
use crate::provider::SimNetworkConfig;
use legato_base::{Duration, Random, Time};
use legato_verbs::{
    Completion, CompletionKind, PathMtu, Provider as _, QueuePairAttributes, QueuePairState,
    VerbsError,
};

pub(super) const PAIRS: usize = 2;
const NAMES: [&str; 2] = ["left", "right"];
/// A request that waits for longer has lost its completion, or its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// No packet is under way any more.
const QUIET: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) sides: [Side; 2],
    pub(super) pairs: Vec<Pair>,
    step: u64,
    pub(super) failures: u64,
    /// The device loses completions, so a request that never ends is no failure of the transport.
    pub(super) lossy: bool,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    path: Path,
    epoch: u16,
    pub(super) broken: bool,
}

pub(super) fn run(
    scenario: &Scenario,
    rules: fn(&mut Random) -> Vec<Rule>,
    options: &Options,
) -> Outcome {
    let mut stage = Stage::new(scenario, options, SimNetworkConfig::default(), |nic| nic);
    let mut chaos = stage.random.fork();
    let sides = NAMES.map(|name| (name, stage.start(name)));
    let [left, right] = sides.map(|(name, nic)| Side::new(name, nic, PAIRS));
    let (left, right) = match (left, right) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(error), _) | (_, Err(error)) => {
            let broken = (REFUSED, error.to_string());
            return stage.outcome(Vec::new(), Some(violation(broken, Time::ZERO, 0, &NAMES)));
        }
    };
    for rule in rules(&mut chaos) {
        stage.add(rule);
    }
    let mut world = World {
        lossy: stage.personality.careless.is_some(),
        stage,
        sides: [left, right],
        pairs: Vec::new(),
        step: 0,
        failures: 0,
    };
    let violation = world.run(options.steps).err();
    let violation = violation.map(|broken| world.violation(broken));
    let flows = || world.pairs.iter().flat_map(|pair| &pair.ends);
    let counts = vec![
        (
            "requests",
            flows().map(|end| end.flow.completed).sum::<u64>(),
        ),
        ("messages", flows().map(|end| end.flow.received).sum()),
        ("failures", world.failures),
    ];
    world.stage.outcome(counts, violation)
}

impl World {
    fn violation(&self, broken: Broken) -> Violation {
        violation(broken, self.stage.now(), self.step, &NAMES)
    }

    fn run(&mut self, steps: u64) -> Result<(), Broken> {
        for pair in 0..PAIRS {
            let opened = self.open();
            opened.map_err(refused)?;
            self.connect(pair).map_err(refused)?;
        }
        while self.step < steps {
            self.step += 1;
            for _ in 0..=self.stage.random.below(6) {
                let pair = self.stage.random.below(PAIRS as u64) as usize;
                let side = self.stage.random.below(2) as usize;
                self.post(pair, side)?;
            }
            let micros = [1, 3, 10, 10, 50, 200, 5_000];
            let choice = self.stage.random.below(micros.len() as u64) as usize;
            self.pass(Duration::from_micros(micros[choice]))?;
            self.mend()?;
        }
        self.recover()?;
        self.tear_down()
    }

    fn open(&mut self) -> Result<(), VerbsError> {
        let random = &mut self.stage.random;
        let mtus = [
            PathMtu::Bytes256,
            PathMtu::Bytes1024,
            PathMtu::Bytes2048,
            PathMtu::Bytes4096,
        ];
        let path = Path {
            mtu: mtus[random.below(4) as usize],
            // 0.26 to 2.1 ms.
            timeout: 6 + random.below(4) as u8,
        };
        let [left, right] = &mut self.sides;
        self.pairs.push(Pair {
            ends: [left.open()?, right.open()?],
            path,
            epoch: 0,
            broken: false,
        });
        Ok(())
    }

    fn connect(&mut self, number: usize) -> Result<(), VerbsError> {
        let pair = &mut self.pairs[number];
        pair.epoch += 1;
        pair.broken = false;
        for (side, end) in self.sides.iter_mut().zip(&mut pair.ends) {
            side.prepare(end, number, pair.epoch, &mut self.stage.random)?;
        }
        for here in 0..2 {
            let (near, far) = (&pair.ends[here], &pair.ends[1 - here]);
            let peer = (
                self.sides[1 - here].nic.port_address(),
                self.sides[1 - here].nic.queue_pair_number(far.queue_pair)?,
                far.sequence,
            );
            self.sides[here].connect(near, pair.path, peer)?;
        }
        Ok(())
    }

    pub(super) fn post(&mut self, number: usize, here: usize) -> Result<(), Broken> {
        let pair = &mut self.pairs[number];
        let (epoch, broken) = (pair.epoch, pair.broken);
        let peer = pair.ends[1 - here].memory;
        let end = &mut pair.ends[here];
        // Drawn in any case.
        let what = end.flow.draw(&mut self.stage.random);
        if broken || end.flow.outstanding.len() as u64 >= WINDOW {
            return Ok(());
        }
        let name = Name {
            is_receive: false,
            pair: number,
            epoch,
            number: end.flow.next,
        };
        match self.sides[here].post(end, &peer, name, what) {
            Ok(()) => {
                let now = self.stage.network.now();
                self.stage
                    .note(|| format!("{} posts {what:?}, number {}", NAMES[here], name.number));
                end.flow.posted(what, now);
                Ok(())
            }
            // It has failed, and the completion that says so is still to be polled.
            Err(VerbsError::InvalidState(_)) => {
                pair.broken = true;
                Ok(())
            }
            // The slot of a request whose completion is lost is never free.
            Err(VerbsError::QueueFull(_)) if self.lossy => {
                pair.broken = true;
                Ok(())
            }
            Err(error) => Err((REFUSED, format!("a post is refused: {error}"))),
        }
    }

    pub(super) fn pass(&mut self, time: Duration) -> Result<(), Broken> {
        let end = self.stage.after(time);
        loop {
            let progressed = self.poll()?;
            let now = self.stage.now();
            if progressed {
                continue;
            }
            if now >= end {
                return Ok(());
            }
            let next = self.stage.network.next_event_time().unwrap_or(end);
            self.stage.network.advance_to(next.max(now).min(end));
        }
    }

    /// Polls both machines. True if anything came.
    fn poll(&mut self) -> Result<bool, Broken> {
        let now = self.stage.now();
        let mut any = false;
        for here in 0..2 {
            let side = &mut self.sides[here];
            side.nic.progress(now);
            // What events say, completions and states say too.
            while side.nic.poll_event().is_some() {}
            let mut batch = Vec::new();
            let polled = side.nic.poll_completion_queue(side.queue, 64, &mut batch);
            polled.map_err(refused)?;
            any |= !batch.is_empty();
            for completion in &batch {
                self.complete(here, completion)?;
            }
        }
        Ok(any)
    }

    fn complete(&mut self, here: usize, completion: &Completion) -> Result<(), Broken> {
        let name = Name::of(completion.wr_id);
        let Some(pair) = self.pairs.get_mut(name.pair) else {
            return Err((IN_ORDER, format!("a completion of nothing: {completion:?}")));
        };
        // Left over from before the queue pair was reset.
        if name.epoch != pair.epoch {
            return Ok(());
        }
        let side = &mut self.sides[here];
        let kind = match completion.result {
            Ok(kind) => kind,
            Err(status) => {
                if !pair.broken {
                    self.stage
                        .note(|| format!("{}: {name:?} fails: {status}", NAMES[here]));
                }
                pair.broken = true;
                return Ok(());
            }
        };
        if !name.is_receive {
            let end = &mut pair.ends[here];
            let brought = side.read(&end.buffers, send_offset(name.number), SLOT)?;
            return match end.flow.completed(name.number, &brought) {
                // The one before it has lost its completion.
                Err((IN_ORDER, _)) if self.lossy => {
                    pair.broken = true;
                    Ok(())
                }
                completed => completed,
            };
        }
        let CompletionKind::Receive { length } = kind else {
            return Err((MESSAGES, format!("a receive completes as {kind:?}")));
        };
        let [left, right] = &mut pair.ends;
        let (near, far) = if here == 0 {
            (left, right)
        } else {
            (right, left)
        };
        if name.number != near.taken {
            let detail = format!("receive {} completes, not {}", name.number, near.taken);
            return Err((IN_ORDER, detail));
        }
        near.taken += 1;
        let offset = receive_offset(name.number);
        let bytes = side.read(&near.buffers, offset, length as usize)?;
        far.flow.received(&bytes)?;
        // In the error state it is flushed; anything else is found out by the sender.
        let _ = side.post_receive(near, name.pair, pair.epoch);
        Ok(())
    }

    /// Connects again what has failed.
    pub(super) fn mend(&mut self) -> Result<(), Broken> {
        let now = self.stage.now();
        for number in 0..self.pairs.len() {
            let stuck = |end: &End| {
                let since = end.flow.waits_since();
                since.is_some_and(|since| now.since(since) > PATIENCE)
            };
            let pair = &mut self.pairs[number];
            if pair.ends.iter().any(stuck) {
                if !self.lossy {
                    let detail = format!("one on connection {number} does not end");
                    return Err((PROGRESS, detail));
                }
                pair.broken = true;
            }
            if pair.broken {
                self.connect_again(number)?;
            }
        }
        Ok(())
    }

    fn connect_again(&mut self, number: usize) -> Result<(), Broken> {
        self.failures += 1;
        for (side, end) in self.sides.iter_mut().zip(&self.pairs[number].ends) {
            // Some devices refuse; the reset below does not.
            let _ = side.nic.modify_to_error(end.queue_pair);
        }
        self.pass(QUIET)?;
        for (side, end) in self.sides.iter_mut().zip(&self.pairs[number].ends) {
            let reset = side.nic.modify_queue_pair(
                end.queue_pair,
                QueuePairState::Reset,
                &QueuePairAttributes::NONE,
            );
            reset.map_err(refused)?;
        }
        self.pass(QUIET)?;
        for here in 0..2 {
            let there = 1 - here;
            let found = self.memory(number, there)?;
            self.pairs[number].ends[here].flow.resume(&found)?;
        }
        self.stage
            .note(|| format!("connection {number} is made again"));
        self.connect(number).map_err(refused)
    }

    pub(super) fn memory(&self, number: usize, side: usize) -> Result<Vec<u8>, Broken> {
        let memory = &self.pairs[number].ends[side].memory;
        self.sides[side].read(memory, 0, MEMORY)
    }
}

pub(super) fn refused(error: VerbsError) -> Broken {
    (REFUSED, error.to_string())
}
