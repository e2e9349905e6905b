//! What a fuzzer has reached: one that reaches nothing says nothing.

/// What becomes of a packet that is given to a queue pair, or of one that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Executed,
    /// A receive completed.
    Received,
    ReadAnswered,
    AtomicAnswered,
    /// What came again was answered again.
    AnsweredAgain,
    OutOfSequenceTold,
    NoReceiveTold,
    /// Bytes of a READ or of an atomic were put where they belong.
    AnswerTaken,
    /// A request completed well.
    Completed,
    /// An answer changed nothing.
    AnswerDropped,
    SentAgain,
    /// A peer's packet ended the queue pair.
    EndedByPeer,
    /// One in a state in which nothing is taken.
    Ignored,
    /// All that was posted completed when its peer kept to the rules again.
    Healed,
}

const ALL: [Outcome; 14] = [
    Outcome::Executed,
    Outcome::Received,
    Outcome::ReadAnswered,
    Outcome::AtomicAnswered,
    Outcome::AnsweredAgain,
    Outcome::OutOfSequenceTold,
    Outcome::NoReceiveTold,
    Outcome::AnswerTaken,
    Outcome::Completed,
    Outcome::AnswerDropped,
    Outcome::SentAgain,
    Outcome::EndedByPeer,
    Outcome::Ignored,
    Outcome::Healed,
];

/// How often each was reached.
#[derive(Default)]
pub(super) struct Outcomes([u64; ALL.len()]);

impl Outcomes {
    pub(super) const fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    pub(super) const fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Each was reached more often than so.
    pub(super) fn assert_all_above(&self, least: u64, what: &str) {
        for outcome in ALL {
            let count = self.of(outcome);
            assert!(count > least, "{what}: {outcome:?} {count} times");
        }
    }
}

impl core::fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let counts = ALL.map(|outcome| (outcome, self.of(outcome)));
        f.debug_map().entries(counts).finish()
    }
}
