use super::*;
use alloc::vec::Vec;
use legato_verbs::{CompletionKind, CompletionStatus, WorkRequestId};

const IDEAL: CompletionQueuePolicy = CompletionQueuePolicy {
    overrun: Overrun::Ends,
    destroyed: Destroyed::Removed,
};
const RXE: CompletionQueuePolicy = CompletionQueuePolicy {
    overrun: Overrun::Drops,
    destroyed: Destroyed::Stay,
};

fn queue_pair(generation: u32) -> QueuePair {
    QueuePair {
        index: 5,
        generation,
    }
}

fn completion(generation: u32, id: u64) -> Completion {
    Completion {
        wr_id: WorkRequestId(id),
        queue_pair: queue_pair(generation),
        result: Ok(CompletionKind::Send),
        vendor_error: 0,
    }
}

fn failure(id: u64) -> Completion {
    Completion {
        result: Err(CompletionStatus::WorkRequestFlushed),
        ..completion(1, id)
    }
}

fn post(queue: &mut CompletionQueue, id: u64) -> Posted {
    queue.post(completion(1, id), WorkQueue::Send, false)
}

/// The ids of all entries, polled until there are none.
fn drain(queue: &mut CompletionQueue) -> Result<Vec<u64>, QueueDead> {
    core::iter::from_fn(|| queue.poll().transpose())
        .map(|entry| entry.map(|entry| entry.completion.wr_id.0))
        .collect()
}

#[test]
fn completions_come_in_the_order_in_which_they_went() {
    let mut queue = CompletionQueue::new(3, IDEAL);
    for round in 0..5 {
        for id in 0..3 {
            assert_eq!(post(&mut queue, round * 3 + id), Posted::Stored);
        }
        let ids = [0, 1, 2].map(|id| round * 3 + id);
        assert_eq!(drain(&mut queue), Ok(ids.to_vec()));
    }
}

#[test]
fn v16_overrun_ends_the_queue_and_says_so_once() {
    let mut queue = CompletionQueue::new(2, IDEAL);
    post(&mut queue, 1);
    post(&mut queue, 2);
    let posted = [3, 4, 5].map(|id| post(&mut queue, id));
    assert_eq!(posted, [Posted::Overrun, Posted::Lost, Posted::Lost]);
    assert!(queue.is_dead());
    assert_eq!(queue.poll(), Err(QueueDead));
    assert_eq!(queue.arm(Arm::Next), Err(QueueDead));
    assert_eq!(queue.lost(), 3);
    assert_eq!(queue.detach(queue_pair(1), 2), Removed::default());
    assert_eq!(post(&mut queue, 6), Posted::Lost);
}

#[test]
fn v16_overrun_of_rxe_loses_what_is_new_and_says_so_once() {
    let mut queue = CompletionQueue::new(1, RXE);
    let posted: Vec<_> = (0..40).map(|id| post(&mut queue, id)).collect();
    assert_eq!(posted[..2], [Posted::Stored, Posted::Overrun]);
    assert!(posted[2..].iter().all(|&posted| posted == Posted::Lost));
    assert!(!queue.is_dead());
    assert_eq!((drain(&mut queue), queue.lost()), (Ok(Vec::from([0])), 39));
    assert_eq!(queue.arm(Arm::Next), Ok(false));
    assert_eq!(post(&mut queue, 40), Posted::Wake);
    assert_eq!(post(&mut queue, 41), Posted::Lost);
    assert_eq!(drain(&mut queue), Ok(Vec::from([40])));
}

#[test]
fn a_queue_without_entries_overruns_at_once() {
    let mut queue = CompletionQueue::new(0, IDEAL);
    assert_eq!(queue.poll(), Ok(None));
    assert_eq!(post(&mut queue, 1), Posted::Overrun);
}

#[test]
fn v17_the_ledger_refuses_with_the_numbers() {
    let mut queue = CompletionQueue::new(10, IDEAL);
    assert_eq!(queue.reserve(7), Ok(()));
    let refused = VerbsError::CompletionQueueTooSmall { needed: 4, free: 3 };
    assert_eq!(queue.reserve(4), Err(refused));
    assert_eq!(queue.reserve(3), Ok(()));
    let refused = VerbsError::CompletionQueueTooSmall {
        needed: u32::MAX,
        free: 0,
    };
    assert_eq!(queue.reserve(u32::MAX), Err(refused));
    queue.detach(queue_pair(1), 7);
    assert_eq!(queue.free(), 7);
}

