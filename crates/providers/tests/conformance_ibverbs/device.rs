//! V-5, V-14, V-39, V-40: retries, sequence numbers, the port and the address, and many queue pairs, on the device.

use crate::rig::{Ground, REQUESTS, Rig, Side, receive_of};
use crate::world::open;
use legato_providers::ibverbs::{GidKind, Library, PortState, Unusable, devices};
use legato_verbs::conformance::World as _;
use legato_verbs::{
    AsyncEvent, CompletionStatus, ConnectionEvent, Event, PacketSequenceNumber, PathMtu,
    Provider as _, QueuePair, QueuePairAttributes, QueuePairCapabilities, QueuePairInit,
    QueuePairNumber, QueuePairState, Receives, RetryCount, RnrTimer,
    SharedReceiveQueueCapabilities,
};
use std::process::Command;
use std::time::{Duration, Instant};

fn receiving(destination: QueuePairNumber, sequence: u32) -> QueuePairAttributes {
    QueuePairAttributes {
        path_mtu: Some(PathMtu::Bytes1024),
        destination: Some(destination),
        receive_sequence: Some(PacketSequenceNumber::new(sequence)),
        responder_resources: Some(4),
        rnr_timer: Some(RnrTimer::new(12)),
        ..QueuePairAttributes::NONE
    }
}

fn sending(timeout: u8, retry_count: u8, sequence: u32) -> QueuePairAttributes {
    QueuePairAttributes {
        timeout: Some(timeout),
        retry_count: RetryCount::new(retry_count),
        rnr_retry: Some(6),
        send_sequence: Some(PacketSequenceNumber::new(sequence)),
        initiator_depth: Some(4),
        ..QueuePairAttributes::NONE
    }
}

/// Of 4.096 us * 2^14, four times: 0.268 s.
#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v05_a_silent_peer_is_given_up_after_its_retries() {
    let mut rig = Rig::new();
    let ground = rig.ground(Side::Left, 64);
    let queue_pair = rig.queue_pair(Side::Left, &ground);
    let nobody = QueuePairNumber::new(0x00AB_CDEF);
    rig.by_hand(
        Side::Left,
        queue_pair,
        receiving(nobody, 0),
        sending(14, 3, 0),
    );
    let begun = Instant::now();
    rig.send(Side::Left, queue_pair, 1, &ground);
    let came = rig.completions(Side::Left, ground.queue, 1);
    let took = begun.elapsed();
    println!("  {took:?}");
    assert_eq!(came[0].result, Err(CompletionStatus::RetryExceeded));
    // The processor is emulated: the upper bound is of liveness.
    assert!(
        took > Duration::from_millis(250) && took < Duration::from_secs(5),
        "{took:?}"
    );
    let state = rig.on(Side::Left).query_queue_pair(queue_pair);
    assert_eq!(state, Ok(QueuePairState::Error));
}

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v14_sequence_numbers_wrap() {
    let mut rig = Rig::new();
    let grounds = [rig.ground(Side::Left, 64), rig.ground(Side::Right, 64)];
    let left = rig.queue_pair(Side::Left, &grounds[0]);
    let right = rig.queue_pair(Side::Right, &grounds[1]);
    let first = 0x00FF_FFF0;
    let number = |rig: &mut Rig, side, of| rig.on(side).queue_pair_number(of).unwrap();
    let to_right = receiving(number(&mut rig, Side::Right, right), first);
    rig.by_hand(Side::Left, left, to_right, sending(14, 6, first));
    let to_left = receiving(number(&mut rig, Side::Left, left), first);
    rig.by_hand(Side::Right, right, to_left, sending(14, 6, first));
    for round in 0..64u8 {
        let message = [round; 64];
        rig.fill(Side::Left, &grounds[0], &message);
        rig.receive(Side::Right, right, 3, &grounds[1]);
        rig.send(Side::Left, left, 4, &grounds[0]);
        let sent = rig.completions(Side::Left, grounds[0].queue, 1);
        assert!(sent[0].result.is_ok(), "round {round}: {sent:?}");
        rig.completions(Side::Right, grounds[1].queue, 1);
        assert_eq!(rig.bytes(Side::Right, &grounds[1], 64 * 3), message);
    }
}

