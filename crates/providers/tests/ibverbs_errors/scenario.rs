//! Everything that a provider is there for, once: two of them in one process, which make all kinds of
//! objects, connect, move bytes in every way, wait, part and tidy up.

use legato_base::{Duration, Time};
use legato_providers::ibverbs::OpenError;
use legato_verbs::{
    AccessFlags, Address, Arm, AsyncEvent, Completion, CompletionKind, CompletionQueue,
    CompletionStatus, ConnectionEvent, ConnectionRequest, Event, MemoryRegion, ProtectionDomain,
    Provider, QueuePair, QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest,
    Receives, RemoteAddress, SendFlags, SendOperation, SendRequest, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, Subject, VerbsError, WindowBinding, WorkRequestId,
};
use std::collections::VecDeque;

/// Why the scenario did not come to its end. Its text is what the tests compare.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Verb(VerbsError),
    Open(OpenError),
    /// Something that was not expected.
    Event(Event),
    Completion(CompletionStatus),
    /// Not within [`PATIENCE`] of the clock that the providers are told.
    Never(&'static str),
}

impl From<VerbsError> for Ended {
    fn from(error: VerbsError) -> Self {
        Self::Verb(error)
    }
}

impl From<OpenError> for Ended {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Verbs(error) => Self::Verb(error),
            other => Self::Open(other),
        }
    }
}

type Outcome<T = ()> = Result<T, Ended>;

/// In the environment of a run in which what does not end is ended again.
pub(crate) const TWICE: &str = "LEGATO_END_TWICE";
const PATIENCE: Duration = Duration::from_secs(120);
/// Of the clock, for each turn in which nothing happens.
const TICK: Duration = Duration::from_millis(5);
const LENGTH: u64 = 64 << 10;
const MESSAGE: u32 = 512;

/// Ends something; if [`TWICE`] says so, once more if it fails: then it must be there still.
fn end(mut once: impl FnMut() -> Result<(), VerbsError>) -> Outcome {
    let ended = once();
    let again = ended.is_err() && std::env::var_os(TWICE).is_some();
    Ok(if again { once() } else { ended }?)
}

/// One of the two.
struct End<P> {
    provider: P,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    queue_pair: QueuePair,
    region: MemoryRegion,
    events: VecDeque<Event>,
    completions: VecDeque<Completion>,
}

fn take<T, U>(from: &mut VecDeque<T>, mut pick: impl FnMut(&T) -> Option<U>) -> Option<U> {
    let mut found = from.iter().enumerate();
    let (place, value) = found.find_map(|(place, thing)| Some((place, pick(thing)?)))?;
    from.remove(place);
    Some(value)
}

impl<P: Provider> End<P> {
    fn new(mut provider: P, shares: bool) -> Outcome<Self> {
        let domain = provider.create_protection_domain()?;
        let queue = provider.create_completion_queue(64)?;
        let shared = match shares {
            true => {
                let capabilities = SharedReceiveQueueCapabilities {
                    // More than the completion queue has room for beside the sends.
                    requests_max: 64,
                    entries_max: 2,
                };
                Some(provider.create_shared_receive_queue(domain, capabilities)?)
            }
            false => None,
        };
        let region = provider.allocate_region(domain, LENGTH, AccessFlags::from_bits(31))?;
        let capabilities = QueuePairCapabilities {
            send_requests_max: 16,
            receive_requests_max: 16,
            entries_max: 2,
        };
        let mut init = QueuePairInit::new(domain, queue, capabilities);
        init.receives = shared.map_or(Receives::Own, Receives::Shared);
        let queue_pair = provider.create_queue_pair(&init)?;
        provider.modify_to_init(queue_pair)?;
        Ok(Self {
            provider,
            domain,
            queue,
            shared,
            queue_pair,
            region,
            events: VecDeque::new(),
            completions: VecDeque::new(),
        })
    }

