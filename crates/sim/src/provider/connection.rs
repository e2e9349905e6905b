//! Connection management: request, accept, ready; or a rejection, or silence.

use super::machine::Waiting;
use super::queue_pair::Phase;
use super::wire::{Inner, Message, Occurrence, Place};
use legato_verbs::{
    CompletionStatus, ConnectionEvent, ConnectionRequest, Event, Listener, QueuePair, RejectReason,
    UnreachableReason,
};

/// Bytes of a connection management datagram on the wire.
const DATAGRAM_SIZE: usize = 324;

impl Inner {
    pub(super) fn start_connecting(&mut self, from: Place, address: &str, private_data: &[u8]) {
        let machine = self.machine_at(address);
        if let Some(record) = self.record(from) {
            record.phase = Phase::Connecting { machine };
        }
        match machine {
            Some(machine) => {
                let message = Message::ConnectRequest {
                    from,
                    address: address.to_owned(),
                    private_data: private_data.to_vec(),
                };
                self.send(from, machine, DATAGRAM_SIZE, message);
            }
            None => self.send(from, from.machine, 0, Message::NoSuchAddress { to: from }),
        }
        let time = self.now + self.config.connect_timeout;
        self.schedule(time, Occurrence::ConnectTimeout { of: from });
    }

    pub(super) fn connect_requested(
        &mut self,
        machine: usize,
        from: Place,
        address: &str,
        private_data: Vec<u8>,
    ) {
        let here = &mut self.machines[machine];
        let listening = here
            .listeners
            .entries()
            .find(|(_, listened)| listened.as_str() == address)
            .map(|((index, generation), _)| Listener { index, generation });
        let Some(listener) = listening else {
            self.send_rejection(machine, from, RejectReason::InvalidServiceId, &[]);
            return;
        };
        let waiting = Waiting {
            listener,
            peer: from,
        };
        let (index, generation) = here.requests.insert(|_, _| waiting);
        let event = ConnectionEvent::Requested {
            listener,
            request: ConnectionRequest { index, generation },
            private_data,
        };
        self.event(machine, Event::Connection(event));
    }

    pub(super) fn send_rejection(
        &mut self,
        machine: usize,
        to: Place,
        reason: RejectReason,
        private_data: &[u8],
    ) {
        let message = Message::Rejected {
            to,
            reason,
            private_data: private_data.to_vec(),
        };
        // No queue pair of this machine takes part, so none keeps the message in order.
        let nobody = QueuePair {
            index: u32::MAX,
            generation: 0,
        };
        let from = Place {
            machine,
            queue_pair: nobody,
        };
        self.send(from, to.machine, DATAGRAM_SIZE, message);
    }

    pub(super) fn withdraw(&mut self, machine: usize, from: Place) {
        let requests = &mut self.machines[machine].requests;
        let gone: Vec<_> = requests
            .entries()
            .filter(|(_, waiting)| waiting.peer == from)
            .map(|(handle, _)| handle)
            .collect();
        for (index, generation) in gone {
            requests.remove(index, generation);
        }
    }

    /// The passive side's queue pair answers the peer that waited.
    pub(super) fn start_accepting(&mut self, at: Place, peer: Place, private_data: &[u8]) {
        if let Some(record) = self.record(at) {
            record.phase = Phase::ReadyToReceive { peer };
        }
        let message = Message::Accepted {
            to: peer,
            peer: at,
            private_data: private_data.to_vec(),
        };
        self.send(at, peer.machine, DATAGRAM_SIZE, message);
        if !self.machines[peer.machine].alive {
            let time = self.now + self.config.detection_time;
            self.schedule(time, Occurrence::PeerLost { of: at });
        }
    }

    pub(super) fn accepted(&mut self, to: Place, peer: Place, private_data: Vec<u8>) {
        let connecting = self
            .record(to)
            .filter(|record| matches!(record.phase, Phase::Connecting { .. }));
        let Some(record) = connecting else {
            // The active side has given up meanwhile: the passive one must not wait for it.
            self.send(
                to,
                peer.machine,
                DATAGRAM_SIZE,
                Message::Disconnect { to: peer },
            );
            return;
        };
        record.phase = Phase::ReadyToSend { peer };
        self.send(to, peer.machine, DATAGRAM_SIZE, Message::Ready { to: peer });
        if !self.machines[peer.machine].alive {
            let time = self.now + self.config.detection_time;
            self.schedule(time, Occurrence::PeerLost { of: to });
        }
        let event = ConnectionEvent::Established {
            queue_pair: to.queue_pair,
            private_data,
        };
        self.event(to.machine, Event::Connection(event));
    }

    pub(super) fn ready(&mut self, to: Place) {
        let Some(record) = self.record(to) else {
            return;
        };
        let Phase::ReadyToReceive { peer } = record.phase else {
            return;
        };
        record.phase = Phase::ReadyToSend { peer };
        let event = ConnectionEvent::Established {
            queue_pair: to.queue_pair,
            private_data: Vec::new(),
        };
        self.event(to.machine, Event::Connection(event));
    }

    pub(super) fn connect_failed(
        &mut self,
        to: Place,
        event: impl FnOnce(QueuePair) -> ConnectionEvent,
    ) {
        let connecting = self
            .record(to)
            .filter(|record| matches!(record.phase, Phase::Connecting { .. }));
        if connecting.is_none() {
            return;
        }
        self.fail(to, CompletionStatus::WorkRequestFlushed);
        self.event(to.machine, Event::Connection(event(to.queue_pair)));
    }

    pub(super) fn connect_timeout(&mut self, of: Place) {
        self.send_withdrawal(of);
        self.connect_failed(of, |queue_pair| ConnectionEvent::Unreachable {
            queue_pair,
            reason: UnreachableReason::TimedOut,
        });
    }

    /// If `of` is connecting, the machine that it asked need not answer any more.
    fn send_withdrawal(&mut self, of: Place) {
        let phase = self.record(of).map(|record| record.phase);
        if let Some(Phase::Connecting {
            machine: Some(machine),
        }) = phase
        {
            self.send(of, machine, DATAGRAM_SIZE, Message::Withdraw { from: of });
        }
    }

    /// The owner ends whatever connection there is: the other end hears of it, after everything
    /// that was sent before.
    pub(super) fn end_connection(&mut self, at: Place) {
        self.send_withdrawal(at);
        if let Some(peer) = self.record(at).and_then(|record| record.peer()) {
            self.send(
                at,
                peer.machine,
                DATAGRAM_SIZE,
                Message::Disconnect { to: peer },
            );
        }
        self.fail(at, CompletionStatus::WorkRequestFlushed);
        if let Some(record) = self.record(at) {
            record.phase = Phase::Error { peer: None };
        }
    }
}
