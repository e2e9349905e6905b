//! What one queue pair asks of its peer, request by request, and what memory must hold then.

use super::super::Violation;
use legato_base::{Random, Time};
use std::collections::VecDeque;

/// Bytes of a slot of the peer's memory, and of the buffer of a request.
pub(super) const SLOT: usize = 8192;
/// Slots for data. Before them are the counter and the word that is swapped.
pub(super) const SLOTS: usize = 8;
/// Where the slots begin.
pub(super) const DATA: usize = 64;
pub(super) const COUNTER: usize = 0;
pub(super) const WORD: usize = 8;
/// Of the memory that a peer gives.
pub(super) const MEMORY: usize = DATA + SLOT * SLOTS;

pub(super) const IN_ORDER: &str = "requests complete once and in the order of their posting";
pub(super) const MESSAGES: &str = "messages arrive once, whole and in order";
pub(super) const PREFIX: &str = "memory is what a prefix of the requests leaves";
pub(super) const READ: &str = "a read or an atomic brings what was there";
pub(super) const PROGRESS: &str = "requests complete when the faults are over";
pub(super) const REFUSED: &str = "a step is refused only for a reason";
pub(super) const LEAK: &str = "nothing is left over";
pub(super) const CANARY: &str = "no byte beside a region is touched";

/// An invariant and how it was broken.
pub(super) type Broken = (&'static str, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Send { length: usize },
    Write { slot: usize, length: usize },
    Read { slot: usize, length: usize },
    Add { by: u64 },
    Swap { compare: u64, swap: u64 },
}

#[derive(Debug)]
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) what: What,
    /// What must be in its buffer when it has completed.
    brings: Vec<u8>,
    pub(super) at: Time,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Flow {
    /// The peer's memory when everything that has completed is in it, and nothing else.
    certain: Vec<u8>,
    /// The same when everything that was posted is in it.
    planned: Vec<u8>,
    pub(super) outstanding: VecDeque<Posted>,
    pub(super) next: u64,
    /// Messages that the receiver must see, the oldest first: number and length.
    messages: VecDeque<(u64, usize)>,
    pub(super) completed: u64,
    pub(super) received: u64,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            certain: vec![0; MEMORY],
            planned: vec![0; MEMORY],
            outstanding: VecDeque::new(),
            next: 0,
            messages: VecDeque::new(),
            completed: 0,
            received: 0,
        }
    }

    /// Something to ask next. A slot that is being read is not written: a READ that is sent again
    /// is executed again, after what was posted behind it (IB spec 9.4.4).
    pub(super) fn draw(&self, random: &mut Random) -> What {
        let lengths = [1, 64, 256, 1000, 4096, 5000, SLOT];
        let length = lengths[random.below(lengths.len() as u64) as usize];
        let slot = random.below(SLOTS as u64) as usize;
        let by = 1 + random.below(1000);
        let guess = random.ratio(1, 4);
        let kind = random.below(6);
        let is_read = self
            .outstanding
            .iter()
            .any(|posted| matches!(posted.what, What::Read { slot: read, .. } if read == slot));
        match kind {
            0 | 1 => What::Send { length },
            2 if !is_read => What::Write { slot, length },
            2 | 3 => What::Read { slot, length },
            4 => What::Add { by },
            _ => {
                let held = word(&self.planned, WORD);
                What::Swap {
                    compare: if guess { held ^ 1 } else { held },
                    swap: held.wrapping_add(by),
                }
            }
        }
    }

    /// It was posted, and is executed after all before it.
    pub(super) fn posted(&mut self, what: What, at: Time) {
        let number = self.next;
        self.next += 1;
        let brings = match what {
            What::Send { length } => {
                self.messages.push_back((number, length));
                Vec::new()
            }
            What::Write { .. } => Vec::new(),
            What::Read { slot, length } => self.planned[place(slot)..][..length].to_vec(),
            What::Add { .. } => self.planned[COUNTER..][..8].to_vec(),
            What::Swap { .. } => self.planned[WORD..][..8].to_vec(),
        };
        apply(&mut self.planned, number, what, usize::MAX);
        self.outstanding.push_back(Posted {
            number,
            what,
            brings,
            at,
        });
    }

    /// A request has completed, and this is in its buffer.
    pub(super) fn completed(&mut self, number: u64, brought: &[u8]) -> Result<(), Broken> {
        let Some(posted) = self.outstanding.pop_front_if(|one| one.number == number) else {
            let oldest = self.outstanding.front().map(|one| one.number);
            let detail = format!("request {number} completes, {oldest:?} is the oldest");
            return Err((IN_ORDER, detail));
        };
        apply(&mut self.certain, number, posted.what, usize::MAX);
        self.completed += 1;
        if brought.get(..posted.brings.len()) != Some(&posted.brings[..]) {
            return Err((READ, format!("request {number}: {:?}", posted.what)));
        }
        // A message that was acknowledged has taken a receive.
        Ok(())
    }

    /// A message has arrived.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let Some((number, length)) = self.messages.pop_front() else {
            let detail = format!("{} bytes that nobody sent", bytes.len());
            return Err((MESSAGES, detail));
        };
        self.received += 1;
        if bytes != super::content(number, length) {
            return Err((MESSAGES, format!("message {number} is another or damaged")));
        }
        Ok(())
    }

    /// The connection has failed: what of the outstanding requests has reached the peer? Goes on
    /// from there.
    pub(super) fn resume(&mut self, found: &[u8]) -> Result<(), Broken> {
        let mut candidate = self.certain.clone();
        let mut fits = candidate == found;
        for posted in &self.outstanding {
            if fits {
                break;
            }
            fits = is_partly(&candidate, posted, found);
            apply(&mut candidate, posted.number, posted.what, usize::MAX);
            fits |= candidate == found;
        }
        if !fits {
            let place = (0..MEMORY).find(|&place| self.certain[place] != found[place]);
            let numbers: Vec<_> = self.outstanding.iter().map(|one| one.number).collect();
            let detail = format!("at {place:?}, with {numbers:?} not completed");
            return Err((PREFIX, detail));
        }
        self.certain.copy_from_slice(found);
        self.planned.copy_from_slice(found);
        self.outstanding.clear();
        self.messages.clear();
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.messages.is_empty()
    }

    /// What the peer's memory must hold when nothing is outstanding.
    pub(super) fn check(&self, found: &[u8]) -> Result<(), Broken> {
        match (0..MEMORY).find(|&place| self.planned[place] != found[place]) {
            None => Ok(()),
            Some(place) => Err((PREFIX, format!("at {place}, with nothing outstanding"))),
        }
    }

    /// Since when the oldest request waits.
    pub(super) fn waits_since(&self) -> Option<Time> {
        self.outstanding.front().map(|posted| posted.at)
    }
}

