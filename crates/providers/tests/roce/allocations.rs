//! No operation allocates.

use crate::rig::Node;
use legato_base::{Duration, Time};
use legato_verbs::{
    Address, Provider as _, ReceiveRequest, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::net::SocketAddr;

/// From a request that was made before to its completion, on both sides.
#[test]
fn no_operation_allocates() {
    for scheme in [Address::Roce as fn(SocketAddr) -> Address, Address::RoceTcp] {
        let place = |text: &str| scheme(text.parse().unwrap());
        let server_at = place("127.31.42.1:4792");
        let mut server = Node::open(&server_at);
        let mut client = Node::open(&place("127.31.42.2:4792"));
        server.provider.listen(&server_at).unwrap();
        let near = client.queue_pair();
        client.provider.connect(near, &server_at, &[]).unwrap();
        let mut time = Time::from_nanos(1);
        let mut progress = |client: &mut Node, server: &mut Node| {
            time = time + Duration::from_micros(1);
            client.progress(time);
            server.progress(time);
        };
        let far = loop {
            progress(&mut client, &mut server);
            if let Some(request) = server.take_request() {
                let far = server.queue_pair();
                server.provider.accept(request, far, &[]).unwrap();
                break far;
            }
        };
        while client.stage(near) != Some(true) || server.stage(far) != Some(true) {
            progress(&mut client, &mut server);
        }
        let remote = server.at(0);
        let request = |operation| SendRequest {
            wr_id: WorkRequestId(1),
            operation,
            entries: vec![client.region.entry(0, 10_000)],
            flags: SendFlags::SIGNALED,
        };
        let requests = [
            SendOperation::RdmaRead(remote),
            SendOperation::RdmaWrite(remote),
            SendOperation::Send,
        ]
        .map(request);
        let receive = ReceiveRequest {
            wr_id: WorkRequestId(2),
            entries: vec![server.region.entry(0, 10_000)],
        };
        let mut round = |client: &mut Node, server: &mut Node| {
            server.provider.post_receive(far, &receive).unwrap();
            for request in &requests {
                client.provider.post_send(near, request).unwrap();
            }
            client.done.clear();
            server.done.clear();
            while client.done.len() < 3 || server.done.is_empty() {
                progress(client, server);
            }
            let mut done = client.done.iter().chain(&server.done);
            assert!(done.all(|done| done.result.is_ok()));
        };
        for _ in 0..64 {
            round(&mut client, &mut server);
        }
        let seen = allocation_counter::measure(|| {
            for _ in 0..64 {
                round(&mut client, &mut server);
            }
        });
        assert_eq!(seen.count_total, 0, "{server_at}");
    }
}
