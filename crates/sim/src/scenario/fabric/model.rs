//! What the fabric may do: calls and one-sided operations, each with what is known about it.

use super::super::Violation;
use legato_base::{Duration, Time};
use legato_fabric::{CallId, Effect, OperationError, OperationId};
use std::collections::BTreeMap;

/// A machine in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life {
    pub(super) machine: usize,
    pub(super) number: u64,
}

/// What was said about the far side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    NotExecuted,
    Unknown,
}

/// When there has to be an outcome: at the deadline, or later where the caller stood still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    deadline: Time,
    longest: Duration,
}

impl Due {
    pub(super) const fn at(deadline: Time) -> Self {
        Self {
            deadline,
            longest: Duration::ZERO,
        }
    }

    fn stood_still(&mut self, time: Duration) {
        self.longest = self.longest.max(time);
    }

    fn is_over(self, now: Time) -> bool {
        self.deadline + self.longest < now
    }
}

#[derive(Debug)]
pub(super) struct CallModel {
    pub(super) due: Due,
    pub(super) executed: u32,
    pub(super) verdict: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

#[derive(Debug)]
pub(super) struct OperationModel {
    pub(super) caller: Life,
    pub(super) target: Life,
    pub(super) kind: Kind,
    /// In the target's exported memory.
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The buffer.
    pub(super) piece: usize,
    pub(super) due: Due,
    pub(super) verdict: Option<Verdict>,
    pub(super) quiesced: bool,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) calls: Vec<CallModel>,
    pub(super) operations: Vec<OperationModel>,
    open_calls: BTreeMap<(Life, CallId), usize>,
    open_operations: BTreeMap<(Life, OperationId), usize>,
}

