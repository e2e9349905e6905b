//! Messages that no honest peer sends, to connections in every state.

use crate::wire::{Kind, Wire, accept_parameters, gid};
use legato_base::{Duration, Random};
use legato_transport::QueuePairNumber;
use legato_transport::cm::{
    ConnectionState, Counters, Event, Mad, ManagerError, Parameters, RejectParameters, RejectReason,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// To one pair of nodes.
const MESSAGES: u64 = 2_000;

fn parameters() -> Parameters {
    Parameters {
        connections_max: 32,
        half_open_max: 8,
        refusals_max: 4,
        ..Parameters::default()
    }
}

/// What became of forged messages.
const EFFECTS: [&str; 7] = [
    "malformed",
    "foreign",
    "unexpected",
    "duplicate",
    "no room",
    "stale",
    "taken",
];

/// How often each was reached.
type Effects = [u64; EFFECTS.len()];

fn effects(counters: &Counters) -> Effects {
    let without = [
        counters.malformed,
        counters.foreign,
        counters.unexpected,
        counters.duplicates,
        counters.refused_for_resources,
        counters.stale,
    ];
    let mut all = [0; EFFECTS.len()];
    all[..without.len()].copy_from_slice(&without);
    let dropped: u64 = without[..4].iter().sum();
    all[without.len()] = counters.received - dropped;
    all
}

/// Two honest nodes, a third that has an address only, and all that was ever said.
struct Attack {
    random: Random,
    wire: Wire,
    heard: Rc<RefCell<Vec<Mad>>>,
    states: BTreeSet<String>,
    effects: Effects,
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut attack = Self {
            random: Random::from_seed(seed),
            wire: Wire::with(3, seed, parameters()),
            heard: Rc::default(),
            states: BTreeSet::new(),
            effects: Effects::default(),
        };
        let tap = attack.heard.clone();
        let mut random = attack.random.fork();
        attack.wire.rule = Box::new(move |flight| {
            tap.borrow_mut().push(flight.mad);
            if random.ratio(1, 4) {
                Vec::new()
            } else {
                vec![Duration::from_millis(1 + random.below(100))]
            }
        });
        for _ in 0..60 {
            attack.live();
        }
        attack
    }

    /// The honest nodes go on with what they do.
    fn live(&mut self) {
        let node = self.random.below(2) as usize;
        let number = 100 + self.random.below(12) as u32;
        let now = self.wire.now;
        for event in self.wire.events(node) {
            let Event::Requested { connection, .. } = event else {
                continue;
            };
            let manager = &mut self.wire.nodes[node].manager;
            let answered = if self.random.ratio(3, 4) {
                manager.accept(connection, &accept_parameters(number), now)
            } else {
                let reason = RejectParameters::new(RejectReason::CONSUMER);
                manager.reject(connection, &reason, now)
            };
            let expected = matches!(
                answered,
                Ok(())
                    | Err(ManagerError::UnknownConnection
                        | ManagerError::QueuePairInUse(_)
                        | ManagerError::InvalidState(_))
            );
            assert!(expected, "{answered:?}");
        }
        self.wire.collect(node);
        let manager = &mut self.wire.nodes[node].manager;
        let parameters = crate::wire::connect_parameters(1 - node, number);
        match self.random.below(3) {
            0 if manager.is_free(QueuePairNumber::new(number)) => {
                if let Ok(id) = manager.connect(&parameters, now)
                    && self.random.ratio(1, 3)
                {
                    manager.disconnect(id, now).unwrap();
                }
            }
            1 => manager.data_arrived(QueuePairNumber::new(number)),
            _ => {}
        }
        self.wire.collect(node);
        let pause = Duration::from_millis(self.random.below(400));
        self.wire.run(pause);
    }

    /// Something that was said: mostly of late, so that its connection may still be there.
    fn overhear(&mut self) -> Mad {
        let heard = self.heard.borrow();
        let oldest = if self.random.ratio(3, 4) {
            heard.len().saturating_sub(12)
        } else {
            0
        };
        let count = (heard.len() - oldest) as u64;
        heard[oldest + self.random.below(count) as usize]
    }

    /// Something that was said, changed in some places.
    fn forge(&mut self) -> Mad {
        let mut mad = self.overhear();
        for _ in 0..self.random.below(4) {
            match self.random.below(5) {
                // Names and numbers lie at the beginning.
                0 => mad[24 + self.random.below(72) as usize] = self.random.next_u64() as u8,
                1 => mad[self.random.below(256) as usize] ^= 1 << self.random.below(8),
                // An acknowledgment, or what a rejection is about.
                3 => {
                    mad[32] = (self.random.below(4) as u8) << 6;
                    if self.random.ratio(1, 2) {
                        mad[17] = 0x11;
                    }
                }
                // Another kind of message.
                2 => mad[17] = 0x10 + self.random.below(7) as u8,
                // The names of another message.
                _ => {
                    let other = self.overhear();
                    mad[24..32].copy_from_slice(&other[24..32]);
                }
            }
        }
        if self.random.ratio(1, 3) {
            // As seen from the other side.
            let (local, remote) = mad[24..32].split_at_mut(4);
            local.swap_with_slice(remote);
        }
        mad
    }

    /// Somebody asks for a connection once more, in another name.
    fn ask(&mut self) -> Mad {
        let mut mad = loop {
            let mad = self.overhear();
            if mad[17] == 0x10 {
                break mad;
            }
        };
        let name = self.random.next_u64().to_le_bytes();
        mad[24..28].copy_from_slice(&name[..4]);
        // The queue pair.
        mad[56..59].copy_from_slice(&name[4..7]);
        mad
    }

    fn strike(&mut self) {
        let to = self.random.below(2) as usize;
        let (from, mad) = if self.random.ratio(1, 24) {
            (1 - to, self.ask())
        } else {
            (self.random.below(3) as usize, self.forge())
        };
        let from = gid(from);
        let before = effects(self.wire.nodes[to].manager.counters());
        self.wire.deliver(from, to, &mad);
        let after = effects(self.wire.nodes[to].manager.counters());
        for (sum, (after, before)) in self.effects.iter_mut().zip(after.into_iter().zip(before)) {
            *sum += after - before;
        }
        let counts = self.wire.nodes[to].manager.counts();
        let limits = parameters();
        assert!(counts.connections <= limits.connections_max as usize);
        assert!(counts.half_open <= limits.half_open_max as usize);
        assert!(counts.refusals <= limits.refusals_max);
        assert!(counts.timers <= counts.connections);
    }

    fn note_states(&mut self) {
        for node in &self.wire.nodes {
            for id in node.manager.connections() {
                let state = node.manager.state(id);
                self.states.insert(format!("{state:?}"));
            }
        }
    }

    /// Nobody strikes any more: everything ends, or is established and can be ended.
    fn end(&mut self) {
        self.wire.heal();
        self.wire.finish();
        for node in 0..2 {
            for id in self.wire.nodes[node].manager.connections() {
                let state = self.wire.nodes[node].manager.state(id);
                assert_eq!(state, Some(ConnectionState::Established));
                self.wire.disconnect(node, id);
            }
        }
        self.wire.finish();
        self.wire.assert_idle();
    }
}

