//! Events as bytes.

use super::codec::{Decoder, Encoder, Malformed};
use legato_verbs::{
    AsyncEvent, ConnectionEvent, Event, QueuePair, RejectReason, Subject, UnreachableReason,
};

/// The queue pair that an event is about.
pub(super) fn pair_of(event: &Event) -> Option<QueuePair> {
    match event {
        Event::Connection(event) => match *event {
            ConnectionEvent::Requested { .. } => None,
            ConnectionEvent::Established { queue_pair, .. }
            | ConnectionEvent::Rejected { queue_pair, .. }
            | ConnectionEvent::Unreachable { queue_pair, .. }
            | ConnectionEvent::Disconnected { queue_pair }
            | ConnectionEvent::DeviceRemoved { queue_pair }
            | ConnectionEvent::AddressRemoved { queue_pair }
            | ConnectionEvent::AddressReturned { queue_pair }
            | ConnectionEvent::TimeWaitExit { queue_pair }
            | ConnectionEvent::AddressChanged { queue_pair } => Some(queue_pair),
        },
        Event::Async(event) => match event.subject() {
            Subject::QueuePair(pair) => Some(pair),
            _ => None,
        },
        Event::CompletionQueueReady(_) => None,
    }
}

impl Encoder<'_> {
    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::CompletionQueueReady(queue) => {
                self.u8(1);
                self.queue(*queue);
            }
            Event::Async(event) => {
                self.u8(2);
                self.u8(event.code());
                match event.subject() {
                    Subject::CompletionQueue(queue) => self.queue(queue),
                    Subject::QueuePair(pair) => self.pair(pair),
                    Subject::SharedReceiveQueue(queue) => self.shared_queue(queue),
                    Subject::Port(port) => self.u8(port),
                    Subject::Device => {}
                }
            }
            Event::Connection(event) => self.connection_event(event),
        }
    }

    fn connection_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Requested {
                listener,
                request,
                private_data,
            } => {
                self.u8(3);
                self.listener(*listener);
                self.connection_request(*request);
                self.bytes(private_data);
            }
            ConnectionEvent::Established {
                queue_pair,
                private_data,
            } => {
                self.u8(4);
                self.pair(*queue_pair);
                self.bytes(private_data);
            }
            ConnectionEvent::Rejected {
                queue_pair,
                reason,
                private_data,
            } => {
                self.u8(5);
                self.pair(*queue_pair);
                self.reject_reason(*reason);
                self.bytes(private_data);
            }
            ConnectionEvent::Unreachable { queue_pair, reason } => {
                self.u8(6);
                self.pair(*queue_pair);
                self.u8(match reason {
                    UnreachableReason::NoSuchAddress => 1,
                    UnreachableReason::PermissionDenied => 2,
                    UnreachableReason::TimedOut => 3,
                    UnreachableReason::Failed => 4,
                });
            }
            ConnectionEvent::Disconnected { queue_pair } => {
                self.u8(7);
                self.pair(*queue_pair);
            }
            ConnectionEvent::DeviceRemoved { queue_pair } => {
                self.u8(8);
                self.pair(*queue_pair);
            }
            ConnectionEvent::TimeWaitExit { queue_pair } => {
                self.u8(9);
                self.pair(*queue_pair);
            }
            ConnectionEvent::AddressChanged { queue_pair } => {
                self.u8(10);
                self.pair(*queue_pair);
            }
            ConnectionEvent::AddressRemoved { queue_pair } => {
                self.u8(11);
                self.pair(*queue_pair);
            }
            ConnectionEvent::AddressReturned { queue_pair } => {
                self.u8(12);
                self.pair(*queue_pair);
            }
        }
    }

    fn reject_reason(&mut self, reason: RejectReason) {
        let (code, number) = match reason {
            RejectReason::NoResources => (1, 0),
            RejectReason::Timeout => (2, 0),
            RejectReason::InvalidServiceId => (3, 0),
            RejectReason::StaleConnection => (4, 0),
            RejectReason::ConsumerReject => (5, 0),
            RejectReason::IncompatibleVersion => (6, 0),
            RejectReason::Other(number) => (7, number),
        };
        self.u8(code);
        self.u16(number);
    }
}

