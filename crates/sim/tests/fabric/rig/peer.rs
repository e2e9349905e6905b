//! A peer of the right side that speaks verbs and not the protocol.

use super::SECOND;
use super::world::World;
use legato_base::wire::message::Hello;
use legato_fabric::ConnectionId;
use legato_sim::provider::{SimNetwork, SimProvider};
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, MemoryRegion,
    Provider, QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest, SendFlags,
    SendOperation, SendRequest, WorkRequestId,
};

/// Of a raw peer's connections.
pub(crate) const EPOCH: u64 = 12;

/// What a raw peer that connects says.
pub(crate) const HELLO: Hello = Hello {
    credits: 4,
    message_length_max: 100,
    incarnation: 77,
    epoch: EPOCH,
    oldest_epoch: EPOCH,
};

pub(crate) struct RawPeer {
    pub(crate) nic: SimProvider,
    pub(crate) queue: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
}

impl RawPeer {
    /// With so many receives posted.
    fn new(world: &World<SimNetwork>, receives: u64) -> Self {
        let mut nic = world.network.provider("raw");
        let domain = nic.create_protection_domain().unwrap();
        let queue = nic.create_completion_queue(64).unwrap();
        let capabilities = QueuePairCapabilities {
            send_requests_max: 32,
            receive_requests_max: 32,
            entries_max: 1,
        };
        let queue_pair = nic
            .create_queue_pair(&QueuePairInit::new(domain, queue, capabilities))
            .unwrap();
        let access = AccessFlags::from_bits(7);
        let region = nic.allocate_region(domain, 32_768, access).unwrap();
        nic.modify_to_init(queue_pair).unwrap();
        let mut peer = Self {
            nic,
            queue,
            queue_pair,
            region,
        };
        for number in 0..receives {
            peer.receive(number);
        }
        peer
    }

    /// With so many receives posted.
    pub(crate) fn connect(world: &World<SimNetwork>, private_data: &[u8], receives: u64) -> Self {
        let mut peer = Self::new(world, receives);
        peer.nic
            .connect(peer.queue_pair, &world.address, private_data)
            .unwrap();
        peer
    }

    /// The left side connects to it. It accepts, and says what `answer` makes of the Hello that came.
    pub(crate) fn accept(
        world: &mut World<SimNetwork>,
        answer: impl FnOnce(Hello) -> Vec<u8>,
    ) -> (Self, ConnectionId) {
        let mut peer = Self::new(world, 16);
        // The events of this machine's earlier connections are of no interest.
        while peer.nic.poll_event().is_some() {}
        let address = Address::Sim("raw-port".to_owned());
        let listener = peer.nic.listen(&address).unwrap();
        let deadline = world.in_time(SECOND);
        let left = &mut world.left;
        let connecting = left.fabric.connect(&mut left.nic, &address, b"", deadline);
        let mut requested = None;
        world.run_until(|_| {
            requested = peer.nic.poll_event();
            requested.is_some()
        });
        let Some(Event::Connection(ConnectionEvent::Requested {
            request,
            private_data,
            ..
        })) = requested
        else {
            panic!("{requested:?}");
        };
        let (hello, _) = Hello::parse(&private_data).unwrap();
        peer.nic
            .accept(request, peer.queue_pair, &answer(hello))
            .unwrap();
        peer.nic.close_listener(listener).unwrap();
        (peer, connecting.unwrap())
    }

    pub(crate) fn receive(&mut self, number: u64) {
        let receive = ReceiveRequest {
            wr_id: WorkRequestId(number),
            entries: vec![self.region.entry(8192 + number * 512, 512)],
        };
        self.nic.post_receive(self.queue_pair, &receive).unwrap();
    }

    pub(crate) fn established(
        world: &mut World<SimNetwork>,
        receives: u64,
    ) -> (Self, ConnectionId) {
        let mut peer = Self::connect(world, &HELLO.to_bytes(), receives);
        let mut accepted = Vec::new();
        world.run_until(|world| {
            accepted.extend(world.right.accepted());
            !accepted.is_empty()
        });
        // The events of this machine's earlier connections are of no interest.
        while peer.nic.poll_event().is_some() {}
        (peer, accepted[0])
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.nic.write_region(&self.region, 0, bytes).unwrap();
        let request = SendRequest {
            wr_id: WorkRequestId(99),
            operation: SendOperation::Send,
            entries: vec![self.region.entry(0, bytes.len() as u32)],
            flags: SendFlags::SIGNALED,
        };
        self.nic.post_send(self.queue_pair, &request).unwrap();
    }

    pub(crate) fn polled(&mut self) -> Vec<Completion> {
        let mut came = Vec::new();
        self.nic
            .poll_completion_queue(self.queue, 64, &mut came)
            .unwrap();
        came
    }

    /// Of the receive of this number, after a message has come into it.
    pub(crate) fn received(&self, number: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let at = 8192 + number * 512;
        self.nic.read_region(&self.region, at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn end(mut self) {
        self.polled();
        self.nic.destroy_queue_pair(self.queue_pair).unwrap();
    }
}
