//! V-26: a peer of the device that vanishes, and says nothing.

use super::far_side::Report;
use super::near::Near;
use std::time::{Duration, Instant};

/// Longest until the connection is over: a silent peer's time, and a tenth of it for the queue pair.
const BOUND: Duration = Duration::from_secs(11);

/// Neither its NIC nor its software answers any more. What it had of the shared receives comes back too.
#[test]
#[ignore = "`device::beside_a_guest` runs it, on the link"]
fn v_26_a_peer_that_vanishes_without_a_word_is_reclaimed() {
    let mut near = Near::start();
    let connection = near.connect();
    for _ in 0..10 {
        near.ask(connection);
    }
    let begun = Instant::now();
    // Nothing looks after this side's NIC from here on.
    let line = near.guest.await_line("ended ");
    let took = begun.elapsed();
    println!("  {line} after {took:?}");
    assert!(took < BOUND, "{took:?}");
    let is_cause = ["RetryExceeded", "PeerSilent"].map(|cause| line.contains(cause));
    assert!(is_cause.contains(&true), "{line}");
    let mut near = near.again(3);
    let connection = near.connect();
    let alone = Report {
        queue_pairs: 1,
        missing: 0,
        doubtful: 0,
        reclaimed: 0,
    };
    near.reports(connection, alone);
    near.end(connection);
}
