//! The way to the far half: calls that wait for their answer, and messages that do not.

use super::super::call::{Answer, Call};
use super::super::codec::{Encoder, Malformed};
use super::super::packet::{self, PACKET_BYTES_MAX, Received};
use super::super::rings::{OwnRing, Rings};
use super::super::{WAKE, call, frame, unframe};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use legato_base::timeouts::Patience;
use legato_base::{Duration, Time};
use legato_verbs::VerbsError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// Why there is no far half any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Its end of the socket is closed.
    Closed,
    /// It has not answered in time.
    Silent,
    /// It has said what cannot be.
    Misspoke,
}

impl Lost {
    /// What the caller is told who finds out. Whoever comes later is told that the NIC is gone.
    const fn error(self) -> VerbsError {
        let errno = match self {
            Self::Closed => Errno::PIPE,
            Self::Silent => Errno::TIMEDOUT,
            Self::Misspoke => Errno::PROTO,
        };
        VerbsError::System {
            call: "the supervisor's half of the NIC",
            errno: errno.raw_os_error(),
        }
    }
}

/// An answer, and what came with it.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: Result<Answer, VerbsError>,
    /// Messages that the far half had put before it.
    pub(super) messages: u64,
    pub(super) descriptor: Option<OwnedFd>,
}

#[derive(Debug)]
pub(super) struct Line {
    socket: Arc<OwnedFd>,
    rings: Rings,
    /// Messages for which the ring had no space. There are never more than the queues allow.
    waiting: VecDeque<Vec<u8>>,
    calls: u32,
    lost: Option<Lost>,
    packet: Vec<u8>,
    limit: Duration,
}

impl Line {
    /// Introduces this half, and hears what the NIC is. No answer may take longer than `limit`.
    pub(super) fn open(
        socket: Arc<OwnedFd>,
        limit: Duration,
    ) -> Result<(Self, Answer), VerbsError> {
        let (own, segment) = OwnRing::create()?;
        let mut bytes = Vec::new();
        let mut encoder = Encoder(&mut bytes);
        frame(1, 0, &mut encoder);
        let version = call::VERSION;
        Call::Hello { version }.encode(&mut encoder);
        let mut wait = Wait::new(limit);
        let answered = exchange(&socket, (1, &bytes, Some(segment.as_fd())), &mut wait);
        let answered = answered.map_err(Lost::error)?;
        let hello = answered.answer?;
        let peer = answered.descriptor.ok_or(Lost::Misspoke.error())?;
        let rings = own
            .join(&peer)
            .map_err(|Malformed| Lost::Misspoke.error())?;
        let line = Self {
            socket,
            rings,
            waiting: VecDeque::new(),
            calls: 1,
            lost: None,
            packet: bytes,
            limit,
        };
        Ok((line, hello))
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn lose(&mut self, lost: Lost) -> VerbsError {
        self.lost.get_or_insert(lost).error()
    }

    /// One question, one answer.
    pub(super) fn call(&mut self, call: &Call) -> Result<Answered, VerbsError> {
        if self.is_lost() {
            return Err(VerbsError::DeviceRemoved);
        }
        let mut wait = Wait::new(self.limit);
        self.put_all(&mut wait).map_err(|lost| self.lose(lost))?;
        self.calls = self.calls.checked_add(1).unwrap_or(1);
        self.packet.clear();
        let mut encoder = Encoder(&mut self.packet);
        frame(self.calls, self.rings.put_count(), &mut encoder);
        call.encode(&mut encoder);
        let question = (self.calls, self.packet.as_slice(), None);
        let answered = exchange(&self.socket, question, &mut wait);
        answered.map_err(|lost| self.lose(lost))
    }

    /// A message for the ring, now or as soon as there is space.
    pub(super) fn put(&mut self, message: &[u8]) -> Result<(), VerbsError> {
        if self.is_lost() {
            return Err(VerbsError::DeviceRemoved);
        }
        let fits = self.waiting.is_empty() && self.try_put(message)?;
        if !fits {
            self.waiting.push_back(message.to_vec());
        }
        self.wake();
        Ok(())
    }

    fn try_put(&mut self, message: &[u8]) -> Result<bool, VerbsError> {
        let put = self.rings.put(message);
        put.map_err(|Malformed| self.lose(Lost::Misspoke))
    }

    /// Puts what waits, as far as there is space.
    pub(super) fn put_waiting(&mut self) -> Result<(), VerbsError> {
        let mut put = false;
        while let Some(message) = self.waiting.pop_front() {
            if !self.try_put(&message)? {
                self.waiting.push_front(message);
                break;
            }
            put = true;
        }
        if put {
            self.wake();
        }
        Ok(())
    }

    /// Puts all that waits: what is called must come after it.
    fn put_all(&mut self, wait: &mut Wait) -> Result<(), Lost> {
        loop {
            self.put_waiting().map_err(|_| Lost::Misspoke)?;
            if self.waiting.is_empty() {
                return Ok(());
            }
            // Space is made without a word, so it is looked for now and then.
            match (self.lost, wait.is_over()) {
                (Some(lost), _) => return Err(lost),
                (None, true) => return Err(Lost::Silent),
                (None, false) => wait_for(&self.socket, PollFlags::empty(), SPACE_PAUSE),
            }
            self.look();
        }
    }

    /// Wakes the far half if it sleeps. What cannot be sent now is not needed: the socket is full
    /// of packets that wake as well.
    fn wake(&mut self) {
        if self.rings.must_wake() {
            let _ = packet::send(&self.socket, &WAKE, None);
        }
    }

    pub(super) const fn taken_count(&self) -> u64 {
        self.rings.taken_count()
    }

    /// Takes the far half's next message.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Result<bool, VerbsError> {
        if self.is_lost() {
            return Ok(false);
        }
        let taken = self.rings.take(into);
        taken.map_err(|Malformed| self.lose(Lost::Misspoke))
    }

