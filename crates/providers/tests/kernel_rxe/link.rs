//! The link between both sides: wider than usual, or lossy.

use crate::netns::{Loss, ip};
use crate::rig::Rig;

/// This side's end.
const TAP: &str = "tap0";
/// Takes packets of 4096 bytes.
const WIDE: u32 = 9000;
const USUAL: u32 = 1500;

fn set_mtu(rig: &mut Rig, mtu: u32) {
    ip(&format!("link set {TAP} mtu {mtu}"));
    rig.guest
        .say(&format!("ip link set eth0 mtu {mtu}; echo width $?"));
    assert_eq!(rig.await_line("width "), "width 0");
}

pub(crate) fn with_wide_link(rig: &mut Rig, body: impl FnOnce(&mut Rig)) {
    set_mtu(rig, WIDE);
    body(rig);
    set_mtu(rig, USUAL);
}

/// Of the packets in each direction so many are lost.
pub(crate) fn with_loss(rig: &mut Rig, per_mille: u32, body: impl FnOnce(&mut Rig)) {
    // Segmented before the link, so that each packet is lost alone.
    ip(&format!("link set {TAP} gso_max_segs 1"));
    let loss = Loss::both_ways(TAP, per_mille);
    body(rig);
    let lost = loss.end();
    println!("  {lost} packets of the kernel's were lost");
    assert!(lost > 0);
    ip(&format!("link set {TAP} gso_max_segs 65535"));
}
