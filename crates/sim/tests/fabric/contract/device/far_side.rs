//! The side in the guest: a fabric on its device, whose connections share their receives.

use super::guest::{Guest, own_name};
use crate::rig::{Side, answer, config, life};
use legato_base::{Duration, Time};
use legato_fabric::FabricConfig;
use legato_providers::{IbverbsProvider, Pollable};
use legato_verbs::{Address, Provider};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Instant;

/// Set for the program that is started there: where it listens.
const LISTENS_AT: &str = "LEGATO_FAR_SIDE";
/// Calls that are not answered like others.
pub(crate) const REPORT: &[u8] = b"report";
pub(crate) const END: &[u8] = b"end";
/// Longer than a packet, so that there are halves.
const MESSAGE_MAX: u32 = 4000;
const RECEIVES: u32 = 40;

pub(crate) fn far_config() -> FabricConfig {
    FabricConfig {
        shared_receives: Some(RECEIVES),
        message_length_max: MESSAGE_MAX,
        ..config()
    }
}

/// What a fabric says of itself, in words with spaces between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) queue_pairs: u64,
    /// Of its shared receives.
    pub(crate) missing: u64,
    pub(crate) doubtful: u64,
    pub(crate) reclaimed: u64,
}

impl Report {
    fn of<P: Provider>(side: &Side<P>) -> Self {
        let shared = side.fabric.shared_receives().unwrap();
        Self {
            queue_pairs: side.nic.resource_counts().queue_pairs as u64,
            missing: shared.missing.into(),
            doubtful: shared.doubtful.into(),
            reclaimed: side.fabric.counters().receives_reclaimed,
        }
    }

    fn to_text(self) -> String {
        let Self {
            queue_pairs,
            missing,
            doubtful,
            reclaimed,
        } = self;
        format!("{queue_pairs} {missing} {doubtful} {reclaimed}")
    }

    pub(crate) fn parse(text: &[u8]) -> Self {
        let words = std::str::from_utf8(text).unwrap().split(' ');
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let [queue_pairs, missing, doubtful, reclaimed] = numbers.try_into().unwrap();
        Self {
            queue_pairs,
            missing,
            doubtful,
            reclaimed,
        }
    }
}

/// Has the guest run it. It says `ended CAUSE` of each connection, and `far status 0` at its end.
pub(crate) fn start(guest: &mut Guest, address: &Address) {
    let name = own_name();
    guest.say(&format!(
        "{LISTENS_AT}='{address}' ./{name} --exact contract::device::far_side::far_side --ignored \
         --nocapture --quiet --test-threads=1; echo far status $?"
    ));
    guest.await_line("listens");
}

#[test]
#[ignore = "a test on the link starts it in the guest"]
fn far_side() {
    let Ok(address) = std::env::var(LISTENS_AT) else {
        return;
    };
    let address: Address = address.parse().unwrap();
    let nic = IbverbsProvider::open(&address).unwrap();
    let mut side = Side::new(nic, life(far_config(), 2));
    side.fabric.listen(&mut side.nic, &address).unwrap();
    println!("\nlistens");
    let begun = Instant::now();
    let (mut there, mut is_to_end) = (0, false);
    while !is_to_end || there > 0 {
        let progressed = turn(&mut side, begun);
        is_to_end |= serve(&mut side);
        there += side.accepted().len();
        for connection in side.disconnected() {
            there -= 1;
            println!("\nended {:?}", side.fabric.reset_cause(connection));
        }
        if !progressed {
            rest(&side.nic.nic);
        }
    }
    side.events.clear();
    side.end();
}

/// In the machine's time.
pub(crate) fn turn<P: Provider>(side: &mut Side<P>, begun: Instant) -> bool {
    let nanos = begun.elapsed().as_nanos() as u64 + 1;
    side.turn(Time::ZERO + Duration::from_nanos(nanos)).1
}

/// Until the NIC has something, or for a millisecond.
pub(crate) fn rest<P: Pollable>(nic: &P) {
    let mut descriptors = Vec::new();
    nic.descriptors(&mut descriptors);
    let polled = descriptors.into_iter();
    let mut polled: Vec<_> = polled
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    poll(&mut polled, Some(&moment)).unwrap();
}

/// True if somebody says that it is enough.
fn serve<P: Provider>(side: &mut Side<P>) -> bool {
    let mut is_to_end = false;
    for (request, body) in side.requests() {
        let text = match body.as_slice() {
            REPORT => Report::of(side).to_text().into_bytes(),
            body => {
                is_to_end |= body == END;
                answer(body)
            }
        };
        // One whose connection has ended meanwhile cannot be answered.
        let _ = side.fabric.reply(&mut side.nic, request, &text);
    }
    is_to_end
}
