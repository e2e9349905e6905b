//! The Noise protocol framework, revision 34, in the pattern `NNpsk0`: two messages prove to each side
//! that the other knows the key and give both fresh keys, which later knowledge of the key does not
//! reveal. Whoever has only recorded a first message can say it again, so the answerer knows who is there
//! only when the first sealed message comes that fits this very handshake.
//!
//! The implementation is that of the crate `snow`; here is what both uses of it have in common.

use super::{RUN_ID_LENGTH, RunKey, SecureRandom};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes that seal a message, behind it.
pub const MAC_LENGTH: usize = 16;
/// Bytes of either message of the handshake without what is sealed in it: an ephemeral key and a seal.
pub const OPENING_LENGTH: usize = 32 + MAC_LENGTH;

/// Why a message was not made or not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoiseError {
    /// Of another key, of another handshake, changed, or out of turn.
    #[error("the seal is wrong")]
    Seal,
    /// The caller's mistake.
    #[error("the message cannot be made")]
    Message,
}

/// The side that speaks first.
pub struct Initiator(HandshakeState);

/// The side that answers, and has not answered yet.
pub struct Responder(HandshakeState);

/// Keys for each direction. Messages are opened in the order in which they were sealed, each once.
pub struct Channel(TransportState);

impl Initiator {
    /// `label` says what the connection is for; both sides must say the same.
    ///
    /// # Errors
    /// [`NoiseError::Message`].
    pub fn new(key: &RunKey, label: &[u8], random: &mut SecureRandom) -> Result<Self, NoiseError> {
        let prologue = prologue(key, label);
        let builder = builder(key, &prologue, random)?;
        builder.build_initiator().map(Self).map_err(message)
    }

    /// The first message. Returns its length: [`OPENING_LENGTH`] more than the payload's.
    ///
    /// # Errors
    /// [`NoiseError::Message`] if there is no room, or it was written before.
    pub fn write(&mut self, payload: &[u8], into: &mut [u8]) -> Result<usize, NoiseError> {
        self.0.write_message(payload, into).map_err(message)
    }

    /// Takes the answer.
    ///
    /// # Errors
    /// [`NoiseError::Seal`]: it is not from someone who knows the key and has read the first message.
    pub fn finish(
        mut self,
        answer: &[u8],
        payload: &mut [u8],
    ) -> Result<(usize, Channel), NoiseError> {
        let length = self.0.read_message(answer, payload).map_err(seal)?;
        let channel = self.0.into_transport_mode().map_err(seal)?;
        Ok((length, Channel(channel)))
    }
}

impl Responder {
    /// Reads a first message.
    ///
    /// # Errors
    /// [`NoiseError::Seal`]: it is not from someone who knows the key, for this label.
    pub fn read(
        key: &RunKey,
        label: &[u8],
        random: &mut SecureRandom,
        first: &[u8],
        payload: &mut [u8],
    ) -> Result<(Self, usize), NoiseError> {
        let prologue = prologue(key, label);
        let builder = builder(key, &prologue, random)?;
        let mut state = builder.build_responder().map_err(message)?;
        let length = state.read_message(first, payload).map_err(seal)?;
        Ok((Self(state), length))
    }

    /// The answer. Returns its length: [`OPENING_LENGTH`] more than the payload's.
    ///
    /// # Errors
    /// [`NoiseError::Message`] if there is no room.
    pub fn answer(
        mut self,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(usize, Channel), NoiseError> {
        let length = self.0.write_message(payload, into).map_err(message)?;
        let channel = self.0.into_transport_mode().map_err(message)?;
        Ok((length, Channel(channel)))
    }
}

impl Channel {
    /// Seals a message. Returns its length: [`MAC_LENGTH`] more than the plain one's.
    ///
    /// # Errors
    /// [`NoiseError::Message`] if there is no room, or after 2^64 messages.
    pub fn seal(&mut self, plain: &[u8], into: &mut [u8]) -> Result<usize, NoiseError> {
        self.0.write_message(plain, into).map_err(message)
    }

    /// Opens the next message.
    ///
    /// # Errors
    /// [`NoiseError::Seal`].
    pub fn open(&mut self, sealed: &[u8], into: &mut [u8]) -> Result<usize, NoiseError> {
        self.0.read_message(sealed, into).map_err(seal)
    }
}

fn message(_: snow::Error) -> NoiseError {
    NoiseError::Message
}

fn seal(_: snow::Error) -> NoiseError {
    NoiseError::Seal
}

fn prologue(key: &RunKey, label: &[u8]) -> Vec<u8> {
    let mut prologue = Vec::with_capacity(label.len() + RUN_ID_LENGTH);
    prologue.extend_from_slice(label);
    prologue.extend_from_slice(&key.id().0);
    prologue
}

fn builder<'a>(
    key: &'a RunKey,
    prologue: &'a [u8],
    random: &mut SecureRandom,
) -> Result<Builder<'a>, NoiseError> {
    let params = PATTERN.parse().map_err(message)?;
    let resolver = Resolver(random.fork());
    let builder = Builder::with_resolver(params, Box::new(resolver));
    let builder = builder.psk(0, key.bytes()).map_err(message)?;
    builder.prologue(prologue).map_err(message)
}

