//! What the rules are written with: two sides, their events, and waits that end.

use super::expect::{equal, must, pattern, send, violation};
use super::{Advance, Violation, World};
use crate::{
    AccessFlags, AsyncEvent, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest, ScatterGatherEntry,
    SendRequest, Subject, WorkRequestId,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

pub(super) type Checked<T = ()> = Result<T, Violation>;

/// One of the two providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// A queue pair with what it needs: its own domain, queue, and one region with all permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) side: Side,
    pub(super) domain: ProtectionDomain,
    pub(super) queue: CompletionQueue,
    pub(super) queue_pair: QueuePair,
    pub(super) region: MemoryRegion,
}

/// A world with the events that its providers have raised so far.
pub(super) struct Session<'w> {
    pub(super) world: &'w mut dyn World,
    events: [Vec<Event>; 2],
}

pub(super) const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(7);
/// Bytes of an [`End`]'s region.
pub(super) const REGION_LENGTH: u64 = 16 * 1024;
pub(super) const SMALL: QueuePairCapabilities = QueuePairCapabilities {
    send_requests_max: 8,
    receive_requests_max: 8,
    entries_max: 4,
};
/// More completions than any rule has outstanding.
const POLL_MAX: usize = 4096;

impl<'w> Session<'w> {
    pub(super) fn new(world: &'w mut dyn World) -> Self {
        Self {
            world,
            events: [Vec::new(), Vec::new()],
        }
    }

    pub(super) fn on(&mut self, side: Side) -> &mut dyn Provider {
        match side {
            Side::Left => self.world.left(),
            Side::Right => self.world.right(),
        }
    }

    fn gather_events(&mut self) {
        for side in [Side::Left, Side::Right] {
            while let Some(event) = self.on(side).poll_event() {
                self.events[side as usize].push(event);
            }
        }
    }

    /// Lets everything arrive that is under way.
    pub(super) fn settle(&mut self) {
        self.world.settle();
        self.gather_events();
    }

