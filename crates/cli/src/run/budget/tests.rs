//! The division by rule, and the ledger with agents that obey at once, late, or never.

use super::*;
use legato_base::random::Random;

const MIB: u64 = 1 << 20;

fn content(resident: u64) -> Demand {
    Demand {
        resident,
        spaces: 1,
        ..Demand::default()
    }
}

fn pressed(spaces: u32) -> Demand {
    Demand {
        pressed: true,
        spaces,
        ..Demand::default()
    }
}

#[test]
fn one_process_has_everything() {
    assert_eq!(divide(64 * MIB, &[content(3 * MIB)]), [64 * MIB]);
    assert_eq!(divide(64 * MIB, &[pressed(1)]), [64 * MIB]);
}

#[test]
fn those_that_want_more_share_equally_what_the_others_leave() {
    let shares = divide(65 * MIB, &[content(4 * MIB), pressed(1), pressed(1)]);
    assert_eq!(shares[0], 4 * MIB + MIB / 2, "what it uses, and an eighth");
    assert_eq!(shares[1], shares[2]);
    assert_eq!(shares[1], (65 * MIB - shares[0]) / 2);
}

#[test]
fn a_process_that_is_content_with_much_keeps_no_more_than_a_fair_part() {
    let shares = divide(64 * MIB, &[content(60 * MIB), pressed(1)]);
    assert_eq!(shares, [32 * MIB, 32 * MIB]);
}

#[test]
fn forked_children_count() {
    assert_eq!(
        divide(60 * MIB, &[pressed(3), pressed(2), pressed(1)]),
        [30 * MIB, 20 * MIB, 10 * MIB]
    );
}

#[test]
fn what_cannot_be_done_without_comes_first() {
    let needy = Demand {
        needed: 40 * MIB,
        ..pressed(1)
    };
    let shares = divide(64 * MIB, &[needy, pressed(1), pressed(1)]);
    assert_eq!(shares, [40 * MIB, 12 * MIB, 12 * MIB]);
}

#[test]
fn what_nobody_wants_goes_to_the_big_ones() {
    let shares = divide(64 * MIB, &[content(0), content(9 * MIB)]);
    assert!(shares[1] > 8 * shares[0], "{shares:?}");
    assert!(shares.iter().sum::<u64>() > 64 * MIB - 16);
}

#[test]
fn floors_are_given_even_where_they_are_too_much() {
    assert_eq!(divide(2 * MIB, &[pressed(1); 3]), [FLOOR; 3]);
}

fn any_demand(random: &mut Random) -> Demand {
    let needs = random.ratio(1, 5);
    Demand {
        resident: random.below(200 * MIB),
        needed: if needs { random.below(20 * MIB) } else { 0 },
        pressed: random.ratio(1, 2),
        spaces: random.below(5) as u32,
    }
}

/// For many seeds: something to divide, and those who want it.
fn for_any_demands(check: impl Fn(u64, Vec<Demand>, &str)) {
    for seed in 0..2_000 {
        let mut random = Random::from_seed(seed);
        let capacity = random.below(1024 * MIB);
        let count = 1 + random.below(40);
        let demands = (0..count).map(|_| any_demand(&mut random)).collect();
        check(capacity, demands, &format!("seed {seed}"));
    }
}

#[test]
fn no_more_is_divided_than_there_is() {
    for_any_demands(|capacity, demands, seed| {
        let shares = divide(capacity, &demands);
        let floors: u64 = demands.iter().map(Demand::floor).sum();
        assert!(shares.iter().sum::<u64>() <= capacity.max(floors), "{seed}");
        for (share, demand) in shares.iter().zip(&demands) {
            assert!(*share >= demand.floor(), "{seed}");
        }
    });
}

#[test]
fn everyone_has_what_it_wants_or_a_fair_part() {
    for_any_demands(|capacity, mut demands, seed| {
        demands.iter_mut().for_each(|demand| demand.needed = 0);
        let weights: u64 = demands.iter().map(Demand::weight).sum();
        let fair = (capacity / weights).max(FLOOR);
        let capacity = fair * weights;
        for (share, demand) in divide(capacity, &demands).iter().zip(&demands) {
            let least = demand.wanted().min(fair * demand.weight());
            assert!(*share >= least, "{seed}: {demand:?} has {share}");
        }
    });
}

