//! The data path of the pager in the simulated world, scenario by scenario.

use super::scene::{self, START, end, filled};
use legato_base::timeouts::FAR_MEMORY;
use legato_base::{Bytes, Duration, PageNumber, Random};
use legato_pager::{FarShortage, PageRange, PagerEvent};
use legato_sim::provider::{Personality, SimNetworkConfig};
use legato_sim::world::{FailureKind, Operation, Outcome, Registering, World, WorldConfig};
use legato_verbs::Prepared;

const CACHE: u64 = 512;

fn config() -> WorldConfig {
    WorldConfig {
        cache_pages: CACHE,
        ..WorldConfig::default()
    }
}

fn slow(bytes_per_second: u64) -> WorldConfig {
    let network = SimNetworkConfig {
        latency: Duration::from_micros(20),
        bytes_per_second: Some(bytes_per_second),
        ..SimNetworkConfig::default()
    };
    WorldConfig {
        network,
        ..config()
    }
}

fn read(world: &mut World, page: u64) -> Outcome {
    scene::read(world, 0, page)
}

/// Wrong: the time of a fault whose page came without news of the program went on until there were some.
#[test]
fn the_time_of_a_fault_ends_when_its_page_is_there() {
    let (mut world, range) = filled(config(), 4 * CACHE);
    for page in [0, 7, 99, 500] {
        world.pass(Duration::from_secs(10)).unwrap();
        read(&mut world, range.start.0 + page);
    }
    let slowest = world.slowest_fault();
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    end(world, &[range]);
}

// P-19
#[test]
fn m02_patterns_come_back_in_random_order() {
    let (mut world, range) = filled(config(), 4 * CACHE);
    let mut random = Random::from_seed(2);
    for _ in 0..3 * range.count {
        let page = START + random.below(range.count);
        assert_eq!(read(&mut world, page), Outcome::Value(page));
    }
    assert!(world.counters().pages_fetched > range.count);
    world.pass(Duration::from_millis(50)).unwrap();
    let (pager, fabric) = (world.counters(), world.fabric_counters());
    let moved = pager.pages_fetched + pager.pages_written;
    assert_eq!(fabric.operations_completed, moved, "one for each page");
    end(world, &[range]);
}

/// Nothing can be said at once of what was registered, and by the time that it can be there is no need to
/// look for more: the program has got a larger share.
#[test]
fn memory_that_was_registered_while_its_space_was_changing_is_taken_charge_of() {
    let config = WorldConfig {
        registering: Registering::ByHand,
        ..config()
    };
    let mut world = World::new(config).unwrap();
    world.set_limit(Bytes::pages(CACHE / 4));
    let range = world.map(START, CACHE / 2).unwrap();
    let mut pages = (range.start.0..range.end().0).map(PageNumber);
    while world.looks() == 0 {
        let page = pages.next().expect("it looks when memory is short");
        world.perform(0, Operation::Write(page, page.0)).unwrap();
        // It looks now, and not while a thread waits for it.
        world.pass(Duration::from_millis(20)).unwrap();
    }
    world.set_limit(Bytes::pages(CACHE));
    world.end_registering();
    for page in pages {
        world.perform(0, Operation::Write(page, page.0)).unwrap();
    }
    let registered = world.counters().registered_bytes;
    assert_eq!(registered, Bytes::pages(range.count).0);
    end(world, &[range]);
}

/// However full its cache is: nothing comes as long as nobody runs. What comes first when somebody does
/// is fresh memory, of which nobody tells.
#[test]
fn an_agent_sleeps_while_its_program_does_and_wakes_with_it() {
    let (mut world, range) = filled(config(), 2 * CACHE);
    for round in 0..20 {
        world.pass(Duration::from_millis(100)).unwrap();
        let before = world.agent_turns();
        world.pass(Duration::from_secs(1)).unwrap();
        let turns = world.agent_turns() - before;
        assert!(turns <= 100, "{turns} turns in a second");
        let fresh = world.map(0x10_0000 * (round + 1), 4 * CACHE).unwrap();
        world.write_all(fresh, |page| page).unwrap();
        world.perform(0, Operation::Unmap(fresh)).unwrap();
    }
    end(world, &[range]);
}