/// Snow's own algorithms with the caller's randomness: there is no `getrandom` crate in the agent, and
/// none in the simulator, whose histories follow from their seed.
struct Resolver(SecureRandom);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Drawn(self.0.clone())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Drawn(SecureRandom);

impl Random for Drawn {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill(into);
        Ok(())
    }
}

macro_rules! hidden {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

hidden!(Initiator, Responder, Channel);

#[cfg(test)]
mod tests {
    use super::super::{RunId, Secret};
    use super::*;

    const LABEL: &[u8] = b"test";

    fn key(secret: u8) -> RunKey {
        Secret::new([secret; 32]).key_of(RunId([1; 6]))
    }

    fn random(seed: u8) -> SecureRandom {
        SecureRandom::from_seed([seed; 32])
    }

    /// A first message, its sender, the answer to it, and the answerer's channel.
    fn shake() -> (Initiator, [u8; 52], [u8; 53], Channel) {
        let mut asks = Initiator::new(&key(1), LABEL, &mut random(1)).unwrap();
        let (mut first, mut payload, mut answer) = ([0; 52], [0; 64], [0; 53]);
        assert_eq!(asks.write(b"ping", &mut first), Ok(52));
        let (answers, length) =
            Responder::read(&key(1), LABEL, &mut random(2), &first, &mut payload).unwrap();
        assert_eq!(&payload[..length], b"ping");
        let (length, channel) = answers.answer(b"hello", &mut answer).unwrap();
        assert_eq!(length, 53);
        (asks, first, answer, channel)
    }

    #[test]
    fn who_knows_the_key_gets_a_channel() {
        let (asks, _, answer, mut theirs) = shake();
        let mut payload = [0; 64];
        let (length, mut ours) = asks.finish(&answer, &mut payload).unwrap();
        assert_eq!(&payload[..length], b"hello");
        let (mut sealed, mut plain) = ([0; 64], [0; 64]);
        for text in [&b"one"[..], b"", b"three"] {
            let length = ours.seal(text, &mut sealed).unwrap();
            assert_eq!(length, text.len() + MAC_LENGTH);
            let opened = theirs.open(&sealed[..length], &mut plain).unwrap();
            assert_eq!(&plain[..opened], text);
            // The same message a second time is none.
            let again = theirs.open(&sealed[..length], &mut plain);
            assert_eq!(again, Err(NoiseError::Seal));
        }
    }

    #[test]
    fn every_changed_byte_of_either_message_is_noticed() {
        let (_, first, answer, _) = shake();
        let mut payload = [0; 64];
        for place in 0..first.len() {
            let mut changed = first;
            changed[place] ^= 1;
            let read = Responder::read(&key(1), LABEL, &mut random(2), &changed, &mut payload);
            assert!(matches!(read, Err(NoiseError::Seal)), "byte {place}");
        }
        for place in 0..answer.len() {
            let (asks, ..) = shake();
            let mut changed = answer;
            changed[place] ^= 1;
            let finished = asks.finish(&changed, &mut payload);
            assert!(matches!(finished, Err(NoiseError::Seal)), "byte {place}");
        }
        for length in 0..answer.len() {
            let (asks, ..) = shake();
            assert!(asks.finish(&answer[..length], &mut payload).is_err());
        }
    }

    #[test]
    fn another_key_label_or_run_is_refused() {
        let (_, first, ..) = shake();
        let other_run = RunKey::new(RunId([2; 6]), *key(1).bytes());
        for (key, label) in [(key(2), LABEL), (key(1), &b"other"[..]), (other_run, LABEL)] {
            let read = Responder::read(&key, label, &mut random(2), &first, &mut [0; 64]);
            assert!(matches!(read, Err(NoiseError::Seal)));
        }
    }

    #[test]
    fn a_first_message_that_is_said_again_opens_nothing() {
        let (asks, first, answer, mut theirs) = shake();
        let (_, mut ours) = asks.finish(&answer, &mut [0; 64]).unwrap();
        let mut sealed = [0; 64];
        let length = ours.seal(b"it is me", &mut sealed).unwrap();
        assert!(theirs.open(&sealed[..length], &mut [0; 64]).is_ok());
        // The same first message gets an answer with another ephemeral key, and what was sealed under
        // the first answer does not fit.
        let (again, _) =
            Responder::read(&key(1), LABEL, &mut random(3), &first, &mut [0; 64]).unwrap();
        let (_, mut channel) = again.answer(b"hello", &mut [0; 64]).unwrap();
        let opened = channel.open(&sealed[..length], &mut [0; 64]);
        assert_eq!(opened, Err(NoiseError::Seal));
    }
}
