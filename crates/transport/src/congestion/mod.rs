//! Congestion control of a path to a peer, and round trips. The one who asks decides how much is under
//! way in both directions: requests with payload by what is not acknowledged, answers to READs by what
//! has been asked for and has not come. `docs/congestion.md` describes the whole.

mod pacer;
mod round_trip;
mod shortest;
#[cfg(test)]
mod tests;
mod window;

pub use pacer::BURST;
pub use round_trip::{PROBE_MIN, RoundTrip, TIMEOUT_MAX, TIMEOUT_MIN};
pub use window::{FLOOR, INITIAL_BYTES, MOST_BYTES, TARGET, Window};

use legato_base::{Duration, Time};
use pacer::Pacer;

/// Who fills the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests, on their way to the peer.
    Requests,
    /// Answers to READs, on their way here.
    Answers,
}

/// Packets under way, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    pub requests: u32,
    pub answers: u32,
}

impl Flight {
    pub const fn of(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Requests => self.requests,
            Direction::Answers => self.answers,
        }
    }
}

/// May a queue pair send?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// So many packets, one at least.
    Room(u32),
    /// Not before something has arrived.
    Full,
    /// Not before then.
    Later(Time),
}

/// Bytes of a piece of a READ at most: what its answer's sender sends with one system call.
const PIECE_BYTES: u32 = 1 << 16;

/// What happened to the packets of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent again; a READ that is asked for again is one.
    pub resends: u64,
    /// Gaps that the peer told of, or that answers showed.
    pub losses: u64,
    /// Timers that ended without an answer.
    pub timeouts: u64,
    /// The oldest packet was sent again before its timer ended.
    pub tail_probes: u64,
    pub notifications_sent: u64,
    pub notifications_received: u64,
    /// Packets that a router on the way had marked.
    pub marks_seen: u64,
}

impl Counters {
    /// Of both together.
    #[must_use]
    pub const fn plus(self, other: &Self) -> Self {
        Self {
            resends: self.resends + other.resends,
            losses: self.losses + other.losses,
            timeouts: self.timeouts + other.timeouts,
            tail_probes: self.tail_probes + other.tail_probes,
            notifications_sent: self.notifications_sent + other.notifications_sent,
            notifications_received: self.notifications_received + other.notifications_received,
            marks_seen: self.marks_seen + other.marks_seen,
        }
    }
}

/// The path to a peer, which all queue pairs to it share.
#[derive(Clone, Debug)]
pub struct Path {
    mtu: u32,
    /// Nothing is kept back: the packets never leave this machine.
    is_free: bool,
    lanes: [Lane; 2],
    pub counters: Counters,
}

#[derive(Clone, Debug)]
struct Lane {
    window: Window,
    pacer: Pacer,
    in_flight: u32,
    /// Queue pairs that have something under way.
    active: u32,
}

impl Lane {
    fn new(mtu: u32) -> Self {
        Self {
            window: Window::new(mtu),
            pacer: Pacer::default(),
            in_flight: 0,
            active: 0,
        }
    }

    const fn account(&mut self, before: u32, after: u32) {
        self.in_flight = self.in_flight.saturating_sub(before).saturating_add(after);
        match (before, after) {
            (0, 1..) => self.active += 1,
            (1.., 0) => self.active = self.active.saturating_sub(1),
            _ => {}
        }
        self.window.used(self.in_flight);
    }

    /// Room for a queue pair with `own` packets under way. It has a share of the window however much
    /// the others have under way, and a packet in any case, so that it hears when there is more.
    fn room(&self, own: u32) -> u32 {
        let window = self.window.packets();
        let sharers = self.active + u32::from(own == 0);
        let share = (window / sharers.max(1)).max(1).saturating_sub(own);
        window.saturating_sub(self.in_flight).max(share)
    }
}

impl Path {
    /// A path whose packets have so many bytes of payload at most.
    pub fn new(mtu: u32) -> Self {
        Self {
            mtu,
            is_free: false,
            lanes: [Lane::new(mtu), Lane::new(mtu)],
            counters: Counters::default(),
        }
    }

    /// A path on which there is nobody to share with: it only counts.
    pub fn free(mtu: u32) -> Self {
        Self {
            is_free: true,
            ..Self::new(mtu)
        }
    }