/// Its victims were the best that it could have used next. In their room memory may grow, so that it is not
/// measured as often.
#[test]
fn a_program_that_computes_on_local_memory_gives_its_victims_up() {
    const PAGES: u64 = 32 * CACHE;
    let config = WorldConfig {
        cache_pages: PAGES,
        ..config()
    };
    let (mut world, range) = filled(config, 2 * PAGES);
    let page = range.start.0;
    let turns_of_a_second = |world: &mut World| {
        let before = world.agent_turns();
        for _ in 0..1000 {
            assert_eq!(read(world, page), Outcome::Value(page));
            world.pass(Duration::from_millis(1)).unwrap();
        }
        world.agent_turns() - before
    };
    let busy = turns_of_a_second(&mut world);
    turns_of_a_second(&mut world);
    let quiet = turns_of_a_second(&mut world);
    assert!(quiet * 4 < busy * 3, "{quiet} {busy}");
    let local = world.counters().cache_bytes_current;
    assert!(local < Bytes::pages(PAGES * 9 / 10).0, "{local}");
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

#[test]
fn m03_fresh_memory_reads_zero_and_nothing_is_sent() {
    let mut world = World::new(config()).unwrap();
    let range = world.map(START, 4 * CACHE).unwrap();
    for page in START..range.end().0 {
        assert_eq!(read(&mut world, page), Outcome::Value(0));
    }
    let counters = world.counters();
    assert!(
        counters.pages_evicted > CACHE,
        "far more was read than fits"
    );
    assert_eq!((counters.pages_written, counters.far_pages_peak), (0, 0));
    end(world, &[range]);
}

#[test]
fn m04_an_unchanged_page_is_evicted_without_a_write() {
    let (mut world, range) = filled(config(), 4 * CACHE);
    world.read_all(0, range).unwrap();
    world.pass(Duration::from_millis(50)).unwrap();
    let before = world.counters();
    world.read_all(0, range).unwrap();
    world.pass(Duration::from_millis(50)).unwrap();
    let after = world.counters();
    // Each page was written once, when it left for the first time.
    assert!(after.pages_written <= range.count);
    assert!(after.pages_clean_dropped > before.pages_clean_dropped + CACHE);
    end(world, &[range]);
}

// P-22
#[test]
fn m06_a_page_that_is_being_written_back_is_newest_when_touched() {
    let (mut world, range) = filled(slow(50_000_000), 2 * CACHE);
    let mut hits = 0;
    for round in 1..5u64 {
        for page in (range.start.0..range.end().0).rev() {
            if world.is_present(PageNumber(page)) {
                continue;
            }
            let before = world.counters().faults_victim_hit;
            let value = page + (round << 32);
            world
                .perform(0, Operation::Write(PageNumber(page), value))
                .unwrap();
            assert_eq!(read(&mut world, page), Outcome::Value(value));
            hits += world.counters().faults_victim_hit - before;
        }
    }
    assert!(hits > 20, "only {hits} pages were touched on their way out");
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

/// Pages that have left the program and whose write has not ended.
fn backlog(world: &mut World) -> u64 {
    let counters = world.counters();
    let left = counters.pages_evicted - counters.pages_zero_dropped - counters.pages_clean_dropped;
    left.saturating_sub(counters.pages_written + counters.faults_victim_hit)
}

#[test]
fn m07_a_fetch_goes_ahead_of_queued_write_backs() {
    // A page takes 21 us on the link.
    let (mut world, range) = filled(slow(200_000_000), 4 * CACHE);
    world.pass(Duration::from_millis(100)).unwrap();
    // The agent has slept, and is awake again.
    read(&mut world, range.end().0 - 1);
    world.pass(Duration::from_millis(1)).unwrap();
    // Fresh pages come faster than old ones leave.
    let other = world.map(START * 8, 2 * CACHE).unwrap();
    let mut random = Random::from_seed(7);
    let mut longest = Duration::ZERO;
    let mut under_load = 0;
    for page in other.start.0..other.end().0 {
        world
            .perform(1, Operation::Write(PageNumber(page), page))
            .unwrap();
        let wanted = START + random.below(range.count);
        if backlog(&mut world) < 64 || world.is_present(PageNumber(wanted)) {
            continue;
        }
        let fetched = world.counters().pages_fetched;
        let since = world.now();
        read(&mut world, wanted);
        if world.counters().pages_fetched > fetched {
            under_load += 1;
            longest = longest.max(world.now().since(since));
        }
    }
    assert!(
        under_load > 10,
        "only {under_load} fetches while writes were queued"
    );
    // The world checks that no fault posts a write.
    // 32 writes may be in flight before it, and later ones pass it on the other node's queue pair. Behind the
    // whole backlog it would be 64 and more.
    assert!(longest < Duration::from_micros(48 * 21 + 200), "{longest}");
    end(world, &[range, other]);
}

#[test]
fn m08_slow_nodes_slow_the_program_and_lose_nothing() {
    let rate = 20_000_000;
    let (mut world, range) = filled(slow(rate), 4 * CACHE);
    // The world has checked the limit at every step.
    let counters = world.counters();
    let bytes = counters.pages_written * 4096;
    assert!(counters.pages_written > 2 * CACHE);
    assert!(world.now().as_nanos() >= bytes * 1_000_000_000 / rate);
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

#[test]
fn m09_a_loop_over_twice_the_cache_misses_like_keep_first() {
    // Large enough that the fixed parts of the budget are a small share.
    let cache_pages = 2048;
    let (mut world, range) = filled(
        WorldConfig {
            cache_pages,
            ..config()
        },
        2 * cache_pages,
    );
    for _ in 0..4 {
        world.read_all(0, range).unwrap();
    }
    let before = world.counters().pages_fetched;
    let rounds = 4;
    for _ in 0..rounds {
        world.read_all(0, range).unwrap();
    }
    let missed = (world.counters().pages_fetched - before) * 100 / (rounds * range.count);
    assert!(
        missed < 76,
        "{missed} % missed: nearer to LRU's 100 % than to 52 %"
    );
    end(world, &[range]);
}

#[test]
fn m10_sequential_access_faults_once_for_many_pages() {
    let (mut world, range) = filled(config(), 8 * CACHE);
    let before = world.counters();
    world.read_all(0, range).unwrap();
    let after = world.counters();
    let (faults, fetched) = (
        after.faults - before.faults,
        after.pages_fetched - before.pages_fetched,
    );
    assert!(fetched > 6 * CACHE);
    assert!(faults * 8 < fetched, "{faults} faults for {fetched} pages");
    end(world, &[range]);
}

#[test]
fn m10_random_access_prefetches_next_to_nothing() {
    let (mut world, range) = filled(config(), 8 * CACHE);
    let before = world.counters();
    let mut random = Random::from_seed(10);
    for _ in 0..range.count {
        read(&mut world, START + random.below(range.count));
    }
    let after = world.counters();
    let prefetched = after.pages_prefetched - before.pages_prefetched;
    let fetched = after.pages_fetched - before.pages_fetched;
    assert!(
        prefetched * 20 < fetched,
        "{prefetched} of {fetched} prefetched"
    );
    end(world, &[range]);
}

#[test]
fn m10_unused_prefetches_are_counted() {
    let (mut world, range) = filled(config(), 8 * CACHE);
    let before = world.counters();
    // Eight pages in a row and then elsewhere: the last window is never used.
    let mut random = Random::from_seed(11);
    for _ in 0..200 {
        let page = START + random.below(range.count - 8);
        for step in 0..8 {
            read(&mut world, page + step);
        }
    }
    let after = world.counters();
    assert!(after.pages_prefetched > before.pages_prefetched);
    assert!(after.pages_prefetched_unused > before.pages_prefetched_unused);
    assert!(after.pages_prefetched_unused <= after.pages_prefetched);
    end(world, &[range]);
}

/// A thread that waits until a page has made room is not one that waits in vain.
#[test]
fn waiting_for_room_is_not_starving() {
    let mut stalled = 0;
    // In the second one pages are written more slowly than they are used.
    for config in [config(), slow(64 << 20)] {
        let mut world = World::new(config).unwrap();
        let range = world.map(START, 4 * CACHE).unwrap();
        for share in [CACHE, CACHE / 4, CACHE, CACHE / 4] {
            world.set_limit(Bytes::pages(share));
            world.read_all(0, range).unwrap();
            world.write_all(range, |page| page + (share << 32)).unwrap();
        }
        stalled += world.counters().faults_stalled;
        assert!(!world.has_starved());
        end(world, &[range]);
    }
    assert!(stalled > 0);
}

#[test]
fn threads_that_wait_beside_locked_memory_starve() {
    let mut world = World::new(config()).unwrap();
    let range = world.map(START, 2 * CACHE).unwrap();
    world.perform(0, Operation::Lock(range)).unwrap();
    let pages = range.start.0..range.end().0;
    let failed = pages.map(|page| world.perform(0, Operation::Write(PageNumber(page), page)));
    let failures: Vec<_> = failed.filter_map(Result::err).take(1).collect();
    let FailureKind::GaveUp(PagerEvent::NothingToEvict(stuck)) = failures[0].kind else {
        panic!("{failures:?}");
    };
    assert!(stuck.stayed > Bytes::pages(CACHE / 2), "{stuck:?}");
    assert!(world.has_starved());
}

/// It crawled: each time that locked pages were tried again one of the few others left instead, ten in a second, and
/// the program neither went on as it could have nor was ended.
#[test]
fn what_can_leave_beside_locked_memory_takes_turns_or_is_said_not_to_be_enough() {
    let mut enough = Vec::new();
    for locked in (CACHE / 2..CACHE).step_by(16) {
        let mut world = World::new(config()).unwrap();
        let stays = world.map(START, locked).unwrap();
        world.perform(0, Operation::Lock(stays)).unwrap();
        let range = world.map(2 * START, 2 * CACHE).unwrap();
        let all = (stays.start.0..stays.end().0).chain(range.start.0..range.end().0);
        let begin = world.now();
        let mut writes = all.map(|page| world.perform(0, Operation::Write(PageNumber(page), page)));
        let failure = writes.find_map(Result::err);
        enough.push(failure.is_none());
        if let Some(failure) = failure {
            let FailureKind::GaveUp(PagerEvent::NothingToEvict(_)) = failure.kind else {
                panic!("{locked} locked: {failure:?}");
            };
            continue;
        }
        world.read_all(0, range).unwrap();
        let waited = world.now().since(begin);
        assert!(
            waited < Duration::from_secs(1),
            "{locked} locked: {waited:?}"
        );
        end(world, &[range, stays]);
    }
    assert!(
        enough[0] && enough.is_sorted_by_key(|enough| !enough),
        "{enough:?}"
    );
    assert!(enough.contains(&false), "{enough:?}");
}

/// A world whose node offers so much.
fn with_one_node(node_capacity: Bytes) -> World {
    let config = WorldConfig {
        nodes: 1,
        node_capacity,
        ..config()
    };
    World::new(config).unwrap()
}

/// A world whose node has room for half of what the program needs, and the page at whose first touch
/// thread 0 waits for more.
fn with_full_far_memory() -> (World, PageRange, u64) {
    let mut world = with_one_node(Bytes::pages(2 * CACHE));
    let (range, waits_for) = fill_until_it_waits(&mut world);
    (world, range, waits_for)
}

/// What thread 0 writes, and the page at whose first touch it waits.
fn fill_until_it_waits(world: &mut World) -> (PageRange, u64) {
    let range = world.map(START, 8 * CACHE).unwrap();
    for page in range.start.0..range.end().0 {
        world.begin(0, Operation::Write(PageNumber(page), page));
        world.pass(Duration::from_millis(10)).unwrap();
        if world.take_outcome(0).is_none() {
            return (range, page);
        }
    }
    panic!("there was room for everything");
}

/// Waits for the page, writes all that come after it, and reads them all.
fn go_on(mut world: World, range: PageRange, waits_for: u64) {
    assert_eq!(world.wait_for(0).unwrap(), Outcome::Done);
    for page in waits_for + 1..range.end().0 {
        let write = Operation::Write(PageNumber(page), page);
        world.perform(0, write).unwrap();
    }
    world.read_all(0, range).unwrap();
    end(world, &[range]);
}

/// Lost: a node that had once said that it is full was never asked again, and the program was ended
/// though another one had given room back.
#[test]
fn a_program_that_waits_for_far_memory_gets_what_others_give_back() {
    let (mut world, range, waits_for) = with_full_far_memory();
    world.pass(Duration::from_secs(8)).unwrap();
    world.resize_node(0, Bytes::mib(64));
    go_on(world, range, waits_for);
}

/// P-10. Lost: a node that refused an extent for want of memory was given up, and all that it held with it.
#[test]
fn a_node_whose_system_gives_no_more_memory_keeps_what_it_has() {
    let mut world = with_one_node(Bytes::mib(64));
    world.limit_node_memory(0, Some(Bytes::pages(2 * CACHE)));
    let (range, waits_for) = fill_until_it_waits(&mut world);
    world.pass(Duration::from_secs(8)).unwrap();
    world.limit_node_memory(0, None);
    go_on(world, range, waits_for);
}

/// P-101. Lost: both nodes, for an extent that a process with as many mappings as it may have could not map.
#[test]
fn an_extent_that_cannot_be_prepared_is_refused_alone() {
    let mut world = with_one_node(Bytes::mib(64));
    let range = world.map(START, 16 * CACHE).unwrap();
    let write = |world: &mut World, page| world.begin(0, Operation::Write(PageNumber(page), page));
    let mut page = START;
    // Until something has left, so that an extent is there.
    while world.counters().pages_written == 0 {
        write(&mut world, page);
        world.pass(Duration::from_millis(10)).unwrap();
        assert_eq!(world.take_outcome(0), Some(Outcome::Done));
        page += 1;
    }
    let extents = world.node_counters(0).extents_allocated;
    assert!(extents > 0);
    world.set_prepared(Prepared::Refused);
    loop {
        write(&mut world, page);
        world.pass(Duration::from_millis(10)).unwrap();
        if world.take_outcome(0).is_none() {
            break;
        }
        page += 1;
    }
    world.pass(Duration::from_secs(5)).unwrap();
    let counters = world.node_counters(0);
    assert_eq!(
        counters.extents_allocated - counters.extents_released,
        extents
    );
    assert!(counters.extents_released > 0, "given back at once");
    world.set_prepared(Prepared::Yes);
    go_on(world, range, page);
}

#[test]
fn who_cannot_map_far_memory_ends_for_that_reason() {
    let mut world = with_one_node(Bytes::mib(64));
    world.set_prepared(Prepared::Refused);
    fill_until_it_waits(&mut world);
    let failure = world.wait_for(0).unwrap_err();
    let why = FailureKind::GaveUp(PagerEvent::FarMemoryFull(FarShortage::NoMappings));
    assert_eq!(failure.kind, why);
}

#[test]
fn who_has_lost_all_nodes_ends_for_that_reason() {
    let mut world = with_one_node(Bytes::mib(64));
    world.kill_node(0);
    fill_until_it_waits(&mut world);
    let failure = world.wait_for(0).unwrap_err();
    let why = FailureKind::GaveUp(PagerEvent::FarMemoryFull(FarShortage::NoNodes));
    assert_eq!(failure.kind, why);
}

/// Lost: write-back, for ever and silently, when the NIC had not let go of as many writes as there may be at
/// a time. What they were to write was in their frames still.
#[test]
fn what_a_quarantined_write_was_to_write_is_written_elsewhere() {
    let mut config = WorldConfig {
        nodes: 3,
        ..slow(100_000_000)
    };
    // Nothing is flushed.
    config.network.personality = Personality::EHCA;
    let mut world = World::new(config).unwrap();
    let range = world.map(START, 8 * CACHE).unwrap();
    let half = START + 4 * CACHE;
    for page in START..half {
        let write = Operation::Write(PageNumber(page), page);
        assert_eq!(world.perform(0, write).unwrap(), Outcome::Done);
    }
    world.set_clinging(true);
    for page in half..range.end().0 {
        if (page - half).is_multiple_of(2 * CACHE) {
            world.kill_node(((page - half) / (2 * CACHE)) as usize);
        }
        let write = Operation::Write(PageNumber(page), page);
        assert_eq!(world.perform(0, write).unwrap(), Outcome::Done);
    }
    world.pass(Duration::from_secs(1)).unwrap();
    let (counters, fabric) = (world.counters(), world.fabric_counters());
    assert!(fabric.operations_quarantined >= 32, "{fabric:?}");
    assert!(counters.quarantined_bytes_current > 0);
    let mut here = Vec::new();
    for page in START..range.end().0 {
        match read(&mut world, page) {
            Outcome::Value(value) => {
                assert_eq!(value, page);
                here.push(page);
            }
            Outcome::BusError => {}
            other => panic!("{other:?}"),
        }
    }
    // Of what had been written before, and no page that was here.
    let lost = range.count - here.len() as u64;
    assert_eq!(lost, world.counters().pages_lost);
    assert!(lost > 0 && lost < 6 * CACHE, "{lost}");
    // It lets go after all, and every frame serves again.
    world.set_clinging(false);
    for page in here.iter().copied().cycle().take(200) {
        world.pass(Duration::from_secs(1)).unwrap();
        assert_eq!(read(&mut world, page), Outcome::Value(page));
        if world.counters().quarantined_bytes_current == 0 {
            break;
        }
    }
    assert_eq!(world.counters().quarantined_bytes_current, 0);
    for page in here {
        let write = Operation::Write(PageNumber(page), page + 1);
        assert_eq!(world.perform(0, write).unwrap(), Outcome::Done);
    }
    end(world, &[range]);
}

/// Lost: time without end, for threads behind those whose node is silent, though what they wait for is elsewhere.
#[test]
fn threads_that_wait_for_a_silent_node_hold_up_nobody_else() {
    const WAITING: usize = 80;
    // More than there are frames for at once.
    const OTHERS: usize = 60;
    let config = WorldConfig {
        threads: WAITING + OTHERS,
        cache_pages: CACHE / 2,
        ..config()
    };
    let (mut world, range) = filled(config, 16 * CACHE);
    world.pass(Duration::from_millis(100)).unwrap();
    // Each third, so that nothing is fetched ahead.
    let (mut silent, mut others) = (Vec::new(), Vec::new());
    for (node, pages) in [(0, &mut silent), (1, &mut others)] {
        world.change_far_memory(node, |slot| {
            let page = u64::from_le_bytes(slot[16..24].try_into().unwrap());
            if page.is_multiple_of(3) {
                pages.push(page);
            }
        });
    }
    assert!(
        silent.len() > WAITING && others.len() > 4 * OTHERS,
        "{range:?}"
    );
    world.freeze_node(0);
    for (thread, &page) in silent.iter().take(WAITING).enumerate() {
        world.begin(thread, Operation::Read(PageNumber(page)));
    }
    world.pass(Duration::from_millis(10)).unwrap();
    for pages in others.chunks_exact(OTHERS) {
        for (thread, &page) in pages.iter().enumerate() {
            world.begin(WAITING + thread, Operation::Read(PageNumber(page)));
        }
        world.pass(Duration::from_millis(5)).unwrap();
        for (thread, &page) in pages.iter().enumerate() {
            let outcome = world.take_outcome(WAITING + thread);
            assert_eq!(outcome, Some(Outcome::Value(page)));
        }
    }
}

/// P-101: a page that is waited for does not wait behind an extent that is only granted.
#[test]
fn an_extent_is_not_used_before_it_is_prepared() {
    let mut world = with_one_node(Bytes::mib(64));
    world.set_prepared(Prepared::NotYet);
    let (range, waits_for) = fill_until_it_waits(&mut world);
    world.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(world.node_counters(0).extents_allocated, 1);
    assert_eq!(world.counters().pages_written, 0);
    world.set_prepared(Prepared::Yes);
    go_on(world, range, waits_for);
}

#[test]
fn far_memory_that_nobody_gives_back_ends_the_program_after_a_while() {
    let (mut world, ..) = with_full_far_memory();
    let begin = world.now();
    let failure = world.wait_for(0).unwrap_err();
    let FailureKind::GaveUp(PagerEvent::FarMemoryFull(FarShortage::NoRoom { held })) = failure.kind
    else {
        panic!("{failure:?}");
    };
    assert!((Bytes::pages(CACHE)..=Bytes::pages(2 * CACHE)).contains(&held));
    let waited = world.now().since(begin);
    let slack = Duration::from_secs(1);
    assert!(
        waited + slack > FAR_MEMORY && waited < FAR_MEMORY + slack,
        "{waited:?}"
    );
}

/// A world with locked memory, and the page for which thread 1 waits in vain.
fn starving() -> (World, PageRange, u64) {
    let mut world = World::new(config()).unwrap();
    let range = world.map(START, 2 * CACHE).unwrap();
    world.perform(0, Operation::Lock(range)).unwrap();
    for page in range.start.0..range.end().0 {
        world.begin(1, Operation::Write(PageNumber(page), page));
        world.pass(Duration::from_millis(1)).unwrap();
        if world.has_starved() {
            return (world, range, page);
        }
    }
    panic!("there was room for everything");
}

/// It does not run, and there may be something to do for it all the same.
#[test]
fn a_program_that_waits_for_its_agent_does_not_rest() {
    let (mut world, ..) = starving();
    let looks = world.looks();
    world.pass(Duration::from_secs(1)).unwrap();
    assert!(world.looks() >= looks + 20, "{looks} {}", world.looks());
}

/// What others have promised may come as soon as all go on.
#[test]
fn an_hour_of_standstill_is_not_an_hour_of_starving() {
    let (mut world, range, page) = starving();
    world.stand_still(Duration::from_secs(3600));
    world.pass(Duration::from_secs(1)).unwrap();
    world.perform(0, Operation::Unlock(range)).unwrap();
    world.wait_for(1).unwrap();
    assert_eq!(read(&mut world, page), Outcome::Value(page));
    end(world, &[range]);
}

/// Nodes are asked for extents all the time; their answers are an hour late.
#[test]
fn an_hour_of_standstill_loses_nothing() {
    let mut world = World::new(slow(50_000_000)).unwrap();
    let range = world.map(START, 24 * CACHE).unwrap();
    for page in range.start.0..range.end().0 {
        world
            .perform(0, Operation::Write(PageNumber(page), page))
            .unwrap();
        if page.is_multiple_of(CACHE / 4) {
            world.stand_still(Duration::from_secs(3600));
        }
    }
    world.read_all(0, range).unwrap();
    assert_eq!(world.fabric_counters().connections_reset, 0);
    end(world, &[range]);
}

/// Locked pages are tried in runs, and each now and then, for all of them are known to be stuck.
#[test]
fn locked_memory_beyond_a_smaller_share_is_stuck_until_it_is_unlocked() {
    let (mut world, range) = filled(config(), CACHE / 2);
    world.perform(0, Operation::Lock(range)).unwrap();
    let share = Bytes::pages(CACHE / 4);
    world.set_limit(share);
    world.pass(Duration::from_millis(400)).unwrap();
    assert!(!world.pager().usage().stuck, "a device may hold it");
    let before = world.locked_tries();
    world.pass(Duration::from_secs(1)).unwrap();
    assert!(world.pager().usage().stuck);
    let tries = world.locked_tries() - before;
    assert!((1..100).contains(&tries), "{tries} tries in a second");
    world.perform(0, Operation::Unlock(range)).unwrap();
    world.pass(Duration::from_millis(200)).unwrap();
    let usage = world.pager().usage();
    assert!(!usage.stuck && usage.resident <= share, "{usage:?}");
    end(world, &[range]);
}

#[test]
fn memory_that_leaves_slowly_is_not_stuck() {
    // 256 pages a second.
    let (mut world, range) = filled(slow(1 << 20), CACHE / 4 * 3);
    let share = Bytes::pages(CACHE / 4);
    world.set_limit(share);
    let begun = world.now();
    while world.pager().usage().resident > share {
        assert!(!world.pager().usage().stuck);
        world.pass(Duration::from_millis(20)).unwrap();
    }
    assert!(world.now().since(begun) > Duration::from_millis(600));
    end(world, &[range]);
}

/// To give memory to a frame costs as much as a fault may cost altogether.
#[test]
fn pages_come_through_frames_that_keep_their_memory() {
    let (mut world, range) = filled(config(), 2 * CACHE);
    let (given, before) = (world.frames_given(), world.counters());
    for _ in 0..4 {
        world.read_all(0, range).unwrap();
    }
    let (given, after) = (world.frames_given() - given, world.counters());
    let came = after.pages_fetched - before.pages_fetched;
    assert!(came > 2 * CACHE, "only {came} came");
    assert!(
        given < came / 16,
        "memory for {given} frames, {came} pages came"
    );
    end(world, &[range]);
}

/// Lost: a quarter of the cache. What came while as much left was no growth, and a pager in charge of more
/// than half looked for no more: it stayed for ever, whatever else was in use.
#[test]
fn what_came_without_growth_leaves_too() {
    let (mut world, range) = filled(config(), 2 * CACHE);
    let other = world.map(START + 16 * CACHE, CACHE / 4).unwrap();
    for page in other.start.0..other.end().0 {
        let write = Operation::Write(PageNumber(page), page);
        world.perform(0, write).unwrap();
        world.pass(Duration::from_millis(1)).unwrap();
    }
    let local = |world: &World| {
        let mut pages = (other.start.0..other.end().0).map(PageNumber);
        pages.any(|page| world.is_present(page))
    };
    assert!(local(&world));
    let gone = (0..24).any(|_| {
        world.read_all(0, range).unwrap();
        world.pass(Duration::from_millis(100)).unwrap();
        !local(&world)
    });
    assert!(gone, "some of it stays");
    end(world, &[range, other]);
}

/// Half of the cache can never leave, and the rest is too small for what is in use. There is nothing
/// more to take charge of then, and to look for it costs the program the time that it needs.
#[test]
fn a_cache_that_is_full_of_locked_memory_leaves_time_for_the_program() {
    let mut world = World::new(config()).unwrap();
    let locked = world.map(START, CACHE / 2).unwrap();
    world.perform(0, Operation::Lock(locked)).unwrap();
    world.write_all(locked, |page| page).unwrap();
    let range = world.map(START + 16 * CACHE, CACHE / 2).unwrap();
    world.write_all(range, |page| page).unwrap();
    let (begun, before) = (world.now(), world.looks());
    let mut random = Random::from_seed(12);
    for _ in 0..20 * range.count {
        let page = range.start.0 + random.below(range.count);
        assert_eq!(read(&mut world, page), Outcome::Value(page));
    }
    let (looks, time) = (world.looks() - before, world.now().since(begun));
    let faults = world.counters().faults;
    assert!(faults > range.count, "only {faults} faults");
    let often = 2 + time.as_nanos() / Duration::from_millis(10).as_nanos();
    assert!(looks <= often, "{looks} looks in {time:?}, {faults} faults");
    end(world, &[range, locked]);
}
