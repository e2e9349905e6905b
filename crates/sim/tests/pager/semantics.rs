//! What programs do to their address space, in the simulated world.

use super::scene::{START, end, filled, read};
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, Duration, PageNumber};
use legato_pager::PageRange;
use legato_sim::provider::SimNetworkConfig;
use legato_sim::world::{Operation, Outcome, World, WorldConfig};

const CACHE: u64 = 512;

fn config() -> WorldConfig {
    WorldConfig {
        cache_pages: CACHE,
        ..WorldConfig::default()
    }
}

/// Nobody is told that a machine stands still.
fn undetected() -> WorldConfig {
    let network = SimNetworkConfig {
        detection_time: None,
        ..SimNetworkConfig::default()
    };
    WorldConfig {
        network,
        ..config()
    }
}

fn fork(world: &mut World) -> usize {
    let Outcome::Child(child) = world.perform(0, Operation::Fork).unwrap() else {
        panic!("fork makes a child");
    };
    world.thread_of(child).unwrap()
}

// P-23
#[test]
fn m14_parent_and_child_see_their_own_writes_only() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let child = fork(&mut world);
    for page in (START..range.end().0).step_by(3) {
        world
            .perform(0, Operation::Write(PageNumber(page), page + (1 << 32)))
            .unwrap();
        world
            .perform(
                child,
                Operation::Write(PageNumber(page + 1), page + (2 << 32)),
            )
            .unwrap();
    }
    // Everything that the parent changed leaves it, to slots of its own.
    world.read_all(0, range).unwrap();
    for page in (START..range.end().0).step_by(3) {
        assert_eq!(read(&mut world, child, page), Outcome::Value(page));
        assert_eq!(
            read(&mut world, child, page + 1),
            Outcome::Value(page + (2 << 32))
        );
        assert_eq!(read(&mut world, 0, page), Outcome::Value(page + (1 << 32)));
        assert_eq!(read(&mut world, 0, page + 1), Outcome::Value(page + 1));
    }
    let grandchild = {
        let Outcome::Child(space) = world.perform(child, Operation::Fork).unwrap() else {
            panic!("fork makes a child");
        };
        world.thread_of(space).unwrap()
    };
    world.perform(child, Operation::Exit).unwrap();
    world.read_all(grandchild, range).unwrap();
    world.perform(grandchild, Operation::Exit).unwrap();
    end(world, &[range]);
}

#[test]
fn m14_a_child_outlives_what_its_parent_unmaps() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let child = fork(&mut world);
    world.perform(0, Operation::Unmap(range)).unwrap();
    let again = world.map(START, 3 * CACHE).unwrap();
    world.write_all(again, |page| page + (3 << 32)).unwrap();
    world.read_all(child, range).unwrap();
    world.perform(child, Operation::Exit).unwrap();
    world.pass(Duration::from_millis(300)).unwrap();
    assert_eq!(world.pager().children(), 0);
    world.read_all(0, again).unwrap();
    end(world, &[again]);
}

#[test]
fn m16_contents_follow_a_moved_range_and_new_pages_read_zero() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let moved = PageRange::new(PageNumber(START * 16), range.count + 40);
    let remap = Operation::Remap {
        from: range,
        to: moved.start,
        grow: 40,
    };
    world.perform(0, remap).unwrap();
    for step in 0..range.count {
        let value = Outcome::Value(START + step);
        assert_eq!(read(&mut world, 0, moved.start.0 + step), value);
    }
    for step in range.count..moved.count {
        assert_eq!(read(&mut world, 0, moved.start.0 + step), Outcome::Value(0));
    }
    // Half of it shrinks away; what is mapped at the old place is new.
    let half = PageRange::new(moved.start.plus(CACHE), moved.count - CACHE);
    world.perform(0, Operation::Unmap(half)).unwrap();
    let fresh = world.map(START, CACHE).unwrap();
    for page in START..fresh.end().0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(0));
    }
    let rest = PageRange::new(moved.start, CACHE);
    world.read_all(0, rest).unwrap();
    end(world, &[rest, fresh]);
}

