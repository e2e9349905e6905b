//! Calls of a session between two hosts, over a cable that is cut, and to a handler that is stuck.

use super::PATIENCE;
use super::station::Station;
use crate::harness::Hosts;
use legato_base::{Duration, Time};
use legato_fabric::session::{
    CallKind, Delivery, Session, SessionCallId, SessionConfig, SessionError, SessionEvent,
    SessionServer, SessionServerConfig,
};
use legato_fabric::{FabricConfig, FabricEvent, NoBuffer, ResetCause};
use legato_providers::AnyProvider;
use legato_verbs::Address;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Its handler keeps this one until it is told to answer.
const STUCK: &[u8] = b"stuck";
/// How long a handler may take before it is named.
const HANDLER_MAX: Duration = Duration::from_millis(300);
/// Shorter than the cable is out.
const LIVENESS: Duration = Duration::from_secs(1);
/// How soon a server that has nothing to do sees that it has been told something.
const GLANCE: Duration = Duration::from_millis(20);

fn config(incarnation: u64) -> FabricConfig {
    FabricConfig {
        liveness: LIVENESS,
        handler_max: HANDLER_MAX,
        incarnation,
        ..FabricConfig::default()
    }
}

fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| byte ^ 0x5A).collect()
}

/// What a server has done.
#[derive(Debug, Default)]
struct Served {
    executed: Vec<Vec<u8>>,
    /// Of the handlers that were named: how long they had taken, and whether it was the one that is.
    overdue: Vec<(Duration, bool)>,
}

struct Server {
    station: Station<NoBuffer>,
    sessions: SessionServer,
    stuck: Option<Delivery>,
    served: Served,
}

impl Server {
    fn listening(address: &Address) -> Self {
        let provider = AnyProvider::listening_at(address, None).unwrap();
        let mut station = Station::new(provider, config(2));
        let Station {
            fabric, provider, ..
        } = &mut station;
        fabric.listen(provider, address).unwrap();
        let credits = fabric.config().credits;
        Self {
            station,
            sessions: SessionServer::new(SessionServerConfig::for_credits(credits)),
            stuck: None,
            served: Served::default(),
        }
    }

    fn step(&mut self) {
        let turn = self.station.turn();
        while let Some(event) = self.station.fabric.poll_event() {
            self.hear(event);
        }
        let mut progressed = turn.progressed;
        while let Some(delivery) = self.sessions.poll_delivery() {
            progressed = true;
            match &delivery.body[..] {
                STUCK => self.stuck = Some(delivery),
                _ => self.execute(&delivery),
            }
        }
        let end = self.station.after(GLANCE);
        self.station
            .rest(legato_fabric::Turn { progressed, ..turn }, end);
    }

    fn hear(&mut self, event: FabricEvent<NoBuffer>) {
        if let FabricEvent::HandlerOverdue {
            request, waited, ..
        } = event
        {
            let stuck = self.stuck.as_ref();
            let is_it = stuck.is_some_and(|it| self.sessions.is_of(it.ticket, request));
            self.served.overdue.push((waited, is_it));
            return;
        }
        let Station {
            fabric, provider, ..
        } = &mut self.station;
        self.sessions.handle_event(fabric, provider, event);
    }

    fn execute(&mut self, delivery: &Delivery) {
        self.served.executed.push(delivery.body.clone());
        let Station {
            fabric, provider, ..
        } = &mut self.station;
        // Whoever is not there any more asks again.
        let _ = self
            .sessions
            .reply(fabric, provider, delivery.ticket, &answer(&delivery.body));
    }
}

/// What a server is told.
enum Order {
    Answer,
    End,
}

/// A server on a host, in a thread of its own.
struct Service {
    thread: JoinHandle<Served>,
    orders: Sender<Order>,
}

impl Service {
    fn start(hosts: &Hosts, address: &str) -> Self {
        let (orders, told): (_, Receiver<Order>) = channel();
        let (listens, listening) = channel();
        let place = hosts.server.namespace();
        let address: Address = address.parse().unwrap();
        let thread = std::thread::spawn(move || {
            place.enter();
            let mut server = Server::listening(&address);
            listens.send(()).unwrap();
            loop {
                match told.try_recv() {
                    Ok(Order::Answer) => {
                        let stuck = server.stuck.take().unwrap();
                        server.execute(&stuck);
                    }
                    Ok(Order::End) | Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        return server.served;
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => server.step(),
                }
            }
        });
        listening.recv().unwrap();
        Self { thread, orders }
    }

    fn tell(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn end(self) -> Served {
        self.tell(Order::End);
        self.thread.join().unwrap()
    }
}

/// A session with a service.
struct Caller {
    station: Station<NoBuffer>,
    session: Session,
    epochs: Vec<u64>,
    /// Why connections ended.
    resets: Vec<Option<ResetCause>>,
    ends: BTreeMap<SessionCallId, Result<Vec<u8>, SessionError>>,
}

impl Caller {
    /// The calling thread goes to the client's host.
    fn with(hosts: &Hosts, address: &str) -> Self {
        hosts.client.namespace().enter();
        let address: Address = address.parse().unwrap();
        let provider = AnyProvider::reaching(std::slice::from_ref(&address), None).unwrap();
        let station = Station::new(provider, config(1));
        let limits = SessionConfig::default();
        let session = Session::new(&station.fabric, 0, address, limits, 7).unwrap();
        let mut caller = Self {
            station,
            session,
            epochs: Vec::new(),
            resets: Vec::new(),
            ends: BTreeMap::new(),
        };
        caller.run_until("a connection", |caller| !caller.epochs.is_empty());
        caller
    }

