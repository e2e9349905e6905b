//! Receives that several queue pairs share: limits, errors of one of them, and what is left.

use crate::peer::Peer;
use crate::peer::pair::{NOW, connect, events, over, polled, state, turn, turn_at};
use legato_base::Duration;
use legato_providers::shm::SHARED_RECEIVE_QUEUES_MAX;
use legato_verbs::{
    AsyncEvent, CompletionKind, CompletionStatus, Event, Provider, QueuePairAttributes,
    QueuePairCapabilities, QueuePairInit, QueuePairState as State, ReceiveRequest, Receives,
    SendOperation, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};
use rustix::process::{Resource, getrlimit, setrlimit};

const SENT: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::Send);
const RECEIVED: Result<CompletionKind, CompletionStatus> =
    Ok(CompletionKind::Receive { length: 8 });

/// A peer with a shared receive queue, and one connected to it.
fn sharing(name: &str, requests_max: u32) -> (Peer, Peer, SharedReceiveQueue) {
    let (mut left, mut right) = (Peer::new(), Peer::sharing(requests_max));
    connect(name, &mut left, &mut right);
    let shared = right.shared.unwrap();
    (left, right, shared)
}

/// Connects one more queue pair of the sharing peer to a new one.
fn join(name: &str, right: &mut Peer) -> Peer {
    let mut left = Peer::new();
    right.queue_pair = right.create_queue_pair();
    right.provider.modify_to_init(right.queue_pair).unwrap();
    connect(name, &mut left, right);
    left
}

fn limit(right: &Peer) -> u32 {
    let shared = right.shared.unwrap();
    right.provider.query_shared_receive_queue(shared).unwrap()
}

#[test]
fn v_15_the_limit_is_told_once_each_time_that_it_is_armed() {
    let (mut left, mut right, shared) = sharing("limit", 10);
    let crossed = Event::Async(AsyncEvent::SharedReceiveQueueLimit(shared));
    let too_high = right.provider.arm_shared_receive_queue(shared, 11);
    assert!(matches!(
        too_high,
        Err(VerbsError::LimitExceeded { limit: 10, .. })
    ));
    right.provider.arm_shared_receive_queue(shared, 7).unwrap();
    assert_eq!(
        events(&mut right),
        [],
        "what is posted now is not looked at"
    );
    for wr_id in 0..10 {
        right.post_receive(wr_id, wr_id * 8, 8);
    }
    let eleventh = ReceiveRequest {
        wr_id: WorkRequestId(11),
        entries: vec![],
    };
    let full = right.provider.post_shared_receive(shared, &eleventh);
    assert_eq!(full, Err(VerbsError::QueueFull("shared receive")));
    let message = |left: &mut Peer, right: &mut Peer| {
        left.post(1, SendOperation::Send, 0, 8);
        turn(left, right);
        assert_eq!(polled(left), [SENT]);
        assert_eq!(polled(right), [RECEIVED]);
        events(right)
    };
    for expected in [&[][..], &[], &[], std::slice::from_ref(&crossed)] {
        assert_eq!(message(&mut left, &mut right), expected);
    }
    assert_eq!(limit(&right), 0, "disarmed");
    assert_eq!(message(&mut left, &mut right), []);
    right.provider.arm_shared_receive_queue(shared, 5).unwrap();
    assert_eq!(limit(&right), 5);
    assert_eq!(message(&mut left, &mut right), [crossed]);
    right.provider.arm_shared_receive_queue(shared, 4).unwrap();
    right.provider.arm_shared_receive_queue(shared, 0).unwrap();
    assert_eq!(message(&mut left, &mut right), [], "disarmed by hand");
}

#[test]
fn receives_go_to_whoever_has_a_message_and_survive_the_others_error() {
    let (mut left, mut right, shared) = sharing("several", 8);
    let first = right.queue_pair;
    let mut other = join("several-2", &mut right);
    for wr_id in 0..4 {
        right.post_receive(wr_id, wr_id * 8, 8);
    }
    let own = right.provider.post_receive(
        first,
        &ReceiveRequest {
            wr_id: WorkRequestId(9),
            entries: vec![],
        },
    );
    assert!(matches!(own, Err(VerbsError::Unsupported(_))));
    left.post(1, SendOperation::Send, 0, 8);
    turn(&mut left, &mut right);
    other.post(2, SendOperation::Send, 0, 8);
    turn(&mut other, &mut right);
    let mut came = Vec::new();
    let queue = right.queue;
    right
        .provider
        .poll_completion_queue(queue, 9, &mut came)
        .unwrap();
    let from: Vec<_> = came
        .iter()
        .map(|done| (done.wr_id.0, done.queue_pair))
        .collect();
    assert_eq!(from, [(0, first), (1, right.queue_pair)]);
    right.provider.modify_to_error(first).unwrap();
    assert_eq!(polled(&mut right), [], "not its receives");
    let [disconnected, exit] = over(first);
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(first));
    assert_eq!(events(&mut right), [last, disconnected, exit]);
    right.provider.modify_to_error(first).unwrap();
    assert_eq!(events(&mut right), [], "once");
    for _ in 0..2 {
        other.post(3, SendOperation::Send, 0, 8);
    }
    turn(&mut other, &mut right);
    assert_eq!(polled(&mut right), [RECEIVED, RECEIVED]);
    let busy = right.provider.destroy_shared_receive_queue(shared);
    assert_eq!(busy, Err(VerbsError::Busy("shared receive queue")));
    right.provider.destroy_queue_pair(first).unwrap();
    let busy = right.provider.destroy_shared_receive_queue(shared);
    assert_eq!(busy, Err(VerbsError::Busy("shared receive queue")));
    right.dismantle();
}

