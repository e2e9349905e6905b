//! Operations on a region: one call or one access, over a part of it.

use crate::calls::Call;
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;

/// Pages of a region by their number in it. Those past its end are whatever is there.
pub(crate) type PageNumbers = Range<usize>;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Load(PageNumbers),
    Store(PageNumbers),
    /// The kernel writes what it reads from a file.
    FromFile(PageNumbers),
    /// The kernel writes to a file what it reads.
    ToFile(PageNumbers),
    /// process_vm_readv(2).
    CopyOut(PageNumbers),
    /// process_vm_writev(2).
    CopyIn(PageNumbers),
    Call {
        name: String,
        pages: PageNumbers,
        call: Call,
        effect: Effect,
    },
}

impl Operation {
    /// May the region be several mappings afterwards?
    pub(crate) fn may_divide(&self, region: &Region) -> bool {
        matches!(self, Self::Call { pages, .. } if *pages != (0..region.pages))
    }
}

/// The meaning of a call that has succeeded, for whoever looks on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// Its result is the kernel's own affair.
    AnyResult,
    /// All that is there now may be zeros from now on (MADV_FREE).
    Freeable,
    /// The result is the address of so many pages.
    Address(usize),
    /// The result is the address of the whole region, which has so many pages now.
    Region(usize),
}

/// Where a region is, and how large it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) base: usize,
    pub(crate) pages: usize,
    /// Reserved, for moves, and as large as the largest region.
    pub(crate) target: usize,
}

