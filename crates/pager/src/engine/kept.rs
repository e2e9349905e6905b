//! Content of pages that were on their way when their space was forked. It is in the pager's own
//! memory until some frame's write has put it into a slot, which then all its pages share: content is
//! kept once and written once, however many children have it.

use crate::{FrameIndex, SpacePage};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::PAGE_SIZE;

type Bytes = [u8; PAGE_SIZE];

/// All kept content.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By age.
    contents: BTreeMap<Number, Content>,
    pages: BTreeMap<SpacePage, Number>,
    /// The frame that a content is in as well, or was: whoever uses this looks whether it still is.
    frames: BTreeMap<FrameIndex, Number>,
    last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number(u64);

#[derive(Debug)]
struct Content {
    bytes: Box<Bytes>,
    frame: FrameIndex,
    /// At least one.
    pages: Vec<SpacePage>,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages of the pager's own memory that there are for them.
    pub(super) fn contents(&self) -> usize {
        self.contents.len()
    }

    /// The pages, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = SpacePage> {
        self.pages.keys().copied()
    }

    /// The page has the content of a frame.
    pub(super) fn keep(&mut self, page: SpacePage, frame: FrameIndex, bytes: &Bytes) {
        let number = match self.in_frame(frame, bytes) {
            Some(number) => number,
            None => self.add(frame, bytes),
        };
        self.give(page, number);
    }

    /// The page has the content of another kept page.
    pub(super) fn share(&mut self, page: SpacePage, other: SpacePage) {
        let number = self.pages[&other];
        self.give(page, number);
    }

    /// A page with this number has a new address.
    pub(super) fn relocate(&mut self, page: SpacePage, target: SpacePage) {
        let number = self.pages[&page];
        self.give(target, number);
        self.forget(page);
    }

    /// Nobody wants the page's content.
    pub(super) fn forget(&mut self, page: SpacePage) {
        let Some(number) = self.pages.remove(&page) else {
            return;
        };
        let Some(content) = self.contents.get_mut(&number) else {
            unreachable!("invariant: a kept page has content");
        };
        content.pages.retain(|&other| other != page);
        if content.pages.is_empty() {
            self.drop_content(number);
        }
    }

    /// The page's content, into a frame that was taken for it. From there all others that have it
    /// get it too.
    pub(super) fn put(&mut self, page: SpacePage, frame: FrameIndex, into: &mut Bytes) {
        let number = self.pages[&page];
        let Some(content) = self.contents.get_mut(&number) else {
            unreachable!("invariant: a kept page has content");
        };
        *into = *content.bytes;
        let before = core::mem::replace(&mut content.frame, frame);
        self.forget_frame(before, number);
        self.frames.insert(frame, number);
        self.forget(page);
    }

    /// The pages that have the content of this frame, which a slot has as well now. They are kept no
    /// more.
    pub(super) fn written(&mut self, frame: FrameIndex, bytes: &Bytes) -> Vec<SpacePage> {
        let number = self.in_frame(frame, bytes);
        let pages = number.and_then(|number| self.drop_content(number));
        let pages = pages.unwrap_or_default();
        for page in &pages {
            self.pages.remove(page);
        }
        pages
    }

    /// The first page of what has been kept longest, and the frame where that is or was.
    pub(super) fn oldest(&self) -> Option<(SpacePage, FrameIndex)> {
        let (_, content) = self.contents.first_key_value()?;
        Some((*content.pages.first()?, content.frame))
    }

    /// True if a frame has the content of a page.
    pub(super) fn is_in(&self, page: SpacePage, bytes: &Bytes) -> bool {
        let number = self.pages.get(&page);
        let content = number.and_then(|number| self.contents.get(number));
        content.is_some_and(|content| *content.bytes == *bytes)
    }

    fn in_frame(&self, frame: FrameIndex, bytes: &Bytes) -> Option<Number> {
        let number = self.frames.get(&frame)?;
        let content = self.contents.get(number)?;
        (*content.bytes == *bytes).then_some(*number)
    }

    fn add(&mut self, frame: FrameIndex, bytes: &Bytes) -> Number {
        self.last += 1;
        let number = Number(self.last);
        let content = Content {
            bytes: Box::new(*bytes),
            frame,
            pages: Vec::new(),
        };
        self.contents.insert(number, content);
        self.frames.insert(frame, number);
        number
    }

    fn give(&mut self, page: SpacePage, number: Number) {
        if let Some(content) = self.contents.get_mut(&number) {
            content.pages.push(page);
            self.pages.insert(page, number);
        }
    }

    fn drop_content(&mut self, number: Number) -> Option<Vec<SpacePage>> {
        let content = self.contents.remove(&number)?;
        self.forget_frame(content.frame, number);
        Some(content.pages)
    }

    fn forget_frame(&mut self, frame: FrameIndex, number: Number) {
        if self.frames.get(&frame) == Some(&number) {
            self.frames.remove(&frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;
    use legato_base::PageNumber;

    fn page(child: u32, number: u64) -> SpacePage {
        SpacePage::new(SpaceId(child), PageNumber(number))
    }

    const FIRST: FrameIndex = FrameIndex(3);
    const SECOND: FrameIndex = FrameIndex(4);

    fn is_free(kept: &Kept) -> bool {
        kept.is_empty() && kept.contents.is_empty() && kept.frames.is_empty()
    }

    #[test]
    fn children_have_one_content_and_get_it_from_one_write() {
        let mut kept = Kept::default();
        for child in 1..4 {
            kept.keep(page(child, 7), FIRST, &[5; PAGE_SIZE]);
        }
        kept.share(page(4, 7), page(1, 7));
        kept.relocate(page(2, 7), page(2, 9));
        kept.forget(page(3, 7));
        assert_eq!(kept.contents.len(), 1);
        assert_eq!(kept.written(FIRST, &[6; PAGE_SIZE]), []);
        assert_eq!(kept.written(SECOND, &[5; PAGE_SIZE]), []);
        let pages = kept.written(FIRST, &[5; PAGE_SIZE]);
        assert_eq!(pages, [page(1, 7), page(4, 7), page(2, 9)]);
        assert!(is_free(&kept));
    }

    #[test]
    fn what_a_frame_holds_later_is_another_content() {
        let mut kept = Kept::default();
        kept.keep(page(1, 7), FIRST, &[5; PAGE_SIZE]);
        kept.keep(page(2, 8), FIRST, &[6; PAGE_SIZE]);
        assert_eq!(kept.oldest(), Some((page(1, 7), FIRST)));
        assert_eq!(kept.written(FIRST, &[6; PAGE_SIZE]), [page(2, 8)]);
        let mut into = [0; PAGE_SIZE];
        kept.put(page(1, 7), FIRST, &mut into);
        assert_eq!(into, [5; PAGE_SIZE]);
        assert!(is_free(&kept));
    }

    #[test]
    fn a_content_goes_on_from_the_frame_that_it_was_put_in() {
        let mut kept = Kept::default();
        kept.keep(page(1, 7), FIRST, &[5; PAGE_SIZE]);
        kept.share(page(2, 7), page(1, 7));
        let mut into = [0; PAGE_SIZE];
        kept.put(page(1, 7), SECOND, &mut into);
        assert_eq!(kept.pages().collect::<Vec<_>>(), [page(2, 7)]);
        assert!(kept.is_in(page(2, 7), &into) && !kept.is_in(page(1, 7), &into));
        assert_eq!(kept.written(FIRST, &into), []);
        assert_eq!(kept.written(SECOND, &into), [page(2, 7)]);
        assert!(is_free(&kept));
    }
}
