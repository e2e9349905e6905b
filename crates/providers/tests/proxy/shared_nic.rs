//! One NIC with several users: each has what is its own, and nothing else.

use crate::peer::{Peer, REGION_LENGTH, pattern};
use legato_base::Time;
use legato_providers::{RoceProvider, SharedNic, SharedProvider};
use legato_verbs::{
    AccessFlags, Address, Arm, CompletionKind, ConnectionEvent, Event, Provider,
    QueuePairAttributes, QueuePairCapabilities, QueuePairInit, QueuePairState, RemoteAddress,
    ResourceCounts, SendOperation, VerbsError, WorkRequestId,
};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Instant;

type User = Peer<SharedProvider<RoceProvider>>;

fn nic(host: &str) -> RoceProvider {
    RoceProvider::open(&Address::Roce(format!("{host}:4791").parse().unwrap())).unwrap()
}

fn service(host: &str, number: u16) -> Address {
    format!("roce://{host}/{number}").parse().unwrap()
}

/// Serves until the peer is gone, and gives back what is in the region then.
fn server(host: &'static str) -> JoinHandle<Vec<u8>> {
    let (ready, is_ready) = channel();
    let thread = std::thread::spawn(move || {
        let mut peer = Peer::over(nic(host));
        peer.serve(&service(host, 7000), || ready.send(()).unwrap());
        peer.disconnected();
        let bytes = peer.bytes(0, REGION_LENGTH as usize);
        peer.dismantle();
        bytes
    });
    is_ready.recv().unwrap();
    thread
}

fn users<const COUNT: usize>(nic: &SharedNic<RoceProvider>) -> [User; COUNT] {
    let origin = Instant::now();
    [(); COUNT].map(|()| Peer::over_since(nic.share().unwrap(), origin))
}

fn write(user: &mut User, to: RemoteAddress, at: u64, bytes: &[u8]) {
    user.fill(at, bytes);
    let to = RemoteAddress {
        address: to.address + at,
        ..to
    };
    user.post(at, SendOperation::RdmaWrite(to), at, bytes.len() as u32);
}

#[track_caller]
fn expect_written(user: &mut User, at: u64) {
    let done = user.completion();
    assert_eq!(
        (done.queue_pair, done.wr_id, done.result),
        (
            user.queue_pair,
            WorkRequestId(at),
            Ok(CompletionKind::RdmaWrite)
        )
    );
}

const PIECE: usize = 8192;
const PIECES: u64 = REGION_LENGTH / PIECE as u64;

#[test]
fn users_work_side_by_side_and_one_goes_without_the_other() {
    let servers = ["127.0.0.31", "127.0.0.32"].map(server);
    let nic = SharedNic::new(nic("127.0.0.30"));
    let [mut first, mut second]: [User; 2] = users(&nic);
    let to_first = first.connect(&service("127.0.0.31", 7000));
    let to_second = second.connect(&service("127.0.0.32", 7000));
    let contents = [1, 2].map(|seed| pattern(seed, REGION_LENGTH as usize));
    let piece = |user: usize, at: u64| &contents[user][at as usize..][..PIECE];
    let places: Vec<u64> = (0..PIECES).map(|number| number * PIECE as u64).collect();
    let (early, late) = places.split_at(places.len() / 2);
    for &at in early {
        write(&mut first, to_first, at, piece(0, at));
        write(&mut second, to_second, at, piece(1, at));
    }
    // The one waits for its own completions only, though the other's come meanwhile.
    early.iter().for_each(|&at| expect_written(&mut second, at));
    early.iter().for_each(|&at| expect_written(&mut first, at));
    assert_eq!((first.events.len(), second.events.len()), (0, 0));

    // With requests under way.
    write(&mut first, to_first, late[0], piece(0, late[0]));
    let of_second = second.provider.resource_counts();
    drop(first);
    for &at in late {
        write(&mut second, to_second, at, piece(1, at));
    }
    late.iter().for_each(|&at| expect_written(&mut second, at));
    assert!(second.events.is_empty(), "{:?}", second.events);
    let [at_first, at_second] = servers;
    second.until("the first server has ended", |_| {
        at_first.is_finished().then_some(())
    });
    let (length, at_first) = (late[0] as usize, at_first.join().unwrap());
    assert!(at_first[..length] == contents[0][..length]);
    assert_eq!(nic.resource_counts(), of_second);
    second.provider.disconnect(second.queue_pair).unwrap();
    assert!(at_second.join().unwrap() == contents[1]);
}

