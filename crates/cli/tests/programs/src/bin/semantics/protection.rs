//! Locked, populated and protected memory, and code.

use crate::ground::{
    Case, Checked, Failure, Ground, Outcome, call, check, ensure, fill, outcome, resident,
};
use crate::signals::install;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("lock", lock),
    ("lock-on-fault", lock_on_fault),
    ("lock-all", lock_all),
    ("lock-all-on-fault", lock_all_on_fault),
    ("populate", populate),
    ("protect-and-repair", protect_and_repair),
    ("protected-pages-leave", protected_pages_leave),
    ("protected-as-soon-as-written", protected_as_soon_as_written),
    ("generated-code", generated_code),
    ("guard-pages", guard_pages),
];

const PAGES: u64 = 256;
const LENGTH: usize = PAGES as usize * PAGE_SIZE;
/// Populated at a time: of more, in a program that is seen to loop over its memory, those that came
/// first leave for those that come last (`NEWEST_KEPT` of the pager).
const POPULATED: u64 = 64;
/// Linux 6.13; not in the libc crate.
const MADV_GUARD_INSTALL: libc::c_int = 102;
const MADV_GUARD_REMOVE: libc::c_int = 103;

fn expect_resident(region: &Arena, when: &str) -> Checked {
    let pages = region.pages() as usize;
    let found = resident(region.address(0), region.length())?;
    ensure!(
        found == pages,
        "{when}: {found} of {pages} pages are resident"
    );
    Ok(())
}

