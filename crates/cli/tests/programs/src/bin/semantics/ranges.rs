//! Calls that change mappings whose pages are far, or on their way.

use crate::ground::resident;
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, check, ensure, fill, outcome};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use legato_base::PAGE_SIZE;
use legato_test_programs::{Arena, WORDS};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("remap-grows-in-place", remap_grows_in_place),
    ("remap-moves", remap_moves),
    ("remap-moves-locked", remap_moves_locked),
    ("remap-fixed-over-far", remap_fixed_over_far),
    ("remap-leaves-the-old", remap_leaves_the_old),
    ("remap-a-part", remap_a_part),
    ("remap-shrinks", remap_shrinks),
    ("remap-without-size", remap_without_size),
    ("discard", discard),
    ("free", free),
    ("remove", remove),
    ("huge-pages", huge_pages),
    ("mapped-over", mapped_over),
    ("unmapped-in-flight", unmapped_in_flight),
    ("discarded-in-flight", discarded_in_flight),
    ("all-mappings-taken", all_mappings_taken),
];

const PAGES: u64 = 256;
const LENGTH: usize = PAGES as usize * PAGE_SIZE;
const MAYMOVE: libc::c_int = libc::MREMAP_MAYMOVE;
const FIXED: libc::c_int = libc::MREMAP_FIXED;
const DONTUNMAP: libc::c_int = libc::MREMAP_DONTUNMAP;

/// A range that the case owns by its address only.
fn forget(region: Arena) -> *mut libc::c_void {
    let address = region.address(0);
    core::mem::forget(region);
    address
}

/// Checks memory that is no Arena, page by page, as page `first` and the following.
fn check_at(address: *mut libc::c_void, first: u64, pages: u64, version: u32) -> Checked {
    for index in 0..pages {
        let page = address.wrapping_byte_add(index as usize * PAGE_SIZE);
        // SAFETY: the case has that many pages there.
        let words = unsafe { core::slice::from_raw_parts(page.cast(), WORDS) };
        legato_test_programs::check_page(words, first + index, version)?;
    }
    Ok(())
}

fn fill_at(address: *mut libc::c_void, pages: u64, version: u32) {
    for index in 0..pages {
        let page = address.wrapping_byte_add(index as usize * PAGE_SIZE);
        // SAFETY: the case has that many pages there.
        let words = unsafe { core::slice::from_raw_parts(page.cast(), WORDS) };
        legato_test_programs::fill_page(words, index, version);
    }
}

fn expect_unmapped(address: *mut libc::c_void, what: &str) -> Checked {
    let mut byte = 0_u8;
    let result = outcome!(mincore(address, PAGE_SIZE, &raw mut byte));
    ensure!(
        result == Err(libc::ENOMEM),
        "{what} is still mapped: {result:?}"
    );
    Ok(())
}

fn remap_grows_in_place(ground: &Ground) -> Result<Outcome, Failure> {
    let region = forget(ground.far_region(2 * PAGES)?);
    call!(munmap(region.wrapping_byte_add(LENGTH), LENGTH))?;
    ground.evict_range(region, LENGTH)?;
    let grown = call!(mremap(region, LENGTH, 2 * LENGTH, 0))?;
    ensure!(grown == region as usize, "it grew somewhere else");
    check_at(region.wrapping_byte_add(LENGTH), 0, PAGES, 0)?;
    check_at(region, 0, PAGES, 1)?;
    fill_at(region, 2 * PAGES, 2);
    ground.evict_range(region, 2 * LENGTH)?;
    check_at(region, 0, 2 * PAGES, 2)?;
    call!(munmap(region, 2 * LENGTH))?;
    Ok(Outcome::Passed)
}

