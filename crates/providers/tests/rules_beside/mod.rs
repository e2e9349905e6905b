//! The rules of the conformance suite, several at a time: most of their time they wait.

use legato_verbs::conformance::{Report, Rule, Violation, rules};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Places that rules run in at the same time.
const PLACES: usize = 5;

/// Checks every rule once, each in one of the places. `place` is called in the thread of each, with
/// its number, and gives what checks a rule there.
pub(crate) fn rules_beside<C>(place: impl Fn(usize) -> C + Sync) -> Report
where
    C: FnMut(&Rule) -> Result<(), Violation>,
{
    let rules = rules();
    let next = AtomicUsize::new(0);
    // A program that is started holds copies of all sockets until it is executed, and so their
    // ports: no place starts one, once another has sockets.
    let ready = Barrier::new(PLACES);
    let work = |number| {
        let mut check = place(number);
        ready.wait();
        let mut done = Vec::new();
        while let Some((index, rule)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            rules.get(index).map(|rule| (index, rule))
        } {
            let begun = Instant::now();
            done.push((index, check(rule)));
            println!("{:5} ms: {}", begun.elapsed().as_millis(), rule.name);
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let places: Vec<_> = (0..PLACES)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        let done = places.into_iter().map(|place| place.join().unwrap());
        done.flatten().collect::<Vec<_>>()
    });
    // As if they had run one after another.
    done.sort_by_key(|(index, _)| *index);
    let mut report = Report::default();
    for (index, result) in done {
        match result {
            Ok(()) => report.passed.push(rules[index].name),
            Err(violation) => report.failed.push((rules[index].name, violation)),
        }
    }
    report
}
