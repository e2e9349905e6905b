//! Threads that move, grow, shrink and unmap memory, and announce it when they get to it.

use super::*;
use alloc::collections::BTreeMap;
use legato_base::Random;

const PLACES: u64 = 200;
const THREADS: usize = 6;

struct Thread {
    region: PageRange,
    /// A mapping to move memory onto, and whether it is registered.
    target: Option<(PageRange, bool)>,
    /// What it has done and not announced yet, in order.
    unannounced: VecDeque<Message>,
    /// It waits until its announcement has been read.
    announced: bool,
}

/// When the agent reads, and how much.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// All that is there, at any time.
    AtAnyTime,
    /// What is there when all have announced who were late when the agent began to wait; again, if
    /// something has come meanwhile.
    Gathered { again: bool },
}

/// The agent waits.
struct Waiting {
    announced: usize,
    late: Vec<usize>,
}

/// The address space as it is, and as the events tell.
struct World {
    reading: Reading,
    waiting: Option<Waiting>,
    random: Random,
    threads: Vec<Thread>,
    /// What is on each page: where it was at the beginning. None for new pages.
    pages: BTreeMap<u64, Option<u64>>,
    known: BTreeMap<u64, u64>,
    armed: RangeSet,
    queue: VecDeque<(usize, Message)>,
    order: Order,
}

impl World {
    fn new(seed: u64, reading: Reading) -> Self {
        let mut random = Random::from_seed(seed);
        let mut world = Self {
            reading,
            waiting: None,
            threads: Vec::new(),
            pages: BTreeMap::new(),
            known: BTreeMap::new(),
            armed: RangeSet::default(),
            queue: VecDeque::new(),
            order: Order::default(),
            random: Random::from_seed(seed ^ 1),
        };
        for thread in 0..THREADS as u64 {
            let region = range(thread * 20, 1 + random.below(18));
            for page in region.start.0..region.end().0 {
                world.pages.insert(page, Some(page));
                world.known.insert(page, page);
            }
            world.armed.insert(region);
            world.threads.push(Thread {
                region,
                target: None,
                unannounced: VecDeque::new(),
                announced: false,
            });
        }
        world
    }

    fn is_free(&self, place: PageRange) -> bool {
        self.pages
            .range(place.start.0..place.end().0)
            .next()
            .is_none()
    }

    /// As the kernel chooses: the first place that is large enough.
    fn free_place(&self, count: u64) -> Option<PageNumber> {
        (0..PLACES)
            .map(PageNumber)
            .find(|&start| self.is_free(PageRange::new(start, count)))
    }

    fn act(&mut self, thread: usize) {
        let region = self.threads[thread].region;
        let messages = match self.random.below(5) {
            0 | 1 => self.relocate(thread, region),
            2 => self.grow(thread, region),
            3 => self.shrink(thread, region),
            _ => self.relocate_onto_target(thread, region),
        };
        self.threads[thread].unannounced.extend(messages);
    }

    fn relocate(&mut self, thread: usize, from: PageRange) -> Vec<Message> {
        let to = self.free_place(from.count);
        to.map_or_else(Vec::new, |to| self.relocate_to(thread, from, to))
    }

    fn relocate_to(&mut self, thread: usize, from: PageRange, to: PageNumber) -> Vec<Message> {
        let content: Vec<_> = (from.start.0..from.end().0)
            .map(|page| self.pages.remove(&page).unwrap())
            .collect();
        self.pages.extend((to.0..).zip(content));
        self.threads[thread].region = PageRange::new(to, from.count);
        vec![moved(from, to), removed(from, true)]
    }

    /// Maps a target first, and moves onto it the next time. What is registered is announced as
    /// unmapped before the move is (MREMAP_FIXED).
    fn relocate_onto_target(&mut self, thread: usize, from: PageRange) -> Vec<Message> {
        let Some((target, is_registered)) = self.threads[thread].target.take() else {
            if let Some(place) = self.free_place(from.count) {
                let target = PageRange::new(place, from.count);
                let new = (target.start.0..target.end().0).map(|page| (page, None));
                self.pages.extend(new);
                self.threads[thread].target = Some((target, false));
            }
            return Vec::new();
        };
        self.pages
            .retain(|&page, _| !target.contains(PageNumber(page)));
        let mut messages = Vec::new();
        if is_registered {
            messages.push(removed(target, true));
        }
        if target.count == from.count {
            messages.extend(self.relocate_to(thread, from, target.start));
        }
        messages
    }

    fn register_targets(&mut self) {
        for thread in &mut self.threads {
            if let Some((target, is_registered)) = &mut thread.target {
                *is_registered = true;
                self.armed.insert(*target);
            }
        }
    }

    fn grow(&mut self, thread: usize, region: PageRange) -> Vec<Message> {
        let more = PageRange::new(region.end(), 1 + self.random.below(4));
        if self.is_free(more) {
            let new = (more.start.0..more.end().0).map(|page| (page, None));
            self.pages.extend(new);
            self.threads[thread].region.count += more.count;
        }
        Vec::new()
    }

    fn shrink(&mut self, thread: usize, region: PageRange) -> Vec<Message> {
        let kept = 1 + self.random.below(region.count);
        if kept == region.count {
            return Vec::new();
        }
        let tail = PageRange::new(region.start.plus(kept), region.count - kept);
        self.pages
            .retain(|&page, _| !tail.contains(PageNumber(page)));
        self.threads[thread].region.count = kept;
        vec![removed(tail, true)]
    }