/// Lost: programs that were ended because a page of zeros was on its way to where memory came.
#[test]
fn m16_a_thread_may_touch_a_target_before_the_move_is_announced() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let target = world.map(START * 16, range.count).unwrap();
    let (mut from, mut to) = (range, target);
    for round in 0..64 {
        // Some of the pages are out.
        world.read_all(0, from).unwrap();
        world.begin(
            0,
            Operation::Remap {
                from,
                to: to.start,
                grow: 0,
            },
        );
        world.begin(1, Operation::Read(to.start.plus(round * 16)));
        world.wait_for(0).unwrap();
        world.wait_for(1).unwrap();
        // What has moved goes over something again.
        let free = world.map(from.start.0, from.count).unwrap();
        world.write_all(free, |page| page << 8).unwrap();
        (from, to) = (to, free);
    }
    end(world, &[range, target]);
}

#[test]
fn m17_pages_that_are_not_needed_read_zero() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    world.perform(0, Operation::DontNeed(range)).unwrap();
    world.pass(Duration::from_millis(20)).unwrap();
    assert_eq!(world.counters().far_pages_current, 0);
    for page in START..range.end().0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(0));
    }
    end(world, &[range]);
}

// P-24
#[test]
fn m18_late_completions_do_not_reach_a_range_that_is_mapped_again() {
    let network = SimNetworkConfig {
        latency: Duration::from_micros(500),
        ..SimNetworkConfig::default()
    };
    let (mut world, mut range) = filled(
        WorldConfig {
            network,
            ..config()
        },
        2 * CACHE,
    );
    for round in 0..12u64 {
        // Writes of the pages that were dirtied last are in flight, and so is what this touches.
        let part = PageRange::new(range.start.plus(round * 64), 64);
        if let Some(page) = absent(&world, range, part) {
            world.begin(1, Operation::Read(page));
        }
        world.pass(Duration::from_micros(200)).unwrap();
        world.perform(0, Operation::Unmap(part)).unwrap();
        world.map(part.start.0, part.count).unwrap();
        for page in part.start.0..part.end().0 {
            assert_eq!(read(&mut world, 0, page), Outcome::Value(0));
        }
        world.wait_for(1).unwrap();
        world.write_all(part, |page| page + (round << 32)).unwrap();
        world.read_all(0, part).unwrap();
    }
    world.read_all(0, range).unwrap();
    range.count = 2 * CACHE;
    end(world, &[range]);
}

/// A page outside `part` that is not present: its fetch brings others with it.
fn absent(world: &World, range: PageRange, part: PageRange) -> Option<PageNumber> {
    (range.start.0..range.end().0)
        .map(PageNumber)
        .find(|&page| !part.contains(page) && !world.is_present(page))
}

// P-18
#[test]
fn m18_fetches_and_write_backs_in_flight_end_with_their_range() {
    let network = SimNetworkConfig {
        latency: Duration::from_micros(500),
        ..SimNetworkConfig::default()
    };
    let (mut world, range) = filled(
        WorldConfig {
            network,
            ..config()
        },
        2 * CACHE,
    );
    // A reader walks on, so that prefetches are under way, and everything goes at once.
    world.read_all(0, PageRange::new(range.start, 40)).unwrap();
    world.perform(1, Operation::Unmap(range)).unwrap();
    let again = world.map(START, 2 * CACHE).unwrap();
    for page in START..again.end().0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(0));
    }
    world.pass(Duration::from_millis(20)).unwrap();
    assert_eq!(world.counters().far_pages_current, 0);
    end(world, &[again]);
}

