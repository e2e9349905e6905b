//! Kinds of memory that cannot leave as others do.

use crate::ground::{Case, Failure, Ground, Outcome, call, check, ensure, fill, outcome};
use legato_base::PAGE_SIZE;
use legato_test_programs::{Arena, WORDS};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("sealed-pages", sealed_pages),
    ("sealed-pages-to-read", sealed_pages_to_read),
    ("droppable-pages", droppable_pages),
];

/// Of a cache of 16 MiB half.
const PAGES: u64 = 2048;

/// mseal(2), from Linux 6.10 on. Sealed memory stays until the process ends.
fn sealed(protection: libc::c_int) -> Result<Option<&'static Arena>, Failure> {
    let region = Box::leak(Box::new(Arena::new(PAGES)?));
    fill(region, 1);
    region.protect(protection)?;
    let sealed = outcome!(syscall(
        libc::SYS_mseal,
        region.address(0),
        region.length(),
        0
    ));
    match sealed {
        Err(libc::ENOSYS) => Ok(None),
        Err(errno) => Err(Failure(format!("mseal: errno {errno}"))),
        Ok(_) => Ok(Some(region)),
    }
}

const NO_SEALS: Outcome = Outcome::Skipped("the kernel has no mseal");

fn sealed_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let Some(region) = sealed(libc::PROT_READ | libc::PROT_WRITE)? else {
        return Ok(NO_SEALS);
    };
    ground.evict(region)?;
    check(region, 1)?;
    fill(region, 2);
    ground.evict(region)?;
    check(region, 2)?;
    Ok(Outcome::Passed)
}

/// Nothing takes such pages away: neither mremap nor madvise. Everything else must leave then, and the program
/// go on.
fn sealed_pages_to_read(ground: &Ground) -> Result<Outcome, Failure> {
    let Some(region) = sealed(libc::PROT_READ)? else {
        return Ok(NO_SEALS);
    };
    let other = ground.far_region(512)?;
    for _ in 0..2 {
        ground.press_all();
        check(region, 1)?;
        check(&other, 1)?;
    }
    let refused = outcome!(munmap(region.address(0), region.length()));
    ensure!(refused == Err(libc::EPERM), "munmap: {refused:?}");
    Ok(Outcome::Passed)
}

/// Memory that may be dropped at any time (MAP_DROPPABLE, from Linux 6.11), more of it than there may be: each page
/// is as it was written, or zeros.
fn droppable_pages(ground: &Ground) -> Result<Outcome, Failure> {
    const MAP_DROPPABLE: libc::c_int = 8;
    let pages = ground.pages();
    let length = pages as usize * PAGE_SIZE;
    let mapped = outcome!(mmap(
        core::ptr::null_mut(),
        length,
        libc::PROT_READ | libc::PROT_WRITE,
        MAP_DROPPABLE | libc::MAP_ANONYMOUS,
        -1,
        0
    ));
    let Ok(start) = mapped else {
        return Ok(Outcome::Skipped("the kernel has no droppable memory"));
    };
    let word = |page: u64| {
        let address = start + page as usize * PAGE_SIZE + (page as usize % WORDS) * 8;
        // SAFETY: inside the mapping, aligned, and reached as atomics only.
        unsafe { &*core::ptr::with_exposed_provenance::<core::sync::atomic::AtomicU64>(address) }
    };
    for page in 0..pages {
        word(page).store(page + 1, Relaxed);
    }
    let other = ground.far_region(512)?;
    for page in 0..pages {
        let found = word(page).load(Relaxed);
        ensure!(
            found == 0 || found == page + 1,
            "page {page} has {found}, which nobody has written there"
        );
    }
    check(&other, 1)?;
    call!(munmap(
        core::ptr::with_exposed_provenance_mut(start),
        length
    ))?;
    Ok(Outcome::Passed)
}
