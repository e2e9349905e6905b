//! When the faults are over: everything completes, and nothing is left.

use super::model::{Broken, CANARY, LEAK, PROGRESS};
use super::world::{PAIRS, Pair, World};
use legato_base::Duration;
use legato_verbs::{Provider as _, ResourceCounts, VerbsError};

/// Virtual time in which everything must complete when the faults are over.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Requests that must then succeed on each connection, without a failure.
const AFTERWARDS: u64 = 20;

impl World {
    /// Everything completes, and then some more without any failure.
    pub(super) fn recover(&mut self) -> Result<(), Broken> {
        self.stage.heal();
        self.settle()?;
        let failures = self.failures;
        for _ in 0..AFTERWARDS {
            for number in 0..PAIRS {
                self.post(number, 0)?;
                self.post(number, 1)?;
            }
            self.pass(Duration::from_micros(100))?;
        }
        self.settle()?;
        if self.failures > failures && !self.lossy {
            let detail = format!("{} failures without faults", self.failures - failures);
            return Err((PROGRESS, detail));
        }
        for number in 0..PAIRS {
            for here in 0..2 {
                let found = self.memory(number, 1 - here)?;
                self.pairs[number].ends[here].flow.check(&found)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Broken> {
        let end = self.stage.after(RECOVERY_MAX);
        let idle = |pair: &Pair| !pair.broken && pair.ends.iter().all(|end| end.flow.is_idle());
        while !self.pairs.iter().all(idle) {
            if self.stage.now() > end {
                return Err((PROGRESS, format!("not within {RECOVERY_MAX}")));
            }
            self.pass(Duration::from_millis(1))?;
            self.mend()?;
        }
        Ok(())
    }

    pub(super) fn tear_down(&mut self) -> Result<(), Broken> {
        let left_over = |error: VerbsError| (LEAK, format!("it cannot be given back: {error}"));
        for pair in &self.pairs {
            for (side, end) in self.sides.iter_mut().zip(&pair.ends) {
                side.nic
                    .destroy_queue_pair(end.queue_pair)
                    .and_then(|()| side.nic.deregister_region(&end.memory))
                    .and_then(|()| side.nic.deregister_region(&end.buffers))
                    .map_err(left_over)?;
            }
        }
        for side in &mut self.sides {
            side.nic
                .destroy_completion_queue(side.queue)
                .and_then(|()| side.nic.destroy_protection_domain(side.domain))
                .map_err(left_over)?;
        }
        while let Some(next) = self.stage.network.next_event_time() {
            self.stage.network.advance_to(next);
        }
        for side in &self.sides {
            let counts = side.nic.resource_counts();
            if counts != ResourceCounts::default() {
                return Err((LEAK, format!("{} has {counts:?}", side.name)));
            }
        }
        let canaries = self.stage.network.check_canaries();
        canaries.map_err(|hit| (CANARY, format!("{hit:?}")))
    }
}
