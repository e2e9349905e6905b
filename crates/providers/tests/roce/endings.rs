//! How connections between software RoCE NICs end when packets that say so are lost.

use crate::rig::{Node, Rig, Way, roce};
use legato_base::{Duration, Time};
use legato_verbs::{Provider, SendOperation};

/// DREQ: a management datagram with its attribute (IB spec table 105).
fn ends_connection(packet: &[u8]) -> bool {
    packet[0] == 0x64 && packet[36..38] == [0, 0x15]
}

/// The port of a listener stays open until the end of its connections is acknowledged.
#[test]
fn the_end_is_told_again_after_the_listener_is_closed() {
    for destroys in [false, true] {
        let mut rig = Rig::new(if destroys { 9 } else { 10 });
        let (client, server, connected) = rig.connect();
        let server = server.filter(|_| connected).unwrap();
        let mut lost = 0;
        rig.rule = Box::new(move |way, bytes| {
            if way == Way::ToClient && ends_connection(bytes) && lost < 2 {
                lost += 1;
                return Vec::new();
            }
            vec![(Duration::ZERO, bytes.to_vec())]
        });
        rig.server.provider.close_listener(rig.listener).unwrap();
        if destroys {
            rig.server.provider.destroy_queue_pair(server).unwrap();
        } else {
            rig.server.provider.disconnect(server).unwrap();
        }
        let told = rig.run(Duration::from_secs(2), |rig| {
            rig.client.stage(client) == Some(false)
        });
        assert!(told, "the client believes in a connection");
    }
}

fn connect(client: &mut Node, server: &mut Node, now: Time) -> (legato_verbs::QueuePair, bool) {
    let near = client.queue_pair();
    let address = roce("127.31.11.1:4791");
    let listener = server.provider.listen(&address).unwrap();
    client.provider.connect(near, &address, &[]).unwrap();
    for _ in 0..20 {
        client.progress(now);
        server.progress(now);
        if let Some(request) = server.take_request() {
            let far = server.queue_pair();
            server.provider.accept(request, far, &[]).unwrap();
        }
    }
    server.provider.close_listener(listener).unwrap();
    (near, client.stage(near) == Some(true))
}

/// What the network answers to packets of before says nothing about a connection that is asked for
/// afterwards: the peer may have come back.
#[test]
fn an_error_of_before_does_not_end_a_new_connection() {
    let mut client = Node::new("127.31.11.2:4791");
    let mut now = Time::from_nanos(1);
    for _ in 0..2 {
        let mut server = Node::new("127.31.11.1:4791");
        let (near, connected) = connect(&mut client, &mut server, now);
        assert!(connected, "{:?}", client.events);
        drop(server);
        // Its port is closed: ICMP says so at once.
        let target = client.at(0);
        assert!(client.post(near, 1, SendOperation::RdmaWrite(target), (0, 8)));
        client.progress(now);
        now = now + Duration::from_millis(1);
    }
}
