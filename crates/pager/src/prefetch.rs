//! Sequential prefetch: how many pages beyond the faulting one to bring in with it, and when.
//!
//! Each stream of accesses that was seen lately has a window. A fault where a stream was expected
//! to go on doubles its window; anything else starts a new stream with none. A stream that goes on
//! has used what was brought for it, which is the only sign of that: touching a resident page is
//! invisible. When prefetched pages are evicted without that sign the largest window shrinks, and
//! grows again only slowly.
//!
//! A window is brought in parts, the streams in turn, so that a thread that waits for another page is served
//! between two of them.

use crate::SpacePage;

/// Pages of one batch: what one MOVE takes to pay for itself (0.2 us a page from 64 on).
const WINDOW_MAX: u32 = 64;
/// Pages brought between two looks at the faults: about 50 us.
const PART: u32 = 32;
/// And while other threads fault: a part takes as long as one of these faults then, so that they share the
/// pager's time.
const PART_BESIDE_OTHERS: u32 = 4;
/// Parts that remain so short after a fault of no stream.
const OTHERS_FOR: u32 = 16;
/// Pages by which a stream may miss its expectation: threads race each other, and allocators skip a page.
const SLACK: u64 = 2;
/// Streams followed at a time: threads, or arrays that one loop walks together.
const STREAMS: usize = 16;
/// Outcomes judged at a time.
const JUDGED: u32 = 64;

/// Where the pages of a stream are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    #[default]
    Far,
    /// Nowhere yet: they read zero.
    Untouched,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The first page of the window.
    begin: u64,
    /// The first page of which nothing is known: it is brought next, or, when nothing is left to bring, the
    /// next fault of this stream is expected there.
    rest: u64,
    /// Pages of the window, without those that were there already.
    window: u32,
    /// Pages of these that have not been brought.
    left: u32,
    source: Source,
    used_at: u64,
}

impl Stream {
    fn is_expecting(&self, page: u64) -> bool {
        self.used_at > 0 && page >= self.rest && page - self.rest <= SLACK
    }

    /// True if `page` is probably brought soon.
    fn will_bring(&self, page: u64) -> bool {
        page >= self.rest && page - self.rest < u64::from(self.left)
    }

    /// The thread is as fast as what is brought for it.
    fn go_on_behind(&mut self, page: u64) {
        let passed = (page + 1 - self.rest) as u32;
        self.left = self.left.saturating_sub(passed);
        self.rest = page + 1;
    }
}

/// Where to bring pages in now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) first: SpacePage,
    /// Pages to bring.
    pub(crate) count: u32,
    pub(crate) source: Source,
    /// Of the stream.
    place: usize,
}

/// What has come of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// So many pages are dealt with: brought, or there already.
    pub(crate) passed: u32,
    pub(crate) brought: u32,
    /// The window ends with these: what is behind them is not there to bring.
    pub(crate) ends: bool,
}

/// Streams and what became of their prefetches.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    streams: [Stream; STREAMS],
    clock: u64,
    /// The stream whose turn it is.
    turn: usize,
    /// Parts that are to be short.
    short_parts: u32,
    window_limit: u32,
    brought: u32,
    unused: u32,
}

impl Default for Prefetcher {
    fn default() -> Self {
        Self {
            streams: [Stream::default(); STREAMS],
            clock: 0,
            turn: 0,
            short_parts: 0,
            window_limit: WINDOW_MAX,
            brought: 0,
            unused: 0,
        }
    }
}

