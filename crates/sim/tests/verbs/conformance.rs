//! The simulated provider keeps every rule of the suite, under many seeds and two kinds of wire;
//! and the suite names the rule that a broken provider breaks.

use crate::broken::{Broken, Defect};
use legato_base::Duration;
use legato_sim::provider::{SimNetwork, SimNetworkConfig};
use legato_verbs::conformance::{self, Advance, Facts, Report, Side, World};
use legato_verbs::{Address, Provider};

struct SimWorld {
    network: SimNetwork,
    left: Broken,
    right: Broken,
    addresses: u32,
    cycles: u32,
}

impl SimWorld {
    fn new(seed: u64, config: SimNetworkConfig, defect: Defect) -> Self {
        let network = SimNetwork::new(seed, config);
        Self {
            left: Broken::new(network.provider("left"), defect),
            right: Broken::new(network.provider("right"), defect),
            network,
            addresses: 0,
            cycles: 100,
        }
    }
}

impl World for SimWorld {
    fn left(&mut self) -> &mut dyn Provider {
        &mut self.left
    }

    fn right(&mut self) -> &mut dyn Provider {
        &mut self.right
    }

    fn fresh_address(&mut self, _: Side) -> Address {
        self.addresses += 1;
        Address::Sim(format!("port-{}", self.addresses))
    }

    fn begin_wait(&mut self) {}

    fn advance(&mut self) -> Advance {
        let step = match self.network.next_event_time() {
            Some(time) => {
                self.network.advance_to(time);
                Advance::Stepped
            }
            None => Advance::Exhausted,
        };
        self.left.progress(self.network.now());
        self.right.progress(self.network.now());
        step
    }

    fn settle(&mut self) {
        while self.advance() == Advance::Stepped {}
    }

    fn facts(&self) -> Facts {
        Facts {
            cycles: self.cycles,
            ..Facts::IDEAL
        }
    }
}

fn run(seed: u64, config: SimNetworkConfig, defect: Defect) -> Report {
    conformance::run(&mut || Box::new(SimWorld::new(seed, config, defect)))
}

#[test]
fn the_simulated_provider_conforms() {
    for seed in 0..8 {
        let report = run(seed, SimNetworkConfig::default(), Defect::None);
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
}

/// Jitter far above the latency, and a link on which size matters.
#[test]
fn the_simulated_provider_conforms_on_a_bad_wire() {
    let config = SimNetworkConfig {
        jitter: Duration::from_micros(500),
        posting_delay: Duration::from_micros(50),
        bytes_per_second: Some(100_000_000),
        ..SimNetworkConfig::default()
    };
    for seed in 100..108 {
        let report = run(seed, config, Defect::None);
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
}

#[test]
fn the_suite_names_the_rule_that_a_defect_breaks() {
    for (defect, rule) in [
        (Defect::DropsLastFlush, "V-33 drain"),
        (Defect::CompletesTwice, "V-3 unsignaled"),
        (Defect::ReversesCompletions, "V-33 drain"),
        (
            Defect::IgnoresPermissions,
            "V-8 refused access without permission",
        ),
        (
            Defect::IgnoresDomains,
            "V-8 refused access through another protection domain",
        ),
        (Defect::CorruptsLongReads, "V-11 messages of every size"),
        (Defect::ReportsFullLength, "V-6 a receive posted before"),
        (Defect::NamesWrongStatus, "V-6 no receive"),
        (Defect::SignalsEverything, "V-3 unsignaled"),
        (Defect::HidesUnsignaledErrors, "V-20"),
        (Defect::NeverFull, "V-3 a full send queue"),
        (Defect::TakesSendsInInit, "V-2"),
        (Defect::AllowsInitFromAnyState, "V-1"),
        (Defect::ForgetsLedger, "V-17"),
        (Defect::ReissuesKeys, "regions: keys"),
        (Defect::HidesDisconnects, "V-26"),
        (
            Defect::RepeatsDisconnects,
            "V-34 disconnect from the active side",
        ),
        (Defect::DropsPrivateData, "connections: private data"),
        (Defect::Leaks, "V-24 cycles"),
        (Defect::ForgetsReceives, "V-24 entries"),
        (Defect::KeepsCompletionsOfTheDestroyed, "V-19 completions"),
        (Defect::DropsEventsOfTheDestroyed, "V-35"),
        (Defect::WritesAfterFlush, "V-33 flushed buffers"),
        (Defect::ChecksNoBounds, "V-8 refused access out of range"),
        (Defect::ChecksNoBounds, "regions: local keys"),
        (
            Defect::IgnoresDeregistration,
            "V-8 refused access to a deregistered region",
        ),
        (
            Defect::IgnoresDeregistration,
            "regions: deregistering while",
        ),
        (Defect::ClampsLocalAccess, "regions: bounds"),
        (Defect::ClosesSilently, "connections: closing a listener"),
        (Defect::SendsAByteForNothing, "V-8 zero length"),
        (Defect::SleepsOverWork, "V-18"),
        (Defect::ForgetsImmediates, "immediate data"),
        (Defect::ReadsInlineDataLate, "V-3 inline"),
        (Defect::IgnoresFences, "a fenced request"),
        (Defect::AddsTwice, "V-11 atomics"),
        (Defect::SwapsBytes, "V-11 atomics"),
        (Defect::BindsTooMuch, "a window gives"),
        (Defect::ReissuesWindows, "no key of a window"),
        (Defect::TellsNobodyWhenArmed, "V-18 an armed queue"),
        (Defect::TellsTwiceWhenArmed, "V-18 an armed queue"),
        (Defect::WakesForAll, "V-18 solicited"),
        (Defect::HidesLimits, "V-15"),
        (Defect::RepeatsLimits, "V-15"),
        (Defect::HidesLastWorkRequests, "V-32"),
        (Defect::LosesSharedReceives, "V-40 queue pairs share"),
        (Defect::HidesOverruns, "V-16"),
        (Defect::HidesTimeWait, "a queue pair that was reset"),
        (Defect::TakesForeignAttributes, "V-1 every change"),
        (Defect::ForgetsAttributes, "V-1 attributes"),
        (Defect::DrainsNothing, "a drained send queue"),
    ] {
        let report = run(1, SimNetworkConfig::default(), defect);
        assert!(report.names(rule), "{defect:?} must break {rule}: {report}");
    }
}

#[test]
fn v_24_ten_thousand_cycles() {
    let mut world = SimWorld::new(24, SimNetworkConfig::default(), Defect::None);
    world.cycles = 10_000;
    for rule in conformance::rules() {
        if rule.name.starts_with("V-24 cycles") {
            assert_eq!((rule.check)(&mut world), Ok(()));
        }
    }
    assert!(world.addresses >= 10_000, "the rule ran");
}
