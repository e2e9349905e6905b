//! The secret that memory nodes and those who use them share, and what follows from it.
//!
//! The secret itself stays with the node and with whoever starts a run. A run gets a key of its own,
//! derived from the secret and the run's number: a program can read what its agent holds, so that must
//! not be what opens every other run's connections. The node derives the key again from the number,
//! which is said in the clear.

mod channel;
mod entropy;
mod text;

use core::fmt;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use zeroize::{Zeroize as _, ZeroizeOnDrop};

pub use channel::{Channel, Initiator, MAC_LENGTH, NoiseError, OPENING_LENGTH, Responder};
pub use entropy::SecureRandom;
pub use text::{SECRET_TEXT_LENGTH, SecretTextError};

/// Bytes of a secret, and of every key that is derived from one.
pub const SECRET_LENGTH: usize = 32;
/// Bytes of the number of a run.
pub const RUN_ID_LENGTH: usize = 6;

/// Goes into every key of a run: another use of the secret gets other keys.
const RUN_LABEL: &[u8] = b"legato run key 1";

/// What memory nodes and those who use them share. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_LENGTH]);

/// The public number of a run: drawn once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(pub [u8; RUN_ID_LENGTH]);

/// What one run proves itself with. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct RunKey {
    id: RunId,
    key: [u8; SECRET_LENGTH],
}

/// What one side of connections can prove itself with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keyring {
    /// Knows the secret, and so the key of every run.
    All(Secret),
    /// Knows the key of one run.
    One(RunKey),
}

impl Secret {
    pub const fn new(bytes: [u8; SECRET_LENGTH]) -> Self {
        Self(bytes)
    }

    pub fn draw(random: &mut SecureRandom) -> Self {
        let mut bytes = [0; SECRET_LENGTH];
        random.fill(&mut bytes);
        Self(bytes)
    }

    /// The key of a run, from which nobody learns the secret (P-85).
    pub fn key_of(&self, id: RunId) -> RunKey {
        let mut input = [0; RUN_LABEL.len() + RUN_ID_LENGTH];
        input[..RUN_LABEL.len()].copy_from_slice(RUN_LABEL);
        input[RUN_LABEL.len()..].copy_from_slice(&id.0);
        let key = derive(&self.0, &input);
        RunKey { id, key }
    }
}

/// Wipes what was a secret, in a way that is not optimised away.
pub fn wipe(bytes: &mut [u8]) {
    bytes.zeroize();
}

/// HKDF of BLAKE2s (RFC 5869 with the hash of the Noise specification, 4.3), one block of it.
fn derive(secret: &[u8; SECRET_LENGTH], input: &[u8]) -> [u8; SECRET_LENGTH] {
    let Some(mut hash) = DefaultResolver.resolve_hash(&HashChoice::Blake2s) else {
        unreachable!("snow is built with this hash")
    };
    let mut key = [0; SECRET_LENGTH];
    hash.hkdf(secret, input, 1, &mut key, &mut [], &mut []);
    key
}

impl RunKey {
    pub const fn new(id: RunId, key: [u8; SECRET_LENGTH]) -> Self {
        Self { id, key }
    }

    pub const fn id(&self) -> RunId {
        self.id
    }

    /// For handing it to the run's agents.
    pub const fn bytes(&self) -> &[u8; SECRET_LENGTH] {
        &self.key
    }
}

impl Keyring {
    /// What this side begins a connection with.
    pub fn own(&self) -> RunKey {
        match self {
            Self::All(secret) => secret.key_of(RunId([0; RUN_ID_LENGTH])),
            Self::One(key) => key.clone(),
        }
    }

    /// The key of the run that a peer names; None if this side does not know it.
    pub fn of(&self, id: RunId) -> Option<RunKey> {
        match self {
            Self::All(secret) => Some(secret.key_of(id)),
            Self::One(key) => (key.id == id).then(|| key.clone()),
        }
    }
}

impl Secret {
    fn wipe(&mut self) {
        self.0.zeroize();
    }
}

impl RunKey {
    fn wipe(&mut self) {
        self.key.zeroize();
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Whoever needs it no more wipes it (P-85).
impl Drop for RunKey {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl ZeroizeOnDrop for Secret {}
impl ZeroizeOnDrop for RunKey {}

/// Keys are in no message and no log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn every_run_and_every_secret_has_keys_of_its_own() {
        let (one, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let run = RunId([1, 2, 3, 4, 5, 6]);
        assert_eq!(one.key_of(run), one.key_of(run));
        assert_ne!(one.key_of(run).bytes(), other.key_of(run).bytes());
        assert_ne!(one.key_of(run).bytes(), one.key_of(RunId([0; 6])).bytes());
        assert_ne!(one.key_of(run).bytes(), &[1; 32]);
    }

    // P-85
    #[test]
    fn who_has_the_key_of_one_run_knows_no_other() {
        let secret = Secret::new([7; 32]);
        let run = RunId([9; 6]);
        let all = Keyring::All(secret.clone());
        let one = Keyring::One(secret.key_of(run));
        assert_eq!(one.of(run), all.of(run));
        assert_eq!(one.of(RunId([8; 6])), None);
        assert_eq!(all.of(all.own().id()), Some(all.own()));
    }

    // P-85
    #[test]
    fn who_drops_a_key_wipes_it() {
        let mut key = RunKey::new(RunId([9; 6]), [7; 32]);
        key.wipe();
        assert_eq!(*key.bytes(), [0; 32]);
        let mut secret = Secret::new([7; 32]);
        secret.wipe();
        assert_eq!(secret.0, [0; 32]);
        assert!(core::mem::needs_drop::<RunKey>() && core::mem::needs_drop::<Secret>());
    }

    #[test]
    fn keys_are_in_no_text() {
        let secret = Secret::new([0xAB; 32]);
        let key = secret.key_of(RunId([0; 6]));
        let text = format!("{:?} {:?}", Keyring::All(secret), Keyring::One(key.clone()));
        assert!(!text.contains("171") && !text.contains("ab"), "{text}");
        assert!(!text.contains(&format!("{}", key.bytes()[0])), "{text}");
    }
}