#[test]
fn the_order_of_the_processes_does_not_matter() {
    for_any_demands(|capacity, demands, seed| {
        let mut shares = divide(capacity, &demands);
        let reversed: Vec<_> = demands.iter().rev().copied().collect();
        shares.reverse();
        assert_eq!(divide(capacity, &reversed), shares, "{seed}");
    });
}

fn usage(resident: u64, pressed: bool) -> Usage {
    Usage {
        resident_bytes: resident,
        needed_bytes: 0,
        pressed,
        spaces: 1,
    }
}

fn second(ledger: &mut Ledger, first_resident: u64) -> (AccountId, AccountId, u64) {
    let (first, _) = ledger.open();
    ledger.handle_ready(first);
    ledger.handle_usage(first, usage(first_resident, false));
    let (second, share) = ledger.open();
    ledger.handle_ready(second);
    (first, second, share)
}

#[test]
fn the_first_process_begins_with_all_but_what_starters_need() {
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (id, share) = ledger.open();
    assert_eq!(share, 62 * MIB);
    ledger.handle_ready(id);
    ledger.handle_usage(id, usage(3 * MIB, false));
    assert_eq!(ledger.settle(Instant::now()), []);
}

#[test]
fn memory_is_given_away_before_it_is_granted() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, share) = second(&mut ledger, 8 * MIB);
    assert_eq!(share, 2 * MIB, "what was kept for starters");
    assert_eq!(ledger.settle(now), [(first, 9 * MIB)]);
    assert_eq!(ledger.settle(now), [], "said once");
    ledger.handle_holds(first, 9 * MIB, now);
    assert_eq!(ledger.settle(now), [(second, 53 * MIB)]);
}

#[test]
fn steps_towards_a_smaller_share_are_granted_at_once() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, _) = second(&mut ledger, 60 * MIB);
    assert_eq!(ledger.settle(now), [(first, 31 * MIB)]);
    ledger.handle_holds(first, 50 * MIB, now);
    assert_eq!(ledger.settle(now), [(second, 12 * MIB)]);
    ledger.handle_holds(first, 31 * MIB, now);
    assert_eq!(ledger.settle(now), [(second, 31 * MIB)]);
}

// P-42
#[test]
fn an_agent_that_does_not_answer_counts_with_its_old_share() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, _) = second(&mut ledger, 8 * MIB);
    let _ = ledger.settle(now);
    assert_eq!(ledger.deadline(now), Some(now + CACHE_SHARE));
    let later = now + CACHE_SHARE;
    let (third, share) = ledger.open();
    ledger.handle_ready(third);
    assert_eq!(share, FLOOR);
    assert_eq!(
        ledger.settle(later),
        [(second, FLOOR)],
        "62 of 64 MiB are held"
    );
    // It lived after all.
    ledger.handle_holds(first, 9 * MIB, later);
    let orders = ledger.settle(later);
    assert_eq!(orders.len(), 2, "{orders:?}");
    assert!(orders.iter().all(|(id, _)| [second, third].contains(id)));
}

// P-44
#[test]
fn an_agent_that_has_not_answered_is_asked_again() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, _) = second(&mut ledger, 8 * MIB);
    assert_eq!(ledger.settle(now), [(first, 9 * MIB)]);
    let later = now + ASK_AGAIN;
    assert_eq!(ledger.settle(later), [(first, 9 * MIB)]);
    ledger.handle_holds(first, 9 * MIB, later);
    assert_eq!(ledger.settle(later), [(second, 53 * MIB)]);
}

fn starving(resident: u64, needed: u64) -> Usage {
    Usage {
        needed_bytes: needed,
        ..usage(resident, true)
    }
}

#[test]
fn who_starves_is_given_what_it_needs_however_little_is_missing() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, share) = second(&mut ledger, 8 * MIB);
    ledger.handle_usage(first, usage(62 * MIB, true));
    let _ = ledger.settle(now);
    ledger.handle_holds(first, 62 * MIB - share - NOTABLE_MIN / 2, now);
    let needed = share + NOTABLE_MIN / 2;
    ledger.handle_usage(second, starving(share, needed));
    assert_eq!(ledger.settle(now), [(second, needed)]);
}

