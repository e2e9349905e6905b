//! What the simulated network adds to the verbs: dead, frozen and restarted machines, requests
//! that outlive their sender's interest, and histories that repeat.

use super::{SimNetwork, SimNetworkConfig, SimProvider};
use legato_base::{Duration, Time};
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, Event, MemoryRegion, Provider, QueuePair, QueuePairCapabilities,
    QueuePairInit, QueuePairState, ReceiveRequest, RemoteAddress, SendFlags, SendOperation,
    SendRequest, UnreachableReason, VerbsError, WorkRequestId,
};

struct End {
    nic: SimProvider,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

const CAPABILITIES: QueuePairCapabilities = QueuePairCapabilities {
    send_requests_max: 8,
    receive_requests_max: 8,
    entries_max: 1,
};

fn end(mut nic: SimProvider) -> End {
    let domain = nic.create_protection_domain().unwrap();
    let queue = nic.create_completion_queue(16).unwrap();
    let queue_pair = nic
        .create_queue_pair(&QueuePairInit::new(domain, queue, CAPABILITIES))
        .unwrap();
    let region = nic
        .allocate_region(domain, 4096, AccessFlags::from_bits(7))
        .unwrap();
    nic.modify_to_init(queue_pair).unwrap();
    End {
        nic,
        queue,
        queue_pair,
        region,
    }
}

fn run_until_idle(network: &SimNetwork) {
    while let Some(time) = network.next_event_time() {
        network.advance_to(time);
    }
}

/// Long enough for every message under way, far too short for a timer.
fn pass_a_moment(network: &SimNetwork) {
    network.advance_to(network.now() + Duration::from_micros(100));
}

fn address() -> Address {
    Address::Sim("port".to_owned())
}

fn connect(network: &SimNetwork, left: SimProvider, right: SimProvider) -> (End, End) {
    let (mut left, mut right) = (end(left), end(right));
    right.nic.listen(&address()).unwrap();
    left.nic.connect(left.queue_pair, &address(), &[]).unwrap();
    pass_a_moment(network);
    let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
        right.nic.poll_event()
    else {
        panic!("no request");
    };
    right.nic.accept(request, right.queue_pair, &[]).unwrap();
    pass_a_moment(network);
    for end in [&mut left, &mut right] {
        let event = end.nic.poll_event();
        let established = ConnectionEvent::Established {
            queue_pair: end.queue_pair,
            private_data: Vec::new(),
        };
        assert_eq!(event, Some(Event::Connection(established)));
    }
    (left, right)
}

fn pair(seed: u64) -> (SimNetwork, End, End) {
    let network = SimNetwork::new(seed, SimNetworkConfig::default());
    let (left, right) = (network.provider("left"), network.provider("right"));
    let (left, right) = connect(&network, left, right);
    (network, left, right)
}

impl End {
    fn write(&mut self, wr_id: u64, to: &MemoryRegion) {
        let request = SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation: SendOperation::RdmaWrite(RemoteAddress {
                key: to.remote_key,
                address: to.address,
            }),
            entries: vec![self.region.entry(0, 64)],
            flags: SendFlags::SIGNALED,
        };
        self.nic.post_send(self.queue_pair, &request).unwrap();
    }

    fn polled(&mut self) -> Vec<(u64, Result<CompletionKind, CompletionStatus>)> {
        let mut came: Vec<Completion> = Vec::new();
        self.nic
            .poll_completion_queue(self.queue, 100, &mut came)
            .unwrap();
        came.iter()
            .map(|completion| (completion.wr_id.0, completion.result))
            .collect()
    }

    fn disconnected(&self) -> Event {
        Event::Connection(ConnectionEvent::Disconnected {
            queue_pair: self.queue_pair,
        })
    }

    fn time_wait_exit(&self) -> Event {
        Event::Connection(ConnectionEvent::TimeWaitExit {
            queue_pair: self.queue_pair,
        })
    }
}

const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);
const RETRIES_EXCEEDED: Result<CompletionKind, CompletionStatus> =
    Err(CompletionStatus::RetryExceeded);