/// Some packets of a write have arrived, and not all.
fn is_partly(before: &[u8], posted: &Posted, found: &[u8]) -> bool {
    let What::Write { slot, length } = posted.what else {
        return false;
    };
    let mut candidate = before.to_vec();
    // Every MTU is a multiple of the least.
    (256..length).step_by(256).any(|arrived| {
        candidate.copy_from_slice(before);
        apply(&mut candidate, posted.number, posted.what, arrived);
        debug_assert!(place(slot) + arrived <= MEMORY);
        candidate == found
    })
}

/// Does to memory what a request does, or the first bytes of it.
fn apply(memory: &mut [u8], number: u64, what: What, most: usize) {
    match what {
        What::Send { .. } | What::Read { .. } => {}
        What::Write { slot, length } => {
            let length = length.min(most);
            let bytes = super::content(number, length);
            memory[place(slot)..][..length].copy_from_slice(&bytes);
        }
        What::Add { by } => {
            let sum = word(memory, COUNTER).wrapping_add(by);
            memory[COUNTER..][..8].copy_from_slice(&sum.to_le_bytes());
        }
        What::Swap { compare, swap } => {
            if word(memory, WORD) == compare {
                memory[WORD..][..8].copy_from_slice(&swap.to_le_bytes());
            }
        }
    }
}

pub(super) const fn place(slot: usize) -> usize {
    DATA + slot * SLOT
}

fn word(memory: &[u8], at: usize) -> u64 {
    memory[at..]
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first))
}

pub(super) fn violation(
    (invariant, detail): Broken,
    at: Time,
    step: u64,
    machines: &[&str],
) -> Violation {
    Violation {
        invariant,
        detail,
        at,
        step,
        machines: machines.iter().map(|&name| name.to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(requests: &[What]) -> Flow {
        let mut flow = Flow::new();
        for &what in requests {
            flow.posted(what, Time::ZERO);
        }
        flow
    }

    const WRITE: What = What::Write {
        slot: 1,
        length: 1000,
    };
    const ADD: What = What::Add { by: 5 };

    #[test]
    fn an_atomic_that_is_executed_twice_is_found() {
        let mut flow = flow(&[ADD]);
        let mut memory = vec![0; MEMORY];
        memory[0] = 10;
        assert_eq!(flow.resume(&memory).unwrap_err().0, PREFIX);
        memory[0] = 5;
        assert_eq!(flow.resume(&memory), Ok(()));
    }

    #[test]
    fn a_later_request_without_an_earlier_is_found_and_half_a_write_is_not() {
        let mut memory = vec![0; MEMORY];
        apply(&mut memory, 1, WRITE, usize::MAX);
        assert!(flow(&[ADD, WRITE]).resume(&memory).is_err());
        let mut memory = vec![0; MEMORY];
        apply(&mut memory, 0, ADD, usize::MAX);
        apply(&mut memory, 1, WRITE, 512);
        assert_eq!(flow(&[ADD, WRITE]).resume(&memory), Ok(()));
    }

    #[test]
    fn completions_out_of_order_or_with_wrong_bytes_are_found() {
        let mut flow = flow(&[ADD, ADD]);
        assert_eq!(flow.completed(1, &[]).unwrap_err().0, IN_ORDER);
        assert_eq!(flow.completed(0, &[0; 8]), Ok(()));
        assert_eq!(flow.completed(1, &[0; 8]).unwrap_err().0, READ);
    }

    #[test]
    fn messages_that_are_lost_or_doubled_are_found() {
        let send = What::Send { length: 64 };
        let first = super::super::content(0, 64);
        let mut doubled = flow(&[send]);
        assert_eq!(doubled.received(&first), Ok(()));
        assert_eq!(doubled.received(&first).unwrap_err().0, MESSAGES);
        let second = super::super::content(1, 64);
        assert_eq!(
            flow(&[send, send]).received(&second).unwrap_err().0,
            MESSAGES
        );
    }
}
