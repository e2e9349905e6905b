//! What a page must hold: a stamp over all of it, and patches of other stamps over parts of it.
//!
//! Every word of a stamp's content names the stamp and its own place, so that a wrong word tells
//! who wrote it, and when.

use core::fmt;
use legato_base::PAGE_SIZE;

/// One write: process (16 bits), thread (7), count (32). Zero stands for zeros.
pub(crate) type Stamp = u64;

pub(crate) type PageBytes = [u8; PAGE_SIZE];

/// The bits of a word's place in its page.
const PLACE_BITS: u32 = 9;

/// More patches than this, and the next write takes the whole page: the model stays small.
const PATCHES_MAX: usize = 6;

/// The process number of the file that all processes read.
const FILE_PROCESS: u16 = u16::MAX;

pub(crate) fn stamp(process: u16, thread: usize, count: u32) -> Stamp {
    (u64::from(process) << 39) | ((thread as u64 & 0x7F) << 32) | u64::from(count)
}

/// The content of a page of the file.
pub(crate) fn file_stamp(page: usize) -> Stamp {
    stamp(FILE_PROCESS, 0, page as u32 + 1)
}

/// Writes the bytes of a stamp from `offset` of a page on; they go on in the next page.
pub(crate) fn render_stamp(stamp: Stamp, offset: usize, target: &mut [u8]) {
    let mut done = 0;
    while done < target.len() {
        let place = (offset + done) % PAGE_SIZE;
        let word = word(stamp, place / 8).to_le_bytes();
        let part = &word[place % 8..];
        let count = part.len().min(target.len() - done);
        target[done..done + count].copy_from_slice(&part[..count]);
        done += count;
    }
}

fn word(stamp: Stamp, index: usize) -> u64 {
    match stamp {
        0 => 0,
        _ => (stamp << PLACE_BITS) | index as u64,
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    base: Stamp,
    patches: Vec<Patch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patch {
    start: u16,
    end: u16,
    stamp: Stamp,
}

impl Content {
    pub(crate) fn of(base: Stamp) -> Self {
        let patches = Vec::new();
        Self { base, patches }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.base == 0 && self.patches.is_empty()
    }

    /// True if only whole pages may be written from now on.
    pub(crate) fn is_crowded(&self) -> bool {
        self.patches.len() >= PATCHES_MAX
    }

    pub(crate) fn put(&mut self, start: usize, end: usize, stamp: Stamp) {
        if start == 0 && end == PAGE_SIZE {
            *self = Self::of(stamp);
            return;
        }
        let (start, end) = (start as u16, end as u16);
        self.patches
            .retain(|old| old.start < start || old.end > end);
        self.patches.push(Patch { start, end, stamp });
    }

    pub(crate) fn render(&self, page: &mut PageBytes) {
        render_stamp(self.base, 0, page);
        for patch in &self.patches {
            let (start, end) = (usize::from(patch.start), usize::from(patch.end));
            render_stamp(patch.stamp, start, &mut page[start..end]);
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Named(self.base))?;
        for patch in &self.patches {
            write!(f, ", {}..{} {}", patch.start, patch.end, Named(patch.stamp))?;
        }
        Ok(())
    }
}

/// A stamp in words.
struct Named(Stamp);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(stamp) = *self;
        let (process, thread, count) = (stamp >> 39, (stamp >> 32) & 0x7F, stamp as u32);
        match stamp {
            0 => write!(f, "zeros"),
            _ if process == u64::from(FILE_PROCESS) => write!(f, "file page {}", count - 1),
            _ => write!(
                f,
                "write {count} of thread {thread} of process {process:04x}"
            ),
        }
    }
}

/// Says what the wrong bytes of a page are, run by run.
pub(crate) fn describe(found: &[u8], expected: &[u8], offset: usize) -> String {
    let wrong = |index: &usize| found[*index] != expected[*index];
    let Some(first) = (0..found.len()).find(wrong) else {
        return "nothing wrong".to_owned();
    };
    let count = (0..found.len()).filter(wrong).count();
    let last = (0..found.len()).rfind(wrong).unwrap_or(first);
    let mut text = format!(
        "{count} wrong bytes in {}..{}",
        offset + first,
        offset + last + 1
    );
    let aligned = (offset + first).next_multiple_of(8) - offset;
    if let Some(bytes) = found.get(aligned..aligned + 8) {
        let word = bytes
            .iter()
            .rev()
            .fold(0, |word, byte| (word << 8) | u64::from(*byte));
        let place = (offset + aligned) / 8;
        let is_stamped = word & ((1 << PLACE_BITS) - 1) == place as u64;
        text += &match word {
            0 => "; first whole word: zero".to_owned(),
            _ if is_stamped => format!("; first whole word: {}", Named(word >> PLACE_BITS)),
            _ => format!("; first whole word: {word:#018x}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_patch_covers_an_earlier_one() {
        let mut content = Content::of(1);
        content.put(8, 24, 2);
        content.put(16, 32, 3);
        let mut page = [0; PAGE_SIZE];
        content.render(&mut page);
        let words: Vec<_> = page[..40].chunks(8).map(|word| word[1] >> 1).collect();
        assert_eq!(words, [1, 2, 3, 3, 1]);
        content.put(0, PAGE_SIZE, 0);
        assert!(content.is_zero());
    }

    #[test]
    fn bytes_are_the_same_wherever_a_write_begins() {
        let mut page = [0; PAGE_SIZE];
        render_stamp(stamp(3, 1, 77), 0, &mut page);
        let mut part = [0; 100];
        render_stamp(stamp(3, 1, 77), 4090, &mut part);
        assert_eq!(part[..6], page[4090..]);
        assert_eq!(part[6..], page[..94]);
    }

    #[test]
    fn what_is_found_is_named() {
        let (mut expected, mut found) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        Content::of(stamp(3, 1, 77)).render(&mut expected);
        Content::of(stamp(3, 1, 76)).render(&mut found);
        let text = describe(&found[3..], &expected[3..], 3);
        assert!(
            text.ends_with("write 76 of thread 1 of process 0003"),
            "{text}"
        );
    }
}
