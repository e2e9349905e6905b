//! This side of the link: a fabric on the software RoCE NIC.

use super::far_side::{END, REPORT, Report, far_config, rest, start, turn};
use super::guest::{Guest, PATIENCE};
use crate::rig::{GUEST, SECOND, Side, answer, life};
use legato_base::{Duration, Time};
use legato_fabric::{ConnectionId, FabricEvent};
use legato_providers::RoceProvider;
use legato_verbs::{Address, ROCE_PORT};
use std::net::Ipv4Addr;
use std::time::Instant;

pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// For a connection or an answer: the guest's processor is emulated.
const CALL_LASTS: Duration = Duration::from_secs(30);

pub(crate) struct Near {
    pub(crate) guest: Guest,
    /// The guest's version of Linux.
    pub(crate) kernel: String,
    pub(crate) side: Side<RoceProvider>,
    begun: Instant,
}

/// Where the far side is, by this side's name for it.
pub(crate) fn far_address() -> Address {
    Address::Roce((GUEST, ROCE_PORT).into())
}

fn open(incarnation: u64) -> Side<RoceProvider> {
    let nic = RoceProvider::open(&Address::Roce((HERE, ROCE_PORT).into())).unwrap();
    Side::new(nic, life(far_config(), incarnation))
}

impl Near {
    /// With a far side that listens.
    pub(crate) fn start() -> Self {
        let mut guest = Guest::new();
        guest.say("uname -r");
        let kernel = guest.await_line("6.");
        start(&mut guest, &Address::Verbs((GUEST, ROCE_PORT).into()));
        Self {
            guest,
            kernel,
            side: open(1),
            begun: Instant::now(),
        }
    }

    /// Another life of this side. The one before ends without a word.
    pub(crate) fn again(self, incarnation: u64) -> Self {
        let Self {
            guest,
            kernel,
            side,
            ..
        } = self;
        drop(side);
        Self {
            guest,
            kernel,
            side: open(incarnation),
            begun: Instant::now(),
        }
    }

    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        loop {
            let progressed = turn(&mut self.side, self.begun);
            if let Some(found) = probe(self) {
                return found;
            }
            let events = &self.side.events;
            assert!(begun.elapsed() < PATIENCE, "not {what}: {events:?}");
            if !progressed {
                rest(&self.side.nic.nic);
            }
        }
    }

    fn deadline(&self) -> Time {
        let nanos = self.begun.elapsed().as_nanos() as u64;
        Time::ZERO + Duration::from_nanos(nanos) + CALL_LASTS
    }

    pub(crate) fn connect(&mut self) -> ConnectionId {
        let deadline = self.deadline();
        let side = &mut self.side;
        let connection = side
            .fabric
            .connect(&mut side.nic, &far_address(), b"near", deadline)
            .unwrap();
        self.until("connected", |near| {
            let connected = near.side.take(|event| match event {
                FabricEvent::Connected { connection, .. } => Some(*connection),
                _ => None,
            });
            connected.contains(&connection).then_some(())
        });
        connection
    }

    /// The reply to a call.
    fn call(&mut self, connection: ConnectionId, body: &[u8]) -> Vec<u8> {
        let deadline = self.deadline();
        let side = &mut self.side;
        let call = side
            .fabric
            .call(&mut side.nic, connection, body, deadline)
            .unwrap();
        let (of, reply) = self.until("answered", |near| near.side.replies().pop());
        assert_eq!(of, call);
        reply.unwrap()
    }

    pub(crate) fn ask(&mut self, connection: ConnectionId) {
        assert_eq!(self.call(connection, b"?"), answer(b"?"));
    }

    pub(crate) fn report(&mut self, connection: ConnectionId) -> Report {
        Report::parse(&self.call(connection, REPORT))
    }

    /// Calls, and asks for a report, until it is this one.
    pub(crate) fn reports(&mut self, connection: ConnectionId, expected: Report) {
        let begun = Instant::now();
        loop {
            let report = self.report(connection);
            if report == expected {
                return;
            }
            let took = begun.elapsed();
            assert!(took < PATIENCE, "{report:?} for {took:?}");
            self.run_for(SECOND);
        }
    }

    fn run_for(&mut self, duration: Duration) {
        let begun = Instant::now();
        let nanos = u128::from(duration.as_nanos());
        self.until("later", |_| {
            (begun.elapsed().as_nanos() > nanos).then_some(())
        });
    }

    /// The far side ends with this connection, and has given back all that it had.
    pub(crate) fn end(mut self, connection: ConnectionId) {
        assert_eq!(self.call(connection, END), answer(END));
        let side = &mut self.side;
        side.fabric.close(&mut side.nic, connection);
        self.until("closed", |near| {
            near.side.disconnected().contains(&connection).then_some(())
        });
        self.until("the end of the far side", |near| {
            let line = near.guest.take("far status ")?;
            assert_eq!(line, "far status 0");
            Some(())
        });
        self.side.events.clear();
        self.side.end();
    }
}