fn remap_moves(ground: &Ground) -> Result<Outcome, Failure> {
    let region = forget(ground.far_region(PAGES + 1)?);
    // What is behind it stands in its way.
    let wall = region.wrapping_byte_add(LENGTH);
    call!(mprotect(wall, PAGE_SIZE, libc::PROT_READ))?;
    ground.evict_range(region, LENGTH)?;
    let refused = outcome!(mremap(region, LENGTH, 3 * LENGTH, 0));
    ensure!(
        refused == Err(libc::ENOMEM),
        "growing into a neighbour gives {refused:?}"
    );
    let moved = call!(mremap(region, LENGTH, 3 * LENGTH, MAYMOVE))? as *mut libc::c_void;
    ensure!(moved != region, "it did not move");
    expect_unmapped(region, "the old place")?;
    check_at(moved, 0, PAGES, 1)?;
    check_at(moved.wrapping_byte_add(LENGTH), 0, 2 * PAGES, 0)?;
    check_at(wall, PAGES, 1, 1)?;
    fill_at(moved, 3 * PAGES, 2);
    ground.evict_range(moved, 3 * LENGTH)?;
    check_at(moved, 0, 3 * PAGES, 2)?;
    call!(munmap(moved, 3 * LENGTH))?;
    call!(munmap(wall, PAGE_SIZE))?;
    Ok(Outcome::Passed)
}

/// Locked memory that grows while it moves: the kernel populates the new part in the middle of the call.
fn remap_moves_locked(ground: &Ground) -> Result<Outcome, Failure> {
    let region = forget(ground.far_region(PAGES + 1)?);
    let wall = region.wrapping_byte_add(LENGTH);
    call!(mprotect(wall, PAGE_SIZE, libc::PROT_READ))?;
    call!(mlock(region, LENGTH))?;
    let moved = call!(mremap(region, LENGTH, 2 * LENGTH, MAYMOVE))? as *mut libc::c_void;
    ensure!(moved != region, "it did not move");
    // At once: it is one mapping.
    let place = forget(ground.region(2 * PAGES)?);
    call!(mremap(
        moved,
        2 * LENGTH,
        2 * LENGTH,
        MAYMOVE | FIXED,
        place
    ))?;
    let moved = place;
    check_at(moved, 0, PAGES, 1)?;
    check_at(moved.wrapping_byte_add(LENGTH), 0, PAGES, 0)?;
    fill_at(moved, 2 * PAGES, 2);
    // The new part comes to where far pages were.
    let target = forget(ground.far_region(4 * PAGES)?);
    fill_at(target, 4 * PAGES, 3);
    ground.evict_range(target, 4 * LENGTH)?;
    let flags = MAYMOVE | FIXED;
    call!(mremap(moved, 2 * LENGTH, 3 * LENGTH, flags, target))?;
    check_at(target, 0, 2 * PAGES, 2)?;
    check_at(target.wrapping_byte_add(2 * LENGTH), 0, PAGES, 0)?;
    check_at(target.wrapping_byte_add(3 * LENGTH), 3 * PAGES, PAGES, 3)?;
    fill_at(target, 4 * PAGES, 4);
    call!(munlock(target, 3 * LENGTH))?;
    ground.evict_range(target, 4 * LENGTH)?;
    check_at(target, 0, 4 * PAGES, 4)?;
    call!(munmap(target, 4 * LENGTH))?;
    call!(munmap(wall, PAGE_SIZE))?;
    Ok(Outcome::Passed)
}

/// A far range lands on another far range: the contents of the one replace those of the other.
fn remap_fixed_over_far(ground: &Ground) -> Result<Outcome, Failure> {
    let source = ground.far_region(PAGES)?;
    let target = ground.far_region(PAGES)?;
    fill(&target, 9);
    ground.evict(&source)?;
    ground.evict(&target)?;
    let (source, target) = (forget(source), forget(target));
    let half = LENGTH / 2;
    let to = target.wrapping_byte_add(half);
    let moved = call!(mremap(source, half, half, MAYMOVE | FIXED, to))?;
    ensure!(moved == to as usize, "it landed somewhere else");
    check_at(target, 0, PAGES / 2, 9)?;
    check_at(to, 0, PAGES / 2, 1)?;
    expect_unmapped(source, "the old place")?;
    check_at(source.wrapping_byte_add(half), PAGES / 2, PAGES / 2, 1)?;
    // And back to where it was, as new memory at the old addresses.
    ground.evict_range(target, LENGTH)?;
    call!(mremap(to, half, half, MAYMOVE | FIXED, source))?;
    check_at(source, 0, PAGES, 1)?;
    expect_unmapped(to, "the place in between")?;
    call!(munmap(source, LENGTH))?;
    call!(munmap(target, half))?;
    Ok(Outcome::Passed)
}

