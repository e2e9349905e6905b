//! The agent's part of the run's local memory: it says what it uses, and is told what it may use.

use super::{Agent, ProviderGlue};
use crate::PagerUsage;
use legato_base::wire::control::{AgentMessageBody, SupervisorMessage, Usage};
use legato_base::{Bytes, Duration, Time};

/// How often the supervisor's words are looked for while the agent is awake.
const LISTEN: Duration = Duration::from_millis(2);
/// How often the supervisor is told at most.
const TELL: Duration = Duration::from_millis(10);
/// So long after pages last left or came for want of room, the program still could use more.
const PRESSED: Duration = Duration::from_millis(200);
/// A change of resident memory by such a part of the limit is worth telling, but less than this
/// never is.
const NOTABLE_PART: u64 = 16;
const NOTABLE_MIN: u64 = 256 << 10;

/// What the supervisor knows of this agent's memory.
#[derive(Debug, Default)]
pub(super) struct ShareLog {
    told: Usage,
    /// The last `Holds`, while the share is not reached; None when nothing is owed.
    owed: Option<u64>,
    /// See [`Usage::needed_bytes`].
    needed: u64,
    traffic: u64,
    pressed_until: Time,
    listen_at: Time,
    tell_at: Time,
}

impl ShareLog {
    /// The supervisor has cut or raised the share; or says it again, because it has not heard of its
    /// being reached, or what it said in between has not come through (P-44).
    fn note_share(&mut self, before: Bytes, share: Bytes) {
        let owes = share <= before || self.owed.is_some();
        self.owed = owes.then_some(u64::MAX);
    }

    /// How far down local memory is, if that is news on the way to a smaller share.
    fn news_of_shrinking(&self, usage: &PagerUsage) -> Option<u64> {
        let last = self.owed?;
        let reached = usage.resident.max(usage.limit).0;
        let step = notable(usage.limit);
        (reached == usage.limit.0 || reached.saturating_add(step) <= last).then_some(reached)
    }

    /// What is to be told now, if it differs enough from what was told last.
    fn news_of_usage(&mut self, usage: &PagerUsage, now: Time) -> Option<Usage> {
        self.learn_needs(usage);
        // On the way to a smaller share pages leave in any case.
        let busy = usage.full && self.traffic != usage.traffic && self.owed.is_none();
        self.traffic = usage.traffic;
        if busy || usage.starving {
            self.pressed_until = now + PRESSED;
        }
        let next = Usage {
            resident_bytes: usage.resident.0,
            needed_bytes: self.needed,
            pressed: now < self.pressed_until,
            spaces: usage.spaces,
        };
        let moved = next.resident_bytes.abs_diff(self.told.resident_bytes);
        let same = next.pressed == self.told.pressed
            && next.needed_bytes == self.told.needed_bytes
            && next.spaces == self.told.spaces;
        (!same || moved >= notable(usage.limit)).then_some(next)
    }

    /// What cannot leave is known only once that has been tried in vain.
    fn learn_needs(&mut self, usage: &PagerUsage) {
        if usage.starving || usage.stuck {
            self.needed = self.needed.max(usage.resident.0 + usage.step.0);
        } else if usage.resident.0 < self.needed / 2 {
            self.needed = 0;
        }
    }
}

const fn notable(limit: Bytes) -> u64 {
    let part = limit.0 / NOTABLE_PART;
    if part < NOTABLE_MIN {
        NOTABLE_MIN
    } else {
        part
    }
}

impl<G: ProviderGlue> Agent<G> {
    /// Hears the supervisor and tells it what has changed, now and then. Never waits for it. True
    /// if there is a new share, which another turn must put into effect first.
    pub(super) fn keep_share(&mut self, now: Time) -> bool {
        if now >= self.share.listen_at {
            self.share.listen_at = now + LISTEN;
            let before = self.pager.usage().limit;
            self.listen();
            if self.pager.usage().limit != before {
                return true;
            }
        }
        let usage = self.pager.usage();
        if let Some(bytes) = self.share.news_of_shrinking(&usage)
            && self.supervisor.offer(AgentMessageBody::Holds { bytes })
        {
            self.share.owed = (bytes > usage.limit.0).then_some(bytes);
        }
        if now < self.share.tell_at {
            return false;
        }
        self.share.tell_at = now + TELL;
        if let Some(next) = self.share.news_of_usage(&usage, now)
            && self.supervisor.offer(AgentMessageBody::Usage(next))
        {
            self.share.told = next;
        }
        false
    }

    /// The supervisor has something to say, or is gone.
    pub(super) fn listen_soon(&mut self) {
        self.share.listen_at = Time::ZERO;
    }

