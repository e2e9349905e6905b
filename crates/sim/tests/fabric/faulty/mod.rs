//! A NIC whose calls can be refused, whose completions can be held back or doubled, and that says
//! what it is told to say.

use legato_base::wire::proof::sealed_in;
use legato_sim::provider::SimProvider;
use legato_verbs::{
    AccessFlags, Completion, CompletionQueue, ConnectionEvent, ConnectionRequest, Event, Listener,
    MemoryRegion, PacketSequenceNumber, ProtectionDomain, Provider, QueuePair, QueuePairAttributes,
    QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, SendRequest,
    SharedReceiveQueue, VerbsError, delegate,
};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Faulty<P = SimProvider> {
    pub(crate) nic: P,
    /// The next sends, or receives, are refused with this.
    pub(crate) refuse_sends: Option<VerbsError>,
    pub(crate) refuse_receives: Option<VerbsError>,
    pub(crate) hold_completions: bool,
    pub(crate) double_completions: bool,
    /// Changes to the error state are refused with this.
    pub(crate) refuse_error_changes: Option<VerbsError>,
    /// Queue pairs are not destroyed.
    pub(crate) refuse_destroys: Option<VerbsError>,
    /// Regions are not taken back.
    pub(crate) refuse_deregistrations: Option<VerbsError>,
    /// Listeners are not closed.
    pub(crate) refuse_closes: Option<VerbsError>,
    /// How deep its completion queues are.
    pub(crate) queue_depth: QueueDepth,
    /// Polls of completion queues fail.
    pub(crate) fail_polls: Option<VerbsError>,
    /// The next receive is refused with this, and no other.
    pub(crate) refuse_receive_once: Option<VerbsError>,
    /// Events that come before those of the NIC.
    pub(crate) inject: VecDeque<Event>,
    /// How often each asynchronous event of the NIC comes: 0 hides it.
    pub(crate) asynchronous: usize,
    /// After so many more calls that may fail for want of memory, one does.
    pub(crate) fail_after: Option<u32>,
    /// The queue pair that was made last.
    pub(crate) last_queue_pair: Option<QueuePair>,
    /// The completion queue that was polled last.
    pub(crate) last_queue: Option<CompletionQueue>,
    /// The shared receive queue that was posted to last.
    pub(crate) last_shared_queue: Option<SharedReceiveQueue>,
    /// Posted receives when something was last sent.
    pub(crate) receives_at_send: usize,
    /// What somebody on the way does.
    pub(crate) path: Path,
}

/// Entries of a completion queue that is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueDepth {
    #[default]
    Asked,
    /// So many, and the ledger of the NIC knows it.
    Short(u32),
    /// So many, and the ledger lets everything be attached.
    Overcommitted(u32),
}

/// What somebody on the way does to a NIC's connections, and what he has seen.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// Changes this byte of the private data that comes.
    pub(crate) change_private: Option<usize>,
    /// Changes this byte of the confirmations that go.
    pub(crate) change_confirmation: Option<usize>,
    /// The private data that came, and the confirmations that went.
    pub(crate) private: Vec<Vec<u8>>,
    pub(crate) confirmations: Vec<Vec<u8>>,
    /// Has joined other queue pairs: what is added to the peer's number and to both sequences.
    pub(crate) swap: Option<[u32; 3]>,
}

impl Path {
    fn carry(&mut self, event: &mut Option<Event>) {
        if let Some(Event::Connection(
            ConnectionEvent::Requested { private_data, .. }
            | ConnectionEvent::Established { private_data, .. },
        )) = event
        {
            self.private.push(private_data.clone());
            let changed = self.change_private.and_then(|at| private_data.get_mut(at));
            if let Some(byte) = changed {
                *byte ^= 0x40;
            }
        }
    }

    const fn swapped(&self, mut known: QueuePairAttributes) -> QueuePairAttributes {
        if let Some([number, receive, send]) = self.swap {
            if let Some(peer) = known.destination {
                known.destination = Some(QueuePairNumber::new(peer.get() ^ number));
            }
            if let Some(sequence) = known.receive_sequence {
                let changed = sequence.get() ^ receive;
                known.receive_sequence = Some(PacketSequenceNumber::new(changed));
            }
            if let Some(sequence) = known.send_sequence {
                let changed = sequence.get() ^ send;
                known.send_sequence = Some(PacketSequenceNumber::new(changed));
            }
        }
        known
    }
}

/// What a call that finds no memory returns.
pub(crate) const NO_MEMORY: VerbsError = VerbsError::System {
    call: "a call without memory",
    errno: 12,
};

