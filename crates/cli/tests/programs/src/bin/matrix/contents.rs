//! The memory at the addresses of a case: which mappings there are, and what each page holds.

use crate::probe::{self, Signal};
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use legato_base::PAGE_SIZE;
use legato_test_programs::{WORDS, check_page, fill_page};

/// A page of one case; no two cases have the same.
pub(crate) const fn page_id(case: u64, page: usize) -> u64 {
    (case + 1) << 16 | page as u64
}

/// The content of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Zeros,
    /// As page `id` was filled with `version`.
    Filled {
        id: u64,
        version: u32,
    },
    /// Either zeros or what was here: the kernel may free it at any time.
    MaybeFreed,
    /// Parts of different contents.
    Torn,
    Fails(Signal),
}

/// Content that may have become zeros: all that is not newer than this version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freeable(pub(crate) Option<u32>);

/// Fills what is at `address`, the first word of it as one who may fail.
pub(crate) fn fill(address: usize, id: u64, version: u32) -> probe::Probed<()> {
    probe::store(address, 0)?;
    // SAFETY: the page is a case's, may be written, and is reached as atomics only.
    let words = unsafe { words_at(address) };
    fill_page(words, id, version);
    Ok(())
}

/// The bytes of a page as it is filled.
pub(crate) fn filled(id: u64, version: u32, bytes: &mut [u8]) {
    let page: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    fill_page(&page, id, version);
    for (word, bytes) in page.iter().zip(bytes.chunks_exact_mut(8)) {
        let word = word.load(core::sync::atomic::Ordering::Relaxed);
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

unsafe fn words_at(address: usize) -> &'static [AtomicU64] {
    let start = core::ptr::with_exposed_provenance(address);
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start, WORDS) }
}

fn content(address: usize) -> Content {
    match probe::load(address) {
        Err(signal) => Content::Fails(signal),
        // SAFETY: the page could just be read, and only the caller changes it.
        Ok(_) => known(unsafe { words_at(address) }),
    }
}

fn known(words: &[AtomicU64]) -> Content {
    use core::sync::atomic::Ordering::Relaxed;
    if check_page(words, 0, 0).is_ok() {
        return Content::Zeros;
    }
    let (id, version) = (words[0].load(Relaxed), words[1].load(Relaxed));
    match u32::try_from(version) {
        Ok(version) if version > 0 && check_page(words, id, version).is_ok() => {
            Content::Filled { id, version }
        }
        _ => Content::Torn,
    }
}

/// Says what pages hold: runs of pages, each as `pages:content`. A page of this case is named by its number
/// where it is not at its place.
pub(crate) struct Pages {
    case: u64,
    freeable: Freeable,
    text: String,
    run: Option<(Range<usize>, Content)>,
}

impl Pages {
    pub(crate) fn new(case: u64, freeable: Freeable) -> Self {
        Self {
            case,
            freeable,
            text: String::new(),
            run: None,
        }
    }

    /// The page at an address, which is page `number` of what is looked at.
    pub(crate) fn look(&mut self, number: usize, address: usize) {
        self.add(number, content(address));
    }

    /// A page that was copied.
    pub(crate) fn look_at(&mut self, number: usize, words: &[AtomicU64]) {
        self.add(number, known(words));
    }

    fn add(&mut self, number: usize, content: Content) {
        let content = match (content, self.freeable.0) {
            (Content::Zeros, Some(_)) => Content::MaybeFreed,
            (Content::Filled { id, version }, Some(newest))
                if version <= newest && id >> 16 == self.case + 1 =>
            {
                Content::MaybeFreed
            }
            _ => content,
        };
        if let Some((pages, first)) = &mut self.run
            && pages.end == number
            && follows(*first, pages.len() as u64, content)
        {
            pages.end += 1;
            return;
        }
        self.end_run();
        self.run = Some((number..number + 1, content));
    }

    fn end_run(&mut self) {
        let Some((pages, content)) = self.run.take() else {
            return;
        };
        let Range { start, end } = pages;
        // Writing to a string cannot fail.
        let _ = write!(self.text, " {start}-{end}:");
        let _ = match content {
            Content::Zeros => write!(self.text, "0"),
            Content::MaybeFreed => write!(self.text, "?"),
            Content::Torn => write!(self.text, "TORN"),
            Content::Fails(Signal::Segv) => write!(self.text, "segv"),
            Content::Fails(Signal::Bus) => write!(self.text, "bus"),
            Content::Filled { id, version } if id == page_id(self.case, start) => {
                write!(self.text, "v{version}")
            }
            Content::Filled { id, version } if id >> 16 == self.case + 1 => {
                write!(self.text, "v{version}of{}", id & 0xFFFF)
            }
            Content::Filled { id, version } => {
                write!(
                    self.text,
                    "ALIEN{}.{}v{version}",
                    (id >> 16).wrapping_sub(1),
                    id & 0xFFFF
                )
            }
        };
    }

    pub(crate) fn finish(mut self) -> String {
        self.end_run();
        self.text
    }
}

fn follows(first: Content, distance: u64, next: Content) -> bool {
    match (first, next) {
        (
            Content::Filled { id, version },
            Content::Filled {
                id: other,
                version: its,
            },
        ) => other == id + distance && its == version,
        _ => first == next,
    }
}

/// Which mappings there are at some addresses, with what they hold; the first page has the number `first`.
/// Neighbours that differ in nothing that can be seen here count as one: whether the kernel joins them
/// is its own affair.
pub(crate) fn look(case: u64, area: Range<usize>, first: usize, freeable: Freeable) -> String {
    let mut text = String::new();
    for mapping in mappings(&area) {
        let Mapping {
            bytes,
            protection,
            name,
        } = mapping;
        if protection == RESERVED && name.is_empty() {
            continue;
        }
        let number = |address: usize| first + (address - area.start) / PAGE_SIZE;
        let (start, end) = (number(bytes.start), number(bytes.end));
        // Writing to a string cannot fail.
        let _ = write!(text, " {start}-{end} {protection}{name}");
        if protection.starts_with("---") {
            continue;
        }
        let mut contents = Pages::new(case, freeable);
        for address in bytes.step_by(PAGE_SIZE) {
            contents.look(number(address), address);
        }
        let _ = write!(text, " [{} ]", contents.finish());
    }
    text
}

/// Address space that is kept for the cases and not used has this protection, and no name.
const RESERVED: &str = "---p";

/// One mapping of `/proc/self/maps`.
#[derive(Clone, Debug)]
struct Mapping {
    bytes: Range<usize>,
    protection: String,
    name: &'static str,
}

/// The part in a range of what a line of `/proc/self/maps` tells of, if there is one.
fn mapping_in(area: &Range<usize>, line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16));
    let bytes = start.ok()?.max(area.start)..end.ok()?.min(area.end);
    (!bytes.is_empty()).then(|| Mapping {
        bytes,
        protection: words.next().unwrap_or_default().to_owned(),
        name: match words.nth(3) {
            None => "",
            Some(name) if name.starts_with("[anon:") => " named",
            Some(name) if name.starts_with('[') => " special",
            Some(_) => " file",
        },
    })
}

fn mappings(area: &Range<usize>) -> Vec<Mapping> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<Mapping> = Vec::new();
    for mapping in maps.lines().filter_map(|line| mapping_in(area, line)) {
        match found.last_mut() {
            Some(last)
                if last.bytes.end == mapping.bytes.start
                    && last.protection == mapping.protection
                    && last.name == mapping.name =>
            {
                last.bytes.end = mapping.bytes.end;
            }
            _ => found.push(mapping),
        }
    }
    found
}