    fn step(&mut self, end: Time) {
        let mut turn = self.station.turn();
        let now = self.station.now();
        let Station {
            fabric, provider, ..
        } = &mut self.station;
        while let Some(event) = fabric.poll_event() {
            self.session.handle_event(fabric, provider, event);
        }
        let own = self.session.turn(fabric, provider, now);
        turn.deadline = turn.deadline.min(own.deadline);
        turn.progressed |= own.progressed;
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::Connected { connection } => {
                    self.epochs.extend(fabric.epoch(connection));
                }
                SessionEvent::Disconnected { connection } => {
                    self.resets.push(fabric.reset_cause(connection));
                }
                SessionEvent::Ended { call, outcome } => {
                    let again = self.ends.insert(call, outcome);
                    assert!(again.is_none(), "{call:?} has two outcomes");
                }
            }
        }
        self.station.rest(turn, end);
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = self.station.after(PATIENCE);
        while !done(self) {
            assert!(self.station.now() < end, "{what} never happened");
            self.step(end);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.station.after(time);
        while self.station.now() < end {
            self.step(end);
        }
    }

    fn call(&mut self, body: &[u8], kind: CallKind) -> SessionCallId {
        let deadline = self.station.after(PATIENCE);
        self.session.call(body.to_vec(), kind, deadline).unwrap()
    }

    fn run_until_ended(&mut self, calls: &[SessionCallId]) {
        self.run_until("the outcome of each call", |caller| {
            calls.iter().all(|call| caller.ends.contains_key(call))
        });
    }
}

/// A service on one host, and a session with it on the other.
fn joined() -> (Hosts, Service, Caller) {
    let hosts = Hosts::joined(1500);
    let address = format!("roce://{}:4800", hosts.server.address);
    let service = Service::start(&hosts, &address);
    let caller = Caller::with(&hosts, &address);
    (hosts, service, caller)
}

#[test]
fn f_12_calls_under_way_when_the_cable_is_out_complete_over_a_new_connection() {
    let (hosts, service, mut caller) = joined();
    let mut calls = Vec::new();
    for number in 0..20_u8 {
        let kind = [CallKind::Once, CallKind::Idempotent][usize::from(number % 2)];
        calls.push((number, kind, caller.call(&[number], kind)));
        if number == 8 {
            // Sent, and for all that this side knows executed.
            let now = caller.station.now();
            caller.step(now);
            hosts.cut_cable();
        }
    }
    caller.run_for(Duration::from_secs(2));
    hosts.mend_cable();
    let ids: Vec<_> = calls.iter().map(|call| call.2).collect();
    caller.run_until_ended(&ids);
    let served = service.end();
    for (number, kind, id) in calls {
        assert_eq!(caller.ends[&id], Ok(answer(&[number])));
        let times = served.executed.iter().filter(|body| **body == [number]);
        let times = times.count();
        assert!(
            times == 1 || kind == CallKind::Idempotent && times > 1,
            "call {number} was executed {times} times"
        );
    }
    assert!(caller.epochs.len() >= 2, "{:?}", caller.epochs);
    assert!(caller.epochs.is_sorted_by(|one, next| one < next));
}

/// The connection ends because this side's interface is down, not for the peer's silence. The call
/// completes over another one.
// P-56
#[test]
fn v_39_a_connection_ends_with_its_own_link_and_another_follows() {
    let (hosts, service, mut caller) = joined();
    hosts.client.set_link_down();
    let call = caller.call(b"?", CallKind::Once);
    caller.run_until("the end of the connection", |it| !it.resets.is_empty());
    assert_eq!(caller.resets, [Some(ResetCause::AddressRemoved)]);
    hosts.client.set_link_up();
    caller.run_until_ended(&[call]);
    assert_eq!(caller.ends[&call], Ok(answer(b"?")));
    assert_eq!(caller.epochs.len(), 2);
    assert_eq!(service.end().executed, [b"?"]);
}

#[test]
fn f_19_a_stuck_handler_is_named_and_the_other_calls_are_answered() {
    let (_hosts, service, mut caller) = joined();
    let stuck = caller.call(STUCK, CallKind::Once);
    for round in 0..200_u32 {
        let call = caller.call(&round.to_le_bytes(), CallKind::Once);
        caller.run_until_ended(&[call]);
        assert_eq!(caller.ends[&call], Ok(answer(&round.to_le_bytes())));
    }
    // Its time is over, by the clock that both sides have here.
    caller.run_for(HANDLER_MAX + HANDLER_MAX);
    assert!(!caller.ends.contains_key(&stuck));
    service.tell(Order::Answer);
    caller.run_until_ended(&[stuck]);
    assert_eq!(caller.ends[&stuck], Ok(answer(STUCK)));
    let served = service.end();
    let [(waited, true)] = served.overdue[..] else {
        panic!("{:?}", served.overdue);
    };
    assert!(waited >= HANDLER_MAX, "{waited}");
    assert_eq!(caller.epochs.len(), 1);
}
