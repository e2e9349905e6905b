//! The far half: opens the NIC, and does with it what one near half asks for.

mod calls;
mod release;
mod served;
mod work;

use super::call::{Answer, RegionId};
use super::codec::{Encoder, Malformed};
use super::message::Told;
use super::packet::{self, PACKET_BYTES_MAX, Received};
use super::rings::Rings;
use super::{WAKE, call, frame, unframe};
use crate::{ForeignMemory, Pollable};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use legato_verbs::{
    CompletionQueue, Event, Listener, ProtectionDomain, Provider, QueuePair, VerbsError,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use served::{ServedPair, ServedRegion};

/// Packets of one near half that are handled in a turn: others want their turn too.
const PACKETS_PER_TURN: usize = 16;
/// How soon a near half that takes nothing is tried again.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);

/// Why a proxy is over. All that its near half had is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyEnd {
    /// The near half has left, or its process is dead.
    #[error("the connection has ended")]
    Closed,
    /// The near half has said what cannot be: its program has spoiled it, or is somebody else.
    #[error("the agent broke the protocol: {0}")]
    Breach(&'static str),
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Something was done, so there may soon be more.
    pub worked: bool,
    /// When the next turn is wanted though nothing happens.
    pub deadline: Time,
}

/// Serves one near half with a NIC of its own.
///
/// It never blocks. Whoever has it calls [`Self::turn`], and sleeps as with a provider
/// ([`Pollable`]): [`Self::set_sleeping`], wait for the descriptors, `set_sleeping(false)`.
#[derive(Debug)]
pub struct ProxyServer<P: Provider + ForeignMemory + Pollable> {
    socket: OwnedFd,
    provider: P,
    /// Memory is unmapped after the provider has let go of it.
    regions: BTreeMap<RegionId, ServedRegion>,
    region_bytes: u64,
    /// None before the near half has introduced itself.
    rings: Option<Rings>,
    domains: BTreeSet<ProtectionDomain>,
    queues: BTreeSet<CompletionQueue>,
    pairs: BTreeMap<QueuePair, ServedPair>,
    listeners: BTreeSet<Listener>,
    /// To be told, in this order, as soon as the ring has space.
    told: VecDeque<Told>,
    /// Of the provider, to be told behind its completions.
    events: VecDeque<Event>,
    is_blocked: bool,
    bytes: Vec<u8>,
    ended: Option<ProxyEnd>,
    /// Regions whose memory is kept mapped for ever, because the NIC has not let go of it.
    leaked: usize,
}

impl<P: Provider + ForeignMemory + Pollable> ProxyServer<P> {
    /// `socket` is one end of a [`connection`](super::connection); the provider is the near half's
    /// alone.
    pub fn new(socket: OwnedFd, provider: P) -> Self {
        Self {
            socket,
            provider,
            regions: BTreeMap::new(),
            region_bytes: 0,
            rings: None,
            domains: BTreeSet::new(),
            queues: BTreeSet::new(),
            pairs: BTreeMap::new(),
            listeners: BTreeSet::new(),
            told: VecDeque::new(),
            events: VecDeque::new(),
            is_blocked: false,
            bytes: Vec::new(),
            ended: None,
            leaked: 0,
        }
    }

    /// Why it is over, once it is. Then it only waits to be dropped.
    pub const fn ended(&self) -> Option<ProxyEnd> {
        self.ended
    }

    /// Regions that the NIC has not let go of at the end, whose memory is never used again.
    pub const fn leaked(&self) -> usize {
        self.leaked
    }

    /// What the near half has: for tests of what is left.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Time) -> Turn {
        if self.ended.is_some() {
            return Turn {
                worked: false,
                deadline: Time::NEVER,
            };
        }
        match self.step(now) {
            Ok(turn) => turn,
            Err(end) => {
                self.ended = Some(end);
                self.release();
                Turn {
                    worked: true,
                    deadline: Time::NEVER,
                }
            }
        }
    }

    fn step(&mut self, now: Time) -> Result<Turn, ProxyEnd> {
        let mut worked = self.handle_packets()?;
        worked |= self.take_posts()?;
        let mut deadline = self.provider.progress(now);
        worked |= self.gather();
        worked |= self.tell()?;
        if self.is_blocked {
            deadline = deadline.min(now + BLOCKED_PAUSE);
        }
        Ok(Turn { worked, deadline })
    }

    fn handle_packets(&mut self) -> Result<bool, ProxyEnd> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        for handled in 0..PACKETS_PER_TURN {
            match packet::receive(&self.socket, &mut bytes) {
                Received::Nothing => return Ok(handled > 0),
                Received::Closed => return Err(ProxyEnd::Closed),
                Received::TooMuch => return Err(ProxyEnd::Breach("a packet that is too long")),
                Received::Packet(length, descriptor) => {
                    self.handle_packet(&bytes[..length], descriptor)?;
                }
            }
        }
        Ok(true)
    }

    fn handle_packet(&mut self, bytes: &[u8], descriptor: Option<OwnedFd>) -> Result<(), ProxyEnd> {
        let (number, messages, rest) = unframe(bytes)?;
        if number == 0 {
            return Ok(());
        }
        let call = call::Call::decode(rest)?;
        self.take_posts_until(messages)?;
        let (answer, attached) = self.answer(call, descriptor)?;
        self.reply(number, &answer, attached.as_ref().map(AsFd::as_fd))
    }

    fn reply(
        &mut self,
        number: u32,
        answer: &Result<Answer, VerbsError>,
        attached: Option<BorrowedFd<'_>>,
    ) -> Result<(), ProxyEnd> {
        let told = self.rings.as_ref().map_or(0, Rings::put_count);
        self.bytes.clear();
        let mut encoder = Encoder(&mut self.bytes);
        frame(number, told, &mut encoder);
        Answer::encode(answer, &mut encoder);
        // One call at a time: there is always room for its answer.
        packet::send(&self.socket, &self.bytes, attached).map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => ProxyEnd::Breach("calls whose answers nobody reads"),
            _ => ProxyEnd::Closed,
        })
    }

    /// Tells what there is to tell, as far as the ring has space.
    fn tell(&mut self) -> Result<bool, ProxyEnd> {
        let Some(rings) = &mut self.rings else {
            return Ok(false);
        };
        let mut worked = false;
        self.is_blocked = false;
        while let Some(told) = self.told.front() {
            self.bytes.clear();
            told.encode(&mut Encoder(&mut self.bytes));
            if !rings.put(&self.bytes)? {
                self.is_blocked = true;
                break;
            }
            self.told.pop_front();
            worked = true;
        }
        if worked && rings.must_wake() {
            // What cannot be sent now is not needed: the socket is full of packets that wake.
            let _ = packet::send(&self.socket, &WAKE, None);
        }
        Ok(worked)
    }

    /// Says whether the caller is about to sleep. False if there is something to do.
    pub fn set_sleeping(&mut self, sleeping: bool) -> bool {
        let quiet = match &self.rings {
            Some(rings) => {
                rings.set_sleeping(sleeping);
                !rings.has_message()
            }
            None => true,
        };
        // Who takes nothing is not waited for: then the provider's completions stay where they are.
        let idle = self.provider.set_sleeping(sleeping) || self.is_blocked;
        quiet && idle && (self.told.is_empty() || self.is_blocked)
    }
}

impl From<Malformed> for ProxyEnd {
    fn from(_: Malformed) -> Self {
        Self::Breach("what is no message")
    }
}

impl<P: Provider + ForeignMemory + Pollable> Pollable for ProxyServer<P> {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        into.push(self.socket.as_fd());
        self.provider.descriptors(into);
    }
}

/// Tells a near half, as the answer to its first call, that there is no NIC for it.
pub fn refuse(socket: OwnedFd, error: VerbsError) {
    let mut bytes = Vec::new();
    let mut encoder = Encoder(&mut bytes);
    frame(1, 0, &mut encoder);
    Answer::encode(&Err(error), &mut encoder);
    // If this fails the near half is gone.
    let _ = packet::send(&socket, &bytes, None);
}