impl<P> Faulty<P> {
    pub(crate) const fn new(nic: P) -> Self {
        Self {
            nic,
            refuse_sends: None,
            refuse_receives: None,
            hold_completions: false,
            double_completions: false,
            refuse_error_changes: None,
            refuse_destroys: None,
            refuse_deregistrations: None,
            refuse_closes: None,
            queue_depth: QueueDepth::Asked,
            fail_polls: None,
            refuse_receive_once: None,
            inject: VecDeque::new(),
            asynchronous: 1,
            fail_after: None,
            last_queue_pair: None,
            last_queue: None,
            last_shared_queue: None,
            receives_at_send: 0,
            path: Path {
                change_private: None,
                change_confirmation: None,
                private: Vec::new(),
                confirmations: Vec::new(),
                swap: None,
            },
        }
    }

    fn memory(&mut self) -> Result<(), VerbsError> {
        match &mut self.fail_after {
            Some(0) => {
                self.fail_after = None;
                Err(NO_MEMORY)
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

const fn allowed(refusal: Option<VerbsError>) -> Result<(), VerbsError> {
    match refusal {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl<P: Provider> Faulty<P> {
    /// The next event of the NIC, as often as it is to come.
    fn own_event(&mut self) -> Option<Event> {
        loop {
            let event = self.nic.poll_event()?;
            let times = match event {
                Event::Async(_) => self.asynchronous,
                _ => 1,
            };
            let Some(again) = times.checked_sub(1) else {
                continue;
            };
            self.inject.extend(vec![event.clone(); again]);
            return Some(event);
        }
    }

    fn receives_allowed(&mut self) -> Result<(), VerbsError> {
        allowed(self.refuse_receives)?;
        allowed(self.refuse_receive_once.take())?;
        self.memory()
    }
}

/// Calls the same method of what is inside.
macro_rules! nic {
    ($provider:ident.$method:ident($($argument:expr),*)) => {
        $provider.nic.$method($($argument),*)
    };
}

impl<P: Provider> Provider for Faulty<P> {
    delegate!(nic:
        attributes resource_counts destroy_protection_domain read_region allocate_window
        arm_completion_queue destroy_completion_queue query_queue_pair listen disconnect
        progress progress_requests set_sleeping next_window_key deallocate_window
        create_overcommitted_completion_queue create_shared_receive_queue
        destroy_shared_receive_queue arm_shared_receive_queue query_shared_receive_queue
        queue_pair_number port_address connect reject
    );

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.memory()?;
        self.nic.create_protection_domain()
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        self.memory()?;
        self.nic.allocate_region(domain, length, access)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        allowed(self.refuse_deregistrations)?;
        self.nic.deregister_region(region)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        allowed(self.refuse_closes)?;
        self.nic.close_listener(listener)
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let mut bytes = from.to_vec();
        if sealed_in(from).is_some() {
            self.path.confirmations.push(bytes.clone());
            if let Some(at) = self.path.change_confirmation {
                bytes[at] ^= 0x40;
            }
        }
        self.nic.write_region(region, offset, &bytes)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.receives_allowed()?;
        self.last_shared_queue = Some(queue);
        self.nic.post_shared_receive(queue, request)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        let known = self.nic.query_attributes(queue_pair)?;
        Ok(self.path.swapped(known))
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.memory()?;
        match self.queue_depth {
            QueueDepth::Asked => self.nic.create_completion_queue(entries),
            QueueDepth::Short(entries) => self.nic.create_completion_queue(entries),
            QueueDepth::Overcommitted(entries) => {
                self.nic.create_overcommitted_completion_queue(entries)
            }
        }
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        self.last_queue = Some(queue);
        allowed(self.fail_polls)?;
        if self.hold_completions {
            return Ok(0);
        }
        let polled = self.nic.poll_completion_queue(queue, max, into)?;
        if self.double_completions {
            let again = into[into.len() - polled..].to_vec();
            into.extend(again);
            return Ok(2 * polled);
        }
        Ok(polled)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.memory()?;
        let made = self.nic.create_queue_pair(init)?;
        self.last_queue_pair = Some(made);
        Ok(made)
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        if to == QueuePairState::Error {
            allowed(self.refuse_error_changes)?;
        }
        self.memory()?;
        self.nic.modify_queue_pair(queue_pair, to, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        allowed(self.refuse_destroys)?;
        self.nic.destroy_queue_pair(queue_pair)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        allowed(self.refuse_sends)?;
        self.memory()?;
        self.receives_at_send = self.nic.resource_counts().posted_receives;
        self.nic.post_send(queue_pair, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.receives_allowed()?;
        self.nic.post_receive(queue_pair, request)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.memory()?;
        self.nic.accept(request, queue_pair, private_data)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let mut event = self.inject.pop_front().or_else(|| self.own_event());
        self.path.carry(&mut event);
        event
    }
}