/// A request comes to whoever listens there, and to nobody else.
#[test]
fn a_request_comes_to_the_user_who_listens() {
    let nic_there = SharedNic::new(nic("127.0.0.34"));
    let mut there: [User; 2] = users(&nic_there);
    let [mut here]: [User; 1] = users(&SharedNic::new(nic("127.0.0.33")));
    for (user, number) in there.iter_mut().zip([7001, 7002]) {
        user.provider
            .listen(&service("127.0.0.34", number))
            .unwrap();
    }
    here.provider
        .connect(here.queue_pair, &service("127.0.0.34", 7002), b"second")
        .unwrap();
    let begun = Instant::now();
    let request = loop {
        assert!(begun.elapsed().as_secs() < 60, "no request comes");
        here.progress();
        for user in &mut there {
            user.progress();
        }
        assert!(there[0].events.is_empty(), "{:?}", there[0].events);
        if let Some(Event::Connection(ConnectionEvent::Requested {
            request,
            private_data,
            ..
        })) = there[1].events.pop_front()
        {
            assert_eq!(private_data, b"second");
            break request;
        }
    };
    // Nor can anybody else answer it.
    let stranger = there[0].queue_pair;
    let unknown = Err(VerbsError::UnknownHandle("connection request"));
    assert_eq!(there[0].provider.accept(request, stranger, &[]), unknown);
    assert_eq!(there[0].provider.reject(request, &[]), unknown);
    assert_eq!(
        there[1].provider.accept(request, stranger, &[]),
        Err(VerbsError::UnknownHandle("queue pair"))
    );
    let own = there[1].queue_pair;
    there[1].provider.accept(request, own, &[]).unwrap();
    assert_eq!(there[1].provider.reject(request, &[]), unknown);
}

#[test]
fn what_is_anothers_is_unknown() {
    let nic = SharedNic::new(nic("127.0.0.35"));
    let [mut other, mut user]: [User; 2] = users(&nic);
    let listener = other.provider.listen(&service("127.0.0.35", 7000)).unwrap();
    let before = nic.resource_counts();
    let unknown = |kind| VerbsError::UnknownHandle(kind);
    let (pair, queue, domain, region) = (other.queue_pair, other.queue, other.domain, other.region);
    let (own_queue, own_domain) = (user.queue, user.domain);
    let it = &mut user.provider;

    let of_pair = Err(unknown("queue pair"));
    let to_error = (QueuePairState::Error, QueuePairAttributes::NONE);
    assert_eq!(it.modify_queue_pair(pair, to_error.0, &to_error.1), of_pair);
    assert_eq!(it.destroy_queue_pair(pair), of_pair);
    assert_eq!(it.disconnect(pair), of_pair);
    assert_eq!(it.connect(pair, &service("127.0.0.36", 1), &[]), of_pair);
    assert_eq!(
        it.query_queue_pair(pair).unwrap_err(),
        unknown("queue pair")
    );
    assert_eq!(
        it.query_attributes(pair).unwrap_err(),
        unknown("queue pair")
    );
    assert_eq!(
        it.queue_pair_number(pair).unwrap_err(),
        unknown("queue pair")
    );

    let of_queue = unknown("completion queue");
    let polled = it.poll_completion_queue(queue, 1, &mut Vec::new());
    assert_eq!(polled, Err(of_queue));
    assert_eq!(it.arm_completion_queue(queue, Arm::Next), Err(of_queue));
    assert_eq!(it.destroy_completion_queue(queue), Err(of_queue));

    let of_domain = unknown("protection domain");
    assert_eq!(it.destroy_protection_domain(domain), Err(of_domain));
    let access = AccessFlags::LOCAL_WRITE;
    assert_eq!(it.allocate_region(domain, 4096, access), Err(of_domain));

    assert_eq!(it.deregister_region(&region), Err(unknown("region")));
    let protection = Err(VerbsError::LocalProtection);
    assert_eq!(it.read_region(&region, 0, &mut [0]), protection);
    assert_eq!(it.write_region(&region, 0, &[0]), protection);
    assert_eq!(it.close_listener(listener), Err(unknown("listener")));

    let capabilities = QueuePairCapabilities {
        send_requests_max: 1,
        receive_requests_max: 1,
        entries_max: 1,
    };
    for (domain, queue, error) in [
        (domain, own_queue, of_domain),
        (own_domain, queue, of_queue),
    ] {
        let init = QueuePairInit::new(domain, queue, capabilities);
        assert_eq!(it.create_queue_pair(&init), Err(error));
    }
    let own = user.queue_pair;
    let (posted, receive) = (
        user.post_with(Default::default(), 1, SendOperation::Send, (0, 1)),
        user.provider.query_queue_pair(own),
    );
    // Its own are there, and in Init, where nothing can be sent.
    assert_eq!(posted, Err(VerbsError::InvalidState(QueuePairState::Init)));
    assert_eq!(receive, Ok(QueuePairState::Init));
    assert_eq!(nic.resource_counts(), before);
    other.provider.close_listener(listener).unwrap();
    other.dismantle();
    user.dismantle();
    assert_eq!(nic.resource_counts(), ResourceCounts::default());
}

/// An event of an object that has ended is nobody's.
#[test]
fn nothing_is_told_of_what_has_ended() {
    let nic = SharedNic::new(nic("127.0.0.37"));
    let [mut user]: [User; 1] = users(&nic);
    // Nobody is there.
    let nowhere = service("127.0.0.38", 7000);
    let pair = user.queue_pair;
    user.provider.connect(pair, &nowhere, &[]).unwrap();
    // What another user's call brings along waits for this one.
    let mut other = nic.share().unwrap();
    let begun = Instant::now();
    while user.provider.query_queue_pair(pair) != Ok(QueuePairState::Error) {
        assert!(begun.elapsed().as_secs() < 60, "somebody is there");
        let now = Time::from_nanos(begun.elapsed().as_nanos() as u64);
        other.progress(now);
        assert_eq!(other.poll_event(), None);
    }
    assert!(
        !user.provider.set_sleeping(true),
        "there is an event to poll"
    );
    user.provider.destroy_queue_pair(pair).unwrap();
    assert_eq!(user.provider.poll_event(), None);
}