impl Decoder<'_> {
    pub(super) fn event(&mut self) -> Result<Event, Malformed> {
        Ok(Event::Connection(match self.u8()? {
            1 => return Ok(Event::CompletionQueueReady(self.queue()?)),
            2 => return self.async_event().map(Event::Async),
            3 => ConnectionEvent::Requested {
                listener: self.listener()?,
                request: self.connection_request()?,
                private_data: self.bytes()?.to_vec(),
            },
            4 => ConnectionEvent::Established {
                queue_pair: self.pair()?,
                private_data: self.bytes()?.to_vec(),
            },
            5 => ConnectionEvent::Rejected {
                queue_pair: self.pair()?,
                reason: self.reject_reason()?,
                private_data: self.bytes()?.to_vec(),
            },
            6 => ConnectionEvent::Unreachable {
                queue_pair: self.pair()?,
                reason: match self.u8()? {
                    1 => UnreachableReason::NoSuchAddress,
                    2 => UnreachableReason::PermissionDenied,
                    3 => UnreachableReason::TimedOut,
                    4 => UnreachableReason::Failed,
                    _ => return Err(Malformed),
                },
            },
            7 => ConnectionEvent::Disconnected {
                queue_pair: self.pair()?,
            },
            8 => ConnectionEvent::DeviceRemoved {
                queue_pair: self.pair()?,
            },
            9 => ConnectionEvent::TimeWaitExit {
                queue_pair: self.pair()?,
            },
            10 => ConnectionEvent::AddressChanged {
                queue_pair: self.pair()?,
            },
            11 => ConnectionEvent::AddressRemoved {
                queue_pair: self.pair()?,
            },
            12 => ConnectionEvent::AddressReturned {
                queue_pair: self.pair()?,
            },
            _ => return Err(Malformed),
        }))
    }

    /// By the numbers of [`AsyncEvent::code`].
    fn async_event(&mut self) -> Result<AsyncEvent, Malformed> {
        Ok(match self.u8()? {
            0 => AsyncEvent::CompletionQueueError(self.queue()?),
            1 => AsyncEvent::QueuePairFatal(self.pair()?),
            2 => AsyncEvent::QueuePairRequestError(self.pair()?),
            3 => AsyncEvent::QueuePairAccessError(self.pair()?),
            4 => AsyncEvent::CommunicationEstablished(self.pair()?),
            5 => AsyncEvent::SendQueueDrained(self.pair()?),
            6 => AsyncEvent::PathMigrated(self.pair()?),
            7 => AsyncEvent::PathMigrationError(self.pair()?),
            8 => AsyncEvent::DeviceFatal,
            9 => AsyncEvent::PortActive(self.u8()?),
            10 => AsyncEvent::PortError(self.u8()?),
            11 => AsyncEvent::LocalIdentifierChange(self.u8()?),
            12 => AsyncEvent::PartitionKeyChange(self.u8()?),
            13 => AsyncEvent::SubnetManagerChange(self.u8()?),
            14 => AsyncEvent::SharedReceiveQueueError(self.shared_queue()?),
            15 => AsyncEvent::SharedReceiveQueueLimit(self.shared_queue()?),
            16 => AsyncEvent::LastWorkRequestReached(self.pair()?),
            17 => AsyncEvent::ClientReregister(self.u8()?),
            18 => AsyncEvent::AddressChange(self.u8()?),
            128 => AsyncEvent::ReceiverNotReady(self.pair()?),
            _ => return Err(Malformed),
        })
    }

    fn reject_reason(&mut self) -> Result<RejectReason, Malformed> {
        let (code, number) = (self.u8()?, self.u16()?);
        Ok(match code {
            1 => RejectReason::NoResources,
            2 => RejectReason::Timeout,
            3 => RejectReason::InvalidServiceId,
            4 => RejectReason::StaleConnection,
            5 => RejectReason::ConsumerReject,
            6 => RejectReason::IncompatibleVersion,
            7 => RejectReason::Other(number),
            _ => return Err(Malformed),
        })
    }
}