    fn is_changing(&self) -> bool {
        let busy = |thread: &Thread| !thread.unannounced.is_empty() || thread.announced;
        self.threads.iter().any(busy)
    }

    /// A thread has done something that it has not announced.
    fn is_late(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        !thread.announced && !thread.unannounced.is_empty()
    }

    /// The agent begins to wait, or reads.
    fn turn(&mut self) {
        let Reading::Gathered { again } = self.reading else {
            return self.read(self.queue.len());
        };
        let waiting = self.waiting.take().unwrap_or_else(|| Waiting {
            announced: self.queue.len(),
            late: (0..THREADS)
                .filter(|&thread| self.is_late(thread))
                .collect(),
        });
        if !waiting.late.is_empty() {
            self.waiting = Some(waiting);
        } else if !again || waiting.announced == self.queue.len() {
            self.read(self.queue.len());
        }
    }

    /// The agent reads so much of what waits.
    fn read(&mut self, count: usize) {
        let mut messages = Vec::new();
        for (thread, message) in self.queue.drain(..count) {
            self.threads[thread].announced = false;
            messages.push(message);
        }
        let mut batch = simultaneous(messages);
        if matches!(self.reading, Reading::AtAnyTime) {
            batch.sequence = Sequence::Incomplete;
        }
        self.order.receive(batch, Time::ZERO);
        let changing = self.is_changing();
        while let Some(message) = self.order.next(&self.armed, || changing, |_| Some(false)) {
            self.follow(&message);
        }
        if !changing {
            self.register_targets();
        }
    }

    fn follow(&mut self, message: &Message) {
        let gone = message.vacated().unwrap();
        self.armed.remove(gone);
        let mut moved = Vec::new();
        for page in gone.start.0..gone.end().0 {
            moved.extend(self.known.remove(&page).map(|content| (page, content)));
        }
        if let Message::Remapped { from, to, .. } = *message {
            self.armed.insert(PageRange::new(to, from.count));
            let there = |page: u64| page - from.start.0 + to.0;
            let moved = moved.into_iter();
            self.known
                .extend(moved.map(|(page, content)| (there(page), content)));
        }
    }

    fn step(&mut self) {
        let thread = self.random.below(THREADS as u64) as usize;
        if self.random.ratio(1, 4) {
            self.turn();
        } else if self.threads[thread].announced {
        } else if let Some(message) = self.threads[thread].unannounced.pop_front() {
            self.announce(thread, message);
        } else {
            self.act(thread);
        }
    }

    fn announce(&mut self, thread: usize, message: Message) {
        self.threads[thread].announced = true;
        self.queue.push_back((thread, message));
        if let Some(waiting) = &mut self.waiting {
            waiting.late.retain(|&late| late != thread);
        }
    }

    fn settle(&mut self) {
        while self.is_changing() {
            for thread in 0..THREADS {
                if !self.threads[thread].announced
                    && let Some(message) = self.threads[thread].unannounced.pop_front()
                {
                    self.announce(thread, message);
                }
            }
            self.read(self.queue.len());
        }
        self.read(0);
    }

    /// Every page has the content that the events brought there.
    fn agrees(&self) -> bool {
        let old = self.pages.iter();
        let old: BTreeMap<u64, u64> = old
            .filter_map(|(&page, content)| Some((page, (*content)?)))
            .collect();
        old == self.known
    }
}

/// The worlds that are not followed exactly.
fn wrong_worlds(reading: Reading, steps: usize) -> Vec<u64> {
    let is_wrong = |&seed: &u64| {
        let mut world = World::new(seed, reading);
        (0..steps).for_each(|_| world.step());
        world.settle();
        !world.agrees()
    };
    (0..2_000).filter(is_wrong).collect()
}

/// Threads that get to their announcements when they like, while others do several things with
/// what they have given up: taken as it was read, three worlds in four go wrong. The order of all
/// cannot be told from what the kernel says; of these it can, but for one in twenty-five.
#[test]
fn late_announcements_are_put_in_order() {
    let wrong = wrong_worlds(Reading::AtAnyTime, 60);
    assert!(wrong.len() <= 80, "{} worlds: {wrong:?}", wrong.len());
}

/// Read only when everybody has announced what was done before: what still goes wrong are mappings
/// that grew and were cut again.
#[test]
fn gathered_announcements_are_put_in_order() {
    let wrong = wrong_worlds(Reading::Gathered { again: true }, 200);
    assert!(wrong.len() <= 20, "{} worlds: {wrong:?}", wrong.len());
}

/// Of what comes during the waiting somebody may still be late who came before it.
#[test]
fn what_came_during_the_waiting_is_waited_for_again() {
    let again = wrong_worlds(Reading::Gathered { again: true }, 200).len();
    let once = wrong_worlds(Reading::Gathered { again: false }, 200).len();
    assert!(2 * once > 3 * again, "{once} worlds, and {again}");
}

/// Who announces at once what it has done is followed exactly.
#[test]
fn prompt_announcements_are_followed() {
    for seed in 0..500 {
        let mut world = World::new(seed, Reading::AtAnyTime);
        for _ in 0..100 {
            let thread = world.random.below(THREADS as u64) as usize;
            world.act(thread);
            world.settle();
            assert!(world.agrees(), "seed {seed}");
        }
    }
}
