//! A fabric that went to a thread cannot go to another.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::Provider;
use std::thread;

fn in_a_thread(work: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().spawn(work);
}

pub fn share<P: Provider + Send + 'static>(
    mut fabric: Fabric<RegionSlice<'static>>,
    (mut one, mut other): (P, P),
    connection: ConnectionId,
) {
    in_a_thread(move || {
        let _ = fabric.call(&mut one, connection, &[], Time::NEVER);
    });
    in_a_thread(move || {
        let _ = fabric.call(&mut other, connection, &[], Time::NEVER);
    });
}

fn main() {}
