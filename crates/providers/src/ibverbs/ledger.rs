//! Who posted what: the names of requests towards the device, and what is outstanding.
//!
//! A completion names its request by a number that is never used twice in a provider's life. So a completion
//! too many (of a destroyed queue pair, of a post that was refused) finds nothing, and is dropped.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_verbs::{CompletionKind, LocalKey, RemoteKey, WorkRequestId};

/// Whose queue a request was posted to, by the place of the owner in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send(u32),
    Receive(u32),
    Shared(u32),
}

/// The name of a request towards the device: 2 bits of kind, 18 of place, 44 of number. At a million
/// requests a second the numbers last for half a year, and one that comes again finds another
/// outstanding request only if that has waited all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) queue: Queue,
    pub(super) serial: u64,
}

const PLACE_BITS: u32 = 18;
const SERIAL_BITS: u32 = 44;
/// Queue pairs and shared receive queues of a provider.
pub(super) const PLACES_MAX: u32 = 1 << PLACE_BITS;
pub(super) const SERIAL_MASK: u64 = (1 << SERIAL_BITS) - 1;

impl Name {
    pub(super) const fn encode(self) -> u64 {
        let (kind, place) = match self.queue {
            Queue::Send(place) => (1, place),
            Queue::Receive(place) => (2, place),
            Queue::Shared(place) => (3, place),
        };
        kind << 62 | (place as u64) << SERIAL_BITS | self.serial & SERIAL_MASK
    }

    pub(super) const fn decode(name: u64) -> Option<Self> {
        let place = (name >> SERIAL_BITS) as u32 & (PLACES_MAX - 1);
        let queue = match name >> 62 {
            1 => Queue::Send(place),
            2 => Queue::Receive(place),
            3 => Queue::Shared(place),
            _ => return None,
        };
        Some(Self {
            queue,
            serial: name & SERIAL_MASK,
        })
    }
}

/// A request that is the device's.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) serial: u64,
    pub(super) wr_id: WorkRequestId,
    /// What a success is. Of receives the completion says it.
    pub(super) kind: CompletionKind,
    /// Of a receive too: it always completes.
    pub(super) signaled: bool,
    /// The key that it binds a window to, or ends.
    pub(super) window: Option<RemoteKey>,
    /// Regions that it names, each as often as it does.
    pub(super) keys: Vec<LocalKey>,
}

/// The outstanding requests of one queue, in the order of their posting.
#[derive(Debug, Default)]
pub(super) struct Ledger(VecDeque<Outstanding>);

impl Ledger {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, request: Outstanding) {
        self.0.push_back(request);
    }

    /// Takes a request and all before it, the request last: queues complete in order, so those before
    /// it are done, those that are silent on success silently.
    pub(super) fn take_through(&mut self, serial: u64) -> Option<Vec<Outstanding>> {
        if self.0.front()?.serial == serial {
            return self.0.pop_front().map(|first| Vec::from([first]));
        }
        let place = self.0.iter().position(|it| it.serial == serial)?;
        Some(self.0.drain(..=place).collect())
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Outstanding> {
        core::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for queue in [
            Queue::Send(0),
            Queue::Receive(PLACES_MAX - 1),
            Queue::Shared(77),
        ] {
            for serial in [0, 1, SERIAL_MASK] {
                let name = Name { queue, serial };
                assert_eq!(Name::decode(name.encode()), Some(name));
            }
        }
        assert_eq!(Name::decode(5), None);
    }

    #[test]
    fn a_completion_takes_what_was_silent_before_it() {
        let mut ledger = Ledger::default();
        for serial in 1..5 {
            ledger.push(Outstanding {
                serial,
                wr_id: WorkRequestId(serial),
                kind: CompletionKind::Send,
                signaled: serial == 3,
                window: None,
                keys: Vec::new(),
            });
        }
        let taken = |it: Vec<Outstanding>| it.iter().map(|it| it.serial).collect::<Vec<_>>();
        assert_eq!(
            ledger.take_through(3).map(taken),
            Some(Vec::from([1, 2, 3]))
        );
        assert!(ledger.take_through(3).is_none(), "it completes once");
        assert_eq!(ledger.len(), 1);
        assert_eq!(ledger.take_all().count(), 1);
        assert_eq!(ledger.len(), 0);
    }
}
