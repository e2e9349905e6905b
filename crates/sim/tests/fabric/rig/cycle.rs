//! The life of a connection from beginning to end.

use super::SECOND;
use super::net::Net;
use super::world::World;
use core::fmt::Debug;
use legato_base::Duration;

/// So many connections one after the other. What `held` counts is as it was after a hundred of them; and
/// of each of the others there is no allocation left, and less than a word in what has grown.
pub(crate) fn cycles<N: Net, T: PartialEq + Debug>(
    world: &mut World<N>,
    number: u64,
    held: impl Fn(&World<N>) -> T,
) {
    (0..100).for_each(|number| cycle(world, number));
    let early = held(world);
    let seen = allocation_counter::measure(|| {
        (100..number).for_each(|number| cycle(world, number));
        world.run_for(Duration::from_secs(2));
    });
    assert_eq!(early, held(world));
    assert!(seen.count_total > 0);
    assert!(
        seen.count_current <= 64 && seen.bytes_current <= 64 << 10,
        "{seen:?}"
    );
}

/// Connect, a call and a write, and an end by either side or by a deadline.
pub(crate) fn cycle<N: Net>(world: &mut World<N>, number: u64) {
    let (here, there) = world.connect();
    world.ask(here, &number.to_le_bytes());
    world.left.fill(3, number as u8);
    world.write(here, 3, SECOND).unwrap();
    let mut outcomes = Vec::new();
    world.run_until(|world| {
        outcomes.extend(world.left.outcomes());
        !outcomes.is_empty()
    });
    assert!(outcomes[0].1.is_ok());
    assert!(world.right.holds(3, number as u8));
    match number % 3 {
        0 => world.left.fabric.close(&mut world.left.nic, here),
        1 => world.right.fabric.close(&mut world.right.nic, there),
        _ => {
            // What is under way ends with it.
            world.call(here, b"?", SECOND);
            world.read(here, 4, SECOND).unwrap();
            world.left.fabric.close(&mut world.left.nic, here);
        }
    }
    let mut ended = [false; 2];
    world.run_until(|world| {
        ended[0] |= world.left.disconnected() == [here];
        ended[1] |= world.right.disconnected() == [there];
        ended == [true; 2]
    });
    world.left.events.clear();
    world.right.events.clear();
    world.left.nic.path.private.clear();
    world.right.nic.path.private.clear();
    // The time-wait state of a connection takes up to a second.
    if number.is_multiple_of(50) {
        world.run_for(Duration::from_secs(2));
    }
}
