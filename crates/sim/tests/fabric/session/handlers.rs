//! Handlers that take too long, and calls on behalf of calls.

use super::machine::{address, answer};
use super::world::{MILLISECOND, World, config, millis, network, seconds};
use legato_base::wire::node::NodeRequest;
use legato_base::{Bytes, ClientId, Duration};
use legato_fabric::session::{CallKind, SessionConfig};
use legato_fabric::{
    Cause, ConnectionId, Effect, Fabric, FabricConfig, FabricEvent, NoBuffer, Refused, RequestId,
};
use legato_memnode::{NodeConfig, NodeServer};
use legato_sim::provider::{Personality, SimNetwork};

/// F-19, P-49: one handler is stuck for 30 s. The watchdog names it once, and nobody else waits.
#[test]
fn f_19_a_stuck_handler_is_named_and_the_others_meet_their_deadlines() {
    for personality in Personality::ALL {
        // A send whose completion is lost costs its buffer, and four of them the connection.
        let personality = personality.attentive();
        let mut world = World::star(1, personality, &["caller", "node", "other"]);
        world.session(2, 1, SessionConfig::default());
        world.machines[1].answers = false;
        world.run_until_up();
        let stuck = world.call(b"stuck", CallKind::Once, seconds(60));
        world.run_until(seconds(1), |world| world.machines[1].open.len() == 1);
        let delivery = world.machines[1].open.pop().unwrap();
        world.machines[1].answers = true;
        for round in 0..300_u32 {
            let body = round.to_le_bytes();
            let ids = [(0, 0), (2, 0)].map(|from| {
                (
                    from.0,
                    world.call_on(from, &body, CallKind::Once, millis(90)),
                )
            });
            world.run_for(millis(100));
            for (machine, id) in ids {
                let outcome = world.machines[machine].ends[&id].0.clone();
                assert_eq!(outcome, Ok(answer(&body)), "{}", personality.name);
            }
        }
        let node = &mut world.machines[1];
        let mut overdue = Vec::new();
        node.events.retain(|event| match event {
            FabricEvent::HandlerOverdue {
                connection,
                request,
                waited,
            } => {
                overdue.push((*connection, *request, *waited));
                false
            }
            _ => true,
        });
        let [(connection, request, waited)] = overdue[..] else {
            panic!("{overdue:?}");
        };
        // The peer by its connection, the handler and the opcode by the call.
        assert_eq!(connection, delivery.connection);
        assert!(node.server.is_of(delivery.ticket, request));
        assert_eq!(waited, node.fabric.config().handler_max);
        assert_eq!(node.fabric.counters().handlers_overdue, 1);
        let waiting: Vec<_> = node.fabric.waiting_requests().collect();
        assert_eq!(waiting.len(), 1);
        assert_eq!((waiting[0].request, waiting[0].is_overdue), (request, true));
        node.execute(&delivery);
        assert_eq!(node.fabric.waiting_requests().count(), 0);
        world.run_until_ended(0, seconds(1), &[stuck]);
        assert_eq!(world.machines[0].ends[&stuck].0, Ok(answer(b"stuck")));
        world.end();
    }
}

/// F-19: one whose deadline comes before the bound is reported at its deadline.
#[test]
fn f_19_a_handler_is_overdue_when_its_caller_has_given_up() {
    let mut world = World::star(2, Personality::IDEAL, &["caller", "node"]);
    world.machines[1].answers = false;
    world.run_until_up();
    world.call(b"stuck", CallKind::Once, millis(20));
    world.run_for(millis(19));
    assert_eq!(world.machines[1].fabric.counters().handlers_overdue, 0);
    world.run_for(millis(2));
    assert_eq!(world.machines[1].fabric.counters().handlers_overdue, 1);
    world.run_for(seconds(10));
    assert_eq!(world.machines[1].fabric.counters().handlers_overdue, 1);
    world.end();
}