impl Prefetcher {
    /// `page` faulted, and the pages behind it are probably in `source` too. If a stream goes on there, it gets
    /// a window, and expects the fault after the last page of it. Returns the pages brought earlier that
    /// have been used: so many from the first on.
    pub(crate) fn handle_fault(&mut self, page: SpacePage, source: Source) -> (SpacePage, u32) {
        self.clock += 1;
        let bits = page.bits();
        let streams = &mut self.streams;
        let mut used = (page, 0);
        let (place, window) = match streams.iter().position(|it| it.is_expecting(bits)) {
            Some(place) if streams[place].left > 0 => {
                streams[place].go_on_behind(bits);
                return used;
            }
            Some(place) => {
                let stream = streams[place];
                used = (
                    SpacePage::from_bits(stream.begin),
                    (stream.rest - stream.begin) as u32,
                );
                let grown = (stream.window * 2).clamp(2, WINDOW_MAX);
                (place, grown.min(self.window_limit))
            }
            // Another thread needs what is brought soon, or this one uses not all of it.
            None if streams.iter().any(|it| it.will_bring(bits)) => return used,
            None => {
                self.short_parts = OTHERS_FOR;
                (self.oldest(), 0)
            }
        };
        self.streams[place] = Stream {
            begin: bits + 1,
            rest: bits + 1,
            window,
            left: window,
            source,
            used_at: self.clock,
        };
        used
    }

    /// True if a window has not been brought whole.
    pub(crate) fn has_parts(&self) -> bool {
        self.streams.iter().any(|stream| stream.left > 0)
    }

