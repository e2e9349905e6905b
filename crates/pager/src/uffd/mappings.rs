//! Mappings as the kernel describes them (proc_pid_maps(5), proc_pid_smaps(5)).

use super::abi;
use crate::PageRange;
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PageNumber};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

/// The pages of the mapping that a line of a maps or smaps file begins with.
pub(super) fn mapping_of(line: &str) -> Option<PageRange> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let pages = end.checked_sub(start)? >> PAGE_SHIFT;
    Some(PageRange::new(PageNumber::containing(start), pages))
}

/// Finds single mappings of an address space, of which there may be tens of thousands.
#[derive(Debug)]
pub(super) enum Mappings {
    /// A maps file of a kernel that can be asked for one mapping.
    Asked(OwnedFd),
    /// All that there were, in order of address.
    Read(Vec<PageRange>),
}

impl Mappings {
    /// `read` shows the lines of the file, where the kernel cannot be asked.
    pub(super) fn of(file: OwnedFd, read: impl FnOnce(&mut dyn FnMut(&str)) -> Option<()>) -> Self {
        if matches!(ask(&file, 0), Ok(_) | Err(Errno::NOENT)) {
            return Self::Asked(file);
        }
        let mut mappings = Vec::new();
        let all = read(&mut |line| mappings.extend(mapping_of(line)));
        Self::Read(all.map_or_else(Vec::new, |()| mappings))
    }

    /// The mapping that a page is in.
    pub(super) fn containing(&self, page: PageNumber) -> Option<PageRange> {
        match self {
            Self::Asked(file) => ask(file, page.address()).ok(),
            Self::Read(mappings) => {
                let next = mappings.partition_point(|mapping| mapping.end() <= page);
                let mapping = mappings.get(next)?;
                mapping.contains(page).then_some(*mapping)
            }
        }
    }
}

/// The mapping that an address is in.
fn ask(file: &OwnedFd, address: u64) -> Result<PageRange, Errno> {
    let mut query = abi::ProcmapQuery {
        size: size_of::<abi::ProcmapQuery>() as u64,
        query_addr: address,
        ..abi::ProcmapQuery::default()
    };
    // SAFETY: the kernel writes into the structure, and nowhere else without buffers for names.
    unsafe { abi::procmap_query(file.as_fd(), &mut query) }?;
    Ok(PageRange::of_bytes(query.vma_start, query.vma_end))
}

/// The VmFlags of a mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags<'a>(pub(super) &'a str);

impl Flags<'_> {
    pub(super) fn has(self, flag: &str) -> bool {
        self.0.split_ascii_whitespace().any(|other| other == flag)
    }
}

/// Finds the mappings and their flags in the lines of a smaps file.
#[derive(Debug, Default)]
pub(super) struct FlagReader {
    mapping: Option<PageRange>,
}

impl FlagReader {
    /// Takes the next line.
    pub(super) fn line<'a>(&mut self, line: &'a str) -> Option<(PageRange, Flags<'a>)> {
        let Some(flags) = line.strip_prefix("VmFlags:") else {
            // Other lines begin with a name, and a colon ends it.
            self.mapping = mapping_of(line).or(self.mapping);
            return None;
        };
        Some((self.mapping.take()?, Flags(flags)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_whole_words_of_the_mapping_before_them() {
        let mut reader = FlagReader::default();
        assert!(reader.line("VmFlags: um").is_none());
        assert!(
            reader
                .line("1000-3000 rw-p 00000000 00:00 0 [anon:a-b]")
                .is_none()
        );
        assert!(reader.line("Size:                  8 kB").is_none());
        let (range, flags) = reader.line("VmFlags: rd xum wf").unwrap();
        assert_eq!(range, PageRange::new(PageNumber(1), 2));
        assert!(flags.has("wf") && !flags.has("f"));
        assert!(reader.line("VmFlags: um").is_none());
    }

    /// Both ways of asking agree on every mapping of this process, and on what is not mapped.
    #[test]
    fn a_mapping_that_is_asked_for_is_that_of_the_text() {
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let read = Mappings::Read(text.lines().filter_map(mapping_of).collect());
        let asked = Mappings::of(OwnedFd::from(file), |_| None);
        let Mappings::Asked(_) = asked else {
            // Before Linux 6.11: all is read.
            return;
        };
        let own = PageNumber::containing((&raw const text).addr() as u64);
        for page in [own, PageNumber(0), PageNumber(1)] {
            assert_eq!(asked.containing(page), read.containing(page), "{page:?}");
        }
        assert!(asked.containing(own).is_some());
        assert!(asked.containing(PageNumber(0)).is_none());
    }
}
