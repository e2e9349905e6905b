//! Streams between those who have a key. Each begins with a Noise handshake that carries the preambles,
//! and each packet is a sealed message of its own: nobody reads, changes, repeats or leaves out any.
//!
//! ```text
//! whoever has connected                          whoever was connected to
//!    | -- magic, version, run, opening [preamble] -> |
//!    | <- magic, opening [preamble] ---------------- |   or a refusal, and the end
//!    | == a sealed message of no bytes ============> |   it is no recording: only now it takes the
//!    | <= sealed packets ==========================> |   place of an older stream
//! ```

use super::super::inbox::{LENGTH_BYTES, frame_length};
use super::super::{PACKET_MAX, PACKET_MIN};
use super::output::Output;
use super::preamble::{PREAMBLE_LENGTH, Preamble};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_base::secret::{
    Channel, Initiator, Keyring, MAC_LENGTH, OPENING_LENGTH, RUN_ID_LENGTH, Responder, RunId,
    RunKey, SecureRandom,
};
use legato_base::wire::proof::{REFUSAL_SIZE, Refusal};
use rustix::io::Errno;

const LABEL: &[u8] = b"legato stream 1";
const MAGIC_ASKING: [u8; 8] = *b"LegatoRN";
const MAGIC_ANSWER: [u8; 8] = *b"LegatoRA";
const MAGIC_REFUSAL: [u8; 8] = *b"LegatoRF";
const VERSION: [u8; 2] = [0, 1];
const SEALED_PREAMBLE: usize = OPENING_LENGTH + PREAMBLE_LENGTH;
const RUN_AT: usize = MAGIC_ASKING.len() + VERSION.len();
const OPENING_AT: usize = RUN_AT + RUN_ID_LENGTH;
/// Bytes of what each side says first.
pub(super) const ASKING_LENGTH: usize = OPENING_AT + SEALED_PREAMBLE;
pub(super) const ANSWER_LENGTH: usize = MAGIC_ANSWER.len() + SEALED_PREAMBLE;
/// As long as a preamble, so that one without a key reads it too.
pub(super) const REFUSAL_LENGTH: usize = PREAMBLE_LENGTH;
/// Bytes of the frame that shows that the one who has connected is no recording.
pub(super) const PROOF_LENGTH: usize = LENGTH_BYTES + MAC_LENGTH;
/// Sealed bytes that can wait to be written.
const OUT: usize = 1 << 16;
/// Runs of peers that are remembered.
const RUNS_MAX: usize = 4096;

/// What a carrier seals its streams with.
#[derive(Debug)]
pub struct Sealing {
    keys: Keyring,
    random: SecureRandom,
    /// Which run a peer was of: who knows the secret must use its key when it connects to it.
    runs: BTreeMap<SocketAddr, RunId>,
}

/// Whether a stream is sealed.
#[derive(Debug)]
pub(super) enum Seal {
    Plain,
    /// The peer's answer is awaited.
    Asked(Box<Initiator>),
    On(Box<Sealed>),
}

/// A stream with keys.
pub(super) struct Sealed {
    channel: Channel,
    pub(super) run: RunId,
    /// Sealed frames that wait to be written. Empty until the first one.
    out: Box<[u8]>,
    begin: usize,
    end: usize,
    plain: Box<[u8]>,
}

impl core::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sealed")
            .field("bytes", &(self.end - self.begin))
            .finish_non_exhaustive()
    }
}

impl Sealing {
    pub const fn new(keys: Keyring, random: SecureRandom) -> Self {
        Self {
            keys,
            random,
            runs: BTreeMap::new(),
        }
    }

