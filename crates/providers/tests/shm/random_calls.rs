//! Random calls on two providers, against what every caller may rely on: each posted request
//! completes once and in order, each connection ends once, and nothing is left.

use crate::peer::pair::remote_at;
use crate::peer::{Peer, address};
use legato_base::{Duration, Random, Time};
use legato_verbs::{
    Arm, Completion, ConnectionEvent, Event, Provider, QueuePair, QueuePairAttributes,
    QueuePairState as State, ReceiveRequest, RemoteAddress, RemoteKey, SendFlags, SendOperation,
    SharedReceiveQueue, WorkRequestId,
};
use std::collections::{BTreeMap, VecDeque};

const NONE: QueuePairAttributes = QueuePairAttributes::NONE;
const QUEUE_PAIRS: usize = 3;
/// Ids of receives begin here.
const RECEIVES: u64 = 1 << 32;

/// One side, and what it may still expect.
struct Side {
    peer: Peer,
    queue_pairs: Vec<QueuePair>,
    /// Posted and not completed, oldest first: all of them, whether they are signaled, by queue.
    sends: BTreeMap<QueuePair, VecDeque<(u64, bool)>>,
    receives: BTreeMap<QueuePair, VecDeque<u64>>,
    shared: Vec<u64>,
    /// Connects and accepts that have not ended; then endings without their TimeWaitExit.
    connections: BTreeMap<QueuePair, i32>,
    exits: BTreeMap<QueuePair, i32>,
    requests: Vec<legato_verbs::ConnectionRequest>,
    next_id: u64,
    armed: bool,
    /// What has happened how often: that the calls reach everything.
    seen: BTreeMap<String, u64>,
}

