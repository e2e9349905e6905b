//! Ends of connections on the guest's device, for what the suite does not ask.

use crate::world::{DeviceWorld, fresh_address};
use legato_providers::IbverbsProvider;
use legato_verbs::conformance::{Advance, World as _};
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, ConnectionRequest, Event,
    MemoryRegion, ProtectionDomain, Provider as _, QueuePair, QueuePairAttributes,
    QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest, SendFlags, SendOperation,
    SendRequest, WorkRequestId,
};

/// Bytes of an end's region.
pub(crate) const REGION: u64 = 64 * 1024;
pub(crate) const REQUESTS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// What queue pairs of one side have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) region: MemoryRegion,
}

/// Two openings of the device, and what they have said.
pub(crate) struct Rig {
    pub(crate) world: DeviceWorld,
    pub(crate) events: [Vec<Event>; 2],
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self {
            world: DeviceWorld::new(),
            events: [Vec::new(), Vec::new()],
        }
    }

    pub(crate) fn on(&mut self, side: Side) -> &mut IbverbsProvider {
        match side {
            Side::Left => &mut self.world.left,
            Side::Right => &mut self.world.right,
        }
    }

    pub(crate) fn ground(&mut self, side: Side, entries: u32) -> Ground {
        let provider = self.on(side);
        let domain = provider.create_protection_domain().unwrap();
        let all = AccessFlags::from_bits(15);
        Ground {
            domain,
            queue: provider.create_completion_queue(entries).unwrap(),
            region: provider.allocate_region(domain, REGION, all).unwrap(),
        }
    }

    /// In Reset.
    pub(crate) fn queue_pair(&mut self, side: Side, ground: &Ground) -> QueuePair {
        let capabilities = QueuePairCapabilities {
            send_requests_max: REQUESTS,
            receive_requests_max: REQUESTS,
            entries_max: 1,
        };
        let init = QueuePairInit::new(ground.domain, ground.queue, capabilities);
        self.on(side).create_queue_pair(&init).unwrap()
    }

    /// Steps until there is something.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        self.world.begin_wait();
        loop {
            for side in [Side::Left, Side::Right] {
                while let Some(event) = self.on(side).poll_event() {
                    self.events[side as usize].push(event);
                }
            }
            if let Some(found) = probe(self) {
                return found;
            }
            let advanced = self.world.advance();
            assert_ne!(advanced, Advance::Exhausted, "{what}: {:?}", self.events);
        }
    }

    /// Takes an event.
    pub(crate) fn event<T>(
        &mut self,
        side: Side,
        what: &str,
        mut pick: impl FnMut(&Event) -> Option<T>,
    ) -> T {
        self.wait(what, |rig| {
            let events = &mut rig.events[side as usize];
            let mut found = events.iter().enumerate();
            let (place, found) = found.find_map(|(place, event)| Some((place, pick(event)?)))?;
            events.remove(place);
            Some(found)
        })
    }

    pub(crate) fn established(&mut self, side: Side, queue_pair: QueuePair) {
        self.event(side, "Established", |event| match event {
            Event::Connection(ConnectionEvent::Established { queue_pair: of, .. }) => {
                (*of == queue_pair).then_some(())
            }
            _ => None,
        });
    }

    pub(crate) fn disconnected(&mut self, side: Side, queue_pair: QueuePair) {
        let wanted = Event::Connection(ConnectionEvent::Disconnected { queue_pair });
        self.event(side, "Disconnected", |event| {
            (*event == wanted).then_some(())
        });
    }

    /// Whichever way: a peer that ends before it has confirmed the connection rejects it.
    pub(crate) fn ended(&mut self, side: Side, queue_pair: QueuePair) {
        self.event(side, "the end of a connection", |event| match event {
            Event::Connection(
                ConnectionEvent::Disconnected { queue_pair: of }
                | ConnectionEvent::Rejected { queue_pair: of, .. }
                | ConnectionEvent::Unreachable { queue_pair: of, .. },
            ) => (*of == queue_pair).then_some(()),
            _ => None,
        });
    }

    pub(crate) fn requested(&mut self, side: Side) -> ConnectionRequest {
        self.event(side, "Requested", |event| match event {
            Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(*request),
            _ => None,
        })
    }

    /// Connects two queue pairs in Init through connection management.
    pub(crate) fn connect(&mut self, left: QueuePair, right: QueuePair) {
        let address = fresh_address();
        let listener = self.on(Side::Right).listen(&address).unwrap();
        self.on(Side::Left).connect(left, &address, &[]).unwrap();
        let request = self.requested(Side::Right);
        self.on(Side::Right).accept(request, right, &[]).unwrap();
        self.established(Side::Left, left);
        self.established(Side::Right, right);
        self.on(Side::Right).close_listener(listener).unwrap();
    }

    /// Takes a queue pair from Reset to ReadyToSend without connection management.
    pub(crate) fn by_hand(
        &mut self,
        side: Side,
        queue_pair: QueuePair,
        receiving: QueuePairAttributes,
        sending: QueuePairAttributes,
    ) {
        let receiving = QueuePairAttributes {
            address_vector: Some(self.on(side).port_address()),
            ..receiving
        };
        for (state, attributes) in [
            (QueuePairState::Init, QueuePairAttributes::INIT),
            (QueuePairState::ReadyToReceive, receiving),
            (QueuePairState::ReadyToSend, sending),
        ] {
            let provider = self.on(side);
            provider
                .modify_queue_pair(queue_pair, state, &attributes)
                .unwrap();
        }
    }

    /// Waits for so many completions.
    pub(crate) fn completions(
        &mut self,
        side: Side,
        queue: CompletionQueue,
        count: usize,
    ) -> Vec<Completion> {
        let mut came = Vec::new();
        self.wait("completions", |rig| {
            let polled = rig.on(side).poll_completion_queue(queue, 64, &mut came);
            polled.unwrap();
            (came.len() >= count).then_some(())
        });
        assert_eq!(came.len(), count, "{came:?}");
        came
    }

    pub(crate) fn send(&mut self, side: Side, queue_pair: QueuePair, wr_id: u64, ground: &Ground) {
        let request = SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation: SendOperation::Send,
            entries: vec![ground.region.entry(0, 64)],
            flags: SendFlags::SIGNALED,
        };
        self.on(side).post_send(queue_pair, &request).unwrap();
    }

    pub(crate) fn receive(
        &mut self,
        side: Side,
        queue_pair: QueuePair,
        wr_id: u64,
        ground: &Ground,
    ) {
        let request = receive_of(wr_id, ground);
        self.on(side).post_receive(queue_pair, &request).unwrap();
    }

    pub(crate) fn fill(&mut self, side: Side, ground: &Ground, bytes: &[u8]) {
        self.on(side)
            .write_region(&ground.region, 0, bytes)
            .unwrap();
    }

    pub(crate) fn bytes(&mut self, side: Side, ground: &Ground, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let provider = self.on(side);
        provider
            .read_region(&ground.region, offset, &mut bytes)
            .unwrap();
        bytes
    }
}

/// Into the 64 bytes of the request's number.
pub(crate) fn receive_of(wr_id: u64, ground: &Ground) -> ReceiveRequest {
    ReceiveRequest {
        wr_id: WorkRequestId(wr_id),
        entries: vec![ground.region.entry(64 * (wr_id % 1024), 64)],
    }
}

/// `verbs://` at the guest's address.
pub(crate) fn at(port: u16) -> Address {
    Address::Verbs(std::net::SocketAddr::from((crate::world::HOST, port)))
}
