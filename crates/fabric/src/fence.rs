//! The fence ladder: on which proof memory comes back, and what becomes of memory without one.
//!
//! An operation's buffer is its owner's again on the first of these that can be had. That is
//! [`Proof`]; each use is counted. What none of them covers is in **quarantine**: it stays with the
//! fabric, is counted, and comes back only when one of the later rungs is reached after all. Quarantine
//! has a size; a fabric whose quarantine is full starts nothing new.
//!
//! A device that is known to touch buffers after it has given them back in error
//! ([`FabricConfig::late_write_bound`]) is not believed at once: what it gave back so is in quarantine until
//! the bound has passed. An operation's own success is believed always: nothing is left to do for it.

use crate::doubts::Kept;
use crate::event::Buffer;
use crate::id::Token;
use crate::one_sided::Operation;
use crate::shared::Shared;
use crate::{CONTRACT, FabricEvent, OperationError, OperationId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::wire::message::Hello;
use legato_base::{Duration, Time};
use legato_verbs::{MemoryRegion, Provider, QueuePair};

#[cfg(doc)]
use crate::FabricConfig;

/// The rung of the fence ladder on which memory came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// The operation completed by itself.
    Completion,
    /// The key by which the memory could be reached was invalidated, and that has completed.
    LocalInvalidation,
    /// The queue pair went to the error state and gave the operation back as flushed.
    QueuePairDrained,
    /// The queue pair did not give it back in time, and was destroyed.
    QueuePairDestroyed,
    /// The peer has said that its side of the connection is closed.
    PeerClosed,
    /// Somebody has seen to it that the device stopped. That it is to be removed, or says that it has failed,
    /// is no proof: until its queue pairs are destroyed it may go on.
    DeviceStopped,
}

/// How often memory came back on each rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FenceCounters {
    pub completion: u64,
    pub local_invalidation: u64,
    pub queue_pair_drained: u64,
    pub queue_pair_destroyed: u64,
    pub peer_closed: u64,
    pub device_stopped: u64,
}

/// What is in quarantine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// Operations whose buffers are not their owner's, and nobody knows when they will be.
    pub operations: u64,
    /// Operations whose buffers come back when nothing can be written late any more.
    pub held: u64,
    /// Queue pairs that the provider did not destroy.
    pub queue_pairs: u64,
    /// Regions of messages that the provider did not take back.
    pub regions: u64,
    /// Bytes of these buffers and regions.
    pub bytes: u64,
}

/// What a queue pair that could not be destroyed, or its device, may still touch.
#[derive(Debug)]
pub(crate) struct Remains<B> {
    /// The incarnation of the peer.
    pub(crate) peer: u64,
    pub(crate) epoch: u64,
    /// This side had asked for the connection.
    pub(crate) is_active: bool,
    pub(crate) queue_pair: Option<QueuePair>,
    pub(crate) region: Option<MemoryRegion>,
    pub(crate) operations: Vec<(Token, B)>,
}

/// A buffer that waits for the end of late writes.
#[derive(Debug)]
pub(crate) struct Held<B> {
    until: Time,
    token: Token,
    buffer: B,
    bytes: u64,
    proof: Proof,
}

/// All memory that is over and not quiet.
#[derive(Debug)]
pub(crate) struct Fence<B> {
    held: VecDeque<Held<B>>,
    /// Of what is held.
    held_bytes: u64,
    remains: Vec<Remains<B>>,
    /// What `remains` comes to.
    remaining: Quarantine,
}

impl<B> Fence<B> {
    pub(crate) const fn new() -> Self {
        Self {
            held: VecDeque::new(),
            held_bytes: 0,
            remains: Vec::new(),
            remaining: Quarantine {
                operations: 0,
                held: 0,
                queue_pairs: 0,
                regions: 0,
                bytes: 0,
            },
        }
    }

    pub(crate) fn quarantine(&self) -> Quarantine {
        Quarantine {
            held: self.held.len() as u64,
            bytes: self.remaining.bytes + self.held_bytes,
            ..self.remaining
        }
    }

    /// All that is over is quiet.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.remains.is_empty()
    }

    /// Queue pairs that may still send what was posted to them, and answer what their peer sends.
    pub(crate) fn with_queue_pair(&self) -> impl Iterator<Item = &Remains<B>> {
        let remains = self.remains.iter();
        remains.filter(|remains| remains.queue_pair.is_some())
    }

    /// Leaves all buffers to whatever may still touch them.
    pub(crate) fn forget_buffers(&mut self) {
        for held in self.held.drain(..) {
            core::mem::forget(held.buffer);
        }
        for remains in self.remains.drain(..) {
            for (_, buffer) in remains.operations {
                core::mem::forget(buffer);
            }
        }
    }
}