/// MREMAP_DONTUNMAP: the contents go, the old range stays and is empty.
fn remap_leaves_the_old(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    ground.evict(&region)?;
    // With this flag the kernel reads the last argument as a wish.
    let anywhere = core::ptr::null_mut::<libc::c_void>();
    let moved = call!(mremap(
        region.address(0),
        LENGTH,
        LENGTH,
        MAYMOVE | DONTUNMAP,
        anywhere
    ))?;
    let moved = moved as *mut libc::c_void;
    check(&region, 0)?;
    check_at(moved, 0, PAGES, 1)?;
    fill(&region, 5);
    fill_at(moved, PAGES, 6);
    ground.evict(&region)?;
    ground.evict_range(moved, LENGTH)?;
    check(&region, 5)?;
    check_at(moved, 0, PAGES, 6)?;
    // Once more, without a touch in between, and onto a given place.
    ground.evict(&region)?;
    let place = forget(ground.far_region(PAGES)?);
    let flags = MAYMOVE | DONTUNMAP | FIXED;
    call!(mremap(region.address(0), LENGTH, LENGTH, flags, place))?;
    check_at(place, 0, PAGES, 5)?;
    ground.press_all();
    check(&region, 0)?;
    call!(munmap(moved, LENGTH))?;
    call!(munmap(place, LENGTH))?;
    Ok(Outcome::Passed)
}

/// The middle of a mapping moves away, and new memory comes in its place.
fn remap_a_part(ground: &Ground) -> Result<Outcome, Failure> {
    let mut region = ground.far_region(PAGES)?;
    ground.evict(&region)?;
    let part = 64 * PAGE_SIZE;
    let target = forget(Arena::new(64)?);
    let middle = region.address(96);
    call!(mremap(middle, part, part, MAYMOVE | FIXED, target))?;
    check_at(target, 96, 64, 1)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    call!(mmap(middle, part, both, flags, -1, 0))?;
    for page in 0..PAGES {
        region.check(page, u32::from(!(96..160).contains(&page)))?;
    }
    ground.evict_range(target, part)?;
    call!(munmap(target, part))?;
    region.replace(0, 32)?;
    for page in 0..96 {
        region.check(page, u32::from(page >= 32))?;
    }
    Ok(Outcome::Passed)
}

fn remap_shrinks(ground: &Ground) -> Result<Outcome, Failure> {
    let region = forget(ground.far_region(PAGES)?);
    ground.evict_range(region, LENGTH)?;
    let half = LENGTH / 2;
    let shrunk = call!(mremap(region, LENGTH, half, 0))?;
    ensure!(shrunk == region as usize, "it moved");
    expect_unmapped(region.wrapping_byte_add(half), "the cut off part")?;
    check_at(region, 0, PAGES / 2, 1)?;
    ground.evict_range(region, half)?;
    // Nothing is in the way of growing again; what was cut off may not come back.
    let grown = call!(mremap(region, half, LENGTH, MAYMOVE))? as *mut libc::c_void;
    check_at(grown, 0, PAGES / 2, 1)?;
    check_at(grown.wrapping_byte_add(half), 0, PAGES / 2, 0)?;
    call!(munmap(grown, LENGTH))?;
    Ok(Outcome::Passed)
}

/// An old size of zero duplicates a shared mapping, and is refused for a private one (mremap(2)).
fn remap_without_size(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let refused = outcome!(mremap(region.address(0), 0, LENGTH, MAYMOVE));
    ensure!(refused == Err(libc::EINVAL), "private memory: {refused:?}");
    check(&region, 1)?;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let none = core::ptr::null_mut();
    let shared = call!(mmap(none, LENGTH, both, flags, -1, 0))? as *mut libc::c_void;
    fill_at(shared, PAGES, 3);
    ground.press_all();
    let twin = call!(mremap(shared, 0, LENGTH, MAYMOVE))? as *mut libc::c_void;
    check_at(twin, 0, PAGES, 3)?;
    fill_at(twin, PAGES, 4);
    check_at(shared, 0, PAGES, 4)?;
    call!(munmap(shared, LENGTH))?;
    check_at(twin, 0, PAGES, 4)?;
    call!(munmap(twin, LENGTH))?;
    Ok(Outcome::Passed)
}

