//! A running hash of everything that happened: two histories are equal if their hashes are.

use legato_base::Time;

/// FNV-1a over 64-bit words (Fowler, Noll, Vo), with a shift so that high bits matter below too.
#[derive(Debug)]
pub(super) struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Trace {
    pub(super) fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    /// Something of kind `kind` (a number of its own for each place in the code) happened on `machine` at `time`.
    pub(super) fn at(&mut self, time: Time, kind: u64, machine: usize) {
        self.word(time.as_nanos());
        self.word(kind << 32 | machine as u64);
    }

    pub(super) const fn value(&self) -> u64 {
        self.0
    }
}
