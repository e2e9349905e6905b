//! The network as its owner drives it: time, and what happens to machines.

use super::machine::Machine;
use super::trace::Trace;
use super::verbs::SimProvider;
use super::wire::{Inner, Message, Occurrence, Place};
use legato_base::{Duration, Random, Time};
use legato_verbs::QueuePair;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the simulated hardware is like.
#[derive(Clone, Copy, Debug)]
pub struct SimNetworkConfig {
    /// Time that every message takes at least.
    pub latency: Duration,
    /// Up to this much more, drawn anew for each message.
    pub jitter: Duration,
    /// Up to this long a NIC takes to look at a posted request.
    pub posting_delay: Duration,
    /// Of each machine's link, in one direction; `None` if the size of a message costs nothing.
    pub bytes_per_second: Option<u64>,
    /// A request that is not answered for so long fails as `RetryExceeded`.
    pub retry_timeout: Duration,
    /// A receiver without a posted receive is tried again this often.
    pub receiver_not_ready_retries: u32,
    pub receiver_not_ready_delay: Duration,
    /// So long after a machine was killed its peers get `Disconnected`.
    pub detection_time: Duration,
    /// A connect that is not answered for so long is `Unreachable`.
    pub connect_timeout: Duration,
    pub message_length_max: u32,
}

impl Default for SimNetworkConfig {
    /// A rack: 2 to 3 us and 100 Gbit/s. The timers are those of an InfiniBand queue pair with
    /// timeout 14 and retry_cnt 3 (4 x 67.1 ms), min_rnr_timer 12 (0.64 ms) and rnr_retry 2.
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(2),
            jitter: Duration::from_micros(1),
            posting_delay: Duration::from_nanos(300),
            bytes_per_second: Some(12_500_000_000),
            retry_timeout: Duration::from_nanos(4 * 67_108_864),
            receiver_not_ready_retries: 2,
            receiver_not_ready_delay: Duration::from_micros(640),
            detection_time: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            message_length_max: 1 << 20,
        }
    }
}

/// The machines and everything between them. Clones are handles on the same network.
#[derive(Clone, Debug)]
pub struct SimNetwork(Rc<RefCell<Inner>>);

impl SimNetwork {
    pub fn new(seed: u64, config: SimNetworkConfig) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            now: Time::ZERO,
            config,
            random: Random::from_seed(seed),
            trace: Trace::default(),
            machines: Vec::new(),
            names: BTreeMap::new(),
            addresses: BTreeMap::new(),
            future: BTreeMap::new(),
            scheduled: 0,
        })))
    }

    /// The NIC of the machine of this name, which is started if it never was. Of a killed machine
    /// this is the dead NIC: see [`Self::restart`].
    pub fn provider(&self, name: &str) -> SimProvider {
        let machine = self.0.borrow_mut().machine_named(name);
        SimProvider::new(Rc::clone(&self.0), machine)
    }

    pub fn now(&self) -> Time {
        self.0.borrow().now
    }

    /// When something happens next; `None` if nothing will by itself.
    pub fn next_event_time(&self) -> Option<Time> {
        let inner = self.0.borrow();
        inner.future.first_key_value().map(|(&(time, _), _)| time)
    }

    /// Lets everything happen up to and including `time`. Time never goes back.
    pub fn advance_to(&self, time: Time) {
        let mut inner = self.0.borrow_mut();
        while let Some(entry) = inner.future.first_entry() {
            if entry.key().0 > time {
                break;
            }
            let ((at, _), occurrence) = entry.remove_entry();
            inner.now = inner.now.max(at);
            inner.happen(occurrence);
        }
        inner.now = inner.now.max(time);
    }

    /// The machine dies at once with all that its NIC holds; its memory is gone. What it sent
    /// before still arrives. Peers find out by silence.
    pub fn kill(&self, name: &str) {
        self.0.borrow_mut().kill(name);
    }

    /// Starts a killed machine again, empty: a new incarnation with a NIC of its own. One that is
    /// alive is killed first.
    pub fn restart(&self, name: &str) -> SimProvider {
        let mut inner = self.0.borrow_mut();
        inner.kill(name);
        let machine = inner.start(name);
        drop(inner);
        SimProvider::new(Rc::clone(&self.0), machine)
    }

    /// Nothing happens on the machine's NIC, and no message reaches it or request leaves it, until
    /// [`Self::unfreeze`]; then all that was held back happens at once, in order. Its software is
    /// the caller's to stop.
    pub fn freeze(&self, name: &str) {
        let mut inner = self.0.borrow_mut();
        let machine = inner.machine_named(name);
        inner.machines[machine].frozen = true;
    }

    pub fn unfreeze(&self, name: &str) {
        let mut inner = self.0.borrow_mut();
        let machine = inner.machine_named(name);
        inner.machines[machine].frozen = false;
        let now = inner.now;
        for occurrence in std::mem::take(&mut inner.machines[machine].held) {
            inner.schedule(now, occurrence);
        }
    }

    pub fn is_alive(&self, name: &str) -> bool {
        let inner = self.0.borrow();
        let machine = inner.names.get(name);
        machine.is_some_and(|&machine| inner.machines[machine].alive)
    }

    /// A running hash of every message, completion and event with its time: equal histories have
    /// equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.0.borrow().trace.value()
    }
}

impl Inner {
    fn machine_named(&mut self, name: &str) -> usize {
        match self.names.get(name) {
            Some(&machine) => machine,
            None => self.start(name),
        }
    }

    fn start(&mut self, name: &str) -> usize {
        let salt = self.random.next_u64() as u32;
        self.machines.push(Machine::new(name, salt));
        let machine = self.machines.len() - 1;
        self.names.insert(name.to_owned(), machine);
        machine
    }

    fn kill(&mut self, name: &str) {
        let machine = self.machine_named(name);
        if !self.machines[machine].alive {
            return;
        }
        self.trace.at(self.now, 1, machine);
        self.machines[machine] = Machine {
            name: name.to_owned(),
            ..Machine::default()
        };
        let found = self.now + self.config.detection_time;
        let mut lost = Vec::new();
        for (number, other) in self.machines.iter().enumerate() {
            for ((index, generation), record) in other.queue_pairs.entries() {
                if record.peer().is_some_and(|peer| peer.machine == machine) {
                    let queue_pair = QueuePair { index, generation };
                    let of = Place {
                        machine: number,
                        queue_pair,
                    };
                    lost.push(Occurrence::PeerLost { of });
                }
            }
            for waiting in other
                .requests
                .iter()
                .filter(|waiting| waiting.peer.machine == machine)
            {
                let message = Message::Withdraw { from: waiting.peer };
                lost.push(Occurrence::Arrive {
                    machine: number,
                    message,
                });
            }
        }
        for occurrence in lost {
            self.schedule(found, occurrence);
        }
    }
}