    fn turn(&mut self, now: Time) -> Outcome {
        self.provider.progress(now);
        while let Some(event) = self.provider.poll_event() {
            use ConnectionEvent::{DeviceRemoved, Rejected, Unreachable};
            match event {
                Event::Async(AsyncEvent::DeviceFatal)
                | Event::Connection(DeviceRemoved { .. } | Rejected { .. } | Unreachable { .. }) => {
                    return Err(Ended::Event(event));
                }
                event => self.events.push_back(event),
            }
        }
        let mut completions = Vec::new();
        let most = usize::MAX;
        self.provider
            .poll_completion_queue(self.queue, most, &mut completions)?;
        self.completions.extend(completions);
        Ok(())
    }

    fn post_receive(&mut self, id: u64) -> Outcome {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(id),
            entries: vec![self.region.entry(id * u64::from(MESSAGE), MESSAGE)],
        };
        match self.shared {
            Some(shared) => self.provider.post_shared_receive(shared, &request)?,
            None => self.provider.post_receive(self.queue_pair, &request)?,
        }
        Ok(())
    }

    fn end(mut self) -> Outcome {
        let provider = &mut self.provider;
        end(|| provider.destroy_queue_pair(self.queue_pair))?;
        if let Some(shared) = self.shared {
            provider.destroy_shared_receive_queue(shared)?;
        }
        provider.destroy_completion_queue(self.queue)?;
        end(|| provider.deregister_region(&self.region))?;
        provider.destroy_protection_domain(self.domain)?;
        Ok(())
    }
}

/// The two, and the clock that both are told.
struct Pair<P> {
    server: End<P>,
    client: End<P>,
    now: Time,
}

impl<P: Provider> Pair<P> {
    fn until<T>(
        &mut self,
        what: &'static str,
        mut probe: impl FnMut(&mut Self) -> Option<T>,
    ) -> Outcome<T> {
        let end = self.now + PATIENCE;
        while self.now < end {
            self.now = self.now + TICK;
            self.server.turn(self.now)?;
            self.client.turn(self.now)?;
            if let Some(found) = probe(self) {
                return Ok(found);
            }
        }
        Err(Ended::Never(what))
    }

    fn requested(&mut self) -> Outcome<ConnectionRequest> {
        self.until("a request", |pair| {
            take(&mut pair.server.events, |event| match event {
                Event::Connection(ConnectionEvent::Requested {
                    request,
                    private_data,
                    ..
                }) if private_data.starts_with(b"hello") => Some(*request),
                _ => None,
            })
        })
    }

    fn connect(&mut self, address: &Address) -> Outcome {
        let server = &mut self.server;
        if let Some(shared) = server.shared {
            server.provider.arm_shared_receive_queue(shared, 2)?;
            let limit = server.provider.query_shared_receive_queue(shared)?;
            assert_eq!(limit, 2);
        }
        for id in 0..4 {
            server.post_receive(id)?;
        }
        let listener = server.provider.listen(address)?;
        let client = &mut self.client;
        client
            .provider
            .connect(client.queue_pair, address, b"hello")?;
        let request = self.requested()?;
        let server = &mut self.server;
        server
            .provider
            .accept(request, server.queue_pair, b"welcome")?;
        let is_up = |events: &VecDeque<Event>| {
            let mut events = events.iter();
            let is_it = |event: &Event| {
                matches!(
                    event,
                    Event::Connection(ConnectionEvent::Established { .. })
                )
            };
            events.any(is_it).then_some(())
        };
        self.until("the client is established", |pair| {
            is_up(&pair.client.events)
        })?;
        // Whoever is told first may speak first.
        self.does(SendOperation::Send, MESSAGE)?;
        self.received(CompletionKind::Receive { length: MESSAGE })?;
        self.until("the server is established", |pair| {
            is_up(&pair.server.events)
        })?;
        self.until("the server hears of another address", |pair| {
            let queue_pair = pair.server.queue_pair;
            let changed = Event::Connection(ConnectionEvent::AddressChanged { queue_pair });
            pair.server.events.contains(&changed).then_some(())
        })?;
        self.address_goes_and_returns()?;
        let state = self
            .server
            .provider
            .query_queue_pair(self.server.queue_pair)?;
        assert_eq!(state, QueuePairState::ReadyToSend);
        self.reject_another(address)?;
        self.server.provider.close_listener(listener)?;
        Ok(())
    }