#[test]
fn v17_entries_that_stay_are_not_reserved_a_second_time() {
    let mut queue = CompletionQueue::new(4, RXE);
    queue.reserve(4).unwrap();
    (0..3).for_each(|id| assert_eq!(post(&mut queue, id), Posted::Stored));
    queue.detach(queue_pair(1), 4);
    assert_eq!(queue.free(), 1);
    // A second queue pair of the number cannot fill what the first one left behind.
    assert_eq!(
        queue.reserve(2),
        Err(VerbsError::CompletionQueueTooSmall { needed: 2, free: 1 })
    );
    queue.poll().unwrap();
    queue.reserve(2).unwrap();
    for id in [7, 8] {
        let completion = completion(2, id);
        let posted = queue.post(completion, WorkQueue::Receive, false);
        assert_eq!(posted, Posted::Stored);
    }
    assert_eq!(drain(&mut queue), Ok(Vec::from([1, 2, 7, 8])));
    assert_eq!(queue.free(), 2);
}

#[test]
fn v19_a_destroyed_queue_pair_takes_its_completions_away() {
    let mut queue = CompletionQueue::new(8, IDEAL);
    for (generation, work, id) in [
        (1, WorkQueue::Send, 1),
        (2, WorkQueue::Send, 2),
        (1, WorkQueue::Receive, 3),
        (1, WorkQueue::Receive, 4),
        (2, WorkQueue::Receive, 5),
    ] {
        queue.post(completion(generation, id), work, false);
    }
    let removed = Removed {
        sends: 1,
        receives: 2,
    };
    assert_eq!(queue.detach(queue_pair(1), 0), removed);
    assert_eq!(drain(&mut queue), Ok(Vec::from([2, 5])));
}

#[test]
fn v19_completions_that_stay_have_the_old_generation() {
    let mut queue = CompletionQueue::new(8, RXE);
    (0..3).for_each(|id| assert_eq!(post(&mut queue, id), Posted::Stored));
    queue.detach(queue_pair(1), 0);
    queue.post(completion(2, 9), WorkQueue::Send, false);
    queue.detach(queue_pair(1), 0);
    let entries: Vec<_> = core::iter::from_fn(|| queue.poll().unwrap()).collect();
    let generations: Vec<_> = entries
        .iter()
        .map(|entry| entry.completion.queue_pair.generation)
        .collect();
    assert_eq!(generations, [1, 1, 1, 2]);
    let orphans: Vec<_> = entries.iter().map(QueuedCompletion::is_orphan).collect();
    assert_eq!(orphans, [true, true, true, false]);
    assert_eq!(queue.free(), 8);
}

#[test]
fn arming_is_for_one_completion() {
    let mut queue = CompletionQueue::new(8, IDEAL);
    assert_eq!(post(&mut queue, 1), Posted::Stored);
    assert_eq!(queue.arm(Arm::Next), Ok(true));
    assert_eq!(post(&mut queue, 2), Posted::Wake);
    assert_eq!(post(&mut queue, 3), Posted::Stored);
    drain(&mut queue).unwrap();
    assert_eq!(queue.arm(Arm::Next), Ok(false));
    // Armed twice, woken once.
    assert_eq!(queue.arm(Arm::Next), Ok(false));
    assert_eq!(post(&mut queue, 4), Posted::Wake);
    assert_eq!(post(&mut queue, 5), Posted::Stored);
}

#[test]
fn solicited_arming_waits_for_solicited_ones_and_failures() {
    let mut queue = CompletionQueue::new(8, IDEAL);
    queue.arm(Arm::Solicited).unwrap();
    assert_eq!(post(&mut queue, 1), Posted::Stored);
    let solicited = queue.post(completion(1, 2), WorkQueue::Receive, true);
    assert_eq!(solicited, Posted::Wake);
    queue.arm(Arm::Solicited).unwrap();
    let failed = queue.post(failure(3), WorkQueue::Send, false);
    assert_eq!(failed, Posted::Wake);
    // The wish for any completion is not taken back.
    queue.arm(Arm::Next).unwrap();
    queue.arm(Arm::Solicited).unwrap();
    assert_eq!(post(&mut queue, 4), Posted::Wake);
    // But it replaces the wish for solicited ones.
    queue.arm(Arm::Solicited).unwrap();
    queue.arm(Arm::Next).unwrap();
    assert_eq!(post(&mut queue, 5), Posted::Wake);
}

