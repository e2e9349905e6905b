//! Connections between those who share a secret. The private data of connection management carries the
//! two messages of a Noise handshake, and the first message of each side on the connection confirms it:
//!
//! ```text
//! initiator                                    responder
//!    | -- connect: run, opening ----------------> |   a wrong secret is refused here, before there
//!    | <- accept: opening ----------------------- |   is a queue pair
//!    | == confirmation: Hello, queue pairs =====> |   the initiator is no recording
//!    | <= confirmation: Hello, queue pairs ====== |   the responder knows it too
//! ```
//!
//! Until the peer's confirmation has come it can do nothing but send one: there is no call, no key and no
//! region for it. A confirmation names both queue pairs and both first packet sequence numbers, and
//! these must be the ones that this side is really connected by: nobody has put himself in between.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::lifecycle::State;
use crate::openings::Openings;
use crate::{ConnectError, FabricEvent};
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::secret::{Channel, Initiator, Keyring, OPENING_LENGTH, Responder, SecureRandom};
use legato_base::wire::message::{Hello, MessageError};
use legato_base::wire::proof::{
    ANSWER_SIZE, ASKING_SIZE, Answer, Asking, Binding, CONFIRMATION_SIZE, FACTS_SIZE, Facts,
    PROOF_LABEL, Refusal, SEALED_FACTS_SIZE, confirmation, sealed_in,
};
use legato_verbs::{MemoryRegion, Provider, QueuePair, QueuePairAttributes, VerbsError};

/// What a side proves itself with.
#[derive(Debug)]
pub(crate) struct Prover {
    keys: Keyring,
    random: SecureRandom,
    answered: Openings,
}

/// How far a connection is in proving who is there.
#[derive(Debug)]
pub(crate) enum Handshake {
    /// Nobody asks for a proof, or everything is proved.
    None,
    /// The peer's answer is awaited.
    Asked(Box<Initiator>),
    /// The peer's confirmation is awaited.
    Answered(Box<Channel>),
}

/// Why a connection between sides of which one has a secret did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// Its word, which anybody on the way could have said.
    #[error("it takes only those who know its secret, and no secret was given")]
    Required,
    /// As above.
    #[error("it refused the secret: it has another one")]
    Wrong,
    /// As above.
    #[error("it has no secret, and one was given")]
    NotExpected,
    /// As above.
    #[error("too many others are proving to it that they know its secret")]
    Busy,
    /// As above.
    #[error("it has answered this very request before")]
    Repeated,
    #[error("it did not prove that it knows the secret")]
    PeerWrong,
    #[error("it ended the connection before both sides had proved that they know the secret")]
    Ended,
    #[error("the queue pairs that the two sides know are not the same: somebody is in between")]
    Binding,
    #[error("this provider cannot say which queue pairs are connected")]
    NoBinding,
    #[error("the handshake could not be begun")]
    Internal,
}

impl From<Refusal> for ProofError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Required => Self::Required,
            Refusal::Wrong => Self::Wrong,
            Refusal::NotExpected => Self::NotExpected,
            Refusal::Busy => Self::Busy,
            Refusal::Repeated => Self::Repeated,
        }
    }
}

impl Prover {
    pub(crate) fn new(keys: Keyring, random: SecureRandom) -> Self {
        Self {
            keys,
            random,
            answered: Openings::default(),
        }
    }

    /// The private data of a connect.
    pub(crate) fn ask(&mut self) -> Result<(Handshake, [u8; ASKING_SIZE]), ProofError> {
        let key = self.keys.own();
        let mut opening = [0; OPENING_LENGTH];
        let mut initiator = Initiator::new(&key, PROOF_LABEL, &mut self.random)
            .map_err(|_| ProofError::Internal)?;
        let written = initiator.write(&[], &mut opening);
        if written != Ok(OPENING_LENGTH) {
            return Err(ProofError::Internal);
        }
        let asking = Asking {
            run: key.id(),
            opening,
        };
        Ok((Handshake::Asked(Box::new(initiator)), asking.to_bytes()))
    }