#[test]
fn who_starves_does_not_wait_for_one_that_cannot_shrink() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, share) = second(&mut ledger, 62 * MIB);
    ledger.handle_usage(second, starving(share, 6 * MIB));
    let orders = ledger.settle(now);
    assert!(!orders.contains(&(second, 6 * MIB)), "others may shrink");
    let later = now + CACHE_SHARE;
    assert_eq!(ledger.deadline(now), Some(later));
    assert_eq!(ledger.settle(later), [(second, 6 * MIB)]);
    assert_eq!(ledger.shortage(), None, "the first one may be slow");
    let orders = ledger.settle(now + ASK_AGAIN);
    assert!(!orders.iter().any(|&(id, _)| id == second), "kept");
    ledger.handle_usage(first, starving(62 * MIB, 62 * MIB));
    assert_eq!(ledger.shortage(), Some((2, Bytes::mib(68))));
}

#[test]
fn who_starves_on_the_way_to_a_smaller_share_is_stopped() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, _, _) = second(&mut ledger, 60 * MIB);
    assert_eq!(ledger.settle(now), [(first, 31 * MIB)]);
    ledger.handle_usage(first, starving(50 * MIB, 51 * MIB));
    assert_eq!(ledger.settle(now), [(first, 51 * MIB)]);
}

/// It would not know of it, and so not of its having to give it back.
#[test]
fn who_takes_no_orders_is_granted_nothing() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, _) = ledger.open();
    ledger.handle_ready(first);
    ledger.handle_usage(first, usage(MIB, false));
    let (second, share) = ledger.open();
    let _ = ledger.settle(now);
    ledger.handle_holds(first, MIB, now);
    assert_eq!(ledger.settle(now), []);
    assert!(ledger.assigned() < 4 * MIB, "{}", ledger.assigned());
    ledger.handle_usage(first, starving(MIB, 60 * MIB));
    assert_eq!(ledger.settle(now), [(first, 60 * MIB)], "beside {share}");
    ledger.handle_ready(second);
    assert_eq!(ledger.settle(now), []);
}

#[test]
fn a_share_is_returned_when_its_process_ends() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, second, _) = second(&mut ledger, 60 * MIB);
    let _ = ledger.settle(now);
    ledger.handle_holds(first, 31 * MIB, now);
    let _ = ledger.settle(now);
    ledger.close(first);
    assert_eq!(ledger.settle(now), [(second, 62 * MIB)]);
}

#[test]
fn a_share_that_did_not_get_through_is_said_again() {
    let now = Instant::now();
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, _, _) = second(&mut ledger, 8 * MIB);
    let orders = ledger.settle(now);
    ledger.handle_undelivered(first);
    assert_eq!(ledger.settle(now), orders);
}

#[test]
fn nothing_is_said_before_the_agent_is_ready() {
    let mut ledger = Ledger::new(Bytes::mib(64));
    let (first, _) = ledger.open();
    let (_, _) = ledger.open();
    ledger.handle_usage(first, usage(MIB, false));
    assert_eq!(ledger.settle(Instant::now()), []);
}

#[test]
fn too_many_processes_are_mentioned_once() {
    let mut ledger = Ledger::new(Bytes::mib(8));
    for _ in 0..8 {
        let _ = ledger.open();
    }
    assert_eq!(ledger.shortage(), None);
    let _ = ledger.open();
    assert_eq!(ledger.shortage(), Some((9, Bytes::mib(9))));
    assert_eq!(ledger.shortage(), None);
}

/// An agent as the ledger cannot see it.
#[derive(Debug)]
struct Model {
    id: AccountId,
    /// What it may really be using: a smaller share counts when it is reached.
    uses: u64,
    told: u64,
    ready: bool,
    obeys: bool,
    floor: u64,
    floor_peak: u64,
}

/// A ledger among agents that do what they like, and those agents.
struct Tree {
    ledger: Ledger,
    models: Vec<Model>,
    now: Instant,
}

