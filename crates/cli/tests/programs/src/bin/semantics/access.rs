//! Loads and stores.

use crate::ground::{Case, Checked, Failure, Ground, Outcome, bytes_of, check, ensure};
use core::sync::atomic::Ordering::Relaxed;
use legato_base::PAGE_SIZE;
use legato_test_programs::{Arena, WORDS};
use std::sync::Barrier;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("every-width", every_width),
    ("atomic-operations", atomic_operations),
    ("string-instructions", string_instructions),
    ("one-page-many-threads", one_page_many_threads),
];

/// Loads and stores of every width at every offset before the end of a page, so that nearly all
/// of them touch two pages, both far away.
fn every_width(ground: &Ground) -> Result<Outcome, Failure> {
    const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];
    let pairs: Vec<(usize, usize)> = WIDTHS
        .iter()
        .flat_map(|&width| (1..=width).map(move |before| (width, before)))
        .collect();
    let region = ground.far_region(4 * pairs.len() as u64)?;
    let mut expected = bytes_of(&region);
    ground.evict(&region)?;
    for (index, &(width, before)) in pairs.iter().enumerate() {
        let load = (4 * index + 1) * PAGE_SIZE - before;
        let store = (4 * index + 3) * PAGE_SIZE - before;
        let value = 0xA5C3_7E19_0F2D_4B86_1122_3344_5566_7788_u128;
        let loaded = access(&region, load, width, None);
        let bytes = &expected[load..load + width];
        let right = bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u128::from(*byte));
        ensure!(
            loaded == right,
            "{width} bytes at -{before}: {loaded:x}, not {right:x}"
        );
        access(&region, store, width, Some(value));
        let stored: Vec<u8> = (0..width).map(|byte| (value >> (8 * byte)) as u8).collect();
        expected[store..store + width].copy_from_slice(&stored);
    }
    ground.evict(&region)?;
    ensure!(
        bytes_of(&region) == expected,
        "stores changed other bytes than theirs"
    );
    Ok(Outcome::Passed)
}

/// Stores the value, or loads one.
fn access(region: &Arena, offset: usize, width: usize, value: Option<u128>) -> u128 {
    let address = region.address(0).wrapping_byte_add(offset);
    macro_rules! access {
        ($($type:ty),*) => {
            match width {
                $(width if width == size_of::<$type>() => {
                    let address = address.cast::<$type>();
                    // SAFETY: offset and width are inside the region, which no other thread uses.
                    unsafe {
                        match value {
                            Some(value) => {
                                core::ptr::write_unaligned(address, value as $type);
                                0
                            }
                            None => u128::from(core::ptr::read_unaligned(address)),
                        }
                    }
                })*
                _ => unreachable!("a width of the list"),
            }
        };
    }
    access!(u8, u16, u32, u64, u128)
}

/// The first touch of a page is a locked instruction.
fn atomic_operations(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(256)?;
    let expected = bytes_of(&region);
    ground.evict(&region)?;
    for page in 0..region.pages() {
        let index = page as usize % WORDS;
        let word = &region.words(page)[index];
        let at = page as usize * PAGE_SIZE + index * 8;
        let mut old = [0; 8];
        old.copy_from_slice(&expected[at..at + 8]);
        let old = u64::from_le_bytes(old);
        let found = match page % 4 {
            0 => word.fetch_add(3, Relaxed),
            1 => word.swap(3, Relaxed),
            2 => word.fetch_xor(3, Relaxed),
            _ => match word.compare_exchange(old, 3, Relaxed, Relaxed) {
                Ok(found) | Err(found) => found,
            },
        };
        ensure!(
            found == old,
            "page {page}: {found:x} was there, not {old:x}"
        );
        word.store(old, Relaxed);
    }
    ground.evict(&region)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

/// One instruction that reads far pages and writes far pages, faulting many times on its way.
fn string_instructions(ground: &Ground) -> Result<Outcome, Failure> {
    let from = ground.far_region(300)?;
    let to = ground.far_region(300)?;
    let expected = bytes_of(&from);
    ground.evict(&from)?;
    ground.evict(&to)?;
    let length = 290 * PAGE_SIZE + 123;
    // SAFETY: both ranges are inside their regions; rdi, rsi and rcx are declared as changed.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rdi") to.address(0).wrapping_byte_add(777) => _,
            inout("rsi") from.address(0).wrapping_byte_add(555) => _,
            inout("rcx") length => _,
            options(nostack),
        );
    }
    ground.evict(&to)?;
    let copied = bytes_of(&to);
    ensure!(
        copied[777..777 + length] == expected[555..555 + length],
        "rep movsb copied wrong"
    );
    check(&from, 1)?;
    Ok(Outcome::Passed)
}

const THREADS: u64 = 32;

/// All threads at the same missing page at once: each sees the content, and no store is lost.
fn one_page_many_threads(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(96)?;
    let barrier = Barrier::new(THREADS as usize);
    let work = &|thread: u64| -> Checked {
        let mut result = Ok(());
        for page in 0..region.pages() {
            barrier.wait();
            let words = region.words(page);
            let word = &words[8 * thread as usize + 2];
            let old = word.load(Relaxed);
            word.store(!old, Relaxed);
            words[1].fetch_add(1, Relaxed);
            word.store(old, Relaxed);
            if words[0].load(Relaxed) != page {
                result = Err(Failure(format!("thread {thread}: page {page} is another")));
            }
        }
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    for page in 0..region.pages() {
        let count = region.words(page)[1].swap(1, Relaxed);
        ensure!(count == 1 + THREADS, "page {page}: {count} additions");
        region.check(page, 1)?;
    }
    Ok(Outcome::Passed)
}
