//! Mappings that come and go between the reading of the maps and the registration.

use super::*;
use crate::uffd::Mask;
use crate::uffd::eligible::regions;
use crate::uffd::mappings::mapping_of;
use crate::uffd::opening::Opener;
use legato_base::PageNumber;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::string::String;

const PAGES: u64 = 64;

/// What the agent has of the program, here this test.
struct World {
    context: Userfaultfd,
    residency: Residency,
    charged: RangeSet,
    refused: Refused,
    foreign: Foreign,
}

impl World {
    fn new() -> Self {
        let features = Opener::new(Mask::default()).probe().unwrap();
        Self {
            context: Opener::new(Mask::default()).open_plain(features).unwrap(),
            residency: Residency::open(None, true).unwrap(),
            charged: RangeSet::new(),
            refused: Refused::default(),
            foreign: Foreign::default(),
        }
    }

    /// Takes charge as if `maps` had just been read, of nothing but what is in `range`.
    fn register(&mut self, maps: &str, range: PageRange) -> Vec<Charge> {
        let mut found = Vec::new();
        let mut look = Look {
            id: SpaceId::OWN,
            context: &self.context,
            residency: &self.residency,
            charged: &self.charged,
            refused: &mut self.refused,
            foreign: &mut self.foreign,
            protectable: false,
            registered: RangeSet::new(),
        };
        let others: Vec<PageRange> = maps
            .lines()
            .filter_map(mapping_of)
            .filter(|other| !other.overlaps(range))
            .collect();
        look.register_more(regions(maps, &others), &others, u64::MAX, &mut found);
        let ranges = found.iter().map(|charge| charge.range);
        let absent = unregistered(&self.context, &self.residency, ranges).unwrap();
        let mut survey = Survey::new(found);
        survey.leave_out(&absent);
        survey.unchanged(&RangeSet::new())
    }
}

fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

/// A mapping with its first page written.
fn map(at: Option<PageRange>) -> PageRange {
    let start = at.map_or(0, |range| range.start.address()) as *mut core::ffi::c_void;
    let fixed = at.map_or(MapFlags::empty(), |_| MapFlags::FIXED_NOREPLACE);
    let pages = at.map_or(PAGES, |range| range.count);
    let length = (pages << PAGE_SHIFT) as usize;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
    // SAFETY: a fresh mapping of this test's own.
    let start = unsafe {
        rustix::mm::mmap_anonymous(start, length, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    let start = start.unwrap();
    // SAFETY: as above.
    unsafe { start.cast::<u64>().write_volatile(1) };
    PageRange::new(PageNumber::containing(start as u64), pages)
}

fn unmap(range: PageRange) {
    let start = range.start.address() as *mut core::ffi::c_void;
    // SAFETY: of this test's own, and nothing uses it any more.
    unsafe { rustix::mm::munmap(start, (range.count << PAGE_SHIFT) as usize) }.unwrap();
}

#[test]
fn a_mapping_that_goes_while_one_looks_is_not_passed_over_for_ever() {
    let mut world = World::new();
    let range = map(None);
    let before = maps();
    unmap(range);
    assert_eq!(world.register(&before, range), []);
    // The next large `malloc` gets the same address.
    assert_eq!(map(Some(range)), range);
    let found = world.register(&maps(), range);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].range, range);
    assert_eq!(found[0].resident, [range.start]);
    drop(world);
    unmap(range);
}

#[test]
fn a_mapping_that_came_while_one_looked_is_taken_instead() {
    let mut world = World::new();
    let range = map(None);
    let before = maps();
    unmap(range);
    let half = PageRange::new(range.start, PAGES / 2);
    assert_eq!(map(Some(range)), range);
    unmap(half);
    let rest = PageRange::new(half.end(), PAGES / 2);
    let found = world.register(&before, range);
    let ranges: Vec<PageRange> = found.iter().map(|charge| charge.range).collect();
    assert_eq!(ranges, [rest], "a hole is not registered");
    drop(world);
    unmap(rest);
}

/// As long as somebody else has it, and no longer than a second.
#[test]
fn what_has_another_userfaultfd_is_left_to_it() {
    let mut world = World::new();
    let other = World::new();
    let range = map(None);
    let (start, length) = (range.start.address(), PAGES << PAGE_SHIFT);
    // SAFETY: nothing is missing that anybody reads.
    unsafe { other.context.register(start, length, false) }.unwrap();
    assert_eq!(world.register(&maps(), range), []);
    assert_eq!(world.foreign, Foreign::Seen);
    assert_eq!(world.refused.missing_from(range), []);
    drop(other);
    world.refused = Refused::default();
    assert_eq!(world.register(&maps(), range).len(), 1);
    drop(world);
    unmap(range);
}

/// What is registered in part is two mappings, and `mremap` takes only one.
#[test]
fn no_mapping_is_registered_in_part_because_another_refuses() {
    let mut world = World::new();
    let other = World::new();
    let room = map(None);
    unmap(room);
    let at = |first, count| PageRange::new(room.start.plus(first), count);
    let (refusing, old, new) = (map(Some(at(0, 4))), at(24, 8), at(16, 32));
    let (start, length) = (refusing.start.address(), refusing.count << PAGE_SHIFT);
    // SAFETY: nothing is missing that anybody reads.
    unsafe { other.context.register(start, length, false) }.unwrap();
    map(Some(old));
    let before = maps();
    unmap(old);
    map(Some(new));
    let found = world.register(&before, room);
    assert_eq!(world.foreign, Foreign::Seen);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].range, old);
    assert_eq!(world.context.is_registered(new), Ok(true));
    drop((world, other));
    unmap(refusing);
    unmap(new);
}

/// Lost: a thread, which waited without end for a page that the kernel lets nobody fill.
#[test]
fn what_came_from_a_file_while_one_looked_is_left_to_the_kernel() {
    let zeros = rustix::fs::open("/dev/zero", OFlags::RDWR, Mode::empty()).unwrap();
    let memory: OwnedFd = rustix::fs::memfd_create("legato", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, PAGES << PAGE_SHIFT).unwrap();
    for (file, flags) in [
        (zeros.as_fd(), MapFlags::PRIVATE),
        (memory.as_fd(), MapFlags::SHARED),
    ] {
        let mut world = World::new();
        let range = map(None);
        let before = maps();
        unmap(range);
        let (start, length) = (range.start.address(), (PAGES << PAGE_SHIFT) as usize);
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            flags | MapFlags::FIXED_NOREPLACE,
        );
        // SAFETY: where nothing is mapped.
        unsafe { rustix::mm::mmap(start as *mut _, length, access, flags, file, 0) }.unwrap();
        assert_eq!(world.register(&before, range), []);
        assert_eq!(world.context.is_registered(range), Ok(false));
        // SAFETY: of this test's own.
        assert_eq!(unsafe { (start as *const u64).read_volatile() }, 0);
        drop(world);
        unmap(range);
    }
}
