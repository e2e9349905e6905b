//! Packets that no peer should send, to queue pairs that live: no panic, bounded answers, nothing in
//! memory but what was asked for, and every request completes at most once.

mod asked;
mod outcomes;
mod pairs;
mod peer;
mod posts;
mod said;
mod served;
mod subject;

use crate::amount::{Replay, executions, first_seed, report};
use crate::harness::hostile::FIRST;
use crate::harness::{ALL_ACCESS, Options, request};
use legato_base::Duration;
use legato_transport::PathMtu;
use legato_transport::congestion::Path;
use legato_transport::rc::{Backoff, Policy, Receives, Recovery};
use legato_verbs::{QueuePairAttributes, QueuePairState as State, SendOperation};
use outcomes::{Outcome, Outcomes};
use peer::{Peer, RESOURCES};
use subject::Subject;

/// To the queue pairs of one seed.
const PACKETS: u64 = 300;
const MTU: PathMtu = PathMtu::Bytes256;
/// Requests that are not known to be complete.
const POSTED_MAX: usize = 12;
/// Answers and timers until all of them are.
const HEALING_MAX: u64 = 200;
const RECEIVES_MAX: usize = 6;

/// As the provider over UDP has it.
const MEASURED: Policy = Policy {
    read_pieces: 4,
    backoff: Backoff::Doubling,
    recovery: Recovery::Measured,
    ..Policy::IDEAL
};
const POLICIES: [(&str, Policy); 4] = [
    ("ideal", Policy::IDEAL),
    ("rxe", Policy::RXE),
    ("mlx5", Policy::MLX5),
    ("measured", MEASURED),
];

struct World<'a> {
    options: Options,
    peer: Peer,
    /// Packets that are still to be given.
    left: u64,
    reached: &'a mut Outcomes,
}

impl World<'_> {
    fn path(&mut self) -> Option<Path> {
        let is_measured = self.options.policy.recovery == Recovery::Measured;
        is_measured.then(|| match self.peer.random.ratio(1, 8) {
            true => Path::free(MTU.bytes()),
            false => Path::new(MTU.bytes()),
        })
    }

    /// One queue pair from its reset state to its end.
    fn life(&mut self) {
        let path = self.path();
        let mut subject = Subject::new(&self.options, path);
        self.give(&mut subject);
        subject.modify(State::Init, &self.options.init());
        self.give(&mut subject);
        subject.modify(State::ReadyToReceive, &self.options.ready_to_receive(2));
        for _ in 0..self.peer.random.below(8) {
            self.turn(&mut subject);
        }
        if subject.is_connected() {
            subject.modify(State::ReadyToSend, &self.options.ready_to_send());
        }
        while subject.is_connected() && self.left > 0 {
            self.turn(&mut subject);
        }
        if subject.is_connected() {
            self.heal(&mut subject);
        }
        if !subject.is_connected() {
            // Its last words.
            subject.drain(self.reached);
            self.give(&mut subject);
            self.give(&mut subject);
            subject.drain(self.reached);
        }
        subject.finish(self.reached);
    }

    /// Its peer keeps to the rules from now on.
    fn heal(&mut self, subject: &mut Subject) {
        if subject.end.state() == State::SendQueueDrain {
            subject.modify(State::ReadyToSend, &QueuePairAttributes::NONE);
        }
        subject.post(request(subject.asked.next_id, SendOperation::Send, vec![]));
        for _ in 0..HEALING_MAX {
            subject.drain(self.reached);
            if !subject.is_connected() {
                return;
            }
            if subject.asked.count() == 0 {
                return self.reached.add(Outcome::Healed);
            }
            match self.peer.honest_answer(&mut subject.asked) {
                Some(said) => subject.input(&said, self.reached),
                None => subject.wait_for_deadline(self.reached),
            }
        }
        panic!("it does not go on: {:?}", subject.end.queue_pair);
    }

    fn give(&mut self, subject: &mut Subject) {
        self.left = self.left.saturating_sub(1);
        let said = self.peer.next(subject);
        subject.input(&said, self.reached);
    }

    /// A packet, and what else happens meanwhile.
    fn turn(&mut self, subject: &mut Subject) {
        self.give(subject);
        if !subject.is_connected() {
            return;
        }
        let random = &mut self.peer.random;
        if random.ratio(1, 3) && subject.end.host.receives.len() < RECEIVES_MAX {
            subject.post_receive(posts::receive(random));
        }
        let may_post = subject.end.state() != State::ReadyToReceive;
        if may_post && random.ratio(1, 3) && subject.asked.count() < POSTED_MAX {
            let ending = subject.memory.regions.contains_key(&subject::ENDING);
            let request = posts::send(random, subject.asked.next_id, ending);
            subject.post(request);
        }
        match random.below(400) {
            0 if may_post => subject.modify(State::SendQueueDrain, &QueuePairAttributes::NONE),
            1..20 if subject.end.state() == State::SendQueueDrain => {
                subject.modify(State::ReadyToSend, &QueuePairAttributes::NONE);
            }
            20..30 => subject.restore(),
            30..40 => subject.congest(random.ratio(1, 2)),
            40..60 => subject.wait_for_deadline(self.reached),
            _ => {
                let time = Duration::from_nanos(random.below(20_000));
                subject.wait(time, self.reached);
            }
        }
        if self.peer.random.ratio(7, 8) {
            subject.drain(self.reached);
        }
    }
}

#[test]
fn hostile_packets_in_every_state() {
    let seeds = executions(500_000) / PACKETS;
    let first = first_seed();
    let mut reached = POLICIES.map(|_| Outcomes::default());
    for seed in first..first + seeds {
        report(seed - first, seeds, "queue pairs");
        let _replay = Replay(seed);
        let policy = seed as usize % POLICIES.len();
        let options = Options {
            policy: POLICIES[policy].1,
            receives: [Receives::Own, Receives::Shared][seed as usize / POLICIES.len() % 2],
            mtu: MTU,
            access: ALL_ACCESS,
            first: FIRST,
            timeout: 8 + (seed / 8 % 8) as u8,
            retry_count: 6,
            rnr_retry: 6 + (seed / 64 % 2) as u8,
            rnr_timer: 1,
            resources: RESOURCES,
            depth: 64,
        };
        let mut world = World {
            options,
            peer: Peer::new(seed, MTU),
            left: PACKETS,
            reached: &mut reached[policy],
        };
        while world.left > 0 {
            world.life();
        }
    }
    for ((name, _), reached) in POLICIES.iter().zip(reached) {
        let given = seeds * PACKETS / POLICIES.len() as u64;
        println!("{name}: {reached:?} of {given}");
        // All of it happens, or this says nothing.
        reached.assert_all_above(given / 1000, name);
        // Most packets reach a queue pair that is alive.
        assert!(reached.of(Outcome::Ignored) < given / 5, "{reached:?}");
    }
}
