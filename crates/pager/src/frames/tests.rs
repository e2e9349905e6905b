use super::*;
use crate::SpaceId;
use legato_base::{PageNumber, Random};
use std::collections::VecDeque;

fn page(number: u64) -> SpacePage {
    SpacePage::new(SpaceId::OWN, PageNumber(number))
}

const CHECKSUM: PageChecksum = PageChecksum(7);

#[test]
fn runs_are_neighbours_and_counts_add_up() {
    let mut frames = FrameTable::new(8);
    assert!(frames.take_free_run(1).is_none());
    assert_eq!(frames.take_empty_run(3), Some((FrameIndex(0), 3)));
    frames.release(FrameIndex(1));
    assert_eq!((frames.free(), frames.empty(), frames.used()), (1, 5, 2));
    assert_eq!(frames.take_free_run(4), Some((FrameIndex(1), 1)));
    frames.emptied(FrameIndex(1));
    assert_eq!(frames.take_empty_run(8), Some((FrameIndex(3), 5)));
    assert_eq!(frames.take_empty_run(8), Some((FrameIndex(1), 1)));
    assert!(frames.take_empty_run(8).is_none());
}

#[test]
fn memory_of_a_program_is_dropped_before_its_frame_is_used_again() {
    let mut frames = FrameTable::new(3);
    frames.take_empty_run(3).unwrap();
    frames.mark_foreign(FrameIndex(0));
    frames.mark_foreign(FrameIndex(1));
    (0..3).for_each(|frame| frames.release(FrameIndex(frame)));
    assert_eq!((frames.free(), frames.stale(), frames.empty()), (1, 2, 0));
    assert_eq!(frames.take_free_run(3), Some((FrameIndex(2), 1)));
    assert_eq!(frames.take_free_run(1), None);
    assert_eq!(frames.take_stale_run(3), Some((FrameIndex(0), 2)));
    frames.emptied(FrameIndex(0));
    // What could not be dropped stays stale.
    frames.release(FrameIndex(1));
    assert_eq!((frames.free(), frames.stale(), frames.empty()), (0, 1, 1));
    // With other memory it is a frame like any other.
    assert_eq!(frames.take_empty_run(1), Some((FrameIndex(0), 1)));
    frames.release(FrameIndex(0));
    assert_eq!(frames.free(), 1);
}

#[test]
#[should_panic(expected = "frame 0 is Free here")]
fn a_frame_is_not_released_twice() {
    let mut frames = FrameTable::new(2);
    frames.take_empty_run(1).unwrap();
    frames.release(FrameIndex(0));
    frames.release(FrameIndex(0));
}

#[test]
#[should_panic(expected = "frame 0 is Writing(None) here")]
fn what_the_fabric_may_read_is_not_released() {
    let mut frames = FrameTable::new(1);
    frames.take_empty_run(1).unwrap();
    frames.queue(FrameIndex(0), page(5), CHECKSUM);
    frames.begin_write(FrameIndex(0));
    frames.disown(FrameIndex(0));
    frames.release(FrameIndex(0));
}

/// A page was dropped while it waited, its frame taken for another one, and the first fill came later:
/// the frame was listed twice, and entered twice.
#[test]
fn a_frame_waits_to_enter_once() {
    let mut frames = FrameTable::new(1);
    let (frame, _) = frames.take_empty_run(1).unwrap();
    frames.arrive(frame, page(7), true);
    frames.release(frame);
    let (frame, _) = frames.take_free_run(1).unwrap();
    frames.arrive(frame, page(8), true);
    assert!(frames.arrivals().eq([frame]));
    assert_eq!(frames.state(frame).page(), Some(page(8)));
}

#[test]
fn a_victim_goes_its_way_and_comes_back_from_everywhere() {
    let mut frames = FrameTable::new(3);
    frames.take_empty_run(3).unwrap();
    let [first, second, third] = [0, 1, 2].map(FrameIndex);
    frames.queue(first, page(1), CHECKSUM);
    frames.queue(second, page(2), PageChecksum(8));
    frames.queue(third, page(3), PageChecksum(9));
    assert_eq!(frames.oldest_queued(), Some(first));
    assert_eq!(frames.checksum(second), PageChecksum(8));
    // Back before it was written.
    frames.arrive(first, page(1), true);
    assert_eq!((frames.oldest_queued(), frames.queued()), (Some(second), 2));
    // Back while it is written: its content goes through another frame.
    frames.begin_write(second);
    frames.disown(second);
    assert_eq!(frames.end_operation(second), FrameState::Writing(None));
    frames.release(second);
    // Written, moved in the program, and back.
    frames.begin_write(third);
    frames.rename(third, page(33));
    let state = frames.end_operation(third);
    assert_eq!(state, FrameState::Writing(Some(page(33))));
    frames.finish(third, page(33));
    assert_eq!((frames.oldest_done(), frames.writing()), (Some(third), 0));
    frames.arrive(third, page(33), false);
    frames.demand(third);
    let (page, demanded) = (page(33), true);
    assert_eq!(frames.state(third), FrameState::Arrived { page, demanded });
    assert!(frames.arrivals().eq([first, third]));
    assert_eq!((frames.done(), frames.queued(), frames.used()), (0, 0, 2));
}