impl Tree {
    fn step(&mut self, random: &mut Random) {
        let any = |random: &mut Random, count: usize| random.below(count.max(1) as u64) as usize;
        let chosen = any(random, self.models.len());
        match (random.below(18), self.models.get_mut(chosen)) {
            (0..2, _) | (_, None) => {
                let (id, share) = self.ledger.open();
                let ready = random.ratio(3, 4);
                if ready {
                    self.ledger.handle_ready(id);
                }
                self.models.push(Model {
                    id,
                    uses: share,
                    told: share,
                    ready,
                    obeys: random.ratio(2, 3),
                    floor: FLOOR,
                    floor_peak: FLOOR,
                });
            }
            (2, Some(_)) => {
                let model = self.models.remove(chosen);
                self.ledger.close(model.id);
            }
            (3..9, Some(model)) => {
                let demand = any_demand(random);
                model.floor = demand.floor();
                model.floor_peak = model.floor_peak.max(model.floor);
                let usage = Usage {
                    resident_bytes: demand.resident,
                    needed_bytes: demand.needed,
                    pressed: demand.pressed,
                    spaces: demand.spaces,
                };
                self.ledger.handle_usage(model.id, usage);
            }
            (9, Some(model)) => {
                model.ready = true;
                self.ledger.handle_ready(model.id);
            }
            (10..16, Some(_)) => self.get_down(chosen, random.below(3)),
            (_, Some(_)) => self.now += Duration::from_millis(random.below(900)),
        }
        self.settle();
    }

    /// An agent that obeys gets down to its share but for some thirds of the way.
    fn get_down(&mut self, index: usize, thirds_left: u64) {
        let model = &mut self.models[index];
        if model.obeys && model.told < model.uses {
            model.uses = model.told + (model.uses - model.told) / 3 * thirds_left;
            self.ledger.handle_holds(model.id, model.uses, self.now);
        }
    }

    fn settle(&mut self) {
        for (id, share) in self.ledger.settle(self.now) {
            let mut models = self.models.iter_mut();
            let model = models.find(|model| model.id == id).unwrap();
            model.told = share;
            model.uses = model.uses.max(share);
        }
    }

    fn floors(&self) -> u64 {
        self.models.iter().map(|model| model.floor).sum()
    }
}

/// P-42: beyond the cache there are only floors: of those that started while everything was held, where
/// floors alone are more, and where others do not get down.
#[test]
fn nothing_is_granted_twice() {
    let cache = 64 * MIB;
    for seed in 0..1_000 {
        let mut random = Random::from_seed(seed);
        let mut tree = Tree {
            ledger: Ledger::new(Bytes(cache)),
            models: Vec::new(),
            now: Instant::now(),
        };
        for _ in 0..120 {
            tree.step(&mut random);
            let uses: u64 = tree.models.iter().map(|model| model.uses).sum();
            let granted = tree.ledger.assigned();
            // Less would be used by somebody else; more by nobody.
            assert_eq!(uses, granted, "seed {seed}: used and granted");
            // What was granted to one counts until it has ended or got down.
            let floors: u64 = tree.models.iter().map(|model| model.floor_peak).sum();
            assert!(granted <= cache + floors, "seed {seed}: {granted}");
        }
        // Whatever the others do, who needs something has it after half a second.
        tree.now += CACHE_SHARE;
        tree.settle();
        for model in tree.models.iter().filter(|model| model.ready) {
            assert!(model.told >= model.floor, "seed {seed}: {model:?}");
        }
        for model in &tree.models {
            tree.ledger.handle_ready(model.id);
        }
        // Once all obey, nothing but floors is beyond the cache.
        for _ in 0..4 {
            tree.now += ASK_AGAIN;
            tree.settle();
            for index in 0..tree.models.len() {
                tree.models[index].obeys = true;
                tree.get_down(index, 0);
            }
            tree.settle();
        }
        let (granted, floors) = (tree.ledger.assigned(), tree.floors());
        // Differences that are not worth a message remain.
        let rest = cache / NOTABLE_PART;
        assert!(
            granted <= cache.max(floors) + rest,
            "seed {seed}: {granted}"
        );
    }
}