#[test]
fn v_32_an_idle_queue_pair_on_an_empty_queue_says_at_once_that_it_is_done() {
    let mut peer = Peer::sharing(4);
    let queue_pair = peer.queue_pair;
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(queue_pair));
    peer.provider.modify_to_error(queue_pair).unwrap();
    assert_eq!(events(&mut peer), std::slice::from_ref(&last));
    // Again after Reset: it is another time in the error state.
    let none = QueuePairAttributes::NONE;
    peer.provider
        .modify_queue_pair(queue_pair, State::Reset, &none)
        .unwrap();
    assert_eq!(events(&mut peer), []);
    peer.provider.modify_to_init(queue_pair).unwrap();
    peer.provider.modify_to_error(queue_pair).unwrap();
    assert_eq!(events(&mut peer), [last]);
    peer.dismantle();
    // With receives of its own there is nothing to say.
    let mut own = Peer::new();
    own.provider.modify_to_error(own.queue_pair).unwrap();
    assert_eq!(events(&mut own), []);
}

#[test]
fn v_10_a_message_that_is_too_long_fails_its_shared_receive_alone() {
    let (mut left, mut right, _) = sharing("too-long", 4);
    let failed = right.queue_pair;
    right.post_receive(1, 0, 8);
    right.post_receive(2, 64, 64);
    left.post(1, SendOperation::Send, 0, 16);
    turn(&mut left, &mut right);
    let invalid = Err(CompletionStatus::RemoteInvalidRequest);
    assert_eq!(polled(&mut left), [invalid]);
    assert_eq!(polled(&mut right), [Err(CompletionStatus::LocalLength)]);
    let [disconnected, exit] = over(failed);
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(failed));
    assert_eq!(events(&mut right), [last, disconnected, exit]);
    let mut other = join("too-long-2", &mut right);
    other.post(2, SendOperation::Send, 0, 8);
    turn(&mut other, &mut right);
    assert_eq!(polled(&mut right), [RECEIVED], "the second receive");
}

#[test]
fn v_06_an_empty_shared_queue_is_a_receiver_that_is_not_ready() {
    let (mut left, mut right, _) = sharing("not-ready", 4);
    left.post(1, SendOperation::Send, 0, 8);
    let deadline = right.provider.progress(NOW);
    right.post_receive(1, 0, 8);
    right.provider.progress(deadline);
    turn_at(deadline, &mut left, &mut right);
    assert_eq!(polled(&mut left), [SENT]);
    left.post(2, SendOperation::Send, 0, 8);
    turn_at(deadline, &mut left, &mut right);
    turn_at(deadline + Duration::from_secs(1), &mut left, &mut right);
    let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
    assert_eq!(polled(&mut left), [exhausted]);
    assert_eq!(state(&right), State::Error, "its peer has gone");
    assert_eq!(polled(&mut right), [RECEIVED]);
}

#[test]
fn v_17_messages_unpolled_are_limited_by_the_queue_pairs_reserve() {
    let (mut left, mut right) = (Peer::new(), Peer::sharing(8));
    let capabilities = QueuePairCapabilities {
        send_requests_max: 1,
        receive_requests_max: 2,
        entries_max: 1,
    };
    right.provider.destroy_queue_pair(right.queue_pair).unwrap();
    let queue = right.provider.create_completion_queue(3).unwrap();
    let mut init = QueuePairInit::new(right.domain, queue, capabilities);
    init.receives = right.shared.map_or(Receives::Own, Receives::Shared);
    right.queue_pair = right.provider.create_queue_pair(&init).unwrap();
    right.provider.modify_to_init(right.queue_pair).unwrap();
    connect("reserve", &mut left, &mut right);
    for wr_id in 0..6 {
        right.post_receive(wr_id, 0, 8);
        left.post(wr_id, SendOperation::Send, 0, 8);
    }
    for round in 0..3 {
        turn(&mut left, &mut right);
        assert_eq!(polled(&mut left), [SENT; 2]);
        let mut came = Vec::new();
        let polled = right.provider.poll_completion_queue(queue, 9, &mut came);
        assert_eq!(polled, Ok(2));
        // With room again there is something to do, as long as messages wait.
        assert_eq!(right.provider.set_sleeping(true), round == 2);
        right.provider.set_sleeping(false);
    }
}