#[test]
fn a_killed_peer_is_silence_then_a_disconnect() {
    let (network, mut left, right) = pair(1);
    network.kill("right");
    let killed = network.now();
    left.write(1, &right.region);
    left.write(2, &right.region);
    network.advance_to(killed + Duration::from_millis(268));
    assert_eq!(left.polled(), []);
    network.advance_to(killed + Duration::from_millis(269));
    assert_eq!(left.polled(), [(1, RETRIES_EXCEEDED), (2, FLUSHED)]);
    assert_eq!(left.nic.poll_event(), None);
    network.advance_to(killed + Duration::from_millis(500));
    assert_eq!(left.nic.poll_event(), Some(left.disconnected()));
    run_until_idle(&network);
    assert_eq!(left.nic.poll_event(), Some(left.time_wait_exit()));
    assert_eq!(left.nic.poll_event(), None);
}

/// No NIC knows that its peer is dead: without the stand-in there is only silence.
#[test]
fn without_detection_an_idle_connection_to_a_dead_peer_lasts() {
    let config = SimNetworkConfig {
        detection_time: None,
        ..SimNetworkConfig::default()
    };
    let network = SimNetwork::new(2, config);
    let (left, right) = (network.provider("left"), network.provider("right"));
    let (mut left, _right) = connect(&network, left, right);
    network.kill("right");
    run_until_idle(&network);
    assert_eq!(left.nic.poll_event(), None);
    let state = left.nic.query_queue_pair(left.queue_pair);
    assert_eq!(state, Ok(QueuePairState::ReadyToSend));
}

#[test]
fn an_idle_connection_to_a_killed_peer_ends_after_the_detection_time() {
    let (network, mut left, _right) = pair(2);
    network.kill("right");
    let killed = network.now();
    network.advance_to(killed + Duration::from_millis(499));
    assert_eq!(left.nic.poll_event(), None);
    network.advance_to(killed + Duration::from_millis(500));
    assert_eq!(left.nic.poll_event(), Some(left.disconnected()));
    let state = left.nic.query_queue_pair(left.queue_pair);
    assert_eq!(state, Ok(QueuePairState::Error));
}

#[test]
fn the_nic_of_a_killed_machine_refuses_everything() {
    let (network, mut left, _right) = pair(3);
    network.kill("left");
    assert!(!network.is_alive("left"));
    assert_eq!(left.nic.resource_counts(), Default::default());
    assert!(matches!(
        left.nic.create_protection_domain(),
        Err(VerbsError::System { .. })
    ));
    assert!(left.nic.query_queue_pair(left.queue_pair).is_err());
    assert!(left.nic.region_memory(&left.region).is_none());
}

#[test]
fn a_restarted_machine_can_be_connected_to_and_knows_no_old_key() {
    let (network, mut left, right) = pair(4);
    let next = network.restart("right");
    run_until_idle(&network);
    assert_eq!(left.nic.poll_event(), Some(left.disconnected()));
    assert_eq!(left.nic.poll_event(), Some(left.time_wait_exit()));
    let (mut again, fresh) = connect(&network, network.provider("left"), next);
    again.write(1, &right.region);
    run_until_idle(&network);
    assert_eq!(again.polled(), [(1, Err(CompletionStatus::RemoteAccess))]);
    assert_ne!(right.region.remote_key, fresh.region.remote_key);
}

#[test]
fn connecting_to_a_dead_machine_times_out() {
    let (network, left, _right) = pair(5);
    network.kill("right");
    let mut late = end(left.nic);
    late.nic.connect(late.queue_pair, &address(), &[]).unwrap();
    run_until_idle(&network);
    let events: Vec<Event> = std::iter::from_fn(|| late.nic.poll_event()).collect();
    let unreachable = Event::Connection(ConnectionEvent::Unreachable {
        queue_pair: late.queue_pair,
        reason: UnreachableReason::TimedOut,
    });
    assert!(events.contains(&unreachable), "{events:?}");
    assert!(events.contains(&late.time_wait_exit()), "{events:?}");
    // 16 messages, each 4.6 s.
    assert!(network.now() >= Time::ZERO + Duration::from_secs(73));
}