    /// The port's addresses change three times, and two of the changes are about the own one. What becomes of another port of the
    /// device is nobody's concern here.
    fn address_goes_and_returns(&mut self) -> Outcome {
        let queue_pair = self.server.queue_pair;
        let told = self.until("the server has its address again", |pair| {
            let told = pair.server.events.iter().filter(|event| match event {
                Event::Async(event) => matches!(event.subject(), Subject::Port(_)),
                Event::Connection(event) => matches!(
                    event,
                    ConnectionEvent::AddressRemoved { .. }
                        | ConnectionEvent::AddressReturned { .. }
                ),
                Event::CompletionQueueReady(_) => false,
            });
            let told: Vec<Event> = told.cloned().collect();
            let last = ConnectionEvent::AddressReturned { queue_pair };
            let is_over = told.contains(&Event::Connection(last));
            let changes = told.iter().filter(|event| matches!(event, Event::Async(_)));
            (is_over && changes.count() >= 3).then_some(told)
        })?;
        let change = Event::Async(AsyncEvent::AddressChange(1));
        let expected = [
            change.clone(),
            Event::Connection(ConnectionEvent::AddressRemoved { queue_pair }),
            change.clone(),
            Event::Connection(ConnectionEvent::AddressReturned { queue_pair }),
            change,
        ];
        assert_eq!(told, expected);
        Ok(())
    }

    /// One that is sent away.
    fn reject_another(&mut self, address: &Address) -> Outcome {
        let client = &mut self.client;
        let capabilities = QueuePairCapabilities {
            send_requests_max: 1,
            receive_requests_max: 1,
            entries_max: 1,
        };
        let init = QueuePairInit::new(client.domain, client.queue, capabilities);
        let another = client.provider.create_queue_pair(&init)?;
        client.provider.modify_to_init(another)?;
        client.provider.connect(another, address, b"hello")?;
        let request = self.requested()?;
        self.server.provider.reject(request, b"no")?;
        let rejected = self.until("a rejection", |_| None::<()>);
        match rejected {
            Err(Ended::Event(Event::Connection(ConnectionEvent::Rejected {
                queue_pair, ..
            }))) if queue_pair == another => {}
            other => return other,
        }
        end(|| self.client.provider.destroy_queue_pair(another))
    }

    /// A request of the client's, and its completion.
    fn does(&mut self, operation: SendOperation, length: u32) -> Outcome {
        let client = &mut self.client;
        let entries = match length {
            0 => vec![],
            length => vec![client.region.entry(0, length)],
        };
        let request = SendRequest {
            wr_id: WorkRequestId(99),
            operation,
            entries,
            flags: SendFlags::SIGNALED,
        };
        client.provider.post_send(client.queue_pair, &request)?;
        let completion = self.until("a completion of a request", |pair| {
            take(&mut pair.client.completions, |completion| {
                (completion.wr_id == WorkRequestId(99)).then_some(*completion)
            })
        })?;
        let kind = completion.result.map_err(Ended::Completion)?;
        assert_eq!(kind, operation.completion_kind());
        Ok(())
    }

    fn received(&mut self, expected: CompletionKind) -> Outcome {
        let completion = self.until("a completion of a receive", |pair| {
            pair.server.completions.pop_front()
        })?;
        let kind = completion.result.map_err(Ended::Completion)?;
        assert_eq!(kind, expected);
        Ok(())
    }

    fn place(&self) -> RemoteAddress {
        RemoteAddress {
            key: self.server.region.remote_key,
            address: self.server.region.address + LENGTH / 2,
        }
    }

