//! One connection: its queue pair, its message buffers, and what is under way on it.

use crate::credits::{Layout, PROBES};
use crate::event::Buffer;
use crate::id::{Key, Kind, Token};
use crate::lifecycle::State;
use crate::liveness::{Liveness, ProbeSend};
use crate::one_sided::Operation;
use crate::outage::Outage;
use crate::proof::Handshake;
use crate::receive_pool::ReceivePool;
use crate::receiving::Receives;
use crate::rpc::{Call, PendingReply, RequestSend};
use crate::shared::Shared;
use crate::table::Table;
use crate::waiting::Waiting;
use crate::{ConnectionId, ResetCause};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::message::Hello;
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, MemoryRegion, ProtectionDomain, Provider,
    QueuePair, QueuePairInit, RemoteKey, VerbsError,
};

#[derive(Debug)]
pub(crate) struct Connection<B> {
    pub(crate) id: ConnectionId,
    pub(crate) queue_pair: QueuePair,
    pub(crate) state: State,
    /// Receive buffers, if they are its own, then buffers for requests, then for replies.
    pub(crate) region: MemoryRegion,
    /// Where peers are separated: what is registered there is out of reach for the queue pairs of
    /// others.
    pub(crate) own_domain: Option<ProtectionDomain>,
    pub(crate) handshake: Handshake,
    pub(crate) layout: Layout,
    pub(crate) receives: Receives,
    /// Messages that came before the connection event: buffer and length.
    pub(crate) early: Vec<(u16, u32)>,
    pub(crate) peer: Hello,
    pub(crate) epoch: u64,
    /// The oldest of this side's connections, as the peer was told when it was made.
    pub(crate) oldest_told: u64,
    /// This side asked for it.
    pub(crate) is_active: bool,
    /// The peer said no, or nothing.
    pub(crate) is_refused: bool,
    pub(crate) private_data: Vec<u8>,
    pub(crate) calls: Table<Call>,
    pub(crate) request_sends: Table<RequestSend>,
    /// When each was posted.
    pub(crate) reply_sends: Table<Time>,
    /// A ping and a pong.
    pub(crate) probe_sends: [Option<ProbeSend>; PROBES as usize],
    pub(crate) pong_owed: bool,
    pub(crate) pending_replies: VecDeque<PendingReply>,
    /// The peer's unanswered requests.
    pub(crate) requests: Table<Waiting>,
    pub(crate) operations: Table<Operation<B>>,
    /// For grants to come, by their keys of now.
    pub(crate) windows: Vec<RemoteKey>,
    pub(crate) outage: Option<Outage>,
}

impl<B: Buffer> Connection<B> {
    /// A queue pair in Init with all its receives posted.
    pub(crate) fn open(
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        id: ConnectionId,
        epoch: u64,
        state: State,
    ) -> Result<Self, VerbsError> {
        let credits = shared.grant(provider)?;
        let layout = Layout::new(credits, shared.pool.is_some());
        // P-81: out of reach for every other peer's queue pair.
        let own_domain = match state {
            State::Accepting { .. } if shared.config.separate_peers => {
                Some(provider.create_protection_domain()?)
            }
            _ => None,
        };
        let domain = own_domain.unwrap_or(shared.domain);
        let made = Self::open_queue_pair(shared, provider, domain, layout);
        let (region, queue_pair) = match made {
            Ok(made) => made,
            Err(error) => {
                // Nothing is in it, so it goes.
                let _ = own_domain.map(|domain| provider.destroy_protection_domain(domain));
                return Err(error);
            }
        };
        let mut connection = Self {
            id,
            queue_pair,
            state,
            region,
            own_domain,
            handshake: Handshake::None,
            layout,
            receives: match &shared.pool {
                Some(_) => Receives::Shared {
                    reached_last: false,
                },
                None => Receives::own(layout.receives),
            },
            early: Vec::new(),
            peer: Hello {
                credits: 0,
                message_length_max: 0,
                incarnation: 0,
                epoch,
                oldest_epoch: 0,
            },
            epoch,
            oldest_told: 0,
            is_active: matches!(state, State::Connecting { .. }),
            is_refused: false,
            private_data: Vec::new(),
            calls: Table::new(credits),
            request_sends: Table::new(credits),
            reply_sends: Table::new(credits),
            probe_sends: [None; PROBES as usize],
            pong_owed: false,
            pending_replies: VecDeque::new(),
            requests: Table::new(credits),
            operations: Table::new(shared.config.one_sided_max),
            windows: Vec::new(),
            outage: None,
        };
        if let Some(pool) = &mut shared.pool {
            pool.attach(queue_pair, id.index as u16, credits);
        }
        if let Err(error) = connection.prepare(shared, provider) {
            connection.release(shared, provider, ResetCause::Closed);
            return Err(error);
        }
        Ok(connection)
    }