impl Side {
    fn new(sharing: bool) -> Self {
        let mut peer = if sharing {
            Peer::sharing(16)
        } else {
            Peer::new()
        };
        peer.provider
            .destroy_completion_queue(peer.queue)
            .unwrap_err();
        peer.provider.destroy_queue_pair(peer.queue_pair).unwrap();
        peer.provider.destroy_completion_queue(peer.queue).unwrap();
        let entries = 2 * crate::peer::REQUESTS * QUEUE_PAIRS as u32;
        peer.queue = peer.provider.create_completion_queue(entries).unwrap();
        let queue_pairs = (0..QUEUE_PAIRS).map(|_| peer.create_queue_pair()).collect();
        Self {
            peer,
            queue_pairs,
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            shared: Vec::new(),
            connections: BTreeMap::new(),
            exits: BTreeMap::new(),
            requests: Vec::new(),
            next_id: 0,
            armed: false,
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &impl std::fmt::Debug) {
        let text = format!("{what:?}");
        // Without the numbers.
        let name: String = text.split([' ', '{']).next().unwrap_or("").into();
        *self.seen.entry(name).or_default() += 1;
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A connect or accept that was taken has to end.
    fn began(&mut self, queue_pair: QueuePair, taken: bool) {
        *self.connections.entry(queue_pair).or_default() += i32::from(taken);
    }

    /// Nothing of it completes any more.
    fn forget(&mut self, queue_pair: QueuePair) {
        self.sends.remove(&queue_pair);
        self.receives.remove(&queue_pair);
    }

    fn post_send(&mut self, random: &mut Random, queue_pair: QueuePair, far: RemoteAddress) {
        let mut far = far;
        if random.below(60) == 0 {
            far.key = RemoteKey(!far.key.0);
        }
        let operation = match random.below(8) {
            0 | 1 => SendOperation::Send,
            2 => SendOperation::SendWithImmediate(7),
            3 => SendOperation::RdmaWrite(far),
            4 => SendOperation::RdmaRead(far),
            5 => SendOperation::RdmaWriteWithImmediate(far, 9),
            6 => SendOperation::FetchAndAdd {
                target: far,
                add: 1,
            },
            _ => SendOperation::SendWithInvalidate(far.key),
        };
        let signaled = random.below(3) > 0;
        let mut flags = [SendFlags::NONE, SendFlags::SIGNALED][usize::from(signaled)];
        for flag in [SendFlags::INLINE, SendFlags::SOLICITED, SendFlags::FENCE] {
            if random.below(4) == 0 {
                flags = flags | flag;
            }
        }
        let id = self.id();
        self.peer.queue_pair = queue_pair;
        let place = (random.below(64) * 8, 8);
        if self.peer.post_with(flags, id, operation, place).is_ok() {
            let posted = self.sends.entry(queue_pair).or_default();
            posted.push_back((id, signaled));
        }
    }

    fn post_receive(&mut self, random: &mut Random, queue_pair: QueuePair) {
        let id = RECEIVES + self.id();
        let length = if random.below(40) == 0 { 4 } else { 64 };
        let request = ReceiveRequest {
            wr_id: WorkRequestId(id),
            entries: vec![self.peer.region.entry(4096, length)],
        };
        let provider = &mut self.peer.provider;
        match self.peer.shared {
            Some(shared) => {
                self.shared_posted(shared, &request);
            }
            None if provider.post_receive(queue_pair, &request).is_ok() => {
                self.receives.entry(queue_pair).or_default().push_back(id);
            }
            None => {}
        }
    }

    fn shared_posted(&mut self, shared: SharedReceiveQueue, request: &ReceiveRequest) {
        let posted = self.peer.provider.post_shared_receive(shared, request);
        if posted.is_ok() {
            self.shared.push(request.wr_id.0);
        }
    }

    fn change(&mut self, random: &mut Random, queue_pair: QueuePair) {
        let provider = &mut self.peer.provider;
        let mut modify = |to, attributes| provider.modify_queue_pair(queue_pair, to, attributes);
        let drained = QueuePairAttributes {
            drained_event: Some(true),
            ..NONE
        };
        let done = match random.below(7) {
            0 => modify(State::SendQueueDrain, &drained),
            1 | 2 => modify(State::ReadyToSend, &NONE),
            3 => modify(State::Error, &NONE),
            4 | 5 => modify(State::Init, &QueuePairAttributes::INIT),
            _ => {
                let reset = modify(State::Reset, &NONE);
                self.forget(queue_pair);
                reset
            }
        };
        let _ = done;
    }

    /// Takes all completions, and finds each where it is expected.
    fn poll(&mut self) {
        let mut completions = Vec::new();
        let queue = self.peer.queue;
        self.peer
            .provider
            .poll_completion_queue(queue, 1000, &mut completions)
            .unwrap();
        for done in completions {
            self.completed(&done);
        }
    }

    fn completed(&mut self, done: &Completion) {
        let (id, queue_pair) = (done.wr_id.0, done.queue_pair);
        self.count(&done.result);
        if id < RECEIVES {
            let posted = self.sends.get_mut(&queue_pair).expect("of no queue pair");
            loop {
                let (next, signaled) = posted.pop_front().expect("nothing was posted");
                if next == id {
                    assert!(signaled || done.result.is_err(), "{done:?}");
                    break;
                }
                assert!(!signaled, "{next} completes before {done:?}");
            }
        } else if self.peer.shared.is_some() {
            let place = self.shared.iter().position(|&posted| posted == id);
            self.shared.remove(place.expect("not posted"));
        } else {
            let posted = self.receives.get_mut(&queue_pair).unwrap();
            assert_eq!(posted.pop_front(), Some(id), "{done:?}");
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.peer.provider.poll_event() {
            self.count(&event);
            match event {
                Event::Connection(ConnectionEvent::Requested { request, .. }) => {
                    self.requests.push(request);
                }
                Event::Connection(
                    ConnectionEvent::Disconnected { queue_pair }
                    | ConnectionEvent::Rejected { queue_pair, .. }
                    | ConnectionEvent::Unreachable { queue_pair, .. },
                ) => {
                    *self.connections.entry(queue_pair).or_default() -= 1;
                    *self.exits.entry(queue_pair).or_default() += 1;
                }
                Event::Connection(ConnectionEvent::TimeWaitExit { queue_pair }) => {
                    *self.exits.entry(queue_pair).or_default() -= 1;
                }
                Event::CompletionQueueReady(_) => {
                    assert!(self.armed, "nobody asked");
                    self.armed = false;
                }
                Event::Connection(_) | Event::Async(_) => {}
            }
        }
        for ended in self.exits.values().chain(self.connections.values()) {
            assert!((0..=1).contains(ended), "{ended}");
        }
        assert!(self.exits.values().all(|&waiting| waiting == 0));
    }

    fn destroy(&mut self, place: usize) {
        self.take_events();
        let queue_pair = self.queue_pairs[place];
        self.peer.provider.destroy_queue_pair(queue_pair).unwrap();
        self.connections.remove(&queue_pair);
        self.forget(queue_pair);
        self.queue_pairs[place] = self.peer.create_queue_pair();
    }

    /// Everything ends; then all that was posted has completed.
    fn finish(mut self) -> BTreeMap<String, u64> {
        for queue_pair in self.queue_pairs.clone() {
            let _ = self.peer.provider.modify_to_error(queue_pair);
        }
        self.poll();
        self.take_events();
        // Successful unsignaled requests say nothing.
        for posted in self.sends.values() {
            assert!(posted.iter().all(|&(_, signaled)| !signaled), "{posted:?}");
        }
        assert!(self.receives.values().all(VecDeque::is_empty));
        assert!(self.connections.values().all(|&open| open == 0));
        self.peer.queue_pair = self.queue_pairs.pop().unwrap();
        for queue_pair in self.queue_pairs {
            self.peer.provider.destroy_queue_pair(queue_pair).unwrap();
        }
        self.peer.dismantle();
        self.seen
    }
}

fn step(random: &mut Random, sides: &mut [Side; 2], name: &legato_verbs::Address) {
    let (own, far) = (random.below(2) as usize, random.below(64) * 8);
    let place = random.below(QUEUE_PAIRS as u64) as usize;
    let target = remote_at(&sides[1 - own].peer, far);
    let side = &mut sides[own];
    let queue_pair = side.queue_pairs[place];
    match random.below(40) {
        0..=11 => side.post_send(random, queue_pair, target),
        12..=21 => side.post_receive(random, queue_pair),
        22..=24 => side.poll(),
        25..=27 => side.take_events(),
        28 => side.change(random, queue_pair),
        29..=31 => {
            let _ = side.peer.provider.modify_to_init(queue_pair);
        }
        // Only the second listens.
        32..=34 if own == 0 => {
            let connecting = side.peer.provider.connect(queue_pair, name, &[]);
            side.began(queue_pair, connecting.is_ok());
        }
        32..=34 => {
            let Some(request) = side.requests.pop() else {
                return;
            };
            if random.below(8) == 0 {
                let _ = side.peer.provider.reject(request, &[]);
            } else {
                let accepted = side.peer.provider.accept(request, queue_pair, &[]);
                side.began(queue_pair, accepted.is_ok());
            }
        }
        35 if random.below(4) == 0 => {
            let _ = side.peer.provider.disconnect(queue_pair);
        }
        36 if random.below(4) == 0 => side.destroy(place),
        37 => {
            let (queue, arm) = (side.peer.queue, [Arm::Next, Arm::Solicited]);
            let arm = arm[random.below(2) as usize];
            let armed = side.peer.provider.arm_completion_queue(queue, arm);
            armed.unwrap();
            // One that waits to be taken is for an earlier arming.
            side.take_events();
            side.armed = true;
        }
        38 => {
            side.peer.provider.set_sleeping(true);
            side.peer.provider.set_sleeping(false);
        }
        _ => {}
    }
}

fn run(seed: u64, seen: &mut BTreeMap<String, u64>) {
    let mut random = Random::from_seed(seed);
    let mut sides = [
        Side::new(random.below(2) == 0),
        Side::new(random.below(2) == 0),
    ];
    let name = address(&format!("random-{seed}"));
    let listener = sides[1].peer.provider.listen(&name).unwrap();
    let mut now = Time::ZERO;
    for _ in 0..2_000 {
        step(&mut random, &mut sides, &name);
        now = now + Duration::from_micros(random.below(400));
        let own = random.below(2) as usize;
        sides[own].peer.provider.progress(now);
    }
    sides[1].peer.provider.close_listener(listener).unwrap();
    for side in sides {
        for (what, count) in side.finish() {
            *seen.entry(what).or_default() += count;
        }
    }
}

#[test]
fn whatever_is_called_each_request_completes_once_and_each_connection_ends_once() {
    let mut seen = BTreeMap::new();
    for seed in 0..300 {
        println!("seed {seed}");
        run(seed, &mut seen);
    }
    println!("{seen:#?}");
    for name in [
        "Ok(Send)",
        "Ok(RdmaRead)",
        "Ok(FetchAndAdd)",
        "Ok(ReceiveRdmaWithImmediate",
        "Err(LocalLength)",
        "Err(RemoteAccess)",
        "Connection(Rejected",
        "Async(SendQueueDrained(QueuePair",
        "Async(LastWorkRequestReached(QueuePair",
    ] {
        assert!(seen.get(name) > Some(&10), "{name} is hardly reached");
    }
}