    fn listen(&mut self) {
        while !self.supervisor_gone {
            match self.supervisor.receive() {
                Ok(None) => return,
                Ok(Some((SupervisorMessage::Share { bytes }, _))) => {
                    self.share
                        .note_share(self.pager.usage().limit, Bytes(bytes));
                    self.pager.set_limit(Bytes(bytes));
                }
                Ok(Some((SupervisorMessage::Hand { pid, .. }, Some(connection)))) => {
                    self.handle_hand(pid, connection);
                }
                Ok(Some((SupervisorMessage::IdlePoll, Some(request)))) => {
                    self.idle_poll.grant(request);
                }
                Ok(Some((SupervisorMessage::Replaced, _))) => self.housekeeping_at = Time::ZERO,
                // What it does not say, and its end: the memory nodes go with it (P-32).
                Ok(Some(_)) | Err(_) => {
                    self.supervisor_gone = true;
                    self.users.kill();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(resident: Bytes, limit: Bytes) -> PagerUsage {
        PagerUsage {
            resident,
            limit,
            step: Bytes::mib(1),
            full: false,
            starving: false,
            stuck: false,
            traffic: 0,
            spaces: 1,
        }
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_smaller_share_is_acknowledged_in_steps_and_once() {
        let mut log = ShareLog::default();
        let share = Bytes::mib(32);
        let now = |mib| usage(Bytes::mib(mib), share);
        assert_eq!(log.news_of_shrinking(&now(20)), None, "nothing is owed");
        log.note_share(Bytes::mib(64), share);
        assert_eq!(log.news_of_shrinking(&now(60)), Some(Bytes::mib(60).0));
        log.owed = Some(Bytes::mib(60).0);
        assert_eq!(log.news_of_shrinking(&now(59)), None, "not worth a word");
        assert_eq!(log.news_of_shrinking(&now(58)), Some(Bytes::mib(58).0));
        assert_eq!(log.news_of_shrinking(&now(31)), Some(share.0));
    }

    // P-44
    #[test]
    fn a_share_that_is_said_again_is_acknowledged_again() {
        let mut log = ShareLog::default();
        let share = Bytes::mib(32);
        log.note_share(share, share);
        let small = usage(Bytes::mib(20), share);
        assert_eq!(log.news_of_shrinking(&small), Some(share.0));
    }

    #[test]
    fn a_greater_share_owes_nothing() {
        let mut log = ShareLog::default();
        log.note_share(Bytes::mib(32), Bytes::mib(64));
        assert_eq!(log.owed, None);
    }

    #[test]
    fn only_notable_changes_are_told() {
        let mut log = ShareLog::default();
        let limit = Bytes::mib(64);
        let first = log.news_of_usage(&usage(Bytes::mib(10), limit), at(1));
        log.told = first.unwrap();
        let next = log.news_of_usage(&usage(Bytes::mib(13), limit), at(2));
        assert_eq!(next, None);
        let next = log.news_of_usage(&usage(Bytes::mib(14), limit), at(3));
        assert_eq!(next.unwrap().resident_bytes, Bytes::mib(14).0);
        let forked = PagerUsage {
            spaces: 2,
            ..usage(Bytes::mib(10), limit)
        };
        assert_eq!(log.news_of_usage(&forked, at(4)).unwrap().spaces, 2);
    }

    #[test]
    fn a_full_and_busy_program_is_pressed_for_a_while() {
        let mut log = ShareLog::default();
        let full = |traffic| PagerUsage {
            full: true,
            traffic,
            ..usage(Bytes::mib(64), Bytes::mib(64))
        };
        assert!(!log.news_of_usage(&full(0), at(0)).unwrap().pressed);
        let pressed = log.news_of_usage(&full(5), at(10)).unwrap();
        assert!(pressed.pressed);
        log.told = pressed;
        assert_eq!(log.news_of_usage(&full(5), at(100)), None);
        assert!(!log.news_of_usage(&full(5), at(300)).unwrap().pressed);
    }

    #[test]
    fn pages_that_leave_for_a_smaller_share_do_not_press() {
        let mut log = ShareLog::default();
        log.note_share(Bytes::mib(64), Bytes::mib(32));
        let leaving = PagerUsage {
            full: true,
            traffic: 100,
            ..usage(Bytes::mib(40), Bytes::mib(32))
        };
        assert!(!log.news_of_usage(&leaving, at(1)).unwrap().pressed);
    }

    #[test]
    fn what_cannot_get_down_to_its_share_says_so_and_is_not_pressed() {
        let mut log = ShareLog::default();
        log.note_share(Bytes::mib(64), Bytes::mib(32));
        let stuck = PagerUsage {
            full: true,
            stuck: true,
            ..usage(Bytes::mib(40), Bytes::mib(32))
        };
        let told = log.news_of_usage(&stuck, at(1)).unwrap();
        assert_eq!((told.pressed, told.needed_bytes), (false, Bytes::mib(41).0));
    }

    #[test]
    fn what_a_starving_program_needs_is_remembered() {
        let mut log = ShareLog::default();
        let starving = PagerUsage {
            full: true,
            starving: true,
            ..usage(Bytes::mib(7), Bytes::mib(4))
        };
        let told = log.news_of_usage(&starving, at(1)).unwrap();
        assert_eq!((told.pressed, told.needed_bytes), (true, Bytes::mib(8).0));
        log.told = told;
        let later = log.news_of_usage(&usage(Bytes::mib(7), Bytes::mib(9)), at(2));
        assert_eq!(later, None);
        let shrunk = log.news_of_usage(&usage(Bytes::mib(3), Bytes::mib(9)), at(3));
        assert_eq!(shrunk.unwrap().needed_bytes, 0);
    }
}
