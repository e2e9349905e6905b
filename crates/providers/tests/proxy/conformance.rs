//! The conformance suite on a pair of NICs at second hand, each a software RoCE NIC in a thread of its
//! own behind a proxy.

use crate::far::{Far, now, proxied, wait};
use crate::peer::Peer;
use crate::rules_beside::{cycles, rules_beside};
use legato_base::{Duration, Time};
use legato_providers::{Pollable, ProxyProvider, RoceProvider, SharedNic, SharedProvider};
use legato_verbs::conformance::{Advance, Facts, Rule, Side, World};
use legato_verbs::{Address, Provider, ResourceCounts};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a proxy does not hand on, because the pager uses none: its NIC has no shared receive queues.
const WITHOUT: [&str; 5] = [
    "V-15 the limit of a shared receive queue says so once",
    "V-40 queue pairs share receives, and one of them can end",
    "V-32 Last WQE Reached of an idle queue pair on an empty queue",
    "V-32 Last WQE Reached of an idle queue pair",
    "shared receive queues: what is refused",
];

/// Retries for half a second, and connections that nobody answers.
const BOUND: Duration = Duration::from_secs(6);
/// Nothing that is under way takes so long.
const QUIET: Duration = Duration::from_millis(150);

/// The tests of a process have the same addresses.
static ALONE: Mutex<()> = Mutex::new(());

struct ProxyWorld {
    /// Of the left and the right NIC.
    hosts: [IpAddr; 2],
    left: Option<ProxyProvider>,
    right: Option<ProxyProvider>,
    far: Vec<Far>,
    ports: u16,
    begun: Instant,
    wait_until: Time,
}

/// Another user of a NIC, who has an object of every kind.
struct Other {
    user: Peer<SharedProvider<RoceProvider>>,
    has: ResourceCounts,
}

impl Other {
    /// It stays as long as the thread.
    fn moves_in(provider: SharedProvider<RoceProvider>) {
        thread_local!(static OTHERS: RefCell<Option<Other>> = const { RefCell::new(None) });
        let user = Peer::over(provider);
        let has = user.provider.resource_counts();
        OTHERS.set(Some(Self { user, has }));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let left = self.user.provider.resource_counts();
        // What is counted of all users together may have changed.
        let had = ResourceCounts {
            connection_state: left.connection_state,
            posted_receives: left.posted_receives,
            ..self.has
        };
        assert_eq!(left, had);
        assert_eq!(self.user.provider.poll_event(), None);
    }
}

/// Where the two NICs of a world are. Other processes, which may be tests too, have other places, as
/// long as their identifiers differ in the last 19 bits.
fn sides(place: usize) -> [SocketAddr; 2] {
    let process = std::process::id() & 0x7_FFFF;
    let hosts = [0, 1].map(|side| 0x7F80_0000 | process << 4 | (place as u32) << 1 | side);
    hosts.map(|host| SocketAddr::from((Ipv4Addr::from(host), legato_verbs::ROCE_PORT)))
}

fn open(place: SocketAddr) -> RoceProvider {
    RoceProvider::open(&Address::Roce(place)).unwrap()
}

impl ProxyWorld {
    fn new(place: usize) -> Self {
        Self::of(place, |at| proxied(move || open(at)))
    }

    /// Each NIC has another user, who has objects of every kind too.
    fn shared(place: usize) -> Self {
        Self::of(place, |at| {
            proxied(move || {
                let nic = SharedNic::new(open(at));
                Other::moves_in(nic.share().unwrap());
                nic.share().unwrap()
            })
        })
    }

    fn of(place: usize, proxied: impl Fn(SocketAddr) -> (ProxyProvider, Far)) -> Self {
        let sides = sides(place);
        let [(left, far_left), (right, far_right)] = sides.map(proxied);
        Self {
            hosts: sides.map(|side| side.ip()),
            left: Some(left),
            right: Some(right),
            far: vec![far_left, far_right],
            ports: 0,
            begun: Instant::now(),
            wait_until: Time::ZERO,
        }
    }

    fn progress(&mut self) {
        let now = now(self.begun);
        for near in [&mut self.left, &mut self.right] {
            near.as_mut().unwrap().progress(now);
        }
    }

    fn sleep(&mut self) {
        let (left, right) = (self.left.as_mut().unwrap(), self.right.as_mut().unwrap());
        if left.set_sleeping(true) && right.set_sleeping(true) {
            let mut descriptors = Vec::new();
            left.descriptors(&mut descriptors);
            right.descriptors(&mut descriptors);
            wait(&descriptors, Duration::from_millis(1));
        }
        left.set_sleeping(false);
        right.set_sleeping(false);
    }
}

impl World for ProxyWorld {
    fn left(&mut self) -> &mut dyn Provider {
        self.left.as_mut().unwrap()
    }

    fn right(&mut self) -> &mut dyn Provider {
        self.right.as_mut().unwrap()
    }

    fn fresh_address(&mut self, of: Side) -> Address {
        self.ports += 1;
        let host = self.hosts[of as usize];
        Address::Roce(SocketAddr::new(host, 20_000 + self.ports))
    }

    fn begin_wait(&mut self) {
        self.wait_until = now(self.begun) + BOUND;
    }

    fn advance(&mut self) -> Advance {
        self.progress();
        if now(self.begun) >= self.wait_until {
            return Advance::Exhausted;
        }
        self.sleep();
        Advance::Stepped
    }

    fn settle(&mut self) {
        let end = now(self.begun) + QUIET;
        while now(self.begun) < end {
            self.progress();
            self.sleep();
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            cycles: cycles(),
            ..Facts::IDEAL
        }
    }
}

/// Whatever a rule has left behind, the far halves give back when their near halves are gone.
impl Drop for ProxyWorld {
    fn drop(&mut self) {
        drop((self.left.take(), self.right.take()));
        for far in self.far.drain(..) {
            let ended = far.join();
            assert_eq!(ended.leaked, 0, "{ended:?}");
            assert_eq!(ended.left.memory_regions, 0, "{ended:?}");
            assert_eq!(ended.left.queue_pairs, 0, "{ended:?}");
        }
    }
}

#[test]
fn a_nic_behind_a_proxy_keeps_every_rule_but_those_of_what_it_has_not() {
    expect_rules_kept(ProxyWorld::new);
}

#[test]
fn a_shared_nic_behind_a_proxy_keeps_the_same_rules() {
    expect_rules_kept(ProxyWorld::shared);
}

fn expect_rules_kept(world: fn(usize) -> ProxyWorld) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let report = rules_beside(|place| move |rule: &Rule| (rule.check)(&mut world(place)));
    println!("{report}");
    let broken: Vec<&str> = report.failed.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(broken, WITHOUT, "{report}");
    for (rule, violation) in &report.failed {
        assert!(
            violation.got.contains("no shared receive queues"),
            "{rule} is broken otherwise: {violation}"
        );
    }
    assert!(report.passed.len() > 40);
}