    /// For another carrier.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.keys.clone(), self.random.fork())
    }

    fn key_for(&self, peer: SocketAddr) -> RunKey {
        let known = self.runs.get(&peer);
        let known = known.and_then(|&run| self.keys.of(run));
        known.unwrap_or_else(|| self.keys.own())
    }

    pub(super) fn remember(&mut self, peer: SocketAddr, run: RunId) {
        if self.runs.len() >= RUNS_MAX {
            self.runs.clear();
        }
        self.runs.insert(peer, run);
    }

    /// What is said first to a peer that was connected to.
    pub(super) fn ask(&mut self, peer: SocketAddr, own: Preamble) -> Option<(Seal, Vec<u8>)> {
        let key = self.key_for(peer);
        let mut initiator = Initiator::new(&key, LABEL, &mut self.random).ok()?;
        let mut bytes = vec![0; ASKING_LENGTH];
        bytes[..RUN_AT - VERSION.len()].copy_from_slice(&MAGIC_ASKING);
        bytes[RUN_AT - VERSION.len()..RUN_AT].copy_from_slice(&VERSION);
        bytes[RUN_AT..OPENING_AT].copy_from_slice(&key.id().0);
        initiator
            .write(&own.to_bytes(), &mut bytes[OPENING_AT..])
            .ok()?;
        Some((Seal::Asked(Box::new(initiator)), bytes))
    }

    /// Reads what somebody says who has connected, and answers it.
    pub(super) fn answer(
        &mut self,
        asking: &[u8],
        own: Preamble,
    ) -> Result<(Preamble, Seal, Vec<u8>), Refusal> {
        let run = asking.get(RUN_AT..).and_then(|rest| rest.first_chunk());
        let run = RunId(*run.ok_or(Refusal::Wrong)?);
        let opening = asking.get(OPENING_AT..).ok_or(Refusal::Wrong)?;
        let key = self.keys.of(run).ok_or(Refusal::Wrong)?;
        let mut preamble = [0; SEALED_PREAMBLE];
        let read = Responder::read(&key, LABEL, &mut self.random, opening, &mut preamble);
        let (responder, _) = read.map_err(|_| Refusal::Wrong)?;
        let preamble = first_preamble(&preamble).ok_or(Refusal::Wrong)?;
        let mut bytes = vec![0; ANSWER_LENGTH];
        let (magic, rest) = bytes.split_at_mut(MAGIC_ANSWER.len());
        magic.copy_from_slice(&MAGIC_ANSWER);
        let answered = responder.answer(&own.to_bytes(), rest);
        let (_, channel) = answered.map_err(|_| Refusal::Wrong)?;
        Ok((
            preamble,
            Seal::On(Box::new(Sealed::new(channel, run))),
            bytes,
        ))
    }

    /// Reads what a peer answers. The stream is sealed from here on.
    pub(super) fn finish(
        &self,
        seal: Seal,
        peer: SocketAddr,
        answer: &[u8],
    ) -> Option<(Preamble, Seal)> {
        let Seal::Asked(initiator) = seal else {
            return None;
        };
        let opening = answer.strip_prefix(&MAGIC_ANSWER)?;
        let mut preamble = [0; SEALED_PREAMBLE];
        let (_, channel) = initiator.finish(opening, &mut preamble).ok()?;
        let mut sealed = Sealed::new(channel, self.key_for(peer).id());
        sealed.push(&[]).ok()?;
        Some((first_preamble(&preamble)?, Seal::On(Box::new(sealed))))
    }
}

fn first_preamble(bytes: &[u8]) -> Option<Preamble> {
    Preamble::from_bytes(bytes.first_chunk()?)
}

/// Whether somebody wants a sealed stream, by the beginning of what it says.
pub(super) fn asks_for_seal(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC_ASKING)
}

/// Said in the place of an answer.
pub(super) fn refusal(reason: Refusal) -> [u8; REFUSAL_LENGTH] {
    let mut bytes = [0; REFUSAL_LENGTH];
    bytes[..MAGIC_REFUSAL.len()].copy_from_slice(&MAGIC_REFUSAL);
    bytes[MAGIC_REFUSAL.len()..][..REFUSAL_SIZE].copy_from_slice(&reason.to_bytes());
    bytes
}

