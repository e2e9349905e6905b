//! Which of its pages exist, as the kernel tells a program.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, check, ensure};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("far-pages-exist", far_pages_exist),
    ("recycled-slots", recycled_slots),
    ("pages-of-zeros-exist", pages_of_zeros_exist),
    ("existence-survives-changes", existence_survives_changes),
    ("existence-in-children", existence_in_children),
];

const PAGES: u64 = 512;
/// Bits of an entry of pagemap: the page is in memory, or in swap.
const SOMEWHERE: u64 = 1 << 63 | 1 << 62;

/// For each page of a range, whether it is in memory or in swap as pagemap has it.
fn entries(start: *mut libc::c_void, pages: u64) -> Result<Vec<bool>, Failure> {
    let map = File::open("/proc/self/pagemap")?;
    let mut bytes = vec![0; pages as usize * 8];
    map.read_exact_at(&mut bytes, (start as usize / PAGE_SIZE * 8) as u64)?;
    let entries = bytes.chunks(8).map(|entry| {
        let entry: [u8; 8] = entry.try_into().expect("eight bytes");
        u64::from_le_bytes(entry) & SOMEWHERE != 0
    });
    Ok(entries.collect())
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The same as PAGEMAP_SCAN has it; None where the kernel has none.
fn scanned(start: *mut libc::c_void, pages: u64) -> Result<Option<Vec<bool>>, Failure> {
    const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
    const PRESENT_OR_SWAPPED: u64 = 1 << 3 | 1 << 4;
    let map = File::open("/proc/self/pagemap")?;
    let first = start as u64;
    let end = first + pages * PAGE_SIZE as u64;
    let mut found = vec![false; pages as usize];
    let mut at = first;
    while at < end {
        let mut regions = [[0u64; 3]; 64];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_anyof_mask: PRESENT_OR_SWAPPED,
            return_mask: PRESENT_OR_SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the kernel writes into the structure and into as many regions as it names.
        let count = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let Ok(count) = usize::try_from(count) else {
            return Ok(None);
        };
        for [from, to, _] in &regions[..count] {
            let page = |address| ((address - first) / PAGE_SIZE as u64) as usize;
            found[page(*from)..page(*to)].fill(true);
        }
        at = scan.walk_end;
    }
    Ok(Some(found))
}

/// These pages of a range exist, whomever one asks. Of others nothing is said: zeros may be there before
/// they are asked for, as with huge pages.
fn expect_existing(region: &Arena, what: &str, exists: impl Fn(u64) -> bool) -> Checked {
    let (start, pages) = (region.address(0), region.pages());
    let mut told = vec![("pagemap", entries(start, pages)?)];
    told.extend(scanned(start, pages)?.map(|found| ("PAGEMAP_SCAN", found)));
    for (who, found) in told {
        let wrong: Vec<u64> = (0..pages)
            .filter(|&page| exists(page) && !found[page as usize])
            .collect();
        ensure!(
            wrong.is_empty(),
            "{what}: {who} says of {} pages that there are none, first {}",
            wrong.len(),
            wrong[0]
        );
    }
    Ok(())
}

/// Every other page filled, and pushed out.
fn half_a_region(ground: &Ground) -> Result<Arena, Failure> {
    let region = ground.region(PAGES)?;
    (0..PAGES).step_by(2).for_each(|page| region.fill(page, 1));
    ground.evict(&region)?;
    Ok(region)
}

const fn is_even(page: u64) -> bool {
    page.is_multiple_of(2)
}

fn check_half(region: &Arena, version: u32) -> Checked {
    (0..PAGES)
        .step_by(2)
        .try_for_each(|page| Ok(region.check(page, version)?))
}

fn far_pages_exist(ground: &Ground) -> Result<Outcome, Failure> {
    let region = half_a_region(ground)?;
    for version in 1..4 {
        expect_existing(&region, "far", is_even)?;
        check_half(&region, version)?;
        expect_existing(&region, "back", is_even)?;
        (0..PAGES)
            .step_by(2)
            .for_each(|page| region.fill(page, version + 1));
        ground.evict(&region)?;
    }
    Ok(Outcome::Passed)
}

/// An allocator of slots, for one tenant after the other: it clears what the kernel says there is.
fn recycled_slots(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.region(PAGES)?;
    for tenant in 1..4 {
        for page in 0..PAGES {
            for word in region.words(page) {
                ensure!(
                    word.load(Relaxed) == 0,
                    "tenant {tenant} finds another's page {page}"
                );
            }
        }
        (0..PAGES)
            .step_by(2)
            .for_each(|page| region.fill(page, tenant));
        ground.evict(&region)?;
        let exists = match scanned(region.address(0), PAGES)? {
            Some(exists) if is_even(u64::from(tenant)) => exists,
            _ => entries(region.address(0), PAGES)?,
        };
        for page in (0..PAGES).filter(|&page| exists[page as usize]) {
            region
                .words(page)
                .iter()
                .for_each(|word| word.store(0, Relaxed));
        }
    }
    Ok(Outcome::Passed)
}

/// A page that was written is there, though it is zeros.
fn pages_of_zeros_exist(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.region(PAGES)?;
    for _ in 0..3 {
        for page in (0..PAGES).step_by(2) {
            region
                .words(page)
                .iter()
                .for_each(|word| word.store(0, Relaxed));
        }
        ground.evict(&region)?;
        expect_existing(&region, "zeros", is_even)?;
        for page in (0..PAGES).step_by(2) {
            ensure!(
                region
                    .words(page)
                    .iter()
                    .all(|word| word.load(Relaxed) == 0),
                "page {page}"
            );
        }
    }
    Ok(Outcome::Passed)
}

fn existence_survives_changes(ground: &Ground) -> Result<Outcome, Failure> {
    let mut region = half_a_region(ground)?;
    region.protect(libc::PROT_NONE)?;
    region.protect(libc::PROT_READ)?;
    expect_existing(&region, "after mprotect", is_even)?;
    region.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    region.relocate()?;
    expect_existing(&region, "after mremap", is_even)?;
    check_half(&region, 1)?;
    ground.evict(&region)?;
    expect_existing(&region, "after mremap and eviction", is_even)?;
    region.advise(0, PAGES / 2, libc::MADV_DONTNEED)?;
    let in_second_half = |page| page >= PAGES / 2 && is_even(page);
    expect_existing(&region, "after MADV_DONTNEED", in_second_half)?;
    region.replace(PAGES / 2, PAGES / 4)?;
    let in_last_quarter = |page| page >= PAGES * 3 / 4 && is_even(page);
    expect_existing(&region, "after another mapping", in_last_quarter)?;
    for page in 0..PAGES {
        match in_last_quarter(page) {
            true => region.check(page, 1)?,
            false => ensure!(region.words(page)[0].load(Relaxed) == 0, "page {page}"),
        }
    }
    (0..PAGES).for_each(|page| region.fill(page, 5));
    ground.evict(&region)?;
    expect_existing(&region, "all of it", |_| true)?;
    check(&region, 5)?;
    call!(madvise(region.address(0), region.length(), libc::MADV_FREE))?;
    // Whatever of it is left, what is there is as it was, or zeros.
    for page in 0..PAGES {
        let word = region.words(page)[0].load(Relaxed);
        ensure!(
            word == 0 || region.check(page, 5).is_ok(),
            "page {page} after MADV_FREE"
        );
    }
    Ok(Outcome::Passed)
}

fn existence_in_children(ground: &Ground) -> Result<Outcome, Failure> {
    let region = half_a_region(ground)?;
    let child = fork("child", || {
        expect_existing(&region, "in a child", is_even)?;
        check_half(&region, 1)?;
        (0..PAGES).step_by(2).for_each(|page| region.fill(page, 2));
        ground.evict(&region)?;
        expect_existing(&region, "evicted from a child", is_even)?;
        let grandchild = fork("grandchild", || {
            expect_existing(&region, "in a grandchild", is_even)?;
            check_half(&region, 2)
        })?;
        reap(grandchild)?;
        check_half(&region, 2)
    })?;
    reap(child)?;
    expect_existing(&region, "in the parent", is_even)?;
    check_half(&region, 1)?;
    Ok(Outcome::Passed)
}
