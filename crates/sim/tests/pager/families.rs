//! Processes that share memory through fork, and what each does to its own address space.

use super::scene::{self, START, end, read};
use legato_base::{Duration, PAGE_SIZE, PageNumber};
use legato_pager::{PageRange, SpaceId};
use legato_sim::provider::SimNetworkConfig;
use legato_sim::world::{Attaching, Operation, Outcome, World, WorldConfig};

const CACHE: u64 = 512;

pub(super) fn config() -> WorldConfig {
    WorldConfig {
        cache_pages: CACHE,
        attaching: Attaching::ByHand,
        ..WorldConfig::default()
    }
}

pub(super) fn filled(config: WorldConfig, pages: u64) -> (World, PageRange) {
    let (mut world, range) = scene::filled(config, pages);
    world.pass(Duration::from_millis(50)).unwrap();
    (world, range)
}

fn write_all(world: &mut World, thread: usize, range: PageRange, mark: u64) {
    for page in range.start.0..range.end().0 {
        world
            .perform(
                thread,
                Operation::Write(PageNumber(page), page + (mark << 32)),
            )
            .unwrap();
    }
}

fn fork(world: &mut World, thread: usize) -> (SpaceId, usize) {
    let Outcome::Child(child) = world.perform(thread, Operation::Fork).unwrap() else {
        panic!("fork makes a child");
    };
    (child, world.thread_of(child).unwrap())
}

/// A child that pages can leave.
pub(super) fn fork_attached(world: &mut World) -> usize {
    let (space, child) = fork(world, 0);
    world.attach(space);
    child
}

/// Parent and children have what they are to have until the end.
fn end_family(mut world: World, children: impl IntoIterator<Item = usize>, range: PageRange) {
    for child in children {
        world.read_all(child, range).unwrap();
        world.perform(child, Operation::Exit).unwrap();
    }
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

#[test]
fn m14_far_pages_are_shared_by_fork_and_not_copied() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let before = world.counters();
    let (_, child) = fork(&mut world, 0);
    world.pass(Duration::from_millis(5)).unwrap();
    let after = world.counters();
    assert_eq!(after.far_pages_current, before.far_pages_current);
    assert_eq!(after.pages_fetched, before.pages_fetched);
    assert_eq!(after.pages_written, before.pages_written);
    world.perform(child, Operation::Exit).unwrap();
    world.pass(Duration::from_millis(300)).unwrap();
    assert_eq!(world.counters().far_pages_current, before.far_pages_current);
    end(world, &[range]);
}

/// Whoever is killed in `fork` leaves nothing of the child, at whatever point it was: before the pager
/// has read of the child, and after.
#[test]
fn a_fork_that_its_process_does_not_outlive_leaves_no_child() {
    let mut known = [false; 2];
    for points in 0.. {
        let (mut world, range) = filled(config(), 2 * CACHE);
        // The agent has something else to do first.
        world.begin(0, Operation::Fork);
        for thread in 1..3 {
            let page = range.start.plus(thread as u64 * 8);
            world.begin(thread, Operation::Read(page));
        }
        // One point in time at which something happens after the other.
        for _ in 0..points {
            world.pass(Duration::from_nanos(1)).unwrap();
        }
        if world.forks() > 0 {
            break;
        }
        world.kill_process(SpaceId::OWN);
        let report = world.finish().unwrap();
        known[usize::from(report.counters.children_served > 0)] = true;
    }
    assert_eq!(known, [true; 2]);
}

#[test]
fn m14_a_page_that_parent_and_child_evict_is_two_far_pages() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let (space, child) = fork(&mut world, 0);
    world.attach(space);
    write_all(&mut world, 0, range, 1);
    write_all(&mut world, child, range, 2);
    world.pass(Duration::from_millis(50)).unwrap();
    let both = world.counters().far_pages_current;
    assert!(
        (5 * CACHE..=6 * CACHE).contains(&both),
        "{both} far pages for two times {}",
        range.count
    );
    for page in (START..range.end().0).step_by(5) {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(page + (1 << 32)));
        let own = Outcome::Value(page + (2 << 32));
        assert_eq!(read(&mut world, child, page), own);
    }
    // Each is freed with its owner.
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.pass(Duration::from_millis(50)).unwrap();
    let left = world.counters().far_pages_current;
    assert!((2 * CACHE..=3 * CACHE).contains(&left), "{left}");
    world.read_all(child, range).unwrap();
    world.perform(child, Operation::Exit).unwrap();
    world.pass(Duration::from_millis(300)).unwrap();
    assert_eq!(world.counters().far_pages_current, 0);
    end(world, &[]);
}

