//! Scenarios of the fabric: the same machines and the same work, each with other things that go
//! wrong.

mod ending;
mod hearing;
mod model;
mod node;
mod rules;
mod software;
mod world;
mod wreak;

use super::memory::NONE_KNOWN;
use super::{Known, Options, Outcome, Scenario};
use crate::fault::Rule;
use legato_base::{Duration, Random};

/// What goes wrong. Chances are in a thousand for each step.
#[derive(Clone, Copy, Debug)]
struct Plan {
    machines: usize,
    rules: fn(&mut Random) -> Vec<Rule>,
    /// Of a link, both ways.
    cut: u64,
    one_way: u64,
    blackhole: u64,
    freeze: u64,
    /// The software of a machine stops, and its NIC goes on.
    stop: u64,
    kill: u64,
    /// Machines that can be killed: the first so many.
    mortal: usize,
    remove: u64,
    port: u64,
    /// In a hundred of what the machines do.
    close: u64,
    /// A personality's NIC may write into buffers that it has given back.
    late_writes: bool,
    /// The fabric knows that, and does not believe the NIC before it has stopped.
    fenced: bool,
    /// So long after a machine has died its peers are told; without it silence is all they get.
    detection: Option<Duration>,
    /// How long a fabric believes that a silent peer is alive.
    liveness: Duration,
    /// In half of all runs the connections of a machine share their receives.
    may_share_receives: bool,
}

const CALM: Plan = Plan {
    machines: 3,
    rules: |_| Vec::new(),
    cut: 0,
    one_way: 0,
    blackhole: 0,
    freeze: 0,
    stop: 0,
    kill: 0,
    mortal: 3,
    remove: 0,
    port: 0,
    close: 1,
    late_writes: false,
    fenced: true,
    detection: Some(Duration::from_millis(500)),
    liveness: Duration::from_secs(10),
    may_share_receives: false,
};

const ALL: &[&str] = &[
    "ideal", "mlx5", "rxe", "iwarp", "ehca", "hostile", "clocked", "careless",
];

const UNFENCED_FAILS: &[Known] = &[Known {
    personality: None,
    why: "its fabric believes a NIC that writes into buffers whose requests it has given back",
}];

const CREDULOUS_FAILS: &[Known] = &[Known {
    personality: None,
    why: "its fabric believes for an hour that a silent peer is alive",
}];

const fn scenario(
    name: &'static str,
    what: &'static str,
    run: fn(&Options) -> Outcome,
) -> Scenario {
    Scenario {
        name,
        what,
        steps: 400,
        personalities: ALL,
        known: NONE_KNOWN,
        run,
    }
}

pub(super) const WEATHER: Scenario = scenario(
    "weather",
    "calls, reads and writes while packets are lost, doubled, reordered, damaged and slow",
    |options| {
        world::run(
            &WEATHER,
            Plan {
                rules: rules::weather,
                ..CALM
            },
            options,
        )
    },
);

pub(super) const CONNECTIONS: Scenario = scenario(
    "connections",
    "connections come and go while packets are lost and doubled, and none leaks",
    |options| {
        let plan = Plan {
            rules: rules::losses,
            close: 30,
            port: 5,
            ..CALM
        };
        world::run(&CONNECTIONS, plan, options)
    },
);

pub(super) const PARTITIONS: Scenario = scenario(
    "partitions",
    "links are cut, machines freeze, or their software stops, or they die and come back as others",
    |options| {
        let plan = Plan {
            cut: 30,
            freeze: 20,
            stop: 20,
            kill: 10,
            port: 10,
            ..CALM
        };
        world::run(&PARTITIONS, plan, options)
    },
);

pub(super) const ONE_WAY: Scenario = scenario(
    "one-way",
    "links that are cut in one direction, and machines that nothing reaches",
    |options| {
        let plan = Plan {
            one_way: 40,
            blackhole: 15,
            ..CALM
        };
        world::run(&ONE_WAY, plan, options)
    },
);

pub(super) const COMPLETIONS: Scenario = scenario(
    "completions",
    "completions that are lost, come twice, late, or again when they are forgotten",
    |options| {
        let plan = Plan {
            rules: rules::completions,
            cut: 5,
            ..CALM
        };
        world::run(&COMPLETIONS, plan, options)
    },
);

pub(super) const EVENTS: Scenario = scenario(
    "events",
    "events of connections and queue pairs that are lost, late or repeated",
    |options| {
        let plan = Plan {
            rules: rules::events,
            cut: 20,
            kill: 5,
            close: 5,
            ..CALM
        };
        world::run(&EVENTS, plan, options)
    },
);

pub(super) const POSTS: Scenario = scenario(
    "posts",
    "posts that the NIC refuses for want of memory or room",
    |options| {
        world::run(
            &POSTS,
            Plan {
                rules: rules::posts,
                ..CALM
            },
            options,
        )
    },
);

const SCRIBBLES: Plan = Plan {
    rules: rules::losses,
    cut: 30,
    port: 10,
    late_writes: true,
    ..CALM
};

pub(super) const SCRIBBLER: Scenario = Scenario {
    personalities: &["hostile", "clocked"],
    ..scenario(
        "scribbler",
        "a NIC that goes on writing into buffers that it has given back",
        |options| world::run(&SCRIBBLER, SCRIBBLES, options),
    )
};

/// What becomes of the scribbler's buffers if its word is believed: shows that it is noticed.
pub const UNFENCED: Scenario = Scenario {
    known: UNFENCED_FAILS,
    ..Scenario {
        name: "unfenced",
        run: |options| {
            let plan = Plan {
                fenced: false,
                ..SCRIBBLES
            };
            world::run(&UNFENCED, plan, options)
        },
        ..SCRIBBLER
    }
};

const DEATHS: Plan = Plan {
    kill: 80,
    stop: 5,
    mortal: 1,
    detection: None,
    ..CALM
};

pub(super) const SILENCE: Scenario = Scenario {
    steps: 1200,
    ..scenario(
        "silence",
        "a machine dies and comes back again and again, and nobody tells its peers; software stops",
        |options| world::run(&SILENCE, DEATHS, options),
    )
};

/// The same where silence means nothing: shows that what is left of the dead is noticed.
pub const CREDULOUS: Scenario = Scenario {
    known: CREDULOUS_FAILS,
    ..Scenario {
        name: "credulous",
        run: |options| {
            let plan = Plan {
                liveness: Duration::from_secs(3600),
                ..DEATHS
            };
            world::run(&CREDULOUS, plan, options)
        },
        ..SILENCE
    }
};

pub(super) const MIXED: Scenario = Scenario {
    steps: 150,
    ..scenario(
        "mixed",
        "everything at once: packets, completions, events, posts, links, machines, NICs and ports",
        |options| {
            let plan = Plan {
                rules: rules::anything,
                cut: 10,
                one_way: 5,
                blackhole: 3,
                freeze: 8,
                stop: 8,
                kill: 8,
                remove: 3,
                port: 5,
                close: 5,
                late_writes: true,
                detection: None,
                may_share_receives: true,
                ..CALM
            };
            world::run(&MIXED, plan, options)
        },
    )
};

pub(super) const REMOVAL: Scenario = scenario(
    "removal",
    "NICs that are taken away under work, and ports that go down",
    |options| {
        let plan = Plan {
            remove: 10,
            port: 20,
            ..CALM
        };
        world::run(&REMOVAL, plan, options)
    },
);
