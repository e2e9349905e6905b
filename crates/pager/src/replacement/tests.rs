//! The policies against traces, with the cache modelled as a set, and a victim list behind it.

use super::{Fifo, Queued, Replacement, ScanResistant};
use crate::SpacePage;
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

struct Cache {
    policy: Box<dyn Replacement>,
    capacity: usize,
    resident: BTreeSet<SpacePage>,
    stamps: BTreeMap<SpacePage, u32>,
    evicted_at: BTreeMap<SpacePage, u32>,
    clock: u32,
    misses: u64,
    /// Pages that have left and would come back without a fetch: so many of the last.
    victims: VecDeque<SpacePage>,
    victims_kept: usize,
}

impl Cache {
    fn new(policy: Box<dyn Replacement>, capacity: usize) -> Self {
        Self {
            policy,
            capacity,
            resident: BTreeSet::new(),
            stamps: BTreeMap::new(),
            evicted_at: BTreeMap::new(),
            clock: 0,
            misses: 0,
            victims: VecDeque::new(),
            victims_kept: 0,
        }
    }

    fn with_victims(mut self, kept: usize) -> Self {
        self.victims_kept = kept;
        self
    }

    fn touch(&mut self, page: u64) -> Vec<SpacePage> {
        let page = SpacePage::from_bits(page);
        if self.resident.contains(&page) {
            return Vec::new();
        }
        let stamp = self.stamps.entry(page).or_insert(0);
        *stamp += 1;
        let stamp = *stamp;
        let queued = Queued { page, stamp };
        if let Some(place) = self.victims.iter().position(|&victim| victim == page) {
            self.victims.remove(place);
            self.policy.returned(queued);
        } else {
            self.misses += 1;
            if let Some(at) = self.evicted_at.remove(&page) {
                self.policy.refaulted(page, self.clock - at);
            }
            self.policy.inserted(queued);
        }
        self.resident.insert(page);
        let mut victims = Vec::new();
        if self.resident.len() > self.capacity {
            let (resident, stamps) = (&self.resident, &self.stamps);
            let mut valid = |queued: Queued| {
                resident.contains(&queued.page) && stamps[&queued.page] == queued.stamp
            };
            self.policy.choose(1, &mut valid, &mut victims);
        }
        for victim in &victims {
            assert!(self.resident.remove(&victim.page));
            self.evicted_at.insert(victim.page, self.clock);
            self.clock += 1;
            self.victims.push_back(victim.page);
            if self.victims.len() > self.victims_kept {
                self.victims.pop_front();
            }
        }
        victims.into_iter().map(|victim| victim.page).collect()
    }

    /// Misses per hundred touches of a trace.
    fn miss_rate(&mut self, trace: impl Iterator<Item = u64>) -> f64 {
        let before = self.misses;
        let mut touches = 0u64;
        for page in trace {
            self.touch(page);
            touches += 1;
        }
        (self.misses - before) as f64 * 100.0 / touches as f64
    }
}

fn policies() -> [Box<dyn Replacement>; 2] {
    [
        Box::new(Fifo::default()),
        Box::new(ScanResistant::default()),
    ]
}

#[test]
fn m05_one_page_too_many_evicts_exactly_the_policys_choice() {
    for policy in policies() {
        let mut cache = Cache::new(policy, 100);
        for page in 0..100 {
            assert_eq!(cache.touch(page), []);
        }
        // Both are FIFO until a loop is seen: the first page in is the choice.
        assert_eq!(cache.touch(100), [SpacePage::from_bits(0)]);
        assert_eq!(cache.touch(101), [SpacePage::from_bits(1)]);
    }
}

#[test]
fn a_page_that_left_and_came_back_queues_anew() {
    let mut cache = Cache::new(Box::new(Fifo::default()), 3);
    for page in [1, 2, 3, 4, 1] {
        cache.touch(page);
    }
    // 1 went out for 4 and came back for 2; its first place in the queue must not count.
    assert_eq!(cache.touch(5), [SpacePage::from_bits(3)]);
}

#[test]
fn m09_a_loop_over_twice_the_cache_misses_like_keep_first() {
    let trace = |rounds: u64| (0..rounds).flat_map(|_| 0..8000u64);
    let fifo = Cache::new(Box::new(Fifo::default()), 4000).miss_rate(trace(10));
    let mut cache = Cache::new(Box::new(ScanResistant::default()), 4000);
    cache.miss_rate(trace(3));
    let steady = cache.miss_rate(trace(10));
    assert!(fifo > 99.0, "FIFO misses everything: {fifo}");
    assert!(
        steady < 65.0,
        "nearer to keep-first (52) than to LRU (100): {steady}"
    );
}

#[test]
fn m09_the_policy_recovers_when_the_hot_set_moves() {
    let mut cache = Cache::new(Box::new(ScanResistant::default()), 4000);
    cache.miss_rate((0..5).flat_map(|_| 0..8000u64));
    // A hot set that fits, elsewhere: after a while nothing may miss any more.
    let mut random = Random::from_seed(3);
    cache.miss_rate((0..200_000).map(|_| 100_000 + random.below(3000)));
    let settled = cache.miss_rate((0..50_000).map(|_| 100_000 + random.below(3000)));
    assert!(settled < 2.0, "the old hot set must not be kept: {settled}");
}

/// Under FIFO it would be in memory after one round, because what else is there leaves and stays away.
#[test]
fn m09_a_loop_that_fits_drives_out_what_is_used_no_more() {
    let mut cache = Cache::new(Box::new(ScanResistant::default()), 4000).with_victims(200);
    cache.miss_rate((0..5).flat_map(|_| 0..8000u64));
    let elsewhere = || 100_000..103_500u64;
    cache.miss_rate((0..6).flat_map(|_| elsewhere()));
    let settled = cache.miss_rate((0..4).flat_map(|_| elsewhere()));
    assert!(settled < 2.0, "{settled}");
}

/// What the loop's pages make room for would leave first, and come back at once.
#[test]
fn m09_what_comes_back_too_soon_ends_a_loop() {
    let mut cache = Cache::new(Box::new(ScanResistant::default()), 4000).with_victims(50);
    cache.miss_rate((0..5).flat_map(|_| 0..8000u64));
    let before = cache.misses;
    let mut random = Random::from_seed(4);
    cache.miss_rate((0..20_000).map(|_| 100_000 + random.below(3000)));
    // Each of them once, and those that left until it was noticed.
    let misses = cache.misses - before;
    assert!(misses < 6_000, "{misses}");
}

#[test]
fn random_access_is_not_mistaken_for_a_loop() {
    let mut random = Random::from_seed(5);
    let trace: Vec<u64> = (0..200_000).map(|_| random.below(8000)).collect();
    let fifo = Cache::new(Box::new(Fifo::default()), 4000).miss_rate(trace.iter().copied());
    let ours = Cache::new(Box::new(ScanResistant::default()), 4000).miss_rate(trace.into_iter());
    assert!((fifo - ours).abs() < 2.0, "{fifo} against {ours}");
}