/// Lost: the limit. What a child was given did not count before pages could leave it, so that there
/// seemed to be room for the rest, and it got all of it at once.
#[test]
fn m14_a_child_that_pages_cannot_leave_waits_when_memory_is_short() {
    let (mut world, range) = filled(config(), 6 * CACHE);
    let (space, child) = fork(&mut world, 0);
    let forked = world.now();
    let mut given = 0;
    for page in START..range.end().0 {
        assert_eq!(read(&mut world, child, page), Outcome::Value(page));
        if world.now().since(forked) > Duration::from_secs(1) {
            break;
        }
        given += 1;
    }
    // What it shares with its parent, and a MiB.
    assert!((256..CACHE + 256 + 32).contains(&given), "{given} pages");
    world.attach(space);
    world.read_all(child, range).unwrap();
    world.perform(child, Operation::Exit).unwrap();
    end(world, &[range]);
}

/// Wrong: a page that was still there was taken for resident although its dropping had been announced,
/// before pages could leave the child. So it left with its old content, and came back with it.
#[test]
fn m14_what_a_child_drops_late_does_not_come_back() {
    let (mut world, range) = filled(config(), 2 * CACHE);
    let (space, child) = fork(&mut world, 0);
    let pages = (START..range.end().0).map(PageNumber);
    let shared = pages.rev().find(|&page| world.is_present(page)).unwrap();
    let dropped = PageRange::new(shared, 1);
    world.begin(child, Operation::DontNeed(dropped));
    world.starve(child, Duration::from_secs(1));
    world.pass(Duration::from_millis(1)).unwrap();
    world.attach(space);
    let other = world.map(START * 8, CACHE).unwrap();
    for version in 1..4 {
        write_all(&mut world, 0, other, version);
    }
    world.wait_for(child).unwrap();
    assert_eq!(read(&mut world, child, shared.0), Outcome::Value(0));
    world.perform(child, Operation::Exit).unwrap();
    end(world, &[range, other]);
}

#[test]
fn m14_grandchildren_inherit_what_is_far() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let third = |part: u64| PageRange::new(range.start.plus(part * CACHE), CACHE);
    let (space, child) = fork(&mut world, 0);
    world.attach(space);
    write_all(&mut world, child, third(1), 1);
    let (space, grandchild) = fork(&mut world, child);
    write_all(&mut world, grandchild, third(2), 2);
    world.attach(space);
    write_all(&mut world, 0, third(0), 3);
    world.perform(child, Operation::Exit).unwrap();
    for page in START..range.end().0 {
        let mark = match (page - START) / CACHE {
            0 => 0,
            part => part << 32,
        };
        assert_eq!(
            read(&mut world, grandchild, page),
            Outcome::Value(page + mark)
        );
    }
    world.perform(grandchild, Operation::Exit).unwrap();
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

#[test]
fn m14_a_child_goes_on_when_the_program_ends() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    // Some of it is on its way out when the space is copied.
    write_all(&mut world, 0, PageRange::new(range.start, CACHE), 1);
    let (space, child) = fork(&mut world, 0);
    world.perform(0, Operation::Exit).unwrap();
    world.read_all(child, range).unwrap();
    world.attach(space);
    let child = world.thread_of(space).unwrap();
    write_all(&mut world, child, range, 2);
    let (_, grandchild) = fork(&mut world, child);
    world.perform(child, Operation::Exit).unwrap();
    world.read_all(grandchild, range).unwrap();
    world.perform(grandchild, Operation::Exit).unwrap();
    world.pass(Duration::from_millis(300)).unwrap();
    assert_eq!(world.counters().far_pages_current, 0);
    end(world, &[]);
}

/// Pages are on their way for long.
fn on_a_slow_network() -> WorldConfig {
    let network = SimNetworkConfig {
        latency: Duration::from_micros(300),
        bytes_per_second: Some(50_000_000),
        ..WorldConfig::default().network
    };
    WorldConfig {
        network,
        ..config()
    }
}

