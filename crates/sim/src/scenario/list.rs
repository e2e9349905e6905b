//! The list of all scenarios.

use super::Scenario;
use super::fabric;
use super::memory::MEMORY;
use super::traffic::TRAFFIC;

/// Every scenario, the default first.
pub static ALL: [Scenario; 13] = [
    MEMORY,
    TRAFFIC,
    fabric::WEATHER,
    fabric::CONNECTIONS,
    fabric::PARTITIONS,
    fabric::SILENCE,
    fabric::ONE_WAY,
    fabric::COMPLETIONS,
    fabric::EVENTS,
    fabric::POSTS,
    fabric::SCRIBBLER,
    fabric::REMOVAL,
    fabric::MIXED,
];

/// Scenarios that fail, because the fabric in them believes what it must not: they show that it would be
/// noticed. They are run by name only.
static FAILING: [Scenario; 2] = [fabric::UNFENCED, fabric::CREDULOUS];

/// The scenario of a name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    let mut all = ALL.iter().chain(&FAILING);
    all.find(|scenario| scenario.name == name)
}
