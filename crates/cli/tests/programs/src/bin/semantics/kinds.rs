//! Kinds of memory that cannot leave as others do.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, check, ensure, fill, outcome};
use legato_base::PAGE_SIZE;
use legato_test_programs::{Arena, WORDS};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("sealed-pages", sealed_pages),
    ("sealed-pages-to-read", sealed_pages_to_read),
    ("droppable-pages", droppable_pages),
    ("seal-that-refuses-an-unmapping", seal_that_refuses),
    ("limit-that-refuses-a-mapping", limit_that_refuses),
];

/// Half of a cache of 16 MiB.
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

/// The kernel tells a userfaultfd of an unmapping before it knows that it is refused.
fn seal_that_refuses(ground: &Ground) -> Result<Outcome, Failure> {
    let region = Box::leak(Box::new(ground.region(64)?));
    fill(region, 1);
    let last = region.address(region.pages() - 1);
    match outcome!(syscall(libc::SYS_mseal, last, PAGE_SIZE, 0)) {
        Err(libc::ENOSYS) => return Ok(NO_SEALS),
        sealed => ensure!(sealed == Ok(0), "mseal: {sealed:?}"),
    }
    let refused = || {
        let unmapped = outcome!(munmap(region.address(0), region.length()));
        ensure!(unmapped == Err(libc::EPERM), "munmap: {unmapped:?}");
        let mapped = map_over(region);
        ensure!(mapped == Err(libc::EPERM), "mmap: {mapped:?}");
        check(region, 1)
    };
    ground.evict_range(region.address(0), region.length() - PAGE_SIZE)?;
    reap(fork("child", refused)?)?;
    refused()?;
    // When all of it was local the agent has believed that it is gone; and so little may stay.
    ground.press_all();
    let threads: Vec<Checked> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(refused)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|checked| checked.unwrap_or(Ok(()))).collect()
    });
    threads.into_iter().collect::<Checked>()?;
    // What is really unmapped is gone.
    let part = region.address(0);
    call!(munmap(part, 32 * PAGE_SIZE))?;
    let absent = outcome!(madvise(part, PAGE_SIZE, libc::MADV_NORMAL));
    ensure!(absent == Err(libc::ENOMEM), "after munmap: {absent:?}");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    call!(mmap(part, 32 * PAGE_SIZE, protection, flags, -1, 0))?;
    for page in 0..32 {
        region.check(page, 0)?;
    }
    Ok(Outcome::Passed)
}

/// As above, with all memory that a process may have.
fn limit_that_refuses(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(64)?;
    let few = libc::rlimit {
        rlim_cur: 1 << 20,
        rlim_max: libc::RLIM_INFINITY,
    };
    let mut before = few;
    call!(getrlimit(libc::RLIMIT_AS, &raw mut before))?;
    call!(setrlimit(libc::RLIMIT_AS, &raw const few))?;
    let mapped = map_over(&region);
    call!(setrlimit(libc::RLIMIT_AS, &raw const before))?;
    ensure!(mapped == Err(libc::ENOMEM), "mmap: {mapped:?}");
    check(&region, 1)?;
    fill(&region, 2);
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

fn map_over(region: &Arena) -> Result<usize, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let address = region.address(0);
    outcome!(mmap(address, region.length(), protection, flags, -1, 0))
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
