//! How much room a node is believed to have.

use super::{EXTENT_SLOTS, EXTENT_SLOTS_MIN};
use legato_base::{Duration, Time};

/// A full node is asked again after so long, twice as long each time up to a second: others give room
/// back when they end, and the old image of a program that executes another one is such another.
const ASK_AGAIN: Duration = Duration::from_millis(10);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// What the node's last answer about room was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Ask for extents of this many slots.
    For(u32),
    /// Not even for the smallest extent.
    Full { ask_at: Time, pause: Duration },
}

impl Room {
    /// Nothing is known of it.
    pub(super) const UNKNOWN: Self = Self::For(EXTENT_SLOTS);

    pub(super) const fn is_full(self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// How many slots to ask for, unless it is too early to ask at all.
    pub(super) fn to_ask(self, now: Time) -> Option<u32> {
        match self {
            Self::For(slots) => Some(slots),
            Self::Full { ask_at, .. } => (ask_at <= now).then_some(EXTENT_SLOTS_MIN),
        }
    }

    /// When it may be asked.
    pub(super) const fn ask_at(self) -> Time {
        match self {
            Self::For(_) => Time::ZERO,
            Self::Full { ask_at, .. } => ask_at,
        }
    }

    /// After an extent of `asked` slots was refused.
    pub(super) fn refused(self, asked: u32, now: Time) -> Self {
        let smaller = asked / 4;
        let pause = match self {
            Self::For(_) if smaller >= EXTENT_SLOTS_MIN => return Self::For(smaller),
            Self::For(_) => ASK_AGAIN,
            Self::Full { pause, .. } => (pause + pause).min(ASK_AGAIN_MAX),
        };
        Self::Full {
            ask_at: now + pause,
            pause,
        }
    }

    /// After nothing was said for too long.
    pub(super) fn full_from(now: Time) -> Self {
        Self::Full {
            ask_at: now + ASK_AGAIN,
            pause: ASK_AGAIN,
        }
    }

    /// After an extent was granted.
    pub(super) const fn granted(self) -> Self {
        match self {
            Self::For(_) => self,
            Self::Full { .. } => Self::UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// Refused at once, whenever it is asked.
    fn refused_until_full() -> Room {
        let mut room = Room::UNKNOWN;
        while let Room::For(slots) = room {
            room = room.refused(slots, at(0));
        }
        room
    }

    #[test]
    fn smaller_extents_are_asked_for_until_there_are_none() {
        let mut room = Room::UNKNOWN;
        let mut asked = Vec::new();
        while let Room::For(slots) = room {
            asked.push(slots);
            room = room.refused(slots, at(0));
        }
        assert_eq!(asked, [2048, 512, 128]);
        assert!(room.is_full());
    }

    #[test]
    fn a_full_node_is_asked_again_less_and_less_often() {
        let mut room = refused_until_full();
        let mut times = Vec::new();
        let mut now = 0;
        while times.len() < 9 {
            if let Some(slots) = room.to_ask(at(now)) {
                assert_eq!(slots, EXTENT_SLOTS_MIN);
                times.push(now);
                room = room.refused(slots, at(now));
            }
            now += 1;
        }
        assert_eq!(times, [10, 30, 70, 150, 310, 630, 1270, 2270, 3270]);
    }

    #[test]
    fn what_has_got_room_again_is_asked_as_any_other() {
        assert_eq!(refused_until_full().granted(), Room::UNKNOWN);
        assert_eq!(Room::For(128).granted(), Room::For(128));
    }
}