/// An invariant and how it was broken; who finds it adds when and where.
pub(super) type Broken = (&'static str, String);

pub(super) const ONE_OUTCOME: &str =
    "each operation has one outcome, and is quiesced once after it";
pub(super) const ONCE: &str = "a request is executed at most once";
pub(super) const NOT_EXECUTED: &str = "what is said not to be executed is not executed";
pub(super) const DONE: &str = "what is said to be done is done";
pub(super) const BYTES: &str = "memory and messages hold what was written";
pub(super) const QUIET: &str = "a returned buffer is not touched";
pub(super) const IN_TIME: &str = "an outcome comes in time";
pub(super) const LIVENESS: &str = "everything works again when the faults are over";
pub(super) const LEAK: &str = "nothing is left over";
pub(super) const RECLAIMED: &str = "what a dead peer held is given back";
pub(super) const CANARY: &str = "no byte beside a region is touched";
pub(super) const REST: &str = "the world comes to rest";
pub(super) const REFUSED: &str = "a refusal has a reason";

impl Verdict {
    pub(super) fn of<T>(outcome: &Result<T, OperationError>) -> Self {
        match outcome {
            Ok(_)
            | Err(OperationError {
                effect: Effect::Executed,
                ..
            }) => Self::Done,
            Err(OperationError {
                effect: Effect::NotExecuted,
                ..
            }) => Self::NotExecuted,
            Err(_) => Self::Unknown,
        }
    }
}

impl Model {
    pub(super) fn started_call(&mut self, caller: Life, id: CallId, deadline: Time) -> usize {
        let number = self.calls.len();
        self.calls.push(CallModel {
            due: Due::at(deadline),
            executed: 0,
            verdict: None,
        });
        self.open_calls.insert((caller, id), number);
        number
    }

    /// The number that the next call will have.
    pub(super) fn next_call(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn next_operation(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn executed(&mut self, number: u64) -> Result<(), Broken> {
        let Some(call) = self.calls.get_mut(number as usize) else {
            return Err((BYTES, format!("request {number}, which nobody made")));
        };
        call.executed += 1;
        if call.executed > 1 {
            return Err((ONCE, format!("request {number} comes again")));
        }
        if call.verdict == Some(Verdict::NotExecuted) {
            return Err((NOT_EXECUTED, format!("request {number} comes late")));
        }
        Ok(())
    }

    /// A call has ended. Returns its number.
    pub(super) fn replied<T>(
        &mut self,
        caller: Life,
        id: CallId,
        outcome: &Result<T, OperationError>,
    ) -> Result<usize, Broken> {
        let Some(number) = self.open_calls.remove(&(caller, id)) else {
            return Err((ONE_OUTCOME, format!("{id:?} ends, and is not open")));
        };
        let call = &mut self.calls[number];
        let verdict = Verdict::of(outcome);
        call.verdict = Some(verdict);
        match (verdict, call.executed) {
            (Verdict::Done, 0) => Err((DONE, format!("request {number} was never executed"))),
            (Verdict::NotExecuted, 1..) => {
                Err((NOT_EXECUTED, format!("request {number} was executed")))
            }
            _ => Ok(number),
        }
    }

    pub(super) fn started(&mut self, id: OperationId, operation: OperationModel) -> usize {
        let number = self.operations.len();
        self.open_operations.insert((operation.caller, id), number);
        self.operations.push(operation);
        number
    }

    /// An operation has its outcome. Returns its number.
    pub(super) fn decided(
        &mut self,
        caller: Life,
        id: OperationId,
        outcome: &Result<(), OperationError>,
    ) -> Result<usize, Broken> {
        let Some(&number) = self.open_operations.get(&(caller, id)) else {
            return Err((ONE_OUTCOME, format!("{id:?} ends, and is not open")));
        };
        let operation = &mut self.operations[number];
        if operation.verdict.is_some() {
            let again = format!("operation {number} has a second outcome: {outcome:?}");
            return Err((ONE_OUTCOME, again));
        }
        operation.verdict = Some(Verdict::of(outcome));
        Ok(number)
    }

    /// An operation's buffer comes back.
    pub(super) fn quiesced(
        &mut self,
        caller: Life,
        id: OperationId,
        piece: usize,
    ) -> Result<usize, Broken> {
        let Some(number) = self.open_operations.remove(&(caller, id)) else {
            return Err((ONE_OUTCOME, format!("{id:?} is quiesced, and is not open")));
        };
        let operation = &mut self.operations[number];
        operation.quiesced = true;
        if operation.verdict.is_none() {
            let early = format!("operation {number} is quiesced before its outcome");
            return Err((ONE_OUTCOME, early));
        }
        if operation.piece != piece {
            let other = format!("operation {number} gives piece {piece} back");
            return Err((ONE_OUTCOME, other));
        }
        Ok(number)
    }

    /// The life is over: nothing that it waited for comes any more.
    pub(super) fn died(&mut self, life: Life) {
        self.open_calls.retain(|(caller, _), _| *caller != life);
        self.open_operations
            .retain(|(caller, _), _| *caller != life);
    }

    pub(super) fn open(&self) -> usize {
        self.open_calls.len() + self.open_operations.len()
    }

    pub(super) fn open_of(&self, life: Life) -> usize {
        of(life, &self.open_calls).count() + of(life, &self.open_operations).count()
    }

    /// Outcomes of the life may come so much later, but not by the sum of such times.
    pub(super) fn forgive(&mut self, life: Life, time: Duration) {
        for number in of(life, &self.open_calls) {
            self.calls[number].due.stood_still(time);
        }
        for number in of(life, &self.open_operations) {
            self.operations[number].due.stood_still(time);
        }
    }

    /// Something of a life that should have an outcome by now.
    pub(super) fn overdue(&self, life: Life, now: Time) -> Result<(), Broken> {
        for number in of(life, &self.open_calls) {
            if self.calls[number].due.is_over(now) {
                return Err((IN_TIME, format!("call {number} is overdue")));
            }
        }
        for number in of(life, &self.open_operations) {
            let operation = &self.operations[number];
            if operation.verdict.is_none() && operation.due.is_over(now) {
                return Err((IN_TIME, format!("operation {number} is overdue")));
            }
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |verdict| {
            let calls = self.calls.iter().map(|call| call.verdict);
            let operations = self.operations.iter().map(|one| one.verdict);
            let all = calls.chain(operations);
            all.filter(|&one| one == Some(verdict)).count() as u64
        };
        vec![
            ("calls", self.calls.len() as u64),
            ("reads and writes", self.operations.len() as u64),
            ("done", count(Verdict::Done)),
            ("not executed", count(Verdict::NotExecuted)),
            ("unknown", count(Verdict::Unknown)),
        ]
    }
}

/// The numbers of what a life has under way.
fn of<T>(life: Life, open: &BTreeMap<(Life, T), usize>) -> impl Iterator<Item = usize> {
    let its = open.iter().filter(move |(key, _)| key.0 == life);
    its.map(|(_, &number)| number)
}

/// Byte `place` of what operation or request `number` carries: never 0, so that what was never
/// written is told apart.
pub(super) fn byte(number: u64, place: u64) -> u8 {
    let word = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (place >> 3).wrapping_mul(0xD1B5);
    let mixed = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> (8 * (place & 7))) as u8 | 1
}

pub(super) fn bytes(number: u64, length: u32) -> Vec<u8> {
    (0..u64::from(length))
        .map(|place| byte(number, place))
        .collect()
}

/// What a request says, and what its answer says.
pub(super) fn request(number: u64, length: u32) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.extend(bytes(number, length));
    body
}

pub(super) fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| byte ^ 0x5A).collect()
}

pub(super) fn violation(
    (invariant, detail): Broken,
    at: Time,
    step: u64,
    machines: Vec<String>,
) -> Violation {
    Violation {
        invariant,
        detail,
        at,
        step,
        machines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_zero_and_numbers_differ() {
        assert!(bytes(3, 5000).iter().all(|&byte| byte != 0));
        assert_ne!(bytes(3, 64), bytes(4, 64));
    }

    #[test]
    fn a_request_that_comes_twice_is_found() {
        let mut model = Model {
            calls: vec![CallModel {
                due: Due::at(Time::NEVER),
                executed: 0,
                verdict: Some(Verdict::Unknown),
            }],
            ..Model::default()
        };
        assert_eq!(model.executed(0), Ok(()));
        assert_eq!(model.executed(0).unwrap_err().0, ONCE);
        assert_eq!(model.executed(1).unwrap_err().0, BYTES);
    }
}