#[test]
fn m14_fork_while_pages_are_on_their_way() {
    let (mut world, range) = filled(on_a_slow_network(), 3 * CACHE);
    for round in 1..6u64 {
        let part = PageRange::new(range.start.plus(round * 200), 300);
        write_all(&mut world, 0, part, round);
        // A fetch and its prefetches are under way.
        world.begin(1, Operation::Read(range.start.plus(round)));
        world.pass(Duration::from_micros(100)).unwrap();
        let (space, child) = fork(&mut world, 0);
        if round % 2 == 0 {
            world.attach(space);
        }
        world.wait_for(1).unwrap();
        write_all(&mut world, 0, part, round + 16);
        world.read_all(child, range).unwrap();
        world.perform(child, Operation::Exit).unwrap();
    }
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

/// Eight children that are forked while pages are being written have them from the one write of each.
#[test]
fn m14_children_forked_while_pages_are_written_share_what_is_written() {
    let mut config = on_a_slow_network();
    config.network.bytes_per_second = Some(20_000_000);
    let (mut world, range) = filled(config, 3 * CACHE);
    let part = PageRange::new(range.start, 2 * CACHE);
    write_all(&mut world, 0, part, 1);
    // Pages leave several at a time: until more have than are written at once.
    let mut rest = part.end().0..range.end().0;
    let (evicted, written) = loop {
        let counters = world.counters();
        let (evicted, written) = (counters.pages_evicted, counters.pages_written);
        if evicted - written > 8 {
            break (evicted, written);
        }
        let page = PageRange::new(PageNumber(rest.next().unwrap()), 1);
        write_all(&mut world, 0, page, 1);
    };
    let on_their_way = evicted - written;
    let children: Vec<usize> = (0..8).map(|_| fork(&mut world, 0).1).collect();
    world.pass(Duration::from_millis(100)).unwrap();
    let counters = world.counters();
    // Some are written before the first fork is announced.
    assert!((1..=on_their_way).contains(&counters.kept_pages_peak));
    assert_eq!(counters.kept_pages_current, 0);
    let later = counters.pages_evicted - evicted;
    let written = counters.pages_written - written;
    assert!(
        written < 2 * on_their_way + later,
        "{written} of {on_their_way} and {later}"
    );
    end_family(world, children, range);
}

#[test]
fn m14_what_parent_and_children_share_is_written_once() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let part = PageRange::new(range.start, CACHE / 2);
    write_all(&mut world, 0, part, 1);
    let before = world.counters();
    let children = [(); 3].map(|()| fork_attached(&mut world));
    let rest = PageRange::new(part.end(), range.count - part.count);
    for &child in children.iter().chain(&[0]) {
        world.read_all(child, rest).unwrap();
    }
    world.pass(Duration::from_millis(50)).unwrap();
    let after = world.counters();
    let written = after.pages_written - before.pages_written;
    assert!((CACHE / 4..CACHE).contains(&written), "{written} pages");
    assert!(after.far_pages_current <= range.count);
    end_family(world, children, range);
}

/// Lost: the limit. A page that children share frees nothing until it has left all of them, but leaves a
/// copy each time: so many left at once that all frames were full of them.
#[test]
fn m14_pages_that_children_share_leave_no_faster_than_they_are_written() {
    let (mut world, range) = filled(on_a_slow_network(), 2 * CACHE);
    let children = [(); 3].map(|()| fork_attached(&mut world));
    for (mark, &child) in (1..).zip(&children) {
        write_all(&mut world, child, range, mark);
    }
    let peak = world.counters().cache_bytes_peak / PAGE_SIZE as u64;
    assert!(peak < CACHE + CACHE / 4, "{peak} pages were local");
    end_family(world, children, range);
}

#[test]
fn m16_a_range_shrinks_and_grows_in_place() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let tail = PageRange::new(range.start.plus(2 * CACHE), CACHE);
    let far = world.counters().far_pages_current;
    world.perform(0, Operation::Unmap(tail)).unwrap();
    world.pass(Duration::from_millis(5)).unwrap();
    assert!(world.counters().far_pages_current < far);
    world.perform(0, Operation::Grow(tail)).unwrap();
    for page in tail.start.0..tail.end().0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(0));
    }
    write_all(&mut world, 0, tail, 1);
    for page in START..tail.start.0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(page));
    }
    world.read_all(0, tail).unwrap();
    end(world, &[range]);
}

#[test]
fn m16_a_range_moves_onto_evicted_pages() {
    let (mut world, range) = filled(config(), 4 * CACHE);
    let from = PageRange::new(range.start.plus(2 * CACHE), CACHE);
    let remap = Operation::Remap {
        from,
        to: range.start,
        grow: 100,
    };
    world.perform(0, remap).unwrap();
    for step in 0..CACHE {
        let value = Outcome::Value(from.start.0 + step);
        assert_eq!(read(&mut world, 0, START + step), value);
    }
    for step in CACHE..CACHE + 100 {
        assert_eq!(read(&mut world, 0, START + step), Outcome::Value(0));
    }
    for page in START + CACHE + 100..from.start.0 {
        assert_eq!(read(&mut world, 0, page), Outcome::Value(page));
    }
    let last = PageRange::new(range.start.plus(3 * CACHE), CACHE);
    world.read_all(0, last).unwrap();
    let first = PageRange::new(range.start, 2 * CACHE);
    end(world, &[first, last]);
}

#[test]
fn m17_freed_pages_hold_what_they_held_or_zeros() {
    let (mut world, range) = filled(config(), 3 * CACHE);
    let (mut old, mut zero) = (0, 0);
    for round in 1..5u64 {
        world.perform(0, Operation::Free(range)).unwrap();
        // The world's own model knows which of the two it may be, and that zeros stay zeros.
        for _ in 0..2 {
            for page in START..range.end().0 {
                match read(&mut world, 0, page) {
                    Outcome::Value(0) => zero += 1,
                    _ => old += 1,
                }
            }
        }
        write_all(&mut world, 0, range, round);
        world.read_all(0, range).unwrap();
    }
    assert!(old > 0 && zero > 0, "{old} old, {zero} zero");
    end(world, &[range]);
}
