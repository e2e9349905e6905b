//! What the machines' software does.

use super::super::Violation;
use super::model::{Broken, Due, Kind, OperationModel, REFUSED, answer, bytes, request};
use super::node::{Peer, READABLE, WRITABLE, address};
use super::world::World;
use legato_base::{Duration, Time};
use legato_fabric::{Refused, ReplyError};
use legato_verbs::RemoteAddress;

/// Longest bytes of a request beside its number.
const BODY_MAX: u64 = 150;

impl World {
    /// Something that the software of some machine does.
    pub(super) fn work(&mut self) -> Result<(), Violation> {
        let count = self.machines.len() as u64;
        let random = &mut self.stage.random;
        let here = random.below(count) as usize;
        let there = (here + 1 + random.below(count - 1) as usize) % count as usize;
        let (what, size, patience) = (random.below(100), random.next_u64(), random.below(100));
        if !self.machines[here].runs() {
            return Ok(());
        }
        let deadline = self.stage.after(match patience {
            0..4 => Duration::from_micros(50),
            4..10 => Duration::from_millis(5),
            10..20 => Duration::from_millis(200),
            _ => Duration::from_secs(5),
        });
        let close = self.plan.close;
        let done = match what {
            _ if what < close => self.close(here, there),
            0..30 => self.call(here, there, size, deadline).map(|_| ()),
            30..50 => self.write(here, there, size, deadline).map(|_| ()),
            50..70 => self.read(here, there, size, deadline).map(|_| ()),
            70..85 => self.reply(here, size),
            _ => self.connect(here, there, deadline),
        };
        done.map_err(|broken| self.violation(broken, &[here, there]))
    }

    /// Starts connecting, unless it has already.
    pub(super) fn connect(
        &mut self,
        here: usize,
        there: usize,
        deadline: Time,
    ) -> Result<(), Broken> {
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(());
        };
        if node.peers[there] == Peer::Away {
            let address = address(there);
            // Refused while the device is gone, or for lack of places: then later.
            if let Ok(connection) = node.fabric.connect(&mut node.nic, &address, &[], deadline) {
                node.peers[there] = Peer::Connecting(connection);
            }
        }
        Ok(())
    }

    pub(super) fn close(&mut self, here: usize, there: usize) -> Result<(), Broken> {
        if let Some(node) = self.machines[here].node.as_mut()
            && let Peer::Up { connection, .. } | Peer::Connecting(connection) = node.peers[there]
        {
            node.fabric.close(&mut node.nic, connection);
        }
        Ok(())
    }

    /// Starts a call. Returns its number in the model.
    pub(super) fn call(
        &mut self,
        here: usize,
        there: usize,
        size: u64,
        deadline: Time,
    ) -> Result<Option<usize>, Broken> {
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(None);
        };
        let Peer::Up { connection, .. } = node.peers[there] else {
            return Ok(None);
        };
        let body = request(self.model.next_call() as u64, (size % BODY_MAX) as u32);
        match node.fabric.call(&mut node.nic, connection, &body, deadline) {
            Ok(id) => Ok(Some(self.model.started_call(node.life, id, deadline))),
            Err(refused) => allowed(refused).map(|()| None),
        }
    }

    /// Starts a write to a place that nothing was written to. Returns its number in the model.
    pub(super) fn write(
        &mut self,
        here: usize,
        there: usize,
        size: u64,
        deadline: Time,
    ) -> Result<Option<usize>, Broken> {
        let length = transfer_length(size);
        let Some(peer) = self.machines[there].node.as_ref() else {
            return Ok(None);
        };
        if peer.given + u64::from(length) > WRITABLE {
            return Ok(None);
        }
        let offset = u64::from(READABLE) + peer.given;
        let started = self.start_operation(here, there, Kind::Write, offset, length, deadline)?;
        if started.is_some()
            && let Some(peer) = self.machines[there].node.as_mut()
        {
            peer.given += u64::from(length);
        }
        Ok(started)
    }

    /// Starts a read of what never changes. Returns its number in the model.
    pub(super) fn read(
        &mut self,
        here: usize,
        there: usize,
        size: u64,
        deadline: Time,
    ) -> Result<Option<usize>, Broken> {
        let length = transfer_length(size);
        let offset = (size >> 8) % u64::from(READABLE - length);
        self.start_operation(here, there, Kind::Read, offset, length, deadline)
    }

    /// Starts a one-sided operation on so many bytes of what the peer exports.
    fn start_operation(
        &mut self,
        here: usize,
        there: usize,
        kind: Kind,
        offset: u64,
        length: u32,
        deadline: Time,
    ) -> Result<Option<usize>, Broken> {
        let Some(peer) = self.machines[there].node.as_ref() else {
            return Ok(None);
        };
        let (memory, life) = (peer.exported, peer.life);
        let at = RemoteAddress {
            key: memory.remote_key,
            address: memory.address + offset,
        };
        let number = self.model.next_operation();
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(None);
        };
        let Peer::Up {
            connection,
            life: up,
        } = node.peers[there]
        else {
            return Ok(None);
        };
        // The peer has started again, and this side does not know it yet.
        if up != life {
            return Ok(None);
        }
        let Some(piece) = node.take_piece(length)? else {
            return Ok(None);
        };
        let index = piece.number;
        let started = match kind {
            Kind::Write => {
                node.fill_piece(&piece, &bytes(number as u64, length))?;
                node.fabric
                    .write(&mut node.nic, connection, at, piece, deadline)
            }
            Kind::Read => node
                .fabric
                .read(&mut node.nic, connection, at, piece, deadline),
        };
        match started {
            Err((refused, piece)) => {
                node.give_piece(&piece)?;
                allowed(refused).map(|()| None)
            }
            Ok(id) => {
                let model = OperationModel {
                    caller: node.life,
                    target: life,
                    kind,
                    offset,
                    length,
                    piece: index,
                    due: Due::at(deadline),
                    verdict: None,
                    quiesced: false,
                };
                Ok(Some(self.model.started(id, model)))
            }
        }
    }

    /// Answers some request that waits.
    pub(super) fn reply(&mut self, here: usize, size: u64) -> Result<(), Broken> {
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(());
        };
        if node.requests.is_empty() {
            return Ok(());
        }
        let choice = (size % node.requests.len() as u64) as usize;
        let (id, body) = node.requests.swap_remove(choice);
        match node.fabric.reply(&mut node.nic, id, &answer(&body)) {
            // Its connection is gone, or the provider refused and the connection goes.
            Ok(()) | Err(ReplyError::NotWaiting | ReplyError::Provider(_)) => Ok(()),
            Err(error) => Err((REFUSED, format!("a reply is refused: {error}"))),
        }
    }

    pub(super) fn reply_all(&mut self, here: usize) -> Result<(), Broken> {
        while self.machines[here]
            .node
            .as_ref()
            .is_some_and(|node| !node.requests.is_empty())
        {
            self.reply(here, 0)?;
        }
        Ok(())
    }
}

/// Refusals that there may be under faults.
fn allowed(refused: Refused) -> Result<(), Broken> {
    match refused {
        Refused::WouldBlock | Refused::NotConnected | Refused::Provider(_) => Ok(()),
        Refused::TooLong | Refused::DeadlinePassed | Refused::QuarantineFull => {
            Err((REFUSED, format!("an operation is refused: {refused}")))
        }
    }
}

/// Bytes of a one-sided operation.
const fn transfer_length(size: u64) -> u32 {
    [8, 64, 4096, 4097, 12_288][(size % 5) as usize]
}