fn discard(ground: &Ground) -> Result<Outcome, Failure> {
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED] {
        let region = ground.far_region(PAGES)?;
        // Some pages are resident, most are far.
        (0..PAGES)
            .step_by(5)
            .try_for_each(|page| region.check(page, 1))?;
        region.advise(32, 128, advice)?;
        let version = |page: u64| u32::from(!(32..160).contains(&page));
        for page in 0..PAGES {
            region.check(page, version(page))?;
        }
        // Pages that were read as zeros are evicted too, or dropped, and are zeros again.
        ground.press_all();
        for page in 0..PAGES {
            region.check(page, version(page))?;
        }
        (32..160).for_each(|page| region.fill(page, 1));
        ground.evict(&region)?;
        check(&region, 1)?;
        // And without a look in between.
        ground.evict(&region)?;
        region.advise(0, PAGES, advice)?;
        ground.press_all();
        check(&region, 0)?;
    }
    Ok(Outcome::Passed)
}

/// After MADV_FREE each page is the old one or zeros, until it is written; then it is what was
/// written.
fn free(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    (0..PAGES)
        .step_by(3)
        .try_for_each(|page| region.check(page, 1))?;
    for round in 0..3 {
        region.advise(0, PAGES, libc::MADV_FREE)?;
        if round > 0 {
            ground.press_all();
        }
        for page in 0..PAGES {
            if region.check(page, 0).is_err() {
                region.check(page, 1)?;
            }
        }
        (0..PAGES).step_by(2).for_each(|page| region.fill(page, 2));
        ground.press_all();
        for page in (0..PAGES).step_by(2) {
            region.check(page, 2)?;
        }
        // When they can leave again depends on when they are written: the simulator tests that.
        fill(&region, 1);
        ground.press_all();
    }
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// MADV_REMOVE is for shared memory; private memory refuses it and keeps its contents.
fn remove(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let refused = outcome!(madvise(region.address(0), LENGTH, libc::MADV_REMOVE));
    ensure!(refused == Err(libc::EINVAL), "private memory: {refused:?}");
    check(&region, 1)?;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let none = core::ptr::null_mut();
    let shared = call!(mmap(none, LENGTH, both, flags, -1, 0))? as *mut libc::c_void;
    fill_at(shared, PAGES, 3);
    ground.press_all();
    call!(madvise(shared, LENGTH / 2, libc::MADV_REMOVE))?;
    check_at(shared, 0, PAGES / 2, 0)?;
    check_at(
        shared.wrapping_byte_add(LENGTH / 2),
        PAGES / 2,
        PAGES / 2,
        3,
    )?;
    call!(munmap(shared, LENGTH))?;
    Ok(Outcome::Passed)
}

/// A range that asks for transparent huge pages leaves and comes back like any other.
fn huge_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.region(4 * 512)?;
    region.advise(0, region.pages(), libc::MADV_HUGEPAGE)?;
    fill(&region, 1);
    ground.evict(&region)?;
    check(&region, 1)?;
    fill(&region, 2);
    ground.evict(&region)?;
    region.advise(0, region.pages(), libc::MADV_NOHUGEPAGE)?;
    check(&region, 2)?;
    // Discarded and touched anew, a huge page could come whole.
    region.advise(0, region.pages(), libc::MADV_HUGEPAGE)?;
    region.advise(512, 1024, libc::MADV_DONTNEED)?;
    for page in 0..region.pages() {
        region.check(page, if (512..1536).contains(&page) { 0 } else { 2 })?;
    }
    (512..1536).for_each(|page| region.fill(page, 2));
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

/// A new mapping over a far one, by MAP_FIXED, of another kind each time.
fn mapped_over(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let (private, shared) = (fixed | libc::MAP_PRIVATE, fixed | libc::MAP_SHARED);
    for flags in [private, shared, private] {
        ground.press_all();
        call!(mmap(
            region.address(64),
            128 * PAGE_SIZE,
            both,
            flags,
            -1,
            0
        ))?;
        for page in 0..PAGES {
            region.check(page, u32::from(!(64..192).contains(&page)))?;
        }
        (64..192).for_each(|page| region.fill(page, 4));
        ground.press_all();
        for page in 0..PAGES {
            region.check(page, if (64..192).contains(&page) { 4 } else { 1 })?;
        }
    }
    let left = resident(region.address(0), LENGTH)?;
    ensure!(left <= PAGES as usize, "{left} pages");
    Ok(Outcome::Passed)
}

/// What a reader may find in a word while another thread replaces the range: a zero, or what was
/// written to that page.
const fn stamp(page: u64, round: u64) -> u64 {
    (page << 32) | round
}

fn look(region: &Arena, page: u64, newest: u64) -> Checked {
    for word in region.words(page).iter().step_by(37) {
        let found = word.load(Relaxed);
        let right =
            found == 0 || (found >> 32 == page && (1..=newest).contains(&(found & 0xFFFF_FFFF)));
        ensure!(right, "page {page}: a reader found {found:x}");
    }
    Ok(())
}

/// Threads read a range, so that fetches are on their way, and others write to other memory, so
/// that write-backs are, while `replace` makes the range empty again and again.
fn in_flight(ground: &Ground, replace: fn(&Arena) -> Checked) -> Result<Outcome, Failure> {
    const ROUNDS: u64 = 12;
    let region = ground.region(1024)?;
    let done = AtomicBool::new(false);
    let (region_of_all, done_of_all) = (&region, &done);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                scope.spawn(move || {
                    let mut page = reader * 331;
                    while !done_of_all.load(Relaxed) {
                        page = (page + 7) % region_of_all.pages();
                        look(region_of_all, page, ROUNDS)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let presser = scope.spawn(move || {
            while !done_of_all.load(Relaxed) {
                ground.press(256);
            }
        });
        let mut result = Ok(());
        for round in 1..=ROUNDS {
            result = result.and_then(|()| one_round(ground, region_of_all, round, replace));
        }
        done.store(true, Relaxed);
        presser.join().expect("no thread panics");
        for reader in readers {
            result = result.and(reader.join().expect("no thread panics"));
        }
        result
    })?;
    Ok(Outcome::Passed)
}

fn one_round(
    ground: &Ground,
    region: &Arena,
    round: u64,
    replace: fn(&Arena) -> Checked,
) -> Checked {
    for page in 0..region.pages() {
        for word in region.words(page).iter().step_by(37) {
            word.store(stamp(page, round), Relaxed);
        }
    }
    ground.press(ROUND_PRESS);
    replace(region)?;
    for page in 0..region.pages() {
        let zeros = region
            .words(page)
            .iter()
            .all(|word| word.load(Relaxed) == 0);
        ensure!(zeros, "round {round}: page {page} is not new");
    }
    Ok(())
}

/// Enough that a part of the range leaves, and writing it back is under way.
const ROUND_PRESS: u64 = 2000;

fn unmapped_in_flight(ground: &Ground) -> Result<Outcome, Failure> {
    in_flight(ground, |region| {
        let length = region.length();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        call!(mmap(region.address(0), length, both, flags, -1, 0))?;
        Ok(())
    })
}

fn discarded_in_flight(ground: &Ground) -> Result<Outcome, Failure> {
    in_flight(ground, |region| {
        Ok(region.advise(0, region.pages(), libc::MADV_DONTNEED)?)
    })
}

/// The process has as many mappings as it may (`vm.max_map_count`) before any of its pages leaves.
fn all_mappings_taken(ground: &Ground) -> Result<Outcome, Failure> {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count")?;
    let most = text.trim().parse::<usize>();
    let pages = 2 * most.map_err(|error| Failure(error.to_string()))?;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let null = core::ptr::null_mut();
    let length = pages * PAGE_SIZE;
    let cut = call!(mmap(null, length, libc::PROT_NONE, kind, -1, 0))? as *mut libc::c_void;
    let read_only = |page| {
        let page: *mut libc::c_void = cut.wrapping_byte_add(page * PAGE_SIZE);
        outcome!(mprotect(page, PAGE_SIZE, libc::PROT_READ))
    };
    let refused = (1..pages).step_by(2).find_map(|page| read_only(page).err());
    ensure!(refused == Some(libc::ENOMEM), "no limit: {refused:?}");
    // A cut takes two. What is shared is a file of its own, and never one mapping with another.
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    while outcome!(mmap(null, PAGE_SIZE, libc::PROT_NONE, shared, -1, 0)).is_ok() {}
    let region = ground.far_region(PAGES)?;
    check(&region, 1)?;
    fill(&region, 2);
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}
