//! The way to one peer: what gets through, as far as it was tried.

use super::{LONGEST, SHORT};
use legato_base::{Duration, Time};

/// Lengths that are tried: what gets through everywhere, what does over Ethernet (1500 bytes, less 48 for IPv6
/// and UDP and 4 for the CRC), and what a queue pair sends at most.
const TRIED: [usize; 3] = [SHORT, 1448, LONGEST];
/// Before the second round of tries; before each further one twice as long.
const FIRST_ROUND: Duration = Duration::from_millis(100);
/// Rounds are not further apart (RFC 8899, PMTU_RAISE_TIMER).
const LAST_ROUND: Duration = Duration::from_secs(600);
/// A peer that has never answered is not tried sooner than so long after the last round, whatever is missing.
const SILENT_ROUND: Duration = Duration::from_secs(1);
/// A peer is not told more often that something is missing.
const TOLD: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Path {
    state: State,
    /// Numbers of the last two rounds of tries.
    rounds: [Option<u32>; 2],
    /// When the next round is due.
    next: Time,
    apart: Duration,
    round_at: Time,
    told_at: Option<Time>,
    /// Packets that were missing when they were last counted.
    missing: u64,
}

/// How much is sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Everything: the peer has never answered, as other NICs never do.
    Untried,
    /// Everything: the longest packets have got through.
    Whole,
    /// Packets that are no longer than this.
    Narrow(usize),
}

impl Path {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            state: State::Untried,
            rounds: [None; 2],
            next: now,
            apart: FIRST_ROUND,
            round_at: Time::ZERO,
            told_at: None,
            missing: 0,
        }
    }

    /// One on which nothing needs to be tried.
    pub(super) const fn inside() -> Self {
        Self {
            state: State::Whole,
            next: Time::NEVER,
            ..Self::new(Time::ZERO)
        }
    }

    /// Bytes of the longest packets that are sent. None if they may be as long as they are.
    pub(super) const fn limit(&self) -> Option<usize> {
        match self.state {
            State::Untried | State::Whole => None,
            State::Narrow(limit) => Some(limit),
        }
    }

    /// When the next round of tries is due.
    pub(super) const fn next(&self) -> Time {
        self.next
    }

    /// The lengths of a round of tries that is due, all of this number.
    pub(super) fn tries(&mut self, now: Time, number: u32) -> impl Iterator<Item = usize> + use<> {
        self.rounds = [Some(number), self.rounds[0]];
        self.round_at = now;
        self.next = now + self.apart;
        self.apart = (self.apart + self.apart).min(LAST_ROUND);
        let known = match self.state {
            State::Untried => 0,
            State::Narrow(limit) => limit,
            State::Whole => LONGEST,
        };
        TRIED.into_iter().filter(move |&length| length > known)
    }

    /// The peer has got a try of so many bytes. Nothing else makes packets longer (P-104).
    pub(super) fn answered(&mut self, number: u32, length: usize) {
        if !self.rounds.contains(&Some(number)) || !TRIED.contains(&length) {
            return;
        }
        let limit = self.limit().unwrap_or(0).max(length);
        match self.state {
            State::Whole => {}
            _ if limit == LONGEST => {
                self.state = State::Whole;
                self.next = Time::NEVER;
                self.rounds = [None; 2];
            }
            _ => self.state = State::Narrow(limit),
        }
    }

    /// Packets do not get through, perhaps for their length: none is trusted that is long, until it is tried anew.
    pub(super) fn narrow(&mut self, now: Time) {
        match self.state {
            State::Untried => self.next = self.next.min(self.round_at + SILENT_ROUND).max(now),
            State::Narrow(limit) if limit <= SHORT => {}
            State::Narrow(_) | State::Whole => {
                self.state = State::Narrow(SHORT);
                self.rounds = [None; 2];
                self.apart = FIRST_ROUND;
                self.next = now;
            }
        }
    }

    /// Nothing is tried before something long is sent again.
    pub(super) const fn rest(&mut self) {
        self.next = Time::NEVER;
    }

    /// Something long is sent.
    pub(super) fn resume(&mut self, now: Time) {
        if self.next == Time::NEVER && self.state != State::Whole {
            self.next = now;
        }
    }

    /// Is there news in so many packets having been missing in all?
    pub(super) const fn is_missing_more(&mut self, missing: u64) -> bool {
        let is_more = missing > self.missing;
        self.missing = missing;
        is_more
    }

    /// Is the peer to be told that something is missing? It may be what the peer sends.
    pub(super) fn tells(&mut self, now: Time) -> bool {
        let is_due = self.told_at.is_none_or(|at| now.since(at) >= TOLD);
        if is_due {
            self.told_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn round(path: &mut Path, now: Time, number: u32) -> Vec<usize> {
        assert!(path.next() <= now, "{path:?}");
        path.tries(now, number).collect()
    }

    #[test]
    fn a_path_is_whole_when_the_longest_try_was_answered() {
        let mut path = Path::new(at(0));
        assert_eq!(round(&mut path, at(0), 1), TRIED);
        path.answered(1, SHORT);
        assert_eq!(path.limit(), Some(SHORT));
        path.answered(1, LONGEST);
        assert_eq!(path.limit(), None);
        // A late answer to a shorter one.
        path.answered(1, 1448);
        assert_eq!((path.limit(), path.next()), (None, Time::NEVER));
    }

    // P-104
    #[test]
    fn what_swallows_long_packets_is_found_and_tried_again() {
        let mut path = Path::new(at(0));
        let _ = round(&mut path, at(0), 1);
        path.answered(1, SHORT);
        path.answered(1, 1448);
        let (mut now, mut rounds) = (at(0), 0);
        while path.next() < at(3_600_000) {
            now = path.next();
            rounds += 1;
            assert_eq!(round(&mut path, now, 1 + rounds), [LONGEST]);
            assert_eq!(path.limit(), Some(1448));
        }
        assert!((13..25).contains(&rounds), "{rounds} in an hour");
        path.answered(1 + rounds, LONGEST);
        assert_eq!(path.limit(), None);
        // It narrows.
        path.narrow(now);
        assert_eq!(path.limit(), Some(SHORT));
        path.answered(1 + rounds, LONGEST);
        assert_eq!(path.limit(), Some(SHORT), "a try of before");
        assert_eq!(round(&mut path, now, 77), TRIED[1..]);
        path.answered(77, LONGEST);
        assert_eq!(path.limit(), None);
    }

    #[test]
    fn who_never_answers_is_sent_everything_whole() {
        let mut path = Path::new(at(0));
        for number in 0..100 {
            let now = path.next();
            assert_eq!(round(&mut path, now, number), TRIED);
            path.narrow(now);
            assert_eq!(path.limit(), None);
            assert!(path.next() >= now + FIRST_ROUND);
        }
        assert!(path.next() <= at(101_000), "{path:?}");
    }

    #[test]
    fn answers_to_what_was_not_asked_change_nothing() {
        let mut path = Path::new(at(0));
        path.answered(0, SHORT);
        let _ = round(&mut path, at(0), 3);
        for (number, length) in [(4, SHORT), (3, SHORT + 4), (3, 0), (3, LONGEST + 4)] {
            path.answered(number, length);
            assert_eq!(path.state, State::Untried, "{number} {length}");
        }
        // The round before the last counts still.
        let _ = round(&mut path, at(100), 5);
        path.answered(3, SHORT);
        assert_eq!(path.limit(), Some(SHORT));
    }
}