    /// Bytes of payload of its packets at most.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Packets that a READ asks for at once, at most and, while something is under way, at least.
    pub fn piece(&self) -> (u32, u32) {
        if self.is_free {
            return (u32::MAX, 1);
        }
        let least = self.window(Direction::Answers).packets() / 4;
        ((PIECE_BYTES / self.mtu.max(1)).max(1), least.max(1))
    }

    /// Packets after which an acknowledgement is asked for.
    pub fn interval(&self) -> u32 {
        if self.is_free {
            return u32::MAX;
        }
        (self.window(Direction::Requests).packets() / 4).max(1)
    }

    const fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::Requests => &self.lanes[0],
            Direction::Answers => &self.lanes[1],
        }
    }

    const fn lane_mut(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Requests => &mut self.lanes[0],
            Direction::Answers => &mut self.lanes[1],
        }
    }

    pub const fn window(&self, direction: Direction) -> &Window {
        &self.lane(direction).window
    }

    /// Packets that all queue pairs have under way.
    pub const fn in_flight(&self, direction: Direction) -> u32 {
        self.lane(direction).in_flight
    }

    /// What a queue pair has under way is not what it was.
    pub fn account(&mut self, before: Flight, after: Flight) {
        if before != after {
            for direction in [Direction::Requests, Direction::Answers] {
                let (before, after) = (before.of(direction), after.of(direction));
                self.lane_mut(direction).account(before, after);
            }
        }
    }

    /// May a queue pair with so many packets under way send more?
    pub fn admits(&mut self, now: Time, direction: Direction, own: u32) -> Admission {
        if self.is_free {
            return Admission::Room(u32::MAX);
        }
        let mtu = u64::from(self.mtu);
        let lane = self.lane_mut(direction);
        let room = lane.room(own);
        if room == 0 {
            lane.window.full();
            return Admission::Full;
        }
        let bytes = u64::from(lane.window.packets()) * mtu;
        let (round_trip, doubling) = (lane.window.round_trip(), lane.window.is_starting());
        match lane.pacer.check(now, bytes, round_trip, doubling) {
            Ok(()) => Admission::Room(room),
            Err(later) => Admission::Later(later),
        }
    }

    /// A packet of the window was kept back for another reason than the lack of all room.
    pub const fn full(&mut self, direction: Direction) {
        self.lane_mut(direction).window.full();
    }

    /// So many packets were sent, or asked for.
    pub fn sent(&mut self, now: Time, direction: Direction, packets: u32) {
        let mtu = u64::from(self.mtu);
        let lane = self.lane_mut(direction);
        let window = u64::from(lane.window.packets()) * mtu;
        let (round_trip, doubling) = (lane.window.round_trip(), lane.window.is_starting());
        let bytes = u64::from(packets) * mtu;
        lane.pacer.sent(now, bytes, window, round_trip, doubling);
    }

    pub const fn delivered(&mut self, direction: Direction, packets: u32) {
        self.lane_mut(direction).window.delivered(packets);
    }

    pub fn sample(&mut self, now: Time, direction: Direction, time: Duration) {
        self.lane_mut(direction).window.sample(now, time);
    }

    pub fn lost(&mut self, now: Time, direction: Direction) {
        self.counters.losses += 1;
        let lane = self.lane_mut(direction);
        if lane.window.lost(now) {
            // All behind a lost packet is sent again, and what of it is still on its way fills the
            // queue meanwhile: half of a round trip later less than half of that is left.
            let half = Duration::from_nanos(lane.window.round_trip().as_nanos() / 2);
            lane.pacer.pause(now + half);
        }
    }

    pub fn timed_out(&mut self, now: Time, direction: Direction) {
        self.counters.timeouts += 1;
        self.lane_mut(direction).window.timed_out(now);
    }

    /// A packet of the peer's came marked: an answer is one that was asked for here.
    pub fn mark_seen(&mut self, now: Time, is_answer: bool) {
        self.counters.marks_seen += 1;
        if is_answer {
            self.lane_mut(Direction::Answers).window.marked(now);
        }
    }

    /// The peer has seen a mark on a packet from here.
    pub fn notified(&mut self, now: Time) {
        self.counters.notifications_received += 1;
        self.lane_mut(Direction::Requests).window.marked(now);
    }
}