    /// The private data of the accept of a connect.
    pub(crate) fn answer(
        &mut self,
        private_data: &[u8],
    ) -> Result<(Handshake, [u8; ANSWER_SIZE]), Refusal> {
        // P-77: each refusal here comes before there is a queue pair.
        let asking = Asking::parse(private_data).ok_or(Refusal::Required)?;
        let key = self.keys.of(asking.run).ok_or(Refusal::Wrong)?;
        let read = Responder::read(
            &key,
            PROOF_LABEL,
            &mut self.random,
            &asking.opening,
            &mut [0; OPENING_LENGTH],
        );
        let (responder, _) = read.map_err(|_| Refusal::Wrong)?;
        // P-100: before there is anything else.
        if !self.answered.note(&asking.opening) {
            return Err(Refusal::Repeated);
        }
        let mut opening = [0; OPENING_LENGTH];
        let answered = responder.answer(&[], &mut opening);
        let (_, channel) = answered.map_err(|_| Refusal::Wrong)?;
        let answer = Answer { opening }.to_bytes();
        Ok((Handshake::Answered(Box::new(channel)), answer))
    }
}

impl Handshake {
    pub(crate) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The initiator reads the private data of the accept.
    fn finish(self, private_data: &[u8]) -> Result<Box<Channel>, ProofError> {
        let Self::Asked(initiator) = self else {
            return Err(ProofError::Internal);
        };
        let answer = Answer::parse(private_data).ok_or(ProofError::PeerWrong)?;
        let finished = initiator.finish(&answer.opening, &mut [0; OPENING_LENGTH]);
        let (_, channel) = finished.map_err(|_| ProofError::PeerWrong)?;
        Ok(Box::new(channel))
    }
}

/// Which queue pairs are connected, as this side knows it.
fn binding(provider: &dyn Provider, queue_pair: QueuePair) -> Result<Binding, ConnectError> {
    let own = provider.queue_pair_number(queue_pair);
    let own = own.map_err(ConnectError::Provider)?;
    let known = provider.query_attributes(queue_pair);
    let QueuePairAttributes {
        destination: Some(peer),
        receive_sequence: Some(receive),
        send_sequence: Some(send),
        ..
    } = known.map_err(ConnectError::Provider)?
    else {
        return Err(ConnectError::Proof(ProofError::NoBinding));
    };
    Ok(Binding {
        own: own.get(),
        peer: peer.get(),
        receive_sequence: receive.get(),
        send_sequence: send.get(),
    })
}

impl<B: Buffer> Connection<B> {
    /// Says who is here, sealed for this connection alone.
    fn confirm(
        &mut self,
        provider: &mut dyn Provider,
        channel: &mut Channel,
        hello: Hello,
        data: Vec<u8>,
        post: impl FnOnce(&mut Self, &mut dyn Provider, &[u8]) -> Result<(), VerbsError>,
    ) -> Result<(), ConnectError> {
        let binding = binding(provider, self.queue_pair)?;
        let facts = Facts {
            hello,
            binding,
            data,
        };
        let mut sealed = [0; SEALED_FACTS_SIZE];
        let length = channel.seal(&facts.to_bytes(), &mut sealed);
        if length != Ok(SEALED_FACTS_SIZE) {
            return Err(ConnectError::Proof(ProofError::Internal));
        }
        post(self, provider, &confirmation(sealed)).map_err(ConnectError::Provider)
    }

    /// Reads the peer's confirmation out of a receive buffer.
    fn read_confirmation(
        &self,
        provider: &dyn Provider,
        channel: &mut Channel,
        (region, offset): (MemoryRegion, u64),
        length: u32,
    ) -> Result<Facts, ConnectError> {
        let wrong = ConnectError::Proof(ProofError::PeerWrong);
        if length as usize != CONFIRMATION_SIZE {
            return Err(wrong);
        }
        let mut bytes = [0; CONFIRMATION_SIZE];
        provider
            .read_region(&region, offset, &mut bytes)
            .map_err(ConnectError::Provider)?;
        let sealed = sealed_in(&bytes).ok_or(wrong)?;
        let mut plain = [0; FACTS_SIZE];
        if channel.open(&sealed, &mut plain) != Ok(FACTS_SIZE) {
            return Err(wrong);
        }
        let facts = Facts::parse(&plain).map_err(ConnectError::Incompatible)?;
        // P-80: they must be those of this side.
        if facts.binding.mirrored() != binding(provider, self.queue_pair)? {
            return Err(ConnectError::Proof(ProofError::Binding));
        }
        Ok(facts)
    }
}

impl<B: Buffer> Fabric<B> {
    /// From now on every connection of this fabric is with someone who proves to know the same secret,
    /// or the key of the same run. The seed of `random` must be one that nobody can guess.
    pub fn prove_with(&mut self, keys: Keyring, random: SecureRandom) {
        self.shared.prover = Some(Prover::new(keys, random));
    }