impl Region {
    pub(crate) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Advices of madvise(2), Linux 6.18, in the order of their numbers. Left out: MADV_HWPOISON and MADV_SOFT_OFFLINE, which
/// take the machine's memory away; and what is otherwise on far memory (docs/limits.md): MADV_GUARD_INSTALL,
/// MADV_GUARD_REMOVE, MADV_DONTDUMP and MADV_DODUMP.
const ADVICE: [(&str, i32); 24] = [
    ("NORMAL", 0),
    ("RANDOM", 1),
    ("SEQUENTIAL", 2),
    ("WILLNEED", 3),
    ("DONTNEED", 4),
    ("FREE", libc::MADV_FREE),
    ("REMOVE", 9),
    ("DONTFORK", 10),
    ("DOFORK", 11),
    ("MERGEABLE", 12),
    ("UNMERGEABLE", 13),
    ("HUGEPAGE", 14),
    ("NOHUGEPAGE", 15),
    ("WIPEONFORK", 18),
    ("KEEPONFORK", 19),
    ("COLD", 20),
    ("PAGEOUT", 21),
    ("POPULATE_READ", 22),
    ("POPULATE_WRITE", 23),
    ("DONTNEED_LOCKED", 24),
    ("COLLAPSE", COLLAPSE),
    // As often as not, what changes contents.
    ("DONTNEED", 4),
    ("FREE", libc::MADV_FREE),
    ("unknown", 77),
];
const COLLAPSE: i32 = 25;

const PROTECTIONS: [(&str, i32); 6] = [
    ("---", 0),
    ("r--", 1),
    ("rw-", 3),
    ("r-x", 5),
    ("rwx", 7),
    ("-w-", 2),
];

/// Advices that another process may give (process_madvise(2)).
const REMOTE_ADVICE: [(&str, i32); 4] = [
    ("COLD", 20),
    ("PAGEOUT", 21),
    ("WILLNEED", 3),
    ("COLLAPSE", COLLAPSE),
];

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

/// A part of a region: all, one page, any part, or one that reaches past the end.
fn pages(random: &mut Random, region: &Region) -> PageNumbers {
    let count = region.pages as u64;
    let [first, second] = [random.below(count), random.below(count)].map(|page| page as usize);
    match random.below(16) {
        0..5 => 0..region.pages,
        5..8 => first..first + 1,
        8..15 => first.min(second)..first.max(second) + 1,
        _ => first..region.pages + 2,
    }
}

/// Anything that a process does to its own memory; moves only if they come out the same everywhere.
pub(crate) fn any(random: &mut Random, region: &Region, may_move: bool) -> Operation {
    match random.below(32) {
        0..2 => Operation::Load(pages(random, region)),
        2..5 => Operation::Store(pages(random, region)),
        5 => Operation::FromFile(pages(random, region)),
        6 => Operation::ToFile(pages(random, region)),
        7 => Operation::CopyOut(pages(random, region)),
        8 => Operation::CopyIn(pages(random, region)),
        9..15 => advise(random, region),
        15..19 => protect(random, region),
        19..25 if may_move => remap(random, region),
        25..27 => map_over(random, region),
        27 => unmap(random, region),
        _ => other(random, region),
    }
}

/// Anything that another process does to it.
pub(crate) fn from_outside(random: &mut Random, region: &Region) -> Operation {
    match random.below(3) {
        0 => Operation::CopyOut(pages(random, region)),
        1 => Operation::CopyIn(pages(random, region)),
        _ => {
            let (name, advice) = pick(random, &REMOTE_ADVICE);
            let pages = pages(random, region);
            process_advice(name, advice, pages, region)
        }
    }
}

fn over(name: &str, pages: &PageNumbers, call: Call, effect: Effect) -> Operation {
    Operation::Call {
        name: format!("{name} {}-{}", pages.start, pages.end),
        pages: pages.clone(),
        call,
        effect,
    }
}

fn bytes(region: &Region, pages: &PageNumbers) -> [usize; 2] {
    [region.address(pages.start), pages.len() * PAGE_SIZE]
}

fn advise(random: &mut Random, region: &Region) -> Operation {
    let (name, advice) = pick(random, &ADVICE);
    let pages = pages(random, region);
    let [address, length] = bytes(region, &pages);
    let call = Call::new(libc::SYS_madvise, [address, length, advice as usize]);
    let effect = match advice {
        libc::MADV_FREE => Effect::Freeable,
        // Needs huge pages that happen to be free; and docs/limits.md.
        COLLAPSE => Effect::AnyResult,
        _ => Effect::None,
    };
    over(name, &pages, call, effect)
}

fn process_advice(name: &str, advice: i32, pages: PageNumbers, region: &Region) -> Operation {
    let [address, length] = bytes(region, &pages);
    // The process and the vector are put in by whoever makes the call.
    let call = Call::new(
        libc::SYS_process_madvise,
        [address, length, advice as usize],
    );
    let effect = match advice {
        COLLAPSE => Effect::AnyResult,
        _ => Effect::None,
    };
    over(&format!("process_madvise {name}"), &pages, call, effect)
}

fn protect(random: &mut Random, region: &Region) -> Operation {
    let (name, protection) = pick(random, &PROTECTIONS);
    let pages = pages(random, region);
    let [address, length] = bytes(region, &pages);
    let call = match random.ratio(1, 6) {
        // Without a key, which is the same as mprotect.
        true => Call::new(
            libc::SYS_pkey_mprotect,
            [address, length, protection as usize, usize::MAX],
        ),
        false => Call::new(libc::SYS_mprotect, [address, length, protection as usize]),
    };
    over(&format!("mprotect {name}"), &pages, call, Effect::None)
}

fn unmap(random: &mut Random, region: &Region) -> Operation {
    let pages = pages(random, region);
    let call = Call::new(libc::SYS_munmap, bytes(region, &pages));
    over("munmap", &pages, call, Effect::None)
}

fn map_over(random: &mut Random, region: &Region) -> Operation {
    let pages = pages(random, region);
    let [address, length] = bytes(region, &pages);
    let no_replace = libc::MAP_FIXED_NOREPLACE;
    let (name, protection, flags) = pick(
        random,
        &[
            ("private", READ_WRITE, PRIVATE | libc::MAP_FIXED),
            (
                "shared",
                READ_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            ),
            (
                "reserved",
                0,
                PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED,
            ),
            (
                "populated",
                READ_WRITE,
                PRIVATE | libc::MAP_POPULATE | libc::MAP_FIXED,
            ),
            ("no-replace", READ_WRITE, PRIVATE | no_replace),
        ],
    );
    let arguments = [
        address,
        length,
        protection as usize,
        flags as usize,
        usize::MAX,
        0,
    ];
    let call = Call::new(libc::SYS_mmap, arguments);
    let effect = Effect::Address(pages.len());
    over(&format!("mmap {name}"), &pages, call, effect)
}

/// mremap(2) of the whole region mostly. Not of what is past its end: Linux 6.17 moves that too, but not where a
/// userfaultfd is (`vma_multi_allowed` of mm/mremap.c; docs/limits.md).
fn remap(random: &mut Random, region: &Region) -> Operation {
    let pages = match random.ratio(3, 4) {
        true => 0..region.pages,
        false => {
            let any = pages(random, region);
            any.start..any.end.min(region.pages)
        }
    };
    let is_whole = pages == (0..region.pages);
    let count = pages.len();
    let other = match random.below(6) {
        0..3 => count,
        3 => count.div_ceil(2),
        4 => count + 5,
        _ => count + 1,
    };
    let (may_move, fixed, keep) = (
        libc::MREMAP_MAYMOVE,
        libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        libc::MREMAP_DONTUNMAP,
    );
    let [address, length] = bytes(region, &pages);
    let overlapping = address.wrapping_sub(PAGE_SIZE);
    let (name, length, new, flags, target) = match random.below(10) {
        0 => ("mremap in place", length, other, 0, 0),
        1..3 => ("mremap anywhere", length, other, may_move, 0),
        3..6 => ("mremap to target", length, other, fixed, region.target),
        6 => ("mremap and keep", length, count, may_move | keep, 0),
        7 => (
            "mremap to target and keep",
            length,
            count,
            fixed | keep,
            region.target,
        ),
        8 => ("mremap of nothing", 0, count, fixed, region.target),
        _ => ("mremap overlapping", length, count, fixed, overlapping),
    };
    let arguments = [address, length, new * PAGE_SIZE, flags as usize, target];
    let call = Call::new(libc::SYS_mremap, arguments);
    // One that is kept, or was another's copy, is looked at where it was, too.
    let effect = match is_whole && flags & keep == 0 && length > 0 {
        true => Effect::Region(new),
        false => Effect::Address(new),
    };
    over(&format!("{name} to {new}"), &pages, call, effect)
}

fn other(random: &mut Random, region: &Region) -> Operation {
    let pages = pages(random, region);
    let [address, length] = bytes(region, &pages);
    let name = c"other".as_ptr().expose_provenance();
    let vector = RESIDENT.as_ptr().expose_provenance();
    let set_name = [
        libc::PR_SET_VMA as usize,
        libc::PR_SET_VMA_ANON_NAME as usize,
        address,
        length,
        name,
    ];
    let nodes = (&raw const FIRST_NODE).expose_provenance();
    let bind = |mode: i32, flags: u32| {
        let arguments = [address, length, mode as usize, nodes, 64, flags as usize];
        Call::new(libc::SYS_mbind, arguments)
    };
    let (name, call) = match random.below(15) {
        0 => ("mlock", Call::new(libc::SYS_mlock, [address, length])),
        1 => {
            let flags = libc::MLOCK_ONFAULT as usize;
            (
                "mlock2 on fault",
                Call::new(libc::SYS_mlock2, [address, length, flags]),
            )
        }
        2 => ("munlock", Call::new(libc::SYS_munlock, [address, length])),
        3 => ("mseal", Call::new(libc::SYS_mseal, [address, length, 0])),
        4 => {
            let flags = libc::MS_SYNC as usize;
            (
                "msync",
                Call::new(libc::SYS_msync, [address, length, flags]),
            )
        }
        5 => {
            let flags = (libc::MS_ASYNC | libc::MS_INVALIDATE) as usize;
            (
                "msync invalidate",
                Call::new(libc::SYS_msync, [address, length, flags]),
            )
        }
        6 => (
            "mincore",
            Call::new(libc::SYS_mincore, [address, length, vector]),
        ),
        7 => ("name", Call::new(libc::SYS_prctl, set_name)),
        8 => ("mbind", bind(libc::MPOL_PREFERRED, 0)),
        9 => ("mbind and move", bind(libc::MPOL_BIND, MPOL_MF_MOVE)),
        10 => {
            // Of a shared mapping, page 1 of it at the beginning.
            let arguments = [address, length, 0, 1, 0];
            (
                "remap_file_pages",
                Call::new(libc::SYS_remap_file_pages, arguments),
            )
        }
        11..13 => {
            let (name, advice) = pick(random, &ADVICE);
            if advice != libc::MADV_FREE {
                return process_advice(name, advice, pages, region);
            }
            return process_advice("DONTNEED", libc::MADV_DONTNEED, pages, region);
        }
        13 => ("munlock", Call::new(libc::SYS_munlock, [address, length])),
        _ => {
            // Not where a page begins.
            let arguments = [address + 1, length, libc::MADV_DONTNEED as usize];
            ("madvise unaligned", Call::new(libc::SYS_madvise, arguments))
        }
    };
    over(name, &pages, call, Effect::None)
}

/// Flag of mbind(2); not in the libc crate.
const MPOL_MF_MOVE: u32 = 2;

/// A node set with the first node.
static FIRST_NODE: u64 = 1;

/// Where mincore writes what nobody looks at: far pages are not resident.
static RESIDENT: [core::sync::atomic::AtomicU8; 2048] =
    [const { core::sync::atomic::AtomicU8::new(0) }; 2048];