/// A call is not told the time: its own begins with the next progress, and not with the last one.
#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn a_connect_after_an_idle_hour_has_all_its_time() {
    let mut rig = Rig::new();
    let grounds = [rig.ground(Side::Left, 64), rig.ground(Side::Right, 64)];
    let left = rig.queue_pair(Side::Left, &grounds[0]);
    let right = rig.queue_pair(Side::Right, &grounds[1]);
    rig.on(Side::Left).modify_to_init(left).unwrap();
    rig.on(Side::Right).modify_to_init(right).unwrap();
    rig.world.settle();
    rig.world.ahead = legato_base::Duration::from_secs(3600);
    rig.connect(left, right);
    rig.world.ahead = legato_base::Duration::from_secs(7200);
    rig.on(Side::Left).disconnect(left).unwrap();
    rig.disconnected(Side::Right, right);
    for (side, queue_pair) in [(Side::Left, left), (Side::Right, right)] {
        let over = Event::Connection(ConnectionEvent::TimeWaitExit { queue_pair });
        rig.event(side, "the end of the time wait", |event| {
            (*event == over).then_some(())
        });
        assert_eq!(rig.on(side).counters().time_waits_cut, 0);
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

/// What `legato net devices` is told of the guest's port.
fn port() -> (PortState, Option<Unusable>, bool) {
    let found = devices(&Library::open().unwrap()).unwrap();
    let port = found.iter().find(|port| port.device == "rxe0").unwrap();
    assert!(port.is_ethernet && port.port == 1, "{port:?}");
    let has_address = port
        .gids
        .iter()
        .any(|gid| gid.kind == GidKind::RoceV2 && gid.ip == Some(crate::world::HOST.into()));
    (port.state, port.unusable.clone(), has_address)
}

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v39_port_and_address_are_reported_and_come_back() {
    assert_eq!(port(), (PortState::Active, None, true));
    let mut rig = Rig::new();
    ip(&["link", "set", "dummy0", "down"]);
    let begun = Instant::now();
    let down = Event::Async(AsyncEvent::PortError(1));
    rig.event(Side::Left, "the port is down", |event| {
        (*event == down).then_some(())
    });
    println!("  told after {:?}", begun.elapsed());
    let (state, unusable, _) = port();
    assert_eq!(unusable, Some(Unusable::PortNotActive(state)));
    ip(&["link", "set", "dummy0", "up"]);
    let up = Event::Async(AsyncEvent::PortActive(1));
    rig.event(Side::Left, "the port is up", |event| {
        (*event == up).then_some(())
    });
    ip(&["addr", "del", "10.77.0.1/24", "dev", "dummy0"]);
    let changed = Event::Async(AsyncEvent::AddressChange(1));
    let is_change = |event: &Event| (*event == changed).then_some(());
    rig.event(Side::Left, "the address is gone", is_change);
    assert!(!port().2);
    ip(&["addr", "add", "10.77.0.1/24", "dev", "dummy0"]);
    rig.event(Side::Left, "the address is back", is_change);
    drop(rig);
    let end = Instant::now() + Duration::from_secs(10);
    while port() != (PortState::Active, None, true) {
        assert!(Instant::now() < end, "{:?}", port());
    }
    drop(open());
    // A connection of now works.
    let mut rig = Rig::new();
    let grounds = [rig.ground(Side::Left, 64), rig.ground(Side::Right, 64)];
    let left = rig.queue_pair(Side::Left, &grounds[0]);
    let right = rig.queue_pair(Side::Right, &grounds[1]);
    rig.on(Side::Left).modify_to_init(left).unwrap();
    rig.on(Side::Right).modify_to_init(right).unwrap();
    rig.connect(left, right);
}

/// Queue pairs of the right side that share a completion queue and a receive queue.
const MANY: usize = 256;

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v40_one_of_many_fails_and_the_others_lose_nothing() {
    let mut rig = Rig::new();
    let left_ground = rig.ground(Side::Left, MANY as u32 * 2 * REQUESTS);
    let right_ground = rig.ground(Side::Right, MANY as u32 * 2 * 4);
    let shared = rig
        .on(Side::Right)
        .create_shared_receive_queue(
            right_ground.domain,
            SharedReceiveQueueCapabilities {
                requests_max: 512,
                entries_max: 1,
            },
        )
        .unwrap();
    for wr_id in 0..512 {
        let receive = receive_of(wr_id, &right_ground);
        rig.on(Side::Right)
            .post_shared_receive(shared, &receive)
            .unwrap();
    }
    let pairs: Vec<_> = (0..MANY)
        .map(|_| {
            let left = rig.queue_pair(Side::Left, &left_ground);
            let right = sharing(&mut rig, &right_ground, shared);
            rig.on(Side::Left).modify_to_init(left).unwrap();
            rig.on(Side::Right).modify_to_init(right).unwrap();
            rig.connect(left, right);
            (left, right)
        })
        .collect();
    let (_, victim) = pairs[100];
    rig.on(Side::Right).modify_to_error(victim).unwrap();
    for &(left, right) in pairs.iter().filter(|&&(_, right)| right != victim) {
        rig.send(Side::Left, left, 1, &left_ground);
        let sent = rig.completions(Side::Left, left_ground.queue, 1);
        assert!(sent[0].result.is_ok(), "{sent:?}");
        let received = rig.completions(Side::Right, right_ground.queue, 1);
        assert!(
            received[0].result.is_ok() && received[0].queue_pair == right,
            "{received:?}"
        );
    }
}

fn sharing(rig: &mut Rig, ground: &Ground, shared: legato_verbs::SharedReceiveQueue) -> QueuePair {
    let capabilities = QueuePairCapabilities {
        send_requests_max: 4,
        receive_requests_max: 4,
        entries_max: 1,
    };
    let init = QueuePairInit {
        receives: Receives::Shared(shared),
        ..QueuePairInit::new(ground.domain, ground.queue, capabilities)
    };
    rig.on(Side::Right).create_queue_pair(&init).unwrap()
}
