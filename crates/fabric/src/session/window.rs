//! What a server remembers of one client's calls, so that none is executed twice.
//!
//! A call below the floor is never executed: it may have been. A call from the floor on that has
//! no entry was never executed, because an entry only goes when the floor passes it.

use crate::RequestId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Window {
    floor: u64,
    /// By sequence.
    entries: BTreeMap<u64, Entry>,
    /// How many of them are not executed to the end.
    executing: usize,
    /// When the client was last heard, in requests of all clients.
    pub(super) heard: u64,
}

/// A call that was delivered to the server's owner.
#[derive(Debug)]
enum Entry {
    /// Those that get the reply: one of each connection that the call came on.
    Executing {
        waiting: Vec<RequestId>,
    },
    Done {
        reply: Vec<u8>,
    },
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Execute,
    /// It is being executed; this one gets the reply too.
    Wait,
    /// It was executed, with this reply.
    Repeat(Vec<u8>),
    /// It may have been executed.
    Forgotten,
    /// Too many are being executed.
    Busy,
}

impl Window {
    pub(super) const fn starting_at(floor: u64) -> Self {
        Self {
            floor,
            entries: BTreeMap::new(),
            executing: 0,
            heard: 0,
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.executing == 0
    }

    /// The client waits for no call below.
    pub(super) fn raise_floor(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        self.entries.retain(|&sequence, entry| {
            sequence >= floor || matches!(entry, Entry::Executing { .. })
        });
    }

    /// A request has come, and `still_waits` says which of the earlier ones still wait.
    pub(super) fn receive(
        &mut self,
        sequence: u64,
        request: RequestId,
        executing_max: usize,
        still_waits: impl Fn(RequestId) -> bool,
    ) -> Verdict {
        match self.entries.get_mut(&sequence) {
            Some(Entry::Executing { waiting }) => {
                waiting.retain(|&earlier| still_waits(earlier));
                waiting.push(request);
                Verdict::Wait
            }
            Some(Entry::Done { reply }) => Verdict::Repeat(reply.clone()),
            // P-65: it may have been executed.
            None if sequence < self.floor => Verdict::Forgotten,
            None if self.executing >= executing_max => Verdict::Busy,
            None => {
                let waiting = vec![request];
                self.entries.insert(sequence, Entry::Executing { waiting });
                self.executing += 1;
                Verdict::Execute
            }
        }
    }

    /// Who waits for the reply of a call that is being executed.
    pub(super) fn waiting(&self, sequence: u64) -> Option<&[RequestId]> {
        match self.entries.get(&sequence) {
            Some(Entry::Executing { waiting }) => Some(waiting),
            _ => None,
        }
    }

    /// A call was executed. Of such calls the last `kept` are remembered (P-64).
    pub(super) fn finish(&mut self, sequence: u64, reply: Vec<u8>, kept: usize) {
        if self.remove_executing(sequence) && sequence >= self.floor {
            self.entries.insert(sequence, Entry::Done { reply });
        }
        while self.entries.len() - self.executing > kept.max(1) {
            let done = |entry: &Entry| matches!(entry, Entry::Done { .. });
            let oldest = self.entries.iter().find(|(_, entry)| done(entry));
            let Some((&oldest, _)) = oldest else {
                return;
            };
            self.raise_floor(oldest.saturating_add(1));
        }
    }

    /// A call will not be executed. If it comes again it is a new one.
    pub(super) fn abandon(&mut self, sequence: u64) {
        self.remove_executing(sequence);
    }

    fn remove_executing(&mut self, sequence: u64) -> bool {
        if self.waiting(sequence).is_none() {
            return false;
        }
        self.entries.remove(&sequence);
        self.executing -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Key, Kind, Token};
    use legato_base::Random;
    use std::collections::BTreeSet;

    fn request(generation: u32) -> RequestId {
        let key = Key {
            index: 0,
            generation,
        };
        RequestId(Token::new(Kind::Request, 0, key))
    }

    fn receive(window: &mut Window, sequence: u64) -> Verdict {
        window.receive(sequence, request(1), 4, |_| true)
    }

    #[test]
    fn a_duplicate_waits_for_the_one_execution_and_then_gets_its_reply() {
        let mut window = Window::starting_at(0);
        assert_eq!(receive(&mut window, 7), Verdict::Execute);
        let again = window.receive(7, request(2), 4, |_| true);
        assert_eq!(again, Verdict::Wait);
        // The connection of the first two has ended.
        let again = window.receive(7, request(3), 4, |_| false);
        assert_eq!(again, Verdict::Wait);
        assert_eq!(window.waiting(7), Some(&[request(3)][..]));
        window.finish(7, b"done".to_vec(), 2);
        assert_eq!(receive(&mut window, 7), Verdict::Repeat(b"done".to_vec()));
        assert_eq!(window.waiting(7), None);
    }

    /// L-24.
    #[test]
    fn what_has_left_the_window_is_forgotten_and_never_executed_again() {
        let mut window = Window::starting_at(0);
        for sequence in 1..=4 {
            assert_eq!(receive(&mut window, sequence), Verdict::Execute);
        }
        assert_eq!(receive(&mut window, 5), Verdict::Busy);
        for sequence in [2, 3, 4] {
            window.finish(sequence, std::vec![], 2);
        }
        assert_eq!(receive(&mut window, 2), Verdict::Forgotten);
        // Below the floor, and still known, because it is not done.
        assert_eq!(receive(&mut window, 1), Verdict::Wait);
        window.finish(1, std::vec![], 2);
        assert_eq!(receive(&mut window, 1), Verdict::Forgotten);
        assert_eq!(receive(&mut window, 3), Verdict::Repeat(std::vec![]));
        window.raise_floor(5);
        assert_eq!(receive(&mut window, 4), Verdict::Forgotten);
        assert_eq!(receive(&mut window, 5), Verdict::Execute);
    }

    #[test]
    fn what_was_abandoned_unexecuted_may_be_executed_when_it_comes_again() {
        let mut window = Window::starting_at(0);
        assert_eq!(receive(&mut window, 1), Verdict::Execute);
        window.abandon(1);
        assert!(window.is_idle());
        assert_eq!(receive(&mut window, 1), Verdict::Execute);
    }

    /// Whatever comes in whatever order: nothing is executed twice, and the table stays small.
    #[test]
    fn random_histories_execute_nothing_twice() {
        for seed in 0..200 {
            let mut random = Random::from_seed(seed);
            let mut window = Window::starting_at(0);
            let (mut executed, mut executing) = (BTreeSet::new(), Vec::new());
            for _ in 0..500 {
                let last = random.ratio(1, 10);
                let sequence = 1 + random.below(60) + if last { u64::MAX - 60 } else { 0 };
                match random.below(10) {
                    0 => window.raise_floor(random.below(40)),
                    9 if random.ratio(1, 100) => window.raise_floor(u64::MAX),
                    1..6 => {
                        if receive(&mut window, sequence) == Verdict::Execute {
                            assert!(executed.insert(sequence), "seed {seed}");
                            executing.push(sequence);
                        }
                    }
                    _ if executing.is_empty() => {}
                    _ => {
                        let choice = random.below(executing.len() as u64) as usize;
                        window.finish(executing.swap_remove(choice), Vec::new(), 3);
                    }
                }
                assert!(window.entries.len() <= 4 + 3);
                assert_eq!(window.executing, executing.len());
            }
        }
    }
}