    fn move_bytes(&mut self) -> Outcome {
        let (place, length) = (self.place(), MESSAGE);
        self.client.post_receive(9)?;
        let waiting = self.wait_for_the_next()?;
        self.does(SendOperation::Send, length)?;
        self.received(CompletionKind::Receive { length })?;
        waiting(self)?;
        self.does(SendOperation::SendWithImmediate(7), length)?;
        self.received(CompletionKind::ReceiveWithImmediate {
            length,
            immediate: 7,
        })?;
        self.until("few receives are left", |pair| {
            take(&mut pair.server.events, |event| {
                matches!(event, Event::Async(AsyncEvent::SharedReceiveQueueLimit(_))).then_some(())
            })
        })?;
        let text = b"far memory";
        self.client
            .provider
            .write_region(&self.client.region, 0, text)?;
        self.does(SendOperation::RdmaWrite(place), length)?;
        let mut found = [0; 10];
        let (at, region) = (LENGTH / 2, self.server.region);
        self.server.provider.read_region(&region, at, &mut found)?;
        assert_eq!(&found, text);
        self.does(SendOperation::RdmaRead(place), length)?;
        self.does(
            SendOperation::FetchAndAdd {
                target: place,
                add: 1,
            },
            8,
        )?;
        self.does(
            SendOperation::CompareAndSwap {
                target: place,
                compare: 1,
                swap: 2,
            },
            8,
        )
    }

    /// Arms the server's queue. What is returned waits for the event.
    #[allow(clippy::type_complexity, reason = "what it returns is a continuation")]
    fn wait_for_the_next(&mut self) -> Outcome<impl FnOnce(&mut Self) -> Outcome + use<P>> {
        let queue = self.server.queue;
        self.server
            .provider
            .arm_completion_queue(queue, Arm::Next)?;
        let wanted = Event::CompletionQueueReady(queue);
        Ok(move |pair: &mut Self| {
            pair.until("the armed queue", |pair| {
                take(&mut pair.server.events, |event| {
                    (*event == wanted).then_some(())
                })
            })
        })
    }

    /// A window on the server's region, for nobody, and its end.
    fn use_window(&mut self) -> Outcome {
        if self.client.provider.attributes().memory_windows_max == 0 {
            return Ok(());
        }
        let client = &mut self.client;
        let window = client.provider.allocate_window(client.domain)?;
        let next = client.provider.next_window_key(window)?;
        let binding = WindowBinding {
            window,
            next,
            region: client.region.local_key,
            address: client.region.address,
            length: 4096,
            access: AccessFlags::REMOTE_READ,
        };
        self.does(SendOperation::BindWindow(binding), 0)?;
        self.does(SendOperation::LocalInvalidate(next), 0)?;
        end(|| self.client.provider.deallocate_window(next))
    }

    fn part(&mut self) -> Outcome {
        let client = &mut self.client;
        client.provider.disconnect(client.queue_pair)?;
        let was_told = |events: &VecDeque<Event>| {
            let mut events = events.iter();
            events.any(|event| {
                matches!(
                    event,
                    Event::Connection(ConnectionEvent::Disconnected { .. })
                )
            })
        };
        self.until("both sides have parted", |pair| {
            (was_told(&pair.server.events) && was_told(&pair.client.events)).then_some(())
        })?;
        let flushed = self.until("the receive of before", |pair| {
            take(&mut pair.client.completions, |completion| {
                (completion.wr_id == WorkRequestId(9)).then_some(*completion)
            })
        })?;
        assert_eq!(flushed.result, Err(CompletionStatus::WorkRequestFlushed));
        // With the status all that the stand-in fills in: the rest is garbage.
        assert_eq!(flushed.vendor_error, 0x81);
        let state = self
            .client
            .provider
            .query_queue_pair(self.client.queue_pair)?;
        assert_eq!(state, QueuePairState::Error);
        Ok(())
    }
}

/// Runs it. The providers are dropped wherever it ends.
pub(crate) fn run<P: Provider>(
    mut open: impl FnMut() -> Result<P, OpenError>,
    address: &Address,
) -> Outcome {
    let mut pair = Pair {
        server: End::new(open()?, true)?,
        client: End::new(open()?, false)?,
        now: Time::ZERO,
    };
    pair.connect(address)?;
    pair.move_bytes()?;
    pair.use_window()?;
    pair.part()?;
    pair.client.end()?;
    pair.server.end()
}
