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
        ends[0].begin(PEER, false, Time::ZERO);
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
                    for (_, say) in self.ends[end].tries(self.now, &mut self.random) {
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
        let Some(split) = near.split(Self::name(1 - from), &mut packet, length) else {
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

    /// A timer of the near end's has ended without an answer.
    fn misses(&mut self, count: u64) {
        if let Some(say) = self.ends[0].count_missing(PEER, count, self.now) {
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
    let mut packet = vec![0; LONGEST + 8];
    assert!(world.ends[0].split(PEER, &mut packet, LONGEST).is_none());
}

/// The one who misses answers is told nothing by the other, whose long packets do not get through.
#[test]
fn a_path_that_takes_less_from_some_time_on_is_found_out_at_both_ends() {
    let mut world = World::new(LONGEST);
    world.ends[1].begin(HERE, false, world.now);
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
    let mut packet = vec![0; LONGEST + 8];
    assert!(world.ends[0].split(PEER, &mut packet, LONGEST).is_some());
    world.run_for(Duration::from_millis(10));
    assert!(world.ends[0].split(PEER, &mut packet, LONGEST).is_none());
}

/// Other NICs drop what they do not know.
#[test]
fn whoever_does_not_answer_gets_everything_whole_and_is_seldom_asked() {
    let mut world = World::new(0);
    let mut asked = 0;
    for second in 0..1000 {
        for _ in 0..10 {
            asked += world.ends[0].tries(world.now, &mut world.random).len();
            world.now = world.now + Duration::from_millis(100);
        }
        // Nor is it told often, whatever is missing.
        let told = (0..100).filter(|n| {
            let missing = second * 100 + n + 1;
            world.ends[0]
                .count_missing(PEER, missing, world.now)
                .is_some()
        });
        assert_eq!(told.count(), 1);
        let mut packet = vec![0; LONGEST + 8];
        assert!(world.ends[0].split(PEER, &mut packet, LONGEST).is_none());
    }
    assert!(asked <= 3 * 1010, "{asked}");
}

#[test]
fn a_refusal_of_a_try_is_no_news() {
    let mut world = World::new(1460);
    world.run_for(Duration::from_millis(10));
    world.ends[0].refused(PEER, world.now);
    let mut packet = vec![0; LONGEST + 8];
    let split = world.ends[0].split(PEER, &mut packet, LONGEST).unwrap();
    assert_eq!(split.limit, 1448);
}

#[test]
fn packets_within_a_machine_are_tried_with_nobody() {
    let mut world = World::new(LONGEST);
    let mut paths = Paths::new(&mut world.random);
    paths.begin(PEER, true, Time::ZERO);
    assert_eq!(paths.next_deadline(), Time::NEVER);
    assert!(paths.tries(world.now, &mut world.random).is_empty());
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
        paths.begin(peer(number), false, Time::ZERO);
        paths.forget_all_but(|gid| {
            looked_at.set(looked_at.get() + 1);
            gid.0[0] % 2 == 0
        });
    }
    assert!((500..1000).contains(&paths.by_peer.len()));
    assert!((0..1000).step_by(2).all(|number| paths.knows(peer(number))));
    assert!(looked_at.get() < 4000, "{}", looked_at.get());
}
