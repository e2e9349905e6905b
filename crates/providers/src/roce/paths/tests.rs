use super::*;
use alloc::vec;
use legato_base::Duration;

const PEER: Gid = Gid([9; 16]);
const HERE: Gid = Gid([8; 16]);

/// Two ends of a path that loses what is longer than it takes.
struct World {
    ends: [Paths; 2],
    random: Random,
    now: Time,
    takes: usize,
}

impl World {
    fn new(takes: usize) -> Self {
        let mut random = Random::from_seed(1);
        let mut ends = [(); 2].map(|()| Paths::new(&mut random));
        ends[0].path(PEER, || false, Time::ZERO);
        Self {
            ends,
            random,
            now: Time::ZERO,
            takes,
        }
    }

    const fn name(end: usize) -> Gid {
        [HERE, PEER][end]
    }

    /// Delivers what is said, and what that leads to.
    fn say(&mut self, from: usize, say: Say) {
        let mut bytes = vec![0; LONGEST];
        let length = say.write(&mut bytes);
        if length > self.takes {
            return;
        }
        let heard = self.ends[1 - from].hear(Self::name(from), &bytes[..length], self.now);
        if let Heard::Answer(answer) = heard {
            self.say(1 - from, answer);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for end in 0..2 {
                if self.ends[end].next_deadline() <= self.now {
                    for (_, say) in self.ends[end].tries(|_| true, self.now, &mut self.random) {
                        self.say(end, say);
                    }
                }
            }
            self.now = self.now + Duration::from_millis(10);
        }
    }

    /// Does a packet of this length get to the other end?
    fn gets_through(&mut self, from: usize, length: usize) -> bool {
        let mut packet: Vec<u8> = (0..length + 8).map(|n| (n % 251) as u8).collect();
        let sent = packet[..length].to_vec();
        let (takes, now) = (self.takes, self.now);
        let [one, other] = &mut self.ends;
        let [near, far] = if from == 0 {
            [one, other]
        } else {
            [other, one]
        };
        let Some(split) = near.split(Self::name(1 - from), || false, now, &mut packet, length)
        else {
            return length <= takes;
        };
        let mut came = None;
        for range in split.parts() {
            let mut bytes = vec![0; LONGEST];
            let length = split.write(range, &mut bytes);
            if length <= takes
                && let Heard::Packet(whole) = far.hear(Self::name(from), &bytes[..length], now)
            {
                came = Some(whole);
            }
        }
        let is_right = came.as_ref().is_some_and(|whole| whole.packet() == sent);
        came.into_iter().for_each(|whole| far.give_back(whole));
        is_right
    }

    /// Bytes of the parts in which the near end sends the longest packet. None if it goes whole.
    fn goes_in_parts_of(&mut self) -> Option<usize> {
        let mut packet = vec![0; LONGEST + 8];
        let split = self.ends[0].split(PEER, || false, self.now, &mut packet, LONGEST);
        split.map(|split| split.limit)
    }

    /// A timer of the near end's has ended without an answer.
    fn misses(&mut self, count: u64) {
        if let Some(say) = self.ends[0].count_missing(PEER, || false, count, self.now) {
            self.say(0, say);
        }
    }
}

#[test]
fn a_path_that_takes_less_than_both_ends_is_found_out() {
    let mut world = World::new(1460);
    assert!(!world.gets_through(0, LONGEST), "not known yet");
    world.run_for(Duration::from_millis(10));
    for length in [1, 1448, 1452, 2048, LONGEST] {
        assert!(world.gets_through(0, length), "{length}");
    }
    // New connections have packets that fit.
    assert_eq!(
        world.ends[0].path_mtu(PEER, PathMtu::Bytes4096),
        PathMtu::Bytes1024
    );
    assert_eq!(
        world.ends[0].path_mtu(PEER, PathMtu::Bytes512),
        PathMtu::Bytes512
    );
    // The path takes more one day.
    world.takes = LONGEST;
    world.run_for(Duration::from_secs(700));
    assert_eq!(
        world.ends[0].path_mtu(PEER, PathMtu::Bytes4096),
        PathMtu::Bytes4096
    );
    assert_eq!(world.goes_in_parts_of(), None);
}

