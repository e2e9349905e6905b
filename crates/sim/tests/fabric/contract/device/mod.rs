//! The contract on an RDMA device: the kernel's `rdma_rxe` in an emulated guest. `docs/testing.md` says how
//! it is made.

mod alone;
mod far_side;
#[path = "../../../../../providers/tests/guest_shell/mod.rs"]
mod guest;
mod half;
mod near;
#[path = "../../../../../providers/tests/raw_packets/mod.rs"]
mod raw_packets;
mod vanished;

use guest::{Guest, own_name};

/// Boots the guest once and runs all other tests of this folder, one after the other.
#[test]
fn beside_a_guest() {
    guest::beside::run_beside_a_guest(&["device::", "--skip", "device::alone::"]);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn what_needs_no_link() {
    let mut guest = Guest::new();
    let name = own_name();
    guest.say(&format!(
        "./{name} device::alone:: --ignored --test-threads=1; echo status in the guest $?"
    ));
    // Their own lines come with it, if one fails.
    let results = guest.await_line("test result: ");
    assert!(
        results.starts_with("test result: ok. ") && !results.contains(" 0 passed"),
        "{results}"
    );
    guest.await_line("status in the guest 0");
}
