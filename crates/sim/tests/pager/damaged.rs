//! A memory node that gives back something else than it was given: SIGBUS for whoever reads the page,
//! and never what came.

use legato_base::wire::slot::{SLOT_HEADER_SIZE, SLOT_STRIDE};
use legato_base::{Duration, PageNumber};
use legato_pager::PageRange;
use legato_sim::world::{Operation, Outcome, World, WorldConfig};
use std::collections::BTreeMap;

type Slot = [u8; SLOT_STRIDE];

const CACHE: u64 = 256;
const START: u64 = 0x1000;
const PAGES: u64 = 4 * CACHE;
/// Of pages that were written anew.
const NEWER: u64 = 1 << 32;

/// A page number in the header of a slot: where the page was when it was written.
const PAGE: std::ops::Range<usize> = 16..24;

/// A world with one node, which has most of its pages.
fn filled() -> (World, PageRange) {
    let mut world = World::new(WorldConfig {
        cache_pages: CACHE,
        nodes: 1,
        ..WorldConfig::default()
    })
    .unwrap();
    let range = world.map(START, PAGES).unwrap();
    write_all(&mut world, range, 0);
    (world, range)
}

fn write_all(world: &mut World, range: PageRange, value: u64) {
    world.write_all(range, |page| page + value).unwrap();
    // All that has left is at the node.
    world.pass(Duration::from_millis(50)).unwrap();
}

/// Of the pages of a range, those that are lost. All others hold the value.
fn lost(world: &mut World, range: PageRange, value: u64) -> u64 {
    let mut lost = 0;
    for page in range.start.0..range.end().0 {
        match world.perform(0, Operation::Read(PageNumber(page))).unwrap() {
            Outcome::BusError => lost += 1,
            outcome => assert_eq!(outcome, Outcome::Value(page + value)),
        }
    }
    lost
}

/// Every page that was at the node is lost, and nothing is left over when the program gives all up.
#[track_caller]
fn expect_rejected(mut world: World, range: PageRange, value: u64, what: &str) {
    let lost = lost(&mut world, range, value);
    assert!(lost > PAGES / 2, "{what}: {lost} of {PAGES} were rejected");
    let counters = world.counters();
    assert_eq!(
        (counters.pages_rejected, counters.pages_lost),
        (lost, lost),
        "{what}"
    );
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}

// P-21
#[test]
fn m46_a_single_bit_anywhere_in_a_slot_is_noticed() {
    let places = [
        ("magic", 0),
        ("client", 8),
        ("version", 24),
        ("version", 31),
        ("checksum", 40),
        ("checksum", 55),
        ("first byte", SLOT_HEADER_SIZE),
        ("somewhere", SLOT_HEADER_SIZE + 1234),
        ("last byte", SLOT_STRIDE - 1),
    ];
    for (what, place) in places {
        let (mut world, range) = filled();
        world.change_far_memory(0, |slot| slot[place] ^= 4);
        expect_rejected(world, range, 0, what);
    }
}

/// P-21: each whole, with a checksum that is right: what a node has that lost a write.
#[test]
fn m46_older_pages_are_noticed() {
    let (mut world, range) = filled();
    let mut older = BTreeMap::<Vec<u8>, Slot>::new();
    world.change_far_memory(0, |slot| {
        older.insert(slot[PAGE].to_vec(), *slot);
    });
    write_all(&mut world, range, NEWER);
    let mut changed = 0;
    world.change_far_memory(0, |slot| {
        if let Some(old) = older.get(&slot[PAGE]) {
            changed += u64::from(slot != old);
            *slot = *old;
        }
    });
    assert!(changed > PAGES / 2, "{changed} slots");
    let lost = lost(&mut world, range, NEWER);
    assert!(lost > PAGES / 2, "{lost} of {PAGES} were rejected");
    assert_eq!(world.counters().pages_rejected, lost);
}

/// P-21: each whole, and the same client's: what a node has that mistook one place for another.
#[test]
fn m46_other_pages_are_noticed() {
    let (mut world, range) = filled();
    let mut slots = Vec::<Slot>::new();
    world.change_far_memory(0, |slot| slots.push(*slot));
    slots.rotate_left(1);
    let mut others = slots.into_iter();
    world.change_far_memory(0, |slot| *slot = others.next().unwrap());
    expect_rejected(world, range, 0, "another page");
}

/// P-21: a slot of zeros, as of memory that was given away and taken again.
#[test]
fn m46_slots_without_a_page_are_noticed() {
    let (mut world, range) = filled();
    world.change_far_memory(0, |slot| slot.fill(0));
    expect_rejected(world, range, 0, "zeros");
}
