//! What is left of a connection between software RoCE NICs when the other process is killed or
//! stands still, and when the link is down for a while.

use crate::netns::{HOSTS, Link, in_namespace, ip};
use crate::peer::process::{CHILD_ADDRESS, READY, start};
use crate::peer::{Peer, pattern};
use legato_base::timeouts::{ROCE_ACK_CODE, ROCE_RETRIES};
use legato_providers::RoceProvider;
use legato_verbs::{
    Address, CompletionKind, CompletionStatus, ConnectionEvent, Event, Provider, QueuePairState,
    RemoteAddress, SendOperation,
};
use rustix::process::Signal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const FAR: u64 = 128 * 1024;
/// READs and WRITEs under way when the other side vanishes.
const UNDER_WAY: u64 = 24;
/// All timeouts of a packet, each twice the one before (IB spec 9.7.6.1.3): 34.2 s.
const SOONEST: Duration = Duration::from_nanos((4096 << ROCE_ACK_CODE) * ((2 << ROCE_RETRIES) - 1));
/// And what a busy machine adds.
const LATEST: Duration = SOONEST.saturating_add(Duration::from_secs(10));

type RocePeer = Peer<RoceProvider>;

fn open(place: &str) -> RocePeer {
    Peer::over(RoceProvider::open(&place.parse().unwrap()).unwrap())
}

/// The peer's program; as a test of its own it has nothing to do.
#[test]
fn child_peer() {
    let Ok(name) = std::env::var(CHILD_ADDRESS) else {
        return;
    };
    let address = name.parse::<Address>().unwrap();
    let mut peer = Peer::over(RoceProvider::open_towards(&address, None).unwrap());
    peer.fill(FAR, &pattern(1, 65_536));
    peer.serve(&address, || println!("{READY}"));
    peer.disconnected();
    peer.dismantle();
}

fn at(far: RemoteAddress, offset: u64) -> RemoteAddress {
    RemoteAddress {
        address: far.address + offset,
        ..far
    }
}

/// Requests of 32 KiB, READs and WRITEs in turn, as many as are under way at once.
fn transfer(peer: &mut RocePeer, far: RemoteAddress) {
    for wr_id in 0..UNDER_WAY {
        let operation = match wr_id % 2 {
            0 => SendOperation::RdmaRead(at(far, FAR)),
            _ => SendOperation::RdmaWrite(at(far, 0)),
        };
        peer.post(wr_id, operation, (wr_id % 2) * 32_768, 32_768);
    }
}

