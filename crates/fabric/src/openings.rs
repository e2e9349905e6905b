//! The first messages of handshakes that were answered. Whoever has recorded one can send it again, and knows
//! no more of the secret than anybody: it is not answered twice.

use alloc::collections::{BTreeSet, VecDeque};
use legato_base::secret::OPENING_LENGTH;

type Opening = [u8; OPENING_LENGTH];

/// So many are remembered, 150 bytes each. Only who knows the secret can make one, so others cannot fill it;
/// for whoever has recorded more there is the time limit (P-79).
const REMEMBERED: usize = 1024;

/// Those that were answered last.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    known: BTreeSet<Opening>,
    /// The same, oldest first.
    order: VecDeque<Opening>,
}

impl Openings {
    /// False if it was answered before (P-100).
    pub(crate) fn note(&mut self, opening: &Opening) -> bool {
        if !self.known.insert(*opening) {
            return false;
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(*opening);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(number: usize) -> Opening {
        let mut opening = [7; OPENING_LENGTH];
        opening[..8].copy_from_slice(&(number as u64).to_le_bytes());
        opening
    }

    // P-100
    #[test]
    fn the_last_ones_are_remembered_and_no_more() {
        let mut openings = Openings::default();
        for number in 0..3 * REMEMBERED {
            assert!(openings.note(&opening(number)));
            let oldest = number.saturating_sub(REMEMBERED - 1);
            assert!(!openings.note(&opening(oldest)), "{number}");
        }
        assert_eq!(openings.known.len(), REMEMBERED);
        assert_eq!(openings.order.len(), REMEMBERED);
        assert!(openings.note(&opening(0)), "long ago");
    }
}
