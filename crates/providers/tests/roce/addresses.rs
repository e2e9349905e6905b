//! Addresses that this machine loses, and their connections, in network namespaces.
//!
//! Each test runs itself once more in a namespace of its own (`unshare -rn`).

use crate::netns::{HOSTS, Link, in_namespace, ip};
use crate::rig::{Node, roce};
use legato_base::{Duration, Time};
use legato_providers::Pollable as _;
use legato_verbs::{
    Address, ConnectionEvent, Event, Provider, QueuePair, QueuePairState, SendOperation,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::time::Instant;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// As much as the ends of connections may take, in steps.
const STEP: Duration = Duration::from_millis(20);
const STEPS: u32 = 5;
const PORT: u16 = 4800;

/// NICs at the two ends of a link.
struct Ends {
    near: Node,
    far: Node,
    link: Link,
    origin: Instant,
    /// What the clock is ahead of the real one.
    ahead: Duration,
}

impl Ends {
    /// With a listener at each of these addresses of the near end.
    fn new(near: &[Address], far: Address) -> Self {
        let link = Link::new(1500);
        ip("addr add 10.9.0.3/24 dev va");
        let mut server = Node::open(&near[0]);
        for address in near {
            server.provider.listen(address).unwrap();
        }
        Self {
            near: server,
            far: link.far(|| Node::open(&far)),
            link,
            origin: Instant::now(),
            ahead: Duration::ZERO,
        }
    }

    fn now(&self) -> Time {
        let real = Duration::from_nanos(self.origin.elapsed().as_nanos() as u64);
        Time::from_nanos(1) + real + self.ahead
    }

    /// The near and the far queue pair of a new connection that the far end has asked for.
    fn connect(&mut self, to: &Address) -> (QueuePair, QueuePair) {
        let begun = Instant::now();
        let mut far = None;
        let mut near = None;
        loop {
            assert!(begun.elapsed() < PATIENCE, "no connection");
            let now = self.now();
            self.link.enter(true);
            let asks = far.filter(|&far| self.far.stage(far) != Some(false));
            let asks = asks.unwrap_or_else(|| {
                near = None;
                let far = self.far.queue_pair();
                self.far.provider.connect(far, to, &[]).unwrap();
                far
            });
            far = Some(asks);
            self.far.progress(now);
            self.link.enter(false);
            self.near.progress(now);
            if let Some(request) = self.near.take_request() {
                let queue_pair = self.near.queue_pair();
                let accepted = self.near.provider.accept(request, queue_pair, &[]);
                near = accepted.is_ok().then_some(queue_pair);
            }
            if let Some(near) = near
                && self.far.stage(asks) == Some(true)
                && self.near.stage(near) == Some(true)
            {
                return (near, asks);
            }
        }
    }

    /// The near end goes on alone. Those of these queue pairs that are told to have no address; none ends.
    fn told(&mut self, all: &[QueuePair]) -> Vec<QueuePair> {
        self.near.events.clear();
        for _ in 0..STEPS {
            self.ahead = self.ahead + STEP;
            let now = self.now();
            self.near.progress(now);
        }
        let is_told = |&queue_pair: &QueuePair| {
            let state = self.near.provider.query_queue_pair(queue_pair);
            assert_eq!(state, Ok(QueuePairState::ReadyToSend));
            let removed = ConnectionEvent::AddressRemoved { queue_pair };
            self.near.events.contains(&Event::Connection(removed))
        };
        all.iter().copied().filter(is_told).collect()
    }

    /// Those of these queue pairs that were told since that they have their address again.
    fn told_of_return(&self, all: &[QueuePair]) -> Vec<QueuePair> {
        let is_told = |&queue_pair: &QueuePair| {
            let returned = ConnectionEvent::AddressReturned { queue_pair };
            self.near.events.contains(&Event::Connection(returned))
        };
        all.iter().copied().filter(is_told).collect()
    }

    /// A write there and back.
    fn prove(&mut self, (near, far): (QueuePair, QueuePair)) {
        let begun = Instant::now();
        let remote = self.far.at(0);
        self.near.fill(64, b"here");
        self.near.done.clear();
        let write = SendOperation::RdmaWrite(remote);
        assert!(self.near.post(near, 1, write, (64, 4)));
        while self.near.done.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "no completion");
            let now = self.now();
            self.near.progress(now);
            self.far.progress(now);
        }
        assert!(self.near.done[0].result.is_ok(), "{:?}", self.near.done);
        assert_eq!(self.far.bytes(0, 4), b"here");
        for (node, queue_pair) in [(&self.near, near), (&self.far, far)] {
            let state = node.provider.query_queue_pair(queue_pair);
            assert_eq!(state, Ok(QueuePairState::ReadyToSend));
        }
    }
}

