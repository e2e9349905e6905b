//! Random histories of two and three managers on a bad wire: everything ends, nothing is left, no
//! request becomes two connections, and both sides agree about what there is.

use crate::wire::{Wire, accept_parameters, connect_parameters};
use legato_base::{Duration, Random};
use legato_transport::cm::{ConnectionId, Event, RejectParameters, RejectReason};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 2_000;
const STEPS: u64 = 400;
/// Few, so that they are used again and again.
const QUEUE_PAIRS: u32 = 6;

/// What a test knows about a connection of a node.
#[derive(Clone, Debug)]
struct Track {
    peer: usize,
    /// Which request it is of: the starting sequence number that the request carries.
    request: u32,
    /// Which accept it is of: the one that the reply carries.
    reply: Option<u32>,
    queue_pair: Option<u32>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Established,
    Ended,
}

struct History {
    seed: u64,
    random: Random,
    wire: Wire,
    tracks: Vec<BTreeMap<ConnectionId, Track>>,
    tokens: u32,
    /// The accepts that a request was ever established with: seen by its side, and by the other.
    established: BTreeMap<u32, (BTreeSet<u32>, BTreeSet<u32>)>,
    connections: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let nodes = 2 + seed as usize % 2;
        Self {
            seed,
            wire: Wire::new(nodes, random.next_u64()),
            random,
            tracks: vec![BTreeMap::new(); nodes],
            tokens: 0,
            established: BTreeMap::new(),
            connections: 0,
        }
    }

    /// Loses, doubles and delays, so that messages overtake each other; how much depends on the
    /// seed.
    fn spoil(&mut self) {
        let mut random = self.random.fork();
        let (lost, doubled) = (random.below(50), random.below(40));
        let delay_ms = [2, 200, 6_000, 30_000][random.below(4) as usize];
        self.wire.rule = Box::new(move |_| {
            let copies = 1 + u64::from(random.ratio(doubled, 100));
            let mut delays = Vec::new();
            for _ in 0..copies {
                if !random.ratio(lost, 100) {
                    delays.push(Duration::from_millis(1 + random.below(delay_ms)));
                }
            }
            delays
        });
    }

    fn token(&mut self) -> u32 {
        self.tokens += 1;
        self.tokens
    }

    fn free_queue_pair(&mut self, node: usize) -> Option<u32> {
        let number = 100 + self.random.below(u64::from(QUEUE_PAIRS)) as u32;
        let manager = &self.wire.nodes[node].manager;
        manager
            .is_free(QueuePairNumber::new(number))
            .then_some(number)
    }

    fn connect(&mut self, node: usize) {
        let nodes = self.wire.nodes.len();
        let peer = (node + 1 + self.random.below(nodes as u64 - 1) as usize) % nodes;
        let Some(number) = self.free_queue_pair(node) else {
            return;
        };
        let request = self.token();
        let mut parameters = connect_parameters(peer, number);
        parameters.starting_sequence = PacketSequenceNumber::new(request);
        let now = self.wire.now;
        let id = self.wire.nodes[node]
            .manager
            .connect(&parameters, now)
            .unwrap();
        self.wire.collect(node);
        let track = Track {
            peer,
            request,
            reply: None,
            queue_pair: Some(number),
            phase: Phase::Opening,
        };
        assert!(self.tracks[node].insert(id, track).is_none());
    }

    /// Accepts, refuses, or lets the peer wait.
    fn decide(&mut self, node: usize, id: ConnectionId) {
        let now = self.wire.now;
        let choice = self.random.below(10);
        if choice < 6
            && let Some(number) = self.free_queue_pair(node)
        {
            let reply = self.token();
            let mut parameters = accept_parameters(number);
            parameters.starting_sequence = PacketSequenceNumber::new(reply);
            let manager = &mut self.wire.nodes[node].manager;
            manager.accept(id, &parameters, now).unwrap();
            let track = self.tracks[node].get_mut(&id).unwrap();
            track.reply = Some(reply);
            track.queue_pair = Some(number);
        } else if choice < 8 {
            let parameters = RejectParameters::new(RejectReason::CONSUMER);
            let manager = &mut self.wire.nodes[node].manager;
            manager.reject(id, &parameters, now).unwrap();
            self.tracks[node].remove(&id);
        }
        self.wire.collect(node);
    }

    /// One of a node's connections that `wanted` allows.
    fn pick(&mut self, node: usize, wanted: impl Fn(&Track) -> bool) -> Option<ConnectionId> {
        let ids: Vec<_> = self.tracks[node]
            .iter()
            .filter(|(_, track)| wanted(track))
            .map(|(&id, _)| id)
            .collect();
        let count = ids.len() as u64;
        (count > 0).then(|| ids[self.random.below(count) as usize])
    }

    fn disconnect(&mut self, node: usize, id: ConnectionId) {
        let requested = self.tracks[node][&id].queue_pair.is_none();
        self.wire.disconnect(node, id);
        if requested {
            self.tracks[node].remove(&id);
        }
    }

    /// An established side sends; false if nobody is there who takes it.
    fn send_data(&mut self, node: usize, id: ConnectionId) -> bool {
        let track = self.tracks[node][&id].clone();
        let other = self.tracks[track.peer].values().find(|other| {
            other.request == track.request && other.reply == track.reply && other.peer == node
        });
        let Some(other) = other.filter(|other| other.phase != Phase::Ended) else {
            return false;
        };
        let queue_pair = QueuePairNumber::new(other.queue_pair.unwrap());
        let peer = track.peer;
        self.wire.nodes[peer].manager.data_arrived(queue_pair);
        self.wire.collect(peer);
        true
    }

    /// What the events say, against what may be.
    fn observe(&mut self) {
        for node in 0..self.wire.nodes.len() {
            for event in self.wire.events(node) {
                self.observe_event(node, event);
            }
        }
        for (asking, answering) in self.established.values() {
            // Only the side that asked can have told the other.
            assert!(answering.is_subset(asking), "seed {}", self.seed);
        }
    }

    fn observe_event(&mut self, node: usize, event: Event) {
        let seed = self.seed;
        let tracks = &mut self.tracks[node];
        match event {
            Event::Requested {
                connection,
                peer,
                request,
            } => {
                let track = Track {
                    peer: usize::from(peer.0[15]) - 1,
                    request: request.starting_sequence.get(),
                    reply: None,
                    queue_pair: None,
                    phase: Phase::Opening,
                };
                assert!(tracks.insert(connection, track).is_none(), "seed {seed}");
            }
            Event::Established { connection, reply } => {
                let track = tracks.get_mut(&connection).unwrap();
                assert_eq!(track.phase, Phase::Opening, "seed {seed}");
                track.phase = Phase::Established;
                let sides = self.established.entry(track.request).or_default();
                if let Some(reply) = reply {
                    track.reply = Some(reply.starting_sequence.get());
                    sides.0.insert(reply.starting_sequence.get());
                } else {
                    sides.1.insert(track.reply.unwrap());
                }
                assert!(sides.0.len() <= 1, "seed {seed}: two connections");
                self.connections += 1;
            }
            Event::Rejected { connection, .. } | Event::Unreachable { connection } => {
                let track = tracks.get_mut(&connection).unwrap();
                assert_eq!(track.phase, Phase::Opening, "seed {seed}");
                track.phase = Phase::Ended;
                if track.queue_pair.is_none() {
                    tracks.remove(&connection);
                }
            }
            Event::Disconnected { connection, .. } | Event::DeviceRemoved { connection } => {
                let track = tracks.get_mut(&connection).unwrap();
                assert_ne!(track.phase, Phase::Ended, "seed {seed}");
                track.phase = Phase::Ended;
            }
            Event::TimeWaitExit {
                connection,
                queue_pair,
            } => {
                let track = tracks.remove(&connection).unwrap();
                assert_eq!(track.phase, Phase::Ended, "seed {seed}");
                assert_eq!(track.queue_pair, Some(queue_pair.get()), "seed {seed}");
            }
        }
    }

    fn act(&mut self) {
        let node = self.random.below(self.wire.nodes.len() as u64) as usize;
        match self.random.below(100) {
            0..30 => self.connect(node),
            30..60 => {
                let waits = |track: &Track| track.queue_pair.is_none();
                if let Some(id) = self.pick(node, waits) {
                    self.decide(node, id);
                }
            }
            60..75 => {
                let live = |track: &Track| track.phase != Phase::Ended;
                if let Some(id) = self.pick(node, live) {
                    self.disconnect(node, id);
                }
            }
            75..95 => {
                let established = |track: &Track| track.phase == Phase::Established;
                if let Some(id) = self.pick(node, established) {
                    self.send_data(node, id);
                }
            }
            95 => self.restart(node),
            _ => self.spoil(),
        }
        let pause_ms = [1, 50, 1_000, 20_000][self.random.below(4) as usize];
        let pause = self.random.below(pause_ms);
        self.wire.run(Duration::from_millis(pause));
        self.observe();
    }

    /// A node forgets everything.
    fn restart(&mut self, node: usize) {
        let seed = self.random.next_u64();
        self.wire.restart(node, seed);
        self.tracks[node].clear();
    }

    /// The wire is good again: what is left is known by both sides, or one finds out by using it.
    fn agree(&mut self) {
        self.wire.heal();
        self.wire.finish();
        self.observe();
        for node in 0..self.wire.nodes.len() {
            for (id, track) in self.tracks[node].clone() {
                assert_eq!(track.phase, Phase::Established, "seed {}", self.seed);
                if !self.send_data(node, id) {
                    self.disconnect(node, id);
                }
            }
        }
        self.wire.finish();
        self.observe();
        for (node, tracks) in self.tracks.iter().enumerate() {
            for track in tracks.values() {
                let same = |other: &&Track| {
                    other.request == track.request
                        && other.reply == track.reply
                        && other.peer == node
                        && other.phase == Phase::Established
                };
                let others = self.tracks[track.peer].values().filter(same).count();
                assert_eq!(others, 1, "seed {}: {track:?}", self.seed);
            }
        }
    }

    fn end(&mut self) {
        for node in 0..self.wire.nodes.len() {
            for id in self.tracks[node].clone().into_keys() {
                self.disconnect(node, id);
            }
        }
        self.wire.finish();
        self.observe();
        assert!(
            self.tracks.iter().all(BTreeMap::is_empty),
            "seed {}",
            self.seed
        );
        self.wire.assert_idle();
    }
}

fn play(seed: u64) -> u64 {
    let mut history = History::new(seed);
    history.spoil();
    for _ in 0..STEPS {
        history.act();
    }
    history.agree();
    history.end();
    history.connections
}

#[test]
fn v_34_random_histories_end_and_both_sides_agree() {
    let connections: u64 = (0..SEEDS).map(play).sum();
    // The histories are about something.
    assert!(connections > SEEDS * 20, "{connections}");
}

#[test]
fn a_history_is_the_same_again() {
    assert_eq!(play(7), play(7));
}
