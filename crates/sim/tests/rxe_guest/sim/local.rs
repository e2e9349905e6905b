//! T11: requests whose own memory is wrong.

use super::rig::{ALL_ACCESS, AREA, End, Rig, place};
use legato_verbs::{
    AccessFlags, LocalKey, MemoryRegion, ScatterGatherEntry, SendFlags, SendOperation,
};

const NOBODYS_KEY: u32 = 0x005a_5a00;

fn entry(area: &MemoryRegion, key_change: u32, offset: u32, length: u32) -> ScatterGatherEntry {
    ScatterGatherEntry {
        local_key: LocalKey(area.local_key.0 ^ key_change),
        ..area.entry(u64::from(offset), length)
    }
}

fn post_with_key(rig: &mut Rig, end: &mut End, key_change: u32, offset: u32) -> i32 {
    let entry = entry(&rig.source, key_change, offset, 8);
    rig.post_entry(end, SendOperation::Send, Some(entry), SendFlags::SIGNALED)
}

fn put_pair(rig: &mut Rig, a: End, b: End) {
    rig.put_pair(&a, &b, ["sender", "receiver"]);
    rig.free_both(a, b);
}

fn sends(rig: &mut Rig) {
    for (name, key_change, offset) in [
        ("with a local key that nobody has", NOBODYS_KEY, 0),
        ("that ends behind its region", 0, AREA - 4),
    ] {
        let (mut a, mut b) = rig.pair();
        rig.post_receive(&mut b, 64);
        rig.line(&format!("T11 a send {name}"));
        let posted = post_with_key(rig, &mut a, key_change, offset);
        rig.field(&format!("post={posted}"));
        rig.watch(&mut [(&mut a, 1), (&mut b, 0)], 0);
        put_pair(rig, a, b);
    }

    for (name, waits) in [
        ("that has completed, a bad one, a good one", true),
        (", a bad one, a good one at once", false),
    ] {
        let (mut a, mut b) = rig.pair();
        rig.post_receive(&mut b, 64);
        rig.post_receive(&mut b, 64);
        rig.post_send(&mut a, 8);
        if waits {
            rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
        }
        post_with_key(rig, &mut a, NOBODYS_KEY, 0);
        rig.post_send(&mut a, 8);
        rig.watch(&mut [(&mut a, 3), (&mut b, 1)], 0);
        let space = if waits { " " } else { "" };
        rig.line(&format!("T11 a good send{space}{name}"));
        put_pair(rig, a, b);
    }
}

fn receives(rig: &mut Rig, name: &str, into: &MemoryRegion, key_change: u32) {
    let (mut a, mut b) = rig.pair();
    let bad = entry(into, key_change, 0, 64);
    rig.line(&format!("T11 {name}"));
    let posted = rig.post_receive_entry(&mut b, bad);
    rig.field(&format!("post={posted}"));
    rig.post_receive(&mut b, 64);
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut a, 1), (&mut b, 2)], 0);
    put_pair(rig, a, b);
}

fn reads(rig: &mut Rig, name: &str, into: &MemoryRegion, key_change: u32) {
    let (mut a, mut b) = rig.pair();
    let target = rig.area_new(4096, ALL_ACCESS);
    let bad = entry(into, key_change, 0, 64);
    rig.line(&format!("T11 {name}"));
    let read = SendOperation::RdmaRead(place(&target, 0));
    let posted = rig.post_entry(&mut a, read, Some(bad), SendFlags::SIGNALED);
    rig.field(&format!("post={posted}"));
    rig.watch(&mut [(&mut a, 1), (&mut b, 0)], 0);
    put_pair(rig, a, b);
    rig.nic.deregister_region(&target).unwrap();
}

pub(super) fn local(rig: &mut Rig) {
    let constant = rig.area_new(4096, AccessFlags::NONE);
    let inbox = rig.inbox;
    sends(rig);
    let (nobodys, constants) = (
        "with a local key that nobody has",
        "into memory that may only be read",
    );
    receives(rig, &format!("a receive {nobodys}"), &inbox, NOBODYS_KEY);
    receives(rig, &format!("a receive {constants}"), &constant, 0);
    reads(rig, &format!("a read {nobodys}"), &inbox, NOBODYS_KEY);
    reads(rig, &format!("a read {constants}"), &constant, 0);
    rig.nic.deregister_region(&constant).unwrap();
}
