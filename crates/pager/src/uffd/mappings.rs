//! Mappings as the kernel describes them (proc_pid_maps(5), proc_pid_smaps(5)).

use crate::PageRange;
use legato_base::{PAGE_SHIFT, PageNumber};

/// The pages of the mapping that a line of a maps or smaps file begins with.
pub(super) fn mapping_of(line: &str) -> Option<PageRange> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let pages = end.checked_sub(start)? >> PAGE_SHIFT;
    Some(PageRange::new(PageNumber::containing(start), pages))
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
}