/// All that was under way completes: first what went well, then one request that nobody answered,
/// and the rest is flushed. Returns how long it took.
fn fails_in_order(peer: &mut RocePeer, since: Instant) -> Duration {
    let mut failed = None;
    for wr_id in 0..UNDER_WAY {
        let done = peer.completion();
        assert_eq!(done.wr_id.0, wr_id);
        match (failed, done.result) {
            (None, Ok(_)) => {}
            (None, Err(CompletionStatus::RetryExceeded)) => failed = Some(since.elapsed()),
            (Some(_), Err(CompletionStatus::WorkRequestFlushed)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        peer.provider.query_queue_pair(peer.queue_pair),
        Ok(QueuePairState::Error)
    );
    failed.expect("all went well")
}

/// A connection in the middle of a transfer, of which something has come back.
fn in_the_middle(place: &str, child: &Address) -> RocePeer {
    let mut peer = open(place);
    let far = peer.connect(child);
    peer.post(1000, SendOperation::RdmaRead(at(far, FAR)), 0, 65_536);
    assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
    assert_eq!(peer.bytes(0, 65_536), pattern(1, 65_536));
    transfer(&mut peer, far);
    peer
}

fn vanishes(left: &str, right: &str, stops: bool) {
    let address: Address = right.parse().unwrap();
    let mut child = start("vanished::child_peer", &address);
    let mut peer = in_the_middle(left, &address);
    let since = Instant::now();
    if stops {
        child.stop();
    } else {
        child.0.kill().unwrap();
        child.0.wait().unwrap();
    }
    let took = fails_in_order(&mut peer, since);
    println!("{left}: failed after {took:?}");
    assert!(took > SOONEST && took < LATEST, "{took:?}");
    if stops {
        // It hears of the end when it goes on.
        peer.provider.disconnect(peer.queue_pair).unwrap();
        child.signal(Signal::CONT);
        peer.until("the end of the other side", |_| child.0.try_wait().unwrap());
        assert!(child.0.wait().unwrap().success());
    }
    peer.dismantle();
}

#[test]
fn v_25_a_killed_peer_is_found_out() {
    vanishes("roce://127.32.0.1:4791", "roce://127.32.0.2:4791", false);
}

#[test]
fn v_26_a_stopped_peer_is_found_out_and_hears_of_it() {
    vanishes("roce://127.32.0.3:4791", "roce://127.32.0.4:4791", true);
}

#[test]
fn v_25_a_killed_peer_of_a_stream_is_found_out() {
    let (left, right) = ("roce+tcp://127.32.0.5:4791", "roce+tcp://127.32.0.6:4791");
    vanishes(left, right, false);
}

/// Serves one connection after the other, as long as there is anybody to tell.
fn serve_all(link: &Link, address: &Address, ready: &mpsc::Sender<()>, over: &mpsc::Receiver<()>) {
    link.enter(true);
    let mut peer = Peer::over(RoceProvider::open(address).unwrap());
    peer.fill(FAR, &pattern(1, 65_536));
    peer.provider.listen(address).unwrap();
    let mut free = Some(peer.queue_pair);
    ready.send(()).unwrap();
    peer.until("the end of the test", |peer| {
        let requests = peer.events.iter().position(|event| {
            matches!(event, Event::Connection(ConnectionEvent::Requested { .. }))
        });
        if let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
            requests.and_then(|place| peer.events.remove(place))
        {
            let queue_pair = free.take().unwrap_or_else(|| {
                let another = peer.create_queue_pair();
                peer.provider.modify_to_init(another).unwrap();
                another
            });
            let introduction = peer.introduction();
            // It may have given up.
            let _ = peer.provider.accept(request, queue_pair, &introduction);
        }
        over.try_recv().ok()
    });
}

fn link_down_for_two_seconds() {
    let link = std::sync::Arc::new(Link::new(1500));
    let [near, far] = HOSTS[0].map(|host| format!("roce://{host}:4791"));
    let address: Address = far.parse().unwrap();
    let (tell, ready) = mpsc::channel();
    let (end, over) = mpsc::channel();
    let (there, listens_at) = (link.clone(), address.clone());
    let server = std::thread::spawn(move || serve_all(&there, &listens_at, &tell, &over));
    ready.recv().unwrap();
    let mut peer = in_the_middle(&near, &address);
    ip("link set va down");
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        peer.progress();
        std::thread::sleep(Duration::from_millis(5));
    }
    ip("link set va up");
    let up = Instant::now();
    let old = peer.queue_pair;
    peer.queue_pair = peer.create_queue_pair();
    peer.provider.modify_to_init(peer.queue_pair).unwrap();
    let far = peer.connect(&address);
    peer.fill(0, &[0; 65_536]);
    let target = at(far, FAR);
    peer.post(2000, SendOperation::RdmaRead(target), 65_536, 65_536);
    peer.until("the READ", |peer| {
        let done = peer.completions.iter().find(|done| done.wr_id.0 == 2000)?;
        assert_eq!(done.result, Ok(CompletionKind::RdmaRead));
        Some(())
    });
    let took = up.elapsed();
    println!("a READ through a new connection after {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(peer.bytes(65_536, 65_536), pattern(1, 65_536));
    peer.completions.retain(|done| done.wr_id.0 != 2000);
    // The old connection has lived on, or not: each request completes once.
    let mut bad = 0;
    for wr_id in 0..UNDER_WAY {
        let done = peer.completion();
        assert_eq!(done.wr_id.0, wr_id);
        assert!(done.result.is_err() || bad == 0, "{done:?}");
        bad += u32::from(done.result.is_err());
    }
    println!("{bad} of {UNDER_WAY} requests failed");
    peer.provider.destroy_queue_pair(old).unwrap();
    end.send(()).unwrap();
    peer.dismantle();
    server.join().unwrap();
}

#[test]
fn v_27_a_new_connection_works_when_the_link_is_up_again() {
    let name = "vanished::v_27_a_new_connection_works_when_the_link_is_up_again";
    in_namespace(name, link_down_for_two_seconds);
}