    /// Steps until `probe` finds something, or says what was missing.
    pub(super) fn wait<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Self) -> Checked<Option<T>>,
    ) -> Checked<T> {
        self.world.begin_wait();
        loop {
            self.gather_events();
            if let Some(found) = probe(self)? {
                return Ok(found);
            }
            if self.world.advance() == Advance::Exhausted {
                self.gather_events();
                return probe(self)?.ok_or_else(|| violation(what, "it happens", "it never did"));
            }
        }
    }

    /// Takes the first event on `side` that `pick` wants.
    pub(super) fn event<T>(
        &mut self,
        side: Side,
        what: &str,
        mut pick: impl FnMut(&Event) -> Option<T>,
    ) -> Checked<T> {
        let found = self.wait(what, |session| {
            let events = &mut session.events[side as usize];
            let hit = events
                .iter()
                .enumerate()
                .find_map(|(place, event)| pick(event).map(|value| (place, value)));
            Ok(hit.map(|(place, value)| {
                events.remove(place);
                value
            }))
        });
        found.map_err(|mut missing| {
            missing.got = format!("other events: {:?}", self.events[side as usize]);
            missing
        })
    }

    /// How many events that no rule has taken yet are as `pick` says.
    pub(super) fn count_events(&mut self, side: Side, pick: impl Fn(&Event) -> bool) -> usize {
        self.gather_events();
        let events = self.events[side as usize].iter();
        events.filter(|event| pick(event)).count()
    }

    /// Events about one queue pair that no rule has taken yet, except for mere hints.
    pub(super) fn events_about(&mut self, end: &End) -> Vec<Event> {
        self.gather_events();
        let about = |event: &&Event| subject(event) == Some(end.queue_pair) && !is_hint(event);
        self.events[end.side as usize]
            .iter()
            .filter(about)
            .cloned()
            .collect()
    }

    pub(super) fn disconnected(&mut self, end: &End) -> Checked {
        let wanted = Event::Connection(ConnectionEvent::Disconnected {
            queue_pair: end.queue_pair,
        });
        self.event(end.side, "Disconnected at the peer", |event| {
            (*event == wanted).then_some(())
        })
    }

    /// Waits until the queue pair can be connected again.
    pub(super) fn time_wait_over(&mut self, end: &End) -> Checked {
        let wanted = Event::Connection(ConnectionEvent::TimeWaitExit {
            queue_pair: end.queue_pair,
        });
        self.event(end.side, "TimeWaitExit", |event| {
            (*event == wanted).then_some(())
        })
    }

    /// An unconnected queue pair in Init.
    pub(super) fn end(&mut self, side: Side, capabilities: QueuePairCapabilities) -> Checked<End> {
        let end = self.end_in_reset(side, capabilities)?;
        must(
            "modify to Init",
            self.on(side).modify_to_init(end.queue_pair),
        )?;
        Ok(end)
    }

    pub(super) fn end_in_reset(
        &mut self,
        side: Side,
        capabilities: QueuePairCapabilities,
    ) -> Checked<End> {
        let provider = self.on(side);
        let domain = must(
            "create a protection domain",
            provider.create_protection_domain(),
        )?;
        let entries = capabilities.send_requests_max + capabilities.receive_requests_max;
        let queue = must(
            "create a completion queue",
            provider.create_completion_queue(entries),
        )?;
        let queue_pair = must(
            "create a queue pair",
            provider.create_queue_pair(&QueuePairInit::new(domain, queue, capabilities)),
        )?;
        let region = must(
            "allocate a region",
            provider.allocate_region(domain, REGION_LENGTH, ALL_ACCESS),
        )?;
        Ok(End {
            side,
            domain,
            queue,
            queue_pair,
            region,
        })
    }

    /// Destroys all of an end, in the order that the model demands.
    pub(super) fn dismantle(&mut self, end: End) -> Checked {
        let provider = self.on(end.side);
        must(
            "destroy the queue pair",
            provider.destroy_queue_pair(end.queue_pair),
        )?;
        must(
            "deregister the region",
            provider.deregister_region(&end.region),
        )?;
        must(
            "destroy the queue",
            provider.destroy_completion_queue(end.queue),
        )?;
        must(
            "destroy the domain",
            provider.destroy_protection_domain(end.domain),
        )
    }

    /// Two ends with an established connection between them; left was the active side.
    pub(super) fn connected(&mut self, capabilities: QueuePairCapabilities) -> Checked<(End, End)> {
        let left = self.end(Side::Left, capabilities)?;
        let right = self.end(Side::Right, capabilities)?;
        self.connect(&left, &right)?;
        Ok((left, right))
    }

    /// Connects two queue pairs in Init.
    pub(super) fn connect(&mut self, left: &End, right: &End) -> Checked {
        let address = self.world.fresh_address(Side::Right);
        let listener = must("listen", self.on(Side::Right).listen(&address))?;
        must(
            "connect",
            self.on(Side::Left).connect(left.queue_pair, &address, &[]),
        )?;
        let (request, _) = self.requested(listener)?;
        must(
            "accept",
            self.on(Side::Right).accept(request, right.queue_pair, &[]),
        )?;
        self.established(left)?;
        self.established(right)?;
        must(
            "close the listener",
            self.on(Side::Right).close_listener(listener),
        )
    }

    /// The next peer at `listener`, with its private data.
    pub(super) fn requested(
        &mut self,
        listener: Listener,
    ) -> Checked<(crate::ConnectionRequest, Vec<u8>)> {
        self.requested_of(Side::Right, listener)
    }

    /// As [`Self::requested`], at a listener of this side.
    pub(super) fn requested_of(
        &mut self,
        side: Side,
        listener: Listener,
    ) -> Checked<(crate::ConnectionRequest, Vec<u8>)> {
        self.event(
            side,
            "a connection request at the listener",
            |event| match event {
                Event::Connection(ConnectionEvent::Requested {
                    listener: at,
                    request,
                    private_data,
                }) if *at == listener => Some((*request, private_data.clone())),
                _ => None,
            },
        )
    }

    /// Waits for Established and returns the private data; the state must be ReadyToSend then.
    pub(super) fn established(&mut self, end: &End) -> Checked<Vec<u8>> {
        let data = self.event(end.side, "Established", |event| match event {
            Event::Connection(ConnectionEvent::Established {
                queue_pair,
                private_data,
            }) if *queue_pair == end.queue_pair => Some(private_data.clone()),
            _ => None,
        })?;
        self.state_is(end, QueuePairState::ReadyToSend)?;
        Ok(data)
    }

    pub(super) fn state_is(&mut self, end: &End, expected: QueuePairState) -> Checked {
        let state = self.on(end.side).query_queue_pair(end.queue_pair);
        equal("the state of the queue pair", &Ok(expected), &state)
    }

    /// Waits until the queue pair is in the error state.
    pub(super) fn reaches_error(&mut self, end: &End) -> Checked {
        self.wait("the queue pair goes to the error state", |session| {
            let state = session.on(end.side).query_queue_pair(end.queue_pair);
            Ok((state == Ok(QueuePairState::Error)).then_some(()))
        })
    }

    /// What the queue holds now.
    pub(super) fn poll(&mut self, end: &End) -> Checked<Vec<Completion>> {
        let mut completions = Vec::new();
        let polled = self
            .on(end.side)
            .poll_completion_queue(end.queue, POLL_MAX, &mut completions);
        let count = must("poll the completion queue", polled)?;
        equal("the count that a poll returns", &completions.len(), &count)?;
        Ok(completions)
    }

    /// Waits for exactly `count` completions.
    pub(super) fn completions(&mut self, end: &End, count: usize) -> Checked<Vec<Completion>> {
        let mut seen = Vec::new();
        let waited = self.wait("completions arrive", |session| {
            seen.extend(session.poll(end)?);
            Ok((seen.len() >= count).then_some(()))
        });
        if waited.is_err() || seen.len() > count {
            return Err(violation(
                "the completions",
                &format!("{count} of them"),
                &format!("{seen:?}"),
            ));
        }
        Ok(seen)
    }

    /// Waits for one completion of each given id and result, in this order.
    pub(super) fn completes(
        &mut self,
        end: &End,
        expected: &[(u64, Result<CompletionKind, CompletionStatus>)],
    ) -> Checked {
        let expected: Vec<Completion> = expected
            .iter()
            .map(|&(wr_id, result)| Completion {
                wr_id: WorkRequestId(wr_id),
                queue_pair: end.queue_pair,
                result,
                vendor_error: 0,
            })
            .collect();
        let mut came = self.completions(end, expected.len())?;
        // Each maker has numbers of its own.
        came.iter_mut().for_each(|one| one.vendor_error = 0);
        equal("the completions, in order", &expected, &came)
    }

    /// Nothing further completes on the end's queue.
    pub(super) fn completes_no_more(&mut self, end: &End) -> Checked {
        self.settle();
        let rest = self.poll(end)?;
        equal("completions beyond those due", &Vec::new(), &rest)
    }

    pub(super) fn post_send(&mut self, end: &End, request: &SendRequest) -> Checked {
        let posted = self.on(end.side).post_send(end.queue_pair, request);
        must("post to the send queue", posted)
    }

    pub(super) fn post_receive(
        &mut self,
        end: &End,
        wr_id: u64,
        entries: Vec<ScatterGatherEntry>,
    ) -> Checked {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries,
        };
        let posted = self.on(end.side).post_receive(end.queue_pair, &request);
        must("post a receive", posted)
    }

    pub(super) fn fill(&mut self, end: &End, offset: u64, bytes: &[u8]) -> Checked {
        let written = self.on(end.side).write_region(&end.region, offset, bytes);
        must("write into the region", written)
    }

    pub(super) fn bytes(&mut self, end: &End, offset: u64, length: usize) -> Checked<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = self
            .on(end.side)
            .read_region(&end.region, offset, &mut bytes);
        must("read out of the region", read)?;
        Ok(bytes)
    }

    /// Sends one small message each way and finds it intact: the connection works.
    pub(super) fn exchange(&mut self, left: &End, right: &End) -> Checked {
        for (from, to) in [(left, right), (right, left)] {
            let message = pattern(u64::from(from.queue_pair.index), 100);
            self.fill(from, 0, &message)?;
            self.post_receive(to, 71, vec![to.region.entry(8192, 100)])?;
            self.post_send(from, &send(70, vec![from.region.entry(0, 100)]))?;
            self.completes(from, &[(70, Ok(CompletionKind::Send))])?;
            self.completes(to, &[(71, Ok(CompletionKind::Receive { length: 100 }))])?;
            let came = self.bytes(to, 8192, 100)?;
            equal("the message", &message, &came)?;
        }
        Ok(())
    }
}