#[test]
fn v_26_receives_of_a_vanished_peer_are_reclaimed() {
    let (left, mut right, _) = sharing("vanished", 4);
    for wr_id in 0..4 {
        right.post_receive(wr_id, wr_id * 8, 8);
    }
    let (gone, region) = (right.queue_pair, right.region);
    drop(left);
    right.provider.progress(NOW);
    assert_eq!(state(&right), State::Error);
    assert_eq!(events(&mut right).len(), 3);
    right.provider.destroy_queue_pair(gone).unwrap();
    let busy = Err(VerbsError::Busy("memory region"));
    assert_eq!(right.provider.deregister_region(&region), busy);
    let mut other = join("vanished-2", &mut right);
    for wr_id in 0..4 {
        other.post(wr_id, SendOperation::Send, 0, 8);
    }
    turn(&mut other, &mut right);
    assert_eq!(polled(&mut right), [RECEIVED; 4]);
    right.dismantle();
}

#[test]
fn v_40_one_bad_queue_pair_of_many_costs_the_others_nothing() {
    const OTHERS: usize = 255;
    // Both ends of all links are in this process, with five descriptors each.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut right = Peer::sharing(OTHERS as u32 + 1);
    let domain = right.domain;
    right.provider.destroy_queue_pair(right.queue_pair).unwrap();
    right
        .provider
        .destroy_completion_queue(right.queue)
        .unwrap();
    let entries = 2 * crate::peer::REQUESTS * (OTHERS as u32 + 1);
    right.queue = right.provider.create_completion_queue(entries).unwrap();
    let mut lefts: Vec<Peer> = (0..=OTHERS)
        .map(|number| join(&format!("many-{number}"), &mut right))
        .collect();
    let mut bad = lefts.remove(20);
    for wr_id in 0..=OTHERS as u64 {
        right.post_receive(wr_id, 0, 8);
    }
    bad.post(1, SendOperation::Send, 0, 16);
    for left in &mut lefts {
        left.post(1, SendOperation::Send, 0, 8);
    }
    for left in &mut lefts {
        turn(left, &mut right);
        assert_eq!(polled(left), [SENT]);
    }
    turn(&mut bad, &mut right);
    let invalid = Err(CompletionStatus::RemoteInvalidRequest);
    assert_eq!(polled(&mut bad), [invalid]);
    let came = polled(&mut right);
    let received = came.iter().filter(|&&result| result == RECEIVED).count();
    assert_eq!((came.len(), received), (OTHERS + 1, OTHERS));
    let busy = right.provider.destroy_protection_domain(domain);
    assert_eq!(busy, Err(VerbsError::Busy("protection domain")));
}

#[test]
fn shared_queues_are_counted_and_limited() {
    let mut peer = Peer::new();
    let domain = peer.domain;
    let provider = &mut peer.provider;
    let sizes = SharedReceiveQueueCapabilities {
        requests_max: 4,
        entries_max: 1,
    };
    let most = provider.attributes().shared_receive_queues_max;
    assert_eq!(most, SHARED_RECEIVE_QUEUES_MAX);
    let mut made = Vec::new();
    for _ in 0..most {
        made.push(provider.create_shared_receive_queue(domain, sizes).unwrap());
    }
    let refused = provider.create_shared_receive_queue(domain, sizes);
    assert!(matches!(refused, Err(VerbsError::LimitExceeded { .. })));
    assert_eq!(
        provider.resource_counts().shared_receive_queues,
        most as usize
    );
    for &queue in &made {
        provider.destroy_shared_receive_queue(queue).unwrap();
    }
    let unknown = VerbsError::UnknownHandle("shared receive queue");
    let stale = made[0];
    let request = ReceiveRequest {
        wr_id: WorkRequestId(1),
        entries: vec![],
    };
    let posted = provider.post_shared_receive(stale, &request);
    assert_eq!(posted, Err(unknown));
    assert_eq!(provider.arm_shared_receive_queue(stale, 0), Err(unknown));
    assert_eq!(provider.query_shared_receive_queue(stale), Err(unknown));
    assert_eq!(provider.destroy_shared_receive_queue(stale), Err(unknown));
    for (requests_max, entries_max) in [(u32::MAX, 1), (1, u32::MAX)] {
        let sizes = SharedReceiveQueueCapabilities {
            requests_max,
            entries_max,
        };
        let refused = provider.create_shared_receive_queue(domain, sizes);
        assert!(matches!(refused, Err(VerbsError::LimitExceeded { .. })));
    }
    peer.dismantle();
}
