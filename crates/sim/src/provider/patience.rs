//! A peer without a receive may be asked again for hours. Nothing can come of that before it posts
//! one, so the packets that would only be refused are left out, as many at a time as make the
//! history short and still let a peer that has died in the meantime be found out.

use super::environment::{Environment, Local};
use super::network::Inner;
use super::nic::Nic;
use super::wire::place_of;
use legato_base::{Duration, Time};
use legato_verbs::{QueuePair, QueuePairState, RnrTimer};

/// Who is not asked at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spared {
    machine: usize,
    queue_pair: QueuePair,
    /// The place that has no receive.
    peer: usize,
    since: Time,
    /// How often it would be asked.
    period: Duration,
}

/// Packets left out at a time.
const SPARED: u64 = 256;

impl Inner {
    /// Is this the timer of a queue pair that waits for its peer's receive, and would it wait on?
    /// Then it is set again.
    pub(super) fn spare_the_wire(&mut self, machine: usize, queue_pair: QueuePair) -> bool {
        let now = self.environment.now;
        // Not a timer of before, in place of which another one was set.
        let due = self.machines[machine].adapter.timer_is_due(queue_pair, now);
        if !due {
            return false;
        }
        // After packets were left out one is sent: it finds out whether the peer is there still.
        let before = self.environment.spared.len();
        self.environment
            .spared
            .retain(|it| (it.machine, it.queue_pair) != (machine, queue_pair));
        if self.environment.spared.len() < before {
            return false;
        }
        let Some((peer, period)) = self.refuser(machine, queue_pair) else {
            return false;
        };
        self.environment.spared.push(Spared {
            machine,
            queue_pair,
            peer,
            since: now,
            period,
        });
        let until = now + Duration::from_nanos(period.as_nanos() * SPARED);
        self.machines[machine].with(&mut self.environment, |adapter, around| {
            adapter.wait_for_receive(around, queue_pair, until);
        });
        true
    }

    /// The peer that would refuse once more, and how often it would be asked.
    fn refuser(&self, machine: usize, queue_pair: QueuePair) -> Option<(usize, Duration)> {
        let now = self.environment.now;
        let asker = &self.machines[machine];
        let engine = asker.adapter.engine(queue_pair)?;
        if engine.waits_for_receive()? > now {
            return None;
        }
        let attributes = engine.query();
        let places = &self.environment.places;
        let peer = place_of(attributes.address_vector?.destination, places.len())?;
        let nic = self.machines.get(places[peer].machine)?;
        let usable = nic.alive && !nic.frozen && !nic.removed && places[peer].link_is_up;
        let name = nic.adapter.queue_pair_numbered(attributes.destination?)?;
        let theirs = nic.adapter.engine(name)?;
        let receives = matches!(
            theirs.state(),
            QueuePairState::ReadyToReceive
                | QueuePairState::ReadyToSend
                | QueuePairState::SendQueueDrain
        );
        let posted = nic.adapter.posted_receives(name)?;
        let period = theirs.query().rnr_timer.map(RnrTimer::duration)?;
        let period = asker.hardware.personality.adapter.transport.wait(period);
        (usable && receives && posted == 0).then_some((peer, period))
    }
}

impl Nic {
    /// A receive was posted here: who was not asked for want of one is asked when it would have
    /// been.
    pub(super) fn wake_waiting_peers(&self, environment: &mut Environment) {
        if environment.spared.is_empty() {
            return;
        }
        let mut woken = std::mem::take(&mut environment.spared);
        let place = self.hardware.place;
        let now = environment.now;
        for spared in woken.extract_if(.., |it| it.peer == place) {
            let period = spared.period.as_nanos().max(1);
            let waited = now.since(spared.since).as_nanos().div_ceil(period) * period;
            let at = spared.since + Duration::from_nanos(waited);
            let queue_pair = spared.queue_pair;
            let what = Local::PeerMayReceive { queue_pair };
            environment.schedule_at(at, spared.machine, what);
        }
        environment.spared = woken;
    }

    pub(super) fn peer_may_receive(&mut self, environment: &mut Environment, name: QueuePair) {
        let now = environment.now;
        let waits = self
            .adapter
            .engine(name)
            .and_then(|engine| engine.waits_for_receive());
        if waits.is_some_and(|until| until > now) {
            self.with(environment, |adapter, around| {
                adapter.wait_for_receive(around, name, now);
            });
        }
    }
}