impl FenceCounters {
    const fn note(&mut self, proof: Proof) {
        let counter = match proof {
            Proof::Completion => &mut self.completion,
            Proof::LocalInvalidation => &mut self.local_invalidation,
            Proof::QueuePairDrained => &mut self.queue_pair_drained,
            Proof::QueuePairDestroyed => &mut self.queue_pair_destroyed,
            Proof::PeerClosed => &mut self.peer_closed,
            Proof::DeviceStopped => &mut self.device_stopped,
        };
        *counter += 1;
    }
}

/// Destroys a queue pair. False if it may still do something.
pub(crate) fn is_destroyed(provider: &mut dyn Provider, queue_pair: QueuePair) -> bool {
    provider.destroy_queue_pair(queue_pair).is_ok()
}

impl<B: Buffer> Shared<B> {
    /// The device has given an operation back, or cannot touch it any more: says the outcome if it was
    /// not said, and returns the buffer when nothing can touch it any more (P-14).
    pub(crate) fn end_operation(
        &mut self,
        provider: &mut dyn Provider,
        token: Token,
        operation: Operation<B>,
        outcome: Result<(), OperationError>,
        proof: Proof,
    ) {
        let is_success = outcome.is_ok();
        let buffer = self.decide_if_open(token, operation, outcome);
        let bound = self.config.late_write_bound;
        if !CONTRACT || is_success || bound == Duration::ZERO {
            self.quiesce(token, buffer, proof);
        } else if ends_own_region(provider, &buffer) {
            self.quiesce(token, buffer, Proof::LocalInvalidation);
        } else {
            self.hold(token, buffer, proof, bound);
        }
    }

    /// Returns a buffer when so much time has passed (P-57).
    fn hold(&mut self, token: Token, buffer: B, proof: Proof, bound: Duration) {
        if bound == Duration::ZERO {
            self.quiesce(token, buffer, proof);
            return;
        }
        let until = self.now + bound;
        self.note_deadline(until);
        let bytes = bytes_of(&buffer);
        self.fence.held_bytes += bytes;
        let held = Held {
            until,
            token,
            buffer,
            bytes,
            proof,
        };
        // Not all are held for the same time.
        let at = self.fence.held.partition_point(|held| held.until <= until);
        self.fence.held.insert(at, held);
    }

    /// An outcome that was said stays (P-16).
    fn decide_if_open(
        &mut self,
        token: Token,
        operation: Operation<B>,
        outcome: Result<(), OperationError>,
    ) -> B {
        if operation.is_open() {
            self.decide_operation(token, outcome);
        }
        operation.buffer
    }

    /// Nothing can touch the operation's memory any more.
    fn quiesce(&mut self, token: Token, buffer: B, proof: Proof) {
        self.counters.operations_quiesced += 1;
        self.counters.fences.note(proof);
        self.events.push_back(FabricEvent::Quiesced {
            operation: OperationId(token),
            buffer,
            proof,
        });
    }

    /// A queue pair could not be destroyed, or its region not be ended. Operations whose memory can be
    /// fenced in otherwise come back.
    pub(crate) fn quarantine(
        &mut self,
        provider: &mut dyn Provider,
        mut remains: Remains<B>,
        operations: Vec<(Token, Operation<B>)>,
        error: OperationError,
    ) {
        for (token, operation) in operations {
            let buffer = self.decide_if_open(token, operation, Err(error));
            if ends_own_region(provider, &buffer) {
                self.quiesce(token, buffer, Proof::LocalInvalidation);
                continue;
            }
            self.counters.operations_quarantined += 1;
            let operation = OperationId(token);
            self.events
                .push_back(FabricEvent::Quarantined { operation });
            remains.operations.push((token, buffer));
        }
        self.note_deadline(self.now + self.timeouts.drain);
        self.fence.remains.push(remains);
        self.fence.count();
    }

