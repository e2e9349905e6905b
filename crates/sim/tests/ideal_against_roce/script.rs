//! What is called in which order: drawn from a seed.

use legato_base::Random;
use legato_verbs::{Arm, QueuePairState};

/// Queue pairs of each side; those of the same number belong together. The last has its receives from a
/// shared queue.
pub(crate) const QUEUE_PAIRS: usize = 3;
/// Bytes of a request's own place. Messages take several packets.
pub(crate) const SLOT: u32 = 3072;
pub(crate) const BATCH: usize = 6;
/// Where requests may reach, behind all slots, in each region.
pub(crate) const TARGET: u32 = 32 << 10;

/// Whose key a remote access has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Region,
    /// A region that comes and goes.
    Passing,
    /// Of the passing region before the last.
    Stale,
    Window,
    Wrong,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    SendWithImmediate,
    SendWithInvalidate,
    Write,
    WriteWithImmediate,
    Read,
    CompareAndSwap {
        holds: bool,
    },
    FetchAndAdd,
    /// Gives the window to the peer.
    Bind {
        access: u8,
    },
    /// Ends its key.
    Invalidate,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) key: Key,
    /// In the target; beyond its end sometimes.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
    /// The local place is partly outside of the region.
    pub(crate) outside: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Vec<Request>),
    Receive {
        lengths: Vec<u32>,
        outside: bool,
    },
    Modify(QueuePairState),
    /// Both queue pairs, by hand, with a path MTU and a first packet's number.
    Connect {
        path_mtu: u8,
        sequence: u32,
    },
    /// Both, by connection management; or the second says no.
    Manage {
        accepts: bool,
    },
    Disconnect,
    Destroy,
    /// Another passing region in the place of the last.
    PassRegion {
        access: u8,
    },
    Arm(Arm),
    Limit(u32),
}

/// A step, on a side and one of its queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) side: usize,
    pub(crate) queue_pair: usize,
    pub(crate) step: Step,
}

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) turns: Vec<Turn>,
}

impl Script {
    pub(crate) fn of_seed(seed: u64, steps: usize) -> Self {
        let mut random = Random::from_seed(seed);
        let mut turns = Vec::new();
        for queue_pair in 0..QUEUE_PAIRS {
            let step = connect(&mut random);
            turns.push(Turn {
                side: 0,
                queue_pair,
                step,
            });
        }
        turns.extend((0..steps).map(|_| turn(&mut random)));
        Self { seed, turns }
    }
}

fn turn(random: &mut Random) -> Turn {
    let step = match random.below(100) {
        0..38 => Step::Send(
            (0..=random.below(BATCH as u64))
                .map(|_| request(random))
                .collect(),
        ),
        38..66 => Step::Receive {
            lengths: (0..=random.below(5)).map(|_| length(random)).collect(),
            outside: random.ratio(1, 25),
        },
        66..68 => Step::Modify(QueuePairState::Error),
        68..70 => Step::Modify(QueuePairState::SendQueueDrain),
        70..72 => Step::Modify(QueuePairState::ReadyToSend),
        72..73 => Step::Modify(QueuePairState::Reset),
        73..74 => Step::Modify(QueuePairState::Init),
        74..86 => connect(random),
        86..90 => Step::Manage {
            accepts: random.ratio(3, 4),
        },
        90..92 => Step::Disconnect,
        92..93 => Step::Destroy,
        93..95 => Step::PassRegion {
            access: random.below(32) as u8,
        },
        95..97 => Step::Arm([Arm::Next, Arm::Solicited][random.below(2) as usize]),
        _ => Step::Limit(1 + random.below(6) as u32),
    };
    Turn {
        side: random.below(2) as usize,
        queue_pair: random.below(QUEUE_PAIRS as u64) as usize,
        step,
    }
}

fn connect(random: &mut Random) -> Step {
    Step::Connect {
        path_mtu: 1 + random.below(5) as u8,
        // Some soon go round.
        sequence: match random.below(3) {
            0 => 0x00FF_FFFF - random.below(20) as u32,
            _ => random.below(1 << 24) as u32,
        },
    }
}

/// Around the path MTUs, and anything else.
fn length(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => 0,
        1 => 255 + random.below(3) as u32,
        2 => 1023 + random.below(3) as u32,
        3 => SLOT,
        4 => random.below(u64::from(SLOT)) as u32,
        _ => 1 + random.below(200) as u32,
    }
}

fn request(random: &mut Random) -> Request {
    let operation = match random.below(24) {
        0..3 => Operation::Send,
        3..5 => Operation::SendWithImmediate,
        5 => Operation::SendWithInvalidate,
        6..12 => Operation::Write,
        12..14 => Operation::WriteWithImmediate,
        14..18 => Operation::Read,
        18 | 19 => Operation::CompareAndSwap {
            holds: random.ratio(1, 2),
        },
        20 | 21 => Operation::FetchAndAdd,
        22 => Operation::Bind {
            access: random.below(16) as u8,
        },
        _ => Operation::Invalidate,
    };
    let key = match random.below(60) {
        0 => Key::Stale,
        1 => Key::Wrong,
        2..6 => Key::Window,
        6..12 => Key::Passing,
        _ => Key::Region,
    };
    let length = length(random);
    let is_atomic = matches!(
        operation,
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd
    );
    let room = u64::from(TARGET - SLOT);
    let offset = match random.below(40) {
        0 => u64::from(TARGET) - u64::from(length) / 2,
        _ if is_atomic && random.ratio(9, 10) => random.below(room / 8) * 8,
        _ => random.below(room),
    };
    Request {
        operation,
        key,
        offset,
        length: if is_atomic { 8 } else { length },
        signaled: random.ratio(2, 3),
        solicited: random.ratio(1, 4),
        inline: random.ratio(1, 5),
        outside: random.ratio(1, 60),
    }
}
