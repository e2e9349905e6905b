//! One case: a kind of mapping, and what is done to it before and after its pages have left.

use crate::calls::{Call, Outcome, call, errno_name, map, name};
use crate::contents::{self, Freeable, Pages, look, page_id};
use crate::kind::{self, Kind, write_file};
use crate::operation::{Effect, Operation, PageNumbers, Region};
use crate::probe;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;
use legato_test_programs::WORDS;
use std::os::fd::{AsRawFd, OwnedFd};

/// Pages of a slot, in which one case has all it needs: room before the region, the region, and room
/// for where it is moved to.
pub(crate) const SLOT_PAGES: usize = 4096;
const REGION: usize = 1024;
const TARGET: usize = 2560;

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) number: u64,
    pub(crate) random: Random,
    slot: usize,
    region: Region,
    version: u32,
    freeable: Freeable,
    /// Something was done to a part of the region, which may be several mappings since.
    is_divided: bool,
    /// Below 2 GiB, where the kernel has chosen a place for the region and what follows it.
    low: Option<Range<usize>>,
    /// All that the case prints.
    pub(crate) text: String,
}

impl Case {
    /// Makes the mapping. A kind that the kernel refuses says so in the text, and there is nothing to do with it.
    pub(crate) fn new(number: u64, seed: u64, slot: usize) -> (Self, bool) {
        let mut random = Random::from_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
        let at = slot + REGION * PAGE_SIZE;
        let made = kind.make(number, REGION, at);
        let mut case = Self {
            number,
            random,
            slot,
            region: Region {
                base: made.unwrap_or(at),
                pages: kind.pages(),
                target: slot + TARGET * PAGE_SIZE,
            },
            version: 2,
            freeable: Freeable((kind == Kind::Droppable).then_some(u32::MAX)),
            is_divided: matches!(kind, Kind::Joined | Kind::Split),
            low: match (kind, made) {
                (Kind::Low, Ok(base)) => Some(base..base + kind::LOW_PAGES * PAGE_SIZE),
                _ => None,
            },
            text: format!("{number} {kind:?}:"),
        };
        if let Err(errno) = made {
            let _ = write!(case.text, " {}", errno_name(errno));
        }
        (case, made.is_ok())
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Is the region one mapping wherever its pages are? Elsewhere Linux 6.17 moves several at once, and joins
    /// neighbours that are alike, which where a userfaultfd is waits until both are registered (docs/limits.md).
    pub(crate) const fn is_one(&self) -> bool {
        !self.is_divided
    }

    pub(crate) const fn divide(&mut self) {
        self.is_divided = true;
    }

    /// For a process that has a copy of this memory: what it writes can be told from what its maker writes.
    pub(crate) fn count_apart(&mut self) {
        self.version += 1000;
    }

    fn slot_range(&self) -> Range<usize> {
        self.slot..self.slot + SLOT_PAGES * PAGE_SIZE
    }

    /// The number of a page of the region.
    fn number_of(&self, page: usize) -> usize {
        self.number(self.region.address(page))
    }

    fn number(&self, address: usize) -> usize {
        match &self.low {
            Some(low) if !self.slot_range().contains(&address) => {
                REGION + (address - low.start) / PAGE_SIZE
            }
            _ => (address - self.slot) / PAGE_SIZE,
        }
    }

    /// Does it, and says what came of it.
    pub(crate) fn perform(&mut self, operation: &Operation, means: &Means<'_>) -> String {
        match operation {
            Operation::Load(pages) => format!("load{}", self.load(pages)),
            Operation::Store(pages) => format!("store{}", self.store(pages)),
            Operation::FromFile(pages) => {
                let result = self.read_file(pages, means.file);
                format!("read {}-{} = {}", pages.start, pages.end, name(result))
            }
            Operation::ToFile(pages) => {
                let result = self.write_to_file(pages, means.file);
                format!("write {}-{} = {result}", pages.start, pages.end)
            }
            Operation::CopyOut(pages) => {
                let result = self.copy_out(pages, means.process);
                format!("process_vm_readv {}-{} = {result}", pages.start, pages.end)
            }
            Operation::CopyIn(pages) => {
                let result = self.copy_in(pages, means.process);
                let result = name(result);
                format!("process_vm_writev {}-{} = {result}", pages.start, pages.end)
            }
            Operation::Call {
                name: text,
                call,
                effect,
                ..
            } => {
                let outcome = match call.number {
                    libc::SYS_process_madvise => means.advise(call),
                    _ => call.make(),
                };
                format!("{text} = {}", self.after(outcome, effect))
            }
        }
    }

    fn after(&mut self, outcome: Outcome, effect: &Effect) -> String {
        match (effect, outcome) {
            (Effect::AnyResult, _) => "any".to_owned(),
            (Effect::Freeable, outcome) => {
                // Of a range with a hole what comes before it is freed, too.
                let newest = self.freeable.0.unwrap_or(0).max(self.version);
                self.freeable = Freeable(Some(newest));
                name(outcome)
            }
            (Effect::None, outcome) => name(outcome),
            (_, Err(errno)) => errno_name(errno),
            (Effect::Address(pages), Ok(address)) => self.settle(address, *pages),
            (Effect::Region(pages), Ok(address)) => {
                let text = self.settle(address, *pages);
                self.region.pages = *pages;
                self.region.base = match self.is_own(address) {
                    true => address,
                    false => self.region.target,
                };
                text
            }
        }
    }

    fn is_own(&self, address: usize) -> bool {
        let is_low = |low: &Range<usize>| low.contains(&address);
        self.slot_range().contains(&address) || self.low.as_ref().is_some_and(is_low)
    }

    /// Says where it is. What the kernel has put anywhere does not stay there, where others would have the
    /// place after it.
    fn settle(&self, address: usize, pages: usize) -> String {
        if self.is_own(address) {
            return format!("at {}", self.number(address));
        }
        let length = pages * PAGE_SIZE;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        let target = self.region.target;
        let moved = call(libc::SYS_mremap, [address, length, length, flags, target]);
        if moved.is_err() {
            let _ = call(libc::SYS_munmap, [address, length]);
        }
        format!(
            "elsewhere, then at {}",
            moved.map_or_else(errno_name, |address| self.number(address).to_string())
        )
    }

    fn load(&self, pages: &PageNumbers) -> String {
        let mut contents = Pages::new(self.number, self.freeable);
        for page in pages.clone() {
            contents.look(self.number_of(page), self.region.address(page));
        }
        contents.finish()
    }

    fn store(&mut self, pages: &PageNumbers) -> String {
        self.version += 1;
        let mut text = String::new();
        let mut last = None;
        for page in pages.clone() {
            let id = page_id(self.number, self.number_of(page));
            let result = contents::fill(self.region.address(page), id, self.version);
            if last != Some(result) {
                let _ = write!(
                    text,
                    " {page}:{}",
                    result.map_or_else(crate::calls::signal_name, |()| "ok")
                );
                last = Some(result);
            }
        }
        text
    }

    fn read_file(&mut self, pages: &PageNumbers, file: &OwnedFd) -> Outcome {
        self.version += 1;
        let numbers = self.number_of(pages.start)..self.number_of(pages.end);
        write_file(file, self.number, numbers, self.version)?;
        let address = self.region.address(pages.start);
        let length = pages.len() * PAGE_SIZE;
        call(
            libc::SYS_pread64,
            [file.as_raw_fd() as usize, address, length, 0],
        )
    }

    fn write_to_file(&self, pages: &PageNumbers, file: &OwnedFd) -> String {
        let file = file.as_raw_fd() as usize;
        let address = self.region.address(pages.start);
        match call(
            libc::SYS_pwrite64,
            [file, address, pages.len() * PAGE_SIZE, 0],
        ) {
            Err(errno) => errno_name(errno),
            Ok(written) => {
                let copy = Copy::new(written);
                // Written a moment ago.
                let read = call(libc::SYS_pread64, [file, copy.address(), written, 0]);
                match read {
                    Ok(read) if read == written => copy.describe(self, pages.start, written),
                    other => format!("{written}, and back: {other:?}"),
                }
            }
        }
    }

    fn copy_out(&self, pages: &PageNumbers, process: i32) -> String {
        let length = pages.len() * PAGE_SIZE;
        let copy = Copy::new(length);
        let local = [copy.address(), length];
        let remote = [self.region.address(pages.start), length];
        match copy_between(libc::SYS_process_vm_readv, process, local, remote) {
            Err(errno) => errno_name(errno),
            Ok(copied) => copy.describe(self, pages.start, copied),
        }
    }

    fn copy_in(&mut self, pages: &PageNumbers, process: i32) -> Outcome {
        self.version += 1;
        let mut bytes = vec![0; pages.len() * PAGE_SIZE];
        for (page, bytes) in pages.clone().zip(bytes.chunks_exact_mut(PAGE_SIZE)) {
            contents::filled(
                page_id(self.number, self.number_of(page)),
                self.version,
                bytes,
            );
        }
        let local = [bytes.as_ptr().expose_provenance(), bytes.len()];
        let remote = [self.region.address(pages.start), bytes.len()];
        copy_between(libc::SYS_process_vm_writev, process, local, remote)
    }

    /// Everything that the case can reach.
    pub(crate) fn look(&self) -> String {
        let mut text = look(self.number, self.slot_range(), 0, self.freeable);
        if let Some(low) = &self.low {
            text.push_str(" low:");
            text.push_str(&look(self.number, low.clone(), REGION, self.freeable));
        }
        text
    }

    /// Makes everything of the region accessible that can be.
    pub(crate) fn open(&mut self) {
        let length = self.region.pages * PAGE_SIZE;
        let all = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        for base in [self.region.base, self.region.target] {
            let _ = call(libc::SYS_mprotect, [base, length, all]);
        }
    }

    pub(crate) fn store_all(&mut self) -> String {
        self.store(&(0..self.region.pages))
    }

    /// Changes a bit of the first page, if it can be written.
    pub(crate) fn flip_bit(&self) {
        let address = self.region.address(0) + PAGE_SIZE / 2;
        if let Ok(word) = probe::load(address) {
            let _ = probe::store(address, word ^ 1 << 20);
        }
    }

    /// Takes all its memory away; false if it is sealed, and its slot of no use any more.
    pub(crate) fn remove(self) -> bool {
        if let Some(low) = &self.low {
            // A seal keeps it.
            let _ = call(libc::SYS_munmap, [low.start, low.len()]);
        }
        reserve(self.slot, SLOT_PAGES).is_ok()
    }
}

/// Keeps an address range from others, and puts nothing there.
pub(crate) fn reserve(address: usize, pages: usize) -> Outcome {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map(address, pages * PAGE_SIZE, libc::PROT_NONE, flags, -1)
}

/// The means by which operations are made.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    /// In memory, and empty or of any content.
    pub(crate) file: &'a OwnedFd,
    /// Whose memory it is.
    pub(crate) process: i32,
}

