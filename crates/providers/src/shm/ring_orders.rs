//! The ring and its wake-ups, in every order in which one side can see the other's words.

use super::super::envelope::Kind;
use super::super::loom_words::{
    Defect, NO_FENCES, NONE, RELAXED_LOADS, RELAXED_STORES, Shared, failure, in_every_order,
};
use super::*;
use loom::sync::{Arc, Notify};
use loom::thread;

type Side<const DEFECT: Defect> = Link<Arc<Shared<DEFECT>>>;

fn sides<const DEFECT: Defect>() -> (Side<DEFECT>, Side<DEFECT>) {
    let (left, right) = (Shared::<DEFECT>::create(), Shared::<DEFECT>::create());
    (
        Link::join(left.clone(), right.clone()),
        Link::join(right, left),
    )
}

/// Puts a message that no place in the ring has held before, if there is space.
fn put<const DEFECT: Defect>(side: &mut Side<DEFECT>, number: u64) -> bool {
    if !side.has_space(8).unwrap() {
        return false;
    }
    let mut bytes = number.to_le_bytes();
    let piece = Piece {
        pointer: bytes.as_mut_ptr(),
        length: 8,
    };
    let envelope = Envelope {
        kind: Kind::Send,
        length: 8,
        solicited: false,
    };
    // SAFETY: the piece is the array above.
    unsafe { side.put(envelope, core::iter::once(piece)) };
    true
}

fn take<const DEFECT: Defect>(side: &mut Side<DEFECT>) -> Option<u64> {
    let envelope = side.next().unwrap()?;
    let mut bytes = [0; 8];
    let piece = Piece {
        pointer: bytes.as_mut_ptr(),
        length: 8,
    };
    // SAFETY: the piece is the array above.
    unsafe { side.take(envelope, core::iter::once(piece)) };
    Some(u64::from_le_bytes(bytes))
}

/// Two messages through a ring that holds one, both sides looking again and again.
fn polled<const DEFECT: Defect>() {
    let (mut left, mut right) = sides::<DEFECT>();
    let receiver = thread::spawn(move || {
        for number in 1..=2 {
            let taken = loop {
                match take(&mut right) {
                    Some(taken) => break taken,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(taken, number, "taken");
        }
    });
    for number in 1..=2 {
        while !put(&mut left, number) {
            thread::yield_now();
        }
    }
    receiver.join().unwrap();
    assert_eq!(left.take_acknowledged(), Ok(2));
}

/// Sleeps until `ready`, as a provider's user does: says so, looks once more, waits.
fn sleep<const DEFECT: Defect>(
    side: &mut Side<DEFECT>,
    bell: &Notify,
    ready: impl Fn(&Side<DEFECT>) -> bool,
) {
    while !ready(side) {
        side.set_sleeping(true);
        if !ready(side) {
            bell.wait();
        }
        side.set_sleeping(false);
    }
}

/// As [`polled`], but each side sleeps while it has nothing to do, and is woken by the other.
fn slept<const DEFECT: Defect>() {
    let (mut left, mut right) = sides::<DEFECT>();
    let bells = Arc::new([Notify::new(), Notify::new()]);
    let receiver = {
        let bells = bells.clone();
        thread::spawn(move || {
            for number in 1..=2 {
                sleep(&mut right, &bells[1], Link::has_message);
                assert_eq!(take(&mut right), Some(number), "taken");
                if right.must_wake() {
                    bells[0].notify();
                }
            }
        })
    };
    for number in 1..=2 {
        sleep(&mut left, &bells[0], |left| left.has_space(8).unwrap());
        assert!(put(&mut left, number));
        if left.must_wake() {
            bells[1].notify();
        }
    }
    sleep(&mut left, &bells[0], |left| {
        left.peer().delivered.load(Ordering::Acquire) == 2
    });
    receiver.join().unwrap();
    assert_eq!(left.take_acknowledged(), Ok(2));
}

/// One side puts a message while the other goes to sleep: if it sleeps it is woken.
fn met<const DEFECT: Defect>() {
    let (mut left, right) = sides::<DEFECT>();
    let receiver = thread::spawn(move || {
        right.set_sleeping(true);
        !right.has_message()
    });
    assert!(put(&mut left, 1));
    let wakes = left.must_wake();
    let sleeps = receiver.join().unwrap();
    assert!(wakes || !sleeps, "slept for ever");
}

/// One side puts a message while the other closes its link: if it is certain it is delivered.
fn closed<const DEFECT: Defect>() {
    let (mut left, mut right) = sides::<DEFECT>();
    right.note_receive(8);
    let receiver = thread::spawn(move || {
        right.close(LinkState::Closed);
        take(&mut right).is_some()
    });
    assert!(put(&mut left, 1));
    let is_certain = left.is_certain(8);
    let is_taken = receiver.join().unwrap();
    assert!(is_taken || !is_certain, "certain and lost");
}

/// The second receive is too short for the second message.
fn counted<const DEFECT: Defect>() {
    let (mut left, mut right) = sides::<DEFECT>();
    right.note_receive(16);
    let receiver = thread::spawn(move || right.note_receive(4));
    left.sent = 2;
    assert!(!left.is_certain(8), "certain and too long");
    receiver.join().unwrap();
}

// P-99
#[test]
fn what_is_certain_is_delivered_in_every_order_of_the_words() {
    in_every_order(9, closed::<NONE>);
    assert_eq!(failure(closed::<NO_FENCES>), "certain and lost");
    in_every_order(2, counted::<NONE>);
    assert_eq!(failure(counted::<RELAXED_STORES>), "certain and too long");
}

// P-75
#[test]
fn messages_arrive_whole_and_in_order_in_every_order_of_the_words() {
    in_every_order(4, polled::<NONE>);
    for failed in [
        failure(polled::<RELAXED_STORES>),
        failure(polled::<RELAXED_LOADS>),
    ] {
        assert!(failed.contains("Causality violation"), "{failed}");
    }
}

// P-40
#[test]
fn v_18_no_wake_up_is_lost_in_any_order_of_the_words() {
    in_every_order(3, slept::<NONE>);
    in_every_order(9, met::<NONE>);
    assert_eq!(failure(met::<NO_FENCES>), "slept for ever");
}