    fn open_queue_pair(
        shared: &Shared<B>,
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        layout: Layout,
    ) -> Result<(MemoryRegion, QueuePair), VerbsError> {
        let sizes = shared.sizes;
        let access = AccessFlags::LOCAL_WRITE;
        let length = sizes.stride * u64::from(layout.buffers());
        let region = provider.allocate_region(domain, length, access)?;
        let capabilities = sizes.capabilities(layout.credits);
        let mut init = QueuePairInit::new(domain, shared.queue, capabilities);
        if let Some(queue) = shared.pool.as_ref().and_then(ReceivePool::queue) {
            init.receives = legato_verbs::Receives::Shared(queue);
        }
        match provider.create_queue_pair(&init) {
            Ok(queue_pair) => Ok((region, queue_pair)),
            Err(error) => {
                // Nothing was posted yet, so it goes.
                let _ = provider.deregister_region(&region);
                Err(error)
            }
        }
    }

    fn prepare(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<(), VerbsError> {
        provider.modify_to_init(self.queue_pair)?;
        self.post_receives(shared, provider)
    }

    pub(crate) fn token(&self, kind: Kind, key: Key) -> Token {
        Token::new(kind, self.id.index as u16, key)
    }

    pub(crate) fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// Work requests that the provider has not given back, markers aside.
    pub(crate) fn outstanding(&self) -> usize {
        self.request_sends.len()
            + self.reply_sends.len()
            + self
                .operations
                .iter()
                .map(|(_, it)| it.posted())
                .sum::<usize>()
            + self.probe_sends.iter().flatten().count()
            + self.receives.outstanding()
    }

    /// The queue pair is ready: what came early is handled now.
    pub(crate) fn establish(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        self.state = State::Established(Liveness::starting_at(shared.now));
        shared.note_deadline(shared.now + shared.timeouts.ping);
        shared.counters.connections_established += 1;
        self.handle_early(shared, provider);
        if self.is_established() && !self.receives.is_complete() {
            // A receive failed meanwhile, and the peer's credits count on it.
            self.reset(shared, provider, ResetCause::Unexpected);
        }
    }

    pub(crate) fn handle_completion(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        token: Token,
        result: Result<CompletionKind, CompletionStatus>,
    ) {
        let key = token.key();
        let known = match token.kind() {
            Some(Kind::OneSided) => self.complete_operation(shared, provider, key, result),
            Some(Kind::Receive) => self.complete_receive(shared, provider, key, result),
            Some(Kind::SharedReceive) => {
                self.complete_shared_receive(shared, provider, key, result);
                true
            }
            Some(Kind::RequestSend) => self.complete_request_send(shared, key, result),
            Some(Kind::ReplySend) => self.reply_sends.remove(key).is_some(),
            Some(Kind::Probe) => self.complete_probe(shared, provider, key),
            Some(Kind::Marker) => self.complete_marker(key),
            Some(Kind::Revocation) => self.complete_revocation(shared, provider, key, result),
            Some(Kind::Call | Kind::Request) | None => false,
        };
        if !known {
            shared.counters.completions_stale += 1;
        } else if let Err(status) = result
            && !matches!(
                self.state,
                State::Connecting { .. } | State::Accepting { .. } | State::Confirming { .. }
            )
        {
            self.reset(shared, provider, ResetCause::Transport(status));
        }
    }

    /// Ends what has not ended in time, and reports the handlers that should have. True if there
    /// was any.
    pub(crate) fn expire(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) -> bool {
        let calls = self.expire_calls(shared);
        let operations = self.expire_operations(shared);
        // P-15: nothing else calls a posted request back.
        if operations {
            self.reset(shared, provider, ResetCause::OperationExpired);
        }
        let mut progressed = calls || operations;
        progressed |= self.report_overdue(shared);
        if self.is_established() {
            self.send_owed_pong(shared, provider);
            self.repost(shared, provider);
            if let Some(cause) = self.starved(shared).or_else(|| self.outlasted(shared)) {
                self.reset(shared, provider, cause);
                progressed = true;
            }
            progressed |= self.check_liveness(shared, provider);
        }
        self.start_flush(shared, provider);
        progressed | self.settle(shared)
    }

    /// A completion or a reply was lost, and with it what it would have given back (P-51).
    fn starved(&mut self, shared: &Shared<B>) -> Option<ResetCause> {
        let (now, timeouts) = (shared.now, shared.timeouts);
        let requests = self.request_sends.iter_mut().map(|(_, send)| send.posted);
        let replies = self.reply_sends.iter_mut().map(|(_, posted)| *posted);
        let probes = self.probe_sends.iter().flatten().map(|send| send.posted);
        let oldest = requests.chain(replies).chain(probes).min();
        if oldest.is_some_and(|posted| posted + timeouts.completion <= now) {
            return Some(ResetCause::CompletionMissing);
        }
        let credits = self.peer.credits.min(self.layout.credits) as usize;
        let lost = |call: &Call| match call {
            Call::Waiting { .. } => false,
            Call::Abandoned { since } => *since + timeouts.credits <= now,
        };
        let lost = self.calls.iter_mut().filter(|(_, call)| lost(call)).count();
        (lost > 0 && lost >= credits).then_some(ResetCause::CreditsLost)
    }
}