    /// What to bring next. [`Self::handle_brought`] says what has come of it.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        let place = (self.turn..STREAMS)
            .chain(0..self.turn)
            .find(|&place| self.streams[place].left > 0)?;
        self.turn = (place + 1) % STREAMS;
        let stream = self.streams[place];
        let most = match self.short_parts {
            0 => PART,
            _ => PART_BESIDE_OTHERS,
        };
        self.short_parts = self.short_parts.saturating_sub(1);
        Some(Part {
            first: SpacePage::from_bits(stream.rest),
            count: stream.left.min(most),
            source: stream.source,
            place,
        })
    }

    pub(crate) fn handle_brought(&mut self, part: Part, done: Brought) {
        let stream = &mut self.streams[part.place];
        stream.rest += u64::from(done.passed);
        stream.left -= done.brought;
        if done.ends {
            stream.window -= stream.left;
            stream.left = 0;
        }
        self.brought += done.brought;
        if self.brought < JUDGED {
            return;
        }
        let mostly_wasted = self.unused * 2 > self.brought;
        self.window_limit = if mostly_wasted {
            (self.window_limit / 2).max(2)
        } else {
            (self.window_limit * 2).clamp(4, WINDOW_MAX)
        };
        self.brought = 0;
        self.unused = 0;
    }

    pub(crate) fn handle_unused(&mut self, pages: u32) {
        self.unused += pages;
    }

    fn oldest(&self) -> usize {
        (0..STREAMS)
            .min_by_key(|&place| self.streams[place].used_at)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;

    impl Prefetcher {
        /// A fault at a far page, and all of the window that it asks for.
        fn fault(&mut self, page: u64) -> u32 {
            self.handle_fault(SpacePage::from_bits(page), Source::Far);
            let mut window = 0;
            while self.has_parts() {
                let (first, count) = self.part();
                assert_eq!(first, page + 1 + u64::from(window));
                window += count;
            }
            window
        }

        /// A stream whose next fault is to ask for a window of 64 pages.
        fn walk_on(&mut self, mut page: u64) -> u64 {
            for _ in 0..6 {
                page += 1 + u64::from(self.fault(page));
            }
            page
        }

        /// A stream that has a window of 64 pages, behind the page that this returns.
        fn with_window(source: Source) -> (Self, u64) {
            let mut prefetcher = Self::default();
            let page = prefetcher.walk_on(0);
            prefetcher.handle_fault(SpacePage::from_bits(page), source);
            (prefetcher, page)
        }

        fn part(&mut self) -> (u64, u32) {
            let part = self.next_part().expect("something is left");
            let done = Brought {
                passed: part.count,
                brought: part.count,
                ends: false,
            };
            self.handle_brought(part, done);
            (part.first.bits(), part.count)
        }
    }

    #[test]
    fn a_sequential_stream_doubles_its_window() {
        let mut prefetcher = Prefetcher::default();
        let mut page = 1000;
        let mut windows = std::vec::Vec::new();
        for _ in 0..8 {
            let window = prefetcher.fault(page);
            windows.push(window);
            page += 1 + u64::from(window);
        }
        assert_eq!(windows, [0, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn a_stream_that_goes_on_has_used_its_pages() {
        let mut prefetcher = Prefetcher::default();
        prefetcher.fault(10);
        assert_eq!(prefetcher.fault(11), 2);
        assert_eq!(
            prefetcher.handle_fault(SpacePage::from_bits(14), Source::Far),
            (SpacePage::from_bits(12), 2)
        );
        // Elsewhere nothing is known to be used.
        let elsewhere = prefetcher.handle_fault(SpacePage::from_bits(900), Source::Far);
        assert_eq!(elsewhere.1, 0);
    }

    #[test]
    fn two_streams_do_not_disturb_each_other() {
        let mut prefetcher = Prefetcher::default();
        let (mut left, mut right) = (0, 1 << 20);
        for _ in 0..4 {
            left += 1 + u64::from(prefetcher.fault(left));
            right += 1 + u64::from(prefetcher.fault(right));
        }
        assert_eq!(prefetcher.fault(left), 16);
        assert_eq!(prefetcher.fault(right), 16);
    }

    #[test]
    fn windows_are_brought_in_parts_and_in_turn() {
        let mut prefetcher = Prefetcher::default();
        let left = prefetcher.walk_on(0);
        let right = prefetcher.walk_on(1 << 20);
        for page in [left, right] {
            prefetcher.handle_fault(SpacePage::from_bits(page), Source::Far);
        }
        for behind in [1, 1 + u64::from(PART)] {
            assert_eq!(prefetcher.part(), (left + behind, PART));
            assert_eq!(prefetcher.part(), (right + behind, PART));
        }
        assert!(!prefetcher.has_parts());
    }

    #[test]
    fn a_fault_on_what_is_to_be_brought_starts_no_stream_and_is_not_brought_again() {
        let (mut prefetcher, page) = Prefetcher::with_window(Source::Far);
        prefetcher.part();
        let first_left = page + 1 + u64::from(PART);
        let used = prefetcher.handle_fault(SpacePage::from_bits(first_left), Source::Far);
        assert_eq!(used.1, 0);
        assert_eq!(prefetcher.part(), (first_left + 1, PART - 1));
        assert!(!prefetcher.has_parts());
        // The stream goes on behind its window as if nothing had been.
        assert_eq!(prefetcher.fault(page + 1 + 64), 64);
    }

    #[test]
    fn a_window_ends_where_there_is_nothing_to_bring() {
        let (mut prefetcher, page) = Prefetcher::with_window(Source::Untouched);
        prefetcher.part();
        let part = prefetcher.next_part().expect("most is left");
        assert_eq!(part.source, Source::Untouched);
        let done = Brought {
            passed: 3,
            brought: 2,
            ends: true,
        };
        prefetcher.handle_brought(part, done);
        assert!(!prefetcher.has_parts());
        let window = PART + 3;
        let next = SpacePage::from_bits(page + 1 + u64::from(window));
        let used = prefetcher.handle_fault(next, Source::Untouched);
        assert_eq!(used, (SpacePage::from_bits(page + 1), window));
    }

    #[test]
    fn random_faults_prefetch_next_to_nothing() {
        let mut prefetcher = Prefetcher::default();
        let mut random = Random::from_seed(11);
        let total: u32 = (0..10_000)
            .map(|_| {
                let page = random.below(1 << 20);
                prefetcher.fault(page)
            })
            .sum();
        assert!(total < 100, "{total}");
    }

    #[test]
    fn wasted_prefetches_shrink_the_window() {
        let mut prefetcher = Prefetcher::default();
        let mut page = prefetcher.walk_on(0);
        for _ in 0..40 {
            prefetcher.handle_unused(60);
            page += 1 + u64::from(prefetcher.fault(page));
        }
        for _ in 0..10 {
            prefetcher.handle_unused(60);
            let window = prefetcher.fault(page);
            assert!(window <= 4, "{window}");
            page += 1 + u64::from(window);
        }
    }
}
