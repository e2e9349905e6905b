//! Receives of a connection: its own, or those that it takes from the fabric's pool.

use crate::ResetCause;
use crate::connection::Connection;
use crate::doubts::Kept;
use crate::event::Buffer;
use crate::id::{Key, Kind};
use crate::lifecycle::State;
use crate::shared::Shared;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use legato_verbs::{
    CompletionKind, CompletionStatus, MemoryRegion, Provider, QueuePairState, ReceiveRequest,
    VerbsError, WorkRequestId,
};

/// Whose the receives of a connection are.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(OwnReceives),
    /// The pool's. The queue pair has said, or will, that it takes no more.
    Shared {
        reached_last: bool,
    },
}

#[derive(Debug)]
pub(crate) struct OwnReceives {
    /// The generation with which each buffer is posted.
    posted: Vec<Option<u32>>,
    /// Those that the provider has refused, and is asked for again.
    unposted: Vec<u16>,
    /// Since when there are any.
    unposted_since: Time,
}

impl Receives {
    pub(crate) fn own(count: u32) -> Self {
        Self::Own(OwnReceives {
            posted: vec![None; count as usize],
            unposted: Vec::new(),
            unposted_since: Time::ZERO,
        })
    }

    /// Posted, and not given back. What a queue pair has taken of the pool's is not known.
    pub(crate) fn outstanding(&self) -> usize {
        match self {
            Self::Own(own) => own.posted.iter().flatten().count(),
            Self::Shared { .. } => 0,
        }
    }

    /// Does the peer find as many as its credits say?
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Own(own) => self.outstanding() + own.unposted.len() >= own.posted.len(),
            Self::Shared { .. } => true,
        }
    }
}

impl<B: Buffer> Connection<B> {
    /// Posts all receives of its own.
    pub(crate) fn post_receives(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<(), VerbsError> {
        for index in 0..self.layout.receives {
            self.post_receive(shared, provider, index as u16)?;
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
    ) -> Result<(), VerbsError> {
        let generation = shared.generations.next();
        let token = self.token(Kind::Receive, Key { index, generation });
        let offset = u64::from(index) * shared.sizes.stride;
        let request = ReceiveRequest {
            wr_id: WorkRequestId(token.bits()),
            entries: vec![self.region.entry(offset, shared.sizes.stride as u32)],
        };
        if let Err(error) = provider.post_receive(self.queue_pair, &request) {
            shared.counters.posts_refused += 1;
            return Err(error);
        }
        if let Receives::Own(own) = &mut self.receives {
            own.posted[usize::from(index)] = Some(generation);
        }
        Ok(())
    }

    /// Where the message in a receive buffer is.
    pub(crate) fn received_at(&self, shared: &Shared<B>, index: u16) -> (MemoryRegion, u64) {
        match (&self.receives, &shared.pool) {
            (Receives::Shared { .. }, Some(pool)) => pool.place(index),
            _ => (self.region, u64::from(index) * shared.sizes.stride),
        }
    }

    /// The oldest message that came too early to be handled.
    pub(crate) fn take_early(&mut self) -> Option<(u16, u32)> {
        (!self.early.is_empty()).then(|| self.early.remove(0))
    }

    /// Handles what came early.
    pub(crate) fn handle_early(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        for (index, length) in core::mem::take(&mut self.early) {
            self.handle_received(shared, provider, index, length);
        }
    }

    /// What the queue pair may have kept of the pool's receives when it is destroyed.
    pub(crate) fn kept(&self, shared: &Shared<B>, provider: &dyn Provider) -> Kept {
        if self.is_drained(shared) {
            return Kept::One;
        }
        match provider.query_queue_pair(self.queue_pair) {
            Ok(QueuePairState::Reset | QueuePairState::Init) => Kept::Nothing,
            // Whoever was never answered was never ready.
            _ if self.is_refused => Kept::Nothing,
            _ => Kept::All,
        }
    }

    /// What came early is not looked at any more.
    pub(crate) fn forget_early(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        for (index, _) in core::mem::take(&mut self.early) {
            if let Receives::Shared { .. } = self.receives {
                shared.give_back_receive(provider, index, Duration::ZERO);
            }
        }
    }

    /// One of its own receives has completed. False if it is not posted as this one.
    pub(crate) fn complete_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        let Receives::Own(own) = &mut self.receives else {
            return false;
        };
        let posted = own.posted.get_mut(usize::from(key.index));
        let Some(posted) = posted.filter(|posted| **posted == Some(key.generation)) else {
            return false;
        };
        *posted = None;
        match (result, self.state) {
            (Ok(CompletionKind::Receive { length }), State::Established(_)) => {
                self.handle_received(shared, provider, key.index, length);
            }
            (Ok(CompletionKind::Receive { length }), State::Draining(_)) => {
                let message = self.read_message(shared, provider, key.index, length);
                self.handle_message(shared, provider, message);
            }
            (Ok(CompletionKind::Receive { length }), _) => self.early.push((key.index, length)),
            (Ok(_), _) => self.reset(shared, provider, ResetCause::Unexpected),
            (Err(_), _) => {}
        }
        true
    }

    /// A receive of the pool has completed that this connection had taken.
    pub(crate) fn complete_shared_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) {
        match (result, self.state) {
            (
                Ok(CompletionKind::Receive { length }),
                State::Established(_) | State::Draining(_),
            ) => self.handle_received(shared, provider, key.index, length),
            (Ok(CompletionKind::Receive { length }), _) => self.early.push((key.index, length)),
            (Ok(_), _) => {
                shared.give_back_receive(provider, key.index, Duration::ZERO);
                self.reset(shared, provider, ResetCause::Unexpected);
            }
            (Err(_), _) => {
                let late = shared.config.late_write_bound;
                shared.give_back_receive(provider, key.index, late);
            }
        }
    }

