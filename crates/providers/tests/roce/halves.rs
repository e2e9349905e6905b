//! V-31: the first packet of a message has come when its receiver's queue pair ends.

use crate::rig::{Rig, Way};
use legato_base::Duration;
use legato_verbs::{
    CompletionStatus, Provider, QueuePair, ReceiveRequest, Receives, SendOperation,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};

const DEPTH: u64 = 4;
/// Of three packets or more, whatever the path MTU.
const MESSAGE: usize = 12_288;
const ALL: usize = DEPTH as usize * MESSAGE;
/// The first byte of what is sent for packets of SEND (IB spec 9.2.1, table 38).
const MIDDLE: u8 = 0x01;
const LAST: u8 = 0x02;
const BEFORE: u8 = 0xEE;

const fn place(wr_id: u64) -> u64 {
    wr_id % DEPTH * MESSAGE as u64
}

fn receive(rig: &Rig, wr_id: u64) -> ReceiveRequest {
    ReceiveRequest {
        wr_id: WorkRequestId(wr_id),
        entries: vec![rig.server.region.entry(place(wr_id), MESSAGE as u32)],
    }
}

/// Two connected queue pairs, and the first packet of a message in the server's receive of this number.
fn half_a_message(rig: &mut Rig, wr_id: u64) -> [QueuePair; 2] {
    let (client, server, connected) = rig.connect();
    let server = server.filter(|_| connected).unwrap();
    rig.server.fill(0, &[BEFORE; ALL]);
    if rig.server.receives == Receives::Own {
        for wr_id in 0..DEPTH {
            let receive = receive(rig, wr_id);
            rig.server.provider.post_receive(server, &receive).unwrap();
        }
    }
    rig.rule = Box::new(|way, bytes| match (way, bytes[0]) {
        (Way::ToServer, MIDDLE | LAST) => vec![],
        _ => vec![(Duration::ZERO, bytes.to_vec())],
    });
    rig.client.fill(0, &[7; MESSAGE]);
    let posted = rig
        .client
        .post(client, 1, SendOperation::Send, (0, MESSAGE as u32));
    assert!(posted);
    let has_come = |rig: &mut Rig| rig.server.bytes(place(wr_id), 1) == [7];
    assert!(rig.run(Duration::from_secs(5), has_come));
    assert!(rig.server.done.is_empty());
    [client, server]
}

/// Nothing comes into the receives that were given back, whatever the client says; then both are gone.
fn nothing_comes_late(rig: &mut Rig, [client, server]: [QueuePair; 2]) {
    rig.server.fill(0, &[BEFORE; ALL]);
    rig.rule = Box::new(|_, bytes| vec![(Duration::ZERO, bytes.to_vec())]);
    assert!(rig.run(Duration::from_secs(60), |rig| !rig.client.done.is_empty()));
    assert!(rig.client.done[0].result.is_err());
    assert!(rig.server.bytes(0, ALL) == [BEFORE; ALL]);
    rig.client.provider.destroy_queue_pair(client).unwrap();
    rig.server.provider.destroy_queue_pair(server).unwrap();
    for node in [&mut rig.client, &mut rig.server] {
        node.done.clear();
        node.events.clear();
    }
}

fn flushed(rig: &mut Rig, server: QueuePair) -> Vec<u64> {
    rig.server.provider.modify_to_error(server).unwrap();
    rig.server.progress(rig.now);
    let done = rig.server.done.drain(..);
    done.map(|completion| {
        assert_eq!(completion.result, Err(CompletionStatus::WorkRequestFlushed));
        completion.wr_id.0
    })
    .collect()
}

#[test]
fn v_31_half_a_message_at_the_error_state() {
    let mut rig = Rig::new(31);
    let idle = rig.server.provider.resource_counts();
    for _ in 0..3 {
        let pairs = half_a_message(&mut rig, 0);
        assert_eq!(flushed(&mut rig, pairs[1]), [0, 1, 2, 3]);
        nothing_comes_late(&mut rig, pairs);
    }
    rig.run(Duration::from_secs(10), |_| false);
    assert_eq!(rig.server.provider.resource_counts(), idle);
}

#[test]
fn v_31_the_shared_receive_of_half_a_message_comes_back() {
    let mut rig = Rig::new(32);
    let capabilities = SharedReceiveQueueCapabilities {
        requests_max: DEPTH as u32,
        entries_max: 1,
    };
    let (domain, nic) = (rig.server.domain, &mut rig.server.provider);
    let queue = nic.create_shared_receive_queue(domain, capabilities);
    let queue = queue.unwrap();
    rig.server.receives = Receives::Shared(queue);
    let post = |rig: &mut Rig, wr_id| {
        let receive = receive(rig, wr_id);
        rig.server.provider.post_shared_receive(queue, &receive)
    };
    (0..DEPTH).for_each(|wr_id| post(&mut rig, wr_id).unwrap());
    let idle = rig.server.provider.resource_counts();
    for taken in 0..2 * DEPTH {
        let pairs = half_a_message(&mut rig, taken);
        assert_eq!(flushed(&mut rig, pairs[1]), [taken]);
        nothing_comes_late(&mut rig, pairs);
        post(&mut rig, taken + DEPTH).unwrap();
        let one_more = post(&mut rig, 99);
        assert_eq!(one_more, Err(VerbsError::QueueFull("receive")));
    }
    rig.run(Duration::from_secs(10), |_| false);
    assert_eq!(rig.server.provider.resource_counts(), idle);
    rig.server
        .provider
        .destroy_shared_receive_queue(queue)
        .unwrap();
}
