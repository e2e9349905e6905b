//! What needs the device alone: both sides are in the guest, on two openings of it.

use crate::contract::cancel::{COARSE, given_up};
use crate::contract::drain::{closes_with_all_under_way, stands_still};
use crate::contract::shared::sharing;
use crate::contract::{refusals, shared};
use crate::faulty::NO_MEMORY;
use crate::rig::{DeviceNet, World, config};
use legato_fabric::ResetCause;
use legato_verbs::VerbsError;

const NAME: &str = "device";

/// Each asynchronous event comes so often, on both sides.
fn repeat(world: &mut World<DeviceNet>, times: usize) {
    world.left.nic.asynchronous = times;
    world.right.nic.asynchronous = times;
}

/// Its device answers for it.
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_26_a_peer_that_stands_still() {
    stands_still(World::device(config()), NAME, ResetCause::PeerSilent);
}

// P-53
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_28_without_any_asynchronous_event() {
    let mut world = World::device(config());
    repeat(&mut world, 0);
    closes_with_all_under_way(&mut world, NAME);
    world.left.end();
    world.right.end();
}

// P-92
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_28_shared_receives_without_last_work_request_reached() {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    for hidden in [false, true] {
        let mut world = World::device(sharing());
        if hidden {
            repeat(&mut world, 0);
        }
        // Linux 6.1 never says it.
        let is_said = !hidden && !kernel.starts_with("6.1.");
        shared::drains(world, NAME, is_said);
    }
}

// P-92
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_29_shared_receives_are_reaped_once() {
    for times in 2..=5 {
        shared::reaped_once(World::device(sharing()), NAME, |world| {
            repeat(world, times);
        });
    }
}

// P-61
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn l_26_v_36_given_up_at_every_step() {
    for steps in 0..12 {
        given_up(World::device(config()), steps, &COARSE);
    }
}

// P-50
#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_38_a_receive_that_is_refused_once_is_posted_again() {
    for error in [NO_MEMORY, VerbsError::QueueFull("receive")] {
        refusals::is_posted_again(World::device(config()), NAME, |world| {
            world.right.nic.refuse_receive_once = Some(error);
        });
    }
}

#[test]
#[ignore = "`device::beside_a_guest` runs it, in the guest"]
fn v_38_a_shared_receive_that_is_refused_is_posted_again() {
    shared::is_posted_again(World::device(sharing()), NAME);
}