    /// Returns what late writes cannot reach any more, and tries once more to get rid of what the
    /// provider did not take back. True if anything came back.
    pub(crate) fn check_fence(&mut self, provider: &mut dyn Provider) -> bool {
        let mut progressed = false;
        while let Some(held) = self.fence.held.pop_front_if(|held| held.until <= self.now) {
            progressed = true;
            self.fence.held_bytes -= held.bytes;
            self.quiesce(held.token, held.buffer, held.proof);
        }
        if let Some(next) = self.fence.held.front().map(|held| held.until) {
            self.note_deadline(next);
        }
        if self.fence.remains.is_empty() {
            return progressed;
        }
        for mut remains in core::mem::take(&mut self.fence.remains) {
            if let Some(queue_pair) = remains.queue_pair
                && is_destroyed(provider, queue_pair)
            {
                remains.queue_pair = None;
                progressed = true;
                self.detach_receives(queue_pair, Kept::All);
                self.release_operations(&mut remains, Proof::QueuePairDestroyed);
            }
            self.keep_rest(provider, remains);
        }
        self.fence.count();
        progressed
    }

    /// What is left of remains stays in quarantine (P-58).
    fn keep_rest(&mut self, provider: &mut dyn Provider, mut remains: Remains<B>) {
        if remains.queue_pair.is_none()
            && let Some(region) = &remains.region
            && provider.deregister_region(region).is_ok()
        {
            remains.region = None;
        }
        if remains.queue_pair.is_some() || remains.region.is_some() {
            self.note_deadline(self.now + self.timeouts.drain);
            self.fence.remains.push(remains);
        }
    }

    /// Late writes of this device are still waited for.
    fn release_operations(&mut self, remains: &mut Remains<B>, proof: Proof) {
        let bound = match proof {
            Proof::DeviceStopped => Duration::ZERO,
            // What the peer had sent before it closed may still be on its way.
            Proof::PeerClosed => self.config.late_write_bound.max(self.timeouts.drain),
            _ => self.config.late_write_bound,
        };
        for (token, buffer) in remains.operations.drain(..) {
            self.counters.operations_quarantined -= 1;
            self.hold(token, buffer, proof, bound);
        }
    }

    /// There is a proof for some remains.
    fn release_remains(&mut self, proof: Proof, covers: impl Fn(&Remains<B>) -> bool) {
        let mut all = core::mem::take(&mut self.fence.remains);
        for remains in all.iter_mut().filter(|remains| covers(remains)) {
            self.release_operations(remains, proof);
        }
        self.fence.remains = all;
        self.fence.count();
    }

    /// The peer's word about the connections that it has no more. False if one of their queue pairs
    /// still exists.
    pub(crate) fn note_closed(&mut self, hello: &Hello, is_active: bool) -> bool {
        let covers = |remains: &Remains<B>| {
            remains.is_active == is_active
                && remains.peer == hello.incarnation
                && remains.epoch < hello.oldest_epoch
        };
        self.release_remains(Proof::PeerClosed, covers);
        let mut covered = self.fence.remains.iter().filter(|remains| covers(remains));
        covered.all(|remains| remains.queue_pair.is_none())
    }

    /// The device does nothing any more.
    pub(crate) fn note_stopped(&mut self) {
        self.fence.held_bytes = 0;
        for held in core::mem::take(&mut self.fence.held) {
            self.quiesce(held.token, held.buffer, Proof::DeviceStopped);
        }
        self.release_remains(Proof::DeviceStopped, |_| true);
    }

    pub(crate) fn is_quarantine_full(&self) -> bool {
        self.fence.quarantine().bytes > self.config.quarantine_max
    }
}

impl<B: Buffer> Fence<B> {
    fn count(&mut self) {
        let mut sum = Quarantine::default();
        for remains in &self.remains {
            sum.operations += remains.operations.len() as u64;
            sum.queue_pairs += u64::from(remains.queue_pair.is_some());
            if let Some(region) = &remains.region {
                sum.regions += 1;
                sum.bytes += region.length;
            }
            let buffers = remains.operations.iter().map(|(_, buffer)| buffer);
            sum.bytes += buffers.map(bytes_of).sum::<u64>();
        }
        self.remaining = sum;
    }
}

fn bytes_of<B: Buffer>(buffer: &B) -> u64 {
    let entries = buffer.entries().into_iter();
    entries.map(|entry| u64::from(entry.length)).sum()
}

/// Ends the region that is the buffer's alone, if it has one.
fn ends_own_region<B: Buffer>(provider: &mut dyn Provider, buffer: &B) -> bool {
    buffer
        .own_region()
        .is_some_and(|region| provider.deregister_region(&region).is_ok())
}