/// It died with the reply on its way: the active side believes in a connection for a while.
#[test]
fn a_peer_that_dies_while_it_accepts_is_found() {
    let network = SimNetwork::new(9, SimNetworkConfig::default());
    let (mut left, mut right) = (
        end(network.provider("left")),
        end(network.provider("right")),
    );
    right.nic.listen(&address()).unwrap();
    left.nic.connect(left.queue_pair, &address(), &[]).unwrap();
    pass_a_moment(&network);
    let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
        right.nic.poll_event()
    else {
        panic!("no request");
    };
    right.nic.accept(request, right.queue_pair, &[]).unwrap();
    network.kill("right");
    run_until_idle(&network);
    let events: Vec<Event> = std::iter::from_fn(|| left.nic.poll_event()).collect();
    assert!(matches!(
        events[0],
        Event::Connection(ConnectionEvent::Established { .. })
    ));
    assert_eq!(events[1..], [left.disconnected(), left.time_wait_exit()]);
}

/// Over is not quiet: the sender's flush says nothing about the far side.
#[test]
fn a_write_that_left_lands_although_its_sender_flushed_it() {
    let mut landed = 0;
    for seed in 0..50 {
        let (network, mut left, right) = pair(seed);
        left.nic.write_region(&left.region, 0, &[7; 64]).unwrap();
        left.write(1, &right.region);
        network.advance_to(network.now() + Duration::from_nanos(200));
        left.nic.modify_to_error(left.queue_pair).unwrap();
        assert_eq!(left.polled(), [(1, FLUSHED)]);
        run_until_idle(&network);
        let mut there = [0; 64];
        right.nic.read_region(&right.region, 0, &mut there).unwrap();
        assert!(there == [0; 64] || there == [7; 64]);
        landed += usize::from(there == [7; 64]);
    }
    assert!((1..50).contains(&landed), "both fates occur: {landed}");
}

#[test]
fn a_frozen_peer_executes_late_what_its_requester_has_given_up() {
    let (network, mut left, mut right) = pair(6);
    right.nic.write_region(&right.region, 0, &[9; 64]).unwrap();
    right.write(5, &left.region);
    network.freeze("right");
    left.write(1, &right.region);
    run_until_idle(&network);
    assert_eq!(left.polled(), [(1, RETRIES_EXCEEDED)]);
    assert_eq!(right.polled(), []);
    network.unfreeze("right");
    pass_a_moment(&network);
    let mut there = [1; 64];
    right.nic.read_region(&right.region, 0, &mut there).unwrap();
    assert_eq!(
        there, [0; 64],
        "the write of the failed queue pair had left"
    );
    run_until_idle(&network);
    assert_eq!(right.polled(), [(5, RETRIES_EXCEEDED)]);
}

#[test]
fn a_receive_posted_within_the_retries_is_in_time() {
    let (network, mut left, mut right) = pair(7);
    let send = SendRequest {
        wr_id: WorkRequestId(1),
        operation: SendOperation::Send,
        entries: vec![left.region.entry(0, 8)],
        flags: SendFlags::SIGNALED,
    };
    left.nic.post_send(left.queue_pair, &send).unwrap();
    network.advance_to(network.now() + Duration::from_micros(1000));
    let receive = ReceiveRequest {
        wr_id: WorkRequestId(2),
        entries: vec![right.region.entry(0, 8)],
    };
    right.nic.post_receive(right.queue_pair, &receive).unwrap();
    run_until_idle(&network);
    assert_eq!(left.polled(), [(1, Ok(CompletionKind::Send))]);
    let received = CompletionKind::Receive { length: 8 };
    assert_eq!(right.polled(), [(2, Ok(received))]);
}

fn history(seed: u64) -> (u64, Time) {
    let (network, mut left, right) = pair(seed);
    for wr_id in 0..8 {
        left.write(wr_id, &right.region);
    }
    run_until_idle(&network);
    left.polled();
    network.kill("right");
    left.write(9, &right.region);
    run_until_idle(&network);
    (network.trace_hash(), network.now())
}

#[test]
fn a_seed_is_a_history() {
    assert_eq!(history(1), history(1));
    assert_ne!(history(1).0, history(2).0);
}

#[test]
fn region_memory_is_the_memory_that_peers_write() {
    let (network, mut left, right) = pair(8);
    let source = left.nic.region_memory(&left.region).unwrap();
    source.borrow_mut()[..64].fill(3);
    left.write(1, &right.region);
    run_until_idle(&network);
    let target = right.nic.region_memory(&right.region).unwrap();
    assert_eq!(target.borrow()[..65], [&[3; 64][..], &[0]].concat());
}
