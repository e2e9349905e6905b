//! A queue pair with what it needs, and a connection of two of them.

use super::wire::Wire;
use legato_verbs::conformance::{Side, World as _};
use legato_verbs::{
    AccessFlags, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectionEvent,
    Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair, QueuePairCapabilities,
    QueuePairInit, ReceiveRequest, RemoteAddress, SendFlags, SendOperation, SendRequest,
    WorkRequestId,
};

pub(crate) const LEFT: usize = 0;
pub(crate) const RIGHT: usize = 1;
/// A link that is never busy.
pub(crate) const WIDE: usize = usize::MAX;

pub(crate) const CAPABILITIES: QueuePairCapabilities = QueuePairCapabilities {
    send_requests_max: 8,
    receive_requests_max: 8,
    entries_max: 2,
};

/// A queue pair with what it needs.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) side: usize,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
}

impl End {
    pub(crate) fn new(wire: &mut Wire, side: usize) -> Self {
        let nic = &mut wire.machines[side];
        let domain = nic.create_protection_domain().unwrap();
        let queue = nic.create_completion_queue(16).unwrap();
        let init = QueuePairInit::new(domain, queue, CAPABILITIES);
        let queue_pair = nic.create_queue_pair(&init).unwrap();
        nic.modify_to_init(queue_pair).unwrap();
        let all = AccessFlags::from_bits(0b1111);
        let region = nic.allocate_region(domain, 1 << 16, all).unwrap();
        Self {
            side,
            domain,
            queue,
            queue_pair,
            region,
        }
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            key: self.region.remote_key,
            address: self.region.address + offset,
        }
    }

    pub(crate) fn fill(&self, wire: &mut Wire, offset: u64, bytes: &[u8]) {
        let nic = &mut wire.machines[self.side];
        nic.write_region(&self.region, offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, wire: &Wire, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let nic = &wire.machines[self.side];
        nic.read_region(&self.region, offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn send(&self, wire: &mut Wire, operation: SendOperation, offset: u64, length: u32) {
        let request = SendRequest {
            wr_id: WorkRequestId(1),
            operation,
            entries: vec![self.region.entry(offset, length)],
            flags: SendFlags::SIGNALED,
        };
        let nic = &mut wire.machines[self.side];
        nic.post_send(self.queue_pair, &request).unwrap();
    }

    pub(crate) fn receive(&self, wire: &mut Wire, offset: u64, length: u32) {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(2),
            entries: vec![self.region.entry(offset, length)],
        };
        let nic = &mut wire.machines[self.side];
        nic.post_receive(self.queue_pair, &request).unwrap();
    }

    pub(crate) fn polled(
        &self,
        wire: &mut Wire,
    ) -> Vec<(u64, Result<CompletionKind, CompletionStatus>)> {
        let mut came: Vec<Completion> = Vec::new();
        let nic = &mut wire.machines[self.side];
        nic.poll_completion_queue(self.queue, 100, &mut came)
            .unwrap();
        came.iter().map(|it| (it.wr_id.0, it.result)).collect()
    }

    pub(crate) fn event(&self, wire: &mut Wire) -> Option<Event> {
        wire.machines[self.side].poll_event()
    }

    pub(crate) fn destroy(self, wire: &mut Wire) {
        let nic = &mut wire.machines[self.side];
        nic.destroy_queue_pair(self.queue_pair).unwrap();
        nic.deregister_region(&self.region).unwrap();
        nic.destroy_completion_queue(self.queue).unwrap();
        nic.destroy_protection_domain(self.domain).unwrap();
    }
}

pub(crate) fn connect(wire: &mut Wire) -> (End, End, Listener) {
    let (left, right) = (End::new(wire, LEFT), End::new(wire, RIGHT));
    let address = wire.fresh_address(Side::Right);
    let listener = wire.machines[RIGHT].listen(&address).unwrap();
    wire.machines[LEFT]
        .connect(left.queue_pair, &address, b"who")
        .unwrap();
    let request = loop {
        match right.event(wire) {
            Some(Event::Connection(ConnectionEvent::Requested {
                request,
                private_data,
                ..
            })) => {
                assert_eq!(private_data, b"who");
                break request;
            }
            None => assert!(wire.step()),
            other => panic!("{other:?}"),
        }
    };
    wire.machines[RIGHT]
        .accept(request, right.queue_pair, b"me")
        .unwrap();
    for (end, data) in [(left, b"me".as_slice()), (right, b"")] {
        let established = ConnectionEvent::Established {
            queue_pair: end.queue_pair,
            private_data: data.to_vec(),
        };
        assert_eq!(next_event(wire, end), Event::Connection(established));
    }
    (left, right, listener)
}

pub(crate) fn next_event(wire: &mut Wire, end: End) -> Event {
    loop {
        match end.event(wire) {
            Some(event) => return event,
            None => assert!(wire.step(), "nothing will happen any more"),
        }
    }
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| (place * 7 + place / 251) as u8)
        .collect()
}