/// F-19, P-49 at a memory node: it says who asked for what, once, and goes on serving others.
#[test]
fn f_19_a_memory_node_names_the_handler_the_opcode_and_the_peer() {
    let network = SimNetwork::new(3, network(Personality::IDEAL));
    let mut nic = network.provider("node");
    let node = NodeConfig {
        incarnation: 1,
        capacity: Bytes(1 << 20),
        available: || Bytes(u64::MAX),
    };
    let mut server = NodeServer::new(&mut nic, FabricConfig::default(), node).unwrap();
    server.listen(&mut nic, &address("node")).unwrap();
    let mut clients: Vec<_> = [1024, 48]
        .into_iter()
        .enumerate()
        .map(|(number, message_length_max)| {
            // The second can ask, and cannot take the answer.
            let config = FabricConfig {
                message_length_max,
                ..FabricConfig::default()
            };
            let mut nic = network.provider(&format!("client-{number}"));
            let mut fabric = Fabric::<NoBuffer>::new(&mut nic, config).unwrap();
            let deadline = network.now() + seconds(1);
            let connection = fabric
                .connect(&mut nic, &address("node"), &[], deadline)
                .unwrap();
            (nic, fabric, connection)
        })
        .collect();
    let mut replies = 0;
    let mut run = |clients: &mut Vec<(_, Fabric<NoBuffer>, ConnectionId)>, time: Duration| {
        let end = network.now() + time;
        while network.now() < end {
            let now = network.now();
            let mut progressed = server.turn(&mut nic, now).progressed;
            for (nic, fabric, _) in clients.iter_mut() {
                progressed |= fabric.turn(nic, now).progressed;
                while let Some(event) = fabric.poll_event() {
                    replies +=
                        u32::from(matches!(event, FabricEvent::Replied { outcome: Ok(_), .. }));
                }
            }
            if !progressed {
                let next = network.next_event_time().unwrap_or(end).min(end);
                network.advance_to(next.min(now + MILLISECOND).max(now));
            }
        }
        server.poll_overdue()
    };
    assert_eq!(run(&mut clients, millis(10)), None);
    for (number, (nic, fabric, connection)) in clients.iter_mut().enumerate() {
        let client = ClientId(number as u64);
        let body = NodeRequest::Open { client }.to_bytes();
        let deadline = network.now() + seconds(1);
        fabric.call(nic, *connection, &body, deadline).unwrap();
    }
    let overdue = run(&mut clients, seconds(3)).unwrap();
    assert_eq!(
        (overdue.client, overdue.opcode),
        (Some(ClientId(1)), "open")
    );
    // The loop above takes steps of a millisecond.
    assert!(overdue.waited <= millis(1002), "{}", overdue.waited);
    let (nic, fabric, connection) = &mut clients[0];
    let deadline = network.now() + seconds(1);
    let status = NodeRequest::Status.to_bytes();
    fabric.call(nic, *connection, &status, deadline).unwrap();
    assert_eq!(run(&mut clients, seconds(1)), None);
    assert_eq!(replies, 2);
}

/// A machine with nothing but a fabric in the middle: requests that it has, in their order.
fn requests(world: &mut World, machine: usize) -> Vec<(RequestId, legato_base::Time)> {
    let mut requests = Vec::new();
    world.machines[machine].events.retain(|event| match event {
        FabricEvent::Request {
            request, deadline, ..
        } => {
            requests.push((*request, *deadline));
            false
        }
        _ => true,
    });
    requests
}

fn connect(world: &mut World, from: usize, to: usize) -> ConnectionId {
    let (deadline, address) = (world.in_time(seconds(1)), address(&world.machines[to].name));
    let machine = &mut world.machines[from];
    let connection = machine
        .fabric
        .connect(&mut machine.nic, &address, &[], deadline)
        .unwrap();
    world.run_for(MILLISECOND);
    connection
}

/// F-20, P-48: what a handler asks of a third node gets what is left of its caller's deadline.
#[test]
fn f_20_a_nested_call_gets_what_is_left_and_its_error_is_seen() {
    for personality in Personality::ALL {
        let mut world = World::new(4, network(personality));
        for name in ["caller", "middle", "third"] {
            world.start(name, config());
            world.machines.last_mut().unwrap().is_raw = true;
        }
        let outer = connect(&mut world, 0, 1);
        let inner = connect(&mut world, 1, 2);
        let start = world.network.now();
        let deadline = world.in_time(millis(50));
        let caller = &mut world.machines[0];
        let called = caller
            .fabric
            .call(&mut caller.nic, outer, b"outer", deadline);
        called.unwrap();
        // The request waits at the middle for a while before its handler begins.
        world.run_for(millis(20));
        let (request, seen) = requests(&mut world, 1)[0];
        assert!(seen.since(start) <= millis(51));
        let generous = world.in_time(seconds(10));
        let middle = &mut world.machines[1];
        let (fabric, nic) = (&mut middle.fabric, &mut middle.nic);
        let nested = fabric
            .call_for(nic, request, inner, b"nested", generous)
            .unwrap();
        world.run_for(MILLISECOND);
        // The third node, too, knows when nobody waits any more, and does not answer.
        let (_, left) = requests(&mut world, 2)[0];
        assert!(left.since(start) <= millis(51), "{left:?}");
        world.run_for(millis(40));
        let error = world.machines[1]
            .events
            .iter()
            .find_map(|event| match event {
                FabricEvent::Replied { call, outcome } if *call == nested => outcome.clone().err(),
                _ => None,
            });
        assert_eq!(error.unwrap().cause, Cause::DeadlineExpired);
        assert!(world.network.now().since(start) <= millis(70));
        let middle = &mut world.machines[1];
        let (fabric, nic) = (&mut middle.fabric, &mut middle.nic);
        let refused = fabric.call_for(nic, request, inner, b"late", generous);
        assert_eq!(refused, Err(Refused::DeadlinePassed));
        assert!(fabric.drop_expired(nic, request).unwrap());
        // Nobody waits for what has been answered.
        let refused = fabric.call_for(nic, request, inner, b"later", generous);
        assert_eq!(refused, Err(Refused::DeadlinePassed));
        world.run_for(MILLISECOND);
        world.end();
    }
}

