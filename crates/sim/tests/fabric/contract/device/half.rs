//! V-31: a message of which half has come when its connection ends.

use super::far_side::Report;
use super::near::{HERE, Near, far_address};
use super::raw_packets::{RawSocket, header};
use crate::rig::GUEST;
use legato_base::wire::message::Hello;
use legato_transport::wire::{BaseHeader, Body};
use legato_verbs::{
    AccessFlags, CompletionQueue, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairCapabilities, QueuePairInit, QueuePairState, ROCE_PORT, ReceiveRequest, WorkRequestId,
};
use std::net::SocketAddrV4;

/// Of the guest's link.
const PATH_MTU: usize = 1024;
const HALVES: u64 = 3;
const RECEIVES: u64 = 4;
const RECEIVE_LENGTH: u32 = 512;

/// A queue pair of this side's NIC that speaks verbs and not the protocol, and what it needs.
struct Stranger {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    region: MemoryRegion,
    queue_pair: QueuePair,
}

impl Stranger {
    fn new(near: &mut Near) -> Self {
        let nic = &mut near.side.nic;
        let domain = nic.create_protection_domain().unwrap();
        let queue = nic.create_completion_queue(64).unwrap();
        let length = RECEIVES * u64::from(RECEIVE_LENGTH);
        let region = nic.allocate_region(domain, length, AccessFlags::LOCAL_WRITE);
        let capabilities = QueuePairCapabilities {
            send_requests_max: 4,
            receive_requests_max: RECEIVES as u32,
            entries_max: 1,
        };
        let init = QueuePairInit::new(domain, queue, capabilities);
        let stranger = Self {
            domain,
            queue,
            region: region.unwrap(),
            queue_pair: nic.create_queue_pair(&init).unwrap(),
        };
        nic.modify_to_init(stranger.queue_pair).unwrap();
        for wr_id in 0..RECEIVES {
            let at = wr_id * u64::from(RECEIVE_LENGTH);
            let receive = ReceiveRequest {
                wr_id: WorkRequestId(wr_id),
                entries: vec![stranger.region.entry(at, RECEIVE_LENGTH)],
            };
            nic.post_receive(stranger.queue_pair, &receive).unwrap();
        }
        stranger
    }

    /// As a fabric does, of which there is one for each number.
    fn connect(&self, near: &mut Near, number: u64) {
        let hello = Hello {
            credits: RECEIVES as u32,
            message_length_max: 100,
            incarnation: 100 + number,
            epoch: 12,
            oldest_epoch: 12,
        };
        let nic = &mut near.side.nic;
        nic.connect(self.queue_pair, &far_address(), &hello.to_bytes())
            .unwrap();
        near.until("a stranger is connected", |near| {
            let state = near.side.nic.query_queue_pair(self.queue_pair);
            (state == Ok(QueuePairState::ReadyToSend)).then_some(())
        });
    }

    fn end(self, near: &mut Near) {
        let nic = &mut near.side.nic;
        nic.destroy_queue_pair(self.queue_pair).unwrap();
        nic.deregister_region(&self.region).unwrap();
        nic.destroy_completion_queue(self.queue).unwrap();
        nic.destroy_protection_domain(self.domain).unwrap();
    }
}

/// P-93: `rdma_rxe` keeps the receive of such a message (Linux 6.5 and later). The fabric on it posts the
/// buffer again when every queue pair that there is has taken later ones.
#[test]
#[ignore = "`device::beside_a_guest` runs it, on the link"]
fn v_31_the_receive_of_half_a_message_comes_back() {
    let mut near = Near::start();
    let other = near.connect();
    let socket = RawSocket::open(
        SocketAddrV4::new(HERE, 0),
        SocketAddrV4::new(GUEST.into(), ROCE_PORT),
    );
    for number in 0..HALVES {
        let stranger = Stranger::new(&mut near);
        stranger.connect(&mut near, number);
        let queue_pair = stranger.queue_pair;
        let known = near.side.nic.query_attributes(queue_pair).unwrap();
        let base = BaseHeader {
            // This side's NIC has not sent it, and would wonder.
            acknowledge: false,
            ..header(known.destination.unwrap(), known.send_sequence.unwrap())
        };
        socket.send(&socket.packet(&base, &Body::SendFirst, PATH_MTU));
        // It takes packets in their order.
        near.ask(other);
        near.side.nic.disconnect(queue_pair).unwrap();
        let line = near.until("the end there", |near| near.guest.take("ended "));
        println!("  {line}");
        stranger.end(&mut near);
    }
    let are_kept = !near.kernel.starts_with("6.1.");
    let again = Report {
        queue_pairs: 1,
        missing: 0,
        doubtful: 0,
        reclaimed: if are_kept { HALVES } else { 0 },
    };
    near.reports(other, again);
    near.end(other);
}