/// The one who misses answers is told nothing by the other, whose long packets do not get through.
#[test]
fn a_path_that_takes_less_from_some_time_on_is_found_out_at_both_ends() {
    let mut world = World::new(LONGEST);
    world.ends[1].path(HERE, || false, world.now);
    world.run_for(Duration::from_secs(1));
    world.takes = 1300;
    assert!(!world.gets_through(0, LONGEST));
    assert!(!world.gets_through(1, LONGEST));
    world.misses(1);
    world.run_for(Duration::from_millis(10));
    for from in 0..2 {
        assert!(world.gets_through(from, LONGEST), "{from}");
    }
    // A packet that was lost by chance costs a round trip.
    world.takes = LONGEST;
    world.run_for(Duration::from_secs(700));
    world.misses(2);
    assert_eq!(world.goes_in_parts_of(), Some(SHORT));
    world.run_for(Duration::from_millis(10));
    assert_eq!(world.goes_in_parts_of(), None);
}

/// Other NICs drop what they do not know.
#[test]
fn whoever_does_not_answer_gets_everything_whole_and_is_seldom_asked() {
    let mut world = World::new(0);
    let mut asked = 0;
    for second in 0..1000 {
        for _ in 0..10 {
            asked += world.ends[0]
                .tries(|_| true, world.now, &mut world.random)
                .len();
            world.now = world.now + Duration::from_millis(100);
        }
        // Nor is it told often, whatever is missing.
        let told = (0..100).filter(|n| {
            let missing = second * 100 + n + 1;
            world.ends[0]
                .count_missing(PEER, || false, missing, world.now)
                .is_some()
        });
        assert_eq!(told.count(), 1);
        assert_eq!(world.goes_in_parts_of(), None);
    }
    assert!(asked <= 3 * 1010, "{asked}");
}

#[test]
fn a_refusal_of_a_try_is_no_news() {
    let mut world = World::new(1460);
    world.run_for(Duration::from_millis(10));
    world.ends[0].refused(PEER, world.now);
    assert_eq!(world.goes_in_parts_of(), Some(1448));
}

#[test]
fn nothing_is_tried_within_a_machine_until_something_is_missing() {
    let mut paths = Paths::new(&mut Random::from_seed(3));
    for (missing, next) in [(0, Time::NEVER), (1, Time::ZERO)] {
        let say = paths.count_missing(PEER, || true, missing, Time::ZERO);
        assert_eq!(say.is_some(), missing > 0);
        assert_eq!(paths.next_deadline(), next);
    }
}

/// Lost: half a minute of a test, in which NICs asked each other for packets of connections that were over.
#[test]
fn nothing_is_tried_with_a_peer_without_a_connection_until_there_is_one_again() {
    let mut world = World::new(1460);
    world.run_for(Duration::from_millis(10));
    let (now, random) = (world.now + Duration::from_secs(1), &mut world.random);
    let paths = &mut world.ends[0];
    assert!(paths.tries(|_| false, now, random).is_empty());
    assert_eq!(paths.next_deadline(), Time::NEVER);
    // It is known still what does not get through.
    assert_eq!(world.goes_in_parts_of(), Some(1448));
    assert!(world.ends[0].next_deadline() <= now);
}

#[test]
fn paths_that_nobody_uses_are_forgotten_and_the_others_seldom_looked_at() {
    let mut paths = Paths::new(&mut Random::from_seed(2));
    let peer = |number: u16| {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        Gid(bytes)
    };
    let looked_at = core::cell::Cell::new(0);
    for number in 0..1000 {
        paths.path(peer(number), || false, Time::ZERO);
        paths.forget_all_but(|gid| {
            looked_at.set(looked_at.get() + 1);
            gid.0[0] % 2 == 0
        });
    }
    assert!((500..1000).contains(&paths.by_peer.len()));
    assert!(
        (0..1000)
            .step_by(2)
            .all(|number| paths.by_peer.contains_key(&peer(number)))
    );
    assert!(looked_at.get() < 4000, "{}", looked_at.get());
}
