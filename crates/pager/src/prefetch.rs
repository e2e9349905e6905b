//! Sequential prefetch: how many pages beyond the faulting one to bring in with it.
//!
//! Each stream of accesses that was seen lately has a window. A fault where a stream was expected
//! to go on doubles its window; anything else starts a new stream with none. A stream that goes on
//! has used what was brought for it, which is the only sign of that: touching a resident page is
//! invisible. When prefetched pages are evicted without that sign the largest window shrinks, and
//! grows again only slowly.

use crate::SpacePage;

/// Pages of one batch: what one MOVE takes to pay for itself (0.2 us a page from 64 on).
const WINDOW_MAX: u32 = 64;
/// Streams followed at a time: threads, or arrays that one loop walks together.
const STREAMS: usize = 16;
/// Outcomes judged at a time.
const JUDGED: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where the next fault of this stream is expected.
    next: u64,
    /// How many pages before `next` were brought for it.
    window: u32,
    used_at: u64,
}

/// What a fault means for prefetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Pages to bring in behind the faulting one.
    pub(crate) window: u32,
    /// Pages brought earlier that have been used: `count` from `first` on.
    pub(crate) used: (SpacePage, u32),
}

/// Streams and what became of their prefetches.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    streams: [Stream; STREAMS],
    clock: u64,
    window_limit: u32,
    brought: u32,
    unused: u32,
}

impl Default for Prefetcher {
    fn default() -> Self {
        Self {
            streams: [Stream::default(); STREAMS],
            clock: 0,
            window_limit: WINDOW_MAX,
            brought: 0,
            unused: 0,
        }
    }
}

impl Prefetcher {
    /// Pages to bring in behind `page`, which faulted; the stream then expects the fault after
    /// the last of them.
    pub(crate) fn handle_fault(&mut self, page: SpacePage) -> Advice {
        self.clock += 1;
        let known = self.streams.iter().position(|stream| {
            // A little slack: threads race each other, and allocators skip a page.
            stream.used_at > 0 && page.bits() >= stream.next && page.bits() - stream.next <= 2
        });
        let (place, window, used) = match known {
            Some(place) => {
                let Stream { next, window, .. } = self.streams[place];
                let grown = (window * 2).clamp(2, WINDOW_MAX).min(self.window_limit);
                (
                    place,
                    grown,
                    (SpacePage::from_bits(next - u64::from(window)), window),
                )
            }
            None => (self.oldest(), 0, (page, 0)),
        };
        self.streams[place] = Stream {
            next: page.bits() + 1 + u64::from(window),
            window,
            used_at: self.clock,
        };
        Advice { window, used }
    }

    /// `pages` fewer than asked for were there to bring: the stream's expectation is corrected.
    pub(crate) fn shorten(&mut self, page: SpacePage, window: u32, brought: u32) {
        let expected = page.bits() + 1 + u64::from(window);
        if let Some(stream) = self
            .streams
            .iter_mut()
            .find(|stream| stream.next == expected)
        {
            stream.next = page.bits() + 1 + u64::from(brought);
            stream.window = brought;
        }
    }

    pub(crate) fn handle_brought(&mut self, pages: u32) {
        self.brought += pages;
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

    #[test]
    fn a_sequential_stream_doubles_its_window() {
        let mut prefetcher = Prefetcher::default();
        let mut page = 1000;
        let mut windows = std::vec::Vec::new();
        for _ in 0..8 {
            let window = prefetcher.handle_fault(SpacePage::from_bits(page)).window;
            windows.push(window);
            page += 1 + u64::from(window);
        }
        assert_eq!(windows, [0, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn a_stream_that_goes_on_has_used_its_pages() {
        let mut prefetcher = Prefetcher::default();
        prefetcher.handle_fault(SpacePage::from_bits(10));
        assert_eq!(prefetcher.handle_fault(SpacePage::from_bits(11)).window, 2);
        assert_eq!(
            prefetcher.handle_fault(SpacePage::from_bits(14)).used,
            (SpacePage::from_bits(12), 2)
        );
        // Elsewhere nothing is known to be used.
        assert_eq!(prefetcher.handle_fault(SpacePage::from_bits(900)).used.1, 0);
    }

    #[test]
    fn two_streams_do_not_disturb_each_other() {
        let mut prefetcher = Prefetcher::default();
        let (mut left, mut right) = (0, 1 << 20);
        for _ in 0..4 {
            left += 1 + u64::from(prefetcher.handle_fault(SpacePage::from_bits(left)).window);
            right += 1 + u64::from(prefetcher.handle_fault(SpacePage::from_bits(right)).window);
        }
        assert_eq!(
            prefetcher.handle_fault(SpacePage::from_bits(left)).window,
            16
        );
        assert_eq!(
            prefetcher.handle_fault(SpacePage::from_bits(right)).window,
            16
        );
    }

    #[test]
    fn random_faults_prefetch_next_to_nothing() {
        let mut prefetcher = Prefetcher::default();
        let mut random = Random::from_seed(11);
        let total: u32 = (0..10_000)
            .map(|_| {
                prefetcher
                    .handle_fault(SpacePage::from_bits(random.below(1 << 20)))
                    .window
            })
            .sum();
        assert!(total < 100, "{total}");
    }

    #[test]
    fn wasted_prefetches_shrink_the_window() {
        let mut prefetcher = Prefetcher::default();
        for _ in 0..4 {
            prefetcher.handle_unused(60);
            prefetcher.handle_brought(64);
        }
        let mut page = 0;
        for _ in 0..10 {
            let window = prefetcher.handle_fault(SpacePage::from_bits(page)).window;
            assert!(window <= 4);
            page += 1 + u64::from(window);
        }
    }
}
