//! Nodes that are dead, not there yet, or there again.

use super::Client;
use crate::harness::{Node, PATIENCE, poll_until};
use legato_base::Duration;
use legato_base::wire::node::{NodeReply, NodeRequest};
use legato_fabric::{ConnectError, FabricEvent};

#[test]
fn f_17_of_three_nodes_one_is_dead_and_two_answer() {
    let mut nodes = [
        Node::start("64MiB"),
        Node::start("64MiB"),
        Node::start("64MiB"),
    ];
    let mut client = Client::new(Duration::from_secs(10));
    let connections = [0, 1, 2].map(|index: usize| client.connect(&nodes[index]));
    nodes[1].kill();
    let time = Duration::from_secs(30);
    let calls = connections.map(|connection| client.call(connection, NodeRequest::Status, time));
    let outcomes = calls.map(|call| call.map(|call| client.outcome(call)));
    let is_answered = |index: usize| matches!(outcomes[index], Ok(Ok(_)));
    assert!(is_answered(0) && is_answered(2), "{outcomes:?}");
    // Refused if its death was seen first, else an error with the reason.
    assert!(!is_answered(1), "{outcomes:?}");
    client.run_until("the end of the dead one's connection", |client| {
        client.has(|event| {
            matches!(event, FabricEvent::Disconnected { connection } if *connection == connections[1])
        })
    });
    let counters = *client.station.fabric.counters();
    assert_eq!(
        counters.calls_started,
        counters.calls_replied + counters.calls_failed + counters.calls_expired
    );
    for index in [0, 2] {
        client.status(connections[index]);
    }
}

#[test]
fn f_18_nodes_come_in_any_order_and_one_leaves_and_returns() {
    let first = Node::start("64MiB");
    let address = first.address.clone();
    let mut client = Client::new(Duration::from_secs(10));
    let missing = format!("{address}-not-there");
    let error = client.try_connect(&missing).unwrap_err();
    let nobody = matches!(
        error,
        ConnectError::Unreachable(_) | ConnectError::Rejected(_)
    );
    assert!(nobody, "{error:?}");
    // Asked for before it was there, and now it is.
    let second = Node::start_at("64MiB", &missing);
    let staying = client.connect(&second);
    let leaving = client.connect(&first);
    assert!(first.terminate().success());
    client.run_until("the end of the connection", |client| {
        client.has(|event| {
            matches!(event, FabricEvent::Disconnected { connection } if *connection == leaving)
        })
    });
    client.status(staying);
    let returned = Node::start_at("64MiB", &address);
    let again = client.connect(&returned);
    let client_name = legato_base::ClientId(77);
    let opened = client.ask(
        again,
        NodeRequest::Open {
            client: client_name,
        },
    );
    assert!(matches!(opened, NodeReply::Opened { .. }), "{opened:?}");
    assert_eq!(client.status(again).clients, 1);
    poll_until("the other node serves", PATIENCE, || {
        client.status(staying).clients == 0
    });
}