    /// Takes the packets that only wake, and finds out whether the far half is there.
    pub(super) fn look(&mut self) {
        let mut bytes = [0; PACKET_BYTES_MAX];
        while !self.is_lost() {
            match packet::receive(&self.socket, &mut bytes) {
                Received::Nothing => return,
                Received::Packet(_, None) if bytes.starts_with(&WAKE) => {}
                Received::Packet(..) | Received::TooMuch => {
                    self.lose(Lost::Misspoke);
                }
                Received::Closed => {
                    self.lose(Lost::Closed);
                }
            }
        }
    }

    /// False if there is something to do.
    pub(super) fn set_sleeping(&self, sleeping: bool) -> bool {
        self.rings.set_sleeping(sleeping);
        self.waiting.is_empty() && !self.rings.has_message()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Who waits for an answer looks again so often, whether or not it has come.
const LOOK: Duration = Duration::from_secs(1);

/// For an answer.
struct Wait {
    patience: Patience,
    limit: Duration,
}

impl Wait {
    fn new(limit: Duration) -> Self {
        let patience = Patience::new(LOOK, now());
        Self { patience, limit }
    }

    fn is_over(&mut self) -> bool {
        self.patience.waited(now()) >= self.limit
    }
}

/// How long a full ring is left alone by who waits for space.
const SPACE_PAUSE: Duration = Duration::from_micros(100);

/// Sends a call and waits for its answer.
fn exchange(
    socket: &OwnedFd,
    (number, question, descriptor): (u32, &[u8], Option<BorrowedFd<'_>>),
    wait: &mut Wait,
) -> Result<Answered, Lost> {
    loop {
        match packet::send(socket, question, descriptor) {
            Ok(()) => break,
            Err(Errno::AGAIN) if wait.is_over() => {
                return Err(Lost::Silent);
            }
            Err(Errno::AGAIN) => wait_for(socket, PollFlags::OUT, LOOK),
            Err(Errno::INTR) => {}
            // A far half that could open no NIC has said so before it left.
            Err(_) => break,
        }
    }
    let mut bytes = [0; PACKET_BYTES_MAX];
    loop {
        let (length, descriptor) = match packet::receive(socket, &mut bytes) {
            Received::Packet(length, descriptor) => (length, descriptor),
            Received::Nothing if wait.is_over() => {
                return Err(Lost::Silent);
            }
            Received::Nothing => {
                wait_for(socket, PollFlags::IN, LOOK);
                continue;
            }
            Received::TooMuch => return Err(Lost::Misspoke),
            Received::Closed => return Err(Lost::Closed),
        };
        let misspoke = |Malformed| Lost::Misspoke;
        let (answered, messages, rest) = unframe(&bytes[..length]).map_err(misspoke)?;
        if answered == 0 {
            continue;
        }
        if answered != number {
            return Err(Lost::Misspoke);
        }
        return Ok(Answered {
            answer: Answer::decode(rest).map_err(misspoke)?,
            messages,
            descriptor,
        });
    }
}

/// Sleeps until the socket is as asked for, or so long. Whoever calls looks again.
fn wait_for(socket: &OwnedFd, flags: PollFlags, time: Duration) {
    let left = time.as_nanos();
    let timeout = Timespec {
        tv_sec: (left / 1_000_000_000).cast_signed(),
        tv_nsec: (left % 1_000_000_000).cast_signed(),
    };
    let _ = poll(&mut [PollFd::new(socket, flags)], Some(&timeout));
}

fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Time::ZERO + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_half_that_says_nothing_is_given_up() {
        let (socket, _silent) = super::super::super::connection().unwrap();
        let opened = Line::open(Arc::new(socket), Duration::from_millis(1));
        let errno = Errno::TIMEDOUT.raw_os_error();
        assert!(
            matches!(opened, Err(VerbsError::System { errno: said, .. }) if said == errno),
            "what was opened said nothing"
        );
    }
}
