//! Troubles of a running program: nodes die, start again, freeze or are cut off and come back, others take
//! their memory, and the program's machine has no mappings left or a NIC that is late or lets nothing go.

use super::defect::Defect;
use super::failure::FailureKind;
use super::state::World;
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, Duration, Random, Time};
use legato_verbs::Prepared;
use std::collections::BTreeMap;

/// Points in time from one trouble to the next, on average.
const APART: u64 = 300;
/// A node that has been in trouble has none for so long: a NIC counts its timeouts from the last answer.
const REST: Duration = Duration::from_millis(20);
/// Nobody is given up for trouble of this length: see `GIVEN_UP` in `node`.
const SHORT: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(6)];
const LONG: [Duration; 2] = [Duration::from_millis(40), Duration::from_millis(400)];
/// By so much completions are late.
const LATE: Duration = Duration::from_millis(3);
/// Bytes that others leave free at a node.
const LEFT: Bytes = Bytes::mib(1);

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// A node dies.
    Death,
    /// A node dies, and starts again with nothing.
    Restart,
    /// A node and its NIC stand still for a moment.
    Pause,
    /// They do so for long, and go on when they have been given up.
    Freeze,
    /// For a moment nothing gets through to a node, or nothing from it, or neither.
    Cut,
    /// The same for long: what it gets at last is of before.
    Partition,
    /// Other clients have the rest of a node's memory.
    Competition,
    /// The program's machine cannot map what nodes grant.
    NoMappings,
    /// The program's NIC says late what has become of requests.
    LateCompletions,
    /// The program's NIC lets no queue pair go, and frames that it may touch stay in quarantine.
    Clinging,
}

impl Trouble {
    pub const ALL: [Self; 10] = [
        Self::Death,
        Self::Restart,
        Self::Pause,
        Self::Freeze,
        Self::Cut,
        Self::Partition,
        Self::Competition,
        Self::NoMappings,
        Self::LateCompletions,
        Self::Clinging,
    ];

    /// True if a node is given up for it, or may be.
    const fn ends_a_node(self) -> bool {
        matches!(
            self,
            Self::Death | Self::Restart | Self::Freeze | Self::Partition
        )
    }

    /// True if it befalls the program's machine and no node.
    const fn is_at_home(self) -> bool {
        matches!(
            self,
            Self::NoMappings | Self::LateCompletions | Self::Clinging
        )
    }
}

/// One that is not over.
#[derive(Debug)]
struct UnderWay {
    kind: Trouble,
    node: usize,
    ends: Time,
    /// See [`Defect::OldSlots`].
    memory: Vec<Vec<u8>>,
}

/// The troubles of a seed.
#[derive(Debug)]
pub(super) struct Troubles {
    random: Random,
    under_way: Vec<UnderWay>,
    /// When each node has rested from its last.
    rested: Vec<Time>,
    pub(super) counts: BTreeMap<Trouble, u64>,
}

impl Troubles {
    pub(super) fn new(random: Random, nodes: u32) -> Self {
        Self {
            random,
            under_way: Vec::new(),
            rested: (0..nodes).map(|_| Time::ZERO).collect(),
            counts: BTreeMap::new(),
        }
    }

    pub(super) const fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Ends what is over, and begins something now and then.
    pub(super) fn turn(&mut self, world: &mut World) -> Result<(), FailureKind> {
        if self.random.below(APART) == 0 {
            self.begin_one(world);
        }
        self.end_due(world)
    }

    /// Ends what is over.
    pub(super) fn end_due(&mut self, world: &mut World) -> Result<(), FailureKind> {
        let now = world.now();
        while let Some(over) = self.under_way.iter().position(|it| it.ends <= now) {
            let over = self.under_way.swap_remove(over);
            self.end(world, over)?;
        }
        let ends = self.under_way.iter().map(|it| it.ends);
        world.trouble_at = ends.min().unwrap_or(Time::NEVER);
        Ok(())
    }

    fn between(&mut self, [least, most]: [Duration; 2]) -> Duration {
        let more = most.as_nanos() - least.as_nanos();
        least + Duration::from_nanos(self.random.below(more))
    }

