//! What the machines' software hears, and what must be so then.

use super::model::{
    BYTES, Broken, DONE, Kind, NOT_EXECUTED, ONE_OUTCOME, QUIET, Verdict, answer, bytes, request,
};
use super::node::{Peer, Piece, expected};
use super::world::World;
use legato_fabric::{ConnectionId, FabricEvent};

impl World {
    /// Takes what a fabric says. True if it said anything.
    pub(super) fn take_events(&mut self, here: usize) -> Result<bool, Broken> {
        let mut any = false;
        while let Some(event) = self.machines[here]
            .node
            .as_mut()
            .and_then(|node| node.fabric.poll_event())
        {
            any = true;
            let name = &self.machines[here].name;
            self.stage.note(|| format!("{name}: {}", short(&event)));
            self.take_event(here, event)?;
        }
        Ok(any)
    }

    fn take_event(&mut self, here: usize, event: FabricEvent<Piece>) -> Result<(), Broken> {
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(());
        };
        let life = node.life;
        match event {
            FabricEvent::Connected { connection, .. } => self.connected(here, connection),
            FabricEvent::ConnectFailed { connection, .. }
            | FabricEvent::Disconnected { connection } => {
                for peer in &mut node.peers {
                    if matches!(*peer, Peer::Up { connection: one, .. } | Peer::Connecting(one)
                        if one == connection)
                    {
                        *peer = Peer::Away;
                    }
                }
                Ok(())
            }
            FabricEvent::Accepted { .. }
            | FabricEvent::HandlerOverdue { .. }
            | FabricEvent::Suspected { .. }
            | FabricEvent::Heard { .. } => Ok(()),
            FabricEvent::Quarantined { operation } => Err((
                QUIET,
                format!("{operation:?} is quarantined, and its NIC works"),
            )),
            FabricEvent::Request {
                request: id, body, ..
            } => {
                let number = body
                    .first_chunk()
                    .map_or(0, |first| u64::from_le_bytes(*first));
                if body != request(number, (body.len().saturating_sub(8)) as u32) {
                    return Err((BYTES, format!("request {number} is damaged")));
                }
                node.requests.push((id, body));
                self.model.executed(number)
            }
            FabricEvent::Replied { call, outcome } => {
                let number = self.model.replied(life, call, &outcome)? as u64;
                match outcome {
                    Ok(body) => {
                        let length = body.len().saturating_sub(8) as u32;
                        if body != answer(&request(number, length)) {
                            return Err((BYTES, format!("the answer to {number} is another")));
                        }
                        Ok(())
                    }
                    Err(_) => Ok(()),
                }
            }
            FabricEvent::Outcome { operation, outcome } => {
                let number = self.model.decided(life, operation, &outcome)?;
                self.check_outcome(number)
            }
            FabricEvent::Quiesced {
                operation, buffer, ..
            } => {
                node.give_piece(&buffer)?;
                self.model.quiesced(life, operation, buffer.number)?;
                Ok(())
            }
        }
    }

    fn connected(&mut self, here: usize, connection: ConnectionId) -> Result<(), Broken> {
        self.connections += 1;
        let lives: Vec<_> = self
            .machines
            .iter()
            .map(|machine| machine.node.as_ref().map(|node| node.life))
            .collect();
        let Some(node) = self.machines[here].node.as_mut() else {
            return Ok(());
        };
        for (peer, life) in node.peers.iter_mut().zip(lives) {
            if *peer == Peer::Connecting(connection) {
                // Of a machine that has died meanwhile nothing can be asked.
                match life {
                    Some(life) => *peer = Peer::Up { connection, life },
                    None => {
                        *peer = Peer::Away;
                        node.fabric.close(&mut node.nic, connection);
                    }
                }
                return Ok(());
            }
        }
        Err((
            ONE_OUTCOME,
            format!("{connection:?} is connected, and nobody asked for it"),
        ))
    }

    /// What an outcome says must be so now.
    fn check_outcome(&self, number: usize) -> Result<(), Broken> {
        let operation = &self.model.operations[number];
        match (operation.kind, operation.verdict) {
            (Kind::Read, Some(Verdict::Done)) => {
                let node = self.machines[operation.caller.machine].node.as_ref();
                let found = node.and_then(|n| n.read_piece(operation.piece, operation.length));
                let wanted = expected(operation.target, operation.offset, operation.length);
                if found.is_some_and(|found| found != wanted) {
                    return Err((BYTES, format!("read {number} brought other bytes")));
                }
                Ok(())
            }
            (Kind::Write, Some(Verdict::Done | Verdict::NotExecuted)) => self.check_written(number),
            _ => Ok(()),
        }
    }

    /// The target's memory is what the verdict on a write allows.
    pub(super) fn check_written(&self, number: usize) -> Result<(), Broken> {
        let operation = &self.model.operations[number];
        let target = self.machines[operation.target.machine].node.as_ref();
        let Some(found) = target
            .filter(|node| node.life == operation.target)
            .and_then(|node| node.read_exported(operation.offset, operation.length))
        else {
            return Ok(());
        };
        let wanted = bytes(number as u64, operation.length);
        let mut pairs = found.iter().zip(&wanted);
        match operation.verdict {
            Some(Verdict::Done) if found != wanted => Err((
                DONE,
                format!("write {number} succeeded and is not in the peer's memory"),
            )),
            Some(Verdict::NotExecuted) if found.iter().any(|&byte| byte != 0) => Err((
                NOT_EXECUTED,
                format!("write {number} is in the peer's memory"),
            )),
            _ if pairs.any(|(&found, &wanted)| found != 0 && found != wanted) => Err((
                BYTES,
                format!("the place of write {number} holds something else"),
            )),
            _ => Ok(()),
        }
    }
}

/// An event without the bytes in it.
fn short(event: &FabricEvent<Piece>) -> String {
    match event {
        FabricEvent::Request { request, body, .. } => {
            format!("{request:?} of {} bytes", body.len())
        }
        FabricEvent::Replied { call, outcome } => match outcome {
            Ok(body) => format!("{call:?} is answered with {} bytes", body.len()),
            Err(error) => format!("{call:?} fails: {error}"),
        },
        FabricEvent::Outcome { operation, outcome } => match outcome {
            Ok(()) => format!("{operation:?} is done"),
            Err(error) => format!("{operation:?} fails: {error}"),
        },
        FabricEvent::Quiesced {
            operation,
            buffer,
            proof,
        } => format!(
            "{operation:?} gives buffer {} back: {proof:?}",
            buffer.number
        ),
        other => format!("{other:?}"),
    }
}