/// Says nothing that a rule could rely on.
const fn is_hint(event: &Event) -> bool {
    matches!(
        event,
        Event::Connection(ConnectionEvent::TimeWaitExit { .. })
            | Event::Async(
                AsyncEvent::CommunicationEstablished(_)
                    | AsyncEvent::SendQueueDrained(_)
                    | AsyncEvent::LastWorkRequestReached(_)
            )
    )
}

/// The queue pair that an event is about.
pub(super) fn subject(event: &Event) -> Option<QueuePair> {
    match event {
        Event::Connection(ConnectionEvent::Requested { .. }) | Event::CompletionQueueReady(_) => {
            None
        }
        Event::Connection(
            ConnectionEvent::Established { queue_pair, .. }
            | ConnectionEvent::Rejected { queue_pair, .. }
            | ConnectionEvent::Unreachable { queue_pair, .. }
            | ConnectionEvent::Disconnected { queue_pair }
            | ConnectionEvent::DeviceRemoved { queue_pair }
            | ConnectionEvent::AddressRemoved { queue_pair }
            | ConnectionEvent::AddressReturned { queue_pair }
            | ConnectionEvent::TimeWaitExit { queue_pair }
            | ConnectionEvent::AddressChanged { queue_pair },
        ) => Some(*queue_pair),
        Event::Async(event) => match event.subject() {
            Subject::QueuePair(queue_pair) => Some(queue_pair),
            _ => None,
        },
    }
}
