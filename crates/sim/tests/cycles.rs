//! Connections of fabrics come and go, through shared memory and over RoCE, and nothing of them is
//! left in the process. Alone in its program, because it counts what the process has.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "fabric/faulty/mod.rs"]
#[allow(dead_code, reason = "what the fabric's other tests need")]
mod faulty;
#[path = "fabric/rig/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "what the fabric's other tests need"
)]
mod rig;

use legato_base::Duration;
use legato_verbs::{Provider, ResourceCounts};
use rig::{Net, World, config, cycle};

/// Objects of both providers; then descriptors, threads and mappings of the process.
fn held<N: Net>(world: &World<N>) -> ([ResourceCounts; 2], [usize; 3]) {
    let counts = [
        world.left.nic.resource_counts(),
        world.right.nic.resource_counts(),
    ];
    let entries = |path| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Those of segments: the allocator's own come and go.
    let segments = maps.lines().filter(|line| line.contains("/memfd:")).count();
    let process = [
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        segments,
    ];
    (counts, process)
}

fn cycles<N: Net>(mut world: World<N>) {
    let mut early = None;
    for number in 0..10_000 {
        cycle(&mut world, number);
        if number == 99 {
            early = Some(held(&world));
        }
    }
    world.run_for(Duration::from_secs(2));
    assert_eq!(early, Some(held(&world)));
    world.left.end();
    world.right.end();
}

#[test]
fn v_24_ten_thousand_cycles_leave_nothing_in_the_process() {
    cycles(World::shm(config()));
    cycles(World::roce(config()));
}