fn lock(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    call!(mlock(region.address(0), LENGTH))?;
    expect_resident(&region, "after mlock")?;
    check(&region, 1)?;
    fill(&region, 2);
    ground.press_all();
    expect_resident(&region, "locked")?;
    check(&region, 2)?;
    call!(munlock(region.address(0), LENGTH))?;
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

fn lock_on_fault(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let on_fault = 1; // MLOCK_ONFAULT of mlock(2)
    call!(syscall(
        libc::SYS_mlock2,
        region.address(0),
        LENGTH,
        on_fault
    ))?;
    if ground.expect_evicted {
        let found = resident(region.address(0), LENGTH)?;
        ensure!(found == 0, "{found} pages came before they were touched");
    }
    check(&region, 1)?;
    fill(&region, 2);
    ground.press_all();
    expect_resident(&region, "locked on fault")?;
    check(&region, 2)?;
    call!(munlock(region.address(0), LENGTH))?;
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

/// All of the program's memory at once. On far memory that is more than can be locked, however
/// little it is.
fn lock_all(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    ground.give_filler_back()?;
    if ground.expect_evicted {
        for flags in [libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE] {
            let result = outcome!(mlockall(flags));
            ensure!(result == Err(libc::ENOMEM), "mlockall: {result:?}");
        }
        check(&region, 1)?;
        return Ok(Outcome::Passed);
    }
    call!(mlockall(libc::MCL_CURRENT))?;
    expect_resident(&region, "after mlockall")?;
    check(&region, 1)?;
    fill(&region, 2);
    check(&region, 2)?;
    call!(munlockall())?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

/// What comes later is locked too: also new memory.
fn lock_all_on_fault(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    ground.give_filler_back()?;
    call!(mlockall(
        libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT
    ))?;
    check(&region, 1)?;
    let new = crate::ground::filled_region(PAGES)?;
    fill(&region, 2);
    expect_resident(&region, "locked on fault")?;
    expect_resident(&new, "new and locked")?;
    check(&region, 2)?;
    check(&new, 1)?;
    call!(munlockall())?;
    Ok(Outcome::Passed)
}

/// Pages under a guard are zeros once it is gone. On far memory there is none, as before Linux 6.13:
/// the pages are what they were.
fn guard_pages(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let result = outcome!(madvise(region.address(0), LENGTH / 2, MADV_GUARD_INSTALL));
    let installed = result.is_ok();
    ensure!(
        installed || result == Err(libc::EINVAL),
        "the guard: {result:?}"
    );
    ensure!(!(installed && ground.expect_evicted), "there is a guard");
    if installed {
        call!(madvise(region.address(0), LENGTH / 2, MADV_GUARD_REMOVE))?;
    }
    for page in 0..PAGES {
        region.check(page, u32::from(!installed || page >= PAGES / 2))?;
    }
    Ok(Outcome::Passed)
}

fn populate(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(POPULATED)?;
    for advice in [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE] {
        ground.evict(&region)?;
        call!(madvise(region.address(0), region.length(), advice))?;
        // They are not locked: with memory short some may be on their way out again.
        let found = resident(region.address(0), region.length())? as u64;
        ensure!(found >= POPULATED / 2, "{found} pages are populated");
        check(&region, 1)?;
    }
    for advice in [libc::MADV_WILLNEED, libc::MADV_COLD, libc::MADV_PAGEOUT] {
        ground.evict(&region)?;
        call!(madvise(region.address(0), region.length(), advice))?;
        check(&region, 1)?;
        call!(madvise(region.address(0), region.length(), advice))?;
        check(&region, 1)?;
    }
    call!(mprotect(
        region.address(0),
        region.length(),
        libc::PROT_READ
    ))?;
    let result = crate::ground::outcome!(madvise(
        region.address(0),
        region.length(),
        libc::MADV_POPULATE_WRITE
    ));
    ensure!(
        result == Err(libc::EINVAL),
        "populating read-only memory gives {result:?}"
    );
    Ok(Outcome::Passed)
}

/// What the handler makes a page's protection, and how often it did.
static REPAIR: AtomicI32 = AtomicI32::new(0);
static REPAIRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn repair(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; SIGSEGV carries an address. mprotect is what
    // garbage collectors call here.
    let result = unsafe {
        let page = (*info).si_addr() as usize & !(PAGE_SIZE - 1);
        let address = core::ptr::without_provenance_mut(page);
        libc::mprotect(address, PAGE_SIZE, REPAIR.load(SeqCst))
    };
    if result != 0 || REPAIRED.fetch_add(1, SeqCst) > 100_000 {
        std::process::abort();
    }
}

/// As collectors and databases do it: each page is protected and its first access repairs it.
fn protect_and_repair(ground: &Ground) -> Result<Outcome, Failure> {
    const BOTH: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
    let region = ground.far_region(PAGES)?;
    install(libc::SIGSEGV, 0, repair)?;
    let mut version = 1;
    for protection in [libc::PROT_NONE, libc::PROT_READ] {
        for repaired in [libc::PROT_READ, BOTH] {
            ground.evict(&region)?;
            region.protect(protection)?;
            REPAIR.store(repaired, SeqCst);
            let before = REPAIRED.load(SeqCst);
            check(&region, version)?;
            let reads = REPAIRED.load(SeqCst) - before;
            let expected = if protection == libc::PROT_NONE {
                PAGES
            } else {
                0
            };
            ensure!(
                reads == expected,
                "{reads} signals by reading, not {expected}"
            );
            REPAIR.store(BOTH, SeqCst);
            let before = REPAIRED.load(SeqCst);
            version += 1;
            fill(&region, version);
            let writes = REPAIRED.load(SeqCst) - before;
            let none = protection == libc::PROT_NONE && repaired == BOTH;
            let expected = if none { 0 } else { PAGES };
            ensure!(
                writes == expected,
                "{writes} signals by writing, not {expected}"
            );
            region.protect(BOTH)?;
            ground.evict(&region)?;
            check(&region, version)?;
        }
    }
    Ok(Outcome::Passed)
}

/// Protected while resident, then memory is short, then made accessible again.
fn protected_pages_leave(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    check(&region, 1)?;
    region.protect(libc::PROT_READ)?;
    ground.evict(&region)?;
    check(&region, 1)?;
    region.protect(libc::PROT_NONE)?;
    ground.press_all();
    region.protect(libc::PROT_READ)?;
    check(&region, 1)?;
    region.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    fill(&region, 2);
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

/// Most of it is read only whenever somebody looks for what could leave.
fn protected_as_soon_as_written(_: &Ground) -> Result<Outcome, Failure> {
    let mut parts = Vec::new();
    for version in 1..=64 {
        let part = Arena::new(256)?;
        fill(&part, version);
        part.protect(libc::PROT_READ)?;
        parts.push((part, version));
    }
    let both = libc::PROT_READ | libc::PROT_WRITE;
    for (part, version) in &parts {
        check(part, *version)?;
        part.protect(both)?;
        fill(part, 100 + version);
    }
    for (part, version) in &parts {
        check(part, 100 + version)?;
    }
    Ok(Outcome::Passed)
}

/// `mov eax, value; ret`
fn code(value: u32) -> [u8; 6] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xB8, a, b, c, d, 0xC3]
}

/// Code that is written, leaves, and is called when it comes back; and again with other code.
fn generated_code(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    for round in 1..=3_u32 {
        for page in 0..PAGES {
            let bytes = code(round * 1000 + page as u32);
            // SAFETY: the page is writable and only this thread uses it.
            unsafe { region.address(page).cast::<[u8; 6]>().write(bytes) };
        }
        ground.evict(&region)?;
        region.protect(libc::PROT_READ | libc::PROT_EXEC)?;
        for page in 0..PAGES {
            // SAFETY: the page holds a function without arguments that returns an integer.
            let value = unsafe {
                let function: extern "C" fn() -> u32 = core::mem::transmute(region.address(page));
                function()
            };
            let expected = round * 1000 + page as u32;
            ensure!(
                value == expected,
                "the code of page {page} gives {value}, not {expected}"
            );
        }
        ground.press_all();
        region.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    }
    Ok(Outcome::Passed)
}