impl Means<'_> {
    /// process_madvise(2) of the address, length and advice.
    fn advise(&self, call: &Call) -> Outcome {
        let [address, length, advice, ..] = call.arguments;
        let process = crate::calls::call(libc::SYS_pidfd_open, [self.process as usize, 0])?;
        let vector = [address, length];
        let vector = vector.as_ptr().expose_provenance();
        let call = Call::new(libc::SYS_process_madvise, [process, vector, 1, advice, 0]);
        let outcome = call.make();
        crate::calls::call(libc::SYS_close, [process])?;
        outcome
    }
}

fn copy_between(
    number: libc::c_long,
    process: i32,
    local: [usize; 2],
    remote: [usize; 2],
) -> Outcome {
    let [local, remote] = [&local, &remote].map(|vector| vector.as_ptr().expose_provenance());
    call(number, [process as usize, local, 1, remote, 1, 0])
}

/// A copy of some pages.
struct Copy(Vec<AtomicU64>);

impl Copy {
    fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(!0)).collect())
    }

    fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// So many bytes were copied from a page of the region on.
    fn describe(&self, case: &Case, first: usize, bytes: usize) -> String {
        let mut contents = Pages::new(case.number, case.freeable);
        for (index, words) in self.0[..bytes / 8].chunks(WORDS).enumerate() {
            if words.len() == WORDS {
                contents.look_at(case.number_of(first + index), words);
            }
        }
        format!("{bytes}{}", contents.finish())
    }
}