    fn begin_one(&mut self, world: &mut World) {
        let now = world.now();
        let kind = Trouble::ALL[self.random.below(Trouble::ALL.len() as u64) as usize];
        let nodes = world.nodes.len();
        // One node always stays, and has room for everything.
        let may_have_it = match kind {
            _ if kind.ends_a_node() || kind == Trouble::Competition => nodes - 1,
            _ => nodes,
        };
        if may_have_it == 0 || self.under_way.iter().any(|it| it.kind == kind) {
            return;
        }
        let node = self.random.below(may_have_it as u64) as usize;
        let is_in_trouble = self
            .under_way
            .iter()
            .any(|it| it.node == node && !it.kind.is_at_home());
        let is_well = world.nodes[node].is_well(now) && self.rested[node] <= now && !is_in_trouble;
        if !kind.is_at_home() && !is_well {
            return;
        }
        let lasts = self.begin(world, kind, node);
        *self.counts.entry(kind).or_default() += 1;
        let memory = match world.config.defect {
            Some(Defect::OldSlots) => world.nodes[node].memory(),
            _ => Vec::new(),
        };
        self.under_way.push(UnderWay {
            kind,
            node,
            ends: now + lasts,
            memory,
        });
    }

    /// Returns how long it lasts.
    fn begin(&mut self, world: &mut World, kind: Trouble, node: usize) -> Duration {
        match kind {
            Trouble::Death => {
                world.kill_node(node);
                Duration::ZERO
            }
            Trouble::Restart => {
                world.kill_node(node);
                self.between(LONG)
            }
            Trouble::Pause | Trouble::Freeze => {
                world.freeze_node(node);
                self.between(if kind == Trouble::Pause { SHORT } else { LONG })
            }
            Trouble::Cut | Trouble::Partition => {
                let lasts = self.between(if kind == Trouble::Cut { SHORT } else { LONG });
                let ways = self.random.below(3);
                world.lose_packets(node, lasts, [ways != 0, ways != 1]);
                world.nodes[node].leave(world.network.now());
                lasts
            }
            Trouble::Competition => {
                let used = world.nodes[node].server.status().used_bytes;
                let left = self.random.below(LEFT.0);
                if self.random.ratio(1, 2) {
                    world.resize_node(node, Bytes(used + left));
                } else {
                    world.limit_node_memory(node, Some(Bytes(left)));
                }
                if world.config.defect == Some(Defect::GrantedTwice) {
                    world.nodes[node].for_each_slot(|slot| slot[SLOT_STRIDE - 1] ^= 1);
                }
                self.between(LONG)
            }
            Trouble::NoMappings => {
                let refuses = self.random.ratio(1, 2);
                world.set_prepared(if refuses {
                    Prepared::Refused
                } else {
                    Prepared::NotYet
                });
                self.between(SHORT)
            }
            Trouble::LateCompletions => {
                let lasts = self.between(SHORT);
                let by = Duration::from_nanos(self.random.below(LATE.as_nanos()));
                world.delay_completions(by, lasts);
                lasts
            }
            Trouble::Clinging => {
                world.set_clinging(true);
                self.between(LONG)
            }
        }
    }

    fn end(&mut self, world: &mut World, over: UnderWay) -> Result<(), FailureKind> {
        let (node, now) = (over.node, world.now());
        match over.kind {
            Trouble::Death => {}
            Trouble::Restart => world.nodes[node].restart(&world.network)?,
            Trouble::Pause | Trouble::Freeze => world.nodes[node].thaw(&world.network),
            Trouble::Cut | Trouble::Partition => world.nodes[node].come_back(now),
            Trouble::Competition => {
                let capacity = world.nodes[node].capacity;
                world.resize_node(node, capacity);
                world.limit_node_memory(node, None);
            }
            Trouble::NoMappings => world.set_prepared(Prepared::Yes),
            Trouble::LateCompletions => {}
            Trouble::Clinging => {
                world.set_clinging(false);
                if world.config.defect == Some(Defect::LateWrites) {
                    world.pager.kernel_mut().frames.mix_up();
                }
            }
        }
        if !over.kind.is_at_home() {
            self.rested[node] = now + REST;
        }
        world.nodes[node].put_back(&over.memory);
        Ok(())
    }
}
