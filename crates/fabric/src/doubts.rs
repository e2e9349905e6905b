//! Shared receives that queue pairs which are gone may have kept.

/// What a queue pair that is gone may have kept of its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It was never ready to receive.
    Nothing,
    /// The receive of a message that had come half way.
    One,
    All,
}

/// How many receives are in doubt. The doubt of a queue pair is settled when the completion queue was
/// seen empty after its end, and then one more receive has completed than there are queue pairs: one of
/// them has completed two, the second of which was taken after all that is in doubt. What was taken
/// before that one and has not completed is known to be missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doubts {
    /// Since the completion queue was last seen empty, or the others were settled.
    fresh: u32,
    settling: u32,
    /// Receives that have completed, ever.
    completed: u64,
    /// With so many, those that are settling are settled.
    settled_at: u64,
}

impl Doubts {
    pub(crate) const fn count(self) -> u32 {
        self.fresh + self.settling
    }

    /// A queue pair with this share is gone, and counts as having kept so many (P-93).
    pub(crate) const fn note(&mut self, kept: Kept, share: u32) {
        self.fresh += match kept {
            Kept::Nothing => 0,
            Kept::One => 1,
            Kept::All => share,
        };
    }

    /// Everything that has completed was seen, and there are so many queue pairs.
    pub(crate) const fn note_polled_empty(&mut self, users: usize) {
        if self.settling == 0 && self.fresh > 0 {
            self.settling = self.fresh;
            self.fresh = 0;
            self.settled_at = self.completed + users as u64 + 1;
        }
    }

    pub(crate) const fn note_completed(&mut self) {
        self.completed += 1;
        if self.completed >= self.settled_at {
            self.settling = 0;
        }
    }

    /// All receives are new.
    pub(crate) const fn forget(&mut self) {
        self.fresh = 0;
        self.settling = 0;
    }
}
