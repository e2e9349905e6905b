//! The rules of the conformance suite, several at a time: most of their time they wait.
#![allow(dead_code, reason = "each test uses its part")]

use legato_verbs::conformance::{Report, Rule, Violation, rules};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Places that rules run in at the same time.
const PLACES: usize = 5;

/// Connections made and ended in a row (V-24), each of which waits for what still is under way: in a
/// soak, and in the gate.
pub(crate) fn cycles() -> u32 {
    match std::env::var("LEGATO_TEST_SOAK").as_deref() {
        Ok("1") => 100,
        _ => 10,
    }
}

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
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(rule) = rules.get(index) else {
                return done;
            };
            let begun = Instant::now();
            done.push((index, check(rule)));
            println!("{:5} ms: {}", begun.elapsed().as_millis(), rule.name);
        }
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
    let named = |(index, result): (usize, _)| (rules[index].name, result);
    done.into_iter().map(named).collect()
}