    /// Takes the message out and posts the buffer again before the message is handled: nobody answers it,
    /// or gives the peer its credit back, before the receive is there (P-5).
    fn handle_received(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
        length: u32,
    ) {
        let message = self.read_message(shared, provider, index, length);
        self.give_back_receive(shared, provider, index);
        self.handle_message(shared, provider, message);
    }

    /// The confirmation in the buffer was taken out.
    ///
    /// # Errors
    /// When the provider refuses one of its own: the connection does not come about.
    pub(crate) fn give_back_confirmation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
    ) -> Result<(), VerbsError> {
        if let Receives::Shared { .. } = self.receives {
            shared.give_back_receive(provider, index, Duration::ZERO);
            return Ok(());
        }
        self.post_receive(shared, provider, index)
    }

    /// The message in the buffer was taken out.
    fn give_back_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
    ) {
        if let Receives::Shared { .. } = self.receives {
            return shared.give_back_receive(provider, index, Duration::ZERO);
        }
        if matches!(self.state, State::Draining(_)) {
            return;
        }
        match self.post_receive(shared, provider, index) {
            Ok(()) => {}
            Err(VerbsError::QueueFull(_) | VerbsError::System { .. }) => {
                if let Receives::Own(own) = &mut self.receives {
                    if own.unposted.is_empty() {
                        own.unposted_since = shared.now;
                    }
                    own.unposted.push(index);
                }
                shared.note_deadline(shared.now + shared.timeouts.retry);
            }
            Err(error) => self.reset(shared, provider, ResetCause::Provider(error)),
        }
    }

    /// Posts receives that were refused. The peer's sends wait for them meanwhile, but not for long (P-50).
    pub(crate) fn repost(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        loop {
            let Receives::Own(own) = &self.receives else {
                return;
            };
            let overdue = own.unposted_since + shared.timeouts.drain;
            let Some(&index) = own.unposted.last() else {
                return;
            };
            match self.post_receive(shared, provider, index) {
                Ok(()) => {
                    if let Receives::Own(own) = &mut self.receives {
                        own.unposted.pop();
                    }
                }
                Err(error) if overdue <= shared.now => {
                    self.reset(shared, provider, ResetCause::Provider(error));
                    return;
                }
                Err(_) => {
                    shared.note_deadline(shared.now + shared.timeouts.retry);
                    return;
                }
            }
        }
    }

    /// The provider says that the queue pair takes no more shared receives, which it does in the error
    /// state. That may be the only sign of it: an idle queue pair has nothing to flush. It is a hint,
    /// said again or not at all, so the queue pair is asked.
    pub(crate) fn note_last_request(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) {
        let Receives::Shared { reached_last } = &mut self.receives else {
            return;
        };
        match self.state {
            State::Draining(_) => *reached_last = true,
            State::Established(_) => {
                let state = provider.query_queue_pair(self.queue_pair);
                if matches!(state, Ok(QueuePairState::Error)) {
                    *reached_last = true;
                    let flushed = CompletionStatus::WorkRequestFlushed;
                    self.reset(shared, provider, ResetCause::Transport(flushed));
                }
            }
            State::Connecting { .. } | State::Accepting { .. } | State::Confirming { .. } => {}
        }
    }
}