/// F-20, P-48: a request whose deadline passed in the queue is dropped unexecuted; the credit comes back.
#[test]
fn f_20_a_request_that_expired_in_the_queue_is_dropped_and_gives_its_credit_back() {
    let mut world = World::new(5, network(Personality::IDEAL));
    let one = FabricConfig {
        credits: 1,
        ..config()
    };
    for name in ["caller", "server"] {
        world.start(name, one);
        world.machines.last_mut().unwrap().is_raw = true;
    }
    let connection = connect(&mut world, 0, 1);
    let call = |world: &mut World| {
        let deadline = world.in_time(millis(20));
        let caller = &mut world.machines[0];
        let (fabric, nic) = (&mut caller.fabric, &mut caller.nic);
        fabric.call(nic, connection, b"?", deadline)
    };
    call(&mut world).unwrap();
    world.run_for(MILLISECOND);
    let (request, _) = requests(&mut world, 1)[0];
    let drop = |world: &mut World| {
        let server = &mut world.machines[1];
        server.fabric.drop_expired(&mut server.nic, request)
    };
    assert_eq!(drop(&mut world), Ok(false));
    world.run_for(millis(30));
    assert_eq!(call(&mut world), Err(Refused::WouldBlock));
    assert_eq!(drop(&mut world), Ok(true));
    world.run_for(MILLISECOND);
    assert_eq!(world.machines[0].fabric.counters().replies_late, 1);
    assert_eq!(world.machines[1].fabric.counters().requests_expired, 1);
    let second = call(&mut world).unwrap();
    world.run_for(MILLISECOND);
    // By the server's clock it is later than by the caller's: the caller still waits, and learns
    // that nothing was done.
    let (request, _) = requests(&mut world, 1)[0];
    world.machines[1].ahead = seconds(1);
    world.run_for(MILLISECOND);
    let server = &mut world.machines[1];
    let dropped = server.fabric.drop_expired(&mut server.nic, request);
    assert_eq!(dropped, Ok(true));
    world.run_for(MILLISECOND);
    let error = world.machines[0]
        .events
        .iter()
        .find_map(|event| match event {
            FabricEvent::Replied { call, outcome } if *call == second => outcome.clone().err(),
            _ => None,
        });
    let error = error.unwrap();
    let unexecuted = (Cause::DeadlineExpired, Effect::NotExecuted);
    assert_eq!((error.cause, error.effect), unexecuted);
    world.end();
}

/// F-20 with a session: a call that was dropped unexecuted has one outcome, and is not executed.
#[test]
fn f_20_a_call_of_a_session_that_expired_in_the_queue_is_not_executed() {
    for kind in [CallKind::Once, CallKind::Idempotent] {
        let mut world = World::star(6, Personality::IDEAL, &["caller", "server"]);
        world.machines[1].answers = false;
        world.run_until_up();
        let call = world.call(b"late", kind, millis(20));
        world.run_for(MILLISECOND);
        let drop = |world: &mut World| {
            let server = &mut world.machines[1];
            let ticket = server.open[0].ticket;
            let (fabric, nic) = (&mut server.fabric, &mut server.nic);
            server.server.drop_expired(fabric, nic, ticket)
        };
        assert_eq!(drop(&mut world), Ok(false));
        world.machines[1].ahead = seconds(1);
        world.run_for(MILLISECOND);
        assert_eq!(drop(&mut world), Ok(true));
        assert_eq!(drop(&mut world).is_ok(), kind == CallKind::Idempotent);
        world.run_for(MILLISECOND);
        let error = world.machines[0].ends[&call].0.clone().unwrap_err();
        assert_eq!(error.effect, Effect::NotExecuted);
        world.machines[1].open.clear();
        world.end();
    }
}

/// The counts of a fabric whose NIC is gone are right as well.
#[test]
fn waiting_requests_end_with_their_connection() {
    let mut world = World::star(7, Personality::IDEAL, &["caller", "server"]);
    world.machines[1].answers = false;
    world.run_until_up();
    world.call(b"?", CallKind::Once, seconds(60));
    world.run_until(seconds(1), |world| world.machines[1].open.len() == 1);
    let server = &mut world.machines[1];
    assert_eq!(server.fabric.waiting_requests().count(), 1);
    let connection = server.open[0].connection;
    server.fabric.close(&mut server.nic, connection);
    assert_eq!(server.fabric.waiting_requests().count(), 0);
    world.end();
}