fn place(host: &str) -> SocketAddr {
    SocketAddr::new(host.parse().unwrap(), PORT)
}

type Scheme = fn(SocketAddr) -> Address;

// P-56
#[test]
fn v_39_an_interface_that_is_set_down_is_told_and_connections_go_on_when_it_is_back() {
    let name = "addresses::v_39_an_interface_that_is_set_down_is_told_and_connections_go_on_when_it_is_back";
    in_namespace(name, || {
        for (scheme, [near, far]) in [
            (Address::Roce as Scheme, HOSTS[0]),
            (Address::Roce, HOSTS[1]),
            (Address::RoceTcp, HOSTS[0]),
        ] {
            let listens = scheme(place(near));
            let mut ends = Ends::new(std::slice::from_ref(&listens), scheme(place(far)));
            let pair = ends.connect(&listens);
            ends.prove(pair);
            ip("link set va down");
            assert_eq!(ends.told(&[pair.0]), [pair.0], "{listens}");
            assert_eq!(ends.told_of_return(&[pair.0]), []);
            ip("link set va up");
            if near.contains(':') {
                // The system has taken them away.
                ip(&format!("-6 addr add {near}/64 dev va nodad"));
            }
            assert_eq!(ends.told(&[pair.0]), []);
            assert_eq!(ends.told_of_return(&[pair.0]), [pair.0]);
            ends.prove(pair);
            ip("link del va");
            assert_eq!(ends.told(&[pair.0]), [pair.0], "{listens}");
        }
    });
}

// P-56
#[test]
fn v_39_an_address_that_goes_is_told_to_its_connections_alone() {
    let name = "addresses::v_39_an_address_that_goes_is_told_to_its_connections_alone";
    in_namespace(name, || {
        // A service is listened for once.
        let both = ["10.9.0.1:4800", "10.9.0.3:4801"].map(roce);
        let mut ends = Ends::new(&both, Address::Roce(place("10.9.0.2")));
        let kept = ends.connect(&both[0]);
        let lost = ends.connect(&both[1]);
        ends.prove(lost);
        ip("addr del 10.9.0.3/24 dev va");
        assert_eq!(ends.told(&[kept.0, lost.0]), [lost.0]);
        ends.prove(kept);
        // Whatever else happens, what is missing still is.
        ip("addr add 10.9.0.4/24 dev va");
        assert_eq!(ends.told(&[kept.0, lost.0]), [lost.0]);
        assert_eq!(ends.told_of_return(&[kept.0, lost.0]), []);
        // Another one goes and comes back.
        ip("addr del 10.9.0.4/24 dev va");
        assert_eq!(ends.told(&[kept.0, lost.0]), [lost.0]);
        ip("addr add 10.9.0.4/24 dev va");
        assert_eq!(ends.told(&[kept.0, lost.0]), [lost.0]);
        assert_eq!(ends.told_of_return(&[kept.0, lost.0]), []);
        // The cable is out and the address is still there.
        ends.link.far(|| ip("link set vb down"));
        assert_eq!(ends.told(&[kept.0]), []);
        ends.link.far(|| ip("link set vb up"));
        ends.prove(kept);
        ip("addr add 10.9.0.3/24 dev va");
        assert_eq!(ends.told(&[kept.0, lost.0]), []);
        assert_eq!(ends.told_of_return(&[kept.0, lost.0]), [lost.0]);
        ends.prove(lost);
    });
}

/// Whoever sleeps is woken, and has something to do.
// P-56
#[test]
fn v_39_an_address_that_goes_wakes_the_nic() {
    let name = "addresses::v_39_an_address_that_goes_wakes_the_nic";
    in_namespace(name, || {
        let listens = Address::Roce(place(HOSTS[0][0]));
        let mut ends = Ends::new(
            std::slice::from_ref(&listens),
            Address::Roce(place(HOSTS[0][1])),
        );
        let (near, _) = ends.connect(&listens);
        assert!(ends.near.provider.set_sleeping(true));
        ip("link set va down");
        let mut wanted = Vec::new();
        ends.near.provider.descriptors(&mut wanted);
        let mut waited = [PollFd::from_borrowed_fd(wanted[0], PollFlags::IN)];
        let long = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut waited, Some(&long)), Ok(1));
        ends.near.provider.set_sleeping(false);
        assert!(!ends.near.provider.set_sleeping(true));
        let queue_pair = near;
        let removed = Event::Connection(ConnectionEvent::AddressRemoved { queue_pair });
        assert_eq!(ends.near.provider.poll_event(), Some(removed));
    });
}