#[test]
fn a_victim_whose_write_is_in_quarantine_is_written_again_and_its_frame_serves_no_more() {
    let mut frames = FrameTable::new(2);
    frames.take_empty_run(2).unwrap();
    let [victim, other] = [0, 1].map(FrameIndex);
    frames.queue(victim, page(5), CHECKSUM);
    frames.begin_write(victim);
    frames.fetch(other, page(6), true);
    frames.hold(victim);
    frames.hold(other);
    assert_eq!((frames.writing(), frames.incoming()), (0, 0));
    assert_eq!(frames.oldest_queued(), Some(victim));
    assert_eq!(frames.checksum(victim), CHECKSUM);
    // The second write is quiet, and then the first one too.
    frames.begin_write(victim);
    frames.end_operation(victim);
    frames.finish(victim, page(5));
    frames.release(victim);
    assert_eq!(frames.unused(), 0);
    frames.let_go(victim);
    assert_eq!(frames.take_free_run(2), Some((victim, 1)));
    frames.let_go(other);
    assert_eq!(frames.free(), 1);
}

/// Every legal step, at random, against plain lists.
#[test]
fn queues_and_counts_agree_with_the_states() {
    const FRAMES: u32 = 30;
    let mut random = Random::from_seed(1);
    let mut frames = FrameTable::new(FRAMES);
    let mut done = VecDeque::new();
    let mut held = Vec::new();
    for step in 0..20_000 {
        let frame = FrameIndex(random.below(u64::from(FRAMES)) as u32);
        let either = random.ratio(1, 2);
        match frames.state(frame) {
            FrameState::Empty => assert!(frames.take_empty_run(2).is_some()),
            FrameState::Free => assert!(frames.take_free_run(2).is_some()),
            FrameState::Stale => assert!(frames.take_stale_run(2).is_some()),
            FrameState::Taken => match random.below(6) {
                0 => frames.fetch(frame, page(step), either),
                1 => frames.arrive(frame, page(step), either),
                2 => frames.queue(frame, page(step), CHECKSUM),
                3 => {
                    frames.finish(frame, page(step));
                    done.push_back(frame);
                }
                4 => frames.emptied(frame),
                _ => {
                    frames.mark_foreign(frame);
                    frames.release(frame);
                }
            },
            FrameState::Fetching { .. } | FrameState::Writing(_) if random.ratio(1, 8) => {
                frames.hold(frame);
                held.push(frame);
            }
            FrameState::Fetching { .. } | FrameState::Writing(_) => {
                frames.end_operation(frame);
            }
            FrameState::Quarantined => {
                let first = held.iter().position(|&other| other == frame);
                frames.let_go(held.remove(first.unwrap()));
            }
            FrameState::Queued(_) if either => frames.begin_write(frame),
            FrameState::Done(page) => {
                done.retain(|&other| other != frame);
                match either {
                    true => frames.queue(frame, page, CHECKSUM),
                    false => frames.arrive(frame, page, true),
                }
            }
            FrameState::Arrived { .. } if either => frames.hollow(frame),
            FrameState::Arrived { .. } | FrameState::Queued(_) | FrameState::Hollow(_) => {
                frames.release(frame);
            }
        }
        let count = |is: fn(FrameState) -> bool| frames.states().filter(|&state| is(state)).count();
        let counts = [
            (frames.empty(), count(|state| state == FrameState::Empty)),
            (frames.free(), count(|state| state == FrameState::Free)),
            (frames.stale(), count(|state| state == FrameState::Stale)),
            (
                frames.queued(),
                count(|state| matches!(state, FrameState::Queued(_))),
            ),
            (
                frames.incoming(),
                count(|state| {
                    matches!(
                        state,
                        FrameState::Free | FrameState::Fetching { .. } | FrameState::Arrived { .. }
                    )
                }),
            ),
            (
                frames.writing(),
                count(|state| matches!(state, FrameState::Writing(_))),
            ),
            (
                frames.done(),
                count(|state| matches!(state, FrameState::Done(_))),
            ),
        ];
        for (counted, found) in counts {
            assert_eq!(counted as usize, found);
        }
        // Nothing comes into what is held.
        let is_held = |&frame: &FrameIndex| {
            let state = frames.state(frame);
            frames.is_held(frame) && !matches!(state, FrameState::Free | FrameState::Stale)
        };
        assert!(held.iter().all(is_held));
        let arrived = count(|state| matches!(state, FrameState::Arrived { .. }));
        assert_eq!(frames.arrivals().count(), arrived);
        assert_eq!(frames.oldest_done(), done.front().copied());
    }
}
