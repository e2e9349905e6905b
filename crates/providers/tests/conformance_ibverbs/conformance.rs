//! Every rule of the suite, on a pair of openings of the device.

use crate::deviations::Deviation;
use crate::world::DeviceWorld;
use legato_verbs::conformance::rules;
use std::time::Instant;

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn the_ibverbs_provider_keeps_every_rule_but_the_listed_ones() {
    let mut wrong = Vec::new();
    let listed = Deviation::listed();
    for deviation in &listed {
        let known = rules().iter().any(|rule| rule.name == deviation.rule);
        if !known {
            wrong.push(format!("{}: there is no such rule", deviation.rule));
        }
    }
    let all = rules();
    for rule in &all {
        let begun = Instant::now();
        let checked = (rule.check)(&mut DeviceWorld::new());
        let took = begun.elapsed().as_millis();
        let deviation = listed.iter().find(|it| it.rule == rule.name);
        let verdict = match (&checked, deviation) {
            (Ok(()), None) => None,
            (Ok(()), Some(_)) => Some("it is listed as deviating and does not".to_owned()),
            (Err(violation), Some(listed)) if violation.to_string() == listed.violation => None,
            (Err(violation), _) => Some(violation.to_string()),
        };
        println!("  {took:6} ms  {}", rule.name);
        if let Some(verdict) = verdict {
            println!("             {verdict}");
            wrong.push(format!("{}\n    {verdict}", rule.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} rules:\n  {}",
        wrong.len(),
        all.len(),
        wrong.join("\n  ")
    );
}