#[test]
fn forged_messages_in_every_state_are_bounded_and_everything_ends() {
    let (mut states, mut reached) = (BTreeSet::new(), Effects::default());
    let seeds = crate::amount::executions(200_000) / MESSAGES;
    let first = crate::amount::first_seed();
    for seed in first..first + seeds {
        crate::amount::report(seed - first, seeds, "connections");
        let _replay = crate::amount::Replay(seed);
        let mut attack = Attack::new(seed);
        for _ in 0..MESSAGES {
            attack.strike();
            attack.note_states();
            if attack.random.ratio(1, 20) {
                attack.live();
            }
        }
        attack.end();
        states.append(&mut attack.states);
        for (sum, here) in reached.iter_mut().zip(attack.effects) {
            *sum += here;
        }
    }
    // All that there are.
    assert_eq!(states.len(), 8, "{states:?}");
    // All of it happens, or this says nothing.
    for (effect, count) in EFFECTS.iter().zip(reached) {
        println!("{effect}: {count}");
        assert!(count > seeds * MESSAGES / 4_000, "{effect}: {count}");
    }
}

/// A request in somebody's name, who never answers, is accepted: it costs him three messages.
#[test]
fn a_forged_request_brings_its_victim_three_messages_at_most() {
    let mut wire = Wire::new(2, 1);
    wire.lose(|_, _| true);
    let mut forger = crate::wire::manager(0, 3, Parameters::default());
    let request = crate::wire::connect_parameters(1, 1_000);
    forger.connect(&request, wire.now).unwrap();
    let mad = forger.poll_transmit().unwrap().mad;
    wire.deliver(gid(0), 1, &mad);
    let passive = wire.requested(1);
    wire.accept(1, passive, 200);
    wire.finish();
    assert_eq!(
        wire.kinds(),
        [Kind::Rep, Kind::Rep, Kind::Rej(RejectReason::TIMEOUT.0)]
    );
    let failed = Event::Unreachable {
        connection: passive,
    };
    assert_eq!(wire.events(1)[0], failed);
    wire.assert_idle();
}

#[test]
fn a_flood_of_requests_is_bounded_and_ends() {
    let mut wire = Wire::with(2, 1, parameters());
    let mut asker = crate::wire::manager(0, 3, Parameters::default());
    for number in 0..3_000 {
        let request = crate::wire::connect_parameters(1, 1_000 + number);
        let id = asker.connect(&request, wire.now).unwrap();
        let mad = asker.poll_transmit().unwrap().mad;
        wire.deliver(gid(0), 1, &mad);
        // It gives up at once, so that its place may be taken.
        if number % 2 == 0 {
            asker.disconnect(id, wire.now).unwrap();
            let mad = asker.poll_transmit().unwrap().mad;
            wire.deliver(gid(0), 1, &mad);
        }
        assert!(wire.nodes[1].manager.counts().half_open <= 8);
    }
    wire.finish();
    wire.assert_idle();
}

#[test]
fn a_user_who_takes_nothing_bounds_what_is_kept() {
    let limits = Parameters {
        events_max: 10,
        transmits_max: 10,
        ..parameters()
    };
    let mut lazy = crate::wire::manager(1, 1, limits);
    let mut asker = crate::wire::manager(0, 3, Parameters::default());
    let now = legato_base::Time::from_nanos(1);
    for number in 0..1_000 {
        let request = crate::wire::connect_parameters(1, 1_000 + number);
        let id = asker.connect(&request, now).unwrap();
        lazy.handle_message(gid(0), &asker.poll_transmit().unwrap().mad, now);
        asker.disconnect(id, now).unwrap();
        lazy.handle_message(gid(0), &asker.poll_transmit().unwrap().mad, now);
    }
    let events = std::iter::from_fn(|| lazy.poll_event()).count();
    let transmits = std::iter::from_fn(|| lazy.poll_transmit()).count();
    // Each request admitted may still end.
    assert!(events <= 20, "{events}");
    assert_eq!(transmits, 10);
    assert!(lazy.counters().transmits_dropped > 900);
}