/// P-18: the connection to a frozen node ends. What became of a fetch is known at once, and that the NIC has
/// done with its frame later: until then nobody is told, and afterwards the frame serves others.
#[test]
fn m18_a_fetch_that_has_failed_is_decided_when_it_is_quiet() {
    let (mut world, range) = filled(undetected(), 6 * CACHE);
    world.pass(Duration::from_millis(50)).unwrap();
    world.freeze_node(0);
    world.allow_lost_pages();
    // The pages of the other node come.
    for page in (START..range.end().0).map(PageNumber) {
        if world.is_present(page) {
            continue;
        }
        world.begin(1, Operation::Read(page));
        world.pass(Duration::from_millis(5)).unwrap();
        if world.is_busy(1) {
            break;
        }
        world.wait_for(1).unwrap();
    }
    // Nothing completes before the silent peer is given up, after 10 s, and its queue pair is destroyed,
    // a tenth of that later. But what became of the fetch is said after a 200th.
    world.delay_completions(Duration::from_millis(10_700), Duration::from_secs(12));
    assert!(world.is_busy(1));
    let before = world.fabric_counters();
    let failed = move |world: &World| {
        let counters = world.fabric_counters();
        counters.operations_failed > before.operations_failed
    };
    world.run_until(failed).unwrap();
    let counters = world.fabric_counters();
    assert_eq!(counters.operations_quiesced, before.operations_quiesced);
    world.pass(Duration::from_millis(100)).unwrap();
    let counters = world.fabric_counters();
    assert_eq!(counters.operations_quiesced, before.operations_quiesced);
    assert!(world.is_busy(1), "it is not known what is in its frame");
    assert_eq!(world.wait_for(1).unwrap(), Outcome::BusError);
    let counters = world.fabric_counters();
    assert!(counters.operations_quiesced > before.operations_quiesced);
    world.perform(0, Operation::DontNeed(range)).unwrap();
    world.write_all(range, |page| page + (5 << 32)).unwrap();
    world.read_all(1, range).unwrap();
    // What is left there ends with it.
    world.kill_node(0);
    end(world, &[range]);
}

/// P-18: the same of write-backs. Until the NIC has done with a frame it is neither written once more nor given
/// to another page, whether its page has gone back to the program meanwhile or not.
#[test]
fn m18_a_write_back_that_has_failed_is_decided_when_it_is_quiet() {
    let (mut world, range) = filled(undetected(), 2 * CACHE);
    world.pass(Duration::from_millis(50)).unwrap();
    let present = (START..range.end().0).filter(|&page| world.is_present(PageNumber(page)));
    let changed: Vec<_> = present.collect();
    let value = |page| page + (7 << 32);
    let write = |world: &mut World, page| {
        let operation = Operation::Write(PageNumber(page), value(page));
        assert_eq!(world.perform(0, operation).unwrap(), Outcome::Done);
    };
    for &page in &changed {
        write(&mut world, page);
    }
    world.freeze_node(0);
    world.allow_lost_pages();
    // As above.
    world.delay_completions(Duration::from_millis(10_700), Duration::from_secs(12));
    let before = world.fabric_counters();
    world.set_limit(Bytes::pages(CACHE / 2));
    world.pass(Duration::from_millis(5)).unwrap();
    let under_way = world.fabric_counters().operations_started - before.operations_started;
    assert!(under_way > 4, "{under_way}");
    // Some of their pages are touched again, for which there is room.
    world.set_limit(Bytes::pages(CACHE));
    let victims = changed
        .iter()
        .filter(|&&page| !world.is_present(PageNumber(page)));
    let victims: Vec<_> = victims.copied().collect();
    for &page in victims.iter().step_by(2) {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(value(page)));
    }
    let seen = |world: &World| {
        let counters = world.fabric_counters();
        let frames = world.pager().frames_used();
        let [started, quiet] = [counters.operations_started, counters.operations_quiesced];
        (started, quiet, frames)
    };
    let then = seen(&world);
    assert_eq!(then.1, before.operations_quiesced);
    let failed =
        move |world: &World| world.fabric_counters().operations_failed > before.operations_failed;
    world.run_until(failed).unwrap();
    world.pass(Duration::from_millis(100)).unwrap();
    assert_eq!(seen(&world), then);
    let quiet = move |world: &World| world.fabric_counters().operations_quiesced > then.1;
    world.run_until(quiet).unwrap();
    for &page in &changed {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(value(page)));
    }
    // Completions come at their time again.
    world.pass(Duration::from_secs(24)).unwrap();
    world.kill_node(0);
    end(world, &[range]);
}