/// The reverse.
pub(super) fn refused(bytes: &[u8]) -> Option<Refusal> {
    Refusal::parse(bytes.strip_prefix(&MAGIC_REFUSAL)?)
}

impl Sealed {
    fn new(channel: Channel, run: RunId) -> Self {
        Self {
            channel,
            run,
            out: Box::default(),
            begin: 0,
            end: 0,
            plain: Box::default(),
        }
    }

    /// Sealed bytes that wait to be written.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.out[self.begin..self.end]
    }

    pub(super) fn written(&mut self, bytes: usize) {
        self.begin += bytes;
    }

    /// Seals one message behind those that wait (P-83).
    fn push(&mut self, plain: &[u8]) -> Result<(), Errno> {
        if self.out.is_empty() {
            self.out = vec![0; OUT].into();
        }
        let place = self.out.get_mut(self.end..).unwrap_or_default();
        let (length, place) = place
            .split_at_mut_checked(LENGTH_BYTES)
            .ok_or(Errno::NOBUFS)?;
        let sealed = self.channel.seal(plain, place);
        let sealed = sealed.map_err(|_| Errno::NOBUFS)?;
        length.copy_from_slice(&[(sealed >> 8) as u8, sealed as u8]);
        self.end += LENGTH_BYTES + sealed;
        Ok(())
    }

    /// Seals as many packets as there is room for, once nothing waits any more. Returns how many were
    /// taken, as far as the output knows.
    pub(super) fn fill(&mut self, output: &mut Output) -> Result<u64, Errno> {
        if self.begin < self.end {
            return Ok(0);
        }
        (self.begin, self.end) = (0, 0);
        let mut taken = 0;
        while let Some(length) = frame_length(&output.waiting()[taken..]) {
            let begin = taken + LENGTH_BYTES;
            if self.end + LENGTH_BYTES + length + MAC_LENGTH > OUT {
                break;
            }
            let packet = output.waiting().get(begin..begin + length);
            let packet = packet.ok_or(Errno::NOBUFS)?;
            self.push(packet)?;
            taken = begin + length;
        }
        Ok(output.written(taken))
    }

    /// Opens the whole frames in what was read, and puts them where they were. Returns where the packets
    /// end, where the frames that were used end, and whether all was right (P-83).
    pub(super) fn open(&mut self, bytes: &mut [u8]) -> (usize, usize, bool) {
        if self.plain.is_empty() {
            self.plain = vec![0; PACKET_MAX + MAC_LENGTH].into();
        }
        let (mut read, mut written) = (0, 0);
        while let Some(length) = frame_length(&bytes[read..]) {
            if !(PACKET_MIN + MAC_LENGTH..=PACKET_MAX + MAC_LENGTH).contains(&length) {
                return (written, read, false);
            }
            let begin = read + LENGTH_BYTES;
            let Some(frame) = bytes.get(begin..begin + length) else {
                break;
            };
            let Ok(opened) = self.channel.open(frame, &mut self.plain) else {
                return (written, read, false);
            };
            // Shorter than the frame, which has been read.
            let place = &mut bytes[written..written + LENGTH_BYTES + opened];
            place[..LENGTH_BYTES].copy_from_slice(&[(opened >> 8) as u8, opened as u8]);
            place[LENGTH_BYTES..].copy_from_slice(&self.plain[..opened]);
            written += LENGTH_BYTES + opened;
            read = begin + length;
        }
        (written, read, true)
    }

    /// Whether these are the bytes that show that the peer is no recording.
    pub(super) fn is_proof(&mut self, bytes: &[u8; PROOF_LENGTH]) -> bool {
        let (length, sealed) = bytes.split_at(LENGTH_BYTES);
        let right = frame_length(length) == Some(MAC_LENGTH);
        right && self.channel.open(sealed, &mut [0; MAC_LENGTH]) == Ok(0)
    }
}