    /// Forgets the keys, and wipes them. There can be no connection any more that needs a proof; those
    /// that there are go on.
    pub fn forget_keys(&mut self) {
        self.shared.prover = None;
    }

    /// The queue pair of a connection that needs a proof is ready.
    pub(crate) fn begin_confirming(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        private_data: &[u8],
    ) {
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        let (State::Connecting { deadline } | State::Accepting { deadline }) = connection.state
        else {
            return;
        };
        connection.state = State::Confirming { deadline };
        if connection.is_active {
            let handshake = core::mem::replace(&mut connection.handshake, Handshake::None);
            let begun = match handshake.finish(private_data) {
                Ok(channel) => self.send_confirmation(provider, index, channel),
                Err(error) => Err(ConnectError::Proof(error)),
            };
            if let Err(error) = begun {
                return self.fail_handshake(provider, index, error);
            }
        }
        self.hear_confirmation(provider, index);
    }

    /// Takes the peer's confirmation, if it has come.
    pub(crate) fn hear_confirmation(&mut self, provider: &mut dyn Provider, index: usize) {
        if let Some(Err(error)) = self.take_confirmation(provider, index) {
            self.shared.counters.note_unproved(error);
            self.fail_handshake(provider, index, error);
        }
    }

    /// None if none has come. Nothing else is heard from the peer before it (P-78).
    fn take_confirmation(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
    ) -> Option<Result<(), ConnectError>> {
        let connection = self.slots[index].connection.as_deref_mut()?;
        if !matches!(connection.state, State::Confirming { .. }) {
            return None;
        }
        let (buffer, length) = connection.take_early()?;
        let handshake = core::mem::replace(&mut connection.handshake, Handshake::None);
        let place = connection.received_at(&self.shared, buffer);
        let read = match handshake {
            Handshake::Answered(mut channel) => connection
                .read_confirmation(provider, &mut channel, place, length)
                .map(|facts| (facts, channel)),
            _ => Err(ConnectError::Proof(ProofError::Internal)),
        };
        let given = connection.give_back_confirmation(&mut self.shared, provider, buffer);
        let (facts, channel) =
            match read.and_then(|read| given.map_err(ConnectError::Provider).map(|()| read)) {
                Ok(read) => read,
                Err(error) => return Some(Err(error)),
            };
        Some(self.accept_facts(provider, index, facts, channel))
    }

    /// The peer is who it says.
    fn accept_facts(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        facts: Facts,
        channel: Box<Channel>,
    ) -> Result<(), ConnectError> {
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return Ok(());
        };
        let (id, is_active, peer) = (connection.id, connection.is_active, facts.hello);
        if is_active && peer.epoch != connection.epoch {
            return Err(ConnectError::Incompatible(MessageError::Epoch));
        }
        connection.epoch = peer.epoch;
        connection.peer = peer;
        let private_data = facts.data;
        let closed = self.note_closed(provider, &peer, is_active);
        if !is_active {
            if !closed {
                let busy = VerbsError::Busy("queue pair of an earlier connection");
                return Err(ConnectError::Provider(busy));
            }
            self.send_confirmation(provider, index, channel)?;
        }
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return Ok(());
        };
        connection.handshake = Handshake::None;
        self.shared.events.push_back(match is_active {
            true => FabricEvent::Connected {
                connection: id,
                private_data,
            },
            false => FabricEvent::Accepted {
                connection: id,
                private_data,
            },
        });
        connection.establish(&mut self.shared, provider);
        Ok(())
    }

    fn send_confirmation(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        mut channel: Box<Channel>,
    ) -> Result<(), ConnectError> {
        let Some(connection) = self.slots[index].connection.as_deref() else {
            return Ok(());
        };
        let (epoch, incarnation) = (connection.epoch, connection.peer.incarnation);
        let oldest = match connection.is_active {
            true => self.oldest_epoch(),
            false => self.oldest_of(incarnation),
        };
        let credits = connection.layout.credits;
        let hello = self.hello(credits, epoch, oldest.unwrap_or(epoch).min(epoch));
        let (slots, shared) = (&mut self.slots, &mut self.shared);
        let Some(connection) = slots[index].connection.as_deref_mut() else {
            return Ok(());
        };
        let data = core::mem::take(&mut connection.private_data);
        connection.confirm(
            provider,
            &mut channel,
            hello,
            data,
            |it, provider, bytes| it.post_confirmation(shared, provider, bytes),
        )?;
        connection.handshake = Handshake::Answered(channel);
        connection.oldest_told = hello.oldest_epoch;
        Ok(())
    }
}