// P-27
#[test]
fn m46_pages_of_a_lost_node_give_sigbus_and_nothing_else() {
    let (mut world, range) = filled(config(), 6 * CACHE);
    world.pass(Duration::from_millis(50)).unwrap();
    world.kill_node(0);
    let mut lost = 0;
    for page in START..range.end().0 {
        match read(&mut world, 0, page) {
            Outcome::BusError => lost += 1,
            outcome => assert_eq!(outcome, Outcome::Value(page)),
        }
    }
    assert!(
        lost > 0 && lost < range.count,
        "{lost} pages lost of {}",
        range.count
    );
    assert_eq!(world.counters().pages_lost, lost);
    // The other node takes new pages, and a lost page can be used again once it is given up.
    world.perform(0, Operation::DontNeed(range)).unwrap();
    world.write_all(range, |page| page + (5 << 32)).unwrap();
    world.read_all(1, range).unwrap();
    end(world, &[range]);
}

/// Half of the pages of each extent are given up: none may go back to its node. All are: they do.
#[test]
fn m17_an_extent_goes_back_with_its_last_page() {
    /// Slots of an extent, and their bytes.
    const EXTENT: u64 = 2048;
    const BYTES: u64 = EXTENT * SLOT_STRIDE as u64;
    let config = WorldConfig {
        nodes: 1,
        ..config()
    };
    let (mut world, range) = filled(config, 8 * EXTENT);
    world.pass(Duration::from_millis(50)).unwrap();
    for page in range.start.0..range.end().0 {
        if page % 2 == 0 {
            let one = PageRange::new(PageNumber(page), 1);
            world.perform(0, Operation::DontNeed(one)).unwrap();
        }
    }
    // Pages leave, which is when the pager looks at its extents.
    world.read_all(0, range).unwrap();
    world.pass(Duration::from_secs(1)).unwrap();
    let used = world.node_bytes_used();
    assert!(used >= 7 * BYTES, "{used}");
    let rest = PageRange::new(range.start, 64);
    let given_up = PageRange::new(rest.end(), range.count - rest.count);
    world.perform(0, Operation::DontNeed(given_up)).unwrap();
    world.read_all(0, rest).unwrap();
    world.pass(Duration::from_secs(1)).unwrap();
    let given_back = used - world.node_bytes_used();
    assert!(given_back >= 4 * BYTES, "{given_back}");
    end(world, &[range]);
}

/// P-11. Lost: the node. An extent whose pages had gone was given back while one of them was still being
/// fetched; the answer was lost, and when the fetch was repeated there was no such memory.
#[test]
fn an_extent_is_not_given_back_while_a_fetch_from_it_is_repeated() {
    let mut config = WorldConfig {
        nodes: 1,
        ..config()
    };
    // A request is repeated every 0.54 s.
    config.network.timeout = 17;
    let (mut world, range) = filled(config, 20 * CACHE);
    world.pass(Duration::from_millis(50)).unwrap();
    // The extents that came last are the first to go. Newer pages than this are still here, as victims.
    let page = PageNumber(range.end().0 - 2 * CACHE);
    let used = world.node_bytes_used();
    // Extents go after half a second, one by one.
    world.lose_what_is_sent_by(0, Duration::from_millis(700));
    world.begin(1, Operation::Read(page));
    world.pass(Duration::from_micros(200)).unwrap();
    assert!(world.is_busy(1));
    world.perform(0, Operation::DontNeed(range)).unwrap();
    world.pass(Duration::from_secs(3)).unwrap();
    world.wait_for(1).unwrap();
    assert!(world.node_bytes_used() < used, "they are given back");
    assert_eq!(world.fabric_counters().connections_reset, 0);
    end(world, &[range]);
}