/// A waiter's program, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Poll,
    Arm,
    PollAgain,
    /// To sleep, unless there is an event.
    Wait,
    Asleep,
}

/// How a waiter goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    PollsAgain,
    TrustsTheAnswer,
    /// The mistake.
    SleepsAtOnce,
}

#[derive(Clone)]
struct Schedule {
    queue: CompletionQueue,
    step: Step,
    /// Came while the waiter was awake.
    event: bool,
    habit: Habit,
    arm: Arm,
    /// Each to come: is it solicited?
    coming: Vec<bool>,
    /// Of those in the queue, the ones that a waiter may not sleep over.
    urgent: u32,
}

impl Schedule {
    /// Goes on in every order; counts the orders, and those that end with a sleeping waiter who
    /// has something to do.
    fn explore(self) -> (u64, u64) {
        let mut found = (0, 0);
        let mut add = |(orders, bad): (u64, u64)| found = (found.0 + orders, found.1 + bad);
        if !self.coming.is_empty() {
            add(self.clone().posted().explore());
        }
        if self.step != Step::Asleep {
            add(self.clone().stepped().explore());
        } else if self.coming.is_empty() {
            add((1, u64::from(self.urgent > 0)));
        }
        found
    }

    fn posted(mut self) -> Self {
        let solicited = self.coming.remove(0);
        self.urgent += u32::from(solicited || self.arm == Arm::Next);
        let posted = self
            .queue
            .post(completion(1, 0), WorkQueue::Receive, solicited);
        match (posted, self.step) {
            (Posted::Wake, Step::Asleep) => self.step = Step::Poll,
            (Posted::Wake, _) => self.event = true,
            _ => {}
        }
        self
    }

    fn stepped(mut self) -> Self {
        self.step = match self.step {
            // One entry at a time, so that others come between.
            Step::Poll | Step::PollAgain => match self.queue.poll().unwrap() {
                Some(_) => {
                    // The oldest may be one that is not urgent; at the end only "none" counts.
                    if self.queue.clone().poll() == Ok(None) {
                        self.urgent = 0;
                    }
                    Step::Poll
                }
                None if self.step == Step::Poll => Step::Arm,
                None => Step::Wait,
            },
            Step::Arm => match (self.queue.arm(self.arm).unwrap(), self.habit) {
                (_, Habit::PollsAgain) => Step::PollAgain,
                (true, Habit::TrustsTheAnswer) => Step::Poll,
                (false, Habit::TrustsTheAnswer) | (_, Habit::SleepsAtOnce) => Step::Wait,
            },
            Step::Wait if core::mem::take(&mut self.event) => Step::Poll,
            Step::Wait | Step::Asleep => Step::Asleep,
        };
        self
    }
}

fn explore(habit: Habit, arm: Arm, coming: &[bool]) -> (u64, u64) {
    Schedule {
        queue: CompletionQueue::new(4, IDEAL),
        step: Step::Poll,
        event: false,
        habit,
        arm,
        coming: coming.to_vec(),
        urgent: 0,
    }
    .explore()
}

#[test]
fn v18_no_order_leaves_a_sleeper_with_a_completion() {
    let patterns = [
        [true; 3],
        [false; 3],
        [false, true, false],
        [true, false, true],
    ];
    for habit in [Habit::PollsAgain, Habit::TrustsTheAnswer] {
        for arm in [Arm::Next, Arm::Solicited] {
            for coming in patterns {
                let (orders, bad) = explore(habit, arm, &coming);
                assert!(orders >= 20, "{orders}");
                assert_eq!(bad, 0, "{habit:?} {arm:?} {coming:?}");
            }
        }
    }
}

#[test]
fn v18_who_does_not_poll_again_sleeps_over_a_completion() {
    let (orders, bad) = explore(Habit::SleepsAtOnce, Arm::Next, &[true; 3]);
    assert!(0 < bad && bad < orders, "{bad} of {orders}");
}
