//! Waiting for completions and events, and printing them, as `probe/lines.c` does.

use super::rig::{End, RECEIVES, Rig};
use legato_base::Duration;
use legato_verbs::{AsyncEvent, Event, QueuePairState, VerbsError};
use std::fmt::Write as _;

/// How long expected completions may take, in virtual time.
const HOPE: Duration = Duration::from_millis(3000);
/// And how much longer surplus ones are waited for.
const MOMENT_MS: u64 = 60;

/// Events of objects, in the order in which they are printed.
const EVENTS: [&str; 9] = [
    "cq-error",
    "qp-fatal",
    "qp-request-error",
    "qp-access-error",
    "communication-established",
    "sq-drained",
    "srq-error",
    "srq-limit",
    "last-wqe",
];

const fn kind_of(event: AsyncEvent) -> Option<usize> {
    Some(match event {
        AsyncEvent::CompletionQueueError(_) => 0,
        AsyncEvent::QueuePairFatal(_) => 1,
        AsyncEvent::QueuePairRequestError(_) => 2,
        AsyncEvent::QueuePairAccessError(_) => 3,
        AsyncEvent::CommunicationEstablished(_) => 4,
        AsyncEvent::SendQueueDrained(_) => 5,
        AsyncEvent::SharedReceiveQueueError(_) => 6,
        AsyncEvent::SharedReceiveQueueLimit(_) => 7,
        AsyncEvent::LastWorkRequestReached(_) => 8,
        _ => return None,
    })
}

pub(super) const fn state_name(state: QueuePairState) -> &'static str {
    match state {
        QueuePairState::Reset => "RESET",
        QueuePairState::Init => "INIT",
        QueuePairState::ReadyToReceive => "RTR",
        QueuePairState::ReadyToSend => "RTS",
        QueuePairState::SendQueueDrain => "SQD",
        QueuePairState::SendQueueError => "SQE",
        QueuePairState::Error => "ERR",
    }
}

impl Rig {
    fn take_events(&mut self) -> u32 {
        while let Some(event) = self.nic.poll_event() {
            if let Event::Async(event) = event
                && let Some(kind) = kind_of(event)
            {
                self.counts[kind] += 1;
            }
        }
        self.counts.iter().sum()
    }

    fn take_completions(&mut self, end: &mut End) -> usize {
        let polled = self
            .nic
            .poll_completion_queue(end.queue, usize::MAX, &mut end.log);
        match polled {
            // What was in it is lost.
            Ok(_) | Err(VerbsError::CompletionQueueOverrun) => end.log.len(),
            Err(other) => panic!("{other}"),
        }
    }

    /// Polls until these ends have so many completions in their logs and so many events have come,
    /// or until there is no hope of it; then for a moment more, so that what comes too much is seen
    /// too. Clears nothing.
    pub(super) fn watch(&mut self, ends: &mut [(&mut End, usize)], events: u32) {
        let hope = self.now() + HOPE;
        loop {
            let mut enough = true;
            for (end, wanted) in ends.iter_mut() {
                enough &= self.take_completions(end) >= *wanted;
            }
            if (enough && self.take_events() >= events) || self.now() > hope {
                break;
            }
            match self.network.next_event_time() {
                Some(time) if time <= hope => self.network.advance_to(time),
                _ => self.pause_ms(HOPE.as_nanos() / 1_000_000),
            }
        }
        self.pause_ms(MOMENT_MS);
        for (end, _) in ends.iter_mut() {
            self.take_completions(end);
        }
        self.take_events();
    }

    pub(super) fn watch_events(&mut self, events: u32) {
        self.watch(&mut [], events);
    }

    pub(super) fn line(&mut self, key: &str) {
        self.text.push_str(key);
        self.text.push(':');
    }

    pub(super) fn field(&mut self, field: &str) {
        self.text.push(' ');
        self.text.push_str(field);
    }

    pub(super) fn line_end(&mut self) {
        self.text.push('\n');
    }

    fn put_queue(&mut self, name: &str, end: &End, from: u64) {
        let mut list = String::new();
        for completion in &end.log {
            let number = completion.wr_id.0.saturating_sub(from);
            if (1..=RECEIVES).contains(&number) {
                let status = completion.result.map_or_else(|status| status.code(), |_| 0);
                let before = if list.is_empty() { "" } else { "," };
                write!(list, "{before}{number}:{status}").unwrap();
            }
        }
        if list.is_empty() {
            list.push_str("none");
        }
        self.field(&format!("{name}={list}"));
    }

    pub(super) fn put_sends(&mut self, end: &End) {
        self.put_queue("sends", end, 0);
    }

    pub(super) fn put_receives(&mut self, end: &End) {
        self.put_queue("receives", end, RECEIVES);
    }

    pub(super) fn put_state(&mut self, name: &str, end: &End) {
        let state = state_name(self.state_of(end));
        self.field(&format!("{name}={state}"));
    }

    pub(super) fn put_events(&mut self) {
        self.take_events();
        let counts = std::mem::take(&mut self.counts);
        let seen: Vec<_> = EVENTS
            .iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        let seen = if seen.is_empty() {
            "none".to_owned()
        } else {
            seen.join(",")
        };
        self.field(&format!("events={seen}"));
    }

    /// What became of two ends, their states under these names, and the line's end.
    pub(super) fn put_pair(&mut self, a: &End, b: &End, names: [&str; 2]) {
        self.put_sends(a);
        self.put_receives(b);
        self.put_state(names[0], a);
        self.put_state(names[1], b);
        self.put_events();
        self.line_end();
    }

    pub(super) fn free_both(&mut self, a: End, b: End) {
        self.end_free(a);
        self.end_free(b);
    }
}
